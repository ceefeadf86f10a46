"""One look at the costs of all classes, without Python's lock: numpy would take it, and memory, again and again."""

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(nogil=True, cache=True)
def cheapest_class(costs: NDArray[np.floating]) -> NDArray[np.int8]:
    """Return the cheapest class (z, y, x) of each voxel, of several the lowest; costs: (C, z, y, x)."""
    flat = costs.reshape(costs.shape[0], -1)
    labels = np.zeros(flat.shape[1], np.int8)
    least = flat[0].copy()
    for c in range(1, flat.shape[0]):
        row = flat[c]
        for p in range(labels.size):
            if row[p] < least[p]:
                least[p], labels[p] = row[p], c
    return labels.reshape(costs.shape[1:])


@njit(nogil=True, cache=True)
def cost_beyond(costs: NDArray[np.floating], common: int) -> NDArray[np.floating]:
    """Return (z, y, x) by how much the cheapest other class exceeds the class `common`; costs: (C, z, y, x)."""
    flat = costs.reshape(costs.shape[0], -1)
    first = 1 if common == 0 else 0
    beyond = flat[first].copy()
    for c in range(first + 1, flat.shape[0]):
        if c != common:
            row = flat[c]
            for p in range(beyond.size):
                beyond[p] = min(beyond[p], row[p])
    own = flat[common]
    for p in range(beyond.size):
        beyond[p] -= own[p]
    return beyond.reshape(costs.shape[1:])


@njit(nogil=True, cache=True)
def cost_of_labels(costs: NDArray[np.floating], labels: NDArray[np.int8]) -> float:
    """Return the sum of what voxels cost in their classes; costs: (C, z, y, x), labels: (z, y, x)."""
    flat, classes = costs.reshape(costs.shape[0], -1), labels.ravel()
    total = 0.0
    for p in range(classes.size):
        total += flat[classes[p], p]
    return total


@njit(nogil=True, cache=True)
def commonest_class(labels: NDArray[np.int8], classes: int) -> int:
    """Return the class that most voxels (z, y, x) have, of several the lowest."""
    counts = np.zeros(classes, np.int64)
    for label in labels.flat:
        counts[label] += 1
    return int(counts.argmax())
