"""What people know of sizes: millilitres, diameters, voxels of their files, or the name of a published interval.

All of it becomes millilitres, which depend on no grid. Voxels are always those of the image's own file: those of the
network's grid change with ``--grid.shape``.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

from discoseg.data.layouts import Case
from discoseg.data.rows import Row
from discoseg.errors import UserError
from discoseg.weak.bounds import IntervalMl, size_around
from discoseg.weak.organs import OrganSize, find_organ_size
from discoseg.weak.tables import read_table

Unit = Literal["ml", "mm", "vox"]

_COLUMNS: dict[tuple[str, str], Unit] = {
    ("low_ml", "high_ml"): "ml",
    ("size_ml", "eps"): "ml",
    ("low_vox", "high_vox"): "vox",
    ("low_mm", "high_mm"): "mm",
}
_FORMS = "60:180, 60: or :180, a diameter like 20:40mm, voxels of the file like 1000:3000vox"


@dataclass(frozen=True)
class Size:
    """An interval of sizes, both ends allowed; 0 and infinity where a side is open.

    ``unit`` is millilitres, the diameter in mm of a ball of that size, or voxels of the image's file; ``organ`` is the
    published interval that this one is.
    """

    low: float = 0.0
    high: float = math.inf
    unit: Unit = "ml"
    organ: OrganSize | None = None

    def in_ml(self, file_voxel_ml: float | None) -> IntervalMl:
        """Return the interval in millilitres; ``file_voxel_ml`` is the volume of a voxel of the image's file.

        >>> Size(20, 40, "mm").in_ml(None)
        (4.1887902047863905, 33.510321638291124)
        >>> Size(1000, 3000, "vox").in_ml(0.002)
        (2.0, 6.0)
        """
        if self.unit == "mm":
            return self.low**3 * math.pi / 6000, self.high**3 * math.pi / 6000
        if self.unit == "vox":
            assert file_voxel_ml is not None
            return self.low * file_voxel_ml, self.high * file_voxel_ml
        return self.low, self.high


def parse_size(text: str, structure: str) -> Size:
    """Read an interval, an empty side of which is open, or the name of a published one.

    The name is one of the organ that the structure is called after, unless another organ stands before it.

    >>> parse_size("60:180", "LV"), parse_size(":40mm", "LV")
    (Size(low=60.0, high=180.0, unit='ml', organ=None), Size(low=0.0, high=40.0, unit='mm', organ=None))
    >>> parse_size("adult-ed", "LV") == parse_size("left ventricle adult-ed", "foreground")
    True
    """
    text = text.strip()
    if text[:1].isalpha() and ":" not in text:
        *organ, name = text.split()
        found = find_organ_size(" ".join(organ) or structure, name)
        return Size(found.low_ml, found.high_ml, organ=found)
    unit: Unit = "mm" if text.endswith("mm") else "vox" if text.endswith("vox") else "ml"
    low_text, colon, high_text = text.removesuffix(unit).partition(":")
    try:
        low, high = float(low_text.strip() or 0), float(high_text.strip() or math.inf)
    except ValueError:
        low = high = math.nan
    if not colon or not (low_text.strip() or high_text.strip()) or math.isnan(low) or math.isnan(high):
        raise UserError(f"a size in ml looks like {_FORMS}, not {text!r}")
    return _require_interval(Size(low, high, unit), f"size {text!r}")


def parse_sizes(
    text: str, structures: Sequence[str], groups: Collection[str] | None = None
) -> dict[tuple[str, str], Size]:
    """Read ``--size-ml``: intervals by structure and group of cases; a single structure need not be named.

    ``groups`` are those that there are; None takes any.

    >>> for key, size in parse_sizes("LV@ED=60:180, LV@ES=adult-es, RV=:200", ["RV", "MYO", "LV"]).items():
    ...     print(key, size.in_ml(None))
    ('LV', 'ED') (60.0, 180.0)
    ('LV', 'ES') (18, 82)
    ('RV', '') (0.0, 200.0)
    """
    try:
        if "=" not in text and len(structures) == 1:
            return {(structures[0], ""): parse_size(text, structures[0])}
        return _parse_named(text, structures, groups)
    except UserError as error:
        raise UserError(f"--size-ml {text}: {error}") from error


def _parse_named(text: str, structures: Sequence[str], groups: Collection[str] | None) -> dict[tuple[str, str], Size]:
    sizes: dict[tuple[str, str], Size] = {}
    for part in text.split(","):
        key, equals, interval = (piece.strip() for piece in part.partition("="))
        name, at, group = key.partition("@")
        if not name and len(structures) == 1:  # @ED=60:180
            name = structures[0]
        if not equals:
            raise UserError(f"say of which structure, such as {structures[0]}=60:180")
        if name not in structures or (name, group) in sizes:
            again = f"not trained; these are: {', '.join(structures)}" if name not in structures else "there twice"
            raise UserError(f"{key} is {again}")
        if at and groups is not None and group not in groups:
            known = ", ".join(sorted(filter(None, groups)))
            raise UserError(
                f"no case is of the group {group!r}; " + (f"there are {known}" if known else "none has one")
            )
        sizes[name, group] = parse_size(interval, name)
    return sizes


@dataclass(frozen=True)
class SizesMl:
    """What is known of sizes: intervals for all cases or groups of them, or case by case, by structure.

    ``everywhere`` is by structure and group, a group without a name being all. Structures that are left out may have
    any size.
    """

    source: str
    everywhere: Mapping[tuple[str, str], Size]
    cases: Mapping[str, Mapping[str, Size]] | None = None

    @classmethod
    def read(
        cls,
        text: str | None,
        path: Path | None,
        structures: Sequence[str],
        *,
        groups: Collection[str] | None = None,
    ) -> "SizesMl":
        """Read ``--size-ml`` or the file of ``--size-csv``, whichever is given; neither leaves all sizes open.

        ``groups`` are those of the dataset's cases; None takes any.
        """
        if path is not None:
            return cls(str(path), {}, _read_sizes(path, structures))
        return cls(f"--size-ml {text}", {} if text is None else parse_sizes(text, structures, groups))

    def of(self, case: str, structure: str, group: str = "", *, file_voxel_ml: float | None = None) -> IntervalMl:
        """Return the interval of a structure in a case in ml, that of its group before that of all.

        ``file_voxel_ml`` is the volume of a voxel of the case's image file; sizes in voxels need it.
        """
        if self.cases is None:
            size = self.everywhere.get((structure, group), self.everywhere.get((structure, ""), Size()))
        elif case in self.cases:
            size = self.cases[case].get(structure, Size())
        else:
            raise UserError(f"{self.source}: no bounds for case {case}; add a line for it")
        return size.in_ml(file_voxel_ml)

    def find(self, case: Case, structure: str, file_voxel_ml: float) -> IntervalMl | None:
        """Return the interval of a structure in a case in ml; None where nothing is said of it."""
        if self.cases is not None and case.name not in self.cases:
            return None
        interval = self.of(case.name, structure, case.group, file_voxel_ml=file_voxel_ml)
        return None if interval == (0.0, math.inf) else interval

    def describe_published(self) -> list[str]:
        """Say of each published interval what it is and whose, in one line."""
        lines = []
        for (structure, group), size in self.everywhere.items():
            if size.organ is not None:
                where = f" in {group} cases" if group else ""
                lines.append(f"size of {structure}{where}: {size.low:.4g} to {size.high:.4g} ml, {size.organ.about}")
        return lines


def _read_sizes(path: Path, structures: Sequence[str]) -> dict[str, dict[str, Size]]:
    """Read each case's intervals by structure from a CSV file.

    Its columns are `case`, `label` where there are several structures, and low_ml, high_ml, where an empty cell leaves
    that side open, or size_ml, eps, which mean size_ml·(1 ± eps), or low_vox, high_vox, or low_mm, high_mm.
    """
    sizes: dict[str, dict[str, Size]] = {}
    for row in read_table(path, tuple(_COLUMNS), further_key="label"):
        name = row.cells.get("label", structures[0])
        if "label" not in row.cells and len(structures) > 1:
            raise UserError(f"{path} line 1: a column label must say which of {', '.join(structures)} a size is of")
        if "label" in row.cells and not name:
            raise UserError(f"{row.where}: the label has no name")
        sizes.setdefault(row.case, {})
        if name in structures:  # a table may say more than one training wants
            sizes[row.case][name] = _size(row, path)
    if not any(sizes.values()):
        raise UserError(f"{path} holds no bounds of {', '.join(structures)}" if sizes else f"{path} holds no bounds")
    return sizes


def _size(row: Row, path: Path) -> Size:
    pairs = [pair for pair in _COLUMNS if set(pair) <= row.cells.keys()]
    if len(pairs) > 1:
        several = " and ".join(",".join(pair) for pair in pairs)
        raise UserError(f"{path} line 1: {several} say the size twice; keep two of these columns")
    first, second = pairs[0]
    if second == "eps":
        around = size_around(Fraction(str(row.number(first))), row.number(second), f"{row.where}: eps")
        low, high = map(float, around)
    else:
        low, high = row.number(first, empty=0), row.number(second, empty=math.inf)
    return _require_interval(Size(low, high, _COLUMNS[pairs[0]]), row.where)


def _require_interval(size: Size, what: str) -> Size:
    low, high, unit = size.low, size.high, size.unit
    if low < 0 or math.isinf(low):
        raise UserError(f"{what}: a size in {unit} cannot be {low:g}")
    if high <= 0:
        raise UserError(f"{what}: the upper size bound must be more than 0 {unit}, not {high:g}")
    if low > high:
        raise UserError(f"{what}: the lower size bound, {low:g} {unit}, exceeds the upper one, {high:g} {unit}")
    return size
