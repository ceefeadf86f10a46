// Colours of the classes, and the table by which the viewer colours drawing and overlay at once.

const STRUCTURES = [
  [255, 84, 89],
  [43, 149, 255],
  [255, 176, 0],
  [47, 190, 97],
  [196, 100, 245],
  [255, 122, 24],
  [20, 184, 200],
  [245, 90, 160],
  [140, 200, 40],
];
const BACKGROUND = [140, 155, 180];

/** Return the colour [r, g, b] of class 1…K, or of background where `value` is K+1. */
export function colourOf(value, structures) {
  return value > structures ? BACKGROUND : STRUCTURES[(value - 1) % STRUCTURES.length];
}

export const css = (colour) => `rgb(${colour.join(" ")})`;

/** How many structures the viewer can tell apart in drawing and overlay: (K+2)·(K+2) values fit one byte. */
export const MOST_STRUCTURES = 14;

/**
 * Return 256 RGBA colours of the values `overlay · (K + 2) + drawing`: the drawing where there is one, else the
 * overlay, thinner. opacity: 0 to 1, of the drawing.
 */
export function makeTable(structures, opacity, showDrawing) {
  const table = new Uint8ClampedArray(256 * 4);
  const base = structures + 2;
  for (let value = 0; value < 256; value++) {
    const drawn = showDrawing ? value % base : 0;
    const other = Math.floor(value / base);
    const background = drawn > structures;
    const alpha = drawn ? (background ? 0.3 : 1) * opacity : 0.35 * opacity;
    if (drawn) table.set([...colourOf(drawn, structures), 255 * alpha], value * 4);
    else if (other && other <= structures) table.set([...colourOf(other, structures), 255 * alpha], value * 4);
  }
  return table;
}
