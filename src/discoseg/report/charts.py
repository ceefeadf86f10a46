"""The report's panels: which columns of the runs' tables make which curves."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from discoseg.report.figures import Bounds, Line, plot_lines, plot_stack
from discoseg.report.runs import Run

_PHASES = ("network", "predict", "crf", "size", "score", "save")  # in the order of an epoch
_SIZE_RATIO_TOP = 3.0  # the curves of a start far off would flatten what matters


@dataclass(frozen=True)
class Chart:
    """One panel with its caption."""

    title: str
    svg: Markup
    note: str = ""


def _lines(runs: Sequence[Run], column: str, *, dashed: bool = False, spread: str = "") -> list[Line]:
    """The curve of one column for every run that has it."""
    return [
        Line(run.metrics["epoch"], run.metrics[column], i, dashed, run.metrics.get(spread))
        for i, run in enumerate(runs)
        if column in run.metrics
    ]


def plot_progress(runs: Sequence[Run]) -> list[Chart]:
    """3D Dice, size ratio and bounds by epoch: whether the training works."""
    both = "Solid: validation. Dashed: training."
    charts = []
    dice = [*_lines(runs, "train_dice", dashed=True), *_lines(runs, "val_dice")]
    if dice:
        svg = plot_lines("dice", dice, y_label="3D Dice", y_range=(0, 1))
        charts.append(Chart("3D Dice", Markup(svg), both))
    for split, title in (("train", "training"), ("val", "validation")):
        ratios = _lines(runs, f"{split}_size_ratio", spread=f"{split}_size_ratio_std")
        if ratios:
            charts.append(_ratio_chart(f"Size ratio, {title}", f"ratio-{split}", ratios, _size_bounds(runs)))
    inside = [*_lines(runs, "train_inside_bounds", dashed=True), *_lines(runs, "val_inside_bounds")]
    if inside:
        svg = plot_lines("inside", inside, y_label="share of volumes", y_range=(0, 1))
        charts.append(Chart("Volumes inside their size bounds", Markup(svg), both))
    return charts


def _size_bounds(runs: Sequence[Run]) -> list[Bounds]:
    """The bounds on the size ratio; in the runs' colours only where they differ."""
    eps = {i: float(run.config["size_eps"]) for i, run in enumerate(runs) if "size_eps" in run.config}
    if len(set(eps.values())) == 1:
        return [Bounds(1 - e, 1 + e) for e in set(eps.values())]
    return [Bounds(1 - e, 1 + e, colour=i) for i, e in eps.items()]


def _ratio_chart(title: str, name: str, ratios: list[Line], bounds: list[Bounds]) -> Chart:
    spreads = [0.0 if line.spread is None else line.spread for line in ratios]
    tops = [np.nan_to_num(line.values + spread, posinf=0) for line, spread in zip(ratios, spreads, strict=True)]
    highest = max(float(top.max()) for top in tops)
    limit = max(_SIZE_RATIO_TOP, *(1.15 * float(top[-1]) for top in tops))
    shown = min(max(1.05 * highest, 1.5, *(1.05 * bound.high for bound in bounds)), limit)
    svg = plot_lines(name, ratios, y_label="predicted / true size", y_range=(0, shown), bounds=bounds)
    note = "Mean ± standard deviation over volumes."
    note += " Dashed: the bounds." if bounds else ""
    note += f" Values up to {highest:.3g} are cut off." if highest > shown else ""
    return Chart(title, Markup(svg), note)


def plot_proposals(runs: Sequence[Run]) -> list[Chart]:
    """Dice of the proposals, and how far network and proposals are apart and still move."""
    both = "Solid: CRF proposal. Dashed: size proposal."
    charts = []
    dice = [*_lines(runs, "crf_dice"), *_lines(runs, "size_dice", dashed=True)]
    if dice:
        svg = plot_lines("proposals", dice, y_label="3D Dice", y_range=(0, 1))
        charts.append(Chart("3D Dice of the proposals, training", Markup(svg), both))
    for kind, meaning in (("primal", "network − proposal"), ("dual", "μ × change of the proposal")):
        residuals = [*_lines(runs, f"{kind}_crf"), *_lines(runs, f"{kind}_size", dashed=True)]
        if residuals:
            svg = plot_lines(kind, residuals, y_label="residual", log=True)
            charts.append(Chart(f"{kind.capitalize()} residual ({meaning})", Markup(svg), both))
    return charts


def plot_losses(runs: Sequence[Run]) -> list[Chart]:
    """Every term of the loss by epoch, a panel each."""
    titles = {
        "loss": "Loss, all terms",
        "loss_seeds": "Cross-entropy on annotated voxels",
        "loss_crf": "Augmented term of the CRF proposal",
        "loss_size": "Augmented term of the size proposal",
        "loss_penalty": "Size penalty",
    }
    columns = dict.fromkeys(column for run in runs for column in run.metrics)
    return [
        Chart(titles.get(name, name), Markup(plot_lines(name, _lines(runs, name), y_label="loss")))
        for name in columns
        if name == "loss" or name.startswith("loss_")
    ]


def list_phases(runs: Sequence[Run]) -> list[str]:
    """The phases that any run timed, in the order of an epoch."""
    found = dict.fromkeys(phase for run in runs for phase in run.timing if phase != "epoch")
    return [*(phase for phase in _PHASES if phase in found), *(p for p in found if p not in _PHASES)]


def plot_times(runs: Sequence[Run]) -> list[Chart]:
    """Seconds by phase and epoch, a panel for each run on one scale."""
    phases = list_phases(runs)
    timed = {
        run.name: {phase: run.timing.get(phase, np.zeros(len(run.timing["epoch"]))) for phase in phases}
        for run in runs
        if "epoch" in run.timing
    }
    top = max((float(sum(parts.values()).max()) for parts in timed.values()), default=0.0)  # type: ignore[union-attr]
    charts = []
    for index, run in enumerate(runs):
        if run.name in timed:
            epochs, parts = run.timing["epoch"], timed[run.name]
            svg = plot_stack(f"time-{index}", epochs, parts, y_label="seconds", y_top=1.05 * top or 1.0)
            charts.append(Chart(run.name, Markup(svg)))
    return charts
