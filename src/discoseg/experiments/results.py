"""What is kept of a finished training: one small JSON file, to be carried between machines and put side by side.

    results/lv-crf+size-eps10-seed0.json

Files of several machines merge by copying them into one folder. A table reads these files and nothing else.
"""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from discoseg.config import Config, flatten, from_dict, to_dict
from discoseg.data.files import write_atomically
from discoseg.errors import UserError
from discoseg.experiments.plan import Cell
from discoseg.report.runs import Run, read_runs

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
_DIGITS = 5


@dataclass(frozen=True)
class Result:
    """A finished training; ``history`` holds columns of its metrics, one value an epoch."""

    cell: Cell
    config: dict[str, Any]
    history: dict[str, list[float]]
    seconds: float  # of all its epochs
    facts: dict[str, Any]  # device, versions, commit

    @property
    def best_dice(self) -> float:
        """The 3D validation Dice of the best epoch, as the paper reports it."""
        return max(self.history["val_dice"])

    @property
    def best_epoch(self) -> int:
        """The epoch, from 1, that the best Dice was reached in first."""
        return 1 + self.history["val_dice"].index(self.best_dice)

    def last(self, column: str) -> float:
        """The value of a column after the last epoch; nan where it has none."""
        return self.history[column][-1] if column in self.history else math.nan


def keep_result(cell: Cell, run: Path, folder: Path) -> Result:
    """Write what is kept of the finished training in the folder ``run`` to ``folder``, and return it."""
    (read,) = read_runs([run])
    result = _summarise(cell, read)
    folder.mkdir(parents=True, exist_ok=True)
    with write_atomically(folder / f"{cell.name}.json") as path:
        path.write_text(json.dumps(asdict(result), indent=1) + "\n", encoding="utf-8")
    return result


def _summarise(cell: Cell, run: Run) -> Result:
    history = {name: [round(float(v), _DIGITS) for v in run.metrics[name]] for name in _COLUMNS if name in run.metrics}
    seconds = sum(float(values.sum()) for phase, values in run.timing.items() if phase != "epoch")
    facts = {name: run.facts.get(name) for name in ("device", "versions", "commit")}
    return Result(cell, run.config, history, round(seconds, 1), facts)


def read_results(folder: Path) -> dict[str, Result]:
    """Return the results in a folder by the names of their trainings; none where there is no such folder."""
    return {path.stem: _read(path) for path in sorted(folder.glob("*.json"))}


def _read(path: Path) -> Result:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        result = Result(**{**values, "cell": Cell(**values["cell"])})
        usable = bool(result.history["val_dice"]) and all(isinstance(v, float) for v in result.history["val_dice"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not a result of 'discoseg reproduce' ({error}); remove it to make it anew") from error
    if not usable or result.cell.name != path.stem:
        raise UserError(f"{path}: not a result of 'discoseg reproduce', or renamed; remove it to make it anew")
    return result


def require_same_settings(result: Result, config: Config, path: Path) -> None:
    """Refuse a result that another configuration made."""
    made = from_dict(result.config, base=Config(), where=str(path))  # settings that came later had their default
    old, new = flatten(to_dict(made)), flatten(to_dict(config))
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            raise UserError(
                f"{path}: was made with another {key}: {old.get(key)!r}, now {new.get(key)!r}; "
                "choose another --out, or remove it and its run folder"
            )
