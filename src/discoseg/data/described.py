"""A folder whose own discoseg.json says where things are: patterns of file names, or a table of paths."""

from pathlib import Path
from typing import Any

from discoseg.data.dataset_json import read_json, read_labels
from discoseg.data.layouts import Dataset
from discoseg.data.pattern import match_cases
from discoseg.data.table import TABLE, read_cases
from discoseg.errors import UserError

KEYS = ("images", "labels", "cases", "names", "ignore")


def find_described(root: Path) -> Dataset:
    """List the cases of a folder with a discoseg.json.

    ``images`` is a pattern such as "{case}.nii.gz", or a list of one for each channel, ``labels`` one of the label
    maps; without ``images``, ``cases`` names a table of paths. ``names`` are the values of the structures, ``ignore``
    is the one that means "not annotated".
    """
    path = root / "discoseg.json"
    about = read_json(path, needs="images")
    unknown = [key for key in about if key not in KEYS]
    if unknown:
        raise UserError(f"{path}: unknown entry {unknown[0]!r}; known are {', '.join(KEYS)}")
    labels, ignore = _labels(path, about)
    if "images" not in about:
        cases = read_cases(root / str(about.get("cases", TABLE)))
        return Dataset(root, "table", tuple(cases), labels, ignore)
    if "cases" in about:
        raise UserError(f"{path}: give 'images', or 'cases' with a table of paths, not both")
    images = about["images"] if isinstance(about["images"], list) else [about["images"]]
    return Dataset(root, "pattern", tuple(match_cases(path, images, about.get("labels"))), labels, ignore)


def _labels(path: Path, about: dict[str, Any]) -> tuple[dict[str, int], int]:
    names = about.get("names", {"foreground": 1})
    if not isinstance(names, dict):
        raise UserError(f"{path}: 'names' must give every structure its value, such as {{\"LV\": 3}}, not {names!r}")
    ignore = {"ignore": about["ignore"]} if "ignore" in about else {}
    return read_labels(path, {"background": 0, **names, **ignore}, key="names")
