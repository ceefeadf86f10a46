// The pointer on the picture: click a centre, paint, look around (shift), window (right), move (middle), wheel.

/**
 * Listen on `surface`. `tool()` returns {kind: "click" | "brush", radius (mm), value}; `act` has ready(), click(point),
 * beginStroke(), paint(point, axis), finishStroke(), hover(spot | null), and wheelStep(axis, step).
 */
export function listenToPointer(surface, viewer, tool, act) {
  let drag = null;
  const { ready } = act;

  surface.addEventListener("contextmenu", (event) => event.preventDefault());
  surface.addEventListener("pointerdown", (event) => {
    if (!ready() || drag) return;
    document.activeElement?.blur?.();
    const spot = viewer.pick(event.clientX, event.clientY);
    surface.setPointerCapture(event.pointerId);
    event.preventDefault();
    if (event.button === 2) drag = { kind: "window", x: event.clientX, y: event.clientY, from: viewer.window() };
    else if (!spot) return;
    else if (event.button === 1) drag = { kind: "pan", point: spot.point };
    else if (event.shiftKey) {
      drag = { kind: "look" };
      viewer.goTo(spot.point);
    } else if (tool().kind === "click") act.click(spot.point);
    else {
      drag = { kind: "paint", axis: spot.tile.axis, point: spot.point };
      act.beginStroke();
      act.paint(spot.point, spot.tile.axis);
    }
  });

  surface.addEventListener("pointermove", (event) => {
    if (!ready()) return;
    const spot = viewer.pick(event.clientX, event.clientY);
    const box = surface.getBoundingClientRect();
    act.hover(spot && { ...spot, x: event.clientX - box.left, y: event.clientY - box.top });
    if (drag?.kind === "window") return dragWindow(viewer, drag, event);
    if (!drag || !spot) return;
    if (drag.kind === "look") viewer.goTo(spot.point);
    else if (drag.kind === "pan") viewer.panBy(drag.point, spot.point);
    else if (spot.tile.axis === drag.axis) {
      for (const point of between(drag.point, spot.point, tool().radius, viewer.drawing.layout.spacing)) {
        act.paint(point, drag.axis);
      }
      drag.point = spot.point;
    }
  });

  const end = () => {
    if (drag?.kind === "paint") act.finishStroke();
    if (drag?.to) viewer.setWindow(...drag.to);
    drag = null;
  };
  surface.addEventListener("pointerup", end);
  surface.addEventListener("pointercancel", end);
  surface.addEventListener("pointerleave", () => act.hover(null));

  surface.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      const spot = ready() && viewer.pick(event.clientX, event.clientY);
      if (!ready()) return;
      if (event.ctrlKey) viewer.zoomBy(event.deltaY < 0 ? 1.15 : 1 / 1.15, spot ? spot.point : viewer.position);
      else if (!drag || drag.kind !== "paint") act.wheelStep(viewer.axis(spot?.tile), event.deltaY < 0 ? 1 : -1);
    },
    { passive: false },
  );
}

/** Sideways changes the contrast, up and down the brightness, as in other viewers. */
function dragWindow(viewer, drag, event) {
  const [low, high] = drag.from;
  const width = Math.max(high - low, 1e-6) * Math.exp((event.clientX - drag.x) / 250);
  const centre = (low + high) / 2 + ((high - low) * (event.clientY - drag.y)) / 400;
  drag.to = [centre - width / 2, centre + width / 2];
  viewer.previewWindow(...drag.to);
}

/** Return points from a (without it) to b, no further apart than half the brush's radius or half a voxel. */
function between(a, b, radius, spacing) {
  const away = Math.hypot(...a.map((v, axis) => (b[axis] - v) * spacing[axis]));
  const steps = Math.max(1, Math.ceil(away / Math.max(radius / 2, Math.min(...spacing) / 2)));
  return Array.from({ length: steps }, (_, i) => a.map((v, axis) => v + ((b[axis] - v) * (i + 1)) / steps));
}
