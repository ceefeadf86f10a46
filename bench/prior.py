"""What does a boundary prior do to a mask that is right? Cuts of true masks, for several λ/μ and σ.

    python bench/prior.py DATASET --label RV --seeds SEEDS --split SPLIT.json --preset paper-acdc-rv

A network that has found a structure exactly, s = y, gets back a CRF proposal that is smoother, and mostly smaller: the
minimum of the prior and ½ − s. How much of the mask is left of it shows, before any training, what the prior alone
would make of the structure. Printed are the mean 3D Dice of such cuts and their size relative to the mask's, of
training volumes that have masks; multipliers, which can make up for it, are 0. Intensities, on which σ depends, are
those of the preset's grid.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from discoseg.config import CrfConfig
from discoseg.presets import load_config
from discoseg.regions import open_regions
from discoseg.weak.examples import Example
from discoseg.workflow import gather_inputs


def cut_truth(examples: Sequence[Example], crf: CrfConfig) -> tuple[float, float]:
    """Return the mean Dice and the mean size ratio of cuts of the examples' true masks; seeds are honoured."""
    dice, ratio = [], []
    for example, region in zip(examples, open_regions(examples, crf, honour_seeds=True), strict=True):
        assert example.truth is not None
        truth, cut = example.truth == 1, example.seeds == 1
        if region.box is not None:
            costs = (0.5 - truth[region.box]).astype(np.float32)
            cut[region.box] = region.grid().cut(costs, strength=crf.strength, seeds=region.seeds)
        dice.append(2 * np.count_nonzero(cut & truth) / (np.count_nonzero(cut) + np.count_nonzero(truth)))
        ratio.append(np.count_nonzero(cut) / np.count_nonzero(truth))
    return float(np.mean(dice)), float(np.mean(ratio))


def main() -> None:
    """Print a table, a line for each σ, a column for each λ/μ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--label", required=True)
    parser.add_argument("--seeds", type=Path, required=True)
    parser.add_argument("--split", type=Path)
    parser.add_argument("--preset", default="default", help="whose grid the volumes are brought onto")
    parser.add_argument("--every", type=int, default=9, help="one in so many volumes; odd, where phases alternate")
    parser.add_argument("--neighbours", type=int, choices=(6, 8, 18, 26), default=26)
    parser.add_argument("--sigma", type=float, nargs="+", default=[0.0007, 0.0022, 0.0071, 0.02, 0.05])
    parser.add_argument("--strength", type=float, nargs="+", default=[0.1, 0.3, 1, 3, 10, 100], help="λ/μ")
    options = parser.parse_args()
    config = replace(load_config(options.preset), label=options.label, size_eps=0.1)
    sources = {"seeds": options.seeds, "split": options.split, "validation_fraction": 0.2}
    training = gather_inputs(options.dataset, config, **sources).training[:: options.every]
    examples = [e for e in training if e.truth is not None and np.count_nonzero(e.truth == 1)]
    print(f"{options.label}: {len(examples)} volumes, {options.neighbours} neighbours; 3D Dice (size ratio)")
    print("| σ | " + " | ".join(f"λ/μ = {strength:g}" for strength in options.strength) + " |")
    print("|---|" + "---|" * len(options.strength))
    for sigma in options.sigma:
        found = []
        for strength in options.strength:
            crf = CrfConfig(strength=strength, sigma=sigma, neighbours=options.neighbours)
            found.append("{:.3f} ({:.2f})".format(*cut_truth(examples, crf)))
        print(f"| {sigma:g} | " + " | ".join(found) + " |", flush=True)


if __name__ == "__main__":
    main()
