"""Size bounds: how many voxels of the prepared grid a structure may have in a whole 3D volume.

Users know millilitres, which do not depend on any grid; they become voxels where a case's voxel volume is
known. An interval too narrow to hold a whole number of voxels becomes the number nearest to its middle.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from discoseg.errors import UserError
from discoseg.weak.tables import Row, read_table

IntervalMl = tuple[float, float]  # (low, high) in millilitres; 0 and infinity where a side is open

_ANY_SIZE: IntervalMl = (0.0, math.inf)
_BOUNDS_COLUMNS = (("low_ml", "high_ml"), ("size_ml", "eps"))


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
    """Read an interval in millilitres; an empty side is open. With ``mm`` it is the diameter of a ball of that size.

    >>> parse_size_ml("60:180"), parse_size_ml(":180")
    ((60.0, 180.0), (0.0, 180.0))
    >>> parse_size_ml("20:40mm")
    (4.1887902047863905, 33.510321638291124)
    """
    diameter = text.strip().endswith("mm")
    if diameter:
        low, high = parse_size_ml(text.strip().removesuffix("mm"))
        return low**3 * math.pi / 6000, high**3 * math.pi / 6000
    low_text, colon, high_text = text.strip().removesuffix("ml").partition(":")
    try:
        low, high = float(low_text or 0), float(high_text or math.inf)
    except ValueError:
        low = high = math.nan
    if not colon or not (low_text.strip() or high_text.strip()) or math.isnan(low) or math.isnan(high):
        raise UserError(f"a size in ml looks like 60:180, 60: or :180, a diameter like 20:40mm, not {text!r}")
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
    intervals = {row.case: _interval(row) for row in read_table(path, _BOUNDS_COLUMNS)}
    if not intervals:
        raise UserError(f"{path} holds no bounds")
    return intervals


@dataclass(frozen=True)
class SizesMl:
    """What is known of sizes: intervals in millilitres for all cases or groups of them, or case by case, by structure.

    ``everywhere`` is by structure and group, a group without a name being all. Structures that are left out may have
    any size.
    """

    source: str
    everywhere: Mapping[tuple[str, str], IntervalMl]
    cases: Mapping[str, Mapping[str, IntervalMl]] | None = None

    @classmethod
    def read(cls, text: str | None, path: Path | None, structures: Sequence[str]) -> "SizesMl":
        """Read ``--size-ml`` or the file of ``--size-csv``, whichever is given; neither leaves all sizes open."""
        if path is not None:
            return cls(str(path), {}, _read_bounds(path, structures))
        return cls(f"--size-ml {text}", {} if text is None else parse_sizes_ml(text, structures))

    def of(self, case: str, structure: str, group: str = "") -> IntervalMl:
        """Return the interval of a structure in a case, that of its group before that of all."""
        if self.cases is None:
            return self.everywhere.get((structure, group), self.everywhere.get((structure, ""), _ANY_SIZE))
        if case not in self.cases:
            raise UserError(f"{self.source}: no bounds for case {case}; add a line for it")
        return self.cases[case].get(structure, _ANY_SIZE)


def parse_sizes_ml(text: str, structures: Sequence[str]) -> dict[tuple[str, str], IntervalMl]:
    """Read intervals in millilitres by structure and group of cases; a single structure need not be named.

    >>> parse_sizes_ml("LV@ED=60:180, LV@ES=20:150, RV=:200", ["RV", "MYO", "LV"])
    {('LV', 'ED'): (60.0, 180.0), ('LV', 'ES'): (20.0, 150.0), ('RV', ''): (0.0, 200.0)}
    """
    if "=" not in text and len(structures) == 1:
        return {(structures[0], ""): parse_size_ml(text)}
    intervals: dict[tuple[str, str], IntervalMl] = {}
    for part in text.split(","):
        key, equals, interval = (piece.strip() for piece in part.partition("="))
        name, _, group = key.partition("@")
        if not name and len(structures) == 1:  # @ED=60:180
            name = structures[0]
        if not equals:
            raise UserError(f"--size-ml {text}: say of which structure, such as {structures[0]}=60:180")
        if name not in structures or (name, group) in intervals:
            again = f"not trained; these are: {', '.join(structures)}" if name not in structures else "there twice"
            raise UserError(f"--size-ml {text}: {key} is {again}")
        intervals[name, group] = parse_size_ml(interval)
    return intervals


def _read_bounds(path: Path, structures: Sequence[str]) -> dict[str, dict[str, IntervalMl]]:
    """Read each case's intervals by structure, from a CSV file as in `read_bounds_csv` with a column `label`."""
    intervals: dict[str, dict[str, IntervalMl]] = {}
    for row in read_table(path, _BOUNDS_COLUMNS, further_key="label"):
        name = row.cells.get("label", structures[0])
        if "label" not in row.cells and len(structures) > 1:
            raise UserError(f"{path} line 1: a column label must say which of {', '.join(structures)} a size is of")
        if "label" in row.cells and not name:
            raise UserError(f"{row.where}: the label has no name")
        if name in structures:  # a table may say more than one training wants
            intervals.setdefault(row.case, {})[name] = _interval(row)
        else:
            intervals.setdefault(row.case, {})
    if not any(intervals.values()):
        raise UserError(
            f"{path} holds no bounds of {', '.join(structures)}" if intervals else f"{path} holds no bounds"
        )
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


def _interval(row: Row) -> IntervalMl:
    if "low_ml" in row.cells and "high_ml" in row.cells:
        low, high = row.number("low_ml", empty=0), row.number("high_ml", empty=math.inf)
    else:
        eps = _require_eps(row.number("eps"), f"{row.where}: eps")
        low, high = map(float, _around(Fraction(str(row.number("size_ml"))), eps))
    return _require_interval(low, high, row.where)


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
