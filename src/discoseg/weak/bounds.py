"""Size bounds: how many voxels of the prepared grid a structure may have in a whole 3D volume.

Users know millilitres, which do not depend on any grid; they become voxels where a case's voxel volume is
known. An interval too narrow to hold a whole number of voxels becomes the number nearest to its middle.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from discoseg.errors import UserError
from discoseg.weak.tables import read_table

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
    low, high = _around(Fraction(int(size_vox)), _require_eps(eps, "the size tolerance ε"))
    return Bounds(math.ceil(low), math.floor(high))


def parse_size_ml(text: str) -> IntervalMl:
    """Read an interval in millilitres; an empty side is open.

    >>> parse_size_ml("60:180"), parse_size_ml(":180")
    ((60.0, 180.0), (0.0, 180.0))
    """
    low_text, colon, high_text = text.partition(":")
    try:
        low, high = float(low_text or 0), float(high_text or math.inf)
    except ValueError:
        low = high = math.nan
    if not colon or not (low_text.strip() or high_text.strip()) or math.isnan(low) or math.isnan(high):
        raise UserError(f"a size in ml looks like 60:180, 60: or :180, not {text!r}")
    return _require_interval(low, high, f"size {text!r}")


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


def read_bounds_csv(path: Path) -> dict[str, IntervalMl]:
    """Read each case's interval in millilitres from a CSV file, by case name.

    Its columns are `case,low_ml,high_ml`, where an empty cell leaves that side open, or `case,size_ml,eps`,
    which means size_ml·(1 ± eps). Voxel counts are not accepted: they would depend on the grid of a network.
    """
    intervals: dict[str, IntervalMl] = {}
    for row in read_table(path, (("low_ml", "high_ml"), ("size_ml", "eps"))):
        if "low_ml" in row.cells and "high_ml" in row.cells:
            low, high = row.number("low_ml", empty=0), row.number("high_ml", empty=math.inf)
        else:
            eps = _require_eps(row.number("eps"), f"{row.where}: eps")
            low, high = map(float, _around(Fraction(str(row.number("size_ml"))), eps))
        intervals[row.case] = _require_interval(low, high, row.where)
    if not intervals:
        raise UserError(f"{path} holds no bounds")
    return intervals


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


def _around(size: Fraction, eps: Fraction) -> tuple[Fraction, Fraction]:
    return max(Fraction(0), (1 - eps) * size), (1 + eps) * size


def _require_eps(eps: float, what: str) -> Fraction:
    if not 0 <= eps < math.inf:
        raise UserError(f"{what} must be 0 or more, such as 0.1 for ±10 %, not {eps:g}")
    return Fraction(str(float(eps)))


def _require_interval(low: float, high: float, what: str) -> IntervalMl:
    if low < 0 or math.isinf(low):
        raise UserError(f"{what}: a size in ml cannot be {low:g}")
    if high <= 0:
        raise UserError(f"{what}: the upper size bound must be more than 0 ml, not {high:g}")
    if low > high:
        raise UserError(f"{what}: the lower size bound, {low:g} ml, exceeds the upper one, {high:g} ml")
    return low, high
