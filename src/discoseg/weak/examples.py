"""Prepared cases to training examples: what is annotated, what the truth is, how large the structure may be."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from discoseg.config import Config
from discoseg.data.files import file_of
from discoseg.data.layouts import Dataset, find_weak_maps
from discoseg.data.memory import BOUNDLESS, Memory
from discoseg.data.prepare import Grid, Prepared, default_cache, prepare_label_map
from discoseg.errors import UserError
from discoseg.weak.bounds import Bounds, bounds_from_eps, bounds_from_ml, check_feasible, check_feasible_together
from discoseg.weak.extents import SLICES, Extent, limit_to, read_extents
from discoseg.weak.pairs import read_pairs
from discoseg.weak.sizes import SizesMl

ExamplePart = Literal["image", "annotation", "mask", "bounds"]


@dataclass(frozen=True)
class Example:
    """One volume as training sees it, on the network's grid.

    ``image`` (z, channel, y, x) float32 in [0, 1]; ``seeds`` (z, y, x) int8: -1 unknown, 0 background, k the k-th of
    the ``structures``; ``truth`` (z, y, x) int8 alike, where a complete label map exists; ``bounds`` on each
    structure's voxels in the whole volume; ``slices`` are the first and the last that the only structure is in, if they
    are known and to be used; ``files`` are where its parts came from, as far as they came from files.
    """

    name: str
    image: NDArray[np.float32] = field(repr=False)
    seeds: NDArray[np.int8] = field(repr=False)
    truth: NDArray[np.int8] | None = field(repr=False)
    spacing_mm: tuple[float, float, float]
    bounds: tuple[Bounds, ...] | None = None
    structures: tuple[str, ...] = ("foreground",)
    files: Mapping[ExamplePart, str] = field(default_factory=dict, repr=False)
    slices: Extent | None = None


def training_examples(
    prepared: Sequence[Prepared],
    dataset: Dataset,
    config: Config,
    *,
    structures: Mapping[str, int],
    grid: Grid,
    weak: Path | None,
    memory: Memory = BOUNDLESS,
) -> list[Example]:
    """Return examples of the ``structures``, values in label maps by name, for ``config.method``.

    Seeds come from the folder ``weak``, else from the dataset's own label maps. A case without either trains by its
    size bounds alone. ``memory`` holds seeds and truth; images stay in the cache.
    """
    if config.admm.soft_bounds is not None and len(structures) > 1:
        raise UserError(f"--admm.soft-bounds works for one structure, not for {', '.join(structures)}: leave it out")
    read_pairs(config.crf.pairs, list(structures))  # a mistake in it shall not wait for the first proposals
    maps = {} if weak is None else find_weak_maps(weak, dataset)
    extents: dict[str, Extent] = {}
    if config.uses_slices:
        cases = [item.case for item in prepared]
        extents = read_extents(weak, dataset, cases, structures, grid.orientation)
    sizes = None
    if config.needs_bounds:
        groups = {case.group for case in dataset.cases}
        sizes = SizesMl.read(config.size_ml, config.size_csv, list(structures), groups=groups)
    examples = []
    for item in prepared:
        if item.label is not None:
            _require_known(item.label, dataset, item)
        truth = _truth(item, dataset, structures, memory)
        if config.method == "full":
            if truth is None:
                raise UserError(f"{item.case.name}: --method full needs a complete mask; choose another method")
            seeds = truth
        else:
            annotation = _annotation(item, maps, weak, grid, may_lack=config.needs_bounds)
            if annotation is None:
                seeds = memory.keep(np.full(item.image[:, 0].shape, -1, np.int8))
            else:
                _require_known(annotation, dataset, item)
                seeds = memory.keep(_classes(annotation, dataset, structures))
        slices = extents.get(item.case.name)
        bounds = None if sizes is None else _bounds(item, truth, config, sizes, list(structures))
        if bounds is not None:
            fixed = seeds if config.admm.honour_seeds else np.full_like(seeds, -1)
            _require_feasible(item.case.name, structures, bounds, fixed)
            if slices is not None:
                where = f"{item.case.name}, in its slices in {weak}/{SLICES}"
                check_feasible(where, bounds[0], limit_to(slices, fixed))
        files = _files(item, maps.get(item.case.name), config)
        if config.uses_slices:
            files["annotation"] = " or ".join([*filter(None, [files.get("annotation")]), f"{weak}/{SLICES}"])
        facts = item.spacing_mm, bounds, tuple(structures), files, slices
        examples.append(Example(item.case.name, item.image, seeds, truth, *facts))
    return examples


def validation_examples(
    prepared: Sequence[Prepared], dataset: Dataset, structures: Mapping[str, int], memory: Memory = BOUNDLESS
) -> list[Example]:
    """Return the examples that can be scored: those with a complete mask; nothing of them is trained on."""
    examples = []
    for item in prepared:
        truth = _truth(item, dataset, structures, memory)
        if truth is not None:
            seeds = np.broadcast_to(np.full((), -1, np.int8), truth.shape)
            examples.append(
                Example(
                    item.case.name,
                    item.image,
                    seeds,
                    truth,
                    item.spacing_mm,
                    structures=tuple(structures),
                    files=_files(item),
                )
            )
    return examples


def chosen_labels(dataset: Dataset, label: str | None) -> dict[str, int]:
    """Return the structures to segment, values by name: one, several joined by commas, or ``all``.

    Where the dataset has several, they must be named.
    """
    known = {name: value for name, value in dataset.labels.items() if value != 0}
    if label is None and len(known) != 1:
        raise UserError(
            f"--label is needed: {dataset.root} has {', '.join(known)}; several are joined by commas, or all"
        )
    return known if label is None else dataset.label_values(label)


def chosen_label(dataset: Dataset, label: str | None) -> int:
    """Return the value of the one structure that is meant."""
    values = list(chosen_labels(dataset, label).values())
    if len(values) > 1:
        raise UserError(f"--label {label}: one structure at a time here")
    return values[0]


def _files(item: Prepared, weak: Path | None = None, config: Config | None = None) -> dict[ExamplePart, str]:
    """Return the files that a case's parts come from; bounds come from masks where ``config`` says ±ε."""
    label = {} if item.case.label is None else {"mask": item.case.label, "annotation": item.case.label}
    annotation = {} if weak is None else {"annotation": weak}
    table = config.size_csv if config is not None and config.size_csv is not None else item.case.label
    images = " or ".join(map(str, dict.fromkeys(map(file_of, item.case.images))))
    found = {"image": images, **label, **annotation, **({} if table is None else {"bounds": table})}
    return {part: str(found[part]) for part in get_args(ExamplePart) if part in found}


def _truth(item: Prepared, dataset: Dataset, structures: Mapping[str, int], memory: Memory) -> NDArray[np.int8] | None:
    if item.label is None or not item.is_complete(dataset.ignore):
        return None
    return memory.keep(_classes(item.label, dataset, structures))


def _annotation(
    item: Prepared, maps: dict[str, Path], weak: Path | None, grid: Grid, *, may_lack: bool
) -> NDArray[np.uint8] | None:
    """Return a case's annotation; None where it has none and ``may_lack`` it."""
    if item.case.name in maps:
        return prepare_label_map(maps[item.case.name], item.case, grid, default_cache())
    if item.label is None and may_lack:
        return None
    if weak is not None:
        raise UserError(f"{weak}: no weak label map for case {item.case.name}")
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


def _classes(annotation: NDArray[np.uint8], dataset: Dataset, structures: Mapping[str, int]) -> NDArray[np.int8]:
    """Return −1 where nothing is annotated, k where it is the k-th structure, 0 where it is anything else."""
    table = np.zeros(256, np.int8)
    table[dataset.ignore] = -1
    for number, value in enumerate(structures.values(), start=1):
        table[value] = number
    return table[annotation]


def _bounds(
    item: Prepared, truth: NDArray[np.int8] | None, config: Config, sizes: SizesMl, structures: Sequence[str]
) -> tuple[Bounds, ...]:
    name = item.case.name
    voxels = int(np.prod(item.image[:, 0].shape))
    if config.size_eps is not None:
        if truth is None:
            raise UserError(f"{name}: --size-eps needs its complete mask; use --size-ml or --size-csv instead")
        counts = np.bincount(truth.ravel(), minlength=len(structures) + 1)[1:]
        return tuple(bounds_from_eps(int(count), config.size_eps) for count in counts)
    if config.size_ml is None and config.size_csv is None:
        raise UserError(f"--method {config.method} needs size bounds: give --size-eps, --size-ml or --size-csv")
    bounds = []
    for structure in structures:
        interval = sizes.of(name, structure, item.case.group, file_voxel_ml=item.file_voxel_ml)
        bounds.append(bounds_from_ml(interval, voxel_ml=item.voxel_ml, voxels=voxels))
    return tuple(bounds)


def _require_feasible(name: str, structures: Iterable[str], bounds: Sequence[Bounds], seeds: NDArray[np.int8]) -> None:
    """Refuse bounds that no masks of the structures can meet, by themselves or together."""
    for value, (structure, bound) in enumerate(zip(structures, bounds, strict=True), start=1):
        where = name if len(bounds) == 1 else f"{name}, {structure}"
        check_feasible(where, bound, np.where(seeds > 0, seeds == value, seeds).astype(np.int8))
    check_feasible_together(name, bounds, seeds)


def annotated_structures(examples: Sequence[Example]) -> list[int]:
    """Return which values the seeds of any example have: −1 where something is open, 0 background, k a structure."""
    values = range(-1, 1 + len(examples[0].structures))
    return [value for value in values if any((example.seeds == value).any() for example in examples)]


def require_weak(annotated: Sequence[Sequence[int]], structures: Sequence[str], config: Config) -> None:
    """Refuse what would silently be another training than the one asked for.

    ``annotated`` are the values that seeds have (:func:`annotated_structures`), by part of the training cases.
    """
    values = set(chain(*annotated))
    if config.method != "full" and -1 not in values:
        raise UserError(
            f"--method {config.method}: every voxel is annotated already; "
            "pass --seeds FOLDER ('discoseg seeds' makes it) or use --method full"
        )
    for value, name in enumerate(structures, start=1):
        if value not in values:
            what = "foreground seed" if len(structures) == 1 else f"seed of {name}"
            raise UserError(f"no training case has a {what}; annotate some voxels of the structure")
