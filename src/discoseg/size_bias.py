"""One number a structure that makes a network's masks as large as its training volumes are known to be.

Where a network is unsure it says "background", which is most of every slice: its masks come out too small, and more so
in volumes that it was not trained on. How much is told by the training volumes, whose size bounds are known. A bias of
the structure's logit, the same for all voxels of all volumes, puts it right; it becomes part of the network's weights.
"""

from itertools import accumulate

import torch

from discoseg.material import Material

_MOST, _STEP = 6.0, 0.05  # biases that are tried: −6 to 6
_SWEEPS = 3  # over the structures: each one's bias changes what is left for the others
_LEAST = 1e-6  # probabilities are taken to be this far from 0 and 1
_FAR = 0.7  # logarithm, a factor of two: a volume that is farther out counts no more, or one would move all others


@torch.no_grad()
def find_biases(probability: torch.Tensor, material: Material) -> torch.Tensor:
    """Return what to add to the logit of each structure, (K,) float64 on the CPU.

    ``probability`` (K, N, H, W) of all training slices. Of the biases with which the volumes are least outside their
    bounds, by the mean absolute logarithm, a factor of two at most, the one that is next to 0 is taken. Volumes without
    the structure say nothing. All ranks return the same.
    """
    structures = len(probability)
    biases = torch.zeros(structures, dtype=torch.float64)
    for _ in range(_SWEEPS if structures > 1 else 1):
        for number in range(structures):
            cost = material.ranks.sum(_costs(probability, material, biases, number))
            tried = _tried()
            best = tried[cost <= cost.min() + 1e-9]
            biases[number] = (biases[number] + best[best.abs().argmin()]).clamp(-_MOST, _MOST)
    return biases


def _tried() -> torch.Tensor:
    """Return the biases that are tried, from −6 up."""
    count = round(2 * _MOST / _STEP)
    return torch.arange(-(count // 2), count // 2 + 1, dtype=torch.float64) * _STEP


def _costs(probability: torch.Tensor, material: Material, biases: torch.Tensor, number: int) -> torch.Tensor:
    """Return how far the volumes are outside the bounds of structure ``number``, by what is added to its bias, (B,)."""
    tried, slices = _tried(), material.slices
    low, high = (bounds[number].double().cpu().clamp(min=1).log() for bounds in (slices.low, slices.high))
    total = torch.zeros(len(tried), dtype=torch.float64)
    stops = [0, *accumulate(len(example.seeds) for example in material.training)]
    for volume, start in enumerate(stops[:-1]):
        if slices.high[number, volume] < 1:
            continue
        counts = torch.zeros(len(tried), dtype=torch.int64)
        for place in range(start, stops[volume + 1]):
            margin = _margin(probability[:, place], biases, number)
            # A voxel has the structure from the bias −margin on.
            from_bias = ((_MOST - margin) / _STEP).ceil().clamp(min=0)
            reached = from_bias[from_bias < len(tried)].to(torch.int64)
            counts += torch.bincount(reached, minlength=len(tried)).cpu()
        size = counts.cumsum(0).clamp(min=1).double().log()
        outside = (low[volume] - size).clamp(min=0) + (size - high[volume]).clamp(min=0)
        total += outside.clamp(max=_FAR)
    return total


def _margin(probability: torch.Tensor, biases: torch.Tensor, number: int) -> torch.Tensor:
    """Return by how much a structure's logit is above the largest other one, (H, W), from probabilities (K, H, W)."""
    background = 1 - probability.sum(dim=0, keepdim=True)
    logs = torch.cat([background, probability]).clamp(_LEAST, 1).log()
    logs[1:] += biases.to(logs)[:, None, None]
    others = torch.cat([logs[: 1 + number], logs[2 + number :]]).amax(dim=0)
    return logs[1 + number] - others
