// The keyboard: one table, from which the help is made as well.

const MOVES = /^(Arrow|Page|Home|End|Tab)/; // what a slider does by itself

/**
 * Listen to the keyboard. table: [{group, keys: ["z", "ctrl+z"], text, run(event)}]; a key is named by what it types, or
 * by its name, with "ctrl+", "alt+" or "shift+" before it (shift only where the name does not say it: "shift+arrowup").
 */
export function listenToKeys(table) {
  document.addEventListener("change", (event) => event.target.matches("select") && event.target.blur());
  const actions = new Map(table.flatMap((entry) => entry.keys.map((key) => [key, entry])));
  document.addEventListener("keydown", (event) => {
    const field = event.target.closest?.("input, select");
    if (field && (field.type !== "range" || MOVES.test(event.key))) {
      if (event.key === "Escape" || (event.key === "Enter" && !field.form)) field.blur();
      return;
    }
    if (document.querySelector("dialog[open]") && event.key !== "?") return;
    if (event.target.closest?.("button") && (event.key === "Enter" || event.key === " ")) return;
    const entry = actions.get(nameOf(event));
    if (!entry) return;
    event.preventDefault();
    entry.run(event);
  });
}

function nameOf(event) {
  const key = event.key.toLowerCase();
  const shift = event.shiftKey && (key.length > 1 || /[a-z]/.test(key)) ? "shift+" : "";
  return `${event.ctrlKey || event.metaKey ? "ctrl+" : ""}${event.altKey ? "alt+" : ""}${shift}${key}`;
}

const SHOWN = {
  arrowup: "↑",
  arrowdown: "↓",
  arrowleft: "←",
  arrowright: "→",
  pageup: "Page ↑",
  pagedown: "Page ↓",
  enter: "Enter",
  delete: "Del",
  escape: "Esc",
  backspace: "⌫",
  home: "Home",
};
const pretty = (key) =>
  key
    .split(/\+(?=.)/)
    .map((part) => SHOWN[part] ?? (part.length > 1 ? part[0].toUpperCase() + part.slice(1) : part.toUpperCase()))
    .join(" ");

/** Fill `root` with the table's groups, a line for each text. */
export function writeHelp(root, table, further) {
  const groups = Map.groupBy([...table, ...further], (entry) => entry.group);
  root.replaceChildren(
    ...[...groups].map(([title, entries]) => {
      const section = document.createElement("section");
      const heading = Object.assign(document.createElement("h3"), { textContent: title });
      const list = document.createElement("dl");
      for (const [text, same] of Map.groupBy(entries, (entry) => entry.text)) {
        const keys = document.createElement("dt");
        const names = same.flatMap((entry) => entry.shown ?? entry.keys.map(pretty));
        keys.append(
          ...names.slice(0, 4).map((name) => Object.assign(document.createElement("kbd"), { textContent: name })),
        );
        list.append(keys, Object.assign(document.createElement("dd"), { textContent: text }));
      }
      section.append(heading, list);
      return section;
    }),
  );
}
