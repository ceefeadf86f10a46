"""What the network made of cases after the last epoch: a slice of the best, the worst, and some between."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from discoseg.data.files import write_atomically
from discoseg.run import middle_slice
from discoseg.scores import label_map
from discoseg.thinning import pick_cases
from discoseg.weak.examples import Example

CASES = 24
"""How many cases of training and of validation are kept."""


def write_contours(
    path: Path,
    splits: Mapping[str, tuple[Sequence[Example], Sequence[Mapping[str, float]]]],
    probabilities: Mapping[str, torch.Tensor],
) -> None:
    """Write slices of each split's cases, chosen by their scores' Dice; ``probabilities`` (K, N, H, W) of all slices.

    The .npz file holds ``names`` and ``splits`` and, for case k, ``k.image`` uint8 (H, W), ``k.mask`` uint8, labels 0
    to K, and ``k.truth`` int8 where there is one.
    """
    arrays: dict[str, NDArray[Any]] = {}
    names: list[str] = []
    for split, (examples, scores) in splits.items():
        starts = np.cumsum([0, *(len(example.seeds) for example in examples)])
        ranked = sorted(range(len(examples)), key=lambda index: -scores[index].get("dice", 0.0))
        for place in pick_cases(len(ranked), CASES):
            example, shown = examples[ranked[place]], middle_slice(examples[ranked[place]])
            there = int(starts[ranked[place]]) + shown
            arrays[f"{len(names)}.image"] = np.round(example.image[shown, 0] * 255).astype(np.uint8)
            arrays[f"{len(names)}.mask"] = label_map(probabilities[split][:, there : there + 1])[0].cpu().numpy()
            if example.truth is not None:
                arrays[f"{len(names)}.truth"] = example.truth[shown]
            names.append(example.name)
    kept = [split for split, (examples, _) in splits.items() for _ in pick_cases(len(examples), CASES)]
    with write_atomically(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, names=np.array(names), splits=np.array(kept), **arrays)
