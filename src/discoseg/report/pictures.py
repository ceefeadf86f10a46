"""Slices with contours as SVG: each image stands once in the page, tiles refer to it and draw over it."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import contourpy
import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from discoseg.metrics import dice
from discoseg.report.figures import COLOURS
from discoseg.report.runs import Run, Slice

_MARGIN = 1.0  # what is shown around the structure on each side, in its own extents
_TINT = (77, 184, 255)  # of the probability; the page's --mask
_TINT_OPACITY = 0.55


@dataclass(frozen=True)
class Tile:
    """One picture, and the Dice in its slice where it has one."""

    svg: Markup
    dice: float | None = None


@dataclass(frozen=True)
class Sheet:
    """Pictures in rows and columns with headings; ``colours`` are those of the columns that are runs."""

    case: str
    columns: list[str]
    rows: list[tuple[str, list[Tile | None]]]
    colours: list[int | None]


class Gallery:
    """The page's images, each stored once however many tiles show it."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, int], str] = {}

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

        ``mask`` names what to outline (crf, size, or probability at one half) in the CSS class ``style``;
        ``tint`` lays the probability over the image. One pixel is two units of the SVG, so that contours have
        whole numbers.
        """
        window = _window(shown)
        image = shown["image"][window]
        rows, columns = image.shape
        parts = [f'<use href="#{self._add(Image.fromarray(image), columns)}"/>']
        if tint:
            parts.append(f'<use href="#{self._add(_tinted(_foreground(shown)[window]), columns)}"/>')
        if seeds:
            parts += [_path(shown["seeds"][window] == 0, "seeds0"), _path(shown["seeds"][window] > 0, "seeds1")]
        if mask:
            parts += _outlines(_labels(shown, mask)[window], style)
        if truth and "truth" in shown:
            parts += _outlines(shown["truth"][window], "truth")
        return Markup(f'<svg class="tile" viewBox="0 0 {2 * columns} {2 * rows}">{"".join(parts)}</svg>')

    def defs(self) -> Markup:
        """The images, for one hidden ``<svg>`` anywhere in the page."""
        images = (
            f'<image id="{name}" width="{2 * columns}" href="data:image/png;base64,{data}"/>'
            for (data, columns), name in self._ids.items()
        )
        return Markup("\n".join(images))

    def _add(self, image: Image.Image, columns: int) -> str:
        file = io.BytesIO()
        image.save(file, "PNG", optimize=True)
        data = base64.b64encode(file.getvalue()).decode()
        return self._ids.setdefault((data, columns), f"i{len(self._ids)}")


def show_evolution(run: Run, gallery: Gallery) -> list[Sheet]:
    """For every case of the snapshots, epoch by epoch: truth, proposals, network output."""
    sheets = []
    for case, first in next(iter(run.snapshots.values())).items():
        kinds = [kind for kind in ("crf", "size") if any(kind in cases[case] for cases in run.snapshots.values())]
        rows: list[tuple[str, list[Tile | None]]] = []
        for epoch, cases in run.snapshots.items():
            shown = cases[case]
            tiles: list[Tile | None] = [Tile(gallery.tile(shown, truth=True, seeds=True))]
            for kind in kinds:  # a warm-up has none yet
                made = kind in shown
                tile = Tile(gallery.tile(shown, truth=True, mask=kind), _slice_dice(shown, kind)) if made else None
                tiles.append(tile)
            tiles.append(_output(shown, gallery))
            rows.append((f"epoch {epoch}", tiles))
        names = {"crf": "CRF proposal", "size": "size proposal"}
        columns = ["image, truth, seeds" if "truth" in first else "image, seeds"]
        columns += [*(names[kind] for kind in kinds), "network output"]
        sheets.append(Sheet(case, columns, rows, [None] * len(columns)))
    return sheets


def _output(shown: Slice, gallery: Gallery) -> Tile:
    svg = gallery.tile(shown, truth=True, mask="probability", tint=True, style="outline")
    return Tile(svg, _slice_dice(shown, "probability"))


def compare_runs(runs: Sequence[Run], gallery: Gallery) -> Sheet | None:
    """The last network outputs of all runs beside each other, for the cases that two or more runs show."""
    finals = [list(run.snapshots.values())[-1] if run.snapshots else {} for run in runs]
    cases = dict.fromkeys(case for final in finals for case in final)
    rows: list[tuple[str, list[Tile | None]]] = []
    for case in cases:
        shown = [final.get(case) for final in finals]
        known = [one for one in shown if one is not None]
        if len(known) > 1:
            tiles: list[Tile | None] = [Tile(gallery.tile(known[0], truth=True))]
            for index, one in enumerate(shown):
                style = f"outline run{index % len(COLOURS)}"
                tile = gallery.tile(one, truth=True, mask="probability", style=style) if one else None
                tiles.append(Tile(tile, _slice_dice(one, "probability")) if one and tile else None)
            rows.append((case, tiles))
    columns = ["image, truth", *(run.name for run in runs)]
    colours: list[int | None] = [None, *(index % len(COLOURS) for index in range(len(runs)))]
    return Sheet("", columns, rows, colours) if rows else None


def _slice_dice(shown: Slice, mask: str) -> float | None:
    """The Dice of crf, size or probability in this slice alone, a mean over structures; None without a truth."""
    if "truth" not in shown:
        return None
    labels, truth = _labels(shown, mask), shown["truth"]
    structures = len(shown["probability"]) if shown["probability"].ndim == 3 else 1
    return float(np.mean([dice(labels == k, truth == k) for k in range(1, 1 + structures)]))


def _labels(shown: Slice, name: str) -> NDArray[Any]:
    """The labels (H, W) of crf, size, or of the probability: 0, or the number of a structure."""
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
    """The outline of each structure."""
    return [_path(labels == number, style) for number in range(1, 1 + int(labels.max(initial=0)))]


def _window(shown: Slice) -> tuple[slice, slice]:
    """A square around the truth, or else the foreground seeds; the whole slice where there is neither."""
    structure = (shown["truth"] if "truth" in shown else shown["seeds"]) > 0
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
