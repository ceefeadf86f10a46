"""nnU-Net's raw layout: dataset.json, imagesTr/NAME_0000.nii.gz (a file a channel), labelsTr/NAME.nii.gz."""

import json
import re
from pathlib import Path
from typing import Any

from discoseg.data.files import IMAGE_SUFFIXES, list_images, strip_suffix
from discoseg.data.layouts import Case, Dataset, patient_of
from discoseg.errors import UserError


def find_nnunet(root: Path) -> Dataset:
    """List the cases of a folder with a dataset.json of version 2 (or 1, where labels are keyed by value)."""
    path = root / "dataset.json"
    about = _read_json(path)
    ending = about.get("file_ending", ".nii.gz")
    if ending not in IMAGE_SUFFIXES:
        raise UserError(f"{path}: file_ending {ending!r} is not supported, only {', '.join(IMAGE_SUFFIXES)}")
    labels = _labels(path, about.get("labels"))
    ignore = labels.pop("ignore", max(labels.values()) + 1)
    named = about.get("channel_names") or about.get("modality") or [0]
    if not isinstance(named, dict | list):
        raise UserError(f"{path}: channel_names must be an object of names, not {named!r}")
    channels = len(named)
    cases = [
        case
        for part, test in (("Tr", False), ("Ts", True))
        for case in _find_part(root / f"images{part}", root / f"labels{part}", ending, channels, test=test)
    ]
    if not cases:
        raise UserError(f"{root} has a dataset.json but no case: looked for imagesTr/NAME_0000{ending}")
    return Dataset(root, "nnunet", tuple(cases), labels, ignore)


def _find_part(images: Path, labels: Path, ending: str, channels: int, *, test: bool) -> list[Case]:
    """List the cases of one part; a case is there as soon as its label or any of its channels is."""
    maps = {strip_suffix(p): p for p in _with_ending(labels, ending)}
    names = {m[1] for p in _with_ending(images, ending) if (m := re.fullmatch(r"(.+)_\d{4}", strip_suffix(p)))}
    return [
        Case(
            name,
            tuple(images / f"{name}_{channel:04d}{ending}" for channel in range(channels)),
            maps.get(name),
            patient_of(name),
            test=test,
        )
        for name in sorted(names | maps.keys())
    ]


def _with_ending(folder: Path, ending: str) -> list[Path]:
    return [p for p in list_images(folder) if p.name.endswith(ending)] if folder.is_dir() else []


def _read_json(path: Path) -> dict[str, Any]:
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(about, dict):
        raise UserError(f"{path} must be a JSON object with the entry 'labels'")
    return about


def _labels(path: Path, entry: Any) -> dict[str, int]:
    """Return values by name, "ignore" too, from version 2's {name: value} or version 1's {value: name}."""
    labels = entry if isinstance(entry, dict) else {}
    if labels and all(isinstance(name, str) and value.isdigit() for value, name in labels.items()):
        labels = {name: int(value) for value, name in labels.items()}
    if "background" not in labels or len(labels) < 2:
        raise UserError(f"{path}: 'labels' must name the background and at least one structure with their values")
    for name, value in labels.items():
        if type(value) is not int or value < 0:
            raise UserError(f"{path}: label {name!r} must be one whole number, not {value!r} (regions do not work)")
    if labels["background"] != 0 or len(set(labels.values())) < len(labels):
        raise UserError(f"{path}: 'labels' must give the background 0 and every other label a value of its own")
    return dict(labels)
