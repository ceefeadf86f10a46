"""A known size, read back into probabilities: log odds shifted by one number, so that their ranking stays."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

_LEAST = np.float32(1e-6)  # probabilities are taken to be this far from 0 and 1


@njit(nogil=True, cache=True)
def shift_to_size(cost: NDArray[np.float32], seeds: NDArray[np.int8], low: int, high: int) -> None:
    """Shift the log odds of probabilities ½ − cost so that about ``low`` to ``high`` of them exceed ½, in place.

    A network that is below ½ throughout a volume, even in the structure, still ranks its voxels well. If fewer than
    ``low`` unknown voxels exceed ½, the odds of all are multiplied by what takes number ``low`` to ½; if more than
    ``high`` do, by what takes number ``high`` there; else the odds stay. Voxels that are as sure as can be cannot be
    told apart, and stay on their side of ½.

    cost: (voxels,) ½ − s; s outside of (0, 1), as multipliers make it, becomes next to 0 or 1. seeds: (voxels,), −1
    unknown, or empty where all are. low, high: how many unknown voxels belong to the structure.

    >>> cost = 0.5 - np.array([0.4, 0.2, 0.1, 0.05], np.float32)
    >>> shift_to_size(cost, np.empty(0, np.int8), 2, 3)
    >>> print((0.5 - cost).round(3))
    [0.727 0.5   0.308 0.174]
    """
    unknown = np.empty_like(cost)
    count = positive = 0
    most = np.float32(0.5) - _LEAST
    for p in range(cost.size):
        cost[p] = min(max(cost[p], -most), most)
        if seeds.size == 0 or seeds[p] < 0:
            unknown[count] = cost[p]
            count += 1
            positive += cost[p] < 0
    if count == 0 or low <= positive <= high:
        return
    number = min(max(low if positive < low else high, 1), count)
    middle = np.float32(0.5) - np.partition(unknown[:count], number - 1)[number - 1]
    middle = min(max(middle, 2 * _LEAST), 1 - 2 * _LEAST)
    factor = (1 - middle) / middle
    for p in range(cost.size):
        s = np.float32(0.5) - cost[p]
        odds = s / (1 - s) * factor
        cost[p] = 0.5 - odds / (1 + odds)
