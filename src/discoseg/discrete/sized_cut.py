"""A cut that is as large as is known: log odds shifted by one number until the mask fits its bounds."""

import numpy as np
from numpy.typing import NDArray

from discoseg.discrete.potts import PottsGrid
from discoseg.discrete.ranking import check_bounds

_LEAST = 1e-6  # probabilities are taken to be this far from 0 and 1, so that log odds are within ±14,
_FARTHEST = 32.0  # and no voxel is left on its side of ½ by such a shift
_APART = 0.01  # shifts that are not told apart

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

    They are shifted by as little as possible: a larger shift never gives a smaller mask, so it is found by halving.
    Where cuts jump over these sizes, the smaller one is filled up with the most probable voxels of the larger one, to
    the bound that it was beyond.

    probability: the image's shape, of the foreground. strength: factor of the grid's weights, beside unaries ½ − p.
    low, high: voxels of the mask among those that ``seeds`` leave open. seeds: the image's shape, −1 unknown, or None
    where all voxels are; the mask honours them.

    >>> grid = PottsGrid(np.zeros((1, 6), np.float32), spacing_mm=(1, 1), sigma=1)
    >>> p = np.array([[0.1, 0.4, 0.3, 0.4, 0.1, 0.3]], np.float32)
    >>> print(cut_at_size(grid, p, strength=0.1, low=3, high=4).astype(int))
    [[0 1 1 1 0 0]]
    """
    known = np.zeros(probability.shape, bool) if seeds is None else seeds >= 0
    check_bounds(low, high, seeded=0, unknown=int(np.count_nonzero(~known)))
    sure = np.clip(probability.astype(np.float64), _LEAST, 1 - _LEAST)
    odds = np.log(sure / (1 - sure))

    def cut(shift: float) -> Mask:
        return grid.cut((0.5 - 1 / (1 + np.exp(-odds - shift))).astype(np.float32), strength=strength, seeds=seeds)

    def count(mask: Mask) -> int:
        return int(np.count_nonzero(mask & ~known))

    near = cut(0.0)
    if low <= count(near) <= high:
        return near
    grows = count(near) < low
    far = np.zeros(known.shape, bool) if seeds is None else seeds == 1
    far = far | ~known if grows else far  # all that is open, or nothing
    at, beyond, step = 0.0, _FARTHEST, 1.0  # magnitudes of shifts
    while beyond - at > _APART:
        tried = min(at + step, (at + beyond) / 2)
        mask = cut(tried if grows else -tried)
        if count(mask) < low if grows else count(mask) > high:
            near, at, step = mask, tried, 2 * step
        else:
            far, beyond = mask, tried
    if low <= count(far) <= high:
        return far
    small, large = (near, far) if grows else (far, near)
    between = np.flatnonzero(large & ~small)
    ranked = between[np.argsort(-probability.ravel()[between], kind="stable")]
    filled = small.copy()
    filled.ravel()[ranked[: (low if grows else high) - count(small)]] = True
    return filled
