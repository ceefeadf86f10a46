"""The layout of the Medical Segmentation Decathlon: a dataset.json that lists every image with its label map."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from discoseg.data.dataset_json import count_named_channels, read_labels
from discoseg.data.files import channel_paths, image_suffix, strip_suffix
from discoseg.data.layouts import Case, Dataset, patient_of
from discoseg.errors import UserError


def is_decathlon(root: Path, about: dict[str, Any]) -> bool:
    """Return whether the list of cases counts: nnU-Net's version 1 has one too, but names files NAME_0000."""
    return isinstance(about.get("training"), list) and not any((root / "imagesTr").glob("[!.]*_0000.*"))


def find_decathlon(root: Path, about: dict[str, Any]) -> Dataset:
    """List the cases that dataset.json names; several modalities are the channels of one 4D file."""
    path = root / "dataset.json"
    labels, ignore = read_labels(path, about.get("labels"))
    channels = count_named_channels(path, about)
    cases = []
    for part, test in (("training", False), ("test", True)):
        for image, label in _entries(path, part, about.get(part) or []):
            name = strip_suffix(image)
            if not name.startswith("._"):  # what macOS leaves beside a file
                cases.append(Case(name, channel_paths(image, channels), label, patient_of(name), test=test))
    if not cases:
        raise UserError(f'{path}: \'training\' names no image; list them as {{"image": …, "label": …}}')
    return Dataset(root, "decathlon", tuple(sorted(cases, key=lambda c: (c.test, c.name))), labels, ignore)


def _entries(path: Path, part: str, entries: Any) -> Iterator[tuple[Path, Path | None]]:
    """Yield the image and label files of one part, whose entries are objects, or names of images alone."""
    if not isinstance(entries, list):
        raise UserError(f"{path}: '{part}' must be a list of images, not {entries!r}")
    for number, entry in enumerate(entries):
        files = entry if isinstance(entry, dict) else {"image": entry}
        named = [files.get("image"), *([files["label"]] if files.get("label") is not None else [])]
        if not all(isinstance(name, str) and image_suffix(Path(name)) for name in named):
            raise UserError(f"{path}: '{part}' entry {number} must name an image and its label map, not {entry!r}")
        image, *label = (path.parent / name for name in named)
        yield image, label[0] if label else None
