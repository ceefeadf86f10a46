// The picture: NiiVue's slices, with the drawing in its drawing texture, of which only what changed is sent.
//
// NiiVue itself would send the whole drawing at each move of the pointer: 79 MB at 512×512×300. Here one byte a voxel
// holds drawing and overlay at once (colours.js), and pointer and keys are ours (NiiVue's option `interactive`).
import { makeTable } from "./colours.js";

const { Niivue, NVImage, SLICE_TYPE } = window.niivue;
const DRAW_UNIT = 7; // the texture unit of NiiVue's drawing
const PLANES = {
  axial: SLICE_TYPE.AXIAL,
  coronal: SLICE_TYPE.CORONAL,
  sagittal: SLICE_TYPE.SAGITTAL,
  multi: SLICE_TYPE.MULTIPLANAR,
};
const AXES = [2, 1, 0]; // across which axis NiiVue's tiles axial, coronal, sagittal cut

export class Viewer {
  /** structures: their number. */
  constructor(canvas, structures) {
    this.canvas = canvas;
    this.nv = new Niivue({
      interactive: false,
      dragAndDropEnabled: false,
      isRadiologicalConvention: true,
      multiplanarShowRender: 0,
      sagittalNoseLeft: true,
      isCornerOrientationText: false,
      backColor: [0, 0, 0, 1],
      crosshairColor: [0.35, 0.75, 1, 0.7],
      crosshairWidthUnit: "mm",
      fontColor: [0.75, 0.8, 0.85, 1],
      fontMinPx: 15,
      fontSizeScaling: 0.25,
      logLevel: "error",
      loadingText: "",
    });
    this.plane = "axial";
    this.drawing = null;
    this.overlay = null; // classes of a run's mask, file order, or null
    this.look = { opacity: 0.5, showDrawing: true, structures };
    this.onDraw = () => {};
  }

  async start() {
    this.leaveOutGradients();
    await this.nv.attachToCanvas(this.canvas);
    new ResizeObserver(() => requestAnimationFrame(() => this.draw())).observe(this.canvas);
  }

  /**
   * NiiVue computes two more volumes, of gradients for its rendering in 3D, at each image and change of the window: at
   * 512×512×300 twice 315 MB and most of the time. Nothing here shows them: keep one pixel a slice.
   */
  leaveOutGradients() {
    const { nv } = this;
    const units = [6, 8].map((unit) => WebGL2RenderingContext.TEXTURE0 + unit);
    const make = nv.rgbaTex.bind(nv);
    nv.rgbaTex = (texture, unit, dims, fill) =>
      make(texture, unit, units.includes(unit) ? [3, 1, 1, dims[3]] : dims, fill);
  }

  /** Read an image; return it, to be shown by `show` if it is still wanted then. spacing_mm: (x, y, z) of the file. */
  async fetch(url, name, spacing_mm) {
    const image = await NVImage.loadFromUrl({ url, name });
    setSpacing(image, spacing_mm);
    return image;
  }

  /** Where voxels of the viewer lie in the image's file, for `Drawing`. spacing_mm: (x, y, z) of the file. */
  layoutOf(image, spacing_mm) {
    const shape = [1, 2, 3].map((a) => image.hdr.dims[a]);
    const strides = [1, shape[0], shape[0] * shape[1]];
    const perm = Array.from(image.permRAS);
    const dims = perm.map((axis) => shape[Math.abs(axis) - 1]);
    const step = perm.map((axis) => Math.sign(axis) * strides[Math.abs(axis) - 1]);
    const origin = step.reduce((sum, s, a) => sum + (s < 0 ? -s * (dims[a] - 1) : 0), 0);
    return { dims, perm, step, origin, fileShape: shape, spacing: perm.map((axis) => spacing_mm[Math.abs(axis) - 1]) };
  }

  /** Show an image and its drawing, from the middle of the volume. */
  show(image, drawing) {
    for (const old of [...this.nv.volumes]) this.nv.removeVolume(old);
    this.nv.addVolume(image);
    this.drawing = drawing;
    this.overlay = null;
    this.touched = null;
    const dims = drawing.layout.dims;
    this.nv.drawTexture = this.nv.r8Tex(this.nv.drawTexture, this.nv.gl.TEXTURE0 + DRAW_UNIT, [3, ...dims], false);
    this.position = dims.map((n) => Math.floor(n / 2));
    this.resetView();
    this.setPlane(this.plane);
    this.colour({});
    this.upload();
  }

  setPlane(plane) {
    this.plane = plane;
    this.nv.opts.crosshairWidth = plane === "multi" ? 0.25 : 0;
    this.nv.opts.sliceType = PLANES[plane];
    this.draw();
  }

  /** All three planes: the axial one large, the others beside or, on an upright screen, below it. */
  arrange() {
    const wide = this.canvas.clientWidth > this.canvas.clientHeight;
    const place = (x, y, width, height) => (wide ? [x, y, width, height] : [y, x, height, width]);
    this.nv.customLayout =
      this.plane !== "multi"
        ? null
        : [
            { sliceType: SLICE_TYPE.AXIAL, position: place(0, 0, 0.63, 1) },
            { sliceType: SLICE_TYPE.CORONAL, position: place(0.64, 0, 0.36, 0.495) },
            { sliceType: SLICE_TYPE.SAGITTAL, position: place(0.64, 0.505, 0.36, 0.495) },
          ];
  }

  /** Change how drawing and overlay look: opacity (0 to 1), showDrawing. */
  colour(look) {
    Object.assign(this.look, look);
    const { structures, opacity, showDrawing } = this.look;
    this.nv.drawLut = { lut: makeTable(structures, opacity, showDrawing), labels: [] };
    this.nv.drawOpacity = 1;
    this.nv.drawRimOpacity = opacity > 0 ? Math.min(1, opacity + 0.35) : 0;
    if (this.nv.volumes.length) this.nv.refreshColormaps();
    this.draw();
  }

  setOverlay(overlay) {
    this.overlay = overlay;
    this.upload();
  }

  /** Send the box [low, high] of drawing and overlay (voxels, inclusive) to the GPU, or all of them; redraw. */
  upload(low = [0, 0, 0], high = this.drawing.layout.dims.map((n) => n - 1)) {
    const { gl } = this.nv;
    const { origin, step } = this.drawing.layout;
    const labels = this.drawing.labels;
    const base = this.look.structures + 2;
    const [width, height] = [high[0] - low[0] + 1, high[1] - low[1] + 1];
    const slice = new Uint8Array(width * height);
    gl.activeTexture(gl.TEXTURE0 + DRAW_UNIT);
    gl.bindTexture(gl.TEXTURE_3D, this.nv.drawTexture);
    gl.pixelStorei(gl.UNPACK_ALIGNMENT, 1);
    for (let z = low[2]; z <= high[2]; z++) {
      for (let y = low[1], at = 0; y <= high[1]; y++) {
        let index = origin + low[0] * step[0] + y * step[1] + z * step[2];
        for (let x = 0; x < width; x++, index += step[0]) {
          slice[at++] = this.overlay ? this.overlay[index] * base + labels[index] : labels[index];
        }
      }
      gl.texSubImage3D(gl.TEXTURE_3D, 0, low[0], low[1], z, width, height, 1, gl.RED, gl.UNSIGNED_BYTE, slice);
    }
    this.draw();
  }

  /** Send a box as `upload` does, together with others, before the next picture. */
  touch([low, high]) {
    if (this.touched) {
      this.touched = [
        low.map((v, a) => Math.min(v, this.touched[0][a])),
        high.map((v, a) => Math.max(v, this.touched[1][a])),
      ];
      return;
    }
    this.touched = [low, high];
    requestAnimationFrame(() => {
      const box = this.touched;
      this.touched = null;
      if (box) this.upload(...box);
    });
  }

  draw() {
    if (!this.nv.volumes.length) return;
    const dims = this.drawing.layout.dims;
    this.nv.scene.crosshairPos = this.position.map((v, a) => (v + 0.5) / dims[a]);
    this.arrange();
    this.nv.drawScene();
    this.onDraw();
  }

  /** Go to a voxel, or as near to it as the volume reaches. */
  goTo(position) {
    this.position = position.map((v, a) => Math.min(this.drawing.layout.dims[a] - 1, Math.max(0, Math.round(v))));
    this.draw();
  }

  /** The axis that slices count along: of the plane, in multi of the tile under the pointer, else axial's. */
  axis(tile) {
    return this.plane === "multi" ? (tile ? tile.axis : 2) : AXES[PLANES[this.plane]];
  }

  /** The tiles on the canvas: plane's axis, and their rectangle in CSS pixels. */
  tiles() {
    const scale = this.nv.uiData.dpr;
    return this.nv.screenSlices
      .filter((slice) => slice.axCorSag <= 2)
      .map((slice) => {
        let [left, top, width, height] = Array.from(slice.leftTopWidthHeight, (v) => v / scale);
        const mirrored = width < 0;
        if (mirrored) [left, width] = [left + width, -width];
        return { slice, axis: AXES[slice.axCorSag], left, top, width, height, mirrored };
      });
  }

  /** Return {tile, point (continuous voxels)} under a pixel of the page, or null. */
  pick(clientX, clientY) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [clientX - box.left, clientY - box.top];
    const inside = (t) => x >= t.left && x <= t.left + t.width && y >= t.top && y <= t.top + t.height;
    const tile = this.tiles().find(inside);
    if (!tile) return null;
    const scale = this.nv.uiData.dpr;
    const frac = this.nv.canvasPos2frac([x * scale, y * scale]);
    if (!(frac[0] >= 0)) return null;
    const point = this.drawing.layout.dims.map((n, a) => frac[a] * n - 0.5);
    point[tile.axis] = this.position[tile.axis];
    return { tile, point };
  }

  /** Return where a point (continuous voxels) lies on a tile, in CSS pixels of the canvas. */
  project(point, tile) {
    const dims = this.drawing.layout.dims;
    const mm = this.nv.frac2mm(point.map((v, a) => (v + 0.5) / dims[a]));
    const [right, up] = { 0: [1, 2], 1: [0, 2], 2: [0, 1] }[tile.axis].map((a) => mm[a]);
    const across = (right - tile.slice.leftTopMM[0]) / tile.slice.fovMM[0];
    const upwards = (up - tile.slice.leftTopMM[1]) / tile.slice.fovMM[1];
    return [tile.left + (tile.mirrored ? 1 - across : across) * tile.width, tile.top + (1 - upwards) * tile.height];
  }

  pixelsPerMm(tile) {
    return Math.abs(tile.width / tile.slice.fovMM[0]);
  }

  /** Zoom (a factor) about a point (continuous voxels). */
  zoomBy(factor, point = this.position) {
    const pan = this.nv.scene.pan2Dxyzmm;
    const zoom = Math.min(16, Math.max(1, pan[3] * factor));
    const dims = this.drawing.layout.dims;
    const mm = this.nv.frac2mm(point.map((v, a) => (v + 0.5) / dims[a]));
    const change = pan[3] - zoom;
    const next = zoom === 1 ? [0, 0, 0] : [0, 1, 2].map((a) => pan[a] + change * mm[a]);
    this.nv.setPan2Dxyzmm([...next, zoom]);
    this.draw();
  }

  /** Move the picture so that voxel `from` comes to lie where `to` is. */
  panBy(from, to) {
    const pan = this.nv.scene.pan2Dxyzmm;
    const { spacing } = this.drawing.layout;
    this.nv.setPan2Dxyzmm([...[0, 1, 2].map((a) => pan[a] + pan[3] * (to[a] - from[a]) * spacing[a]), pan[3]]);
    this.draw();
  }

  resetView() {
    this.nv.setPan2Dxyzmm([0, 0, 0, 1]);
    this.draw();
  }

  /** Return the intensities that are shown black and white. */
  window() {
    const image = this.nv.volumes[0];
    return [image.cal_min, image.cal_max];
  }

  setWindow(low, high) {
    const image = this.nv.volumes[0];
    image.cal_min = low;
    image.cal_max = Math.max(high, low + 1e-6 * Math.max(1, Math.abs(low)));
    this.canvas.style.filter = "";
    this.nv.updateGLVolume();
    this.draw();
  }

  /** Show another window for the moment, by a filter of the picture: quick for volumes of any size. */
  previewWindow(low, high) {
    const [from, to] = this.window();
    for (const part of document.querySelectorAll("#window feComponentTransfer > *")) {
      part.setAttribute("slope", (to - from) / (high - low));
      part.setAttribute("intercept", (from - low) / (high - low));
    }
    this.canvas.style.filter = "url(#window)";
  }

  /** Window by what the image holds, without its darkest and brightest 2 %. */
  autoWindow() {
    const image = this.nv.volumes[0];
    this.setWindow(image.robust_min, image.robust_max);
  }

  /** Return the image's intensity at a voxel. */
  valueAt(position) {
    const { origin, step } = this.drawing.layout;
    const image = this.nv.volumes[0];
    const raw = image.img[origin + position[0] * step[0] + position[1] * step[1] + position[2] * step[2]];
    return raw * (image.hdr.scl_slope || 1) + (image.hdr.scl_inter || 0);
  }
}

/** Let an image have the spacing that the server tells: it knows what to believe where pixdim and affine disagree. */
function setSpacing(image, spacing_mm) {
  spacing_mm.forEach((mm, axis) => (image.hdr.pixDims[axis + 1] = mm)); // slices are drawn by these
  image.calculateRAS();
}
