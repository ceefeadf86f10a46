"""A cut that is as large as is known: log odds shifted by one number until the mask fits its bounds."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from discoseg.discrete.potts import PottsGrid

_LEAST = 1e-6  # probabilities are taken to be this far from 0 and 1, so that log odds are within ±14,
_FARTHEST = 32.0  # and no voxel is left on its side of ½ by such a shift
_HALVINGS = 12

Mask = NDArray[np.bool_]


def cut_at_size(
    grid: PottsGrid,
    probability: NDArray[np.float32],
    *,
    strength: float,
    low: int,
    high: int,
    seeds: NDArray[np.int8] | None = None,
) -> Mask:
    """Return a mask of ``low`` to ``high`` open voxels: a minimum cut of probabilities whose log odds are shifted.

    A larger shift never gives a smaller mask, so that a shift whose cut fits is found by halving. Where cuts jump from
    too few voxels to too many, the smaller one is filled up with the most probable voxels of the larger one.

    probability: the image's shape, of the foreground. strength: factor of the grid's weights, beside unaries ½ − p.
    low, high: voxels of the mask among those that ``seeds`` leave open. seeds: the image's shape, −1 unknown, or None
    where all voxels are; the mask honours them.

    >>> grid = PottsGrid(np.zeros((1, 6), np.float32), spacing_mm=(1, 1), sigma=1)
    >>> p = np.array([[0.1, 0.4, 0.3, 0.4, 0.1, 0.3]], np.float32)
    >>> print(cut_at_size(grid, p, strength=0.1, low=3, high=3).astype(int))
    [[0 1 1 1 0 0]]
    """
    known = np.zeros(probability.shape, bool) if seeds is None else seeds >= 0
    sure = np.clip(probability.astype(np.float64), _LEAST, 1 - _LEAST)
    odds = np.log(sure / (1 - sure))

    def cut(shift: float) -> Mask:
        return grid.cut((0.5 - 1 / (1 + np.exp(-odds - shift))).astype(np.float32), strength=strength, seeds=seeds)

    def count(mask: Mask) -> int:
        return int(np.count_nonzero(mask & ~known))

    mask = cut(0.0)
    if low <= count(mask) <= high:
        return mask
    grows = count(mask) < low
    near, far = mask, _all_or_nothing(known, seeds, everything=grows)
    at, beyond = 0.0, _FARTHEST if grows else -_FARTHEST
    for _ in range(_HALVINGS):
        middle = (at + beyond) / 2
        mask = cut(middle)
        if low <= count(mask) <= high:
            return mask
        if (count(mask) < low) == grows:
            near, at = mask, middle
        else:
            far, beyond = mask, middle
    small, large = (near, far) if grows else (far, near)
    return _filled(small, large, probability, low, count)


def _all_or_nothing(known: Mask, seeds: NDArray[np.int8] | None, *, everything: bool) -> Mask:
    mask = np.zeros(known.shape, bool) if seeds is None else seeds == 1
    return mask | ~known if everything else mask


def _filled(small: Mask, large: Mask, probability: NDArray[np.float32], low: int, count: Callable[[Mask], int]) -> Mask:
    """Return ``small`` with the most probable voxels of ``large``, in the order of voxels where they are equal."""
    between = np.flatnonzero(large & ~small)
    ranked = between[np.argsort(-probability.ravel()[between], kind="stable")]
    mask = small.copy()
    mask.ravel()[ranked[: low - count(small)]] = True
    return mask
