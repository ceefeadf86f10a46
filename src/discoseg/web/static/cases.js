// The list of cases: their state, a filter, and which one comes next.

const MARKS = { new: "○", begun: "◐", done: "●" };

export class CaseList {
  /** onOpen(name) is called where a case is chosen. */
  constructor({ list, filter, states, count }, onOpen) {
    this.elements = { list, filter, states, count };
    this.onOpen = onOpen;
    this.cases = [];
    this.suggested = [];
    this.current = null;
    filter.addEventListener("input", () => this.render());
    states.addEventListener("change", () => this.render());
    list.addEventListener("click", (event) => {
      const row = event.target.closest("button[data-case]");
      if (row) this.onOpen(row.dataset.case);
    });
  }

  set(cases, suggested) {
    this.cases = cases;
    this.suggested = suggested;
    this.render();
  }

  update(name, state) {
    const found = this.cases.find((entry) => entry.name === name);
    if (!found || found.state === state) return;
    found.state = state;
    this.render();
  }

  open(name) {
    this.current = name;
    this.render();
    this.elements.list.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
  }

  /** The cases that the filter lets through; suggested ones in the order of the suggestion. */
  visible() {
    const text = this.elements.filter.value.trim().toLowerCase();
    const state = this.elements.states.value;
    const named = this.cases.filter((entry) => `${entry.name} ${entry.group ?? ""}`.toLowerCase().includes(text));
    if (state === "suggested") {
      const rank = (entry) => this.suggested.indexOf(entry.name);
      return named.filter((entry) => rank(entry) >= 0).sort((a, b) => rank(a) - rank(b));
    }
    return named.filter((entry) => !state || (state === "open" ? entry.state !== "done" : entry.state === state));
  }

  /** Return the name of the case `step` rows further, or nothing at the end of the list. */
  neighbour(step) {
    const names = this.visible().map((entry) => entry.name);
    const at = names.indexOf(this.current);
    return at < 0 ? names[0] : names[at + step];
  }

  /** Return the next case that is not done, from the current one on and around, or nothing. */
  nextOpen() {
    const rows = this.visible();
    const at = rows.findIndex((entry) => entry.name === this.current);
    const around = [...rows.slice(at + 1), ...rows.slice(0, Math.max(at, 0))];
    return around.find((entry) => entry.state !== "done" && entry.name !== this.current)?.name;
  }

  render() {
    const rows = this.visible().map((entry) => {
      const row = document.createElement("button");
      row.type = "button";
      row.dataset.case = entry.name;
      row.className = `case ${entry.state}`;
      const rank = this.suggested.indexOf(entry.name) + 1;
      if (entry.name === this.current) row.setAttribute("aria-current", "true");
      row.setAttribute("aria-label", `${entry.name}, ${entry.state}${rank ? `, suggestion ${rank}` : ""}`);
      const parts = [
        ["mark", MARKS[entry.state]],
        ["name", entry.name],
        ["star", rank ? `★${rank}` : ""],
      ];
      row.append(
        ...parts.map(([kind, text]) =>
          Object.assign(document.createElement("span"), { className: kind, textContent: text }),
        ),
      );
      row.title = [entry.name, entry.group, rank && `suggested as number ${rank}: network and proposals disagree here`]
        .filter(Boolean)
        .join(" · ");
      return row;
    });
    this.elements.list.replaceChildren(...rows);
    const done = this.cases.filter((entry) => entry.state === "done").length;
    this.elements.count.textContent = `${done} of ${this.cases.length} done`;
    document.title = this.current ? `${this.current} · discoseg` : "discoseg annotate";
  }
}
