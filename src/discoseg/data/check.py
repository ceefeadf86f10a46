"""What a dataset holds and everything that is wrong with it, before hours of training depend on it."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from discoseg.data.inspection import Inspection, Row
from discoseg.data.layouts import Case, Dataset, describe_odd_channels, find_weak_maps

SHEAR_DEG = 0.1  # what rounding leaves of a right angle

IntervalMl = tuple[float, float]  # lowest and highest size in millilitres
SizeOf = Callable[[Case, str, float], IntervalMl | None]
"""Takes a case, a structure and the volume of a voxel of the case's file in ml; None where no size is known."""


@dataclass(frozen=True)
class Check:
    """The readable cases, the problems that stop training (one line each) and what is merely good to know.

    ``structures`` are those that count as foreground, each with its label value; where none was chosen, all of them
    together are "any structure". ``bounds_ml`` are their sizes by name of the case and structure.
    """

    dataset: Dataset
    structures: Mapping[str, frozenset[int]]
    rows: tuple[Row, ...]
    problems: list[str]
    warnings: list[str]
    bounds_ml: Mapping[tuple[str, str], IntervalMl]

    @property
    def foreground(self) -> frozenset[int]:
        """The label values of all structures."""
        return frozenset().union(*self.structures.values())


def check_dataset(
    dataset: Dataset,
    *,
    label: str | None = None,
    weak: Path | None = None,
    sizes: SizeOf | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Check:
    """Read every file of a dataset and note what it holds and what is wrong with it.

    label: the structure to train, by name or value, several joined by commas, or all.
    weak: a folder of weak label maps; without it, the dataset's own are weak where they carry `ignore`.
    sizes: lowest and highest size of each structure of ``label``, which must be given then.
    progress: called with the number of finished and of all cases.
    """
    assert sizes is None or label is not None
    structures = {"any structure": frozenset(dataset.labels.values()) - {0}}
    if label is not None:
        structures = {name: frozenset([value]) for name, value in dataset.label_values(label).items()}
    maps = {} if weak is None else find_weak_maps(weak, dataset)
    problems = [] if dataset.cases else [f"{dataset.root}: no case found"]
    names = Counter(case.name for case in dataset.cases)
    problems += [f"{dataset.root}: {n} cases have the name {name}" for name, n in names.items() if n > 1]
    problems += [odd for odd in [describe_odd_channels(dataset.cases)] if odd]
    rows, offsets_mm, bounds_ml = [], dict[Path, float](), dict[tuple[str, str], IntervalMl]()
    for done, case in enumerate(dataset.cases, start=1):
        inspection = Inspection(dataset, case, maps.get(case.name))
        row = inspection.row()
        problems += inspection.problems
        offsets_mm |= inspection.offsets_mm
        if row is not None:
            rows.append(row)
            for name in structures:
                interval = None if sizes is None else sizes(case, name, row.voxel_ml)
                if interval is not None:
                    bounds_ml[case.name, name] = interval
            problems += _bounds_problems(row, structures, bounds_ml)
        progress(done, len(dataset.cases))
    bounded = {name for name, _ in bounds_ml}
    missing, warnings = _missing_maps(dataset, weak, maps, bounded)
    problems += missing
    training = [row for row in rows if not row.case.test and row.annotated_vox]
    if weak is not None:  # masks beside them do not train
        training = [row for row in training if row.case.name in maps]
    problems += _no_foreground(training, weak or dataset.root, structures)
    warnings += [*_absence_warnings(training, structures), *_bounds_warnings(rows, structures, bounds_ml)]
    warnings += [*_offset_warnings(offsets_mm), *_shear_warnings(rows), *_spacing_warnings(rows)]
    return Check(dataset, structures, tuple(rows), problems, warnings, bounds_ml)


def _bounds_problems(
    row: Row, structures: Mapping[str, frozenset[int]], bounds_ml: Mapping[tuple[str, str], IntervalMl]
) -> list[str]:
    """Say which sizes no proposal can have, given the seeds."""
    problems: list[str] = []
    several = len(structures) > 1
    whole_ml, wanted_ml = float(np.prod(row.shape)) * row.voxel_ml, 0.0
    for name, values in structures.items():
        low, high = bounds_ml.get((row.case.name, name), (0.0, np.inf))
        own, other = row.seed_vox(values) or (0, 0)
        own_ml, free_ml = own * row.voxel_ml, whole_ml - other * row.voxel_ml
        wanted_ml += max(low - own_ml, 0)
        where = f"{row.case.name}, {name}" if several else row.case.name
        if own_ml > high:
            seeds = f"{own} seeds, {own_ml:.4g} ml," if several else f"{own_ml:.4g} ml of foreground seeds"
            problems.append(f"{where}: {seeds} exceed the upper size bound of {high:g} ml")
        if low > free_ml:
            free = "that no other seed takes" if several else "that are not background"
            problems.append(f"{where}: the lower size bound of {low:g} ml exceeds the {free_ml:.4g} ml {free}")
    unknown_ml = whole_ml - sum((row.weak_vox or {}).values()) * row.voxel_ml
    if several and not problems and wanted_ml > unknown_ml:
        problems.append(
            f"{row.case.name}: the lower size bounds want {wanted_ml:.4g} ml beyond the seeds, and {unknown_ml:.4g} ml "
            "are not annotated"
        )
    return problems


def _bounds_warnings(
    rows: list[Row], structures: Mapping[str, frozenset[int]], bounds_ml: Mapping[tuple[str, str], IntervalMl]
) -> list[str]:
    """Say which bounds contradict the masks, and which cases have none."""
    if not bounds_ml:
        return []
    warnings = []
    for row in rows:
        for name, values in structures.items():
            interval = bounds_ml.get((row.case.name, name))
            if interval is None or not row.complete:
                continue
            ml = sum(row.label_vox.get(value, 0) for value in values) * row.voxel_ml
            if not interval[0] <= ml <= interval[1]:
                where = f"{row.case.name}, {name}" if len(structures) > 1 else row.case.name
                outside = f"outside its size bounds {interval[0]:g} to {interval[1]:g} ml"
                warnings.append(f"{where}: its mask has {ml:.4g} ml, {outside}")
    bounded = {name for name, _ in bounds_ml}
    unbounded = [row.case.name for row in rows if row.case.name not in bounded]
    if unbounded:
        warnings.append(f"{len(unbounded)} of {len(rows)} cases have no size bounds, such as {unbounded[0]}")
    return warnings


def _missing_maps(
    dataset: Dataset, weak: Path | None, maps: Mapping[str, Path], bounded: set[str]
) -> tuple[list[str], list[str]]:
    """Return problems and warnings about training cases without a label map or weak label map.

    ``bounded`` are the cases that have size bounds, by which alone one without annotation trains.
    """
    training = [case for case in dataset.cases if not case.test]
    unlabelled = [case.name for case in training if case.label is None]
    if weak is None and training and len(unlabelled) == len(training):
        return [], ["no training case has a label map: training needs a folder of weak label maps"]
    by_bounds = dict.fromkeys(name for name in unlabelled if name in bounded and name not in maps)
    warnings = []
    if by_bounds:
        warnings.append(
            f"{len(by_bounds)} of {len(training)} training cases have no annotation, such as {next(iter(by_bounds))}: "
            "they train by their size bounds alone"
        )
    if weak is None:
        alone = "annotate it, or give size bounds, by which alone it can train"
        bare = [name for name in unlabelled if name not in by_bounds]
        return [f"{dataset.root}: no label map of {name}; {alone}" for name in bare], warnings
    bare = [case.name for case in training if case.name not in maps and case.name not in by_bounds]
    if bare:
        warnings.append(
            f"{weak}: no weak label map of {len(bare)} cases, such as {bare[0]}: they can validate but not train"
        )
    if unlabelled:
        warnings.append(f"{len(unlabelled)} of {len(training)} training cases have no label map: they cannot be scored")
    return [], warnings


def _no_foreground(annotated: list[Row], place: Path, structures: Mapping[str, frozenset[int]]) -> list[str]:
    """Say of which structure training would have nothing to learn from."""
    seeded = any(row.weak_vox is not None for row in annotated)
    problems = []
    for name, values in structures.items():
        if annotated and not any(row.has(values) for row in annotated):
            what, where = ("foreground seed", "") if seeded else ("voxel", "'s label map")
            problems.append(f"{place}: no {what} of {name} in any training case{where}")
    return problems


def _absence_warnings(annotated: list[Row], structures: Mapping[str, frozenset[int]]) -> list[str]:
    """Say which of several structures some annotations lack, which is allowed."""
    warnings = []
    for name, values in structures.items() if len(structures) > 1 else ():
        lacking = [row.case.name for row in annotated if not row.has(values)]
        if 0 < len(lacking) < len(annotated):
            warnings.append(
                f"{name} is in no annotation of {len(lacking)} of {len(annotated)} training cases, such as "
                f"{lacking[0]}: that is allowed, it may be absent there"
            )
    return warnings


def _shear_warnings(rows: list[Row]) -> list[str]:
    sheared = [row for row in rows if row.shear_deg > SHEAR_DEG]
    if not sheared:
        return []
    return [
        f"{len(sheared)} of {len(rows)} cases: sheared affine ({sheared[0].case.name}: axes "
        f"{sheared[0].shear_deg:.1f}° off a right angle); slices are taken as they are stored, and sizes in ml are "
        "those of upright voxels"
    ]


def _offset_warnings(offsets_mm: Mapping[Path, float]) -> list[str]:
    if not offsets_mm:
        return []
    path, furthest = max(offsets_mm.items(), key=lambda item: item[1])
    number = f"{len(offsets_mm)} file{'s lie' if len(offsets_mm) > 1 else ' lies'}"
    return [
        f"{number} up to half a voxel beside the image by the affine ({path}: {furthest:.3g} mm); "
        "the place in the array counts"
    ]


def _spacing_warnings(rows: list[Row]) -> list[str]:
    warnings = []
    apart = [row for row in rows if not np.allclose(row.affine_edges_mm, row.spacing_mm, rtol=1e-3)]
    if apart:
        first = apart[0]
        warnings.append(
            f"{len(apart)} of {len(rows)} cases: header spacing and affine disagree "
            f"({first.case.name}: {format_mm(first.spacing_mm)} and {format_mm(first.affine_edges_mm)} mm); "
            "the header's spacing counts"
        )
    if rows and all(row.spacing_mm == (1.0, 1.0, 1.0) for row in rows):
        warnings.append("every spacing is 1×1×1 mm, probably lost: no millimetre figure from it means anything")
    return warnings


def format_mm(spacing_mm: tuple[float, float, float]) -> str:
    """Write a (z, y, x) spacing in the order of the file, x first.

    >>> format_mm((10.0, 1.5625, 1.5625))
    '1.5625×1.5625×10'
    """
    return "×".join(f"{mm:.5g}" for mm in reversed(spacing_mm))
