"""The report's tables as plain texts: the summary, and the cases sorted by Dice."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from discoseg.report.evaluations import Evaluated
from discoseg.report.runs import Run, list_structures, number
from discoseg.thinning import describe_pick, pick_cases

MISSING = "–"
_ROWS = 120  # of a table of cases


@dataclass(frozen=True)
class Measure:
    """One row of the summary: a text for each run, and which of them are the best."""

    name: str
    texts: list[str]
    best: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Cell:
    """One case of one run: its Dice (nan where unknown), and a text beside it."""

    dice: float
    text: str
    warn: bool = False


@dataclass(frozen=True)
class Column:
    """What a table of cases says about a run: mean ± standard deviation of the Dice, best and worst case."""

    name: str
    mean: str
    best: str
    worst: str


@dataclass(frozen=True)
class CaseTable:
    """Cases by Dice, the best first; a run that lacks a case has None there."""

    title: str
    beside: str  # what the text beside the Dice is
    columns: list[Column]
    rows: list[tuple[str, list[Cell | None]]]
    cases: int  # of which the rows may be some
    note: str


def summarise(runs: Sequence[Run], evaluations: Sequence[Evaluated] = ()) -> list[Measure]:
    """The summary's rows, without those that no run can fill."""
    structures = list_structures(runs)
    evaluated = {one.name: one for one in evaluations}
    titles = {label: title for one in evaluations for label, title in one.titles.items()}
    texts: dict[str, Callable[[Run], str]] = {
        "method": lambda run: str(run.config.get("method", MISSING)),
        "structures" if len(structures) > 1 else "structure": lambda run: ", ".join(run.structures),
        "network": _network,
        "size bounds": _bounds,
        "volumes, training / validation": _volumes,
        "epochs": _epochs,
        **{f"evaluated 3D Dice, {title}": _evaluated_dice(evaluated, label) for label, title in titles.items()},
        "validation 3D Dice, last epoch": lambda run: _decimal(run.last("val_dice")),
        "validation 3D Dice, best epoch": _best_epoch,
        "validation 3D Dice, mean of weights": lambda run: _decimal(run.mean.get("val_dice", math.nan)),
        **{f"validation 3D Dice of {name}, last epoch": _dice_of(name) for name in structures if len(structures) > 1},
        "best validation case, 3D Dice": lambda run: _extreme(run, "validation", -1),
        "worst validation case, 3D Dice": lambda run: _extreme(run, "validation", 0),
        "training 3D Dice, last epoch": lambda run: _decimal(run.last("train_dice")),
        "best training case, 3D Dice": lambda run: _extreme(run, "training", -1),
        "worst training case, 3D Dice": lambda run: _extreme(run, "training", 0),
        "size ratio, validation": lambda run: _ratio(run, "val"),
        "size ratio, training": lambda run: _ratio(run, "train"),
        "inside bounds, validation": lambda run: _percent(run.last("val_inside_bounds")),
        "inside bounds, training": lambda run: _percent(run.last("train_inside_bounds")),
        "inside bounds, training, mean of weights": lambda run: _percent(run.mean.get("train_inside_bounds", math.nan)),
        "time per epoch": lambda run: _duration(_seconds(run) / len(run.timing.get("epoch", [0]))),
        "time, all epochs": lambda run: _duration(_seconds(run)),
        "device": lambda run: str(run.facts.get("device", MISSING)),
    }
    scores: dict[str, Callable[[Run], float]] = {
        "validation 3D Dice, last epoch": lambda run: run.last("val_dice"),
        "validation 3D Dice, best epoch": lambda run: _best(run)[0],
        "validation 3D Dice, mean of weights": lambda run: run.mean.get("val_dice", math.nan),
        "training 3D Dice, last epoch": lambda run: run.last("train_dice"),
    }
    best = {name: _winners([score(run) for run in runs]) for name, score in scores.items()}
    rows = [Measure(name, [text(run) for run in runs], best.get(name, frozenset())) for name, text in texts.items()]
    return [row for row in rows if set(row.texts) != {MISSING}]


def list_cases(runs: Sequence[Run]) -> list[CaseTable]:
    """A table of cases for validation and one for training, of each structure, over all runs with a cases.csv."""
    structures, tables = list_structures(runs), []
    for split in ("validation", "training"):
        for structure in structures:
            columns: dict[str, dict[str, Cell]] = {run.name: {} for run in runs}
            for run in runs:
                end = run.ending(structure)
                rows = [row for row in run.cases if row["split"] == split] if end is not None else []
                columns[run.name] = {row["case"]: _case_cell(run, row, end or "") for row in rows}
            if any(columns.values()):
                title = f"{split.capitalize()} volumes{f', {structure}' if len(structures) > 1 else ''}"
                tables.append(_case_table(title, "predicted / true size", columns))
    return tables


def list_evaluations(evaluations: Sequence[Evaluated]) -> list[CaseTable]:
    """One table of cases for every label in the files that ``discoseg evaluate`` wrote, a column each."""
    titles = {label: title for one in evaluations for label, title in one.titles.items()}
    tables = []
    for label, title in titles.items():
        columns = {
            one.name: {case: Cell(s.dice, _millimetres(s.hd95_mm)) for case, s in one.scores.get(label, {}).items()}
            for one in evaluations
        }
        tables.append(_case_table(title[0].upper() + title[1:], "95 % Hausdorff distance", columns))
    return tables


def _case_table(title: str, beside: str, columns: Mapping[str, Mapping[str, Cell]]) -> CaseTable:
    cases = dict.fromkeys(case for cells in columns.values() for case in cells)
    rows: list[tuple[str, list[Cell | None]]] = [
        (case, [cells.get(case) for cells in columns.values()]) for case in cases
    ]
    rows.sort(key=lambda row: (-_mean_dice(row[1]), row[0]))
    shown = [rows[index] for index in pick_cases(len(rows), _ROWS)]
    note = describe_pick(len(rows), _ROWS)
    return CaseTable(title, beside, [_column(name, cells) for name, cells in columns.items()], shown, len(rows), note)


def _column(name: str, cells: Mapping[str, Cell]) -> Column:
    by_dice = sorted((cell.dice, case) for case, cell in cells.items() if not math.isnan(cell.dice))
    if not by_dice:
        return Column(name, MISSING, MISSING, MISSING)
    (worst, worst_case), (best, best_case) = by_dice[0], by_dice[-1]
    known = [dice for dice, _ in by_dice]
    mean = f"{np.mean(known):.3f} ± {np.std(known):.3f}"
    return Column(name, mean, f"{best_case} ({best:.3f})", f"{worst_case} ({worst:.3f})")


def _mean_dice(cells: Sequence[Cell | None]) -> float:
    known = [cell.dice for cell in cells if cell and not math.isnan(cell.dice)]
    return float(np.mean(known)) if known else -1.0


def _dice_of(structure: str) -> Callable[[Run], str]:
    return lambda run: _decimal(run.last(f"val_dice{run.ending(structure)}"))


def _evaluated_dice(evaluated: Mapping[str, Evaluated], label: str) -> Callable[[Run], str]:
    def text(run: Run) -> str:
        scores = evaluated[run.name].scores.get(label, {}) if run.name in evaluated else {}
        return _column(run.name, {case: Cell(score.dice, "") for case, score in scores.items()}).mean

    return text


def _extreme(run: Run, split: str, place: int) -> str:
    """The case with the lowest (``place`` 0) or highest (−1) Dice, over its structures on average."""
    path = run.root / "cases.csv"
    found = [(number(path, "dice", row.get("dice")), row["case"]) for row in run.cases if row["split"] == split]
    known = sorted(pair for pair in found if not math.isnan(pair[0]))
    return f"{known[place][0]:.3f} ({known[place][1]})" if known else MISSING


def _case_cell(run: Run, row: Mapping[str, str], ending: str) -> Cell:
    path, keys = run.root / "cases.csv", ("dice", "size_vox", "true_vox", "low_vox", "high_vox")
    dice, size, true, low, high = (number(path, key + ending, row.get(key + ending)) for key in keys)
    text = f"{size / true:.2f}" if true > 0 else f"{size:.0f} voxels"
    mark = " ▲" if size > high else " ▼" if size < low else ""
    return Cell(dice, text + mark, warn=bool(mark))


def _winners(scores: Sequence[float]) -> frozenset[int]:
    """Which scores are the highest, where there is something to compare."""
    known = [score for score in scores if not math.isnan(score)]
    return frozenset(i for i, s in enumerate(scores) if s == max(known)) if len(known) > 1 else frozenset()


def _network(run: Run) -> str:
    network, grid = run.config.get("network", {}), run.config.get("grid", {})
    name = {"unet": "U-Net", "enet": "ENet"}.get(network.get("name"), network.get("name", MISSING))
    width = f", width {network['width']}" if "width" in network else ""
    return f"{name}{width}, {'×'.join(map(str, grid['shape']))}" if "shape" in grid else f"{name}{width}"


def _bounds(run: Run) -> str:
    if "size_eps" in run.config:
        return f"±{100 * run.config['size_eps']:g} % of the true size"
    if "size_ml" in run.config:
        text = ", ".join(part.strip() for part in str(run.config["size_ml"]).split(","))
        return f"{text} ml" if text[-1:] in ":.0123456789" else text
    return "by case" if "size_csv" in run.config else MISSING


def _volumes(run: Run) -> str:
    return " / ".join(str(len(run.facts.get(split, ()))) for split in ("training", "validation"))


def _epochs(run: Run) -> str:
    done, planned = int(run.metrics["epoch"][-1]), run.config.get("epochs")
    return f"{done} of {planned}" if planned not in (None, done) else str(done)


def _best(run: Run) -> tuple[float, float]:
    """The best validation Dice and its epoch; nan where there is no validation."""
    values = run.metrics.get("val_dice", np.array([np.nan]))
    if np.isnan(values).all():
        return np.nan, np.nan
    return float(np.nanmax(values)), float(run.metrics["epoch"][np.nanargmax(values)])


def _best_epoch(run: Run) -> str:
    value, epoch = _best(run)
    return MISSING if math.isnan(value) else f"{value:.3f} (epoch {epoch:.0f})"


def _ratio(run: Run, split: str) -> str:
    mean, std = run.last(f"{split}_size_ratio"), run.last(f"{split}_size_ratio_std")
    return MISSING if math.isnan(mean) else f"{mean:.2f} ± {std:.2f}"


def _seconds(run: Run) -> float:
    return float(sum(values.sum() for phase, values in run.timing.items() if phase != "epoch")) or np.nan


def _decimal(value: float) -> str:
    return MISSING if math.isnan(value) else f"{value:.3f}"


def _percent(value: float) -> str:
    return MISSING if math.isnan(value) else f"{100 * value:.0f} %"


def _millimetres(value: float) -> str:
    return MISSING if math.isnan(value) else f"{value:.1f} mm"


def _duration(seconds: float) -> str:
    if math.isnan(seconds):
        return MISSING
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
