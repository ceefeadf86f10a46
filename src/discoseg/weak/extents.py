"""The first and the last slice that a structure is in, where someone has looked: ``slices.csv`` beside the seeds.

    case,label,first,last
    patient001_frame01,RV,1,8

Slices count from 0 in the order of the image's file, across the axis that the network's slices lie across. Without the
column `label` they are of the structure that is trained.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from discoseg.data.files import write_atomically
from discoseg.data.layouts import Case, Dataset
from discoseg.data.orientation import turn_axes
from discoseg.data.rows import Row
from discoseg.data.volume import Volume, read_geometry
from discoseg.errors import UserError
from discoseg.weak.tables import read_table

SLICES = "slices.csv"
"""The file's name in a folder of seeds."""
Extent = tuple[int, int]
"""The first and the last slice of a structure; on the grid, unless it is said to be in a file."""


def read_extents(
    folder: Path | None, dataset: Dataset, cases: Sequence[Case], structures: Mapping[str, int], orientation: str
) -> dict[str, Extent]:
    """Return the slices of the only structure by the case's name, as far as they are known.

    ``folder`` is that of the seeds; ``structures`` are values in label maps by name; ``orientation`` is the grid's.
    """
    if len(structures) > 1:
        raise UserError(f"--rounds.slices works for one structure, not for {', '.join(structures)}: leave it out")
    if folder is None or not (folder / SLICES).is_file():
        where = f"--seeds: is not given, and so no {SLICES}" if folder is None else f"{folder}: has no {SLICES}"
        raise UserError(f"{where} (case,first,last), which --rounds.slices needs; add it, or leave the option out")
    ((name, value),) = structures.items()
    known = {case.name for case in dataset.cases}
    rows: dict[str, Row] = {}
    for row in read_table(folder / SLICES, (("first", "last"),), further_key="label"):
        if row.case not in known:
            raise UserError(f"{row.where}: case {row.case} is not in {dataset.root}")
        try:
            is_other = "label" in row.cells and dataset.label_value(row.cells["label"]) != value
        except UserError as error:
            raise UserError(f"{row.where}: {error}") from error
        if is_other:
            continue
        if row.case in rows:
            raise UserError(f"{row.where}: case {row.case} stands in line {rows[row.case].line} already")
        rows[row.case] = row
    if not rows:
        raise UserError(
            f"{folder / SLICES}: has no slices of {name}; add them, or leave the option --rounds.slices out"
        )
    return {case.name: _on_grid(rows[case.name], case, orientation) for case in cases if case.name in rows}


def write_extents(path: Path, extents: Iterable[tuple[Case, str, Extent]], orientation: str) -> None:
    """Write the slices of cases and structures on a grid of this orientation."""
    text = io.StringIO()
    rows = (
        (case.name, label, *_turn(extent, read_geometry(case.images[0]), orientation))
        for case, label, extent in extents
    )
    csv.writer(text, lineterminator="\n").writerows([("case", "label", "first", "last"), *rows])
    with write_atomically(path) as temporary:
        temporary.write_text(text.getvalue(), encoding="utf-8")


def extent_of(mask: NDArray[np.bool_]) -> Extent:
    """Return the first and the last slice of a mask (z, y, x) that is not empty."""
    inside = np.flatnonzero(mask.any(axis=(1, 2)))
    return int(inside[0]), int(inside[-1])


def limit_to(extent: Extent, seeds: NDArray[np.int8], *, start: int = 0) -> NDArray[np.int8]:
    """Return seeds (z, y, x) in which what is unknown (−1) beyond the extent is background.

    ``start`` is the number of their first slice.

    >>> limit_to((5, 5), np.array([[[-1]], [[-1]], [[1]]], np.int8), start=4).ravel()
    array([ 0, -1,  1], dtype=int8)
    """
    first, last = extent
    numbers = start + np.arange(len(seeds))
    beyond = (numbers < first) | (numbers > last)
    return np.where(beyond[:, None, None] & (seeds < 0), 0, seeds).astype(np.int8)


def across_the_same(orientation: str, other: str) -> bool:
    """Say whether slices across the last axes of two orientations are the same, counted from either end.

    >>> across_the_same("LPS", "RAI"), across_the_same("LPS", "PSL")
    (True, False)
    """
    return turn_axes(orientation, other)[2] == 2


def _on_grid(row: Row, case: Case, orientation: str) -> Extent:
    """Return a row's slices on the grid; they must be in the volume."""
    volume = read_geometry(case.images[0])
    depth = _depth(volume, orientation)
    first, last = row.number("first"), row.number("last")
    if not (first.is_integer() and last.is_integer() and 0 <= first <= last < depth):
        found = f"{row.cells['first']} to {row.cells['last']}"
        raise UserError(f"{row.where}: slices {found} of {case.name}, which has 0 to {depth - 1}")
    return _turn((int(first), int(last)), volume, orientation)


def _turn(extent: Extent, volume: Volume, orientation: str) -> Extent:
    """Return slices of the file on the grid, or the other way round: counted from the other end where it is turned."""
    if orientation[2] in volume.orientation:
        return extent
    last = _depth(volume, orientation) - 1
    return last - extent[1], last - extent[0]


def _depth(volume: Volume, orientation: str) -> int:
    """Return how many slices the volume has across the grid's last axis."""
    return volume.shape[::-1][turn_axes(volume.orientation, orientation)[2]]
