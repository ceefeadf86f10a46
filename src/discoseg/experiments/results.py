"""What is kept of a finished training: one small JSON file, to be carried between machines and put side by side.

    results/lv-crf+size-eps10-seed0.json

Files of several machines merge by copying them into one folder. A table reads these files and nothing else.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from discoseg.checkpoint_header import load_meta
from discoseg.config import Config
from discoseg.data.files import write_atomically
from discoseg.errors import UserError
from discoseg.experiments.plan import Cell, in_use
from discoseg.finished import is_finished
from discoseg.plain import flatten, to_dict
from discoseg.presets import from_record, load_run_config
from discoseg.report.runs import Run, read_runs
from discoseg.run import RunFolder
from discoseg.texts import read_json

_COLUMNS = (
    "val_dice",
    "train_dice",
    "crf_dice",
    "size_dice",
    "val_size_ratio",
    "val_size_ratio_std",
    "train_size_ratio",
    "train_size_ratio_std",
    "train_inside_bounds",
)
STRUCTURE_DICE = "val_dice_"  # and the name of one of several structures
_DIGITS = 5


@dataclass(frozen=True)
class Result:
    """A finished training; ``history`` holds columns of its metrics, one value an epoch."""

    cell: Cell
    config: dict[str, Any]
    history: dict[str, list[float]]
    seconds: float  # of all its epochs
    cases: dict[str, Any]  # names of the training and validation cases, checksum of the latter
    facts: dict[str, Any]  # device, versions, commit; how the mean of the last epochs' weights scores

    @property
    def best_dice(self) -> float:
        """The 3D validation Dice of the best epoch, as the paper reports it."""
        return max(self.history["val_dice"])

    @property
    def best_epoch(self) -> int:
        """The epoch, from 1, that the best Dice was reached in first."""
        return 1 + self.history["val_dice"].index(self.best_dice)

    @property
    def mean_dice(self) -> float:
        """The 3D validation Dice of the mean of the last epochs' weights; nan where a training kept none."""
        return float(self.facts.get("mean", {}).get("val_dice", math.nan))

    def last(self, column: str) -> float:
        """The value of a column after the last epoch; nan where it has none."""
        return self.history[column][-1] if column in self.history else math.nan


def keep_result(cell: Cell, config: Config, run: Path, folder: Path) -> Result | None:
    """Write what is kept of the training in the folder ``run`` to ``folder``, and return it.

    None where the training is not finished, or is not the one that ``config`` describes.
    """
    if not is_finished(run, config.epochs):
        return None
    (read,) = read_runs([run])
    if len(read.metrics["epoch"]) != config.epochs or load_run_config(run / "config.toml") != config:
        return None
    result = _summarise(cell, read, RunFolder(run).mean)
    folder.mkdir(parents=True, exist_ok=True)
    with write_atomically(folder / f"{cell.name}.json") as path:
        path.write_text(json.dumps(asdict(result), indent=1) + "\n", encoding="utf-8")
    return result


def _summarise(cell: Cell, run: Run, mean: Path) -> Result:
    columns = [*_COLUMNS, *(name for name in run.metrics if name.startswith(STRUCTURE_DICE))]
    history = {name: [round(float(v), _DIGITS) for v in run.metrics[name]] for name in columns if name in run.metrics}
    seconds = sum(float(values.sum()) for phase, values in run.timing.items() if phase != "epoch")
    facts = {name: run.facts.get(name) for name in ("device", "versions", "commit")}
    if mean.is_file():  # else the training is of an earlier version
        about = load_meta(mean)
        scores = {name: round(about[name], _DIGITS) for name in _COLUMNS if name in about}
        facts["mean"] = {"epochs": about["averaged"], **scores}
    cases = {name: run.facts.get(name) for name in ("training", "validation")}
    cases["checksum"] = run.facts.get("checksums", {}).get("validation")
    return Result(cell, run.config, history, round(seconds, 1), cases, facts)


def read_results(folder: Path) -> dict[str, Result]:
    """Return the results in a folder by the names of their trainings; none where there is no such folder."""
    return {path.stem: _read(path) for path in sorted(folder.glob("[!.]*.json"))}  # hidden ones were never finished


def _read(path: Path) -> Result:
    try:
        values = read_json(path)
        result = Result(**{**values, "cell": Cell(**values["cell"])})
        usable = _is_sound(result) and result.cell.name == path.stem
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: not a result of 'discoseg reproduce' ({error}); remove it to make it anew") from error
    if not usable:
        raise UserError(f"{path}: not a result of 'discoseg reproduce', or renamed; remove it to make it anew")
    return result


def _is_sound(result: Result) -> bool:
    """Say whether all parts have their types and all columns a number an epoch."""
    cell, epochs = result.cell, len(result.history["val_dice"])
    numbers = [cell.seed, result.seconds, *(v for v in (cell.eps, cell.mu) if v is not None)]
    return (
        all(isinstance(part, dict) for part in (result.config, result.cases, result.facts))
        and all(isinstance(value, int | float) and not isinstance(value, bool) for value in numbers)
        and isinstance(cell.seed, int)
        and epochs > 0
        and all(len(column) == epochs for column in result.history.values())
        and all(isinstance(value, int | float) for column in result.history.values() for value in column)
    )


def require_same_cases(results: Iterable[Result]) -> None:
    """Refuse to put results side by side that were trained or scored on different cases.

    Cases are told apart by their names and, among trainings on the same grid, by the checksums of what came onto it.
    """
    first: dict[str, Result] = {}
    for result in results:
        trained = (result.cell.task, result.cell.tuning, result.cell.fold)
        for part in ("training", "validation", "checksum"):
            grid = from_record(result.config, where=result.cell.name).grid if part == "checksum" else None
            key = repr((part, trained, grid))
            other = first.setdefault(key, result)
            if result.cases.get(part) != other.cases.get(part):
                raise UserError(
                    f"{result.cell.name} and {other.cell.name} were trained or scored on different cases (another "
                    "split, or other files), so they cannot stand in one table; keep their results in different folders"
                )


def is_beginning(result: Result, config: Config) -> bool:
    """Say whether a result is that of this configuration but for its epochs, of which it has fewer."""
    made = from_record(result.config, where=result.cell.name)
    return made.epochs < config.epochs and replace(made, epochs=config.epochs) == config


def differs_in_length(result: Result, config: Config) -> bool:
    """Say whether a result has another number of epochs than a configuration, and the same schedule and settings."""
    return list(_differences(result, config)) == ["epochs"]


def require_same_settings(result: Result, config: Config, path: Path) -> None:
    """Refuse a result that another configuration made; what makes no difference to its method may differ."""
    differences = _differences(result, config)
    if list(differences) == ["epochs"]:  # nothing else concerns its method, but a training goes on with all the same
        every = _compare(from_record(result.config, where=result.cell.name), config)
        differences = {key: values for key, values in every.items() if key != "epochs"} or differences
    for key, (old, new) in differences.items():
        raise UserError(
            f"{path}: was made with another {key}: {old!r}, now {new!r}; "
            "choose another --out, or remove it and its run folder"
        )


def _differences(result: Result, config: Config) -> dict[str, tuple[Any, Any]]:
    """Return what a result was made with and what is given now, by dotted names, where that concerns its method."""
    return _compare(in_use(from_record(result.config, where=result.cell.name)), in_use(config))


def _compare(made: Config, given: Config) -> dict[str, tuple[Any, Any]]:
    """Return in what two configurations differ, by dotted names."""
    old, new = flatten(to_dict(made)), flatten(to_dict(given))
    keys = sorted(old.keys() | new.keys())
    return {key: (old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)}
