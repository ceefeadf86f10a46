"""What the network made of cases after the last epoch: a slice of the best, the worst, and some between."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from discoseg.data.files import write_atomically
from discoseg.scores import label_map
from discoseg.snapshots import middle_slice
from discoseg.thinning import pick_cases
from discoseg.weak.examples import Example

CASES = 24
"""How many cases of training and of validation are kept."""


class Scored(NamedTuple):
    """A split as a rank knows it: its own examples, their ``numbers`` among all, and their probability (K, N, H, W)."""

    examples: Sequence[Example]
    numbers: Sequence[int]
    probability: torch.Tensor | None


def contour_slices(
    rows: Sequence[Mapping[str, Any]], splits: Mapping[str, Scored]
) -> tuple[list[tuple[str, str]], dict[str, NDArray[Any]]]:
    """Choose cases of each split by their Dice; return their names and splits, and the slices of those that are here.

    ``rows`` are those of cases.csv, of all ranks. The slices are, for the k-th of the chosen, ``k.image`` uint8 (H, W),
    ``k.mask`` uint8, labels 0 to K, and ``k.truth`` int8 where there is one.
    """
    chosen: list[tuple[str, str]] = []
    arrays: dict[str, NDArray[Any]] = {}
    for split, (examples, numbers, probability) in splits.items():
        scores = [row for row in rows if row["split"] == split]
        starts = np.cumsum([0, *(len(example.seeds) for example in examples)])
        here = {number: index for index, number in enumerate(numbers)}
        ranked = sorted(range(len(scores)), key=lambda index: -scores[index].get("dice", 0.0))
        for place in pick_cases(len(ranked), CASES):
            index = here.get(ranked[place])
            if index is not None and probability is not None:
                example, shown = examples[index], middle_slice(examples[index])
                there = int(starts[index]) + shown
                arrays[f"{len(chosen)}.image"] = np.round(example.image[shown, 0] * 255).astype(np.uint8)
                arrays[f"{len(chosen)}.mask"] = label_map(probability[:, there : there + 1])[0].cpu().numpy()
                if example.truth is not None:
                    arrays[f"{len(chosen)}.truth"] = example.truth[shown]
            chosen.append((scores[ranked[place]]["case"], split))
    return chosen, arrays


def write_contours(path: Path, chosen: Sequence[tuple[str, str]], slices: Mapping[str, NDArray[Any]]) -> None:
    """Write an .npz file of the chosen cases' slices (:func:`contour_slices`), of their ``names`` and ``splits``."""
    names, splits = (np.array([pair[index] for pair in chosen]) for index in (0, 1))
    with write_atomically(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, names=names, splits=splits, **slices)
