"""Cases by a table of paths, cases.csv: the columns case, image (image_2, … for further channels), label."""

import re
from pathlib import Path

from discoseg.data.files import IMAGE_SUFFIXES, file_of, image_suffix
from discoseg.data.layouts import Case, colours_of, patient_of
from discoseg.data.rows import read_rows
from discoseg.errors import UserError

TABLE = "cases.csv"
_MOST_HEADER = 10_000  # characters
COLUMNS = "case, image, label, and maybe image_2, …, patient, group"


def is_table(path: Path) -> bool:
    """Return whether a file is a table of cases, by its first line: other programs write a cases.csv too."""
    if not path.is_file():
        return False
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        return {"case", "image"} <= {cell.strip().strip('"').lower() for cell in file.readline(_MOST_HEADER).split(",")}


def read_cases(path: Path) -> list[Case]:
    """Read the cases of a table, in the order of their names; files that it names must exist.

    Paths are relative to the table's folder. Without a patient, the case's name tells it; other columns are ignored.
    """
    cases: dict[str, Case] = {}
    for entry in read_rows(path, [("image",)], wanted=COLUMNS):
        row, where, name = entry.cells, entry.where, entry.case
        channels = sorted((c for c in row if re.fullmatch(r"image(_\d+)?", c)), key=lambda c: int(c[6:] or 1))
        if not name or name in cases or "/" in name:
            raise UserError(f"{where}: case {name!r} must be a name of its own, without '/'")
        files = [_existing(where, column, row[column], path.parent) for column in channels]
        images = tuple(colour for file in files for colour in colours_of(file))
        label = _existing(where, "label", row["label"], path.parent) if row.get("label") else None
        cases[name] = Case(name, images, label, row.get("patient") or patient_of(name), row.get("group", ""))
    if not cases:
        raise UserError(f"{path} names no case: add a line for each with its {COLUMNS}")
    return [cases[name] for name in sorted(cases)]


def _existing(where: str, column: str, cell: str, folder: Path) -> Path:
    file = folder / cell
    if not cell:
        raise UserError(f"{where}: {column} is empty; every case needs one")
    if not image_suffix(file):
        raise UserError(f"{where}: {column} {cell} must end in one of {', '.join(IMAGE_SUFFIXES)}")
    if not file_of(file).is_file():
        raise UserError(f"{where}: {column} {file} does not exist; correct the path, which is relative to {folder}")
    return file
