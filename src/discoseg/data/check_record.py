"""A check's findings for scripts: the same as its tables, as values for JSON."""

from typing import Any

from discoseg.data.check import Check
from discoseg.data.inspection import Row


def record_check(check: Check) -> dict[str, Any]:
    """Return what a dataset holds and what is wrong with it; shapes and spacings are in the order x, y, z."""
    dataset = check.dataset
    return {
        "dataset": dataset.root,
        "layout": dataset.layout,
        "labels": dict(dataset.labels),
        "ignore": dataset.ignore,
        "structures": [name for name in check.structures if name in dataset.labels],
        "patients": len({case.patient for case in dataset.cases}),
        "cases": [_record_row(row, check) for row in check.rows],
        "problems": check.problems,
        "warnings": check.warnings,
    }


def _record_row(row: Row, check: Check) -> dict[str, Any]:
    names = {value: name for name, value in check.dataset.labels.items()} | {check.dataset.ignore: "ignore"}
    sizes = {name: check.bounds_ml.get((row.case.name, name)) for name in check.structures}
    return {
        "case": row.case.name,
        "patient": row.case.patient,
        "group": row.case.group,
        "test": row.case.test,
        "images": list(row.case.images),
        "shape": row.shape[::-1],
        "spacing_mm": row.spacing_mm[::-1],
        "orientation": row.orientation,
        "dtype": row.dtype,
        "intensity": row.intensity,
        "voxel_ml": row.voxel_ml,
        "label_vox": {names.get(value, str(value)): count for value, count in row.label_vox.items()},
        "seed_vox": None
        if row.weak_vox is None
        else {names.get(value, str(value)): count for value, count in row.weak_vox.items()},
        "bounds_ml": {name: interval for name, interval in sizes.items() if interval is not None},
    }
