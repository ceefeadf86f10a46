"""What does a boundary prior do to a mask that is right? Cuts of true masks, and where a border is cheapest.

    python bench/prior.py DATASET --label RV --seeds SEEDS --split SPLIT.json --preset paper-acdc-rv

A network that has found a structure exactly, s = y, gets back a CRF proposal that is smoother, and mostly smaller: the
minimum of the prior and ½ − s. How much of the mask is left of it shows, before any training, what the prior alone
would make of the structure. The first table has the mean 3D Dice of such cuts and their size relative to the mask's, of
training volumes that have masks; multipliers, which can make up for it, are 0.

Multipliers grow while the network and its proposals differ, for any λ. What can hold a size are then its bounds, or a
border that costs less than those beside it. The second table moves the true contours inwards or outwards by some pixels
of their slices: the border's weight relative to the true one's, and where a contour comes to that slides from the true
one for as long as that makes it cheaper: to which size, and in how many volumes it does not stop within the moves.

Intensities, on which σ depends, are those of the preset's grid or of other percentiles.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt

from discoseg.config import CrfConfig
from discoseg.presets import load_config
from discoseg.regions import contrast_grid, open_regions
from discoseg.weak.examples import Example
from discoseg.workflow import gather_inputs

Mask = NDArray[np.bool_]


def true_mask(example: Example) -> Mask:
    """Return the true mask, (z, y, x)."""
    assert example.truth is not None
    return np.equal(example.truth, 1)


def cut_truth(examples: Sequence[Example], crf: CrfConfig) -> tuple[float, float]:
    """Return the mean Dice and the mean size ratio of cuts of the examples' true masks; seeds are honoured."""
    dice, ratio = [], []
    for example, region in zip(examples, open_regions(examples, crf, honour_seeds=True), strict=True):
        truth, cut = true_mask(example), example.seeds == 1
        if region.box is not None:
            costs = (0.5 - truth[region.box]).astype(np.float32)
            cut[region.box] = region.grid().cut(costs, strength=crf.strength, seeds=region.seeds)
        dice.append(2 * np.count_nonzero(cut & truth) / (np.count_nonzero(cut) + np.count_nonzero(truth)))
        ratio.append(np.count_nonzero(cut) / np.count_nonzero(truth))
    return float(np.mean(dice)), float(np.mean(ratio))


def move_contours(mask: Mask, pixels: int) -> Mask:
    """Return a mask (z, y, x) whose contours have moved outwards, or inwards if negative, by pixels of their slices."""
    moved = mask.copy()
    for before, after in zip(mask, moved, strict=True):
        if before.any():
            after[...] = (
                distance_transform_edt(~before) <= pixels if pixels > 0 else distance_transform_edt(before) > -pixels
            )
    return moved


def weigh_borders(example: Example, masks: Sequence[Mask], crf: CrfConfig) -> list[float]:
    """Return what the borders of some masks of a volume cost, λ = 1."""
    grid = contrast_grid(example.image[:, 0], example.spacing_mm, crf)
    nothing = np.zeros(grid.shape)
    return [grid.energy(mask, nothing, strength=1) for mask in masks]


def print_cuts(
    examples: Sequence[Example], crf: CrfConfig, sigmas: Sequence[float], strengths: Sequence[float]
) -> None:
    """Print Dice and size of cuts, a line for each σ, a column for each λ/μ."""
    print("| σ | " + " | ".join(f"λ/μ = {strength:g}" for strength in strengths) + " |")
    print("|---|" + "---|" * len(strengths))
    for sigma in sigmas:
        priors = [replace(crf, strength=strength, sigma=sigma) for strength in strengths]
        found = ["{:.3f} ({:.2f})".format(*cut_truth(examples, prior)) for prior in priors]
        print(f"| {sigma:g} | " + " | ".join(found) + " |", flush=True)


def slide(weights: Sequence[float], start: int) -> int:
    """Return where the weights are lowest on the way down from ``start``, on its steeper side.

    >>> slide([1, 5, 3, 4, 6], 3), slide([1, 2, 3, 4, 2], 3), slide([1, 5, 3, 4, 6], 1)
    (2, 4, 0)
    """
    at = start
    while (best := min(range(max(0, at - 1), min(len(weights), at + 2)), key=lambda k: (weights[k], k != at))) != at:
        at = best
    return at


def print_moved(examples: Sequence[Example], crf: CrfConfig, sigmas: Sequence[float], moves: Sequence[int]) -> None:
    """Print the weight of moved borders, a line for each σ, a column for each move, and where they slide to."""
    true = moves.index(0)
    moved = [[move_contours(true_mask(example), pixels) for pixels in moves] for example in examples]
    counts = np.array([[np.count_nonzero(mask) for mask in masks] for masks in moved])
    ratios = counts / counts[:, [true]]
    print("| σ | " + " | ".join(f"{pixels:+d} px" for pixels in moves) + " | slides to a size of | does not stop |")
    print("|---|" + "---|" * len(moves) + "---|---|")
    print("| size ratio | " + " | ".join(f"{ratio:.2f}" for ratio in ratios.mean(axis=0)) + " | | |")
    for sigma in sigmas:
        prior = replace(crf, sigma=sigma)
        weights = np.array([weigh_borders(e, masks, prior) for e, masks in zip(examples, moved, strict=True)])
        costly = weights[:, true] > 0  # with a small σ a border may cost nothing
        ends = np.array([slide(list(row), true) for row in weights[costly]], dtype=int)
        sizes = ratios[costly][np.arange(len(ends)), ends]
        stops = (ends > 0) & (ends < len(moves) - 1) & (sizes > 0)  # nothing is left of some
        cells = [f"{value:.2f}" for value in np.median(weights[costly] / weights[costly][:, [true]], axis=0)]
        cells.append(f"{sizes[stops].mean():.2f} ± {sizes[stops].std():.2f}" if stops.any() else "–")
        cells.append(f"{np.count_nonzero(~stops)} of {len(stops)}")
        print(f"| {sigma:g} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--label", required=True)
    parser.add_argument("--seeds", type=Path, required=True)
    parser.add_argument("--split", type=Path)
    parser.add_argument("--preset", default="default", help="whose grid the volumes are brought onto")
    parser.add_argument("--clip-percent", type=float, nargs=2, help="percentiles that become 0 and 1: the preset's")
    parser.add_argument("--every", type=int, default=9, help="one in so many volumes; odd, where phases alternate")
    parser.add_argument("--neighbours", type=int, choices=(6, 8, 18, 26), default=26)
    parser.add_argument("--widen", type=int, default=0, help="pixels by which bright structures are widened")
    parser.add_argument("--sigma", type=float, nargs="+", default=[0.0007, 0.0022, 0.0071, 0.02, 0.05])
    parser.add_argument("--strength", type=float, nargs="+", default=[0.1, 0.3, 1, 3, 10, 100], help="λ/μ")
    parser.add_argument("--moves", type=int, nargs="+", default=[-5, -4, -3, -2, -1, 0, 1, 2], help="pixels, in order")
    options = parser.parse_args()
    if 0 not in options.moves or options.moves != sorted(set(options.moves)):
        parser.error("--moves must be in order, with 0 among them, the true contours")
    config = replace(load_config(options.preset), label=options.label, size_eps=0.1)
    if options.clip_percent is not None:
        config = replace(config, grid=replace(config.grid, clip_percent=tuple(options.clip_percent)))
    sources = {"seeds": options.seeds, "split": options.split, "validation_fraction": 0.2}
    training = gather_inputs(options.dataset, config, **sources).training[:: options.every]
    examples = [e for e in training if e.truth is not None and np.count_nonzero(e.truth == 1)]
    crf = CrfConfig(neighbours=options.neighbours, widen=options.widen)
    print(f"{options.label}: {len(examples)} volumes, {options.neighbours} neighbours; 3D Dice (size ratio) of cuts")
    print_cuts(examples, crf, options.sigma, options.strength)
    print("Moved contours: weight relative to the true border's (median of volumes), and where they slide to")
    print_moved(examples, crf, options.sigma, options.moves)


if __name__ == "__main__":
    main()
