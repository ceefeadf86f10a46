"""Read finished or running trainings back from their run folders, for figures and tables."""

import csv
import io
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discoseg.data.arrays import DAMAGE, read_npz
from discoseg.errors import UserError
from discoseg.report.soundness import are_epochs, require_facts, require_settings, require_slice
from discoseg.texts import parse_json, parse_toml, read_bytes

Floats = NDArray[np.float64]
Slice = dict[str, NDArray[Any]]
"""A case's slice (H, W) at one epoch: image, seeds, probability and, if they exist, truth, crf and size."""

_SNAPSHOT = ("image", "seeds", "probability")  # what each of its slices has
_LARGEST = 1e15  # of a finite number in a table


@dataclass(frozen=True)
class Contour:
    """A case after the last epoch: its split, and a slice with image, mask (labels 0 to K) and, if known, truth."""

    split: str
    shown: Slice


@dataclass(frozen=True)
class Run:
    """What a run folder says; ``timing``, ``cases``, ``snapshots`` and ``contours`` are empty where it has none."""

    name: str
    root: Path
    config: dict[str, Any]
    config_text: str
    facts: dict[str, Any]  # run.json
    metrics: dict[str, Floats]  # column -> (epochs,), nan where a row has no value
    timing: dict[str, Floats]  # phase, or "epoch" -> (epochs,), in seconds
    cases: list[dict[str, str]]
    snapshots: dict[int, dict[str, Slice]]  # epoch -> case -> slice
    contours: dict[str, Contour]  # by case
    mean: dict[str, float] = field(default_factory=dict)  # scores of the mean of the last epochs' weights

    def last(self, column: str) -> float:
        """The value of a metric after the last epoch, nan where the run has none."""
        return float(self.metrics[column][-1]) if column in self.metrics else np.nan

    @property
    def structures(self) -> dict[str, int | None]:
        """What the run segments: names, with their values in label maps where the run says so."""
        model = self.facts.get("model", {})
        if isinstance(labels := model.get("labels"), dict):
            return dict(labels)
        return {str(model.get("label", self.config.get("label", "foreground"))): None}

    def ending(self, structure: str) -> str | None:
        """What columns about a structure end in: nothing where it is the only one, None where the run has it not."""
        if structure not in self.structures:
            return None
        return f"_{structure}" if len(self.structures) > 1 else ""

    @property
    def planned_epochs(self) -> int:
        """The epochs that the training is to have."""
        return int(self.config.get("epochs", self.metrics["epoch"][-1]))


def list_structures(runs: Sequence[Run]) -> list[str]:
    """The structures of all runs, each once."""
    return list(dict.fromkeys(name for run in runs for name in run.structures))


def read_runs(roots: Sequence[Path]) -> list[Run]:
    """Read run folders, each under its name."""
    return [_read_run(root, name) for root, name in zip(roots, name_runs(roots), strict=True)]


def name_runs(roots: Sequence[Path]) -> list[str]:
    """Name each run folder after itself, or by its path where two are named alike."""
    places = [root.resolve() for root in roots]
    twice = [root for root, place in zip(roots, places, strict=True) if places.count(place) > 1]
    if twice:
        raise UserError(f"{twice[0]}: given more than once; name each run folder once")
    names = [place.name for place in places]
    return [name if names.count(name) == 1 else str(root) for root, name in zip(roots, names, strict=True)]


def _read_run(root: Path, name: str) -> Run:
    if not root.is_dir():
        raise UserError(f"{root}: no such run folder")
    config_text = read_text(root / "config.toml", "so this is no run folder")
    path, timing, cases = root / "metrics.csv", root / "timing.csv", root / "cases.csv"
    metrics = read_columns(path, if_missing="no epoch is finished yet")
    if not metrics or not are_epochs(metrics["epoch"]):
        raise UserError(f"{path}: broken, it needs one row an epoch, with its number in the column epoch")
    times = read_columns(timing) if timing.is_file() else {}
    if times and not (are_epochs(times["epoch"]) and all(((s >= 0) & (s < np.inf)).all() for s in times.values())):
        raise UserError(f"{timing}: broken, it needs one row an epoch, and seconds in the other columns")
    config = _parse_toml(root / "config.toml", config_text)
    facts = _parse_json(root / "run.json", read_text(root / "run.json", "so this is no run folder"))
    require_settings(root / "config.toml", config)
    require_facts(root / "run.json", facts)
    return Run(
        name=name,
        root=root,
        config=config,
        config_text=config_text,
        facts=facts,
        metrics=metrics,
        timing=times,
        cases=read_rows(cases, needs=("case", "split")) if cases.is_file() else [],
        snapshots={epoch: _read_slices(path, _SNAPSHOT)[0] for epoch, path in _list_snapshots(root / "snapshots")},
        contours=_read_contours(root / "contours.npz"),
        mean=_read_mean(root / "checkpoints" / "mean.safetensors"),
    )


def _read_mean(model: Path) -> dict[str, float]:
    """Read how well the mean of the last epochs' weights does; nothing where a run has none, or none yet."""
    from discoseg.checkpoint_header import load_meta

    if model.is_file():
        with suppress(UserError, OverflowError):  # a damaged model is no reason to say nothing about the run
            return {name: float(value) for name, value in load_meta(model).items() if isinstance(value, int | float)}
    return {}


def read_rows(path: Path, *, needs: Sequence[str] = (), if_missing: str = "") -> list[dict[str, str]]:
    """Read a CSV file; a row that does not fit its header, or a missing column, is a :class:`UserError`."""
    try:
        reader = csv.DictReader(io.StringIO(read_text(path, if_missing)), strict=True)
        rows = list(reader)
    except csv.Error as error:
        raise UserError(f"{path}: broken CSV: {error}") from error
    for column in needs:
        if column not in (reader.fieldnames or ()):
            raise UserError(f"{path}: broken CSV: it has no column {column}")
    for line, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise UserError(f"{path}: broken CSV: row {line} does not have the header's number of columns")
    return rows


def number(path: Path, column: str, text: str | float | None) -> float:
    """The number in a table's cell; nan where it is empty."""
    try:
        value = float(text) if text not in ("", None) else np.nan
    except (ValueError, TypeError, OverflowError):
        value = _LARGEST * 2
    if _LARGEST < abs(value) < np.inf:
        raise UserError(f"{path}: broken, column {column} holds {text!r} where a number belongs")
    return value


def read_columns(path: Path, *, if_missing: str = "") -> dict[str, Floats]:
    """Read a CSV file of numbers, one row an epoch, by column; empty cells are nan, a file without rows is {}."""
    rows = read_rows(path, needs=("epoch",), if_missing=if_missing)
    return {key: np.array([number(path, key, row[key]) for row in rows]) for key in (rows[0] if rows else ())}


def _list_snapshots(folder: Path) -> list[tuple[int, Path]]:
    """The snapshots by epoch, in order."""
    numbered = ((path.stem.removeprefix("epoch_"), path) for path in folder.glob("epoch_*.npz"))
    return sorted((int(epoch), path) for epoch, path in numbered if epoch.isdecimal())


def _read_slices(path: Path, needed: Sequence[str]) -> tuple[dict[str, Slice], list[str]]:
    """A file's slices by case, and the cases' splits where it has them."""
    try:
        arrays = read_npz(path)
        slices: list[Slice] = [{} for _ in arrays["names"]]
        names, splits = (arrays.pop(key, np.array([])).tolist() for key in ("names", "splits"))
        for key, array in arrays.items():
            index, kind = key.split(".")
            slices[int(index)][kind] = array
        for shown in slices:
            require_slice(shown, needed)
        return dict(zip(map(str, names), slices, strict=True)), list(map(str, splits))
    except (*DAMAGE, TypeError) as error:
        raise UserError(f"{path}: broken snapshot: {error}") from error


def _read_contours(path: Path) -> dict[str, Contour]:
    if not path.is_file():
        return {}
    slices, splits = _read_slices(path, ("image", "mask"))
    if len(splits) != len(slices):
        raise UserError(f"{path}: broken, it does not say of every case whether it trained or validated")
    return {case: Contour(split, shown) for (case, shown), split in zip(slices.items(), splits, strict=True)}


def read_text(path: Path, if_missing: str = "") -> str:
    """Read a UTF-8 file that must exist; ``if_missing`` says what it means where it does not."""
    try:
        return read_bytes(path).decode("utf-8")
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist{f', {if_missing}' if if_missing else ''}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from error


def _parse_toml(path: Path, text: str) -> dict[str, Any]:
    try:
        return parse_toml(text)
    except ValueError as error:
        raise UserError(f"{path}: not valid TOML: {error}") from error


def _parse_json(path: Path, text: str) -> dict[str, Any]:
    try:
        return dict(parse_json(text))
    except (ValueError, TypeError) as error:
        raise UserError(f"{path}: not valid JSON: {error}") from error
