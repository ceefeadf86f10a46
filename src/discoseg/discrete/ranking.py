"""The exact size proposal: the best voxels, as many as the bounds allow."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discoseg.errors import UserError


def select_by_size(
    utility: ArrayLike,
    low: int,
    high: int,
    *,
    seeds: NDArray[np.int8] | None = None,
    price: float | None = None,
) -> NDArray[np.bool_]:
    """Choose between ``low`` and ``high`` voxels such that the sum of their utilities is largest.

    The ``low`` highest utilities are chosen, then the remaining strictly positive ones from the highest down until
    ``high`` is reached. Of equal utilities the earlier voxel in C order wins, so the result is unique.

    utility: any shape, float32 or float64, finite. seeds: the same shape, -1 unknown, 0 background, 1 foreground;
    foreground seeds are always chosen and count towards the size, background seeds never are. Returns a boolean
    array of the same shape.

    The paper's problem (size) and its toy table:

        max_y Σ a_p y_p   such that   low ≤ Σ y_p ≤ high

    With a ``price`` > 0 sizes outside the bounds are allowed, and cost that much for each voxel beyond them:

        max_y Σ a_p y_p − price · max(0, low − Σ y_p, Σ y_p − high)

    Of the voxels in descending order, those up to ``low`` then need a utility above −price, those beyond ``high`` one
    above the price. Seeds may then exceed the bounds. Of equally good sizes it is the smallest.

    >>> utility = np.array([0.95, 0.88, 0.52, -0.11, -0.64, -0.79])
    >>> for low in (2, 3, 4):
    ...     print(low, select_by_size(utility, low, 5).astype(int))
    2 [1 1 1 0 0 0]
    3 [1 1 1 0 0 0]
    4 [1 1 1 1 0 0]
    """
    utility = np.asarray(utility)
    if not np.isfinite(utility).all():
        raise UserError("utility has NaN or infinite values: check the network's output and the multipliers")
    if seeds is not None and seeds.shape != utility.shape:
        raise UserError(f"seeds have the shape {seeds.shape}, utility has {utility.shape}")
    flat = utility.ravel()
    if seeds is None:
        chosen = np.zeros(flat.size, dtype=bool)
        free = flat
    else:
        chosen = (seeds == 1).ravel()
        unknown = (seeds.ravel() < 0).nonzero()[0]
        free = flat[unknown]
    seeded = int(np.count_nonzero(chosen))
    if price is not None and not price > 0:
        raise UserError(f"the price of a voxel outside the size bounds must be positive, not {price:g}")
    if price is not None and low <= high:
        low = min(low, seeded + int(np.count_nonzero(free > -price)))
        high = max(high, seeded + int(np.count_nonzero(free > price)))
    check_bounds(low, high, seeded=seeded, unknown=free.size)

    positive = int(np.count_nonzero(free > 0))
    size = min(max(low, seeded + positive), high) - seeded
    best = _highest(free, max(size, 0))
    chosen[best if seeds is None else unknown[best]] = True
    return chosen.reshape(utility.shape)


def check_bounds(low: int, high: int, *, seeded: int, unknown: int) -> None:
    """Raise a UserError when no set of voxels has a size in [low, high].

    seeded: voxels that must be chosen (foreground seeds). unknown: voxels that may be chosen.
    """
    if low > high:
        raise UserError(f"size bounds are infeasible: the lower, {low} voxels, exceeds the upper, {high}")
    if seeded > high:
        raise UserError(f"size bounds are infeasible: {seeded} foreground seeds exceed the upper bound, {high} voxels")
    if low > seeded + unknown:
        raise UserError(
            f"size bounds are infeasible: the lower bound, {low} voxels, exceeds the {seeded + unknown} that can be"
            f" foreground ({seeded} seeds and {unknown} unknown)"
        )


def _highest(values: NDArray, count: int) -> NDArray[np.intp]:
    """Indices of the ``count`` highest values in linear time; of equal ones the earliest are taken."""
    if count == 0:
        return np.empty(0, dtype=np.intp)
    threshold = np.partition(values, values.size - count)[values.size - count]
    above = (values > threshold).nonzero()[0]
    equal = (values == threshold).nonzero()[0][: count - above.size]
    return np.concatenate([above, equal])
