"""One click per volume and structure to weak label maps: the paper's annotation, for a whole dataset."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discoseg.config import GridConfig
from discoseg.data.files import image_suffix, require_new_folder
from discoseg.data.layouts import Case, Dataset
from discoseg.data.prepare import Grid, Prepared, common_orientation, labels_from_grid, prepare_cases
from discoseg.data.volume import read_volume, write_volume
from discoseg.errors import UserError
from discoseg.weak.atlas import (
    Atlas,
    SeedStatistics,
    build_atlas,
    centroid,
    load_atlas,
    merge_seeds,
    save_atlas,
    seed_statistics,
)
from discoseg.weak.clicks import Click, read_clicks
from discoseg.weak.extents import SLICES, Extent, across_the_same, extent_of, write_extents

Clicked = Mapping[str, Mapping[int, Click]]
"""Clicks by case, and by the structure's value."""


@dataclass(frozen=True)
class SeededCase:
    """A case whose seeds were written, and what they cover on the grid, by the structure's name."""

    case: Case
    statistics: dict[str, SeedStatistics]


def make_seeds(
    dataset: Dataset,
    training: Sequence[Case],
    out: Path,
    *,
    label: int | Sequence[int],
    grid: GridConfig,
    clicks: Path | None = None,
    atlas: Path | None = None,
    prepare_progress: Callable[[int, int], None] = lambda done, total: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[SeededCase]:
    """Write a weak label map for every case of ``clicks``, or for all of ``training``, into the folder ``out``.

    ``label`` is the value of the structure, or those of several, which have an atlas and a click each. The atlas is
    read from the file ``atlas``, or built from those of ``training`` that have complete masks; either way it is saved
    as ``out/atlas.npz``.
    Cases without a click take the centroid of their mask for one; of several structures a mask may lack some, and then
    has no seeds of these. In the maps, which have the geometry of the images, the values of the structures and 0 are
    seeds and the dataset's ignore value is everything else. ``out/slices.csv`` has the first and the last slice of the
    masks that stood in for a click (:mod:`discoseg.weak.extents`), unless an ``atlas`` from elsewhere lies across other
    axes; those of other cases can be added.
    ``prepare_progress`` is called with the number of cases brought onto the grid and of all, first those of the atlas;
    ``progress`` with that of maps written.
    """
    values = [label] if isinstance(label, int) else list(label)
    require_new_folder(out, hint="choose another --out")
    clicked = {} if clicks is None else _by_case(read_clicks(clicks), dataset, values)
    chosen = _chosen(dataset, training, clicked, clicks)
    if atlas is None:
        book = build_book(dataset, training, values, grid, progress=prepare_progress)
    else:
        book = read_book(atlas, dataset, values, grid)
    frame, atlases = book.frame, book.atlases
    prepared = prepare_cases(chosen, frame, progress=prepare_progress)
    all_seeds = [  # of all of them before the first is written
        _seeds(item, atlases, clicked.get(item.case.name, {}), dataset, frame) for item in prepared
    ]
    out.mkdir(parents=True, exist_ok=True)
    seeded = []
    meanings = np.array([0, *values, dataset.ignore], np.uint8)  # of classes 0, 1, …, and of −1
    for item, seeds in zip(prepared, all_seeds, strict=True):
        image = item.case.images[0]
        write_volume(
            out / f"{item.case.name}{image_suffix(image)}",
            labels_from_grid(meanings[seeds], read_volume(image), frame),
        )
        seeded.append(SeededCase(item.case, _statistics(item, seeds, values, dataset)))
        progress(len(seeded), len(prepared))
    book.save(out / "atlas.npz")
    extents = list(_extents(prepared, values, clicked, dataset))
    if extents and across_the_same(frame.orientation, common_orientation(chosen)):
        write_extents(out / SLICES, extents, frame.orientation)
    return seeded


@dataclass(frozen=True)
class Book:
    """An atlas of each structure, by its value in the dataset, on the grid ``frame``."""

    atlases: dict[int, Atlas]
    frame: Grid
    stored: dict[int, Atlas]  # by the values they were built for, which a single one need not share
    meta: dict[str, Any]

    def save(self, path: Path) -> None:
        """Write what :func:`read_book` reads."""
        save_atlas(path, self.stored, meta=self.meta)

    def save_into(self, path: Path) -> None:
        """Write the atlases to a file in which those of other structures stay; they must be on the same grid."""
        if not path.is_file():
            return self.save(path)
        found, meta = load_atlas(path)
        others = {value: atlas for value, atlas in found.items() if value not in self.atlases}
        if others and any(meta.get(key) != self.meta[key] for key in ("grid", "orientation")):
            raise UserError(
                f"{path}: has labels {', '.join(map(str, others))} on another grid, which would be lost; "
                "add them to --label, or choose another --out"
            )
        save_atlas(path, others | self.atlases, meta=self.meta)


def build_book(
    dataset: Dataset,
    training: Sequence[Case],
    values: Sequence[int],
    grid: GridConfig,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Book:
    """Build the atlases of the structures ``values`` from those of ``training`` that have complete masks."""
    if not training:
        raise _no_mask(dataset)
    frame = Grid(grid.shape, grid.clip_percent, common_orientation(training))
    atlases = _build(prepare_cases(training, frame, progress=progress), dataset, values)
    return Book(atlases, frame, atlases, {"grid": list(frame.shape), "orientation": frame.orientation})


def read_book(path: Path, dataset: Dataset, values: Sequence[int], grid: GridConfig) -> Book:
    """Read the atlases of the structures ``values`` from a file; it has its own grid, but for the intensities."""
    found, meta = load_atlas(path)
    stored = _choose(path, found, values, single=len(dataset.labels) == 2)
    return Book(dict(zip(values, stored.values(), strict=True)), _frame_of(path, meta, grid), stored, meta)


def _by_case(clicks: Mapping[tuple[str, str], Click], dataset: Dataset, values: Sequence[int]) -> Clicked:
    """Return the clicks on the structures; a single one need not be named, and others may be there too."""
    names = _names(dataset)
    by_case: dict[str, dict[int, Click]] = {}
    for click in clicks.values():
        if not click.label and len(values) > 1:
            which = ", ".join(names[value] for value in values)
            raise UserError(f"{click.source}: say which of {which} the click of case {click.case} is on, by its name")
        try:
            value = dataset.label_value(click.label) if click.label else values[0]
        except UserError as error:
            raise UserError(f"{click.source}: case {click.case}: {error}") from error
        if value in by_case.get(click.case, {}):
            raise UserError(f"{click.source}: case {click.case} has two clicks on {names[value]}")
        if value in values:
            by_case.setdefault(click.case, {})[value] = click
    if not by_case:
        source, which = next(iter(clicks.values())).source, ", ".join(names[value] for value in values)
        raise UserError(f"{source}: no click on {which}")
    return by_case


def _names(dataset: Dataset) -> dict[int, str]:
    return {value: name for name, value in dataset.labels.items()}


def _chosen(dataset: Dataset, training: Sequence[Case], clicked: Clicked, clicks: Path | None) -> list[Case]:
    if clicks is None:
        return list(training)
    names = {case.name: case for case in dataset.cases}
    unknown = [name for name in clicked if name not in names]
    if unknown:
        raise UserError(f"{clicks}: case {unknown[0]} is not in {dataset.root}")
    return [names[name] for name in clicked]


def _no_mask(dataset: Dataset) -> UserError:
    return UserError(f"{dataset.root}: no training case has a complete mask to build an atlas from; pass --atlas FILE")


def _build(prepared: Sequence[Prepared], dataset: Dataset, values: Sequence[int]) -> dict[int, Atlas]:
    """Return an atlas of each structure; with several, cases that lack one take no part in its atlas."""
    complete = [item for item in prepared if item.is_complete(dataset.ignore)]
    if not complete:
        raise _no_mask(dataset)
    book = {}
    for value in values:
        masks = [(item.case, item.mask(value, ignore=dataset.ignore)) for item in complete]
        there = [(case, mask) for case, mask in masks if mask is not None and (len(values) == 1 or mask.any())]
        if not there:
            raise UserError(f"{dataset.root}: no training mask has {_names(dataset)[value]}; leave it out of --label")
        book[value] = build_atlas([(case.group, mask) for case, mask in there], names=[case.name for case, _ in there])
    return book


def _frame_of(path: Path, meta: dict[str, Any], grid: GridConfig) -> Grid:
    """Return the grid an atlas was made on."""
    try:
        (rows, columns), orientation = meta["grid"], meta["orientation"]
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: the atlas does not say its grid; make it anew with 'discoseg seeds'") from error
    return Grid((rows, columns), grid.clip_percent, orientation)


def _choose(path: Path, book: dict[int, Atlas], values: Sequence[int], *, single: bool) -> dict[int, Atlas]:
    """Return the structures' atlases; where a dataset has a ``single`` structure, it is that of a single atlas."""
    if single and len(book) == 1:
        return book
    for value in values:
        if value not in book:
            of = f"label {next(iter(book))}" if len(book) == 1 else f"labels {', '.join(map(str, book))}"
            raise UserError(f"{path}: this atlas is of {of}, not {value}; choose --label accordingly")
    return {value: book[value] for value in values}


def _seeds(
    item: Prepared, atlases: Mapping[int, Atlas], clicks: Mapping[int, Click], dataset: Dataset, frame: Grid
) -> NDArray[np.int8]:
    """Return the seeds (z, y, x) of a case: −1 unknown, 0 background, k the k-th structure."""
    depth, _, rows, columns = item.image.shape
    shape, parts = (depth, rows, columns), []
    for value, atlas in atlases.items():
        mask = item.mask(value, ignore=dataset.ignore)
        if value not in clicks and mask is not None and not mask.any() and len(atlases) > 1:
            parts.append(np.zeros(shape, np.int8))
            continue
        of = f" on {_names(dataset)[value]}" if len(atlases) > 1 else ""
        parts.append(atlas.seeds(item.case.group, shape, _position(item, clicks.get(value), mask, frame, of)))
    return merge_seeds(parts)


def _position(
    item: Prepared, click: Click | None, mask: NDArray[np.bool_] | None, frame: Grid, of: str
) -> tuple[int, int, int]:
    """Return the click (z, y, x) on the grid; ``of`` names the structure in errors."""
    if click is not None:
        volume = read_volume(item.case.images[0])
        return click.on_grid(volume, shape=frame.shape, orientation=frame.orientation)
    if mask is None or not mask.any():
        raise UserError(f"{item.case.name}: no click{of} and no mask to take its centre from; pass --clicks FILE")
    return centroid(mask)


def _extents(
    prepared: Sequence[Prepared], values: Sequence[int], clicked: Clicked, dataset: Dataset
) -> Iterator[tuple[Case, str, Extent]]:
    """Yield the slices on the grid of all masks that stood in for a click."""
    for item in prepared:
        for value in values:
            mask = item.mask(value, ignore=dataset.ignore)
            if value not in clicked.get(item.case.name, {}) and mask is not None and mask.any():
                yield item.case, _names(dataset)[value], extent_of(mask)


def _statistics(
    item: Prepared, seeds: NDArray[np.int8], values: Sequence[int], dataset: Dataset
) -> dict[str, SeedStatistics]:
    """Count the seeds of each structure, and those of the background of all."""
    found = {}
    for number, value in enumerate(values, start=1):
        own = np.where(seeds > 0, np.where(seeds == number, 1, -1), seeds).astype(np.int8)
        found[_names(dataset)[value]] = seed_statistics(own, item.mask(value, ignore=dataset.ignore))
    return found
