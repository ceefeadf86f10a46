"""The paper's weak annotation: a click near the structure's centre, and an atlas that turns it into seeds.

Training masks are laid over each other by their centroids. Where all of them are foreground the atlas says
foreground, where none is it says background, elsewhere nothing; laid on a click, it labels the voxels of a
new volume. Masks and clicks are on the prepared grid. Groups of cases (ACDC's ED and ES) have a template each, and so
have several structures, each laid on its own click.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discoseg.data.arrays import DAMAGE, read_npz
from discoseg.data.files import write_atomically
from discoseg.errors import UserError
from discoseg.texts import parse_json

Index = tuple[int, int, int]  # (z, y, x)


@dataclass(frozen=True)
class Template:
    """One group's atlas in the box around the union of its masks; all outside the box is background."""

    block: NDArray[np.int8]  # (z, y, x): −1 unknown, 0 background, 1 foreground
    offset: Index  # of the block's first voxel from the click
    masks: int  # how many it was built from


@dataclass(frozen=True)
class Atlas:
    """Templates of one structure by group name."""

    templates: Mapping[str, Template]

    def seeds(self, group: str, shape: Index, click_zyx: Index) -> NDArray[np.int8]:
        """Return seeds of `shape` (z, y, x): the group's template on the click, cut where it sticks out."""
        template = self.templates.get(group)
        if template is None:
            known = ", ".join(repr(name) for name in self.templates)
            raise UserError(f"the atlas has no group {group!r}: it was built for {known}")
        seeds = np.zeros(shape, np.int8)
        into, out_of = [], []
        starts = [click + offset for click, offset in zip(click_zyx, template.offset, strict=True)]
        for size, length, start in zip(shape, template.block.shape, starts, strict=True):
            stop = max(min(start + length, size), 0)
            into.append(slice(max(start, 0), stop))
            out_of.append(slice(max(-start, 0), max(stop - start, 0)))
        seeds[tuple(into)] = template.block[tuple(out_of)]
        return seeds


def centroid(mask: NDArray[np.bool_]) -> Index:
    """Return the voxel (z, y, x) nearest to the mean position of a mask that is not empty."""
    z, y, x = (round(float(positions.mean())) for positions in np.nonzero(mask))
    return z, y, x


def build_atlas(masks: Iterable[tuple[str, NDArray[np.bool_]]], *, names: Sequence[str] | None = None) -> Atlas:
    """Build one template per group from pairs of a group and a (z, y, x) mask; numbers of slices may differ.

    names: the masks' cases, for errors.
    """
    parts: dict[str, list[tuple[NDArray[np.bool_], Index]]] = {}
    for number, (group, mask) in enumerate(masks):
        if not mask.any():
            name = names[number] if names is not None else f"mask {number + 1}"
            raise UserError(f"{name} has no foreground: leave it out of the atlas or choose another label")
        parts.setdefault(group, []).append(_crop(mask))
    if not parts:
        raise UserError("an atlas needs at least one mask")
    return Atlas({group: _overlay(parts[group]) for group in sorted(parts)})


def merge_seeds(seeds: Sequence[NDArray[np.int8]]) -> NDArray[np.int8]:
    """Return the seeds of several structures as one map: −1 unknown, 0 background, k the k-th of them.

    seeds: (z, y, x) of each structure by itself. Background is what is none of them. What two of them claim, as clicks
    that are off make them do, is unknown.

    >>> one, other = np.array([1, 1, 0, 0, -1], np.int8), np.array([0, 1, 0, -1, 1], np.int8)
    >>> merge_seeds([one, other])
    array([ 1, -1,  0, -1,  2], dtype=int8)
    """
    if len(seeds) == 1:
        return seeds[0]
    stack = np.stack(seeds)
    claims = np.count_nonzero(stack == 1, axis=0)
    merged = np.where((stack == 0).all(axis=0), 0, -1).astype(np.int8)
    merged[claims == 1] = 1 + (stack == 1).argmax(axis=0)[claims == 1]
    return merged


def save_atlas(path: Path, atlases: Mapping[int, Atlas], *, meta: Mapping[str, Any]) -> None:
    """Write the atlas of each structure, by its value, to one `.npz` file, with `meta` (what JSON can hold) in it."""
    several = len(atlases) > 1
    templates = [(label, group, t) for label, atlas in atlases.items() for group, t in atlas.templates.items()]
    entries = [
        {"group": group, "offset": t.offset, "masks": t.masks} | ({"label": label} if several else {})
        for label, group, t in templates
    ]
    of = {"labels": list(atlases)} if several else {"label": next(iter(atlases))}
    arrays: dict[str, NDArray[Any]] = {f"block_{i}": t.block for i, (_, _, t) in enumerate(templates)}
    arrays["index"] = np.array(json.dumps({"templates": entries, "meta": dict(meta) | of}))
    with write_atomically(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def load_atlas(path: Path) -> tuple[dict[int, Atlas], dict[str, Any]]:
    """Read what `save_atlas` wrote: the atlas of each structure by its value, and the `meta`."""
    try:
        arrays = read_npz(path)
        index = parse_json(str(arrays["index"]))
        meta = index["meta"]
        labels = meta.pop("labels") if "labels" in meta else [meta.pop("label")]
        templates: dict[int, dict[str, Template]] = {int(label): {} for label in labels}
        for i, entry in enumerate(index["templates"]):
            z, y, x = map(int, entry["offset"])
            block = arrays[f"block_{i}"]
            if block.dtype != np.int8 or block.ndim != 3:
                raise ValueError(f"block_{i} is no template")
            templates[entry.get("label", labels[0])][str(entry["group"])] = Template(block, (z, y, x), entry["masks"])
        return {label: Atlas(several) for label, several in templates.items()}, meta
    except FileNotFoundError as error:
        raise UserError(f"cannot read the atlas {path}: no such file") from error
    except (*DAMAGE, TypeError, AttributeError, OverflowError) as error:
        raise UserError(f"{path} is not a whole atlas file: build it again with `discoseg seeds`") from error


@dataclass(frozen=True)
class SeedStatistics:
    """How much of one volume its seeds cover, and how often they err; the last three need a mask."""

    foreground_vox: int
    background_vox: int
    foreground_percent_of_volume: float
    background_percent_of_volume: float
    foreground_percent: float | None = None  # of the true foreground, seeded as such; None when there is none
    wrong_foreground_vox: int | None = None
    wrong_background_vox: int | None = None


def seed_statistics(seeds: NDArray[np.int8], mask: NDArray[np.bool_] | None = None) -> SeedStatistics:
    """Count seeds of shape (z, y, x), and compare them with the true mask where there is one."""
    foreground, background = seeds == 1, seeds == 0
    counts = int(np.count_nonzero(foreground)), int(np.count_nonzero(background))
    percents = 100 * counts[0] / seeds.size, 100 * counts[1] / seeds.size
    if mask is None:
        return SeedStatistics(*counts, *percents)
    size, right = int(np.count_nonzero(mask)), int(np.count_nonzero(foreground & mask))
    return SeedStatistics(
        *counts,
        *percents,
        foreground_percent=100 * right / size if size else None,
        wrong_foreground_vox=counts[0] - right,
        wrong_background_vox=int(np.count_nonzero(background & mask)),
    )


def _crop(mask: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], Index]:
    """Return the mask inside its bounding box, and where that box begins, seen from the centroid."""
    positions = np.nonzero(mask)
    box = tuple(slice(int(p.min()), int(p.max()) + 1) for p in positions)
    z, y, x = (int(p.min()) - c for p, c in zip(positions, centroid(mask), strict=True))
    return mask[box], (z, y, x)


def _overlay(parts: Sequence[tuple[NDArray[np.bool_], Index]]) -> Template:
    starts = np.array([offset for _, offset in parts])
    stops = starts + [part.shape for part, _ in parts]
    first = starts.min(axis=0)
    counts = np.zeros(stops.max(axis=0) - first, np.int32)
    for (part, _), start, stop in zip(parts, starts - first, stops - first, strict=True):
        counts[tuple(slice(a, b) for a, b in zip(start, stop, strict=True))] += part
    block = np.where(counts == len(parts), 1, np.where(counts == 0, 0, -1)).astype(np.int8)
    z, y, x = first.tolist()
    return Template(block, (z, y, x), len(parts))
