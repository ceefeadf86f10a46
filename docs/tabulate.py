r"""Write a table of the paper beside ours as Markdown, from our result tables.

    python docs/tabulate.py table1 docs/results/table1-{ventricles,prostate}.csv --until 50 50 60 \
        --models docs/results/table1-models.csv
    python docs/tabulate.py table2 docs/results/table[12]-ventricles.csv docs/results/table1-prostate.csv \
        --until 50 50 60

Of every training the epochs up to ``--until`` count, of LV, RV and prostate; those of fewer than ``--at-least`` epochs
are left out. Means and standard deviations are over random seeds, whose number stands in brackets, each with the last
of its own epochs. ``--models`` has the scores of the models that trainings ended with; their mean is shown where all
seeds ended with the epochs that count.
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from discoseg.config import Method
from discoseg.experiments.paper import TABLE1, TABLE2
from discoseg.experiments.plan import Cell
from discoseg.experiments.tasks import TASKS

METHODS: dict[Method, str] = {
    "full": "full supervision",
    "penalty": "penalty",
    "size": "size only",
    "crf": "CRF only",
    "crf+size": "**CRF + size**",
}
LAST = 10  # epochs that means are of


@dataclass(frozen=True)
class Training:
    """The epochs of a training that count, and the scores of its last model where all of its epochs do."""

    epochs: list[dict[str, str]]
    model: dict[str, str] | None

    def best(self) -> float:
        """Return the validation Dice of the best epoch."""
        return max(float(epoch["val_dice"]) for epoch in self.epochs)

    def last(self, column: str) -> float:
        """Return the mean of a column over the last epochs."""
        return mean(float(epoch[column]) for epoch in self.epochs[-LAST:])

    def until(self, epochs: int) -> "Training":
        """Return its first ``epochs``, or all where it has no more."""
        return self if len(self.epochs) <= epochs else Training(self.epochs[:epochs], None)

    @property
    def has_bounds(self) -> bool:
        """Whether sizes were bounded."""
        return self.epochs[-1]["inside_bounds"] != ""


@dataclass(frozen=True)
class Row:
    """A method with its ε or μ: for every task the paper's Dice, and our trainings, one for each random seed."""

    title: str
    value: str
    paper: list[float]
    ours: list[list[Training]]


def read_trainings(paths: Sequence[Path], models: Path | None, at_least: int) -> dict[str, Training]:
    """Return the trainings that are long enough, by name."""
    epochs: dict[str, list[dict[str, str]]] = defaultdict(list)
    for path in paths:
        with path.open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        if again := epochs.keys() & {row["training"] for row in rows}:
            raise SystemExit(f"{path}: has trainings that another table has too: {', '.join(sorted(again))}")
        for row in rows:
            epochs[row["training"]].append(row)
    scores: dict[str, dict[str, str]] = {}
    if models is not None:
        with models.open(encoding="utf-8") as file:
            scores = {row["training"]: row for row in csv.DictReader(file)}
    return {name: Training(rows, scores.get(name)) for name, rows in epochs.items() if len(rows) >= at_least}


def collect_rows(what: str, trainings: dict[str, Training], until: Sequence[int]) -> list[Row]:
    """Return the rows of a table, by method."""
    table, rows = TABLE1 if what == "table1" else TABLE2, list[Row]()
    for method, title in METHODS.items():
        for value in dict.fromkeys(value for _, other, value in table if other == method):
            ours = []
            for task, most in zip(TASKS, until, strict=True):
                eps = value if what == "table1" else None if method == "crf" else 0.0
                mu = None if what == "table1" or value == task.mu.get(method) else value
                cells = [Cell(task.name, method, eps, mu=mu, seed=seed) for seed in range(3)]
                ours.append([trainings[cell.name].until(most) for cell in cells if cell.name in trainings])
            text = "" if value is None else f"{100 * value:g} %" if what == "table1" else f"{value:g}"
            rows.append(Row(title, text, [table[task.name, method, value] for task in TASKS], ours))
    return rows


def write_scores(seeds: Sequence[Training], score: Callable[[Training], float], paper: float | None = None) -> str:
    """Return mean ± standard deviation (number) over seeds, in bold where the mean reaches the paper's."""
    if not seeds:
        return ""
    values = [score(training) for training in seeds]
    text = f"{mean(values):.3f}"
    text = f"**{text}**" if paper is not None and float(text) >= paper else text
    return f"{text} ± {stdev(values):.3f} ({len(values)})" if len(values) > 1 else text


def write_best(row: Row) -> list[str]:
    """Return the paper's Dice and that of our best epochs, by task."""
    pairs = zip(row.paper, row.ours, strict=True)
    return [f"{paper:.3f} | {write_scores(ours, Training.best, paper)}" for paper, ours in pairs]


def write_last(row: Row) -> list[str]:
    """Return the mean Dice of the last epochs, and that of the last models, by task."""
    cells = []
    for ours in row.ours:
        ended = [float(training.model["val_dice"]) for training in ours if training.model is not None]
        text = write_scores(ours, lambda training: training.last("val_dice"))
        cells.append(text + (f"; {mean(ended):.3f}" if ours and len(ended) == len(ours) else ""))
    return cells


def write_sizes(row: Row) -> list[str]:
    """Return the share of training volumes inside their bounds, and their sizes, by task; means over seeds."""
    cells = []
    for ours in row.ours:
        if not ours or not ours[0].has_bounds:
            cells.append("")
            continue
        columns = ("inside_bounds", "train_size_ratio", "train_size_ratio_std")
        inside, ratio, spread = (mean(training.last(column) for training in ours) for column in columns)
        ended = [float(t.model["train_inside_bounds"]) for t in ours if t.model and t.model["train_inside_bounds"]]
        model = f", {100 * mean(ended):.0f}" if len(ended) == len(ours) else ""
        cells.append(f"{100 * inside:.0f}{model} %; {ratio:.2f} ± {spread:.2f}")
    return cells


def write_table(title: str, columns: Sequence[str], rows: Sequence[Row], write: Callable[[Row], list[str]]) -> str:
    """Return a table as Markdown; rows with nothing in them are left out."""
    lines = [f"| {title} | " + " | ".join(columns) + " |"]
    lines.append("|---" * lines[0].count(" | ") + "|---|")
    lines += [f"| {row.title} | {row.value} | " + " | ".join(cells) + " |" for row in rows if any(cells := write(row))]
    return "\n".join(lines)


def main() -> None:
    """Print the best epochs, the last ones, and sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("table1", "table2"))
    parser.add_argument("tables", type=Path, nargs="+")
    parser.add_argument("--until", type=int, nargs=len(TASKS), default=[250] * len(TASKS))
    parser.add_argument("--at-least", type=int, default=50)
    parser.add_argument("--models", type=Path)
    options = parser.parse_args()
    rows = collect_rows(options.what, read_trainings(options.tables, options.models, options.at_least), options.until)
    value, tasks = "ε" if options.what == "table1" else "μ̂ = μ̃", [task.title for task in TASKS]
    columns = [title for task in tasks for title in (f"{task}, paper", "ours")]
    print(write_table("best epoch", [value, *columns], rows, write_best), end="\n\n")
    print(write_table(f"last {LAST} epochs; model", [value, *tasks], rows, write_last), end="\n\n")
    title = f"training volumes inside bounds, last {LAST} epochs, model; size ratio"
    print(write_table(title, [value, *tasks], rows, write_sizes))


if __name__ == "__main__":
    main()
