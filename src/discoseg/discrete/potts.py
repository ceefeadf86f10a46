"""The exact CRF proposal: a contrast-sensitive Potts model on a voxel grid, solved by a minimum cut."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discoseg.discrete.contrast import (
    arc_steps,
    charge_seed_pairs,
    contrast_weights,
    distances_mm,
    forward_offsets,
    surface_weight,
)
from discoseg.discrete.foresight import ForeseenCut
from discoseg.discrete.mincut import Pairs, smallest_cut
from discoseg.errors import UserError

Box = tuple[slice, slice, slice]


@dataclass(frozen=True)
class Cut:
    """A minimum cut with the proof of its optimality: no mask has an energy below ``flow``."""

    mask: NDArray[np.bool_]
    energy: float  # of the mask
    flow: float  # the maximum flow, counted like the energy; the two are equal up to the integers' resolution


class _Weights(NamedTuple):
    box: Box
    shape: tuple[int, ...]
    pairs: Pairs


class PottsGrid:
    """The contrast weights of one image, kept for many cuts with different unaries.

    image: (z, y, x) or (y, x), intensities in [0, 1]. spacing_mm: one length for each axis of the image. sigma: in
    units of the intensities. neighbours: 6, 18 or 26 in 3D, or 8, those in a voxel's own slice alone; 4 or 8 in 2D; all
    that touch (26 or 8) by default.
    Two neighbours p and q whose intensities differ by d weigh

        w_pq = exp(−d² / 2σ²) / (their distance in mm)

    Weights are computed for the part of the image that the cuts so far needed: with seeds, the box around the unknown
    voxels. Cuts of the same grid or of different ones may run on several threads at once.

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

    def cut(self, unary: ArrayLike, *, strength: float, seeds: NDArray[np.int8] | None = None) -> NDArray[np.bool_]:
        """Return the mask of least energy; of several the smallest (the one that all others contain).

        unary: cost of foreground, the image's shape, finite. strength: factor of the weights, at least 0. seeds: the
        image's shape, -1 unknown, 0 background, 1 foreground; the mask honours them exactly.

            argmin_y  Σ_p unary_p y_p  +  strength · Σ_pq w_pq |y_p − y_q|     (each pair of neighbours once)
        """
        mask, _ = self._solve(self._checked(unary, "unary"), strength, seeds)
        return mask.reshape(self.shape)

    def cut_with_flow(self, unary: ArrayLike, *, strength: float, seeds: NDArray[np.int8] | None = None) -> Cut:
        """Return what `cut` does together with its energy and the maximum flow that bounds every energy below."""
        cost = self._checked(unary, "unary")
        mask, gain = self._solve(cost, strength, seeds)
        known = np.zeros_like(mask) if seeds is None else self._checked_seeds(seeds) == 1
        flow = self._energy(known, cost, strength) + gain
        return Cut(mask.reshape(self.shape), self._energy(mask, cost, strength), flow)

    def energy(self, mask: NDArray[np.bool_], unary: ArrayLike, *, strength: float) -> float:
        """Return the energy of a mask of the image's shape (see `cut`), in double precision."""
        volume = np.ascontiguousarray(self._checked(mask, "mask").astype(bool))
        return self._energy(volume, self._checked(unary, "unary"), strength)

    def _energy(self, mask: NDArray[np.bool_], cost: NDArray, strength: float) -> float:
        surface = surface_weight(mask, self._image, self._offsets, self._distances_mm, self._sigma)
        return float(cost[mask].sum(dtype=np.float64)) + strength * surface

    def _solve(self, cost: NDArray, strength: float, seeds: NDArray[np.int8] | None) -> tuple[NDArray[np.bool_], float]:
        """Return the mask (z, y, x) and the energy it gains over the foreground seeds alone, by the flow."""
        if not 0 <= strength < np.inf:
            raise UserError(f"strength is {strength}: it must not be negative")
        if seeds is None:
            weights = self._weights_in(self._everything)
            flat = np.ravel(cost)
            free = np.ones(flat.size, dtype=np.bool_)
            mask, gain = smallest_cut(flat, free, weights.pairs, float(strength))
            return mask.reshape(weights.shape), gain
        seeds = self._checked_seeds(seeds)
        mask = seeds == 1
        unknown = seeds < 0
        if not unknown.any():
            return mask, 0.0
        weights = self._weights_in(box_around(unknown))
        near = np.ascontiguousarray(seeds[weights.box]).ravel()
        flat = np.array(cost[weights.box], dtype=np.float64).ravel()
        charge_seed_pairs(flat, near, weights.pairs.weights, weights.pairs.steps, float(strength))
        inner, gain = smallest_cut(flat, near < 0, weights.pairs, float(strength))
        mask[weights.box] |= inner.reshape(weights.shape)
        return mask, gain

    @property
    def _everything(self) -> Box:
        z, y, x = (slice(0, size) for size in self._image.shape)
        return z, y, x

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
        weights = _Weights(box, image.shape, Pairs(steps, values, totals, float(values.max())))
        self._weights = weights
        return weights

    def _as_volume(self, array: NDArray) -> NDArray:
        return array if array.ndim == 3 else array[np.newaxis]

    def _checked(self, array: ArrayLike, name: str) -> NDArray:
        array = np.asarray(array)
        if array.shape != self.shape:
            raise UserError(f"{name} has the shape {array.shape}, the image {self.shape}")
        if not np.isfinite(array).all():
            raise UserError(f"{name} has NaN or infinite values")
        return self._as_volume(array)

    def _checked_seeds(self, seeds: NDArray[np.int8]) -> NDArray[np.int8]:
        if seeds.shape != self.shape:
            raise UserError(f"seeds have the shape {seeds.shape}, the image {self.shape}")
        return self._as_volume(np.asarray(seeds, dtype=np.int8))


class Foresight:
    """Cuts of one grid with the same seeds, each of which may be begun before its unary costs are known.

    It keeps the flow of the guess: 4 bytes an arc and 30 a voxel of the box around the unknown voxels. To be used by
    one thread at a time.

    >>> grid = PottsGrid(np.array([[0.1, 0.1, 0.9, 0.9]]), spacing_mm=(1, 1), sigma=0.1)
    >>> foresight = grid.foresee()
    >>> foresight.guess(np.array([[-2.0, 1.0, 0.2, 0.2]]), strength=2)
    >>> foresight.cut(np.array([[-3.0, 1.0, 0.2, 0.2]]), strength=2).astype(int)
    array([[1, 1, 0, 0]])
    """

    def __init__(self, grid: PottsGrid, seeds: NDArray[np.int8] | None) -> None:
        self._grid = grid
        known = np.full(grid.shape, -1, np.int8) if seeds is None else seeds
        self._seeds = grid._checked_seeds(known)
        self._foreground = self._seeds == 1
        self._flow: ForeseenCut | None = None  # made with the first guess or cut, in the thread that needs it
        self._charges: NDArray[np.float64] = np.empty(0)

    def guess(self, unary: ArrayLike, *, strength: float) -> None:
        """Solve for unary costs of the image's shape that are near those of the next cut."""
        self._begin()
        if self._flow is not None:
            self._flow.guess(self._costs(unary, strength), float(strength))

    def cut(self, unary: ArrayLike, *, strength: float) -> NDArray[np.bool_]:
        """Return the mask that :meth:`PottsGrid.cut` returns, up to the resolution of its integers.

        That is the guess's, at most 16 times coarser: 1e-6 of a mean cost.
        """
        self._begin()
        mask = self._foreground.copy()
        if self._flow is not None:
            inner = self._flow.cut(self._costs(unary, strength), float(strength))
            mask[self._box] |= inner.reshape(mask[self._box].shape)
        return mask.reshape(self._grid.shape)

    def _begin(self) -> None:
        unknown = self._seeds < 0
        if self._flow is not None or not unknown.any():
            return
        weights = self._grid._weights_in(box_around(unknown))
        near = np.ascontiguousarray(self._seeds[weights.box]).ravel()
        self._charges = np.zeros(near.size)
        charge_seed_pairs(self._charges, near, weights.pairs.weights, weights.pairs.steps, 1.0)
        self._box = weights.box
        self._flow = ForeseenCut(near < 0, weights.pairs)

    def _costs(self, unary: ArrayLike, strength: float) -> NDArray[np.float64]:
        """Return the costs of the box's voxels, (voxels,), with the pairs that join them to seeds."""
        if not 0 <= strength < np.inf:
            raise UserError(f"strength is {strength}: it must not be negative")
        cost = np.asarray(self._grid._checked(unary, "unary")[self._box], dtype=np.float64)
        return cost.ravel() + strength * self._charges


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
