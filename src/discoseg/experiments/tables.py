"""The paper's two tables with our numbers beside its own, as Markdown and as CSV."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import Literal, NamedTuple

from discoseg.config import Method
from discoseg.experiments import paper
from discoseg.experiments.plan import Cell
from discoseg.experiments.results import STRUCTURE_DICE, Result
from discoseg.experiments.tasks import Task

By = Literal["eps", "mu", "variant"]
"""What the lines of a table are about, beside the method."""

METHOD_TITLES: dict[Method, str] = {
    "full": "full supervision",
    "partial": "seeds alone",
    "crf": "CRF only",
    "penalty": "penalty",
    "size": "size only",
    "crf+size": "CRF + size",
}


_CSV_COLUMNS = (
    *("task", "method", "eps", "mu", "variant", "seeds", "folds", "paper"),
    *("best_mean", "best_std", "last_mean", "last_std", "mean_weights_mean", "mean_weights_std"),
    *("inside_bounds", "train_size_ratio_std", "epochs", "seconds"),
)


class Row(NamedTuple):
    """One setting of a table: what the paper has for it, and our results with their random seeds."""

    task: Task
    method: Method
    eps: float | None
    mu: float | None
    variant: str
    paper: float  # nan where it has none
    results: list[Result]


def collect_rows(cells: Sequence[Cell], results: Mapping[str, Result], tasks: Sequence[Task], *, by: By) -> list[Row]:
    """Return the settings of the trainings ``cells``, each once, with the results that are there, in the paper's order.

    Tasks without any result are left out.
    ``by`` says where the paper speaks of them: by ε in its first table, by μ in its second, or nowhere.
    """
    rows: dict[tuple[str, Method, float | None, float | None, str], Row] = {}
    for cell in cells:
        task = next(task for task in tasks if task.name == cell.task)
        mu = task.mu.get(cell.method) if cell.mu is None else cell.mu
        known = {
            "eps": paper.TABLE1.get((cell.task.removeprefix("ours-"), cell.method, cell.eps), math.nan),
            "mu": paper.TABLE2.get((cell.task, cell.method, mu), math.nan),
            "variant": math.nan,
        }[by]
        key = (cell.task, cell.method, cell.eps, mu, cell.variant)
        row = rows.setdefault(key, Row(task, cell.method, cell.eps, mu, cell.variant, known, []))
        if cell.name in results:
            row.results.append(results[cell.name])
    begun = {row.task.name for row in rows.values() if row.results}
    places = {method: place for place, method in enumerate(METHOD_TITLES)}
    shown = [row for row in rows.values() if row.task.name in begun]
    return sorted(shown, key=lambda row: (places[row.method], row.eps or 0.0, row.mu or 0.0))  # a stable sort


def write_csv(rows: Sequence[Row]) -> str:
    """Return a table of all settings, one a line; Dice is 3D, on validation volumes."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV_COLUMNS)
    for row in rows:
        spread = [value for dice in _dice(row) for value in _mean_std(dice)]
        ends = [_mean(r.last(name) for r in row.results) for name in ("train_inside_bounds", "train_size_ratio_std")]
        epochs = max((len(r.history["val_dice"]) for r in row.results), default=0)
        values = [row.paper, *spread, *ends]
        paper_dice, *ours = ("" if math.isnan(value) else f"{value:.4f}" for value in values)
        setting = row.task.name, row.method, _text(row.eps), _text(row.mu), row.variant
        seeds, folds = {r.cell.seed for r in row.results}, {r.cell.fold for r in row.results} - {None}
        seconds = round(sum(r.seconds for r in row.results))
        writer.writerow([*setting, len(seeds), len(folds) or "", paper_dice, *ours, epochs, seconds])
    return text.getvalue()


def write_markdown(rows: Sequence[Row], *, by: By) -> str:
    """Return a table with a column of the paper's and three of ours for each task.

    Ours are of the best epoch, the last one, and the mean of the last epochs' weights. What reaches the paper is bold.
    """
    tasks = list({row.task.name: row.task for row in rows}.values())
    heading = {"eps": "ε", "mu": "μ", "variant": "setting"}[by]
    columns = (f"{task.title}: paper | best epoch | last epoch | mean of weights" for task in tasks)
    lines = [f"| method | {heading} | " + " | ".join(columns) + " |"]
    lines.append("|---|---|" + "---|---|---|---|" * len(tasks))
    keys = list(dict.fromkeys((row.method, _label(row, by)) for row in rows))
    for method, label in keys:
        found = {row.task.name: row for row in rows if (row.method, _label(row, by)) == (method, label)}
        cells = [part for task in tasks for part in _cells(found.get(task.name))]
        lines.append(f"| {METHOD_TITLES[method]} | {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def write_bounds(rows: Sequence[Row]) -> str:
    """Return how well the training volumes keep their size bounds at the end, by method and ε."""
    tasks = list({row.task.name: row.task for row in rows}.values())
    lines = ["| method | ε | " + " | ".join(f"{t.title}: inside | size ratio" for t in tasks) + " |"]
    lines.append("|---|---|" + "---|---|" * len(tasks))
    for method, eps in dict.fromkeys((row.method, row.eps) for row in rows if row.method != "full"):
        parts = []
        for task in tasks:
            results = [r for row in rows if (row.task, row.method, row.eps) == (task, method, eps) for r in row.results]
            inside = _mean(r.last("train_inside_bounds") for r in results)
            ratio, spread = (_mean(r.last(f"train_size_ratio{end}") for r in results) for end in ("", "_std"))
            parts.append("–" if math.isnan(inside) else f"{100 * inside:.0f} %")
            parts.append("–" if math.isnan(ratio) else f"{ratio:.2f} ± {spread:.2f}")
        lines.append(f"| {METHOD_TITLES[method]} | {_percent(eps)} | " + " | ".join(parts) + " |")
    return "\n".join(lines) + "\n"


def write_structures(rows: Sequence[Row]) -> str:
    """Return the Dice of each of several structures at the last epoch, mean ± standard deviation over trainings."""
    names = [
        name for row in rows for result in row.results for name in result.history if name.startswith(STRUCTURE_DICE)
    ]
    structures = list(dict.fromkeys(names))
    lines = ["| method | " + " | ".join(name.removeprefix(STRUCTURE_DICE) for name in structures) + " |"]
    lines.append("|---|" + "---|" * len(structures))
    for row in rows:
        cells = [_spread([r.last(name) for r in row.results], math.inf) if row.results else "" for name in structures]
        lines.append(f"| {METHOD_TITLES[row.method]} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def write_runs(rows: Sequence[Row]) -> str:
    """Return where the numbers come from: every training with its length, duration, machine and commit."""
    lines = ["| training | epochs | best epoch | seconds | device | commit |", "|---|---|---|---|---|---|"]
    for result in (result for row in rows for result in row.results):
        facts = result.facts
        lines.append(
            f"| {result.cell.name} | {len(result.history['val_dice'])} | {result.best_epoch} | {result.seconds:.0f} "
            f"| {facts.get('device') or '–'} | {(facts.get('commit') or '–')[:7]} |"
        )
    return "\n".join(lines) + "\n"


def _cells(row: Row | None) -> list[str]:
    if row is None:
        return [""] * 4
    known = "–" if math.isnan(row.paper) else f"{row.paper:.3f}"
    if not row.results:
        return [known, "", "", ""]
    return [known, *(_spread(dice, row.paper) for dice in _dice(row))]


def _dice(row: Row) -> tuple[list[float], list[float], list[float]]:
    """Return the Dice of the best epoch, the last one and the mean of weights, where it was kept, of each result."""
    means = [r.mean_dice for r in row.results if not math.isnan(r.mean_dice)]
    return [r.best_dice for r in row.results], [r.last("val_dice") for r in row.results], means


def _spread(values: Sequence[float], reference: float) -> str:
    """Return mean ± standard deviation over seeds, bold where the mean reaches the paper's to three digits."""
    average, deviation = _mean_std(values)
    if math.isnan(average):
        return "–"
    text = f"{average:.3f}" if math.isnan(deviation) else f"{average:.3f} ± {deviation:.3f}"
    return f"**{text}**" if round(average, 3) >= reference else text


def _label(row: Row, by: By) -> str:
    bounds = "" if row.eps is None else f", ε = {_percent(row.eps)}"
    return {"eps": _percent(row.eps), "mu": _text(row.mu), "variant": (row.variant or "as it is") + bounds}[by]


def _percent(eps: float | None) -> str:
    return "" if eps is None else f"{100 * eps:g} %"


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _mean(values: Iterable[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return mean(known) if known else math.nan


def _mean_std(values: Sequence[float]) -> tuple[float, float]:
    return (mean(values) if values else math.nan), (stdev(values) if len(values) > 1 else math.nan)
