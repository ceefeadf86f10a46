"""Clicks on one case to seeds: by the atlas, or a small ball around each where there is none."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from discoseg.data.layouts import Case
from discoseg.data.prepare import labels_from_grid
from discoseg.data.volume import Volume
from discoseg.weak.atlas import merge_seeds
from discoseg.weak.clicks import Click
from discoseg.weak.seeds import Book
from discoseg.web.records import Voxel

BALL_MM = 4.0  # radius of what a click alone marks


@dataclass(frozen=True)
class Seeder:
    """``values`` are those of the structures that are annotated; the ``book``, if any, has an atlas of each."""

    values: tuple[int, ...]
    ignore: int
    book: Book | None

    def seeds(self, case: Case, geometry: Volume, clicks: Mapping[int, Voxel]) -> NDArray[np.uint8]:
        """Return the seeds (z, y, x) of clicks by value: values, 0 background, ``ignore`` elsewhere.

        Where an unclicked structure lies is not known, so there is background only once each has its click.
        """
        if self.book is not None and clicks:
            return self._by_atlas(self.book, case, geometry, clicks)
        seeds = np.full(geometry.shape, self.ignore, np.uint8)
        balls = [(value, *_ball(at, geometry)) for value, at in clicks.items()]
        claims = np.zeros(geometry.shape, np.uint8)
        for value, box, inside in balls:
            seeds[box][inside] = value
            claims[box] += inside
        for _, box, _ in balls:  # as with atlases, what two of them claim is unknown
            seeds[box][claims[box] > 1] = self.ignore
        return seeds

    def _by_atlas(self, book: Book, case: Case, geometry: Volume, clicks: Mapping[int, Voxel]) -> NDArray[np.uint8]:
        shape, orientation = book.frame.shape, book.frame.orientation
        depth = geometry.reoriented(orientation).shape[0]
        parts = []
        for value, (x, y, z) in clicks.items():
            click = Click(case.name, (float(x), float(y), float(z)))
            position = click.on_grid(geometry, shape=shape, orientation=orientation)
            parts.append(book.atlases[value].seeds(case.group, (depth, *shape), position))
        merged = merge_seeds(parts)
        complete = all(value in clicks for value in self.values)
        meanings = np.array([0 if complete else self.ignore, *clicks, self.ignore], np.uint8)  # of 0, 1, …, and of −1
        return labels_from_grid(meanings[merged], geometry, book.frame).array.astype(np.uint8)


def _ball(voxel: Voxel, geometry: Volume) -> tuple[tuple[slice, ...], NDArray[np.bool_]]:
    """Return a box (z, y, x), and which of its voxels lie within ``BALL_MM`` of one; that one always does."""
    box, squares = [], []
    for index, length, step in zip(voxel[::-1], geometry.shape, geometry.spacing_mm, strict=True):
        reach = int(BALL_MM / step)
        first, last = max(index - reach, 0), min(index + reach, length - 1)
        box.append(slice(first, last + 1))
        squares.append(((np.arange(first, last + 1) - index) * step) ** 2)
    return tuple(box), squares[0][:, None, None] + squares[1][:, None] + squares[2] <= BALL_MM**2
