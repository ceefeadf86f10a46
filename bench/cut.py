"""Time PottsGrid.cut against PyMaxflow and others on the same instances, one thread, and compare energies.

    python bench/cut.py                         phantoms: trains once (minutes), then a quarter of an hour
    DISCOSEG_DATA=DIR python bench/cut.py       the same and ACDC
    python bench/cut.py --only instances --csv rows.csv

The instances are states of real trainings (see states.py), each cut with several strengths and sigmas beside the one
it was trained with. Processor time of the thread is measured, the best of --repeats runs, the solvers in turn. Both
get their weights ready-made; PyMaxflow builds its graph from them, which is part of its time. Speed is reported
against its bars; only a wrong energy makes the exit status 1.
"""

import argparse
import csv
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from instances import NEIGHBOURS, Instance, Row, choose_instances, compare
from memory import compare_memory
from rivals import RIVALS
from scaling import measure_sizes, measure_threads
from states import Volume, trained_volumes

TOLERANCE = 1e-9  # of energies, relative to the sum of all costs' sizes
BARS = {6: 8.0, 26: 10.0}  # PyMaxflow's time over ours, in total and on average
PARTS = ("instances", "memory", "threads", "sizes", "rivals")


def choose_volumes(volumes: Sequence[Volume]) -> list[Volume]:
    """All that honour seeds, and every other full volume: those take PyMaxflow up to half a minute each."""
    full = [volume for volume in volumes if volume.seeds is None]
    return [volume for volume in volumes if volume.seeds is not None] + full[::2]


def bench_instances(volumes: Sequence[Volume], *, each: int, repeats: int, show: bool) -> list[Row]:
    """Cut all instances by both solvers."""
    rows = []
    if show:
        print(
            "instance                       state   K  sigma strength    free  PyMaxflow ms   ours ms  ratio difference"
        )
    for instance in choose_instances(volumes, each):
        row = compare(instance, repeats)
        rows.append(row)
        if show:
            print(
                f"{row.name:30} {row.stage:6} {row.neighbours:2} {row.sigma:6} {row.strength:8} {row.free:7}"
                f" {1e3 * row.theirs_s:13.1f} {1e3 * row.ours_s:9.1f} {row.ratio:6.1f} {row.difference:10.1e}",
                flush=True,
            )
    return rows


def print_summary(rows: Sequence[Row]) -> None:
    """Print, for each neighbourhood, how PyMaxflow's time compares with ours."""
    print("\n| neighbours | cut | instances | total | mean | median | least | slower | worst energy difference |")
    print("|---|---|---|---|---|---|---|---|---|")
    for neighbours, bar in BARS.items():
        here = [row for row in rows if row.neighbours == neighbours]
        seeded = [row for row in here if row.name.endswith("seeds")]
        full = [row for row in here if not row.one_sign and row not in seeded]
        parts = {
            "all": here,
            "all but costs of one sign": [*seeded, *full],
            "unknown region": seeded,
            "full volume, costs of both signs": full,
        }
        for name, part in parts.items():
            if not part:
                continue
            ratios = np.array([row.ratio for row in part])
            total = sum(row.theirs_s for row in part) / sum(row.ours_s for row in part)
            worst = max(abs(row.difference) for row in part)
            met = ["", ""]
            if name.startswith("all"):
                met = [f" ({'' if value >= bar else 'NOT '}met: {bar:g}×)" for value in (total, ratios.mean())]
            print(
                f"| {neighbours} | {name} | {len(part)} | {total:.1f}×{met[0]} | {ratios.mean():.1f}×{met[1]}"
                f" | {np.median(ratios):.1f}× | {ratios.min():.2f}× | {(ratios < 1).sum()} | {worst:.0e} |"
            )
    differing = sum(row.differing > 0 for row in rows)
    print(f"\nMasks differ from PyMaxflow's in {differing} of {len(rows)} instances.")


def bench_rivals(volumes: Sequence[Volume], repeats: int) -> bool:
    """Print a table of a few instances cut by every library; say whether all energies agree."""
    print("\n| instance | state | K | sigma | strength | ours ms | " + " | ".join(f"{n} ms" for n in RIVALS) + " |")
    print("|---|---|---|---|---|---|" + "---|" * len(RIVALS))
    exact = True
    seeded = [volume for volume in volumes if volume.seeds is not None]
    chosen = list(choose_instances(seeded[:: max(1, len(seeded) // 2)], 1))
    full = next(volume for volume in volumes if volume.seeds is None)
    chosen += [Instance(full, "late", neighbours, 0.05, 1.0) for neighbours in NEIGHBOURS]
    for instance in chosen:
        if instance.stage == "early":
            continue
        times = []
        for cut in RIVALS.values():
            row = compare(instance, repeats, cut)
            exact &= abs(row.difference) < 1e-6  # the others round to their own integers
            times.append(row.theirs_s)
        print(
            f"| {row.name} | {row.stage} | {row.neighbours} | {row.sigma} | {row.strength} | {1e3 * row.ours_s:.1f} | "
            + " | ".join(f"{1e3 * seconds:.0f}" for seconds in times)
            + " |",
            flush=True,
        )
    return exact


def main() -> int:
    parser = argparse.ArgumentParser(description="time PottsGrid.cut against PyMaxflow and others")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to run")
    parser.add_argument("--each", type=int, default=3, help="strengths and sigmas for each state and neighbourhood")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each solver, of which the best counts")
    parser.add_argument("--rows", action="store_true", help="print every instance")
    parser.add_argument("--csv", type=Path, help="write every instance to this file")
    parser.add_argument(
        "--largest", type=float, default=1e7, help="voxels of the largest volume; 26 neighbours: a tenth"
    )
    arguments = parser.parse_args()
    data = os.environ.get("DISCOSEG_DATA")
    volumes = choose_volumes(list(trained_volumes(Path(data) if data else None)))
    exact = True
    if "instances" in arguments.only:
        rows = bench_instances(volumes, each=arguments.each, repeats=arguments.repeats, show=arguments.rows)
        print_summary(rows)
        exact &= all(abs(row.difference) < TOLERANCE for row in rows)
        if arguments.csv:
            with arguments.csv.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([Row._fields, *rows])
    if "memory" in arguments.only:
        compare_memory(volumes)
    if "threads" in arguments.only:
        measure_threads(volumes)
    if "sizes" in arguments.only:
        measure_sizes(volumes, arguments.largest)
    if "rivals" in arguments.only:
        exact &= bench_rivals(volumes, 1)
    if not exact:
        print("energies differ", file=sys.stderr)
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
