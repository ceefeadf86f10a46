"""nnU-Net's raw layout: dataset.json, imagesTr/NAME_0000.nii.gz (a file a channel), labelsTr/NAME.nii.gz."""

import re
from pathlib import Path
from typing import Any

from discoseg.data.dataset_json import count_named_channels, read_labels
from discoseg.data.files import (
    IMAGE_SUFFIXES,
    PICTURE_SUFFIXES,
    channel_paths,
    image_suffix,
    is_visible_file,
    strip_suffix,
)
from discoseg.data.layouts import Case, Dataset, patient_of
from discoseg.errors import UserError


def find_nnunet(root: Path, about: dict[str, Any]) -> Dataset:
    """List the cases of a folder with a dataset.json of version 2 (or 1, where labels are keyed by value).

    Training cases may also be listed under "dataset", with files anywhere. A splits_final.json beside it is the
    dataset's own split.
    """
    path = root / "dataset.json"
    ending = about.get("file_ending", ".nii.gz")
    if ending not in IMAGE_SUFFIXES:
        raise UserError(f"{path}: file_ending {ending!r} is not supported, only {', '.join(IMAGE_SUFFIXES)}")
    labels, ignore = read_labels(path, about.get("labels"))
    channels = count_named_channels(path, about)
    if "dataset" in about:
        cases = _listed(path, about["dataset"], channels)
    else:
        cases = _find_part(root / "imagesTr", root / "labelsTr", ending, channels, test=False)
    cases += _find_part(root / "imagesTs", root / "labelsTs", ending, channels, test=True)
    if not cases:
        raise UserError(f"{root} has a dataset.json but no case: looked for imagesTr/NAME_0000{ending}")
    split = root / "splits_final.json"
    return Dataset(root, "nnunet", tuple(cases), labels, ignore, split if split.is_file() else None)


def _find_part(images: Path, labels: Path, ending: str, channels: int, *, test: bool) -> list[Case]:
    """List the cases of one part; a case is there as soon as its label or any of its channels is."""
    maps = {strip_suffix(p): p for p in _with_ending(labels, ending)}
    files = {strip_suffix(p) for p in _with_ending(images, ending)}
    names = {match[1] for name in files if (match := re.fullmatch(r"(.+)_\d{4}", name))}
    cases = []
    for name in sorted(names | maps.keys()):
        channel_files = tuple(images / f"{name}_{channel:04d}{ending}" for channel in range(channels))
        if ending in PICTURE_SUFFIXES and f"{name}_0001" not in files:  # a coloured picture has all channels in one
            channel_files = channel_paths(channel_files[0], channels)
        cases.append(Case(name, channel_files, maps.get(name), patient_of(name), test=test))
    return cases


def _listed(path: Path, entry: Any, channels: int) -> list[Case]:
    """List the cases of {"NAME": {"images": [...], "label": ...}}, whose paths are relative to the folder."""
    cases = []
    for name, files in sorted((entry if isinstance(entry, dict) else {"": entry}).items()):
        images, label = (files.get("images"), files.get("label")) if isinstance(files, dict) else (None, None)
        named = [*images, label] if isinstance(images, list) else []
        if len(named) != channels + 1 or not all(isinstance(f, str) and image_suffix(Path(f)) for f in named):
            raise UserError(f"{path}: 'dataset' must give {name!r} {channels} 'images' (one a channel) and a 'label'")
        *channel_files, label_file = (path.parent / file for file in named)
        cases.append(Case(name, tuple(channel_files), label_file, patient_of(name)))
    return cases


def _with_ending(folder: Path, ending: str) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if p.name.endswith(ending) and is_visible_file(p))
