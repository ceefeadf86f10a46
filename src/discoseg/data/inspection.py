"""One case's files, read to see what they hold and what is wrong with them."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from discoseg.data.files import channel_of, file_of
from discoseg.data.layouts import Case, Dataset
from discoseg.data.volume import (
    Volume,
    count_channels,
    describe_bad_voxels,
    describe_displaced,
    describe_mismatch,
    offset_mm,
    read_label_map,
    read_volume,
    turn_onto,
)
from discoseg.errors import UserError

SHOWN_VALUES = 5  # of the label values that a map should not have


@dataclass(frozen=True)
class Row:
    """What one readable case holds."""

    case: Case
    shape: tuple[int, ...]  # (z, y, x)
    spacing_mm: tuple[float, float, float]  # (z, y, x)
    affine_edges_mm: tuple[float, float, float]  # (z, y, x), what the affine says the spacing is
    orientation: str
    dtype: str
    intensity: tuple[float, float]  # lowest and highest finite value of all channels
    shear_deg: float  # how far off a right angle two of its axes are at most
    voxel_ml: float
    label_vox: dict[int, int]  # voxels of each label value; empty without a label map
    weak_vox: dict[int, int] | None  # seeds of each label value; None without a weak map
    complete: bool  # whether the label map says something of every voxel

    @property
    def annotated_vox(self) -> dict[int, int]:
        """Voxels that training is told the label of, by value."""
        return self.label_vox if self.weak_vox is None else self.weak_vox

    def has(self, values: Collection[int]) -> bool:
        """Say whether the annotation has one of the label values."""
        return any(self.annotated_vox.get(value) for value in values)

    def seed_vox(self, values: Collection[int]) -> tuple[int, int] | None:
        """Return how many seeds have one of the label values, and how many another; None without a weak map."""
        return None if self.weak_vox is None else _sides(self.weak_vox, values)

    def seed_percent(self, values: Collection[int]) -> tuple[float, float] | None:
        """Return both as per cent of the voxels that they could be, where these are known."""
        seeds = self.seed_vox(values)
        if seeds is None or not self.complete:
            return None
        fg, bg = (100.0 * n / max(all_, 1) for n, all_ in zip(seeds, _sides(self.label_vox, values), strict=True))
        return fg, bg


class Inspection:
    """Reads one case's files and collects their problems."""

    def __init__(self, dataset: Dataset, case: Case, weak: Path | None) -> None:
        self.dataset, self.case, self.weak = dataset, case, weak
        self.problems: list[str] = []
        self.offsets_mm: dict[Path, float] = {}  # of files that their affine puts a little beside the image

    def row(self) -> Row | None:
        """Return what the case holds; None where its first image cannot be read."""
        image = self._read(self.case.images[0])
        if image is None:
            return None
        intensities = []
        for path in self.case.images:
            channel = image if path == self.case.images[0] else self._read(path, like=image)
            if channel is None:
                continue
            if bad := describe_bad_voxels(channel):
                self.problems.append(f"{path}: {bad}")
            finite = channel.array[np.isfinite(channel.array)]
            intensities += [float(finite.min()), float(finite.max())] if finite.size else []
        self._require_all_channels()
        label_vox = self._count_labels(self.case.label, image)
        ignore = self.dataset.ignore
        weak_vox = self._count_labels(self.weak, image) if self.weak else label_vox
        is_weak = bool(weak_vox) and (self.weak is not None or ignore in weak_vox)
        z, y, x = np.linalg.norm(image.affine[:3, :3], axis=0).tolist()[::-1]
        return Row(
            case=self.case,
            shape=image.shape,
            spacing_mm=image.spacing_mm,
            affine_edges_mm=(z, y, x),
            orientation=image.orientation,
            dtype=str(image.array.dtype),
            intensity=(min(intensities, default=np.nan), max(intensities, default=np.nan)),
            shear_deg=_shear_deg(image),
            voxel_ml=image.voxel_ml,
            label_vox=label_vox,
            weak_vox={value: n for value, n in weak_vox.items() if value != ignore} if is_weak else None,
            complete=bool(label_vox) and ignore not in label_vox,
        )

    def _read(
        self, path: Path, *, like: Volume | None = None, read: Callable[[Path], Volume] = read_volume
    ) -> Volume | None:
        """Read a file, or note why not; with `like`, also note where it does not lie on that volume."""
        try:
            volume = read(path)
        except UserError as error:
            self.problems.append(str(error))
            return None
        if like is None:
            return volume
        volume = turn_onto(volume, like)
        if mismatch := describe_mismatch(like, volume):
            self.problems.append(describe_displaced(path, self.case.images[0], mismatch))
            return None
        if offset := offset_mm(like, volume):
            self.offsets_mm[path] = offset
        return volume

    def _require_all_channels(self) -> None:
        """Note a file of which some channels would be left out, though none was chosen by name."""
        first = self.case.images[0]
        if channel_of(first) is None or self.dataset.layout not in ("decathlon", "nnunet"):
            return
        file, named = file_of(first), len(self.case.images)
        channels = count_channels(file)
        if channels > named:
            about = self.dataset.root / "dataset.json"
            self.problems.append(f"{file} has {channels} channels, {about} names {named}: correct that")

    def _count_labels(self, path: Path | None, image: Volume) -> dict[int, int]:
        volume = None if path is None else self._read(path, like=image, read=read_label_map)
        if volume is None:
            return {}
        known = {*self.dataset.labels.values(), self.dataset.ignore}
        values, counts = np.unique(volume.array, return_counts=True)
        unknown = [value for value in values.tolist() if value not in known]
        if unknown:
            shown = ", ".join(f"{value:g}" for value in unknown[:SHOWN_VALUES])
            more = f" and {len(unknown) - SHOWN_VALUES} more" if len(unknown) > SHOWN_VALUES else ""
            meanings = [f"{number} {name}" for name, number in self.dataset.labels.items()]
            meanings.append(f"{self.dataset.ignore} not annotated")
            self.problems.append(f"{path}: unknown label value {shown}{more} (known: {', '.join(meanings)})")
        return {int(v): int(n) for v, n in zip(values, counts, strict=True) if v in known}


def _sides(vox: dict[int, int], values: Collection[int]) -> tuple[int, int]:
    """Split voxels by value into those of the given values and all others."""
    inside = sum(n for value, n in vox.items() if value in values)
    return inside, sum(vox.values()) - inside


def _shear_deg(image: Volume) -> float:
    """Return how far two axes of a volume are off a right angle at most, in degrees."""
    edges = image.affine[:3, :3] / np.linalg.norm(image.affine[:3, :3], axis=0)
    cosines = np.abs(edges.T @ edges)[np.triu_indices(3, k=1)]
    return float(np.degrees(np.arcsin(np.clip(cosines, 0, 1))).max())
