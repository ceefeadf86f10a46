// The tools in hand: plane, click or brush, active class, brush, opacity; kept from one visit to the next.

const $ = (id) => document.getElementById(id);
const KEY = "discoseg";
const DEFAULTS = { plane: "axial", tool: "click", label: 1, brush: 5, opacity: 0.5 };
const DIAMETERS_MM = [0, 1, 2, 3, 4, 6, 8, 10, 14, 20, 30, 45]; // 0: the one voxel under the pointer

export class Tools {
  /** names: of the structures. onChange() runs after each change of what a pointer would do. */
  constructor(viewer, names, { onLabel, onChange }) {
    this.viewer = viewer;
    this.names = names;
    this.onLabel = onLabel;
    this.onChange = onChange;
    this.shown = true; // the drawing
    Object.assign(this, DEFAULTS, JSON.parse(localStorage.getItem(KEY) ?? "{}"));
    for (const button of document.querySelectorAll("[data-plane]"))
      button.onclick = () => this.setPlane(button.dataset.plane);
    for (const button of document.querySelectorAll("[data-tool]"))
      button.onclick = () => this.setTool(button.dataset.tool);
    $("brush").oninput = () => this.setBrush(Number($("brush").value));
    $("opacity").oninput = () => this.setOpacity(Number($("opacity").value));
  }

  /** Bring page and viewer to what was kept. */
  start() {
    const { tool, label } = this;
    this.choose(Math.min(label, this.names.length));
    this.setTool(tool);
    this.setPlane(this.plane);
    this.setBrush(this.brush);
    this.setOpacity(this.opacity);
  }

  keep() {
    const { plane, tool, label, brush, opacity } = this;
    localStorage.setItem(KEY, JSON.stringify({ plane, tool, label, brush, opacity }));
    this.onChange();
  }

  /** What the pointer does: {kind: "click" | "brush", radius (mm), value (of the class; 0 erases)}. */
  inHand() {
    const value = this.tool === "eraser" ? 0 : this.label;
    return { kind: this.tool === "click" ? "click" : "brush", radius: DIAMETERS_MM[this.brush] / 2, value };
  }

  /** The active structure's name; undefined for background. */
  get structure() {
    return this.names[this.label - 1];
  }

  setTool(tool) {
    if (tool === "click" && !this.structure) this.choose(1);
    this.tool = tool;
    press("[data-tool]", (button) => button.dataset.tool === tool);
    $("stage").dataset.tool = tool;
    this.keep();
  }

  /** Make a class active: 1…K, or K+1 for background, which is painted, not clicked. */
  choose(value) {
    this.label = value;
    this.onLabel(value);
    if (this.tool === "eraser" || (this.tool === "click" && !this.structure)) this.setTool("brush");
    this.keep();
  }

  setBrush(step) {
    this.brush = Math.min(DIAMETERS_MM.length - 1, Math.max(0, step));
    $("brush").value = this.brush;
    $("brush-size").textContent = this.brush ? `⌀ ${DIAMETERS_MM[this.brush]} mm` : "1 voxel";
    this.keep();
  }

  setOpacity(opacity) {
    this.opacity = Math.min(1, Math.max(0, opacity));
    $("opacity").value = this.opacity;
    this.viewer.colour({ opacity: this.opacity, showDrawing: this.shown });
    this.keep();
  }

  toggleDrawing() {
    this.shown = !this.shown;
    this.setOpacity(this.opacity);
  }

  setPlane(plane) {
    this.plane = plane;
    press("[data-plane]", (button) => button.dataset.plane === plane);
    this.viewer.setPlane(plane);
    this.keep();
  }
}

function press(selector, isPressed) {
  for (const button of document.querySelectorAll(selector))
    button.setAttribute("aria-pressed", String(isPressed(button)));
}
