"""Training and validation cases, never two cases of one patient on different sides."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from discoseg.data.layouts import Case, Dataset
from discoseg.errors import UserError
from discoseg.texts import read_json

VALIDATION_KEYS = ("val", "validation", "validation_patients", "validation_cases")


def split_cases(
    dataset: Dataset, *, split: Path | None = None, fraction: float = 0.2, seed: int = 0
) -> tuple[list[Case], list[Case]]:
    """Return training and validation cases in the dataset's order; test cases are in neither.

    `split` is a JSON file of patient or case names in one of three forms: {"train": [...], "val": [...]};
    nnU-Net's list of such folds, of which `splits_final.json:2` names the third, and a bare path the first;
    {"acdc": {"validation_patients": [...]}}, by layout. Where it names no training cases, all that do not
    validate train. Without a file the dataset's own one counts; where it has none either, `seed` draws the
    `fraction` of the patients that validates.
    """
    split = split or dataset.split
    cases = [case for case in dataset.cases if not case.test]
    if not cases:
        raise UserError(f"{dataset.root}: no case to train on, all are held out for testing")
    if split is None:
        drawn = _draw_patients({case.patient for case in cases}, fraction, seed)
        return [c for c in cases if c.patient not in drawn], [c for c in cases if c.patient in drawn]

    entry = _read_split(split, dataset.layout)
    key = next((key for key in VALIDATION_KEYS if key in entry), None)
    validation = [] if key is None else _select(split, entry[key], cases)
    if "train" in entry:
        training = _select(split, entry["train"], cases)
    else:
        held_out = {case.name for case in validation}
        training = [case for case in cases if case.name not in held_out]
    for patient in sorted({case.patient for case in training} & {case.patient for case in validation}):
        raise UserError(f"{split} puts {patient} into both training and validation: keep a patient on one side")
    if not training:
        raise UserError(f"{split} leaves no case of {dataset.root} for training")
    return training, validation


def _draw_patients(patients: set[str], fraction: float, seed: int) -> set[str]:
    """Draw the patients that validate: at least one when there are two, never all of them."""
    if not 0.0 <= fraction < 1.0:
        raise UserError(f"the validation fraction must be at least 0 and below 1, not {fraction:g}")
    if fraction == 0.0 or len(patients) < 2:
        return set()
    count = min(max(round(fraction * len(patients)), 1), len(patients) - 1)
    order = np.random.default_rng(seed).permutation(len(patients))
    names = sorted(patients)
    return {names[i] for i in order[:count]}


def _read_split(path: Path, layout: str) -> dict[str, Any]:
    """Return the object with the names: the file's own, the chosen fold, or the one for the layout."""
    file, fold = _fold_of(path)
    try:
        entry = read_json(file)
    except FileNotFoundError as error:
        raise UserError(f"{file} does not exist") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read as JSON: {error}") from error
    if fold is not None and not isinstance(entry, list):
        raise UserError(f"{path}: {file.name} has no folds; leave out ':{fold}'")
    if isinstance(entry, list) and entry:
        if (fold or 0) >= len(entry):
            raise UserError(f"{path}: {file.name} has the folds 0 to {len(entry) - 1}; choose one of them")
        entry = entry[fold or 0]
    if isinstance(entry, dict) and isinstance(entry.get(layout), dict):
        entry = entry[layout]
    if not isinstance(entry, dict) or not any(key in entry for key in ("train", *VALIDATION_KEYS)):
        raise UserError(f"{path} is no split for the layout {layout}: it needs lists of names, 'train' and 'val'")
    return entry


def _fold_of(path: Path) -> tuple[Path, int | None]:
    """Split "splits_final.json:2" into the file and the number of the fold; None where the path names none."""
    match = None if path.exists() else re.fullmatch(r"(.+):(\d+)", path.name)
    return (path.with_name(match[1]), int(match[2])) if match else (path, None)


def _select(path: Path, names: Any, cases: list[Case]) -> list[Case]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{path}: {names!r} must be a list of patient or case names")
    known = {case.name for case in cases} | {case.patient for case in cases}
    wanted = set(names)
    for name in names:
        if name not in known:
            raise UserError(f"{path}: {name!r} is no patient or case that can train or validate")
    return [case for case in cases if case.name in wanted or case.patient in wanted]
