// A small line chart in SVG.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 260;
const HEIGHT = 84;
const LEFT = 34;
const BOTTOM = 14;

function add(parent, tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

/**
 * Draw lines over epochs into `root`. lines: [{name, values: [[epoch, value], …]}]; options: log (of the values), low
 * and high (values the axis must reach), epochs (where the axis ends).
 */
export function drawChart(root, title, lines, { log = false, low, high, epochs } = {}) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute("role", "img");
  const latest = lines.map((line) => `${line.name} ${show(line.values.at(-1)?.[1])}`).join(", ");
  svg.setAttribute("aria-label", `${title} by epoch: ${latest}`);
  const scale = log ? (v) => Math.log10(Math.max(v, 1e-9)) : (v) => v;
  const values = lines.flatMap((line) => line.values.map(([, v]) => v)).filter((v) => !log || v > 0);
  const bottom = Math.min(...values, low ?? Infinity);
  const top = Math.max(...values, high ?? -Infinity);
  const [from, to] = [scale(bottom), scale(top) > scale(bottom) ? scale(top) : scale(bottom) + 1];
  const x = (epoch) => LEFT + ((WIDTH - LEFT - 6) * (epoch - 1)) / Math.max((epochs ?? 2) - 1, 1);
  const y = (v) => HEIGHT - BOTTOM - ((HEIGHT - BOTTOM - 8) * (scale(v) - from)) / (to - from);
  for (const v of [bottom, top]) {
    add(svg, "line", { x1: LEFT, x2: WIDTH - 6, y1: y(v), y2: y(v), class: "grid" });
    add(svg, "text", { x: LEFT - 4, y: y(v) + 3, class: "end" }, show(v));
  }
  add(svg, "text", { x: LEFT, y: HEIGHT - 2 }, "1");
  add(svg, "text", { x: WIDTH - 6, y: HEIGHT - 2, class: "end" }, String(epochs ?? ""));
  lines.forEach((line, at) => {
    const points = line.values
      .filter(([, v]) => !log || v > 0)
      .map(([epoch, v]) => `${x(epoch).toFixed(1)},${y(v).toFixed(1)}`);
    add(svg, "polyline", { points: points.join(" "), class: `line line${at}` });
    const [cx, cy] = (points.at(-1) ?? "0,0").split(",");
    if (points.length) add(svg, "circle", { cx, cy, r: 2.2, class: `dot line${at}` });
  });
  const caption = document.createElement("figcaption");
  caption.append(`${title} `);
  lines.forEach((line, at) => {
    const key = document.createElement("span");
    key.className = `key line${at}`;
    key.textContent = `${line.name} ${show(line.values.at(-1)?.[1])}`;
    caption.append(key);
  });
  const figure = document.createElement("figure");
  figure.append(caption, svg);
  root.append(figure);
}

const show = (v) => (v === undefined ? "–" : Number(v.toPrecision(Math.abs(v) < 1 ? 2 : 3)).toString());
