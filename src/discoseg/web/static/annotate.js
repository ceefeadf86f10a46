// The case that is open: what a user does to it, and how that reaches the server and comes back.
import * as api from "./api.js";
import { Conflict } from "./api.js";
import { Drawing } from "./drawing.js";
import { Saver } from "./saving.js";

const STROKE_DELAY_MS = 150; // strokes in quick succession are sent together
const same = (a, b) => JSON.stringify(a ?? null) === JSON.stringify(b ?? null);

function differ(a, b) {
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return true;
  return false;
}

export class Annotator {
  /** hooks: onCase(info), onState(name, state), onDrawing(), onStatus(status, message), onNotice(message) */
  constructor(viewer, structures, hooks) {
    this.viewer = viewer;
    this.structures = structures; // {name, value in the dataset} of the drawing's numbers 1…K
    this.hooks = hooks;
    this.info = null; // of the open case, as the server tells it
    this.drawing = null;
    this.known = new Map(); // the latest information of each case that was opened
    this.heard = new Map(); // the latest revision of each case that the server told of
    this.wanted = null;
    const onStatus = (status, message) => {
      hooks.onStatus(status, message);
      if (status === "saved" && this.drawing) this.noticeChange(this.drawing.name).catch(() => {}); // else when we save
    };
    this.saver = new Saver(onStatus, (operation, error) => this.solve(operation, error));
  }

  /** Open a case; return false where another one was asked for in the meantime. */
  async open(name) {
    this.finishStroke();
    this.wanted = name;
    this.drawing = this.info = null; // nobody annotates the last case by mistake while this one loads
    const unsent = this.saver.queue.find((operation) => operation.name === name)?.drawing; // goes on where it was left
    const info = await api.getCase(name);
    const [image, answer] = await Promise.all([
      this.viewer.fetch(api.imageUrl(name, info.image), info.image, info.spacing_mm),
      api.getLabels(name),
    ]);
    const labels = await this.newest(name, answer);
    if (this.wanted !== name) return false;
    unsent?.replace(labels);
    this.drawing =
      unsent ?? new Drawing(name, labels, this.viewer.layoutOf(image, info.spacing_mm), this.structures.length + 1);
    this.viewer.show(image, this.drawing);
    this.learn(info);
    const clicked = Object.values(this.info.clicks)[0];
    if (clicked) this.viewer.goTo(this.drawing.fromFile(clicked));
    return true;
  }

  /** Take what the server told of a case, unless an answer to another request overtook it. */
  learn(told) {
    const before = this.known.get(told.name);
    const info = before && before.revision > told.revision ? before : told;
    this.known.set(info.name, info);
    this.hooks.onState(info.name, info.state);
    if (this.drawing?.name === info.name) {
      // Clicks and bounds that are not saved yet are kept as the user sees them.
      const waiting = this.saver.queue
        .slice(1)
        .filter((operation) => operation.name === info.name && operation.pretend);
      this.info = waiting.reduce((seen, operation) => operation.pretend(seen), structuredClone(info));
      this.hooks.onCase(this.info);
    }
  }

  /** Read drawing and information anew; what is not saved yet stays on top. Return whether others changed anything. */
  async reload(drawing) {
    const before = this.known.get(drawing.name);
    const info = await api.getCase(drawing.name);
    const labels = drawing.labels;
    await this.fetchLabels(drawing);
    this.learn(info);
    return (
      differ(labels, drawing.labels) || !same(before?.clicks, info.clicks) || !same(before?.bounds_ml, info.bounds_ml)
    );
  }

  /** Return the labels of an answer of the server, asked for again where saving overtook it. */
  async newest(name, { labels, revision }) {
    while (revision < (this.known.get(name)?.revision ?? 0)) ({ labels, revision } = await api.getLabels(name));
    return labels;
  }

  async fetchLabels(drawing) {
    const labels = await this.newest(drawing.name, await api.getLabels(drawing.name));
    const midway = drawing.stroke !== null;
    if (midway) this.finishStroke();
    drawing.replace(labels);
    if (midway) drawing.beginStroke();
    if (drawing === this.drawing) {
      this.viewer.upload();
      this.hooks.onDrawing();
    }
  }

  /** A case is at `revision`: if another window changed it, show that, unless we are about to find out by saving. */
  async noticeChange(name, revision = 0) {
    this.heard.set(name, Math.max(revision, this.heard.get(name) ?? 0));
    const known = this.known.get(name);
    if (this.drawing?.name !== name || this.saver.busy || !known || this.heard.get(name) <= known.revision) return;
    const changed = await this.reload(this.drawing);
    if (changed) this.hooks.onNotice("Another window changed this case; its version is shown.");
  }

  // What users do ------------------------------------------------------------------------------------------------

  /** Put the click of a structure (its name) on a voxel of the file, or take it away (null). */
  click(label, voxel, { remember = true } = {}) {
    const { drawing } = this;
    const before = this.info?.clicks[label] ?? null;
    if (!drawing || !label || same(before, voxel)) return;
    if (remember) drawing.remember({ label, before, after: voxel });
    this.operate({
      drawing,
      key: `click ${drawing.name} ${label}`,
      about: (info) => info.clicks[label] ?? null,
      intent: voxel,
      what: `the click of ${label}`,
      pretend: (info) => {
        if (voxel) info.clicks[label] = voxel;
        else delete info.clicks[label];
        return info;
      },
      put: async (revision) => {
        const info = await (voxel
          ? api.putClick(drawing.name, label, voxel, revision)
          : api.deleteClick(drawing.name, label, revision));
        await this.fetchLabels(drawing);
        return info;
      },
    });
  }

  setBounds(label, bounds) {
    const { drawing } = this;
    if (!drawing) return;
    this.operate({
      drawing,
      key: `bounds ${drawing.name} ${label}`,
      about: (info) => info.bounds_ml[label] ?? [null, null],
      intent: bounds,
      what: `the bounds of ${label}`,
      pretend: (info) => ({ ...info, bounds_ml: { ...info.bounds_ml, [label]: bounds } }),
      put: (revision) => {
        const all = { ...this.known.get(drawing.name).bounds_ml, [label]: bounds };
        return api.putBounds(drawing.name, all, revision);
      },
    });
  }

  setState(state) {
    const { drawing } = this;
    if (!drawing) return;
    this.operate({
      drawing,
      key: `state ${drawing.name}`,
      pretend: (info) => ({ ...info, state }),
      put: (revision) => api.putState(drawing.name, state, revision),
    });
  }

  beginStroke() {
    this.drawing.beginStroke();
  }

  paint(point, axis, radius, value) {
    if (!this.drawing?.stroke) return; // another case was opened meanwhile
    this.viewer.touch(this.drawing.disc(point, axis, radius, value));
    this.hooks.onDrawing();
  }

  finishStroke() {
    if (this.drawing?.stroke && this.drawing.endStroke()) this.saveDrawing();
  }

  undo() {
    this.finishStroke();
    if (this.drawing) this.step(this.drawing.undoable, this.drawing.redoable, false);
  }

  redo() {
    this.finishStroke();
    if (this.drawing) this.step(this.drawing.redoable, this.drawing.undoable, true);
  }

  step(from, to, forwards) {
    const entry = from.pop();
    if (!entry) return;
    to.push(entry);
    if (entry.change) {
      this.viewer.touch(this.drawing.apply(entry.change, forwards));
      this.hooks.onDrawing();
      this.saveDrawing();
    } else {
      this.click(entry.label, forwards ? entry.after : entry.before, { remember: false });
    }
  }

  // How it is saved ----------------------------------------------------------------------------------------------

  saveDrawing() {
    const { drawing } = this;
    const values = this.structures.map((structure) => structure.value);
    const operation = {
      drawing,
      key: `labels ${drawing.name}`,
      delay: STROKE_DELAY_MS,
      strokes: 0, // how many unsaved changes were sent
      put: async (revision) => {
        operation.strokes = drawing.unsaved.length;
        if (!operation.strokes) return null;
        const info = await api.putLabels(drawing.name, drawing.labels, revision, values);
        drawing.unsaved.splice(0, operation.strokes);
        return info;
      },
    };
    this.operate(operation);
  }

  /** Show at once what an operation will do, and queue it. */
  operate(operation) {
    const { name } = operation.drawing;
    operation.name = name;
    if (operation.pretend) {
      this.info = operation.pretend(structuredClone(this.info));
      this.hooks.onCase(this.info);
    }
    operation.send = async () => {
      const info = await operation.put(this.known.get(name).revision);
      if (info) this.learn(info);
    };
    this.saver.add(operation);
  }

  /** The server refused an operation. Return whether to send it again; all else is said to the user. */
  async solve(operation, error) {
    const { drawing, about } = operation;
    const before = this.known.get(drawing.name);
    const changed = await this.reload(drawing);
    if (!(error instanceof Conflict)) {
      if (operation.strokes) drawing.unsaved.splice(0, operation.strokes); // the server will never take them
      await this.reload(drawing);
      this.hooks.onNotice(`Not saved: ${error.message}`);
      return false;
    }
    const now = this.known.get(drawing.name);
    if (about && same(about(now), operation.intent)) return false; // it had arrived: only the answer was lost
    if (about && !same(about(now), about(before))) {
      this.learn(now);
      this.hooks.onNotice(`Another window changed ${operation.what} first; that is shown, yours was not saved.`);
      return false;
    }
    if (changed) {
      const strokes = drawing.unsaved.length ? "your strokes are on top of it, undo takes them back" : "yours follows";
      this.hooks.onNotice(`Another window changed this case; its version is shown, ${strokes}.`);
    }
    return true;
  }
}
