"""Curves by epoch as SVG that takes its colours from the page, so that it suits light and dark alike."""

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from discoseg.report.runs import Floats

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b8568f", "#b58900", "#3b9fd8", "#6f5ab8", "#8a8a8a")
"""Okabe and Ito's colours, for the colour-blind, made darker for white; page.html has those for the dark."""

_TEXT, _AXIS = "#343434", "#9b9b9b"
_PAGE_COLOURS = {_TEXT: "currentColor", _AXIS: "var(--axis)"}
_PAGE_COLOURS |= {plain: f"var(--c{index})" for index, plain in enumerate(COLOURS)}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 10.0,
    "text.color": _TEXT,
    "axes.labelcolor": _TEXT,
    "axes.edgecolor": _AXIS,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": _AXIS,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "xtick.color": _AXIS,
    "xtick.labelcolor": _TEXT,
    "ytick.color": _AXIS,
    "ytick.labelcolor": _TEXT,
    "lines.markersize": 3.5,
}
_FEW_EPOCHS = 12  # up to so many are marked: a line through one epoch would not show


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


def colour(index: int) -> str:
    """The colour of the run or phase with this index; after the last comes the first again."""
    return COLOURS[index % len(COLOURS)]


def plot_lines(
    name: str,
    lines: Sequence[Line],
    *,
    y_label: str,
    y_range: tuple[float, float] | None = None,
    log: bool = False,
    bounds: Sequence[Bounds] = (),
) -> str:
    """Plot curves by epoch; ``name`` keeps its inner names apart from those of others on the page."""
    with mpl.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure, axes = _start(y_label)
        for line in lines:
            values = np.where(np.isfinite(line.values), line.values, np.nan)
            axes.plot(
                line.epochs,
                values,
                color=colour(line.colour),
                linestyle=(0, (3, 2)) if line.dashed else "-",
                linewidth=1.1 if line.dashed else 1.6,
                marker="o" if len(values) <= _FEW_EPOCHS else None,
            )
            if line.spread is not None:
                band = values - line.spread, values + line.spread
                axes.fill_between(line.epochs, *band, color=colour(line.colour), alpha=0.2, linewidth=0)
        for bound in bounds:
            shade = _TEXT if bound.colour is None else colour(bound.colour)
            for y in (bound.low, bound.high):
                axes.axhline(y, color=shade, linestyle=(0, (4, 3)), linewidth=0.9, gid="bounds")
        if log and any((line.values > 0).any() for line in lines):
            axes.set_yscale("log", nonpositive="mask")
            low, high = axes.get_ylim()
            subs = (1.0,) if high > 200 * low else (1.0, 2.0, 5.0)
            axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=9))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.minorticks_off()
        if y_range is not None:
            axes.set_ylim(*y_range)
        return _svg(figure)


def plot_stack(name: str, epochs: Floats, parts: Mapping[str, Floats], *, y_label: str, y_top: float) -> str:
    """Plot what makes up a total, one layer on the other, as a step an epoch; layer k has colour k."""
    with mpl.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure, axes = _start(y_label)
        edges = np.append(epochs - 0.5, epochs[-1] + 0.5)
        below = np.zeros(len(edges))
        for index, values in enumerate(parts.values()):
            above = below + np.append(values, values[-1])
            axes.fill_between(edges, below, above, step="post", color=colour(index), alpha=0.85, linewidth=0)
            below = above
        axes.set_ylim(0, y_top)
        return _svg(figure)


def _start(y_label: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(4.7, 3.0))
    axes = figure.add_axes((0.15, 0.15, 0.84, 0.82))  # the same in all, so that panels align
    axes.set_xlabel("epoch")
    axes.set_ylabel(y_label)
    axes.xaxis.set_major_locator(MaxNLocator(7, integer=True, min_n_ticks=1))
    axes.margins(x=0.02)
    return figure, axes


def _svg(figure: Figure) -> str:
    """The figure as an ``<svg>`` element to stand in a page: no size, no names but those it refers to."""
    file = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    text = file.getvalue()
    text = re.sub(r"^<svg[^>]*(viewBox=\"[^\"]*\")[^>]*>", r"<svg \1>", text[text.index("<svg") :])
    text = text.replace("xlink:href", "href")
    text = re.sub(r'<g id="bounds(_\d+)?">', '<g class="bounds">', text)
    text = re.sub(r'<g id="[^"]*">', "<g>", text)
    for plain, themed in _PAGE_COLOURS.items():
        text = text.replace(plain, themed)
    return text.strip()
