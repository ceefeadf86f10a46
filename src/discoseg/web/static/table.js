// Which key does what.

export const MOUSE = [
  { group: "Mouse", shown: ["left"], text: "click the centre, or paint" },
  { group: "Mouse", shown: ["shift left"], text: "look: move the crosshair only" },
  { group: "Mouse", shown: ["right drag"], text: "window: contrast ↔, brightness ↕" },
  { group: "Mouse", shown: ["middle drag"], text: "move the picture" },
  { group: "Mouse", shown: ["wheel"], text: "slices" },
  { group: "Mouse", shown: ["ctrl wheel"], text: "zoom" },
];

/** Return the table for `listenToKeys`, of what a page does. */
export function keyTable(page) {
  const { annotator, viewer, cases, tools } = page;
  const ready = (action) => () => annotator.info && action();
  const arrow = (right, down) => ready(() => page.nudge(right, down, 0) || (down && page.stepSlice(-down)));
  const classes = page.names.slice(0, 9).map((name, at) => ({
    group: "Annotate",
    keys: [String(at + 1)],
    shown: at ? [] : [page.names.length > 1 ? `1 … ${Math.min(9, page.names.length)}` : "1"],
    text: "structure",
    run: () => tools.choose(at + 1),
  }));
  return [
    { group: "Cases", keys: ["n"], text: "next case", run: () => page.open(cases.neighbour(1)) },
    { group: "Cases", keys: ["p"], text: "previous case", run: () => page.open(cases.neighbour(-1)) },
    { group: "Cases", keys: ["enter"], text: "accept: done, on to the next open case", run: () => page.accept() },
    { group: "Cases", keys: ["/"], text: "filter the list", run: () => document.getElementById("filter").focus() },
    { group: "View", keys: ["a"], text: "axial", run: () => tools.setPlane("axial") },
    { group: "View", keys: ["c"], text: "coronal", run: () => tools.setPlane("coronal") },
    { group: "View", keys: ["s"], text: "sagittal", run: () => tools.setPlane("sagittal") },
    { group: "View", keys: ["m"], text: "multi: all three planes", run: () => tools.setPlane("multi") },
    { group: "View", keys: ["pageup", "k"], text: "next slice", run: () => page.stepSlice(1) },
    { group: "View", keys: ["pagedown", "j"], text: "previous slice", run: () => page.stepSlice(-1) },
    { group: "View", keys: ["g"], text: "go to the active structure's click", run: () => page.goToClick() },
    { group: "View", keys: ["w"], text: "automatic window", run: ready(() => viewer.autoWindow()) },
    {
      group: "View",
      keys: ["shift+arrowright", "shift+arrowleft"],
      text: "less, more contrast",
      run: (event) => page.changeWindow(event.key === "ArrowRight" ? 1.1 : 1 / 1.1, 0),
    },
    {
      group: "View",
      keys: ["shift+arrowup", "shift+arrowdown"],
      text: "brighter, darker",
      run: (event) => page.changeWindow(1, event.key === "ArrowUp" ? -0.05 : 0.05),
    },
    { group: "View", keys: ["+", "="], shown: ["+"], text: "zoom in", run: ready(() => viewer.zoomBy(1.25)) },
    { group: "View", keys: ["-"], text: "zoom out", run: ready(() => viewer.zoomBy(0.8)) },
    { group: "View", keys: ["home"], text: "whole picture", run: ready(() => viewer.resetView()) },
    ...classes,
    { group: "Annotate", keys: ["0"], text: "background", run: () => tools.choose(page.names.length + 1) },
    { group: "Annotate", keys: ["x"], text: "click the centre", run: () => tools.setTool("click") },
    { group: "Annotate", keys: ["b"], text: "brush", run: () => tools.setTool("brush") },
    { group: "Annotate", keys: ["e"], text: "eraser", run: () => tools.setTool("eraser") },
    {
      group: "Annotate",
      keys: ["[", "]"],
      text: "smaller, larger brush",
      run: (event) => tools.setBrush(tools.brush + (event.key === "]" ? 1 : -1)),
    },
    { group: "Annotate", keys: ["arrowleft"], text: "nudge the click by a voxel", run: arrow(-1, 0) },
    { group: "Annotate", keys: ["arrowright"], text: "nudge the click by a voxel", run: arrow(1, 0) },
    { group: "Annotate", keys: ["arrowup"], text: "nudge the click by a voxel", run: arrow(0, -1) },
    { group: "Annotate", keys: ["arrowdown"], text: "nudge the click by a voxel", run: arrow(0, 1) },
    {
      group: "Annotate",
      keys: ["alt+arrowup", "alt+arrowdown"],
      text: "nudge it to the next slice",
      run: (event) => annotator.info && page.nudge(0, 0, event.key === "ArrowUp" ? 1 : -1),
    },
    {
      group: "Annotate",
      keys: ["delete", "backspace"],
      text: "remove the click",
      run: ready(() => page.removeClick()),
    },
    { group: "Annotate", keys: ["z", "ctrl+z"], text: "undo", run: ready(() => annotator.undo()) },
    {
      group: "Annotate",
      keys: ["y", "shift+z", "ctrl+y", "ctrl+shift+z"],
      shown: ["Y", "Ctrl Y"],
      text: "redo",
      run: ready(() => annotator.redo()),
    },
    { group: "Overlays", keys: ["o"], text: "hide, show the drawing", run: ready(() => tools.toggleDrawing()) },
    {
      group: "Overlays",
      keys: [",", "."],
      text: "more, less transparent",
      run: (event) => tools.setOpacity(tools.opacity + (event.key === "." ? 0.1 : -0.1)),
    },
    { group: "Overlays", keys: ["v"], text: "a run's prediction, proposals, none", run: () => page.overlays.cycle() },
    { group: "Overlays", keys: ["?"], text: "this help", run: () => page.help() },
  ];
}
