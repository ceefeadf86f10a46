"""What the actions of the page do to the annotation of a case."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from discoseg.data.files import file_of
from discoseg.data.layouts import Case, Dataset
from discoseg.data.meta_header import data_file
from discoseg.data.volume import format_shape
from discoseg.errors import UserError
from discoseg.weak.seeds import Book
from discoseg.web.drawing import MOST_STRUCTURES, Palette
from discoseg.web.images import Images
from discoseg.web.records import BoundsMl, CaseState, Layers, Record, Voxel
from discoseg.web.seeder import Seeder
from discoseg.web.store import Store


class Annotator:
    """A dataset's cases, and the actions on them; each is meant for a revision (:class:`discoseg.web.store.Conflict`).

    Cases that the layout holds out for testing are not annotated.
    """

    def __init__(
        self,
        dataset: Dataset,
        out: Path,
        *,
        structures: Mapping[str, int],
        book: Book | None = None,
        outside: bool = False,
    ) -> None:
        """``structures`` are values by name; ``book`` has an atlas of each, without it clicks mark small balls.

        Images that links, or the dataset's own tables, place outside its folder are shown only with ``outside``.
        """
        if len(structures) > MOST_STRUCTURES:
            raise UserError(f"--label: {len(structures)} structures; {MOST_STRUCTURES} can be drawn at a time")
        if max(dataset.ignore, *dataset.labels.values()) > 255:
            raise UserError(f"{dataset.root}: label values above 255 cannot be annotated")
        self.dataset, self.out, self.structures = dataset, out, dict(structures)
        self.cases: dict[str, Case] = {case.name: case for case in dataset.cases if not case.test}
        if not self.cases:
            raise UserError(f"{dataset.root}: no case to annotate, all are held out for testing")
        if not outside:
            _require_inside(dataset.root, self.cases.values())
        self.palette = Palette(tuple(structures.values()), dataset.ignore)
        self.has_atlas = book is not None
        self._seeder = Seeder(self.palette.values, dataset.ignore, book)
        self.images = Images(self.cases, out / "cache" / "images")
        self.store = Store(out, dataset, list(self.cases.values()), self.images.geometry)

    def drawing(self, case: str) -> tuple[Record, NDArray[np.uint8]]:
        """Return a case's record and its drawing, (z, y, x), which belong together."""
        record, layers = self.store.read(case)
        return record, self.palette.encode(layers.labels)

    def click(self, case: str, revision: int, structure: str, voxel: Voxel | None) -> Record:
        """Put a structure's click on a voxel, or take it away (None); what was painted stays."""
        self._require(structure)
        shape = self.images.geometry(case).shape
        if voxel is not None and not all(0 <= v < n for v, n in zip(voxel, shape[::-1], strict=True)):
            raise UserError(f"voxel {voxel} lies outside {case}, {format_shape(shape)} voxels")

        def edit(record: Record, layers: Layers) -> tuple[Record, Layers]:
            clicks = {name: at for name, at in record.clicks.items() if name != structure}
            if voxel is not None:
                clicks[structure] = voxel
            by_value = {self.structures[name]: at for name, at in clicks.items() if name in self.structures}
            seeds = self._seeder.seeds(self.cases[case], self.images.geometry(case), by_value)
            self._keep_others(layers.seeds, seeds)
            labels = np.where(layers.painted, layers.labels, seeds) if layers.painted.any() else seeds
            return _begun(replace(record, clicks=clicks)), Layers(labels, seeds, layers.painted)

        return self.store.repaint(case, revision, edit)

    def paint(self, case: str, revision: int, drawing: NDArray[np.uint8]) -> Record:
        """Make a case's drawing, (z, y, x), this one.

        Voxels that it changes are painted from now on, and no click moves them any more, except those to which it
        gives what the clicks give them: that is how an undone stroke leaves no trace.
        """

        def edit(record: Record, layers: Layers) -> tuple[Record, Layers]:
            changed = drawing != self.palette.encode(layers.labels)
            labels, painted = layers.labels.copy(), layers.painted.copy()
            labels[changed] = self.palette.decode(drawing[changed])
            painted[changed] = labels[changed] != layers.seeds[changed]
            return _begun(record), Layers(labels, layers.seeds, painted)

        return self.store.repaint(case, revision, edit)

    def bound(self, case: str, revision: int, bounds_ml: Mapping[str, BoundsMl]) -> Record:
        """Set size bounds in millilitres of the structures named; (None, None) takes them away."""
        for structure, (low, high) in bounds_ml.items():
            self._require(structure)
            if low is not None and high is not None and low > high:
                raise UserError(f"{structure}: the lower bound, {low:g} ml, exceeds the upper one, {high:g} ml")

        def edit(record: Record) -> Record:
            bounds = {**record.bounds_ml, **bounds_ml}
            known = {name: sides for name, sides in bounds.items() if sides != (None, None)}
            return _begun(replace(record, bounds_ml=known))

        return self.store.change(case, revision, edit)

    def mark(self, case: str, revision: int, state: CaseState) -> Record:
        """Set a case's state."""
        return self.store.change(case, revision, lambda record: replace(record, state=state))

    def _keep_others(self, before: NDArray[np.uint8], seeds: NDArray[np.uint8]) -> None:
        """Put seeds (z, y, x) of structures that are not annotated now back; background does not spread beside them."""
        others = [value for name, value in self.dataset.labels.items() if value and name not in self.structures]
        kept = np.isin(before, others)
        if kept.any():
            seeds[(seeds == 0) & (before != 0)] = self.dataset.ignore
            seeds[kept] = before[kept]

    def _require(self, structure: str) -> None:
        if structure not in self.structures:
            raise UserError(f"{structure!r} is not annotated here; these are: {', '.join(self.structures)}")


def _require_inside(root: Path, cases: Iterable[Case]) -> None:
    """Refuse images that do not lie in a dataset's folder: a page must not show what the dataset merely points to."""
    folder = root.resolve()
    for case in cases:
        for image in case.images:
            file = file_of(image)
            data = data_file(file) if file.suffix.lower() == ".mhd" and file.is_file() else None
            if not all(part.resolve().is_relative_to(folder) for part in (file, data or file)):
                raise UserError(f"{image} lies outside of {root}, by a link or a table; allow it with --outside")


def _begun(record: Record) -> Record:
    return replace(record, state="begun") if record.state == "new" else record
