"""Cases to slices on the network's grid, and the exact way back.

Volumes are brought to one orientation (flips and axis swaps only), resized in plane, and scaled to [0, 1] each. The
results are cached on disk, keyed by the files' contents and the settings, so that the second start is immediate; the
cached arrays are memory-mapped, so a case costs memory only while it is used.
"""

import hashlib
import json
import os
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from discoseg.config import Axis
from discoseg.data.files import channel_of, file_of, usable_cores
from discoseg.data.layouts import Case
from discoseg.data.mapped import map_array
from discoseg.data.meta_header import data_file
from discoseg.data.volume import (
    Volume,
    describe_bad_voxels,
    describe_displaced,
    describe_mismatch,
    read_label_map,
    read_orientation,
    read_volume,
    turn_onto,
)
from discoseg.errors import UserError

_T = TypeVar("_T", bound=np.generic)
_VERSION = 3  # of what is cached; raise it when preparation changes
_mapping = threading.Lock()


@dataclass(frozen=True)
class Grid:
    """The network's view of a volume: in-plane shape in pixels, intensity percentiles, axis codes of (x, y, z)."""

    shape: tuple[int, int] = (256, 256)
    clip_percent: tuple[float, float] = (0.0, 100.0)
    orientation: str = "LPS"


@dataclass(frozen=True)
class Prepared:
    """One case on the grid.

    ``image`` is (z, channel, y, x) float32 in [0, 1]; ``label`` (z, y, x) uint8 holds the dataset's label values, or
    is None; ``spacing_mm`` is (z, y, x) on the grid; ``file_voxel_ml`` is the volume of a voxel of the image's file, in
    millilitres.
    """

    case: Case
    image: NDArray[np.float32] = field(repr=False)
    label: NDArray[np.uint8] | None = field(repr=False)
    spacing_mm: tuple[float, float, float]
    file_voxel_ml: float

    @property
    def voxel_ml(self) -> float:
        """Volume of one voxel of the grid, in millilitres."""
        return float(np.prod(self.spacing_mm)) / 1000

    def mask(self, value: int, *, ignore: int) -> NDArray[np.bool_] | None:
        """Return where the label is ``value``, (z, y, x); None without a complete label map (``ignore`` in it)."""
        return np.asarray(self.label == value) if self.is_complete(ignore) else None

    def is_complete(self, ignore: int) -> bool:
        """Say whether there is a label map, and no voxel of it has the value ``ignore``."""
        return self.label is not None and not (self.label == ignore).any()


def resize_linear(stack: NDArray[np.floating], shape: tuple[int, int]) -> NDArray[np.float32]:
    """Resize the last two axes linearly; where they shrink, each new pixel averages what it covers.

    The image's outer edges are kept, so pixel i of n lies at (i + ½)/n of the side in both sizes.
    """
    rows = _weights(stack.shape[-2], shape[0])
    columns = _weights(stack.shape[-1], shape[1])
    return np.asarray(rows @ stack.astype(np.float32, copy=False) @ columns.T, dtype=np.float32)


def _weights(size: int, new: int) -> NDArray[np.float32]:
    """(new, size) matrix of a triangle filter as wide as the coarser of the two pixel grids; rows sum to one."""
    scale = size / new
    centres = (np.arange(new) + 0.5) * scale - 0.5
    distance = np.abs(np.clip(centres, 0, size - 1)[:, None] - np.arange(size)[None]) / max(scale, 1.0)
    weights = np.maximum(0.0, 1.0 - distance)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), dtype=np.float32)


def resize_labels(stack: NDArray[np.generic], shape: tuple[int, int]) -> NDArray[np.generic]:
    """Resize the last two axes of a label map by taking the label at each new pixel's centre."""
    rows = ((np.arange(shape[0]) + 0.5) * stack.shape[-2] / shape[0]).astype(np.intp)
    columns = ((np.arange(shape[1]) + 0.5) * stack.shape[-1] / shape[1]).astype(np.intp)
    return stack.take(columns, axis=-1).take(rows, axis=-2)


def image_to_grid(volumes: Sequence[Volume], grid: Grid, *, name: str) -> NDArray[np.float32]:
    """Return the channels of one case as (z, channel, y, x) in [0, 1]; ``name`` is named in errors."""
    channels = []
    for number, volume in enumerate(volumes):
        channel = turn_onto(volume, volumes[0])
        if mismatch := describe_mismatch(volumes[0], channel):
            raise UserError(f"{name}: its channel {number} does not lie on the first one: {mismatch}")
        if bad := describe_bad_voxels(channel):
            raise UserError(f"{name}: {bad}; repair or remove it")
        array = volumes[0].like(channel.array).reoriented(grid.orientation).array
        low, high = np.percentile(array, grid.clip_percent).tolist()
        if high <= low:  # a few bright voxels on a constant ground: keep them
            low, high = float(array.min()), float(array.max())
        # Slice by slice: of a large volume the scaled copies would take several times its own memory.
        scaled = (np.clip((plane - low) / (high - low), 0.0, 1.0) for plane in array)
        channels.append(np.clip(np.stack([resize_linear(plane, grid.shape) for plane in scaled]), 0.0, 1.0))
    return np.stack(channels, axis=1)


def grid_spacing_mm(volume: Volume, grid: Grid) -> tuple[float, float, float]:
    """Return the (z, y, x) spacing that a volume has once it lies on the grid, in mm."""
    oriented = volume.reoriented(grid.orientation)
    z, y, x = oriented.spacing_mm
    rows, columns = oriented.shape[1:]
    return z, y * rows / grid.shape[0], x * columns / grid.shape[1]


def labels_to_grid(volume: Volume, grid: Grid) -> NDArray[np.uint8]:
    """Return a label map as (z, y, x) uint8 on the grid."""
    return resize_labels(volume.reoriented(grid.orientation).array, grid.shape).astype(np.uint8)


def probabilities_from_grid(probability: NDArray[np.floating], volume: Volume, grid: Grid) -> Volume:
    """Return (z, y, x) probabilities on the grid as a volume with exactly the geometry of ``volume``."""
    oriented = volume.reoriented(grid.orientation)
    _, rows, columns = oriented.shape
    return oriented.like(resize_linear(probability, (rows, columns))).reoriented(volume.orientation)


def labels_from_grid(labels: NDArray[np.generic], volume: Volume, grid: Grid) -> Volume:
    """Return (z, y, x) labels on the grid as a volume with exactly the geometry of ``volume``."""
    oriented = volume.reoriented(grid.orientation)
    _, rows, columns = oriented.shape
    return oriented.like(resize_labels(labels, (rows, columns))).reoriented(volume.orientation)


def common_orientation(cases: Sequence[Case]) -> str:
    """Return the axis codes that most of the cases' images have."""
    codes = Counter(read_orientation(case.images[0]) for case in cases)
    return codes.most_common(1)[0][0]


def slice_across(orientation: str, axis: Axis) -> str:
    """Return axis codes (x, y, z) turned such that the slices, which lie across z, lie across ``axis`` of before.

    >>> slice_across("LPS", "z"), slice_across("LPS", "y"), slice_across("LPS", "x")
    ('LPS', 'LSP', 'PSL')
    """
    return "".join(orientation["xyz".index(code)] for code in {"z": "xyz", "y": "xzy", "x": "yzx"}[axis])


def default_cache() -> Path:
    """Return the cache folder: ``$DISCOSEG_CACHE``, else ``discoseg`` in the user's cache folder."""
    if "DISCOSEG_CACHE" in os.environ:
        return Path(os.environ["DISCOSEG_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "discoseg"


def prepare_cases(
    cases: Sequence[Case],
    grid: Grid,
    *,
    cache: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Prepared]:
    """Bring cases onto the grid, several at once, through the cache (:func:`default_cache` when None)."""
    folder = cache or default_cache()
    prepared: list[Prepared] = []
    with ThreadPoolExecutor(usable_cores()) as pool:
        for item in pool.map(lambda case: prepare_case(case, grid, folder), cases):
            prepared.append(item)
            progress(len(prepared), len(cases))
    return prepared


def prepare_case(case: Case, grid: Grid, cache: Path) -> Prepared:
    """Bring one case onto the grid, from the cache if it is there."""
    image, meta = _cached(cache, "image", case.images, grid, lambda: _prepare_image(case, grid))
    label = None if case.label is None else prepare_label_map(case.label, case, grid, cache)
    z, y, x = meta["spacing_mm"]
    return Prepared(case, image, label, (z, y, x), *meta["file_voxel_ml"])


def prepare_label_map(path: Path, case: Case, grid: Grid, cache: Path) -> NDArray[np.uint8]:
    """Bring a case's label map (reference or weak) onto the grid, from the cache if it is there: (z, y, x) uint8."""

    def build() -> tuple[NDArray[np.uint8], dict[str, list[float]]]:
        volume = _lay_on_image(read_label_map(path), path, case.images[0])
        values = np.unique(volume.array)
        if not np.isin(values, np.arange(256)).all():
            raise UserError(f"{path}: label values must be whole numbers from 0 to 255, found {values[:8].tolist()}")
        return labels_to_grid(volume, grid), {}

    # The image's content is part of the key: the check of the geometry above depends on it.
    return _cached(cache, "label", (path, case.images[0]), grid, build)[0]


def _prepare_image(case: Case, grid: Grid) -> tuple[NDArray[np.float32], dict[str, list[float]]]:
    volumes = [read_volume(path) for path in case.images]
    image = image_to_grid(volumes, grid, name=str(case.images[0]))
    return image, {"spacing_mm": list(grid_spacing_mm(volumes[0], grid)), "file_voxel_ml": [volumes[0].voxel_ml]}


def _lay_on_image(label: Volume, path: Path, image_path: Path) -> Volume:
    """Return a label map with its image's very geometry: up to half a voxel apart, the place in the array counts."""
    image = read_volume(image_path)
    turned = turn_onto(label, image)
    if mismatch := describe_mismatch(image, turned):
        raise UserError(describe_displaced(path, image_path, mismatch))
    return image.like(turned.array)


def _cached(
    cache: Path,
    kind: str,
    files: Sequence[Path],
    grid: Grid,
    build: Callable[[], tuple[NDArray[_T], dict[str, list[float]]]],
) -> tuple[NDArray[_T], dict[str, list[float]]]:
    """Return ``build()``'s array, memory-mapped, and its metadata, building only what the cache does not hold."""
    settings = json.dumps([_VERSION, kind, grid.shape, grid.clip_percent, grid.orientation])
    digest = hashlib.sha256(settings.encode())
    for path in files:
        digest.update(_content_hash(path))
    entry = cache / digest.hexdigest()[:32]
    if not entry.is_dir():
        array, meta = build()
        temporary = cache
        try:
            cache.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(dir=cache, prefix=".partial-"))
            np.save(temporary / "array.npy", array)
            (temporary / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
            temporary.rename(entry)
        except OSError as error:
            if temporary != cache:
                shutil.rmtree(temporary, ignore_errors=True)
            if not entry.is_dir():  # otherwise another process was first, with the same content
                reason = error.strerror or error
                raise UserError(f"cannot write to the cache {cache}: {reason}; set DISCOSEG_CACHE elsewhere") from error
    try:
        with _mapping:
            array = map_array(entry / "array.npy")
        return array, json.loads((entry / "meta.json").read_text("utf-8"))
    except UserError:
        raise
    except (OSError, ValueError) as error:  # a crash of the machine can leave an entry without its content
        raise UserError(f"{entry}: this entry of the cache is damaged; remove it and start again") from error


def _add_content(digest: "hashlib._Hash", file: Path) -> None:
    """Add a file to a hash, piece by piece; a pipe or a device has no end."""
    if file.exists() and not file.is_file():
        raise UserError(f"{file} is not a file")
    with file.open("rb") as content:
        while piece := content.read(2**20):
            digest.update(piece)


def _content_hash(path: Path) -> bytes:
    """Hash a file, which of its channels is meant, and with a MetaImage header the data file that it names."""
    file = file_of(path)
    try:
        data = data_file(file) if file.suffix.lower() == ".mhd" else None
        digest = hashlib.sha256()
        for part in (file, data):
            if part is not None:
                _add_content(digest, part)
        if (channel := channel_of(path)) is not None:
            digest.update(f"[{channel}]".encode())
        return digest.digest()
    except OSError as error:
        raise UserError(f"cannot read {error.filename or path}: {error.strerror}") from error
