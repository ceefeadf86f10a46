"""Which training case to annotate next, and on which slice: `discoseg next RUN` reads next.csv and the images' headers.

Training writes the table (:mod:`discoseg.disagreement`); its slices are those of the network's grid, and an annotator
sees those of the image file, which may have other axes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discoseg.data.layouts import find_dataset
from discoseg.data.orientation import turn_axes
from discoseg.data.volume import read_orientation
from discoseg.errors import UserError
from discoseg.texts import read_json
from discoseg.weak.tables import read_table

if TYPE_CHECKING:
    from rich.console import Console

_NEEDED = ("score", "open_vox", "seeded_percent", "entropy", "slice", "slices")
_NAMES = {"crf": "CRF", "size": "size"}


@dataclass(frozen=True)
class NextCase:
    """A training case, its score, and where to begin.

    ``slice`` of ``slices``, counted from 0, lies across the ``axis`` x, y or z of the image file as it is stored
    (nibabel's first, second, third); where the file cannot be read any more (``in_file`` is False), across z of the
    training's own orientation. ``measures`` are the other columns of next.csv.
    """

    case: str
    score: float
    why: str
    slice: int
    slices: int
    axis: str
    in_file: bool
    measures: dict[str, float]


def rank_cases(run: Path, *, top: int | None = None) -> list[NextCase]:
    """Return the training cases of a run that have voxels left to annotate, the highest score first, ``top`` at most.

    They are as the last finished epoch left them, so a training that still runs has some, too.
    """
    if not (run / "config.toml").is_file():
        raise UserError(f"{run}: no run folder, it has no config.toml")
    if not (run / "next.csv").is_file():
        raise UserError(f"{run}: no next.csv, no epoch is finished yet; an older run has one after another epoch")
    rows = []
    for row in read_table(run / "next.csv", (_NEEDED,)):
        numbers = {column: row.number(column) for column, text in row.cells.items() if column != "case" and text}
        if missing := [column for column in _NEEDED if column not in numbers]:
            raise UserError(f"{row.where}: {missing[0]} is empty; train another epoch to have the table anew")
        if numbers["open_vox"]:
            rows.append((row.case, numbers))
    rows.sort(key=lambda row: -row[1]["score"])  # stable: ties stay in the table's order
    where = _Files(run)
    return [_describe(case, numbers, where) for case, numbers in rows[:top]]


def explain(measures: Mapping[str, float]) -> str:
    """Return in words what a case's row of next.csv says."""
    differ = {name: measures[f"differ_{name}"] for name in _NAMES if f"differ_{name}" in measures}
    if not differ:
        return f"the network is unsure: entropy {measures['entropy']:.2f} of 1 on open voxels"
    worst = max(differ, key=lambda name: differ[name])
    said = f"network and {_NAMES[worst]} proposal disagree on {_percent(differ[worst])} of open voxels"
    if changed := measures.get(f"unstable_{worst}", 0.0):
        said += f", {_percent(changed)} change an epoch"
    return said


def print_cases(run: Path, cases: Sequence[NextCase], *, console: "Console | None" = None) -> None:
    """Print the cases as a table."""
    from rich.markup import escape
    from rich.table import Table

    from discoseg.terminal.console import Console

    console = console or Console()
    if not cases:
        said = f"{run}: every voxel of every training case is annotated"
        console.print(said, highlight=False, markup=False, soft_wrap=True)
        return

    table = Table("case", title=f"To annotate next, by {run}", title_justify="left")
    table.add_column("score", justify="right")
    table.add_column("slice", justify="right")
    table.add_column("annotated", justify="right")
    table.add_column("why")
    for case in cases:
        annotated = f"{case.measures['seeded_percent']:.0f} %"
        table.add_row(escape(case.case), f"{case.score:.3f}", f"{case.axis} = {case.slice}", annotated, case.why)
    console.print(table)
    axes = "the image file's own axes" if all(case.in_file for case in cases) else "axes of the training's orientation"
    console.print(f"slices are counted from 0 along {axes}", highlight=False)


class _Files:
    """Where the training's slices lie in the image files."""

    def __init__(self, run: Path) -> None:
        try:
            facts = read_json(run / "run.json")
            self._grid = str(facts["model"]["orientation"])
            dataset = find_dataset(facts["sources"]["dataset"])
            self._images = {case.name: case.images[0] for case in dataset.cases}
        except (OSError, ValueError, LookupError, TypeError, UserError):  # moved since; the ranking stands without it
            self._images = {}

    def locate(self, case: str, index: int, count: int) -> dict[str, Any]:
        """Return slice, axis and whether these are the file's, of slice ``index`` of ``count`` on the grid."""
        try:
            codes = read_orientation(self._images[case])
        except (KeyError, UserError):
            return {"slice": index, "axis": "z", "in_file": False}
        axis = turn_axes(codes, self._grid)[2]
        index = index if codes[axis] == self._grid[2] else count - 1 - index
        return {"slice": index, "axis": "xyz"[axis], "in_file": True}


def _describe(case: str, numbers: dict[str, float], where: _Files) -> NextCase:
    score, index, count = numbers.pop("score"), int(numbers.pop("slice")), int(numbers.pop("slices"))
    place = where.locate(case, index, count)
    return NextCase(case=case, score=score, why=explain(numbers), slices=count, measures=numbers, **place)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"
