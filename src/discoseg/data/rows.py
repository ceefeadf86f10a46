"""Small CSV tables that people write by hand: rows by column name, and an error that names the line."""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from discoseg.errors import UserError
from discoseg.texts import read_bytes


@dataclass(frozen=True)
class Row:
    """One case's cells by column name; `line` counts from 1, and `where` is "FILE line N" for errors."""

    where: str
    line: int
    cells: dict[str, str]

    @property
    def case(self) -> str:
        """The case that the row is about."""
        return self.cells["case"]

    def number(self, column: str, *, empty: float | None = None) -> float:
        """Return a cell as a finite number; an empty cell is `empty`, or an error when that is None."""
        text = self.cells[column]
        if not text and empty is not None:
            return empty
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise UserError(f"{self.where}: {column} must be a number, not {text!r}")
        return value


def read_text(path: Path) -> str:
    """Read a text file (UTF-8, with or without the byte-order mark that spreadsheets write)."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: save it as a plain text or CSV file (UTF-8)") from error


def read_rows(path: Path, column_sets: Sequence[Sequence[str]], *, wanted: str) -> Iterator[Row]:
    """Yield the rows of a CSV file whose header has `case` and all columns of at least one of the sets.

    Column names are compared in lower case, blank lines are skipped, further columns are kept; `wanted` says in errors
    which columns there may be.
    """
    lines = csv.reader(io.StringIO(read_text(path), newline=""), skipinitialspace=True)
    try:
        header = [name.strip().lower() for name in next(lines, [])]
        if "case" not in header or not any(set(columns) <= set(header) for columns in column_sets):
            raise UserError(f"{path} line 1: the columns must be {wanted}, not {','.join(header)}")
        for column in header:
            if column and header.count(column) > 1:
                raise UserError(f"{path} line 1: the column {column} occurs twice; remove one")
        for cells in lines:
            where = f"{path} line {lines.line_num}"
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(header):
                found = f"{len(cells)} cells where the header has {len(header)}"
                raise UserError(f"{where}: {found}; quote cells with commas")
            yield Row(where, lines.line_num, dict(zip(header, map(str.strip, cells), strict=True)))
    except csv.Error as error:
        raise UserError(f"{path} line {lines.line_num}: no table with commas: {error}") from error
