"""The paper's figures from our trainings: curves from result files, pictures of slices from run folders."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from discoseg.config import Method
from discoseg.data.files import write_atomically
from discoseg.experiments.pictures import Shown
from discoseg.experiments.results import Result
from discoseg.experiments.tables import METHOD_TITLES
from discoseg.experiments.tasks import Task
from discoseg.report.figures import COLOURS
from discoseg.report.runs import Run, Slice

_ORDER: tuple[Method, ...] = ("crf+size", "penalty", "crf", "size", "full", "partial")
_COLUMNS: tuple[Method, ...] = ("penalty", "crf", "size", "crf+size")  # of the comparison, as in the paper
_SEED_COLOURS = {0: "#4d9de0", 1: "#b6f65c"}
_TRUTH, _MASK = "#ffd23f", "#ff4d4d"
_SHOWN_EPOCHS = (1, 2, 10)  # and the last one, as in the paper's figure
_MARGIN = 0.9  # what pictures show around a structure on each side, in its own extents


def plot_curves(results: Sequence[Result], tasks: Sequence[Task], path: Path) -> None:
    """Plot the 3D validation Dice by epoch, a panel for each task; several seeds of a method share its colour."""
    shown = [task for task in tasks if any(r.cell.task == task.name for r in results)]
    figure = Figure(figsize=(4.8 * len(shown), 3.6), layout="constrained")
    for axes, task in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        for result in _in_order(results, task):
            style = _style(result, named=result.cell.seed == _lowest_seed(result, results))
            axes.plot(_epochs(result), result.history["val_dice"], linewidth=1.2, **style)
        axes.set(title=task.title, xlabel="epoch", ylabel="3D Dice, validation")
        _finish(axes, "lower right")
    _save(figure, path)


def plot_sizes(results: Sequence[Result], tasks: Sequence[Task], path: Path) -> None:
    """Plot predicted over true size by epoch, mean ± standard deviation over volumes, bounds dashed.

    A row for each task, training on the left, validation on the right; of several seeds the lowest is shown.
    """
    first = [result for result in results if result.cell.seed == _lowest_seed(result, results)]
    shown = [task for task in tasks if any(r.cell.task == task.name for r in first)]
    figure = Figure(figsize=(9.6, 3.4 * len(shown)), layout="constrained")
    for task, row in zip(shown, figure.subplots(len(shown), 2, squeeze=False), strict=True):
        for axes, split, title in zip(row, ("train", "val"), ("training", "validation"), strict=True):
            for result in _in_order(first, task):
                _plot_ratio(axes, result, split)
            axes.set(title=f"{task.title}, {title}", xlabel="epoch", ylabel="predicted / true size", ylim=(0, 2.5))
            _finish(axes, "upper right")
    _save(figure, path)


def _plot_ratio(axes: Axes, result: Result, split: str) -> None:
    mean, spread = (np.array(result.history[f"{split}_size_ratio{end}"]) for end in ("", "_std"))
    style = _style(result)
    axes.plot(_epochs(result), mean, linewidth=1.2, **style)
    axes.fill_between(_epochs(result), mean - spread, mean + spread, color=style["color"], alpha=0.15, linewidth=0)
    for bound in () if result.cell.eps is None else (1 - result.cell.eps, 1 + result.cell.eps):
        axes.axhline(bound, color="0.35", linestyle="--", linewidth=0.8)


def draw_evolution(run: Run, path: Path) -> None:
    """Draw truth and seeds, CRF proposal, size proposal and network output of one training slice, epoch by epoch."""
    wanted = {max((e for e in run.snapshots if e <= shown), default=0) for shown in _SHOWN_EPOCHS}
    snapshots = {e: cases for e, cases in run.snapshots.items() if e in {*wanted, max(run.snapshots)}}
    case = next(iter(next(iter(snapshots.values()))))
    columns = ("truth, seeds", "CRF proposal", "size proposal", "network output")
    figure = Figure(figsize=(2.2 * len(columns), 2.3 * len(snapshots)), layout="constrained")
    panels = figure.subplots(len(snapshots), len(columns), squeeze=False)
    for (epoch, cases), row in zip(snapshots.items(), panels, strict=True):
        shown = cases[case]
        window = _window(shown["truth"])
        for value, colour in _SEED_COLOURS.items():
            _outline(row[0], (shown["seeds"] == value)[window], colour)
        masks = (None, shown.get("crf"), shown.get("size"), shown["probability"] >= 128)  # a warm-up has none yet
        for axes, mask in zip(row, masks, strict=True):
            _show(axes, shown, window, mask, filled=True)  # early ones are all outline
        row[0].set_ylabel(f"epoch {epoch}")
    for axes, title in zip(panels[0], columns, strict=True):
        axes.set_title(title, fontsize=10)
    _save(figure, path)


def draw_comparison(rows: Mapping[str, Shown], path: Path) -> None:
    """Draw the contours of the methods' masks beside each other, truth first, a row for each case by title."""
    methods = [m for m in _COLUMNS if any(m in masks for _, masks in rows.values())]
    figure = Figure(figsize=(2.1 * (1 + len(methods)), 2.2 * len(rows)), layout="constrained")
    panels = figure.subplots(len(rows), 1 + len(methods), squeeze=False)
    for (title, (shown, masks)), row in zip(rows.items(), panels, strict=True):
        window = _window(shown["truth"])
        for axes, mask in zip(row, (None, *(masks.get(method) for method in methods)), strict=True):
            _show(axes, shown, window, mask)
        row[0].set_ylabel(title, fontsize=8)
    for axes, title in zip(panels[0], ("truth", *(METHOD_TITLES[m] for m in methods)), strict=True):
        axes.set_title(title, fontsize=10)
    _save(figure, path)


def _in_order(results: Sequence[Result], task: Task) -> list[Result]:
    chosen = [result for result in results if result.cell.task == task.name]
    return sorted(chosen, key=lambda result: (_ORDER.index(result.cell.method), result.cell.seed))


def _lowest_seed(result: Result, results: Sequence[Result]) -> int:
    """The lowest random seed among the results of the same task and method."""
    own = (result.cell.task, result.cell.method)
    return min(other.cell.seed for other in results if (other.cell.task, other.cell.method) == own)


def _style(result: Result, *, named: bool = True) -> dict[str, Any]:
    """The colour of the method and, if it is to be named, its name in the legend."""
    method = result.cell.method
    return {"color": COLOURS[_ORDER.index(method)], "label": METHOD_TITLES[method] if named else None}


def _epochs(result: Result) -> NDArray[np.int_]:
    return np.arange(1, 1 + len(result.history["val_dice"]))


def _finish(axes: Axes, place: Literal["lower right", "upper right"]) -> None:
    axes.grid(alpha=0.3, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, loc=place)


def _show(
    axes: Axes, shown: Slice, window: tuple[slice, slice], mask: NDArray[np.bool_] | None, *, filled: bool = False
) -> None:
    """Draw a slice with the outlines of its truth and of a mask, or with the mask ``filled``."""
    image = shown["image"][window]
    brightest = max(1.0, float(np.percentile(image, 99.5)))
    axes.imshow(image, cmap="gray", vmin=0, vmax=brightest, interpolation="nearest")
    if mask is not None and filled:
        inside = np.ma.masked_equal(mask[window], False)
        axes.imshow(inside, cmap=ListedColormap([_MASK]), alpha=0.5, interpolation="nearest")
    _outline(axes, shown["truth"][window], _TRUTH)
    if mask is not None and not filled:
        _outline(axes, mask[window], _MASK)
    axes.set(xticks=[], yticks=[])


def _outline(axes: Axes, mask: NDArray[Any], colour: str) -> None:
    if mask.any() and not mask.all():
        axes.contour(mask.astype(float), levels=[0.5], colors=colour, linewidths=1.0)


def _window(truth: NDArray[np.bool_]) -> tuple[slice, slice]:
    """A square around the structure with a margin, moved into the slice; the whole slice where there is none."""
    where = np.argwhere(truth)
    if not len(where):
        return slice(None), slice(None)
    low, high = where.min(axis=0), where.max(axis=0) + 1
    side = min(int(np.ceil((1 + 2 * _MARGIN) * (high - low).max())), *truth.shape)
    rows, columns = (
        slice(start, start + side)
        for start in (
            min(max((a + b - side) // 2, 0), size - side) for a, b, size in zip(low, high, truth.shape, strict=True)
        )
    )
    return rows, columns


def _save(figure: Figure, path: Path) -> None:
    with write_atomically(path) as temporary:
        figure.savefig(temporary, dpi=120)
