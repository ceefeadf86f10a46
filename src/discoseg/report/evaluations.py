"""Files that ``discoseg evaluate`` wrote, read back for the report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from discoseg.errors import UserError
from discoseg.report.figures import Sizes
from discoseg.report.runs import Run, number, read_rows, read_text
from discoseg.texts import parse_json

_NEEDED = ("case", "label", "dice", "hd95_mm")
_WANTED = (*_NEEDED, "predicted_ml", "reference_ml")


@dataclass(frozen=True)
class Score:
    """One structure of one case; nan is what the file does not say."""

    dice: float
    hd95_mm: float
    predicted_ml: float
    reference_ml: float


@dataclass(frozen=True)
class Evaluated:
    """The scores of one file: by label, and by case."""

    name: str
    colour: int
    scores: dict[str, dict[str, Score]]
    titles: dict[str, str]  # of all labels: the structure's name where a run says so

    def sizes(self, label: str) -> Sizes:
        """The volumes of a structure in ml, without bounds."""
        scores = self.scores[label]
        predicted, true = (
            np.array([getattr(score, key) for score in scores.values()]) for key in ("predicted_ml", "reference_ml")
        )
        return Sizes(list(scores), predicted, true, np.full_like(true, np.nan), np.full_like(true, np.nan))


def read_evaluations(files: Mapping[str, Path], runs: Sequence[Run]) -> list[Evaluated]:
    """Read a .csv or .json file for each name; a run's has the run's colour."""
    colours = {run.name: index for index, run in enumerate(runs)}
    names = {str(value): name for run in runs for name, value in run.structures.items() if value is not None}
    found: dict[str, dict[str, dict[str, Score]]] = {}
    for name, path in files.items():
        found[name] = {}
        for row in _read(path):
            numbers = (number(path, key, row.get(key)) for key in _WANTED[2:])
            found[name].setdefault(str(row["label"]), {})[str(row["case"])] = Score(*numbers)
    labels = sorted({label for scores in found.values() for label in scores})
    titles = {label: names.get(label, f"label {label}") for label in labels}
    return [Evaluated(name, colours.get(name, i), scores, titles) for i, (name, scores) in enumerate(found.items())]


def _read(path: Path) -> list[dict[str, str]]:
    if path.suffix != ".json":
        return read_rows(path, needs=_NEEDED)
    try:
        rows = parse_json(read_text(path))["cases"]
        return [{key: row[key] if key in _NEEDED else row.get(key) for key in _WANTED} for row in rows]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path}: not an evaluation that discoseg wrote") from error
