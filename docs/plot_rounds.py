"""Plot validation Dice by epoch: two rounds, one round, and full masks.

python docs/plot_rounds.py docs/results/ours-two-rounds.csv docs/results/ours-100-epochs.csv --out docs/rounds.png
"""

import argparse
import csv
from pathlib import Path

from matplotlib.figure import Figure

TASKS = {"lv": "left ventricle", "rv": "right ventricle", "prostate": "prostate"}
ROUND = 60  # epochs


def read(path: Path) -> dict[str, list[float]]:
    """Return the validation Dice of each training in a file, epoch by epoch."""
    found: dict[str, list[float]] = {}
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["training"], []).append(float(row["val_dice"]))
    return found


def main() -> None:
    """Read the two files named on the command line and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("two", type=Path)
    parser.add_argument("one", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    two, one = read(options.two), read(options.one)
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    for axes, (task, title) in zip(figure.subplots(1, 3), TASKS.items(), strict=True):
        weak, full = f"ours-{task}-crf+size-eps10-seed0", f"ours-{task}-full-seed0"
        for label, values, colour in (
            ("full masks", one[full], "0.55"),
            ("crf+size, one round", one[weak], "#d55e00"),
            ("crf+size, two rounds", two[weak], "#0072b2"),
        ):
            axes.plot(range(1, len(values) + 1), values, label=label, color=colour, linewidth=1.2)
        axes.axvline(ROUND + 0.5, color="0.4", linestyle="--", linewidth=0.8)
        axes.set(title=title, xlabel="epoch", ylabel="3D Dice, validation", ylim=(0.6, 1))
    axes.legend(fontsize=8, loc="lower right")
    figure.savefig(options.out, dpi=110)


if __name__ == "__main__":
    main()
