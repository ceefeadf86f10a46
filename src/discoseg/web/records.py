"""What is annotated of one case: a small record, and layers of voxels beside it."""

import json
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from discoseg.data.announced import DEFLATE, require_room
from discoseg.data.arrays import DAMAGE
from discoseg.data.files import write_atomically
from discoseg.data.volume import format_shape
from discoseg.errors import UserError
from discoseg.texts import parse_json

CaseState = Literal["new", "begun", "done"]
STATES: tuple[CaseState, ...] = ("new", "begun", "done")
Voxel = tuple[int, int, int]  # (x, y, z) of the image's file, from 0
BoundsMl = tuple[float | None, float | None]  # low and high; None where that side is open


@dataclass(frozen=True)
class Record:
    """A case's annotation without its voxels; clicks, bounds and sizes are by the structure's name.

    ``revision`` counts its changes; ``layers`` is the revision that its layers were written at, None where it has none.
    """

    state: CaseState = "new"
    revision: int = 0
    clicks: Mapping[str, Voxel] = field(default_factory=dict)
    bounds_ml: Mapping[str, BoundsMl] = field(default_factory=dict)
    sizes_vox: Mapping[str, int] = field(default_factory=dict)
    layers: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what :meth:`from_json` reads."""
        return {
            "state": self.state,
            "revision": self.revision,
            "clicks": {name: list(voxel) for name, voxel in self.clicks.items()},
            "bounds_ml": {name: list(bounds) for name, bounds in self.bounds_ml.items()},
            "sizes_vox": dict(self.sizes_vox),
            "layers": self.layers,
        }

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> "Record":
        """Return the record that :meth:`to_json` gave; a KeyError, TypeError or ValueError where it is no such."""
        if entry["state"] not in STATES:
            raise ValueError(f"no state: {entry['state']!r}")
        return cls(
            entry["state"],
            int(entry["revision"]),
            {name: (int(x), int(y), int(z)) for name, (x, y, z) in entry["clicks"].items()},
            {name: (_side(low), _side(high)) for name, (low, high) in entry["bounds_ml"].items()},
            {name: int(count) for name, count in entry["sizes_vox"].items()},
            None if entry["layers"] is None else int(entry["layers"]),
        )


def _side(value: Any) -> float | None:
    if value is not None and not 0 <= value < math.inf:
        raise ValueError(f"no size: {value!r}")
    return value


@dataclass(frozen=True, eq=False)
class Layers:
    """The voxels of one case, each (z, y, x) in the geometry of its image.

    ``labels`` is the weak label map: values of structures, 0 background, the dataset's ignore value elsewhere;
    ``seeds`` alike, what the clicks alone would make; ``painted`` says where a hand painted, or erased, over it.
    Elsewhere labels and seeds are equal.
    """

    labels: NDArray[np.uint8]
    seeds: NDArray[np.uint8]
    painted: NDArray[np.bool_]

    @classmethod
    def blank(cls, shape: tuple[int, ...], ignore: int) -> "Layers":
        """Return layers of ``shape`` (z, y, x) in which nothing is annotated."""
        nothing = np.full(shape, ignore, np.uint8)
        return cls(nothing, nothing, np.zeros(shape, bool))

    def is_blank(self, ignore: int) -> bool:
        """Say whether nothing is annotated, nor erased."""
        return not (self.painted.any() or (self.labels != ignore).any() or (self.seeds != ignore).any())


class _OtherShape(UserError):
    """Layers of another image than the case has now."""


def write_layers(path: Path, layers: Layers) -> None:
    """Write layers to one file, all or nothing, and quickly, for that happens at every stroke.

    Of each layer only the box is written outside of which it is like its first voxel.
    """
    parts = {"labels": layers.labels, "seeds": layers.seeds, "painted": layers.painted}
    about: dict[str, Any] = {"shape": layers.labels.shape}
    with (
        write_atomically(path) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file,
    ):
        for name, array in parts.items():
            box = _box(array != array[0, 0, 0])
            about[name] = {"fill": int(array[0, 0, 0]), "box": [[part.start, part.stop] for part in box]}
            file.writestr(name, np.ascontiguousarray(array[box]).tobytes())
        file.writestr("about.json", json.dumps(about))


def read_layers(path: Path, shape: tuple[int, ...]) -> Layers:
    """Read what :func:`write_layers` wrote of an image of ``shape`` (z, y, x)."""
    try:
        with zipfile.ZipFile(path) as file:
            require_room(path, sum(part.file_size for part in file.infolist()), path.stat().st_size, ratio=DEFLATE)
            about = parse_json(file.read("about.json"))
            if tuple(about["shape"]) != shape:
                known, now = format_shape(tuple(about["shape"])), format_shape(shape)
                said = f"annotated with {known} voxels, but its image has {now} now; bring the old one back"
                raise _OtherShape(f"{path}: {said}")
            labels, seeds, painted = (_unbox(file, about, name) for name in ("labels", "seeds", "painted"))
        if painted.max() > 1:
            raise ValueError("neither painted nor not")
        return Layers(labels, seeds, painted.view(bool))
    except (FileNotFoundError, _OtherShape):
        raise
    except (*DAMAGE, TypeError, AttributeError, OverflowError) as error:
        raise UserError(f"{path} is damaged: remove it and its case from state.json, and annotate it again") from error


def _box(mask: NDArray[np.bool_]) -> tuple[slice, ...]:
    """Return the smallest box (z, y, x) that has all of a mask; an empty one where there is nothing."""
    box: list[slice] = []
    for axis in range(3):  # each within what those before have left
        part = mask[tuple(box)]
        inside = np.flatnonzero(part.any(axis=tuple(other for other in range(3) if other != axis)))
        box.append(slice(int(inside[0]), int(inside[-1]) + 1) if inside.size else slice(0, 0))
    return tuple(box)


def _unbox(file: zipfile.ZipFile, about: dict[str, Any], name: str) -> NDArray[np.uint8]:
    array = np.full(about["shape"], about[name]["fill"], np.uint8)
    box = tuple(slice(first, last) for first, last in about[name]["box"])
    array[box] = np.frombuffer(file.read(name), np.uint8).reshape(array[box].shape)
    return array
