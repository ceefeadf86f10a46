"""Time an expansion in four classes against the same one by PyMaxflow's cuts, one thread, and compare energies.

    python bench/expansion.py                       a phantom of 256×256 slices
    DISCOSEG_DATA=DIR python bench/expansion.py     ACDC's first volume

The costs are −s for probabilities s as of a network that errs: smooth noise on the true labels. Both begin with the
cheapest class of each voxel and take the classes in the same order until a round changes nothing. Both get their
weights ready-made; PyMaxflow builds a graph for each move, which is part of its time. Processor time of the thread,
ours the best of --repeats runs. Only a worse energy makes the exit status 1.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from discoseg.data.layouts import find_dataset
from discoseg.data.prepare import Grid, common_orientation, prepare_case
from discoseg.discrete import PottsGrid, energy_of_labels, label_by_expansion
from pymaxflow_moves import contrast_by_direction, expand_by_pymaxflow
from states import choose_root

CLASSES = 4
SIGMA = 0.05
TOLERANCE = 1e-5  # of energies, relative to what the moves gain: of equally good moves one may lead elsewhere


def noisy_costs(label: NDArray[np.uint8], seed: int) -> NDArray[np.float32]:
    """Return −s, (C, z, y, x), for the softmax s of smooth noise that leans towards the true labels."""
    rng = np.random.default_rng(seed)
    logits = np.stack([gaussian_filter(rng.normal(size=label.shape), (0.5, 3, 3)) for _ in range(CLASSES)])
    logits *= 1.5 / logits.std()
    logits += 2.0 * (label == np.arange(CLASSES)[:, None, None, None])
    odds = np.exp(logits - logits.max(axis=0))
    return np.asarray(-odds / odds.sum(axis=0), dtype=np.float32)


def main() -> int:
    parser = argparse.ArgumentParser(description="time label_by_expansion against PyMaxflow")
    parser.add_argument("--repeats", type=int, default=3, help="runs of ours, of which the best counts")
    parser.add_argument("--neighbours", type=int, nargs="+", default=[6, 26])
    parser.add_argument("--strengths", type=float, nargs="+", default=[0.1, 0.5])
    parser.add_argument("--ours", action="store_true", help="leave PyMaxflow out")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    found = find_dataset(choose_root(folder))
    prepared = prepare_case(found.cases[0], Grid(orientation=common_orientation(found.cases[:1])), folder)
    image, label, spacing_mm = prepared.image[:, 0], prepared.label, prepared.spacing_mm
    assert label is not None
    costs = noisy_costs(label, seed=0)
    start = costs.argmin(axis=0).astype(np.int8)
    print(f"{prepared.case.name}, {image.shape}, {CLASSES} classes, sigma {SIGMA}")
    print(
        "| K | strength | cycles | accepted moves | voxels changed | ours s | PyMaxflow s | ratio | energy difference |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    exact = True
    for neighbours in arguments.neighbours:
        grid = PottsGrid(image, spacing_mm=spacing_mm, sigma=SIGMA, neighbours=neighbours)
        weights, offsets = contrast_by_direction(image, spacing_mm=spacing_mm, neighbours=neighbours, sigma=SIGMA)
        for strength in arguments.strengths:
            ours_s = np.inf
            for _ in range(arguments.repeats):
                begun = time.thread_time()
                ours = label_by_expansion(grid, costs, strength=strength)
                ours_s = min(ours_s, time.thread_time() - begun)
            changed = np.count_nonzero(ours.labels != start)
            row = f"| {neighbours} | {strength} | {ours.cycles} | {len(ours.energies) - 1} | {changed}"
            if arguments.ours:
                print(f"{row} | {ours_s:.2f} | | | |", flush=True)
                continue
            gain = ours.energies[0] - ours.energy
            metric = strength * (1 - np.eye(CLASSES))
            begun = time.thread_time()
            theirs = expand_by_pymaxflow(
                start, costs.astype(np.float64), weights, offsets, metric, least_gain=1e-9 * gain
            )
            theirs_s = time.thread_time() - begun
            difference = (ours.energy - energy_of_labels(grid, theirs, costs, strength=strength)) / gain
            exact &= difference < TOLERANCE
            print(f"{row} | {ours_s:.2f} | {theirs_s:.1f} | {theirs_s / ours_s:.0f}× | {difference:.0e} |", flush=True)
    if not exact:
        print("energies differ", file=sys.stderr)
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
