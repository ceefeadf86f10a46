"""Charts of sizes: volumes against references, and each case within its bounds."""

from collections.abc import Mapping, Sequence

import numpy as np

from discoseg.report.evaluations import Evaluated
from discoseg.report.figures import Chart, Sizes, agreement, plot_differences, plot_intervals
from discoseg.report.runs import Run, list_structures, number
from discoseg.thinning import describe_pick, pick_cases

_DOTS = 300  # of a run in a chart
_BARS = 60


def read_sizes(run: Run, split: str, structure: str) -> tuple[Sizes, str]:
    """The sizes of a structure in the volumes of a split, from cases.csv, and their unit: ml, or else voxels."""
    end, path = run.ending(structure), run.root / "cases.csv"
    rows = [row for row in run.cases if row["split"] == split] if end is not None else []
    keys = ("size_vox", "true_vox", "low_vox", "high_vox")
    columns = {key: np.array([number(path, f"{key}{end}", row.get(f"{key}{end}")) for row in rows]) for key in keys}
    voxel_ml = np.array([number(path, "voxel_ml", row.get("voxel_ml")) for row in rows])
    unit = "ml" if np.isfinite(voxel_ml).all() else "voxels"
    scale = voxel_ml if unit == "ml" else np.ones(len(rows))
    return Sizes([row["case"] for row in rows], *(columns[key] * scale for key in keys)), unit


def ratio_bounds(run: Run, structure: str) -> tuple[float, float] | None:
    """The bounds on predicted over true size: those of ±ε, else the training volumes' on average, else None."""
    if "size_eps" in run.config:
        eps = float(run.config["size_eps"])
        return 1 - eps, 1 + eps
    sizes, _ = read_sizes(run, "training", structure)
    known = np.isfinite(sizes.low) & (sizes.true > 0)
    if not known.any():
        return None
    low, high = (float((side[known] / sizes.true[known]).mean()) for side in (sizes.low, sizes.high))
    return low, high


def plot_volumes(runs: Sequence[Run], evaluations: Sequence[Evaluated]) -> list[Chart]:
    """Bland–Altman charts of evaluated, validation and training volumes, one for each structure."""
    charts = []
    for label in dict.fromkeys(label for one in evaluations for label in one.scores):
        evaluated = {one.name: (one.colour, one.sizes(label)) for one in evaluations if label in one.scores}
        charts += _difference_chart(f"Evaluated volumes, {evaluations[0].titles[label]}", evaluated, "ml")
    structures = list_structures(runs)
    for split in ("Validation", "Training"):
        for structure in structures:
            read = {run.name: (index, *read_sizes(run, split.lower(), structure)) for index, run in enumerate(runs)}
            for unit in dict.fromkeys(unit for _, _, unit in read.values()):
                groups = {name: (colour, sizes) for name, (colour, sizes, own) in read.items() if own == unit}
                charts += _difference_chart(f"{split} volumes{_of(structure, structures)}", groups, unit)
    return charts


def _difference_chart(title: str, groups: Mapping[str, tuple[int, Sizes]], unit: str) -> list[Chart]:
    """One chart of the runs that have true sizes, by name; none where no run has."""
    known = {name: (colour, sizes[np.isfinite(sizes.true)]) for name, (colour, sizes) in groups.items()}
    known = {name: (colour, sizes) for name, (colour, sizes) in known.items() if len(sizes.cases)}
    if not known:
        return []
    notes, dots = [], {}
    for name, (colour, sizes) in known.items():
        low, bias, high = agreement(sizes)
        named = f"{name}: " if len(known) > 1 else ""
        notes.append(f"{named}bias {_signed(bias)} {unit}, limits {_signed(low)} to {_signed(high)} {unit}.")
        order = np.argsort(sizes.predicted - sizes.true, kind="stable")
        dots[colour] = sizes[order[pick_cases(len(order), _DOTS)]]
    most = max(len(sizes.cases) for _, sizes in known.values())
    notes.append(describe_pick(most, _DOTS, first="most below", last="most above"))
    levels = {colour: agreement(sizes) for colour, sizes in known.values()}
    return [Chart(title, plot_differences(title, dots, levels, unit=unit), " ".join(notes).strip())]


def plot_bounds(runs: Sequence[Run]) -> list[Chart]:
    """Every case's size within its bounds, a chart for each run and structure, by the bounds' upper end."""
    charts = []
    structures = list_structures(runs)
    for split in ("Validation", "Training"):
        for structure in structures:
            for colour, run in enumerate(runs):
                sizes, unit = read_sizes(run, split.lower(), structure)
                sizes = sizes[np.isfinite(sizes.low)]
                if not sizes.cases:
                    continue
                sizes = sizes[np.argsort(np.nan_to_num(sizes.true, nan=0.0) + 1e-9 * sizes.predicted, kind="stable")]
                named = f", {run.name}" if len(runs) > 1 else ""
                title = f"{split} volumes{_of(structure, structures)}{named}"
                note = f"{np.count_nonzero(sizes.inside)} of {len(sizes.cases)} within their bounds. "
                note += describe_pick(len(sizes.cases), _BARS, first="smallest", last="largest")
                shown = sizes[np.array(pick_cases(len(sizes.cases), _BARS))]
                svg = plot_intervals(title, shown, colour=colour, unit=unit)
                charts.append(Chart(title, svg, note.strip()))
    return charts


def _of(structure: str, structures: Sequence[str]) -> str:
    return f", {structure}" if len(structures) > 1 else ""


def _signed(value: float) -> str:
    """A number of three digits or more, with a true minus sign.

    >>> _signed(-0.1234), _signed(12345.6)
    ('−0.123', '+12346')
    """
    return (f"{value:+.3g}" if abs(value) < 1000 else f"{value:+.0f}").replace("-", "−")
