"""Trainings whose results can be laid over the images, and what they suggest to annotate next."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from discoseg.errors import UserError
from discoseg.finished import FINAL, is_finished
from discoseg.next_case import rank_cases
from discoseg.report.runs import read_columns

MOST_SUGGESTED = 5


@dataclass(frozen=True)
class Runs:
    """The run folders in ``folder``, and one ``given`` beside them."""

    folder: Path
    given: Path | None = None

    def folders(self) -> dict[str, Path]:
        """Return the run folders by name, the given one first."""
        own = sorted(path for path in self.folder.iterdir() if (path / "config.toml").is_file())
        found = {path.name: path for path in own}
        if self.given is None:
            return found
        name = self.given.resolve().name
        return {f"{name}-given" if name in found else name: self.given, **found}

    def titles(self) -> dict[str, str]:
        """Return what to call each run, by name: its name, and how far it has come."""
        titles = {}
        for name, path in self.folders().items():
            epochs = len(read_metrics(path))
            titles[name] = f"{name}: {epochs} epochs{'' if is_finished(path) else ' so far'}"
        return titles

    def suggested(self, cases: Collection[str]) -> list[str]:
        """Return which of the ``cases`` to annotate next, by the given run or the one in the folder finished last."""
        finished = [path for path in self.folders().values() if path != self.given and is_finished(path)]
        run = self.given or max(finished, key=lambda path: (path / FINAL).stat().st_mtime, default=None)
        if run is None:
            return []
        try:
            ranked = rank_cases(run, top=MOST_SUGGESTED)
        except UserError:  # no epoch of it is finished yet
            return []
        return [case.case for case in ranked if case.case in cases]


def read_metrics(run: Path) -> list[dict[str, float | None]]:
    """Return the rows of a run's metrics.csv, one for each epoch so far; None for what is no finite number."""
    path = run / "metrics.csv"
    if not path.is_file():
        return []
    try:
        columns = read_columns(path)
    except UserError:  # it is being written, or is another's
        return []
    rows = zip(*columns.values(), strict=True)
    return [{name: _finite(value) for name, value in zip(columns, row, strict=True)} for row in rows]


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
