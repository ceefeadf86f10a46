"""What a dataset holds and everything that is wrong with it, before hours of training depend on it."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from discoseg.data.inspection import Inspection, Row
from discoseg.data.layouts import Dataset, describe_odd_channels, find_weak_maps

SHEAR_DEG = 0.1  # what rounding leaves of a right angle


@dataclass(frozen=True)
class Check:
    """The readable cases, the problems that stop training (one line each) and what is merely good to know."""

    dataset: Dataset
    label: str | None  # name of the structure that counts as foreground; None: all of them
    rows: tuple[Row, ...]
    problems: list[str]
    warnings: list[str]
    bounds_ml: Mapping[str, tuple[float, float]]  # lowest and highest size by case name; empty without bounds


def check_dataset(
    dataset: Dataset,
    *,
    label: str | None = None,
    weak: Path | None = None,
    bounds_ml: Mapping[str, tuple[float, float]] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Check:
    """Read every file of a dataset and note what it holds and what is wrong with it.

    label: the structure to train, by name or value.
    weak: a folder of weak label maps; without it, the dataset's own are weak where they carry `ignore`.
    bounds_ml: lowest and highest size of the structure by case name, in millilitres.
    progress: called with the number of finished and of all cases.
    """
    value = None if label is None else dataset.label_value(label)
    maps = {} if weak is None else find_weak_maps(weak, dataset)
    problems = [] if dataset.cases else [f"{dataset.root}: no case found"]
    names = Counter(case.name for case in dataset.cases)
    problems += [f"{dataset.root}: {n} cases have the name {name}" for name, n in names.items() if n > 1]
    problems += [odd for odd in [describe_odd_channels(dataset.cases)] if odd]
    rows, offsets_mm = [], dict[Path, float]()
    for done, case in enumerate(dataset.cases, start=1):
        inspection = Inspection(dataset, case, value, maps.get(case.name))
        row = inspection.row()
        problems += inspection.problems
        offsets_mm |= inspection.offsets_mm
        if row is not None:
            rows.append(row)
            problems += _bounds_problems(row, (bounds_ml or {}).get(case.name))
        progress(done, len(dataset.cases))
    missing, warnings = _missing_maps(dataset, weak, maps)
    problems += missing
    name = next((name for name, number in dataset.labels.items() if number == value), None)
    problems += _no_foreground(dataset, rows, weak, name)
    warnings += _bounds_warnings(rows, bounds_ml or {}, value)
    warnings += [*_offset_warnings(offsets_mm), *_shear_warnings(rows), *_spacing_warnings(rows)]
    return Check(dataset, name, tuple(rows), problems, warnings, bounds_ml or {})


def _bounds_problems(row: Row, bounds_ml: tuple[float, float] | None) -> list[str]:
    """Say which sizes no proposal can have, given the seeds."""
    if bounds_ml is None:
        return []
    low, high = bounds_ml
    fg, bg = (n * row.voxel_ml for n in row.seed_vox or (0, 0))
    free = float(np.prod(row.shape)) * row.voxel_ml - bg
    name = row.case.name
    problems = []
    if low > high:
        problems.append(f"{name}: the size bounds {low:g} to {high:g} ml exclude each other")
    if fg > high:
        problems.append(f"{name}: {fg:.4g} ml of foreground seeds exceed the upper size bound of {high:g} ml")
    if low > free:
        problems.append(f"{name}: the lower size bound of {low:g} ml exceeds the {free:.4g} ml that are not background")
    return problems


def _bounds_warnings(rows: list[Row], bounds_ml: Mapping[str, tuple[float, float]], value: int | None) -> list[str]:
    """Say which bounds contradict the masks, and which cases have none."""
    if not bounds_ml:
        return []
    warnings = []
    for row in rows:
        if value in row.label_vox and row.case.name in bounds_ml:
            low, high = bounds_ml[row.case.name]
            ml = row.label_vox[value] * row.voxel_ml
            if not low <= ml <= high:
                warnings.append(
                    f"{row.case.name}: its mask has {ml:.4g} ml, outside its size bounds {low:g} to {high:g} ml"
                )
    unbounded = [row.case.name for row in rows if row.case.name not in bounds_ml]
    if unbounded:
        warnings.append(f"{len(unbounded)} of {len(rows)} cases have no size bounds, such as {unbounded[0]}")
    return warnings


def _missing_maps(dataset: Dataset, weak: Path | None, maps: dict[str, Path]) -> tuple[list[str], list[str]]:
    """Return problems and warnings about training cases without a label map or weak label map."""
    training = [case for case in dataset.cases if not case.test]
    unlabelled = [case.name for case in training if case.label is None]
    if weak is not None:
        bare = [case.name for case in training if case.name not in maps]
        warnings = []
        if bare:
            warnings.append(
                f"{weak}: no weak label map of {len(bare)} cases, such as {bare[0]}: they can validate but not train"
            )
        if unlabelled:
            warnings.append(
                f"{len(unlabelled)} of {len(training)} training cases have no label map: they cannot be scored"
            )
        return [], warnings
    if training and len(unlabelled) == len(training):
        return [], ["no training case has a label map: training needs a folder of weak label maps"]
    return [f"{dataset.root}: no label map of {name}" for name in unlabelled], []


def _no_foreground(dataset: Dataset, rows: list[Row], weak: Path | None, label: str | None) -> list[str]:
    """Say so when training would have nothing to learn the structure from."""
    training = [row for row in rows if not row.case.test]
    place, structure = weak or dataset.root, label or "any structure"
    if any(row.seed_vox for row in training):
        seeded = any(row.seed_vox and row.seed_vox[0] for row in training)
        return [] if seeded else [f"{place}: no foreground seed of {structure} in any training case"]
    wanted = [value for name, value in dataset.labels.items() if value and name == (label or name)]
    labelled = [row for row in training if row.label_vox]
    if labelled and not any(value in row.label_vox for row in labelled for value in wanted):
        return [f"{place}: no voxel of {structure} in any training case's label map"]
    return []


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
