"""The report's panels by epoch: which columns of the runs' tables make which curves."""

from collections.abc import Sequence

import numpy as np

from discoseg.report.figures import Bounds, Chart, Line, plot_lines, plot_stack
from discoseg.report.runs import Run, list_structures
from discoseg.report.sizes import ratio_bounds

_PHASES = ("network", "predict", "crf", "size", "score", "save")  # in the order of an epoch
_SIZE_RATIO_TOP = 3.0  # the curves of a start far off would flatten what matters


def _lines(runs: Sequence[Run], column: str, *, dashed: bool = False, spread: str = "", of: str = "") -> list[Line]:
    """The curve of one column for every run that has it; ``of`` a structure, of the structure's own column."""
    lines = []
    for index, run in enumerate(runs):
        end = run.ending(of) if of else ""
        if end is not None and f"{column}{end}" in run.metrics:
            values = run.metrics[f"{column}{end}"]
            lines.append(Line(run.metrics["epoch"], values, index, dashed, run.metrics.get(spread)))
    return lines


def _split_lines(runs: Sequence[Run], column: str, *, of: str = "") -> tuple[list[Line], str]:
    """The curves of a column for validation and for training, and words about which is which."""
    validation = _lines(runs, f"val_{column}", of=of)
    training = _lines(runs, f"train_{column}", dashed=bool(validation), of=of)
    note = "Solid: validation. Dashed: training." if validation and training else ""
    return [*training, *validation], note or ("Validation volumes." if validation else "Training volumes.")


def plot_progress(runs: Sequence[Run]) -> list[Chart]:
    """3D Dice and size ratio by epoch, over all structures and of each: whether the training works."""
    structures = list_structures(runs)
    several = len(structures) > 1
    charts = []
    for structure in ["", *structures] if several else [""]:
        title = f"3D Dice{f', {structure}' if structure else ', mean of the structures' if several else ''}"
        dice, note = _split_lines(runs, "dice", of=structure)
        if dice:
            charts.append(Chart(title, plot_lines(title, dice, y_label="3D Dice", y_range=(0, 1)), note))
    for split, name in (("train", "training"), ("val", "validation")):
        title = f"Size ratio, {name}{', all structures' if several else ''}"
        ratios = _lines(runs, f"{split}_size_ratio", spread=f"{split}_size_ratio_std")
        bounds, said = _size_bounds(runs, structures)
        if ratios:
            charts.append(_ratio_chart(title, ratios, bounds, f"Mean ± standard deviation over volumes.{said}"))
    for structure in structures if several else []:
        ratios, note = _split_lines(runs, "size_ratio", of=structure)
        bounds, said = _size_bounds(runs, [structure])
        if ratios:
            charts.append(_ratio_chart(f"Size ratio, {structure}", ratios, bounds, f"{note}{said}"))
    return charts


def plot_inside(runs: Sequence[Run]) -> list[Chart]:
    """The share of volumes inside their size bounds by epoch."""
    inside, note = _split_lines(runs, "inside_bounds")
    title = "Volumes inside their size bounds"
    if not inside:
        return []
    return [Chart(title, plot_lines(title, inside, y_label="share of volumes", y_range=(0, 1)), note)]


def _size_bounds(runs: Sequence[Run], structures: Sequence[str]) -> tuple[list[Bounds], str]:
    """The bounds on the size ratio, in the runs' colours only where they differ, and words about them.

    Where structures have bounds of their own in ml, there are none for all of them together.
    """
    found = {}
    for index, run in enumerate(runs):
        own = {ratio_bounds(run, structure) for structure in structures if structure in run.structures} - {None}
        if len(own) == 1:
            found[index] = own.pop()
    averaged = any("size_eps" not in runs[index].config for index in found)
    said = " Thin lines: the bounds, on average over training volumes." if averaged else " Thin lines: the bounds."
    distinct = [pair for pair in dict.fromkeys(found.values()) if pair is not None]
    if len(distinct) == 1:
        return [Bounds(*distinct[0])], said
    bounds = [Bounds(*pair, colour=index) for index, pair in found.items() if pair is not None]
    return bounds, said if bounds else ""


def _ratio_chart(title: str, ratios: list[Line], bounds: list[Bounds], note: str) -> Chart:
    spreads = [0.0 if line.spread is None else line.spread for line in ratios]
    tops = [np.nan_to_num(line.values + spread, posinf=0) for line, spread in zip(ratios, spreads, strict=True)]
    highest = max(float(top.max()) for top in tops)
    limit = max(_SIZE_RATIO_TOP, *(1.15 * float(top[-1]) for top in tops))
    shown = min(max(1.05 * highest, 1.5, *(1.05 * bound.high for bound in bounds)), limit)
    svg = plot_lines(title, ratios, y_label="predicted / true size", y_range=(0, shown), bounds=bounds)
    return Chart(title, svg, note + (f" Values up to {highest:.3g} are cut off." if highest > shown else ""))


def plot_proposals(runs: Sequence[Run]) -> list[Chart]:
    """Dice of the proposals, and how far network and proposals are apart and still move."""
    both = "Solid: CRF proposal. Dashed: size proposal."
    charts = []
    dice = [*_lines(runs, "crf_dice"), *_lines(runs, "size_dice", dashed=True)]
    if dice:
        title = "3D Dice of the proposals, training"
        charts.append(Chart(title, plot_lines(title, dice, y_label="3D Dice", y_range=(0, 1)), both))
    for kind, meaning in (("primal", "network − proposal"), ("dual", "μ × change of the proposal")):
        residuals = [*_lines(runs, f"{kind}_crf"), *_lines(runs, f"{kind}_size", dashed=True)]
        if residuals:
            title = f"{kind.capitalize()} residual ({meaning})"
            charts.append(Chart(title, plot_lines(title, residuals, y_label="residual", log=True), both))
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
    named = {name: titles.get(name, name) for name in columns if name == "loss" or name.startswith("loss_")}
    return [Chart(title, plot_lines(title, _lines(runs, name), y_label="loss")) for name, title in named.items()]


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
    for run in runs:
        if run.name in timed:
            epochs, parts = run.timing["epoch"], timed[run.name]
            svg = plot_stack(f"Time, {run.name}", epochs, parts, y_label="seconds", y_top=1.05 * top or 1.0)
            charts.append(Chart(run.name, svg))
    return charts
