"""Tables of what is known of cases: one row a case, or one for each of its structures."""

from collections.abc import Iterator
from pathlib import Path

from discoseg.data.rows import Row, read_rows
from discoseg.errors import UserError


def read_table(
    path: Path, column_sets: tuple[tuple[str, ...], ...], *, further_key: str | None = None
) -> Iterator[Row]:
    """Yield the rows of a CSV file whose header has `case` and all columns of at least one of the sets.

    A case has one row, or where there is a column `further_key`, one for each of its values.
    """
    seen: dict[tuple[str, str], int] = {}
    wanted = " or ".join(",".join(("case", *columns)) for columns in column_sets)
    for row in read_rows(path, column_sets, wanted=wanted):
        if not row.case:
            raise UserError(f"{row.where}: the case has no name")
        key = row.case, row.cells.get(further_key or "", "")
        if key in seen:
            what = " ".join(part for part in key if part)
            raise UserError(f"{row.where}: case {what} stands in line {seen[key]} already")
        seen[key] = row.line
        yield row
