"""Clicks: one position per volume and structure, near the structure's centre, from a JSON or CSV file.

    {"patient001_frame01": {"voxel": [112, 98, 4]}, "patient002_frame01": {"world_mm": [-12.5, 40.0, 87.5]}}

    case,x,y,z,space
    patient001_frame01,112,98,4,voxel
    patient002_frame01,-12.5,40.0,87.5,world

Several structures have a click each, by name: {"patient001_frame01": {"LV": {"voxel": [112, 98, 4]}, "RV": …}}, or a
line each with the column `label`.

Voxels count from 0 in the file's order x, y, z, as viewers show them; world coordinates are millimetres that
grow towards the patient's right, front and head (RAS+), as in NIfTI. Without the column `space`, voxels.
"""

import csv
import io
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from discoseg.data.files import write_atomically
from discoseg.data.rows import read_text
from discoseg.data.volume import Volume, format_shape
from discoseg.errors import UserError
from discoseg.texts import parse_json
from discoseg.weak.tables import read_table

Space = Literal["voxel", "world"]
_KEYS: dict[str, Space] = {"voxel": "voxel", "world_mm": "world"}


@dataclass(frozen=True)
class Click:
    """One position (x, y, z) in a case's volume: voxels of its file, or RAS+ millimetres.

    ``label`` is the structure, by name or value, or nothing where the file does not say it.
    """

    case: str
    position: tuple[float, float, float]
    space: Space = "voxel"
    source: str = "clicks"  # where it was read, for errors
    label: str = ""

    def to_voxel(self, affine: NDArray[np.float64]) -> tuple[int, int, int]:
        """Return the nearest voxel (x, y, z), inside the volume or not; affine: (4, 4), voxel to RAS+ mm."""
        position = np.array(self.position)
        if self.space == "world":
            position = np.linalg.solve(affine[:3, :3], position - affine[:3, 3])
        x, y, z = np.floor(position + 0.5).astype(int).tolist()
        return x, y, z

    def locate(self, volume: Volume) -> tuple[int, int, int]:
        """Return the nearest voxel (x, y, z), which must lie in the volume."""
        voxel = self.to_voxel(volume.affine)
        if not all(0 <= v < n for v, n in zip(voxel, volume.shape[::-1], strict=True)):
            raise UserError(
                f"{self.source}: the click of case {self.case} is voxel {voxel}, outside its volume of "
                f"{format_shape(volume.shape)} voxels (x, y, z, counted from 0)"
            )
        return voxel

    def on_grid(self, volume: Volume, *, shape: tuple[int, int], orientation: str) -> tuple[int, int, int]:
        """Return the click as (z, y, x) on the grid: turned to `orientation`, resized in plane to `shape`."""
        turned = volume.reoriented(orientation)
        world = volume.affine @ np.array([*self.locate(volume), 1.0])
        x, y, z = Click(self.case, tuple(world[:3].tolist()), "world", self.source).locate(turned)
        rows, columns = turned.shape[1:]
        return z, (2 * y + 1) * shape[0] // (2 * rows), (2 * x + 1) * shape[1] // (2 * columns)


def read_clicks(path: Path) -> dict[tuple[str, str], Click]:
    """Read a `.csv` or else a JSON file of clicks, by case and label, which is empty where the file has none."""
    clicks = _read_csv(path) if path.suffix.lower() == ".csv" else _read_json(path)
    if not clicks:
        raise UserError(f"{path} holds no click")
    return {(click.case, click.label): click for click in clicks}


def write_clicks(path: Path, clicks: Iterable[Click]) -> None:
    """Write clicks as CSV when the name ends in `.csv`, else as JSON; either all have a label or none has."""
    clicks = list(clicks)
    labelled = any(click.label for click in clicks)
    if path.suffix.lower() == ".csv":
        buffer = io.StringIO()
        rows = ((c.case, *map(_plain, c.position), c.space, *[c.label] * labelled) for c in clicks)
        header = ("case", "x", "y", "z", "space", *["label"] * labelled)
        csv.writer(buffer, lineterminator="\n").writerows([header, *rows])
        text = buffer.getvalue()
    else:
        keys = {space: key for key, space in _KEYS.items()}
        entries: dict[str, dict[str, Any]] = {}
        for click in clicks:
            position = {keys[click.space]: [*map(_plain, click.position)]}
            entries.setdefault(click.case, {}).update({click.label: position} if labelled else position)
        lines = (f"  {json.dumps(case)}: {json.dumps(entry)}" for case, entry in entries.items())
        text = "{\n" + ",\n".join(lines) + "\n}\n"  # one line a case: easy to read and to compare
    with write_atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _plain(value: float) -> float | int:
    return int(value) if float(value).is_integer() else value


def _read_csv(path: Path) -> list[Click]:
    clicks = []
    for row in read_table(path, (("x", "y", "z"),), further_key="label"):
        name = row.cells.get("space") or "voxel"
        if name not in ("voxel", "world"):
            raise UserError(f"{row.where}: space must be voxel or world, not {name!r}")
        label = row.cells.get("label", "")
        if "label" in row.cells and not label:
            raise UserError(f"{row.where}: the label has no name")
        space: Space = "world" if name == "world" else "voxel"
        position = (row.number("x"), row.number("y"), row.number("z"))
        clicks.append(Click(row.case, position, space, row.where, label))
    return clicks


def _read_json(path: Path) -> list[Click]:
    def unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise UserError(f"{path}: {key!r} occurs twice")
            found[key] = value
        return found

    try:
        content = parse_json(read_text(path), pairs=unique)
    except UserError:
        raise
    except json.JSONDecodeError as error:
        raise UserError(f"{path} line {error.lineno}: not valid JSON: {error.msg}") from error
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f'{path} must hold one object of the form {{"CASE": {{"voxel": [x, y, z]}}}}')
    return [click for case, entry in content.items() for click in _parse_case(path, case, entry)]


def _parse_case(path: Path, case: str, entry: object) -> list[Click]:
    if isinstance(entry, dict) and entry and all(isinstance(value, dict) for value in entry.values()):
        return [_parse_entry(path, case, position, label) for label, position in entry.items()]
    return [_parse_entry(path, case, entry, "")]


def _parse_entry(path: Path, case: str, entry: object, label: str) -> Click:
    where = f"{path}: case {case}, {label}" if label else f"{path}: case {case}"
    if not isinstance(entry, dict) or len(entry) != 1 or not entry.keys() <= _KEYS.keys():
        raise UserError(f'{where} needs {{"voxel": [x, y, z]}} or {{"world_mm": [x, y, z]}}')
    ((key, values),) = entry.items()
    numbers = values if isinstance(values, list) else []
    if len(numbers) != 3 or not all(type(v) in (int, float) and math.isfinite(v) for v in numbers):
        text = json.dumps(values)
        raise UserError(f"{where}: {key} must be three numbers [x, y, z], not {text}")
    x, y, z = map(float, numbers)
    return Click(case, (x, y, z), _KEYS[key], str(path), label)
