"""One click per volume to weak label maps: the paper's annotation, for a whole dataset."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from discoseg.config import GridConfig
from discoseg.data.files import image_suffix, require_new_folder
from discoseg.data.layouts import Case, Dataset
from discoseg.data.prepare import Grid, Prepared, common_orientation, labels_from_grid, prepare_cases
from discoseg.data.volume import read_volume, write_volume
from discoseg.errors import UserError
from discoseg.weak.atlas import Atlas, SeedStatistics, build_atlas, centroid, load_atlas, save_atlas, seed_statistics
from discoseg.weak.clicks import Click, read_clicks


@dataclass(frozen=True)
class SeededCase:
    """A case whose seeds were written, and what they cover on the grid."""

    case: Case
    statistics: SeedStatistics


def make_seeds(
    dataset: Dataset,
    training: Sequence[Case],
    out: Path,
    *,
    label: int,
    grid: GridConfig,
    clicks: Path | None = None,
    atlas: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[SeededCase]:
    """Write a weak label map for every case of ``clicks``, or for all of ``training``, into the folder ``out``.

    The atlas is read from the file ``atlas``, or built from those of ``training`` that have complete masks; either way
    it is saved as ``out/atlas.npz``.
    Cases without a click take the centroid of their mask for one. In the maps, which have the geometry of the images,
    ``label`` and 0 are seeds and the dataset's ignore value is everything else.
    """
    require_new_folder(out, hint="choose another --out")
    clicked = {} if clicks is None else read_clicks(clicks)
    chosen = _chosen(dataset, training, clicked, clicks)
    if atlas is None:
        frame = Grid(grid.shape, grid.clip_percent, common_orientation(training))
        book = _build(prepare_cases(training, frame, progress=progress), dataset, label)
        meta = {"grid": list(frame.shape), "orientation": frame.orientation, "label": label}
    else:
        book, meta = load_atlas(atlas)
        frame = _frame_of(atlas, meta, grid, label, single=len(dataset.labels) == 2)
    prepared = prepare_cases(chosen, frame, progress=progress)
    all_seeds = []
    for item in prepared:  # all of them before the first is written
        position = _position(item, clicked.get(item.case.name), dataset, label, frame)
        all_seeds.append(book.seeds(item.case.group, item.image[:, 0].shape, position))
    out.mkdir(parents=True, exist_ok=True)
    seeded = []
    for item, seeds in zip(prepared, all_seeds, strict=True):
        labels = np.where(seeds < 0, dataset.ignore, np.where(seeds == 1, label, 0)).astype(np.uint8)
        image = item.case.images[0]
        write_volume(
            out / f"{item.case.name}{image_suffix(image)}", labels_from_grid(labels, read_volume(image), frame)
        )
        seeded.append(SeededCase(item.case, seed_statistics(seeds, item.mask(label, ignore=dataset.ignore))))
        progress(len(seeded), len(prepared))
    save_atlas(out / "atlas.npz", book, meta=meta)
    return seeded


def _chosen(dataset: Dataset, training: Sequence[Case], clicked: dict[str, Click], clicks: Path | None) -> list[Case]:
    if clicks is None:
        return list(training)
    names = {case.name: case for case in dataset.cases}
    unknown = [name for name in clicked if name not in names]
    if unknown:
        raise UserError(f"{clicks}: case {unknown[0]} is not in {dataset.root}")
    return [names[name] for name in clicked]


def _build(prepared: Sequence[Prepared], dataset: Dataset, label: int) -> Atlas:
    masks, names = [], []
    for item in prepared:
        mask = item.mask(label, ignore=dataset.ignore)
        if mask is not None:
            masks.append((item.case.group, mask))
            names.append(item.case.name)
    if not masks:
        raise UserError(
            f"{dataset.root}: no training case has a complete mask to build an atlas from; pass --atlas FILE"
        )
    return build_atlas(masks, names=names)


def _frame_of(path: Path, meta: dict[str, Any], grid: GridConfig, label: int, *, single: bool) -> Grid:
    """Return the grid an atlas was made on; where a dataset has a ``single`` structure, it is the atlas's."""
    try:
        (rows, columns), orientation, made_for = meta["grid"], meta["orientation"], meta["label"]
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: the atlas does not say its grid; make it anew with 'discoseg seeds'") from error
    if made_for != label and not single:
        raise UserError(f"{path}: this atlas is of label {made_for}, not {label}; choose --label accordingly")
    return Grid((rows, columns), grid.clip_percent, orientation)


def _position(item: Prepared, click: Click | None, dataset: Dataset, label: int, frame: Grid) -> tuple[int, int, int]:
    """Return the click (z, y, x) on the grid."""
    if click is not None:
        volume = read_volume(item.case.images[0])
        return click.on_grid(volume, shape=frame.shape, orientation=frame.orientation)
    mask = item.mask(label, ignore=dataset.ignore)
    if mask is None or not mask.any():
        raise UserError(f"{item.case.name}: no click and no mask to take its centre from; pass --clicks FILE")
    return centroid(mask)
