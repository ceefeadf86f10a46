"""What dataset.json and discoseg.json say: JSON with errors that name the file, and the meaning of label values."""

from pathlib import Path
from typing import Any

from discoseg import texts
from discoseg.errors import UserError

HIGHEST = 255  # label value


def read_json(path: Path, *, needs: str) -> dict[str, Any]:
    """Read a JSON object; ``needs`` names an entry for the error about anything else."""
    try:
        about = texts.read_json(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(about, dict):
        raise UserError(f"{path} must be a JSON object with the entry '{needs}'")
    return about


def read_labels(path: Path, entry: Any, *, key: str = "labels") -> tuple[dict[str, int], int]:
    """Return values by name and the value of "not annotated", from {name: value}, or {value: name} of older files.

    The latter is the value of "ignore", else the highest one plus one (below 256, else the highest that is free).
    ``path`` and ``key`` are named in errors.
    """
    labels = entry if isinstance(entry, dict) else {}
    if labels and all(isinstance(name, str) and value.isdecimal() for value, name in labels.items()):
        labels = {name: int(value) for value, name in labels.items()}
    if "background" not in labels or not labels.keys() - {"background", "ignore"}:
        raise UserError(f"{path}: '{key}' must name the background and at least one structure with their values")
    for name, value in labels.items():
        if isinstance(value, list):
            raise UserError(f"{path}: label {name!r} is a region of several values, {value}: give it one value")
        if type(value) is not int or not 0 <= value <= HIGHEST:
            raise UserError(f"{path}: label {name!r} must be one whole number from 0 to {HIGHEST}, not {value!r}")
    if labels["background"] != 0 or len(set(labels.values())) < len(labels):
        raise UserError(f"{path}: '{key}' must give the background 0 and every other label a value of its own")
    structures = {name: value for name, value in labels.items() if name != "ignore"}
    used = set(structures.values())
    free = (value for value in (max(used) + 1, *range(HIGHEST, 0, -1)) if value <= HIGHEST and value not in used)
    return structures, labels["ignore"] if "ignore" in labels else next(free)


def count_named_channels(path: Path, about: dict[str, Any]) -> int:
    """Return how many channels ``channel_names``, or ``modality`` in older files, names; 1 without either."""
    named = about.get("channel_names") or about.get("modality") or [0]
    if not isinstance(named, dict | list):
        raise UserError(f"{path}: channel_names must be an object of names, not {named!r}")
    return len(named)
