"""Plot validation Dice and size ratio by epoch from the metrics.csv files of runs.

python docs/plot_curves.py docs/results/acdc-lv-*.csv --eps 0.1 --out docs/acdc-lv.png
"""

import argparse
import csv
from pathlib import Path

from matplotlib.figure import Figure


def main() -> None:
    """Read the files named on the command line and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--eps", type=float, help="size bounds to draw, as a fraction")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    dice, ratio = figure.subplots(1, 2)
    for path in options.files:
        with path.open(encoding="utf-8") as file:
            rows = [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(file)]
        epochs = [row["epoch"] for row in rows]
        dice.plot(epochs, [row["val_dice"] for row in rows], label=path.stem.removeprefix("acdc-lv-"))
        mean = [row["val_size_ratio"] for row in rows]
        ratio.plot(epochs, mean)
        spread = [row["val_size_ratio_std"] for row in rows]
        low, high = zip(*((m - s, m + s) for m, s in zip(mean, spread, strict=True)), strict=True)
        ratio.fill_between(epochs, low, high, alpha=0.12)
    for bound in () if options.eps is None else (1 - options.eps, 1 + options.eps):
        ratio.axhline(bound, color="0.4", linestyle="--", linewidth=0.8)
    dice.set(xlabel="epoch", ylabel="3D Dice, validation", ylim=(0.6, 1))
    ratio.set(xlabel="epoch", ylabel="predicted / true size, validation", ylim=(0.4, 2))
    dice.legend(fontsize=8)
    figure.savefig(options.out, dpi=110)


if __name__ == "__main__":
    main()
