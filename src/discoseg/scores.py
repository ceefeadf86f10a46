"""How well an epoch did: Dice, size and bounds of every volume, and their summary."""

from collections.abc import Sequence

import numpy as np
import torch

from discoseg.admm import Prior
from discoseg.metrics import dice_by_volume, voxels_by_volume
from discoseg.slices import Slices
from discoseg.weak.examples import Example


def score_epoch(
    probability: torch.Tensor, slices: Slices, examples: Sequence[Example], *, prefix: str
) -> dict[str, float]:
    """Return the epoch's row for one set of volumes: means over them, keys starting with ``prefix``.

    ``probability`` (N, H, W). Dice and the ratio of predicted to true size need masks, the share of volumes inside
    their bounds needs bounds, and each is left out where none has them.
    """
    cases = score_cases(probability, slices, examples)
    row: dict[str, float] = {}
    known = np.array([example.truth is not None for example in examples])
    if known.any():
        row[f"{prefix}_dice"] = float(np.mean([case["dice"] for case in cases if "dice" in case]))
        ratio = [case["size_vox"] / case["true_vox"] for case in cases if case.get("true_vox", 0) > 0]
        if ratio:
            row[f"{prefix}_size_ratio"], row[f"{prefix}_size_ratio_std"] = float(np.mean(ratio)), float(np.std(ratio))
    inside = [case["low_vox"] <= case["size_vox"] <= case["high_vox"] for case in cases if "low_vox" in case]
    if inside:
        row[f"{prefix}_inside_bounds"] = float(np.mean(inside))
    return row


def score_proposals(priors: Sequence[Prior], slices: Slices, examples: Sequence[Example]) -> dict[str, float]:
    """Return the mean Dice of each prior's proposals over the volumes with masks; nothing where there are none."""
    known = np.array([example.truth is not None for example in examples])
    if not known.any():
        return {}
    dice = {p.name: dice_by_volume(p.proposal, slices.truth, slices.volume, len(examples)) for p in priors}
    if not dice:
        return {}
    values = torch.stack(list(dice.values())).cpu().numpy()  # one wait for the device
    return {f"{name}_dice": float(row[known].mean()) for name, row in zip(dice, values, strict=True)}


def score_cases(probability: torch.Tensor, slices: Slices, examples: Sequence[Example]) -> list[dict[str, float]]:
    """Return for every volume its predicted size in voxels and, where known, Dice, true size and bounds."""
    mask = probability >= 0.5
    of_volumes = (
        dice_by_volume(mask, slices.truth, slices.volume, len(examples)),
        voxels_by_volume(mask, slices.volume, len(examples)),
        voxels_by_volume(slices.truth, slices.volume, len(examples)),
    )
    dice, sizes, truths = torch.stack([values.double() for values in of_volumes]).tolist()  # one wait for the device
    cases: list[dict[str, float]] = []
    for index, example in enumerate(examples):
        case: dict[str, float] = {"size_vox": int(sizes[index])}
        if example.truth is not None:
            case |= {"dice": dice[index], "true_vox": int(truths[index])}
        if example.bounds is not None:
            case |= {"low_vox": example.bounds.low_vox, "high_vox": example.bounds.high_vox}
        cases.append(case)
    return cases
