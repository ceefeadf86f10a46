r"""Write a table of the paper beside ours as Markdown, from our tables of epochs.

    python docs/tabulate.py table1 docs/results/table1-{ventricles,prostate}.csv --until 50 50 60 \
        --models docs/results/table1-models.csv
    python docs/tabulate.py table2 docs/results/table[12]-{ventricles,prostate}.csv --until 50 50 60 \
        --instead docs/results/table1-before.csv

``discoseg reproduce`` writes the like from the results of a machine. Here the epochs up to ``--until`` count, of LV, RV
and prostate; trainings of fewer than ``--at-least`` epochs are left out. Means and standard deviations are over random
seeds, whose number stands in brackets, each with the last of its own epochs. ``--models`` has the scores of the models
that trainings ended with; their mean is shown where all seeds ended with the epochs that count. Trainings of the tables
``--instead``, which had other settings, take the place of those that are called the same.
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from discoseg.experiments.plan import Cell, plan
from discoseg.experiments.results import Result
from discoseg.experiments.tables import METHOD_TITLES, Row, collect_rows
from discoseg.experiments.tasks import TASKS

LAST = 10  # epochs that means are of
MOST_SEEDS = 10


def read_epochs(paths: Sequence[Path]) -> dict[str, dict[str, list[float]]]:
    """Return the columns that each training has, by its name."""
    trainings: dict[str, dict[str, list[float]]] = {}
    for path in paths:
        read: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        with path.open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                for column, value in row.items():
                    if value and column not in ("training", "epoch"):
                        read[row["training"]][column].append(float(value))
        if again := trainings.keys() & read.keys():
            raise SystemExit(f"{path}: has {len(again)} trainings that another table has too, such as {min(again)}")
        trainings |= read
    return trainings


def read_models(path: Path | None) -> dict[str, dict[str, Any]]:
    """Return the scores of the models that trainings ended with, by their names."""
    if path is None:
        return {}
    with path.open(encoding="utf-8") as file:
        return {row["training"]: {key: value for key, value in row.items() if value} for row in csv.DictReader(file)}


def make_result(cell: Cell, history: dict[str, list[float]], model: dict[str, Any] | None, until: int) -> Result:
    """Return the beginning of a training as `reproduce` would keep it; the model is that of all of its epochs."""
    whole = len(history["val_dice"]) <= until
    begun = {column: values[:until] for column, values in history.items()}
    return Result(cell, {}, begun, 0.0, {}, {"mean": model} if whole and model else {})


def average(column: str) -> Callable[[Result], float]:
    """Return what takes the mean of a column over a result's last epochs."""
    return lambda result: mean(result.history[column][-LAST:])


def write_scores(results: Sequence[Result], score: Callable[[Result], float], paper: float | None = None) -> str:
    """Return mean ± standard deviation (number) over seeds, in bold where the mean reaches the paper's."""
    if not results:
        return ""
    values = [score(result) for result in results]
    text = f"{mean(values):.3f}"
    text = f"**{text}**" if paper is not None and float(text) >= paper else text
    return f"{text} ± {stdev(values):.3f} ({len(values)})" if len(values) > 1 else text


def of_models(results: Sequence[Result], column: str) -> float | None:
    """Return the mean of what the models score, None where not all results have it."""
    found = [result.facts["mean"][column] for result in results if column in result.facts.get("mean", {})]
    return mean(map(float, found)) if found and len(found) == len(results) else None


def write_best(row: Row) -> str:
    """Return the paper's Dice and that of our best epochs."""
    return f"{row.paper:.3f} | {write_scores(row.results, lambda result: result.best_dice, row.paper)}"


def write_last(row: Row) -> str:
    """Return the mean Dice of the last epochs, and that of the models."""
    model = of_models(row.results, "val_dice")
    return write_scores(row.results, average("val_dice")) + ("" if model is None else f"; {model:.3f}")


def write_sizes(row: Row) -> str:
    """Return the share of training volumes inside their bounds, also with the models, and their sizes; means."""
    if not row.results or "inside_bounds" not in row.results[0].history:
        return ""
    columns = ("inside_bounds", "train_size_ratio", "train_size_ratio_std")
    inside, ratio, spread = (mean(map(average(column), row.results)) for column in columns)
    model = of_models(row.results, "train_inside_bounds")
    return f"{100 * inside:.0f}{'' if model is None else f', {100 * model:.0f}'} %; {ratio:.2f} ± {spread:.2f}"


def write_table(titles: Sequence[str], rows: Sequence[Row], by_mu: bool, write: Callable[[Row], str]) -> str:
    """Return a table as Markdown, with a column of each task; lines that have nothing are left out."""
    lines = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    settings = dict.fromkeys((row.method, row.mu if by_mu else row.eps) for row in rows)
    for method, value in settings:
        found = {row.task.name: row for row in rows if (row.method, row.mu if by_mu else row.eps) == (method, value)}
        cells = [write(found[task.name]) if task.name in found else "" for task in TASKS]
        label = "" if value is None else f"{value:g}" if by_mu else f"{100 * value:g} %"
        if any(cells):
            lines.append(f"| {METHOD_TITLES[method]} | {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Print the best epochs, the last ones, and sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("table1", "table2"))
    parser.add_argument("tables", type=Path, nargs="+")
    parser.add_argument("--until", type=int, nargs=len(TASKS), default=[250] * len(TASKS))
    parser.add_argument("--at-least", type=int, default=50)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--instead", type=Path, nargs="+", default=[])
    options = parser.parse_args()
    epochs, models = read_epochs(options.tables), read_models(options.models)
    instead = read_epochs(options.instead)
    if unknown := sorted(instead.keys() - epochs.keys()):
        parser.error(f"--instead: no training of the tables is called {unknown[0]}")
    epochs |= instead
    models = {name: model for name, model in models.items() if name not in instead}
    until = {task.name: most for task, most in zip(TASKS, options.until, strict=True)}
    cells, by_mu = plan(options.what, seeds=MOST_SEEDS, tasks=TASKS), options.what == "table2"
    results = {
        cell.name: make_result(cell, epochs[cell.name], models.get(cell.name), until[cell.task])
        for cell in cells
        if cell.name in epochs and len(epochs[cell.name]["val_dice"]) >= options.at_least
    }
    rows = collect_rows(cells, results, TASKS, by="mu" if by_mu else "eps")
    tasks, value = [task.title for task in TASKS], "μ̂ = μ̃" if by_mu else "ε"
    beside = [title for task in tasks for title in (f"{task}, paper", "ours")]
    print(write_table(["best epoch", value, *beside], rows, by_mu, write_best), end="\n\n")
    print(write_table([f"last {LAST} epochs; model", value, *tasks], rows, by_mu, write_last), end="\n\n")
    title = f"training volumes inside bounds, last {LAST} epochs, model; size ratio"
    print(write_table([title, value, *tasks], rows, by_mu, write_sizes))


if __name__ == "__main__":
    main()
