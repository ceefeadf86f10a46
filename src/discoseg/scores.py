"""How well an epoch did: Dice, size and bounds of every volume, and their summary."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch

from discoseg.admm import Prior
from discoseg.metrics import count_overlap, dice_by_volume
from discoseg.ranks import ALONE, Ranks
from discoseg.slices import Slices
from discoseg.weak.examples import Example

_SLICES_AT_ONCE = {"cuda": 256, "cpu": 16}


def score_epoch(
    probability: torch.Tensor, slices: Slices, examples: Sequence[Example], *, prefix: str
) -> dict[str, float]:
    """Return the epoch's row for one set of volumes: means over them, keys starting with ``prefix``.

    ``probability`` (K, N, H, W). Dice and the ratio of predicted to true size need masks, the share of volumes inside
    their bounds needs bounds, and each is left out where none has them. With several structures these are means over
    them, and the Dice and ratio of each follow under its name.
    """
    return summarise_cases(score_cases(probability, slices, examples), slices.structures, prefix=prefix)


def summarise_cases(
    cases: Sequence[Mapping[str, float]], structures: Sequence[str], *, prefix: str
) -> dict[str, float]:
    """Return the epoch's row for the scores of some volumes (:func:`score_cases`): see :func:`score_epoch`."""
    row: dict[str, float] = {}
    endings = _endings(structures)
    dice = {end: [case[f"dice{end}"] for case in cases if f"dice{end}" in case] for end in endings}
    sizes = {end: [(c[f"size_vox{end}"], c.get(f"true_vox{end}", 0)) for c in cases] for end in endings}
    ratio = {end: [size / true for size, true in pairs if true > 0] for end, pairs in sizes.items()}
    inside = [
        case[f"low_vox{end}"] <= case[f"size_vox{end}"] <= case[f"high_vox{end}"]
        for case in cases
        for end in endings
        if f"low_vox{end}" in case
    ]
    if overlaps := list(chain(*dice.values())):
        row[f"{prefix}_dice"] = float(np.mean(overlaps))
    if ratios := list(chain(*ratio.values())):
        row[f"{prefix}_size_ratio"], row[f"{prefix}_size_ratio_std"] = float(np.mean(ratios)), float(np.std(ratios))
    if inside:
        row[f"{prefix}_inside_bounds"] = float(np.mean(inside))
    for end in endings if len(endings) > 1 else ():
        row |= {f"{prefix}_dice{end}": float(np.mean(dice[end]))} if dice[end] else {}
        row |= {f"{prefix}_size_ratio{end}": float(np.mean(ratio[end]))} if ratio[end] else {}
    return row


def score_proposals(
    priors: Sequence[Prior],
    slices: Slices,
    examples: Sequence[Example],
    ranks: Ranks = ALONE,
    numbers: Sequence[int] | None = None,
) -> dict[str, float]:
    """Return the mean Dice of each prior's proposals over structures and volumes with masks; nothing without any.

    The means are over the volumes of all ``ranks``, among which these examples have the ``numbers``.
    """
    has_truth = [example.truth is not None for example in examples]
    if not priors or not any(chain(*ranks.gather(has_truth))):
        return {}
    counts = [_count(partial(_proposed, prior), slices, examples) for prior in priors]
    values = dice_by_volume(torch.stack(counts)).cpu().numpy()  # (T, K, V), one wait for the device
    if ranks.several and numbers is not None:
        values = np.stack(ranks.collect(np.moveaxis(values, 2, 0).tolist(), numbers), axis=-1).astype(np.float32)
        has_truth = ranks.collect(has_truth, numbers)
    known = np.array(has_truth)
    return {f"{prior.name}_dice": float(row[:, known].mean()) for prior, row in zip(priors, values, strict=True)}


def score_cases(probability: torch.Tensor, slices: Slices, examples: Sequence[Example]) -> list[dict[str, float]]:
    """Return for every volume its predicted size in voxels and, where known, Dice, true size and bounds.

    With several structures, each has these under its name, and ``dice`` is their mean.
    """
    numbers = torch.arange(1, 1 + len(probability), device=probability.device).view(-1, 1, 1, 1)
    counts = _count(lambda part: label_map(probability[:, part]) == numbers, slices, examples)
    values = torch.cat([dice_by_volume(counts)[:, None].double(), counts[:, 1:]], dim=1).tolist()  # one wait
    endings = _endings(slices.structures)
    cases: list[dict[str, float]] = []
    for index, example in enumerate(examples):
        case: dict[str, float] = {}
        for number, (end, (dice, sizes, truths)) in enumerate(zip(endings, values, strict=True)):
            case[f"size_vox{end}"] = int(sizes[index])
            if example.truth is not None:
                case |= {f"dice{end}": dice[index], f"true_vox{end}": int(truths[index])}
            if example.bounds is not None:
                bounds = example.bounds[number]
                case |= {f"low_vox{end}": bounds.low_vox, f"high_vox{end}": bounds.high_vox}
        if example.truth is not None and len(endings) > 1:
            case = {"dice": float(np.mean([case[f"dice{end}"] for end in endings])), **case}
        cases.append(case)
    return cases


def label_map(probability: torch.Tensor) -> torch.Tensor:
    """Return the label of each voxel, (N, H, W) uint8: 0, or k where the k-th structure is the most probable.

    ``probability`` (K, N, H, W). One structure wins from ½ on; of several equal ones the first does, background before
    all.
    """
    if len(probability) == 1:
        return (probability[0] >= 0.5).to(torch.uint8)
    background = 1 - probability.sum(dim=0, keepdim=True)
    return torch.cat([background, probability]).argmax(dim=0).to(torch.uint8)


def _proposed(prior: Prior, part: slice) -> torch.Tensor:
    return prior.doubled[:, part] == 2


def _count(masks: Callable[[slice], torch.Tensor], slices: Slices, examples: Sequence[Example]) -> torch.Tensor:
    """Count the voxels (K, 3, V) in common, found and true of each structure in each volume (`count_overlap`).

    ``masks`` returns the structures' masks (K, B, H, W) bool of some slices: scratch memory must not grow with the
    dataset, nor the time that a slice takes.
    """
    in_slices = slices.volume.new_zeros(len(slices.structures), 3, len(slices))
    at_once = _SLICES_AT_ONCE[slices.truth.device.type]
    for start in range(0, len(slices), at_once):
        part = slice(start, start + at_once)
        for number, mask in enumerate(masks(part)):
            in_slices[number, :, part] = count_overlap(mask, slices.truth[part] == number + 1)
    counts = slices.volume.new_zeros(len(slices.structures), 3, len(examples))
    return counts.index_add_(2, slices.volume, in_slices)


def _endings(structures: Sequence[str]) -> list[str]:
    """Return what columns of each structure end in: nothing, where there is only one."""
    return [""] if len(structures) == 1 else [f"_{name}" for name in structures]


def case_rows(split: str, examples: Sequence[Example], scores: Sequence[Mapping[str, float]]) -> list[dict[str, Any]]:
    """Return rows of cases.csv: a split's examples, their scores, and the millilitres of one of their voxels."""
    rows = []
    for example, score in zip(examples, scores, strict=True):
        voxel_ml = float(f"{np.prod(example.spacing_mm) / 1000:.9g}")
        rows.append({"case": example.name, "split": split, **score, "voxel_ml": voxel_ml})
    return rows
