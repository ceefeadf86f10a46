"""How well do the scores of `discoseg next` find the cases that are worst off? Runs whose training cases have masks.

    python bench/next_runs.py RUN...

An annotator who corrects cases in the order of a score makes them right one by one: a corrected case has a Dice of 1,
the others keep that of the network's mask. Printed is, for each score, the rank correlation with the Dice, and the mean
Dice of the dataset when a share of its cases is corrected, beside a random order (its expectation) and the best one,
which needs the masks. Nothing is trained anew.
"""

import argparse
import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

SHARES = (0.05, 0.1, 0.2, 0.5)

Measures = dict[str, float]


def _mean(key: str) -> Callable[[Measures], float]:
    return lambda row: float(np.mean([row[f"{key}_{name}"] for name in ("crf", "size") if f"{key}_{name}" in row]))


SCORES: dict[str, Callable[[Measures], float]] = {
    "`gap`: the score": _mean("gap"),
    "`doubt`": lambda row: row["doubt"],
    "`primal`": _mean("primal"),
    "`differ`": _mean("differ"),
    "`unstable`": _mean("unstable"),
    "`entropy`": lambda row: row["entropy"],
}


def main() -> None:
    """Print a table for each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    for run in parser.parse_args().runs:
        rows = read_cases(run)
        dice = np.array([row["dice"] for row in rows])
        print(f"\n{run.name}: {len(rows)} training cases, 3D Dice {dice.mean():.3f} ± {dice.std():.3f}")
        print("| corrected first | rank correlation | " + " | ".join(f"{share:.0%}" for share in SHARES) + " |")
        print("|---|---|" + "---|" * len(SHARES))
        counts = [round(share * len(dice)) for share in SHARES]
        print_row("random cases", None, [dice.mean() + (1 - dice.mean()) * count / len(dice) for count in counts])
        for name, score in SCORES.items():
            values = np.array([score(row) for row in rows])
            print_row(name, float(spearmanr(values, dice).statistic), corrected(dice, values, counts))
        print_row("the lowest Dice, which needs the masks", -1.0, corrected(dice, -dice, counts))


def read_cases(run: Path) -> list[Measures]:
    """Return what next.csv and cases.csv say of each training case that has voxels left to annotate."""
    with (run / "next.csv").open(encoding="utf-8") as file:
        named = {row["case"]: row for row in csv.DictReader(file)}
    rows = []
    with (run / "cases.csv").open(encoding="utf-8") as file:
        for case in csv.DictReader(file):
            if case["split"] == "training" and float(named[case["case"]]["open_vox"]):
                numbers = {**named[case["case"]], "dice": case["dice"]}
                rows.append({key: float(value) for key, value in numbers.items() if key != "case" and value})
    return rows


def corrected(dice: NDArray[np.float64], scores: NDArray[np.float64], counts: list[int]) -> list[float]:
    """Return the mean Dice when the cases with the highest scores are right, for some numbers of them."""
    order = np.argsort(-scores, kind="stable")
    return [float(np.mean(np.concatenate([np.ones(count), dice[order[count:]]]))) for count in counts]


def print_row(name: str, correlation: float | None, means: list[float]) -> None:
    """Print a row of the table."""
    said = "" if correlation is None else f"{correlation:+.2f}"
    print(f"| {name} | {said} | " + " | ".join(f"{mean:.3f}" for mean in means) + " |")


if __name__ == "__main__":
    main()
