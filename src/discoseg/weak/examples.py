"""Prepared cases to training examples: what is annotated, what the truth is, how large the structure may be."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from discoseg.config import Config
from discoseg.data.layouts import Dataset, find_weak_maps
from discoseg.data.prepare import Grid, Prepared, default_cache, prepare_label_map
from discoseg.errors import UserError
from discoseg.weak.bounds import (
    Bounds,
    IntervalMl,
    bounds_from_eps,
    bounds_from_ml,
    check_feasible,
    parse_size_ml,
    read_bounds_csv,
)


@dataclass(frozen=True)
class Example:
    """One volume as training sees it, on the network's grid.

    ``image`` (z, channel, y, x) float32 in [0, 1]; ``seeds`` (z, y, x) int8: -1 unknown, 0 background, 1 foreground;
    ``truth`` (z, y, x) bool where a complete mask exists; ``bounds`` on the structure's voxels in the whole volume.
    """

    name: str
    image: NDArray[np.float32] = field(repr=False)
    seeds: NDArray[np.int8] = field(repr=False)
    truth: NDArray[np.bool_] | None = field(repr=False)
    spacing_mm: tuple[float, float, float]
    bounds: Bounds | None = None


def training_examples(
    prepared: Sequence[Prepared], dataset: Dataset, config: Config, *, label: int, grid: Grid, weak: Path | None
) -> list[Example]:
    """Return examples of the structure ``label`` for ``config.method``.

    Seeds come from the folder ``weak``, else from the dataset's own label maps.
    """
    maps = {} if weak is None else find_weak_maps(weak, dataset)
    limits = {} if config.size_csv is None else read_bounds_csv(config.size_csv)
    examples = []
    for item in prepared:
        if item.label is not None:
            _require_known(item.label, dataset, item)
        truth = item.mask(label, ignore=dataset.ignore)
        if config.method == "full":
            if truth is None:
                raise UserError(f"{item.case.name}: --method full needs a complete mask; choose another method")
            seeds = truth.astype(np.int8)
        else:
            annotation = _annotation(item, maps, weak, grid)
            _require_known(annotation, dataset, item)
            seeds = _seeds(annotation, dataset, label)
        bounds = _bounds(item, truth, config, limits) if config.needs_bounds else None
        if bounds is not None:
            check_feasible(item.case.name, bounds, seeds if config.admm.honour_seeds else np.full_like(seeds, -1))
        examples.append(Example(item.case.name, item.image, seeds, truth, item.spacing_mm, bounds))
    _require_weak(examples, config)
    return examples


def validation_examples(prepared: Sequence[Prepared], dataset: Dataset, label: int) -> list[Example]:
    """Return the examples that can be scored: those with a complete mask; nothing of them is trained on."""
    examples = []
    for item in prepared:
        truth = item.mask(label, ignore=dataset.ignore)
        if truth is not None:
            seeds = np.full(truth.shape, -1, dtype=np.int8)
            examples.append(Example(item.case.name, item.image, seeds, truth, item.spacing_mm))
    return examples


def chosen_label(dataset: Dataset, label: str | None) -> int:
    """Return the value of the structure to segment; it must be named where the dataset has several."""
    structures = [name for name, value in dataset.labels.items() if value != 0]
    if label is None and len(structures) != 1:
        raise UserError(f"--label is needed: {dataset.root} has {', '.join(structures)}")
    return dataset.label_value(structures[0] if label is None else label)


def _annotation(item: Prepared, maps: dict[str, Path], weak: Path | None, grid: Grid) -> NDArray[np.uint8]:
    if weak is not None:
        if item.case.name not in maps:
            raise UserError(f"{weak}: no weak label map for case {item.case.name}")
        return prepare_label_map(maps[item.case.name], item.case, grid, default_cache())
    if item.label is None:
        raise UserError(f"{item.case.name}: no annotation; make some with 'discoseg seeds' and pass --seeds FOLDER")
    return item.label


def _require_known(annotation: NDArray[np.uint8], dataset: Dataset, item: Prepared) -> None:
    unknown = np.setdiff1d(np.unique(annotation), [*dataset.labels.values(), dataset.ignore])
    if unknown.size:
        known = ", ".join(f"{value} {name}" for name, value in dataset.labels.items())
        raise UserError(
            f"{item.case.name}: unknown label value {unknown[0]} in its annotation; known are {known}, "
            f"{dataset.ignore} not annotated"
        )


def _seeds(annotation: NDArray[np.uint8], dataset: Dataset, value: int) -> NDArray[np.int8]:
    seeds = (annotation == value).astype(np.int8)
    seeds[annotation == dataset.ignore] = -1
    return seeds


def _bounds(
    item: Prepared,
    truth: NDArray[np.bool_] | None,
    config: Config,
    limits: dict[str, IntervalMl],
) -> Bounds:
    name = item.case.name
    voxels = int(np.prod(item.image[:, 0].shape))
    if config.size_eps is not None:
        if truth is None:
            raise UserError(f"{name}: --size-eps needs its complete mask; use --size-ml or --size-csv instead")
        return bounds_from_eps(int(truth.sum()), config.size_eps)
    if config.size_ml is not None:
        return bounds_from_ml(parse_size_ml(config.size_ml), voxel_ml=item.voxel_ml, voxels=voxels)
    if config.size_csv is not None:
        if name not in limits:
            raise UserError(f"{config.size_csv}: no bounds for case {name}; add a line for it")
        return bounds_from_ml(limits[name], voxel_ml=item.voxel_ml, voxels=voxels)
    raise UserError(f"--method {config.method} needs size bounds: give --size-eps, --size-ml or --size-csv")


def _require_weak(examples: Sequence[Example], config: Config) -> None:
    """Refuse what would silently be another training than the one asked for."""
    if config.method != "full" and all((example.seeds >= 0).all() for example in examples):
        raise UserError(
            f"--method {config.method}: every voxel is annotated already; "
            "pass --seeds FOLDER ('discoseg seeds' makes it) or use --method full"
        )
    if not any((example.seeds == 1).any() for example in examples):
        raise UserError("no training case has a foreground seed; annotate some voxels of the structure")
