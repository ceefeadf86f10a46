"""Slices with contours as SVG: each image stands once in the page, tiles refer to it and draw over it."""

import base64
import io
from typing import Any

import contourpy
import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from discoseg.metrics import dice
from discoseg.report.runs import Slice

_MARGIN = 1.0  # what is shown around the structure on each side, in its own extents
_TINT = (77, 184, 255)  # of the probability; the first structure's colour in page.css
_TINT_OPACITY = 0.55


class Gallery:
    """The page's images, each stored once however many tiles show it."""

    def __init__(self) -> None:
        self._ids: dict[tuple[bytes, tuple[int, ...], bool], str] = {}
        self._images: list[str] = []

    def tile(
        self,
        shown: Slice,
        *,
        truth: bool = False,
        seeds: bool = False,
        mask: str = "",
        tint: bool = False,
        style: str = "mask",
    ) -> Markup:
        """Draw the surroundings of the structure, with what is asked for and exists in the slice.

        ``mask`` names what to outline (crf, size, mask, or probability at one half) in the CSS class ``style``;
        ``tint`` lays the probability over the image. One pixel is two units of the SVG, so that contours have
        whole numbers.
        """
        window = _window(shown)
        image = shown["image"][window]
        rows, columns = image.shape
        parts = [f'<use href="#{self._add(image)}"/>']
        if tint:
            parts.append(f'<use href="#{self._add(_foreground(shown)[window], tinted=True)}"/>')
        if seeds:
            several = shown["probability"].ndim == 3
            parts.append(_path(shown["seeds"][window] == 0, "seeds0"))
            parts += _outlines(shown["seeds"][window], "seeds several" if several else "seeds")
        drawn = _outlines(labels_of(shown, mask)[window], style) if mask else []
        true = _outlines(shown["truth"][window], "truth") if truth and "truth" in shown else []
        parts += [*drawn, *true] if style == "mask" else [*true, *drawn]  # a filled one would cover the truth
        return Markup(f'<svg class="tile" viewBox="0 0 {2 * columns} {2 * rows}">{"".join(parts)}</svg>')

    def defs(self) -> Markup:
        """The images, for one hidden ``<svg>`` anywhere in the page."""
        return Markup("\n".join(self._images))

    def _add(self, levels: NDArray[np.uint8], *, tinted: bool = False) -> str:
        """Keep an image (H, W), in grey or as the opacity of one colour, and return its name."""
        key = (levels.tobytes(), levels.shape, tinted)
        if key not in self._ids:
            self._ids[key] = name = f"i{len(self._ids)}"
            file = io.BytesIO()
            (_tinted(levels) if tinted else Image.fromarray(levels)).save(file, "PNG", optimize=True)
            data = base64.b64encode(file.getvalue()).decode()
            self._images.append(
                f'<image id="{name}" width="{2 * levels.shape[1]}" href="data:image/png;base64,{data}"/>'
            )
        return self._ids[key]


def slice_dice(shown: Slice, mask: str) -> float | None:
    """The Dice of crf, size, mask or probability in this slice alone, a mean over structures; None without a truth."""
    if "truth" not in shown:
        return None
    labels, truth = labels_of(shown, mask), shown["truth"]
    structures = max(1, int(labels.max(initial=0)), int(truth.max(initial=0)))
    return float(np.mean([dice(labels == k, truth == k) for k in range(1, 1 + structures)]))


def labels_of(shown: Slice, name: str) -> NDArray[Any]:
    """The labels (H, W) of crf, size, mask, or of the probability: 0, or the number of a structure."""
    if name != "probability":
        return shown[name].astype(np.int8)
    levels = shown["probability"]
    if levels.ndim == 2:
        return (levels >= 128).astype(np.int8)
    rest = 255 - levels.astype(np.int16).sum(axis=0, keepdims=True)
    return np.concatenate([rest, levels]).argmax(axis=0).astype(np.int8)


def _foreground(shown: Slice) -> NDArray[np.uint8]:
    """The probability (H, W) that a voxel is of any structure, 0 to 255."""
    levels = shown["probability"]
    return levels if levels.ndim == 2 else levels.sum(axis=0, dtype=np.int16).clip(0, 255).astype(np.uint8)


def _outlines(labels: NDArray[Any], style: str) -> list[str]:
    """The outline of each structure; page.css has a colour for each class k1, k2, …"""
    return [_path(labels == number, f"{style} k{number}") for number in range(1, 1 + int(labels.max(initial=0)))]


def _window(shown: Slice) -> tuple[slice, slice]:
    """A square around the truth, or else the foreground seeds, or the mask; the whole slice where there is none."""
    structure = next(shown[kind] for kind in ("truth", "seeds", "mask") if kind in shown) > 0
    if not structure.any():
        structure = np.ones_like(structure)
    where = np.argwhere(structure)
    low, high = where.min(axis=0), where.max(axis=0) + 1
    side = int((high - low).max() * (1 + 2 * _MARGIN))
    rows, columns = structure.shape
    return _span(low[0], high[0], side, rows), _span(low[1], high[1], side, columns)


def _span(low: int, high: int, side: int, size: int) -> slice:
    side = min(side, size)
    start = min(max((int(low) + int(high) - side) // 2, 0), size - side)
    return slice(start, start + side)


def _tinted(probability: NDArray[np.uint8]) -> Image.Image:
    """One colour, as opaque as the foreground is probable, in 32 steps."""
    image = Image.fromarray(probability // 8)
    image.putpalette(_TINT * 32)
    image.info["transparency"] = bytes(round(step / 31 * 255 * _TINT_OPACITY) for step in range(32))
    return image


def _path(mask: NDArray[Any], style: str) -> str:
    """The outline of a mask through the middle between its pixels and the others, in half pixels."""
    padded = np.pad(mask, 1).astype(np.float64)
    lines = contourpy.contour_generator(z=padded).lines(0.5)
    outline = "".join(_commands(np.rint(2 * line - 1).astype(int)) for line in lines)  # type: ignore[operator]
    return f'<path class="{style}" d="{outline}"/>' if outline else ""


def _commands(points: NDArray[np.int_]) -> str:
    """A closed line as relative SVG moves, with steps of the same direction in one."""
    steps = np.diff(points, axis=0)
    turns = np.flatnonzero((steps[1:] != steps[:-1]).any(axis=1))
    corners = points[np.concatenate(([0], turns + 1))]
    moves = "".join(f"{x} {y} " for x, y in np.diff(corners, axis=0))
    return f"M{corners[0, 0]} {corners[0, 1]}l{moves.rstrip()}z" if moves else ""
