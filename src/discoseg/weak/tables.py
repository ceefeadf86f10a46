"""Small CSV tables that people write by hand: one row a case, and an error that names the line."""

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from discoseg.errors import UserError


@dataclass(frozen=True)
class Row:
    """One case's cells by column name; `where` is "FILE line N" for errors."""

    where: str
    case: str
    cells: dict[str, str]

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
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: save it as a plain text or CSV file") from error


def read_table(
    path: Path, column_sets: tuple[tuple[str, ...], ...], *, further_key: str | None = None
) -> Iterator[Row]:
    """Yield the rows of a CSV file whose header has `case` and all columns of at least one of the sets.

    Column names are compared in lower case, blank lines are skipped, further columns are kept. A case has one row, or
    where there is a column `further_key`, one for each of its values.
    """
    lines = csv.reader(read_text(path).splitlines(), skipinitialspace=True)
    header = [name.strip().lower() for name in next(lines, [])]
    if "case" not in header or not any(set(columns) <= set(header) for columns in column_sets):
        wanted = " or ".join(",".join(("case", *columns)) for columns in column_sets)
        raise UserError(f"{path} line 1: the columns must be {wanted}, not {','.join(header)}")
    if len(set(header)) < len(header):
        raise UserError(f"{path} line 1: a column occurs twice in {','.join(header)}")
    seen: dict[tuple[str, str], int] = {}
    for cells in lines:
        if not any(cell.strip() for cell in cells):
            continue
        where = f"{path} line {lines.line_num}"
        if len(cells) != len(header):
            raise UserError(f"{where}: {len(cells)} cells where the header has {len(header)}")
        by_column = dict(zip(header, map(str.strip, cells), strict=True))
        row = Row(where, by_column["case"], by_column)
        if not row.case:
            raise UserError(f"{where}: the case has no name")
        key = row.case, row.cells.get(further_key or "", "")
        if key in seen:
            what = " ".join(part for part in key if part)
            raise UserError(f"{where}: case {what} stands in line {seen[key]} already")
        seen[key] = lines.line_num
        yield row
