// What a run says about the open case: its prediction or one of its proposals, under the drawing.
import * as api from "./api.js";

export const KINDS = { prediction: "prediction", crf: "boundary proposal", size: "size proposal" };

export class Overlays {
  /** onOverlay(classes | null, message) is called with each mask that arrives. */
  constructor({ run, kind }, onOverlay) {
    this.run = run;
    this.kind = kind;
    this.onOverlay = onOverlay;
    this.asked = 0;
    this.case = null;
    kind.append(...Object.entries(KINDS).map(([value, text]) => new Option(text, value)));
    run.addEventListener("change", () => this.refresh());
    kind.addEventListener("change", () => this.refresh());
  }

  /** runs: [{name, title}]; what was chosen stays so. */
  setRuns(runs) {
    const chosen = this.run.value;
    this.run.replaceChildren(new Option("none", ""), ...runs.map(({ name, title }) => new Option(title || name, name)));
    this.run.value = runs.some(({ name }) => name === chosen) ? chosen : "";
    this.kind.disabled = this.run.value === "";
  }

  /** Go on to the next kind: none, prediction, boundary, size, none. */
  cycle() {
    const kinds = Object.keys(KINDS);
    const at = this.run.value ? kinds.indexOf(this.kind.value) : -1;
    if (at < 0) {
      this.run.value = this.last ?? this.run.options[1]?.value ?? "";
      this.kind.value = kinds[0];
    } else if (at + 1 < kinds.length) {
      this.kind.value = kinds[at + 1];
    } else {
      this.run.value = "";
    }
    return this.refresh();
  }

  async refresh(name = this.case) {
    this.case = name;
    const [run, kind] = [this.run.value, this.kind.value];
    this.kind.disabled = run === "";
    const turn = ++this.asked;
    if (!run || !name) return this.onOverlay(null, "");
    this.last = run;
    try {
      const mask = await api.getOverlay(run, name, kind);
      if (turn === this.asked) this.onOverlay(mask, mask ? "" : `${run} has no ${KINDS[kind]} of this case`);
    } catch (error) {
      if (turn === this.asked) this.onOverlay(null, error.message);
    }
  }
}
