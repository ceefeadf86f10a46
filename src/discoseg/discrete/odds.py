"""A known size, read back into probabilities: log odds shifted by one number a class, so that their ranking stays."""

from collections.abc import Sequence

import numpy as np
from numba import njit
from numpy.typing import NDArray

from discoseg.discrete.assignment import assign_with_prices

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


def shift_to_sizes(
    costs: NDArray[np.float32], low: Sequence[int], high: Sequence[int], seeds: NDArray[np.int8] | None = None
) -> NDArray[np.float32]:
    """Return the costs of probabilities of which about ``low`` to ``high`` are the largest of their voxel, by class.

    The log odds of each class are shifted by one number for all voxels: its price in the best assignment of voxels to
    classes within these bounds, of which the sum of log probabilities is largest. Where no bound is in the way, nothing
    changes.

    costs: (C, …) of classes with the probabilities p_c, class 0 the background: (p_0 − p_c) / 2. Below 0, as
    multipliers make them, probabilities become next to 0. low, high: (C,) voxels of each class, seeds included. seeds:
    (…), −1 unknown, else a class.

    >>> p = np.array([[0.6, 0.6, 0.8, 0.9], [0.3, 0.1, 0.1, 0.05], [0.1, 0.3, 0.1, 0.05]], np.float32)
    >>> print(shift_to_sizes((p[0] - p) / 2, (0, 1, 1), (4, 1, 1)).round(2) + 0)
    [[0.   0.   0.   0.  ]
     [0.   0.14 0.25 0.36]
     [0.14 0.   0.25 0.36]]
    """
    logs = _log_probabilities(costs.reshape(len(costs), -1)).reshape(costs.shape)
    prices = assign_with_prices(logs, low, high, seeds=seeds).prices
    if not prices.any():
        return costs
    return _costs_at(logs.reshape(len(costs), -1), prices).reshape(costs.shape)


@njit(nogil=True, cache=True)
def _log_probabilities(costs: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the logarithms of the probabilities that have these costs, both (C, voxels)."""
    classes, voxels = costs.shape
    logs = np.empty_like(costs)
    for p in range(voxels):
        total = 0.0
        for c in range(classes):
            total += costs[c, p]
        background = (1 + 2 * total) / classes
        total = 0.0
        for c in range(classes):
            probability = max(background - 2 * np.float64(costs[c, p]), _LEAST)
            logs[c, p] = np.log(probability)
            total += probability
        for c in range(classes):
            logs[c, p] -= np.log(total)
    return logs


@njit(nogil=True, cache=True)
def _costs_at(logs: NDArray[np.float32], prices: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the costs of probabilities with these logarithms less the prices (C,), both (C, voxels)."""
    classes, voxels = logs.shape
    costs = np.empty_like(logs)
    weights = np.empty(classes)
    for p in range(voxels):
        most = -np.inf
        for c in range(classes):
            weights[c] = logs[c, p] - prices[c]
            most = max(most, weights[c])
        total = 0.0
        for c in range(classes):
            weights[c] = np.exp(weights[c] - most)
            total += weights[c]
        for c in range(classes):
            costs[c, p] = (weights[0] - weights[c]) / (2 * total)
    return costs
