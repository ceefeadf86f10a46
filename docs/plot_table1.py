"""Plot the first table by epoch, ε = 10 %, every random seed: Dice and size, from our result tables.

    python docs/plot_table1.py docs/results/table1-{ventricles,prostate,margin}.csv --out docs/table1.png

Tasks and methods that the tables have no training of are left out.
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

TASKS = {"lv": "ACDC LV", "rv": "ACDC RV", "prostate": "PROMISE12"}
METHODS = {
    "full": ("full supervision", "#b8860b"),
    "crf+size-eps10": ("CRF + size", "#0173b2"),
    "crf+size-eps10-margin0.05": ("CRF + size, margin 5 %", "#56b4e9"),
    "crf": ("CRF only", "#029e73"),
    "size-eps10": ("size only", "#c44f96"),
    "penalty-eps10": ("penalty", "#d55e00"),
}
Curves = dict[str, list[dict[int, float]]]


def read_curves(paths: Sequence[Path], column: str) -> Curves:
    """Return a column of all trainings, by epoch, one for each random seed, by what the name says before the seed."""
    curves: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for path in paths:
        with path.open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                name, seed = row["training"].rsplit("-seed", 1)
                if row[column]:
                    curves[name][seed][int(row["epoch"])] = float(row[column])
    return {name: list(seeds.values()) for name, seeds in curves.items()}


def plot(axes: Axes, curves: Curves, task: str) -> None:
    """Draw every seed thinly, in the colour of its method, and their mean where all have the epoch."""
    for method, (title, colour) in METHODS.items():
        seeds = curves.get(f"{task}-{method}", [])
        if not seeds:
            continue
        for values in seeds:
            axes.plot(list(values), list(values.values()), color=colour, linewidth=0.6, alpha=0.45)
        epochs = sorted(set.intersection(*(set(values) for values in seeds)))
        means = [sum(values[epoch] for values in seeds) / len(seeds) for epoch in epochs]
        axes.plot(epochs, means, color=colour, linewidth=1.6, label=title)


def main() -> None:
    """Read the tables and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    dice, ratio = (read_curves(options.tables, column) for column in ("val_dice", "train_size_ratio"))
    tasks = [task for task in TASKS if any(name.startswith(f"{task}-") for name in dice)]
    figure = Figure(figsize=(4.4 * len(tasks) + 1, 6.4), layout="constrained")
    above, below = figure.subplots(2, len(tasks), squeeze=False)
    for axes, task in zip(above, tasks, strict=True):
        plot(axes, dice, task)
        axes.set(title=TASKS[task], ylabel="3D Dice, validation", ylim=(0.3, 1))
    for axes, task in zip(below, tasks, strict=True):
        plot(axes, ratio, task)
        axes.set(xlabel="epoch", ylabel="predicted / true size, training", ylim=(0.4, 2))
        for bound in (0.9, 1.1):
            axes.axhline(bound, color="0.3", linestyle="--", linewidth=0.8)
    drawn = {title: line for axes in above for line, title in zip(*axes.get_legend_handles_labels(), strict=True)}
    titles = [title for title, _ in METHODS.values() if title in drawn]
    above[0].legend([drawn[title] for title in titles], titles, fontsize=8, loc="lower right")
    for axes in (*above, *below):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(options.out, dpi=100)


if __name__ == "__main__":
    main()
