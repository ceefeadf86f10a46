// The drawing of one case: a class for each voxel in the order of the image's file, and what was done to it.
//
// 0 is nothing, 1…K the structures, K+1 background. Positions (x, y, z) are voxels of the volume as the viewer shows
// it, turned to RAS; `layout` says where they lie in the file.

/** A change: the voxels (indices into the file's order) with what they were and what they became. */
class Change {
  constructor(before, labels) {
    this.index = Uint32Array.from(before.keys());
    this.before = Uint8Array.from(before.values());
    this.after = this.index.length ? Uint8Array.from(this.index, (i) => labels[i]) : new Uint8Array();
  }
}

export class Drawing {
  /**
   * @param {string} name the case
   * @param {Uint8Array} labels one class a voxel, file order
   * @param {object} layout `dims` and `spacing` (mm) of the viewer's axes, `perm` (their axes in the file, from 1,
   *   negative where turned around), `fileShape` (x, y, z of the file), `origin` and `step` (the file's index of voxel (0, 0, 0), and of a step)
   * @param {number} classes structures plus one
   */
  constructor(name, labels, layout, classes) {
    this.name = name;
    this.layout = layout;
    this.classes = classes;
    this.unsaved = []; // changes that the server does not have yet
    this.undoable = [];
    this.redoable = [];
    this.stroke = null; // Map of file index to earlier class while one is drawn
    this.replace(labels);
  }

  /** Take the server's drawing, with what it does not have yet on top. */
  replace(labels) {
    this.labels = labels;
    for (const change of this.unsaved) change.index.forEach((i, at) => (labels[i] = change.after[at]));
    this.counts = new Array(this.classes + 1).fill(0);
    for (let i = 0; i < labels.length; i++) this.counts[labels[i]]++;
  }

  /** Return the voxel of the file (x, y, z) that a voxel of the viewer is. */
  toFile(position) {
    const file = [0, 0, 0];
    this.layout.perm.forEach((axis, a) => {
      file[Math.abs(axis) - 1] = axis > 0 ? position[a] : this.layout.dims[a] - 1 - position[a];
    });
    return file;
  }

  /** Return the voxel of the viewer that a voxel of the file is. */
  fromFile(file) {
    const { perm, dims } = this.layout;
    return perm.map((axis, a) => (axis > 0 ? file[axis - 1] : dims[a] - 1 - file[-axis - 1]));
  }

  beginStroke() {
    this.stroke = new Map();
  }

  /**
   * Paint a disc of `radius` mm around a point (continuous voxels) in the plane across `axis`; at least the voxel
   * under it. Return the box [low, high] (voxels, inclusive) that may have changed.
   */
  disc(point, axis, radius, value) {
    const { dims, spacing } = this.layout;
    const low = [0, 0, 0];
    const high = [0, 0, 0];
    for (let a = 0; a < 3; a++) {
      const reach = a === axis ? 0 : radius / spacing[a];
      const clamp = (v) => Math.min(dims[a] - 1, Math.max(0, v));
      low[a] = clamp(Math.min(Math.round(point[a]), Math.ceil(point[a] - reach)));
      high[a] = clamp(Math.max(Math.round(point[a]), Math.floor(point[a] + reach)));
    }
    const { origin, step } = this.layout;
    for (let z = low[2]; z <= high[2]; z++) {
      for (let y = low[1]; y <= high[1]; y++) {
        for (let x = low[0]; x <= high[0]; x++) {
          const dx = axis === 0 ? 0 : x - point[0];
          const dy = axis === 1 ? 0 : y - point[1];
          const dz = axis === 2 ? 0 : z - point[2];
          const under = Math.abs(dx) <= 0.5 && Math.abs(dy) <= 0.5 && Math.abs(dz) <= 0.5;
          if (under || Math.hypot(dx * spacing[0], dy * spacing[1], dz * spacing[2]) <= radius) {
            this.set(origin + x * step[0] + y * step[1] + z * step[2], value);
          }
        }
      }
    }
    return [low, high];
  }

  set(index, value) {
    const before = this.labels[index];
    if (before === value) return;
    if (!this.stroke.has(index)) this.stroke.set(index, before);
    this.counts[before]--;
    this.counts[value]++;
    this.labels[index] = value;
  }

  /** End the stroke; return whether it changed anything. */
  endStroke() {
    const change = new Change(this.stroke ?? new Map(), this.labels);
    this.stroke = null;
    if (!change.index.length) return false;
    this.unsaved.push(change);
    this.remember({ change });
    return true;
  }

  /** Put something on the stack of what can be undone: a change, or {label, before, after} of a click. */
  remember(entry) {
    this.undoable.push(entry);
    this.redoable.length = 0;
  }

  /** Apply a change forwards or backwards, as a new unsaved one; return its box [low, high] (voxels, inclusive). */
  apply(change, forwards) {
    this.stroke = new Map();
    const values = forwards ? change.after : change.before;
    change.index.forEach((i, at) => this.set(i, values[at]));
    const applied = new Change(this.stroke, this.labels);
    this.stroke = null;
    if (applied.index.length) this.unsaved.push(applied);
    return this.boxOf(change.index);
  }

  boxOf(indices) {
    const [columns, rows] = this.layout.fileShape;
    const low = [Infinity, Infinity, Infinity];
    const high = [0, 0, 0];
    for (const index of indices) {
      const file = [index % columns, Math.floor(index / columns) % rows, Math.floor(index / (columns * rows))];
      this.fromFile(file).forEach((v, a) => {
        low[a] = Math.min(low[a], v);
        high[a] = Math.max(high[a], v);
      });
    }
    return [low, high];
  }

  /** Return the volume in ml of each class 0…K+1. */
  volumesMl() {
    const voxelMl = this.layout.spacing.reduce((a, b) => a * b, 1) / 1000;
    return this.counts.map((count) => count * voxelMl);
  }
}
