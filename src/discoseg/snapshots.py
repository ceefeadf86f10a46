"""Slices of a few training cases that show how a training goes: image, truth, seeds, proposals, probability."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from discoseg.admm import Prior
from discoseg.weak.examples import Example

MOST_CASES = 4  # of which slices are kept: the first ones


def snapshot_due(epoch: int, epochs: int) -> bool:
    """Say whether slices are kept after this epoch: after 1, 2, 5, 10, 20, 50, … and the last."""
    return epoch == epochs or str(epoch).rstrip("0") in ("1", "2", "5")


def snapshot_slices(
    training: Sequence[Example], numbers: Sequence[int], probability: torch.Tensor, priors: Sequence[Prior]
) -> dict[str, NDArray[Any]]:
    """Return a slice of those examples that are among the first training cases: see `RunFolder.write_snapshot`.

    ``numbers`` are the examples' among all cases; ``probability`` (K, N, H, W) of their slices.
    """
    arrays: dict[str, NDArray[Any]] = {}
    start = 0
    for index, example in zip(numbers, training, strict=True):
        if index < MOST_CASES:
            shown = middle_slice(example)
            arrays[f"{index}.image"] = np.round(example.image[shown, 0] * 255).astype(np.uint8)
            arrays[f"{index}.seeds"] = example.seeds[shown]
            levels = (probability[:, start + shown] * 255).round().to(torch.uint8).cpu().numpy()
            arrays[f"{index}.probability"] = levels[0] if len(levels) == 1 else levels
            if example.truth is not None:
                arrays[f"{index}.truth"] = example.truth[shown]
            for prior in priors:
                masks = (prior.doubled[:, start + shown] == 2).cpu().numpy()  # (K, H, W)
                labels = np.arange(1, 1 + len(masks), dtype=np.int8)
                arrays[f"{index}.{prior.name}"] = np.tensordot(labels, masks.astype(np.int8), axes=1)
        start += len(example.seeds)
    return arrays


def middle_slice(example: Example) -> int:
    """Return the number of the slice with the most foreground, by the truth where there is one, else by the seeds."""
    labels = example.seeds if example.truth is None else example.truth
    return int((labels > 0).sum(axis=(1, 2)).argmax())
