"""The exact CRF proposal: a contrast-sensitive Potts model on a voxel grid, solved by a minimum cut."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discoseg.discrete.contrast import (
    arc_steps,
    border_weight,
    charges_of_seeds,
    contrast_weights,
    distances_mm,
    forward_offsets,
    pull_of_neighbours,
    same_seeds,
)
from discoseg.discrete.mincut import NO_GUESS, Guess, Pairs, Part, begin_cut, cut
from discoseg.discrete.preflow import Flow, borrow_flow, borrow_room
from discoseg.errors import UserError

Box = tuple[slice, slice, slice]

_ONE_BORDER = 1 - np.eye(2)  # between mask and rest
_ONE_VOXEL = slice(0, 1), slice(0, 1), slice(0, 1)  # in place of the box around unknown voxels, where there are none


@dataclass(frozen=True)
class Cut:
    """A minimum cut with the proof of its optimality: no mask has an energy below ``flow``."""

    mask: NDArray[np.bool_]
    energy: float  # of the mask
    flow: float  # the maximum flow, counted like the energy; the two are equal up to the integers' resolution


class _Weights(NamedTuple):
    box: Box
    pairs: Pairs


class PottsGrid:
    """The contrast weights of one image, kept for many cuts with different unaries.

    image: (z, y, x) or (y, x), intensities in [0, 1]. spacing_mm: one length for each axis of the image. sigma: in
    units of the intensities. neighbours: 6, 18 or 26 in 3D, or 8, those in a voxel's own slice alone; 4 or 8 in 2D; all
    that touch (26 or 8) by default.
    Two neighbours p and q whose intensities differ by d weigh

        w_pq = exp(−d² / 2σ²) / (their distance in mm)

    Weights are computed for the part of the image that the cuts so far needed: with seeds, the box around the unknown
    voxels. A cut with the seeds of the last one takes over what those leave open. Cuts of the same grid or of different
    ones may run on several threads at once.

    >>> grid = PottsGrid(np.array([[0.1, 0.1, 0.9, 0.9]]), spacing_mm=(1, 1), sigma=0.1)
    >>> grid.cut(np.array([[-3.0, 1.0, 0.2, 0.2]]), strength=2).astype(int)
    array([[1, 1, 0, 0]])
    """

    def __init__(
        self,
        image: ArrayLike,
        *,
        spacing_mm: tuple[float, ...],
        sigma: float,
        neighbours: int | None = None,
    ) -> None:
        image = np.asarray(image)
        if image.dtype != np.float32:
            image = image.astype(np.float64)
        if image.ndim not in (2, 3):
            raise UserError(f"image has the shape {image.shape}: expected (z, y, x) or (y, x)")
        if not np.isfinite(image).all():
            raise UserError("image has NaN or infinite voxels")
        if len(spacing_mm) != image.ndim or not all(0 < s < np.inf for s in spacing_mm):
            raise UserError(f"spacing_mm is {spacing_mm}: expected {image.ndim} positive lengths")
        if not 0 < sigma < np.inf:
            raise UserError(f"sigma is {sigma}: it must be positive")
        if neighbours is None:
            neighbours = 3**image.ndim - 1
        offsets = forward_offsets(image.ndim, neighbours)
        self.shape = image.shape
        self.neighbours = neighbours
        self._sigma = float(sigma)
        self._distances_mm = distances_mm(offsets, spacing_mm)
        # A 2D image is a volume of one slice from here on.
        self._offsets = np.pad(offsets, ((0, 0), (3 - image.ndim, 0)))
        self._image = np.ascontiguousarray(self._as_volume(image))
        self._weights: _Weights | None = None
        self._part: Part | None = None  # of the last cut

    def cut(self, unary: ArrayLike, *, strength: float, seeds: NDArray[np.int8] | None = None) -> NDArray[np.bool_]:
        """Return the mask of least energy; of several the smallest (the one that all others contain).

        unary: cost of foreground, the image's shape, finite. strength: factor of the weights, at least 0. seeds: the
        image's shape, -1 unknown, 0 background, 1 foreground; the mask honours them exactly.

            argmin_y  Σ_p unary_p y_p  +  strength · Σ_pq w_pq |y_p − y_q|     (each pair of neighbours once)
        """
        return self._cut(unary, strength, seeds)[0]

    def cut_with_flow(self, unary: ArrayLike, *, strength: float, seeds: NDArray[np.int8] | None = None) -> Cut:
        """Return what `cut` does together with its energy and the maximum flow that bounds every energy below."""
        mask, gain = self._cut(unary, strength, seeds)
        known = np.zeros_like(mask) if seeds is None else seeds == 1
        flow = self.energy(known, unary, strength=strength) + gain
        return Cut(mask, self.energy(mask, unary, strength=strength), flow)

    def energy(self, mask: NDArray[np.bool_], unary: ArrayLike, *, strength: float) -> float:
        """Return the energy of a mask of the image's shape (see `cut`), in double precision."""
        volume = np.ascontiguousarray(self._checked(mask, "mask").astype(bool))
        cost = self._checked(unary, "unary")
        surface = border_weight(
            volume.view(np.int8), _ONE_BORDER, self._image, self._offsets, self._distances_mm, self._sigma
        )
        return float(cost[volume].sum(dtype=np.float64)) + strength * surface

    def pull(self, mask: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return Σ_q w_pq mask_q over the neighbours q of each voxel p, of the image's shape.

        >>> PottsGrid(np.zeros((1, 4)), spacing_mm=(1, 2), sigma=1).pull(np.array([[True, False, False, True]]))
        array([[0. , 0.5, 0.5, 0. ]])
        """
        volume = self._checked(mask, "mask").astype(bool)
        pairs = self._weights_in(
            (slice(0, volume.shape[0]), slice(0, volume.shape[1]), slice(0, volume.shape[2]))
        ).pairs
        return pull_of_neighbours(volume.ravel(), pairs.weights, pairs.steps).reshape(self.shape)

    def _cut(
        self, unary: ArrayLike, strength: float, seeds: NDArray[np.int8] | None
    ) -> tuple[NDArray[np.bool_], float]:
        """Return the mask and the energy it gains over the foreground seeds alone, by the flow."""
        part = self._open(None if seeds is None else self._checked_seeds(seeds))
        return self._solve(unary, strength, part, borrow_flow(part.free.size, self.neighbours), NO_GUESS)

    def _solve(
        self, unary: ArrayLike, strength: float, part: Part, flow: Flow, guess: Guess
    ) -> tuple[NDArray[np.bool_], float]:
        cost = self._as_costs(unary, strength)
        mask = np.empty(cost.shape, np.bool_)
        finite, gain = cut(cost, float(strength), part, flow, guess, borrow_room(part.free.size), mask)
        _require_finite(finite, "unary")
        return mask.reshape(self.shape), gain

    def foresee(self, seeds: NDArray[np.int8] | None = None) -> "Foresight":
        """Return what cuts this grid like `cut` does, but can begin with a guess of the unary costs."""
        return Foresight(self, seeds)

    def _weights_in(self, box: Box) -> _Weights:
        """Return weights of a box that contains the given one, from the last cut where possible."""
        kept = self._weights
        if kept is not None:
            if all(k.start <= b.start and b.stop <= k.stop for k, b in zip(kept.box, box, strict=True)):
                return kept
            z, y, x = (slice(min(k.start, b.start), max(k.stop, b.stop)) for k, b in zip(kept.box, box, strict=True))
            box = (z, y, x)
        image = np.ascontiguousarray(self._image[box])
        values, totals = contrast_weights(image, self._offsets, self._distances_mm, self._sigma)
        steps = arc_steps(self._offsets, image.shape)
        weights = _Weights(box, Pairs(steps, values, totals, float(values.max())))
        self._weights = weights
        return weights

    def _open(self, seeds: NDArray[np.int8] | None) -> Part:
        """Return what seeds (z, y, x) leave open, from the last cut if its seeds were the same."""
        kept = self._part
        if kept is not None and (kept.seeds.size == 0 if seeds is None else same_seeds(kept.seeds, seeds)):
            return kept
        known = np.full(self._image.shape, -1, np.int8) if seeds is None else seeds.copy()
        unknown = known < 0
        box, pairs = self._weights_in(box_around(unknown) if unknown.any() else _ONE_VOXEL)
        near = np.ascontiguousarray(known[box])
        charges = np.empty(0) if seeds is None else charges_of_seeds(near.ravel(), pairs.weights, pairs.steps)
        (charged,) = charges.nonzero()
        self._part = part = Part(
            seeds=known if seeds is not None else np.empty((0, 0, 0), np.int8),
            corner=(box[0].start, box[1].start, box[2].start),
            shape=near.shape,
            free=near.ravel() < 0,
            charged=charged,
            charges=charges[charged],
            pairs=pairs,
        )
        return part

    def _as_volume(self, array: NDArray) -> NDArray:
        return array if array.ndim == 3 else array[np.newaxis]

    def _shaped(self, array: ArrayLike, name: str) -> NDArray:
        array = np.asarray(array)
        if array.shape != self.shape:
            raise UserError(f"{name} has the shape {array.shape}, the image {self.shape}")
        return self._as_volume(array)

    def _checked(self, array: ArrayLike, name: str) -> NDArray:
        volume = self._shaped(array, name)
        _require_finite(bool(np.isfinite(volume).all()), name)
        return volume

    def _checked_seeds(self, seeds: NDArray[np.int8]) -> NDArray[np.int8]:
        if seeds.shape != self.shape:
            raise UserError(f"seeds have the shape {seeds.shape}, the image {self.shape}")
        return np.ascontiguousarray(self._as_volume(seeds), dtype=np.int8)

    def _as_costs(self, unary: ArrayLike, strength: float) -> NDArray[np.floating]:
        """Return unary costs as compiled code takes them; whether they are finite it sees itself."""
        if not 0 <= strength < np.inf:
            raise UserError(f"strength is {strength}: it must not be negative")
        volume = self._shaped(unary, "unary")
        return np.ascontiguousarray(volume, dtype=np.float32 if volume.dtype == np.float32 else np.float64)


def _require_finite(finite: bool, name: str) -> None:
    if not finite:
        raise UserError(f"{name} has NaN or infinite values")


class Foresight:
    """Cuts of one grid with the same seeds, each of which may be begun before its unary costs are known.

    It keeps the flow of the guess: 4 bytes an arc and 22 a voxel of the box around the unknown voxels. To be used by
    one thread at a time.

    >>> grid = PottsGrid(np.array([[0.1, 0.1, 0.9, 0.9]]), spacing_mm=(1, 1), sigma=0.1)
    >>> foresight = grid.foresee()
    >>> foresight.guess(np.array([[-2.0, 1.0, 0.2, 0.2]]), strength=2)
    >>> foresight.cut(np.array([[-3.0, 1.0, 0.2, 0.2]]), strength=2).astype(int)
    array([[1, 1, 0, 0]])
    """

    def __init__(self, grid: PottsGrid, seeds: NDArray[np.int8] | None) -> None:
        self._grid = grid
        self._seeds = None if seeds is None else grid._checked_seeds(seeds)
        self._guess = NO_GUESS
        self._begun: tuple[Part, Flow, NDArray[np.int64]] | None = None

    def guess(self, unary: ArrayLike, *, strength: float) -> None:
        """Solve for unary costs of the image's shape that are near those of the next cut."""
        self._guess = NO_GUESS
        part, flow, units = self._begin()
        cost, room = self._grid._as_costs(unary, strength), borrow_room(units.size)
        finite, unit, inside_pushes = begin_cut(cost, float(strength), part, flow, units, room)
        _require_finite(finite, "unary")
        self._guess = Guess(units, unit, float(strength), inside_pushes)

    def cut(self, unary: ArrayLike, *, strength: float) -> NDArray[np.bool_]:
        """Return the mask that :meth:`PottsGrid.cut` returns, up to the resolution of its integers.

        That is the guess's, at most 16 times coarser: 1e-6 of a mean cost.
        """
        guess, self._guess = self._guess, NO_GUESS
        part, flow, _ = self._begin()
        return self._grid._solve(unary, strength, part, flow, guess)[0]

    def _begin(self) -> tuple[Part, Flow, NDArray[np.int64]]:
        """Return what is open and the memory of a guess, made in the thread that needs it first."""
        if self._begun is None:
            part = self._grid._open(self._seeds)
            voxels, arcs = part.free.size, self._grid.neighbours
            flow = Flow(np.empty(voxels, np.int64), np.empty((voxels, arcs), np.int32), np.empty(voxels, np.uint32))
            self._begun = part, flow, np.empty(voxels, np.int64)
        return self._begun


def box_around(unknown: NDArray[np.bool_]) -> Box:
    """The smallest box that holds the voxels set and their neighbours."""
    rows = np.asarray(unknown.any(axis=2))  # the one look at every voxel
    planes = np.flatnonzero(rows.any(axis=1))
    z = slice(max(0, int(planes[0]) - 1), min(unknown.shape[0], int(planes[-1]) + 2))
    lines = np.flatnonzero(rows.any(axis=0))
    y = slice(max(0, int(lines[0]) - 1), min(unknown.shape[1], int(lines[-1]) + 2))
    columns = np.flatnonzero(unknown[z, y].any(axis=(0, 1)))
    x = slice(max(0, int(columns[0]) - 1), min(unknown.shape[2], int(columns[-1]) + 2))
    return z, y, x
