// The structures: which one is active, where its click is, how many ml are marked, and the bounds it should keep.
import { colourOf, css } from "./colours.js";

const format = (ml) => (ml >= 100 ? ml.toFixed(0) : ml >= 10 ? ml.toFixed(1) : ml.toFixed(2));
const make = (tag, properties, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};

export class StructurePanel {
  /** onChoose(value): a class became active. onBounds(label, [low, high]): its bounds were edited (ml or null). */
  constructor(root, structures, { onChoose, onBounds }) {
    this.structures = structures;
    this.rows = [...structures, "background"].map((name, at) => this.makeRow(name, at + 1, onChoose, onBounds));
    root.replaceChildren(...this.rows.map((row) => row.root));
    this.bounds = {};
  }

  makeRow(name, value, onChoose, onBounds) {
    const background = value > this.structures.length;
    const key = background ? "0" : value <= 9 ? String(value) : "";
    const chip = make("span", { className: "chip", textContent: key });
    chip.style.background = css(colourOf(value, this.structures.length));
    const title = background ? "Background" : name;
    const choose = make(
      "button",
      { type: "button", className: "choose", title: `Annotate ${title}${key && ` (${key})`}` },
      chip,
      make("span", { className: "name", textContent: title }),
    );
    choose.addEventListener("click", () => onChoose(value));
    const size = make("output", { className: "size" });
    size.setAttribute("aria-label", `${title}, marked volume`);
    const place = make("span", { className: "place" });
    const root = make("li", { className: "structure" }, choose, place, size);
    const row = { root, choose, size, place, name, inputs: [] };
    if (!background) {
      const note = make("span", { className: "note" });
      row.inputs = ["least", "most"].map((end) => {
        const input = make("input", {
          type: "number",
          min: "0",
          step: "any",
          placeholder: end === "least" ? "min" : "max",
        });
        input.setAttribute("aria-label", `${name}: ${end} ml`);
        input.addEventListener("change", () => {
          const bounds = row.inputs.map((field) => (field.value === "" ? null : Number(field.value)));
          const wrong =
            bounds.some((v) => v !== null && !(v >= 0)) ||
            (bounds[0] !== null && bounds[1] !== null && bounds[0] > bounds[1]);
          row.inputs.forEach((field) => field.setCustomValidity(wrong ? "the least must not exceed the most" : ""));
          root.classList.toggle("wrong", wrong);
          if (wrong) input.reportValidity();
          else onBounds(name, bounds);
        });
        return input;
      });
      const bounds = make("span", { className: "bounds" }, "bounds ", row.inputs[0], " to ", row.inputs[1], " ml");
      row.note = note;
      root.append(bounds, note);
    }
    return row;
  }

  choose(value) {
    this.rows.forEach((row, at) => row.choose.setAttribute("aria-pressed", String(at + 1 === value)));
    this.rows.forEach((row, at) => row.root.classList.toggle("active", at + 1 === value));
  }

  /** Show clicks and bounds of a case. */
  showCase(info) {
    this.info = info;
    for (const row of this.rows.slice(0, -1)) {
      const bounds = info.bounds_ml[row.name] ?? [null, null];
      row.inputs.forEach((input, end) => {
        if (document.activeElement !== input) input.value = bounds[end] ?? "";
      });
    }
  }

  /** Show the ml that are marked, volumes by class 0…K+1; and of a run's overlay, by class, or null. */
  showSizes(volumes, predicted) {
    const total = volumes.reduce((a, b) => a + b, 0);
    this.rows.forEach((row, at) => {
      const ml = volumes[at + 1];
      row.size.textContent = `${format(ml)} ml`;
      if (!row.note) return;
      const [low, high] = this.info?.bounds_ml[row.name] ?? [null, null];
      const taken = total - volumes[0] - ml; // other structures and background
      const notes = [];
      if (high !== null && ml > high) notes.push(`more is marked than ${high} ml`);
      if (low !== null && total - taken < low) notes.push(`too little is left for ${low} ml`);
      const warned = notes.length > 0;
      const guess = predicted?.[at + 1];
      const outside = guess !== undefined && ((low !== null && guess < low) || (high !== null && guess > high));
      if (guess !== undefined) notes.push(`run: ${format(guess)} ml${outside ? ", outside" : ""}`);
      const voxel = this.info?.clicks[row.name];
      row.place.textContent = voxel ? `✛ ${voxel.join(", ")}` : "";
      row.place.title = voxel ? "voxel of its click (G goes there)" : "";
      row.note.textContent = notes.join(" · ");
      row.root.classList.toggle("warned", warned);
      row.root.classList.toggle("outside", outside);
    });
  }
}
