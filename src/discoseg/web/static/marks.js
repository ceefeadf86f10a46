// What lies over the picture: a mark at each click, and the brush's outline under the pointer.
import { colourOf, css } from "./colours.js";

const SVG = "http://www.w3.org/2000/svg";
const draw = (tag, attributes) => {
  const element = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
};

/** Draw into `svg` the clicks ({label: voxel of the file}) on the viewer's tiles; those of other slices are small. */
export function drawMarks(svg, viewer, { clicks, structures, active }) {
  const marks = [];
  for (const tile of viewer.tiles()) {
    for (const [label, voxel] of Object.entries(clicks)) {
      const point = viewer.drawing.fromFile(voxel);
      const [x, y] = viewer.project(point, tile);
      const here = point[tile.axis] === viewer.position[tile.axis];
      const value = structures.indexOf(label) + 1;
      const group = draw("g", {
        class: `click${here ? "" : " elsewhere"}${value === active ? " active" : ""}`,
        transform: `translate(${x} ${y})`,
        stroke: css(colourOf(value, structures.length)),
      });
      const r = here ? 7 : 4;
      group.append(draw("circle", { r, class: "halo" }), draw("circle", { r }));
      if (here) group.append(draw("path", { d: "M-12 0H-4M4 0H12M0-12V-4M0 4V12" }));
      marks.push(group);
    }
  }
  svg.replaceChildren(...marks);
}

/** Put the outline of the brush (radius in mm) at the pointer's place; without `spot` ({x, y, tile}) hide it. */
export function drawBrush(svg, viewer, spot, radius, colour) {
  if (!spot) return svg.replaceChildren();
  const r = Math.max(2, radius * viewer.pixelsPerMm(spot.tile));
  svg.replaceChildren(
    draw("circle", { cx: spot.x, cy: spot.y, r, class: "halo" }),
    draw("circle", { cx: spot.x, cy: spot.y, r, stroke: colour }),
  );
}
