"""Size bounds: how many voxels of the prepared grid a structure may have in a whole 3D volume.

Users know millilitres, which do not depend on any grid (:mod:`discoseg.weak.sizes`); they become voxels where a case's
voxel volume is known. An interval too narrow to hold a whole number of voxels becomes the number nearest to its middle.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from discoseg.errors import UserError

IntervalMl = tuple[float, float]  # (low, high) in millilitres; 0 and infinity where a side is open


@dataclass(frozen=True)
class Bounds:
    """The least and the largest size of the foreground, both allowed, in voxels of the prepared grid."""

    low_vox: int
    high_vox: int

    def inside(self, margin: float, seeds: NDArray[np.int8]) -> "Bounds":
        """Return narrower bounds, by a fraction ``margin`` of each, that masks with these seeds can still meet.

        seeds: (z, y, x), −1 unknown, 0 background, 1 foreground. Bounds closer to each other than the margins become
        their middle.

        >>> Bounds(90, 110).inside(0.05, np.full((1, 20, 20), -1, np.int8))
        Bounds(low_vox=95, high_vox=104)
        """
        if margin == 0:
            return self
        part = Fraction(str(margin))  # in exact decimals, as ε is
        low, high = math.ceil(self.low_vox * (1 + part)), math.floor(self.high_vox * (1 - part))
        if low > high:
            low = high = (self.low_vox + self.high_vox) // 2
        least, most = int(np.count_nonzero(seeds == 1)), int(np.count_nonzero(seeds != 0))
        return Bounds(min(max(low, least), most), min(max(high, least), most))


def bounds_from_eps(size_vox: int, eps: float) -> Bounds:
    """Return the whole sizes in [(1−ε)·S, (1+ε)·S]: the paper's S_min and S_max.

    Reckoned in exact decimals, so that ε = 0.1 around 100 voxels is 90 to 110.

    >>> bounds_from_eps(100, 0.1)
    Bounds(low_vox=90, high_vox=110)
    """
    low, high = size_around(Fraction(int(size_vox)), eps, "the size tolerance ε")
    return Bounds(math.ceil(low), math.floor(high))


def bounds_from_ml(interval_ml: IntervalMl, *, voxel_ml: float, voxels: int) -> Bounds:
    """Return an interval in millilitres as numbers of voxels; an open top is all `voxels` of the volume."""
    low_ml, high_ml = interval_ml
    assert 0 <= low_ml <= high_ml
    assert voxel_ml > 0
    slack = 1e-9  # of the size: 0.3 ml of 0.1 ml voxels are 3, whatever floats say
    low = math.ceil(low_ml / voxel_ml * (1 - slack))
    most = max(voxels, low)  # a lower bound beyond the volume stays as it is, for `check_feasible` to report
    high = most if math.isinf(high_ml) else min(most, math.floor(high_ml / voxel_ml * (1 + slack)))
    if low > high:
        low = high = max(1, math.floor((low_ml + high_ml) / 2 / voxel_ml + 0.5))
    return Bounds(low, high)


def check_feasible(name: str, bounds: Bounds, seeds: NDArray[np.int8]) -> None:
    """Raise a `UserError` that names the case when no mask meets both its bounds and its seeds.

    seeds: (z, y, x), −1 unknown, 0 background, 1 foreground.
    """
    low, high = bounds.low_vox, bounds.high_vox
    foreground = int(np.count_nonzero(seeds == 1))
    free = int(np.count_nonzero(seeds != 0))
    if low > high:
        raise UserError(f"{name}: the lower size bound, {low} voxels, exceeds the upper one, {high}")
    if foreground > high:
        raise UserError(
            f"{name}: {foreground} foreground seeds exceed the upper size bound of {high} voxels; "
            "raise it or check the seeds"
        )
    if low > free:
        raise UserError(
            f"{name}: the lower size bound of {low} voxels exceeds the {free} that no background seed takes; "
            "lower it or check the seeds"
        )


def check_feasible_together(name: str, bounds: Sequence[Bounds], seeds: NDArray[np.int8]) -> None:
    """Raise a `UserError` when the lower bounds of several structures do not fit into a volume together.

    seeds: (z, y, x), −1 unknown, 0 background, k the k-th structure.
    """
    unknown = int(np.count_nonzero(seeds < 0))
    seeded = np.bincount(seeds[seeds >= 0].ravel(), minlength=len(bounds) + 1)[1:]
    wanted = sum(max(bound.low_vox - int(count), 0) for bound, count in zip(bounds, seeded, strict=True))
    if wanted > unknown:
        raise UserError(
            f"{name}: the lower size bounds want {wanted} voxels beyond the seeds, and {unknown} are not annotated; "
            "lower them or check the seeds"
        )


def size_around(size: Fraction, eps: float, what: str) -> tuple[Fraction, Fraction]:
    """Return (1−ε)·S, at least 0, and (1+ε)·S in exact decimals; an ε that is none is a `UserError` about ``what``."""
    if not 0 <= eps < math.inf:
        raise UserError(f"{what} must be 0 or more, such as 0.1 for ±10 %, not {eps:g}")
    part = Fraction(str(float(eps)))
    return max(Fraction(0), (1 - part) * size), (1 + part) * size
