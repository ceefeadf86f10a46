// The page: one viewer, one open case, and the panels around them.
import * as api from "./api.js";
import { Annotator } from "./annotate.js";
import { CaseList } from "./cases.js";
import { colourOf, css, MOST_STRUCTURES } from "./colours.js";
import { listenToKeys, writeHelp } from "./keys.js";
import { drawBrush, drawMarks } from "./marks.js";
import { Overlays } from "./overlays.js";
import { listenToPointer } from "./pointer.js";
import { StructurePanel } from "./structures.js";
import { keyTable, MOUSE } from "./table.js";
import { Tools } from "./tools.js";
import { TrainingPanel } from "./training.js";
import { Viewer } from "./viewer.js";

const $ = (id) => document.getElementById(id);
class Page {
  constructor(dataset) {
    this.names = dataset.structures.map((structure) => structure.name);
    this.predicted = null;
    this.passing = "";
    this.standing = "";
    this.viewer = new Viewer($("picture"), this.names.length);
    this.viewer.onDraw = () => this.showPosition();
    this.annotator = new Annotator(this.viewer, dataset.structures, {
      onCase: (info) => this.showCase(info),
      onState: (name, state) => this.cases.update(name, state),
      onDrawing: () => this.showSizes(),
      onStatus: (status, message) => this.showStatus(status, message),
      onNotice: (message) => this.notice(message),
    });
    this.cases = new CaseList(
      { list: $("cases"), filter: $("filter"), states: $("states"), count: $("count") },
      (name) => this.open(name),
    );
    this.panel = new StructurePanel($("structures"), this.names, {
      onChoose: (value) => this.tools.choose(value),
      onBounds: (label, bounds) => this.annotator.setBounds(label, bounds),
    });
    this.tools = new Tools(this.viewer, this.names, {
      onLabel: (value) => this.panel.choose(value),
      onChange: () => this.showPosition(),
    });
    this.overlays = new Overlays({ run: $("run"), kind: $("kind") }, (mask, message) =>
      this.showOverlay(mask, message),
    );
    this.training = new TrainingPanel(
      {
        form: $("train"),
        start: $("train-start"),
        stop: $("train-stop"),
        status: $("train-status"),
        bar: $("train-bar"),
        charts: $("charts"),
      },
      { onEpoch: (training) => this.followTraining(training), onNotice: (message) => this.notice(message) },
    );
    this.learn(dataset);
    this.bind();
  }

  bind() {
    const actions = {
      undo: () => this.annotator.undo(),
      redo: () => this.annotator.redo(),
      accept: () => this.accept(),
      reopen: () => this.annotator.setState("begun"),
      "auto-window": () => this.viewer.autoWindow(),
      "help-button": () => this.help(),
      "help-close": () => $("help").close(),
    };
    for (const [id, action] of Object.entries(actions)) $(id).onclick = action;
    $("slice").oninput = () => this.goToSlice(Number($("slice").value));
    listenToPointer($("surface"), this.viewer, () => this.tools.inHand(), {
      ready: () => this.annotator.drawing !== null,
      click: (point) => this.click(point),
      beginStroke: () => this.annotator.beginStroke(),
      paint: (point, axis) => this.paint(point, axis),
      finishStroke: () => this.annotator.finishStroke(),
      hover: (spot) => this.hover(spot),
      wheelStep: (axis, step) => this.stepSlice(step, axis),
    });
    const table = keyTable(this);
    listenToKeys(table);
    writeHelp($("keys"), table, MOUSE);
    window.addEventListener("beforeunload", (event) => {
      if (this.annotator.saver.busy) event.preventDefault();
    });
    this.tools.start();
  }

  async start(dataset) {
    await this.viewer.start();
    this.showStatus("saved", "Saved");
    api.listen({
      onEvent: (event) => this.hear(event),
      onOpen: () => this.catchUp().catch((error) => this.notice(error.message)),
      onLost: () => this.lose(),
    });
    const wanted = decodeURIComponent(location.hash.slice(1));
    const names = dataset.cases.map((entry) => entry.name);
    await this.open([wanted, dataset.shown, names[0]].find((name) => names.includes(name)));
  }

  // Cases --------------------------------------------------------------------------------------------------------

  learn(dataset) {
    $("dataset").textContent = dataset.name;
    this.hasAtlas = dataset.has_atlas;
    this.overlays.setRuns(dataset.runs);
    this.cases.set(dataset.cases, dataset.suggested);
  }

  /** After a (re)connection: what happened in the meantime. */
  async catchUp() {
    if (!this.annotator.saver.busy) this.showStatus("saved", "Saved");
    const [dataset, training] = await Promise.all([api.getDataset(), api.getTraining()]);
    this.learn(dataset);
    this.training.show(training);
    const open = dataset.cases.find((entry) => entry.name === this.annotator.drawing?.name);
    if (open) await this.annotator.noticeChange(open.name, open.revision);
  }

  /** The connection broke: say so at once, not at the next stroke. */
  lose() {
    if (!this.annotator.saver.busy) this.showStatus("offline", "The server does not answer; this page keeps trying.");
  }

  hear(event) {
    if (event.training) this.training.show(event.training);
    if (!event.case) return;
    this.cases.update(event.case, event.state);
    this.annotator.noticeChange(event.case, event.revision).catch((error) => this.notice(error.message));
  }

  async open(name) {
    if (!name || name === this.annotator.wanted) return;
    this.cases.open(name);
    $("case-name").textContent = name;
    $("message").textContent = "Loading…";
    $("stage").classList.add("loading");
    try {
      if (!(await this.annotator.open(name))) return;
      $("message").textContent = "";
      history.replaceState(null, "", `#${encodeURIComponent(name)}`);
      api.putShown(name).catch(() => {}); // only where the next start resumes
      await this.overlays.refresh(name);
    } catch (error) {
      if (this.annotator.wanted !== name) return;
      $("message").textContent = `${name} cannot be shown: ${error.message}`;
      this.annotator.wanted = null;
    }
    $("stage").classList.remove("loading");
  }

  async accept() {
    if (!this.annotator.info) return;
    this.annotator.setState("done");
    const next = this.cases.nextOpen();
    if (next) await this.open(next);
    else this.notice("That was the last open case in the list.");
  }

  // Tools --------------------------------------------------------------------------------------------------------

  paint(point, axis) {
    const { radius, value } = this.tools.inHand();
    this.annotator.paint(point, axis, radius, value);
  }

  click(point) {
    this.viewer.goTo(point);
    this.annotator.click(this.tools.structure, this.annotator.drawing.toFile(this.viewer.position));
  }

  removeClick() {
    this.annotator.click(this.tools.structure, null);
  }

  /** Move the active structure's click by voxels on the screen (right, down) or across slices; false without one. */
  nudge(right, down, across) {
    const voxel = this.tools.tool === "click" && this.annotator.info?.clicks[this.tools.structure];
    if (!voxel) return false;
    const tile = this.viewer.tiles()[0];
    const position = this.viewer.drawing.fromFile(voxel);
    const [horizontal, vertical] = [0, 1, 2].filter((axis) => axis !== tile.axis);
    position[horizontal] += tile.mirrored !== tile.slice.fovMM[0] < 0 ? -right : right;
    position[vertical] -= down;
    position[tile.axis] += across;
    this.click(position);
    return true;
  }

  goToClick() {
    const voxel = this.annotator.info?.clicks[this.tools.structure];
    if (voxel) this.viewer.goTo(this.viewer.drawing.fromFile(voxel));
  }

  stepSlice(step, axis = this.viewer.axis(this.spot?.tile)) {
    if (!this.viewer.drawing) return;
    const position = [...this.viewer.position];
    position[axis] += step;
    this.viewer.goTo(position);
  }

  goToSlice(number) {
    const position = [...this.viewer.position];
    position[this.viewer.axis()] = number;
    this.viewer.goTo(position);
  }

  /** Change contrast (a factor of the window's width) and brightness (its shift, in widths). */
  changeWindow(factor, shift) {
    const [low, high] = this.viewer.window();
    const centre = (low + high) / 2 + shift * (high - low);
    this.viewer.setWindow(centre - (factor * (high - low)) / 2, centre + (factor * (high - low)) / 2);
  }

  help() {
    if ($("help").open) $("help").close();
    else $("help").showModal();
  }

  // What is shown ------------------------------------------------------------------------------------------------

  showCase(info) {
    $("case-name").textContent = info.name;
    $("case-name").className = info.state;
    $("reopen").disabled = info.state !== "done";
    this.cases.update(info.name, info.state);
    this.panel.showCase(info);
    this.showSizes();
    this.showPosition();
  }

  showSizes() {
    const { drawing, info } = this.annotator;
    if (!drawing || !info) return;
    this.panel.showSizes(drawing.volumesMl(), this.predicted);
    $("undo").disabled = !drawing.undoable.length;
    $("redo").disabled = !drawing.redoable.length;
    const clicked = Object.keys(info.clicks).length;
    const seeds = this.hasAtlas
      ? "the atlas marks what is certain around it"
      : "there is no atlas: a small ball around it is marked";
    $("hint").textContent =
      clicked || drawing.counts[0] < drawing.labels.length
        ? ""
        : `Click the centre of ${this.tools.structure ?? this.names[0]}: ${seeds}.`;
  }

  showOverlay(mask, message) {
    $("overlay-note").textContent = message;
    this.predicted = null;
    const { drawing } = this.annotator;
    if (!drawing || (mask && mask.length !== drawing.labels.length)) return;
    if (mask) {
      this.predicted = new Array(this.names.length + 2).fill(0);
      const voxelMl = drawing.layout.spacing.reduce((a, b) => a * b, 1) / 1000;
      for (let i = 0; i < mask.length; i++) this.predicted[mask[i]] += voxelMl;
    }
    if (mask || this.viewer.overlay) this.viewer.setOverlay(mask);
    this.showSizes();
  }

  /** A training came further: its run may be new, and the mask that is shown older than its last epoch. */
  followTraining(training) {
    if (training.state === this.followed?.state && training.epoch === this.followed?.epoch) return;
    const first = training.name && training.name !== this.followed?.name;
    const ended = this.followed?.state === "running" && training.state !== "running";
    this.followed = training;
    if (first || ended)
      api.getDataset().then(
        (dataset) => this.learn(dataset),
        () => {},
      );
    if (training.epoch && this.overlays.run.value === training.name) this.overlays.refresh();
  }

  showPosition() {
    const { viewer } = this;
    const { info, drawing } = this.annotator;
    if (!drawing || viewer.drawing !== drawing || !viewer.nv.volumes.length) return;
    const axis = viewer.axis();
    const count = drawing.layout.dims[axis];
    $("slice").max = count - 1;
    $("slice").value = viewer.position[axis];
    $("where").textContent = `slice ${viewer.position[axis] + 1} / ${count}`;
    const clicks = this.tools.shown && info ? info.clicks : {};
    drawMarks($("marks"), viewer, { clicks, structures: this.names, active: this.tools.label });
    this.hover(this.spot);
  }

  showValue() {
    const round = (v) => Number(v.toPrecision(3)).toString();
    const [low, high] = this.viewer.window();
    const spot = this.spot?.point.map(Math.round);
    const dims = this.viewer.drawing.layout.dims;
    const inside = spot?.every((v, a) => v >= 0 && v < dims[a]);
    const under = inside
      ? `voxel ${this.viewer.drawing.toFile(spot).join(", ")} · value ${round(this.viewer.valueAt(spot))} · `
      : "";
    $("value").textContent = `${under}window ${round(low)} to ${round(high)}`;
  }

  hover(spot) {
    this.spot = spot;
    const { kind, radius, value } = this.tools.inHand();
    const colour = value ? css(colourOf(value, this.names.length)) : "white";
    drawBrush($("cursor"), this.viewer, kind === "brush" ? spot : null, radius, colour);
    if (this.viewer.nv.volumes.length && this.viewer.drawing) this.showValue();
  }

  showStatus(status, message) {
    this.status = status;
    $("save").className = status;
    $("save").textContent = { saved: "Saved", saving: "Saving…", offline: "Offline" }[status];
    $("save").title = message;
    this.standing = status === "offline" ? message : "";
    this.showNotices();
  }

  /** Tell something for a while, beside what stays true until the server answers again. */
  notice(message) {
    clearTimeout(this.noticeTimer);
    this.passing = message;
    this.showNotices();
    if (message) this.noticeTimer = setTimeout(() => this.notice(""), 12000);
  }

  showNotices() {
    const lines = [this.passing, this.standing].filter(Boolean);
    $("notice").textContent = lines.join("\n");
    $("notice").hidden = !lines.length;
  }

  /** For tests and scripts: what the page shows, in plain data. */
  state() {
    const { annotator, viewer } = this;
    const { drawing, info } = annotator;
    return {
      case: drawing?.name ?? null,
      info: structuredClone(info),
      counts: drawing ? [...drawing.counts] : null,
      saved: this.status,
      unsaved: drawing?.unsaved.length ?? 0,
      undo: drawing?.undoable.length ?? 0,
      plane: this.tools.plane,
      tool: this.tools.tool,
      label: this.tools.label,
      position: drawing && drawing.toFile(viewer.position),
      window: viewer.nv.volumes.length ? viewer.window() : null,
      overlay: this.predicted && [...this.predicted],
      training: this.training.training ?? null,
      loading: $("stage").classList.contains("loading"),
    };
  }

  /** For tests and scripts: where a voxel of the image's file lies on the first tile, in CSS pixels of the page. */
  pixelOf(voxel) {
    const box = $("picture").getBoundingClientRect();
    const [x, y] = this.viewer.project(this.viewer.drawing.fromFile(voxel), this.viewer.tiles()[0]);
    return [box.left + x, box.top + y];
  }
}

async function begin() {
  try {
    const dataset = await api.getDataset();
    if (dataset.structures.length > MOST_STRUCTURES) {
      throw new Error(
        `${dataset.structures.length} structures are too many at once: start it with --label and at most ${MOST_STRUCTURES}.`,
      );
    }
    const page = new Page(dataset);
    window.discoseg = { state: () => page.state(), pixelOf: (voxel) => page.pixelOf(voxel) };
    await page.start(dataset);
  } catch (error) {
    $("message").textContent = error.message;
    throw error;
  }
}

begin();
