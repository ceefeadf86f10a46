"""volumes.csv: how large each structure is in each of a folder's label maps."""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from discoseg.data.files import write_atomically
from discoseg.errors import UserError
from discoseg.texts import read_bytes

COLUMNS = ("case", "label", "voxels", "ml")
RANGE = ("ml_min", "ml_max")


@dataclass(frozen=True)
class Size:
    """The voxels and millilitres of a structure, and the range in millilitres over views of the image, if any."""

    voxels: int
    ml: float
    range_ml: tuple[float, float] | None = None

    def row(self) -> dict[str, Any]:
        """Return the columns that follow ``case`` and ``label``."""
        ends = dict(zip(RANGE, (f"{end:.4f}" for end in self.range_ml or ()), strict=False))
        return {"voxels": self.voxels, "ml": f"{self.ml:.4f}", **ends}


def read_volumes(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the rows of a table by case and label; none where there is no file."""
    if not path.exists():
        return {}
    try:
        reader = csv.DictReader(io.StringIO(read_bytes(path).decode("utf-8"), newline=""), strict=True)
        rows = list(reader)
        if tuple(reader.fieldnames or ()) not in (COLUMNS, COLUMNS + RANGE):
            raise ValueError("other columns")
        for row in rows:
            if None in row or None in row.values() or int(row["voxels"]) < 0 or float(row["ml"]) < 0:
                raise ValueError("no sizes")
    except (ValueError, csv.Error) as error:
        raise UserError(f"{path}: not a table that discoseg predict wrote; choose another --out") from error
    return {(row.pop("case"), row.pop("label")): row for row in rows}


def write_volumes(path: Path, rows: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
    """Write case, label, voxels, ml, and where any row has them ml_min and ml_max."""
    columns = COLUMNS + RANGE if any(row.keys() > set(COLUMNS[2:]) for row in rows.values()) else COLUMNS
    with write_atomically(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows({"case": case, "label": label, **row} for (case, label), row in rows.items())
