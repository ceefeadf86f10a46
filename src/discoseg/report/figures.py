"""Charts as SVG: curves by epoch, layers by epoch, differences of volumes, and sizes within their bounds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

from discoseg.report.axes import Axes, Floats, Scale, line
from discoseg.thinning import pick_peaks

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b8568f", "#b58900", "#3b9fd8", "#6f5ab8", "#8a8a8a")
"""Okabe and Ito's colours, for the colour-blind, made darker for white; page.css has those for the dark."""

_FEW_EPOCHS = 12  # up to so many are marked: a line through one epoch would not show
_POINTS = 600  # of a curve, about one and a half for each unit of the chart's width


@dataclass(frozen=True)
class Chart:
    """One panel with its caption."""

    title: str
    svg: Markup
    note: str = ""


@dataclass(frozen=True)
class Line:
    """One curve: ``values`` at ``epochs``, with a band of ± ``spread`` where there is one."""

    epochs: Floats
    values: Floats
    colour: int  # the run's place among the runs
    dashed: bool = False
    spread: Floats | None = None


@dataclass(frozen=True)
class Bounds:
    """A range that values should lie in, drawn as two dashed lines; ``colour`` None is neutral."""

    low: float
    high: float
    colour: int | None = None


@dataclass(frozen=True)
class Sizes:
    """Sizes of a structure in some cases, (N,) each, all in one unit; nan where unknown.

    ``low`` and ``high`` are the bounds on the predicted size.
    """

    cases: Sequence[str]
    predicted: Floats
    true: Floats
    low: Floats
    high: Floats

    def __getitem__(self, where: NDArray[Any]) -> "Sizes":
        """Return some of the cases, by numbers or by truth values."""
        arrays = (array[where] for array in (self.predicted, self.true, self.low, self.high))
        return Sizes(np.array(self.cases, dtype=object)[where].tolist(), *arrays)

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Return where the predicted size is within its bounds."""
        return (self.low <= self.predicted) & (self.predicted <= self.high)


def style(index: int | None) -> str:
    """Return the style attribute of the run or phase with this index; after the last colour comes the first again."""
    return f'style="--c: var(--{"text" if index is None else f"c{index % len(COLOURS)}"})"'


def plot_lines(
    title: str,
    lines: Sequence[Line],
    *,
    y_label: str,
    y_range: tuple[float, float] | None = None,
    log: bool = False,
    bounds: Sequence[Bounds] = (),
) -> Markup:
    """Plot curves by epoch; without a ``y_range`` the axis holds all of them."""
    epochs = list(chain.from_iterable(one.epochs for one in lines))
    y = Scale(*y_range) if y_range else Scale.over(chain.from_iterable(one.values for one in lines), log=log)
    axes = Axes(Scale.over(epochs, whole=True, margin=0.02), y, "epoch", y_label)
    marks = []
    for one in lines:
        kept = pick_peaks(one.values, _POINTS)
        where, values = one.epochs[kept], one.values[kept]
        if one.spread is not None:
            known = np.isfinite(values)
            upper, lower = (
                axes.points(where[known], (values + sign * one.spread[kept])[known]) for sign in (1.0, -1.0)
            )
            marks.append(f'<path class="band" {style(one.colour)} d="{line(np.concatenate([upper, lower[::-1]]))}"/>')
        points = axes.points(where, values)
        dashed = " dashed" if one.dashed else ""
        marks.append(f'<path class="line{dashed}" {style(one.colour)} d="{line(points)}"/>')
        if len(points) <= _FEW_EPOCHS:
            marks += [_dot(point, one.colour, 2.6) for point in points if np.isfinite(point).all()]
    for bound in bounds:
        marks += [_level(axes, value, bound.colour, "bounds") for value in (bound.low, bound.high)]
    return axes.svg(marks, title=title)


def plot_stack(title: str, epochs: Floats, parts: Mapping[str, Floats], *, y_label: str, y_top: float) -> Markup:
    """Plot what makes up a total, one layer on the other, as a step an epoch; layer k has colour k.

    Where epochs are many, a step is the mean of several.
    """
    at_once = -(-len(epochs) // (_POINTS // 2))
    starts = np.arange(0, len(epochs), at_once)
    widths = np.diff(np.append(starts, len(epochs)))
    edges = np.append(epochs[starts] - 0.5, epochs[-1] + 0.5)
    axes = Axes(Scale(edges[0], edges[-1], whole=True), Scale(0, y_top), "epoch", y_label)
    below = np.zeros(len(starts))
    marks = []
    for index, values in enumerate(parts.values()):
        above = below + np.add.reduceat(values, starts) / widths
        upper, lower = (axes.points(np.repeat(edges, 2)[1:-1], np.repeat(side, 2)) for side in (above, below))
        marks.append(f'<path class="layer" {style(index)} d="{line(np.concatenate([upper, lower[::-1]]))}z"/>')
        below = above
    return axes.svg(marks, title=title)


def plot_differences(
    title: str, groups: Mapping[int, Sizes], levels: Mapping[int, tuple[float, float, float]], *, unit: str
) -> Markup:
    """Plot predicted − true against their mean (Bland and Altman 1986), with bias and limits of agreement.

    ``groups`` has sizes by colour, ``levels`` what :func:`agreement` says of all of which these are some.
    """
    means = {colour: (sizes.predicted + sizes.true) / 2 for colour, sizes in groups.items()}
    differences = chain.from_iterable((sizes.predicted - sizes.true).tolist() for sizes in groups.values())
    y = Scale.over([0.0, *differences, *chain.from_iterable(levels.values())])
    x = Scale.over(chain.from_iterable(values.tolist() for values in means.values()))
    axes = Axes(x, y, f"mean of predicted and true, {unit}", f"predicted − true, {unit}")
    marks = [_level(axes, 0.0, None, "zero")]
    for colour, sizes in groups.items():
        low, bias, high = levels[colour]
        marks += [_level(axes, bias, colour, "bias"), *(_level(axes, limit, colour, "limit") for limit in (low, high))]
        points = axes.points(means[colour], sizes.predicted - sizes.true)
        for case, point, predicted, true in zip(sizes.cases, points, sizes.predicted, sizes.true, strict=True):
            said = f"{case}: {predicted:.4g} {unit} predicted, {true:.4g} {unit} true"
            marks.append(_dot(point, colour, 3.2, said=said))
    return axes.svg(marks, title=title)


def agreement(sizes: Sizes) -> tuple[float, float, float]:
    """Return the lower limit, the bias and the upper limit: mean ∓ 1.96 standard deviations of predicted − true."""
    differences = sizes.predicted - sizes.true
    bias = float(differences.mean())
    spread = 1.96 * float(differences.std(ddof=1)) if len(differences) > 1 else 0.0
    return bias - spread, bias, bias + spread


def plot_intervals(title: str, sizes: Sizes, *, colour: int, unit: str) -> Markup:
    """Plot each case's bounds as a bar, its predicted size as a dot, hollow beyond them, and its true one as a dash."""
    shown = np.concatenate([sizes.predicted, sizes.true, sizes.low])
    highest = float(np.nanmax(shown)) or 1.0
    near = sizes.high[sizes.high < 1.5 * highest]  # an open bound goes out of the picture
    top = 1.05 * max(highest, float(near.max(initial=0.0)))
    axes = Axes(Scale(0.25, len(sizes.cases) + 0.75, whole=True), Scale(0, top), "case", f"size, {unit}")
    half = min(6.0, 0.35 * float(np.diff(axes.points(np.array([1.0, 2.0]), 0.0)[:, 0])[0]))
    marks = []
    for index, case in enumerate(sizes.cases):
        low, high, true, predicted = (
            axes.points(index + 1.0, float(values[index]))[0]
            for values in (sizes.low, sizes.high, sizes.true, sizes.predicted)
        )
        left, width = f"{low[0] - half:.1f}", f"{2 * half:.1f}"
        height = f"{low[1] - high[1]:.1f}"
        marks.append(
            f'<rect class="span" {style(colour)} x="{left}" y="{high[1]:.1f}" width="{width}" height="{height}"/>'
        )
        if np.isfinite(true[1]):
            marks.append(f'<path class="true" d="M{left} {true[1]:.1f}h{width}"/>')
        kind = "dot" if sizes.inside[index] else "dot out"
        within = f"bounds {sizes.low[index]:.4g} to {sizes.high[index]:.4g} {unit}"
        said = f"{case}: {sizes.predicted[index]:.4g} {unit}, {within}"
        marks.append(_dot(predicted, colour, max(1.6, min(3.4, half)), kind=kind, said=said))
    return axes.svg(marks, title=title)


def _level(axes: Axes, value: float, colour: int | None, kind: str) -> str:
    """Return a horizontal line across the whole chart."""
    return f'<path class="{kind}" {style(colour)} d="{line(axes.points(np.array([axes.x.low, axes.x.high]), value))}"/>'


def _dot(point: Floats, colour: int, radius: float, *, kind: str = "dot", said: str = "") -> str:
    """Return a circle at a point (2,), about which a pointer at rest learns what is ``said``."""
    head = f'<circle class="{kind}" {style(colour)} cx="{point[0]:.1f}" cy="{point[1]:.1f}" r="{radius:.1f}"'
    return f"{head}><title>{escape(said)}</title></circle>" if said else f"{head}/>"
