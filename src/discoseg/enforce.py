"""Labels that honour the boundary prior and size bounds exactly, from probabilities alone: numpy in, numpy out.

With one structure and y a mask, s its probability,

    min_y  E(y) = Σ_p (½ − s_p) y_p  +  strength · Σ_pq w_pq |y_p − y_q|    such that    low ≤ Σ_p y_p ≤ high

Where the cut without bounds misses one of them, B, all costs are shifted by one number t. A minimum of E − t Σ y is the
best mask of its own size, minima for growing t contain each other, and for t > 0 (B = low) or t < 0 (B = high) no mask
within the bounds has an energy below

    t B  +  min_y (E(y) − t Σ_p y_p)

Several structures are treated alike, each with its own t; |y_p − y_q| is then V(y_p, y_q), 1 between any two labels
unless ``pairs`` say otherwise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from discoseg.discrete import (
    PottsGrid,
    assign_by_size,
    assign_with_prices,
    energy_of_labels,
    label_by_expansion,
    select_by_size,
)
from discoseg.weak.bounds import Bounds

Kind = Literal["optimal", "lagrangian", "completed", "approximate"]

MOST_CUTS = 64  # in search of the shift; they halve what is left, about
MOST_ROUNDS = 8  # of expansions in search of several shifts
MOST_WEAKER = 4  # times that the strength is halved where sizes jump across the bounds
FIRST_STEP = 0.05  # of a shift whose sign alone is known
FARTHEST = 8  # steps from a structure; beyond they are not told apart


@dataclass(frozen=True)
class Enforced:
    """Labels within size bounds, and how good they are.

    ``labels`` int8, 0 background, k the k-th structure. ``energy`` is theirs; no labels within the bounds have one
    below ``bound``, up to the resolution of the cut's integers. ``shifts`` (K,) is what was taken off each structure's
    cost. ``kind`` is what is proven:

    - optimal: no labels within the bounds have less energy.
    - lagrangian: no mask of the same size has less energy; others within the bounds by ``gap`` at most.
    - completed: no shifted cut is within the bounds; others within them have less energy by ``gap`` at most.
    - approximate: several structures with a boundary prior, by expansion moves; as for completed, and ``gap`` is large.
    """

    labels: NDArray[np.int8]
    kind: Kind
    energy: float
    bound: float
    shifts: tuple[float, ...]

    @property
    def gap(self) -> float:
        """How much lower the energy of other labels within the bounds may be at most."""
        return max(self.energy - self.bound, 0.0)


def enforce(
    probabilities: NDArray[np.floating],
    bounds: Sequence[Bounds],
    *,
    grid: PottsGrid | None = None,
    strength: float = 0,
    pairs: NDArray[np.float64] | None = None,
) -> Enforced:
    """Return the labels of least energy within the bounds, which some labels can meet.

    probabilities: (K, z, y, x) of the structures. bounds: K, in voxels. grid: of the same voxels; without one, or with
    strength 0, there is no boundary prior. pairs: V of several structures, (1 + K, 1 + K), a metric.

    >>> s = np.array([[[[0.9, 0.6, 0.4, 0.1]]]])
    >>> enforce(s, [Bounds(3, 4)]).labels
    array([[[1, 1, 1, 0]]], dtype=int8)
    """
    costs = label_costs(probabilities)
    if grid is None or strength == 0:
        found = assign_with_prices(-costs, *_limits(bounds, costs[0].size))
        shifts = found.prices[0] - found.prices[1:]
        return Enforced(found.labels, "optimal", -found.value, -found.bound, tuple(shifts.tolist()))
    if len(bounds) == 1:
        return _enforce_one(grid, costs[1], bounds[0], strength)
    metric = 1 - np.eye(len(costs)) if pairs is None else pairs
    return _enforce_several(grid, costs, bounds, strength, metric)


def label_costs(probabilities: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return costs (1 + K, …) of the background, 0, and of structures (K, …): half of Σ_c (s_c − y_c)² but for 0's.

    Of one structure that is ½ − s.
    """
    values = probabilities.astype(np.float64)
    return np.concatenate([np.zeros_like(values[:1]), (1 - values - values.sum(axis=0)) / 2])


def energy_of(
    labels: NDArray[np.integer],
    probabilities: NDArray[np.floating],
    *,
    grid: PottsGrid | None,
    strength: float,
    pairs: NDArray[np.float64] | None = None,
) -> float:
    """Return the energy that :func:`enforce` makes least, of labels (z, y, x) whatever their sizes."""
    costs = label_costs(probabilities)
    if grid is not None:
        return energy_of_labels(grid, labels.astype(np.int8), costs, strength=strength, pairs=pairs)
    return float(np.take_along_axis(costs, labels[np.newaxis].astype(np.intp), axis=0).sum())


@dataclass(frozen=True)
class _Mask:
    mask: NDArray[np.bool_]
    size: int
    energy: float  # without a shift


@dataclass(frozen=True)
class _Bracket:
    """The best masks next to the bound that was missed; the same one twice where none was, or it is met exactly."""

    below: _Mask
    above: _Mask
    bound: float
    shift: float

    def inside(self, bounds: Bounds) -> _Mask | None:
        found = [mask for mask in (self.below, self.above) if bounds.low_vox <= mask.size <= bounds.high_vox]
        return found[0] if found else None


def _enforce_one(
    grid: PottsGrid, cost: NDArray[np.float64], bounds: Bounds, strength: float, *, weaker: int = MOST_WEAKER
) -> Enforced:
    """Return the mask for costs (z, y, x) of the one structure.

    Where sizes jump across the bounds, the mask is one between the cuts next to them, or that of half the strength,
    which jumps less, whichever has less energy; ``weaker`` is how many times the strength may be halved.
    """
    found = _bracket(grid, cost, bounds, strength)
    mask, kind = found.inside(bounds), "lagrangian" if found.shift else "optimal"
    if mask is None:
        kind, target = "completed", bounds.low_vox if found.shift > 0 else bounds.high_vox
        mask = _complete(grid, cost, strength, found.below, found.above, target)
        if weaker:
            other = _enforce_one(grid, cost, bounds, strength / 2, weaker=weaker - 1).labels > 0
            energy = grid.energy(other, cost, strength=strength)
            if energy < mask.energy:
                mask = _Mask(other, int(np.count_nonzero(other)), energy)
    return Enforced(mask.mask.astype(np.int8), cast(Kind, kind), mask.energy, found.bound, (found.shift,))


def _bracket(grid: PottsGrid, cost: NDArray[np.float64], bounds: Bounds, strength: float) -> _Bracket:
    empty = _Mask(np.zeros(cost.shape, bool), 0, 0.0)
    full = _Mask(np.ones(cost.shape, bool), cost.size, float(cost.sum()))
    free, bound = _cut_between(grid, cost, strength, 0.0, empty, full)
    if bounds.low_vox <= free.size <= bounds.high_vox:
        return _Bracket(free, free, bound, 0.0)
    if bounds.low_vox == cost.size or bounds.high_vox == 0:  # there is only one mask of this size
        only, shift = (full, float(cost.max())) if bounds.low_vox else (empty, float(cost.min()))
        return _Bracket(only, only, only.energy, shift)
    if free.size < bounds.low_vox:
        return _search(grid, cost, strength, bounds.low_vox, free, full, bound)
    return _search(grid, cost, strength, bounds.high_vox, empty, free, bound)


def _search(
    grid: PottsGrid,
    cost: NDArray[np.float64],
    strength: float,
    target: int,
    below: _Mask,
    above: _Mask,
    bound: float,
) -> _Bracket:
    """Return the best masks next to a size, between two masks, and the highest lower bound with its shift.

    Where two masks have the same energy with a shift, its cut is one between them, or there is none: sizes jump. The
    first shift is the one that would do without a boundary prior.
    """
    grows, best = above.size == cost.size, 0.0
    ranked = float(np.partition(cost.ravel(), target - 1)[target - 1])
    first: float | None = ranked if (ranked > 0 if grows else ranked < 0) else None
    for _ in range(MOST_CUTS):
        shift = (above.energy - below.energy) / (above.size - below.size) if first is None else first
        found, least = _cut_between(grid, cost, strength, shift, below, above)
        if best == 0 or least + shift * target > bound:
            bound, best = max(bound, least + shift * target), shift
        if found.size == target:
            return _Bracket(found, found, bound, shift)
        if first is None and found.size in (below.size, above.size):
            break
        below, above = (found, above) if found.size < target else (below, found)
        first = None
    return _Bracket(below, above, bound, best)


def _cut_between(
    grid: PottsGrid, cost: NDArray[np.float64], strength: float, shift: float, below: _Mask, above: _Mask
) -> tuple[_Mask, float]:
    """Return the best mask for shifted costs between two masks that contain each other, and a bound of its value."""
    seeds = np.where(below.mask, 1, np.where(above.mask, -1, 0)).astype(np.int8)
    cut = grid.cut_with_flow(cost - shift, strength=strength, seeds=None if (seeds < 0).all() else seeds)
    size = int(np.count_nonzero(cut.mask))
    return _Mask(cut.mask, size, cut.energy + shift * size), min(cut.flow, cut.energy)


def _complete(
    grid: PottsGrid, cost: NDArray[np.float64], strength: float, below: _Mask, above: _Mask, target: int
) -> _Mask:
    """Return a mask of the target's size between the two.

    Voxels are ranked by their probability alone, and by what a voxel more costs beside the smaller mask, or beside the
    larger one; of the three masks the one with the least energy.
    """
    seeds = np.where(below.mask, 1, np.where(above.mask, -1, 0)).astype(np.int8)
    everywhere = grid.pull(np.ones(cost.shape, bool))
    utilities = [-cost] + [strength * (2 * grid.pull(beside.mask) - everywhere) - cost for beside in (below, above)]
    masks = [select_by_size(utility, target, target, seeds=seeds) for utility in utilities]
    energies = [grid.energy(mask, cost, strength=strength) for mask in masks]
    best = int(np.argmin(energies))
    return _Mask(masks[best], target, energies[best])


def _enforce_several(
    grid: PottsGrid,
    costs: NDArray[np.float64],
    bounds: Sequence[Bounds],
    strength: float,
    metric: NDArray[np.float64],
) -> Enforced:
    """Return labels for costs (1 + K, z, y, x) and a metric (1 + K, 1 + K), and a bound from each structure by itself.

    V(a, b) is at least half the distance of a to the label nearest to it and half that of b. So structures that shared
    their voxels with others, each with half the strength towards its nearest label, would have no more energy together;
    without boundaries an assignment is the least.
    """
    nearest = np.where(np.eye(len(metric), dtype=bool), np.inf, metric).min(axis=0)[1:].tolist()
    alone = [
        _bracket(grid, cost, bound, strength * near / 2)
        for cost, bound, near in zip(costs[1:], bounds, nearest, strict=True)
    ]
    least = max(sum(found.bound for found in alone), -assign_with_prices(-costs, *_limits(bounds, costs[0].size)).bound)
    guess = np.array([found.shift for found in alone])
    labels, shifts = _shift_several(grid, costs, bounds, strength, metric, guess, MOST_WEAKER)
    energy = energy_of_labels(grid, labels, costs, strength=strength, pairs=metric)
    return Enforced(labels, "approximate", energy, least, tuple(shifts.tolist()))


def _shift_several(
    grid: PottsGrid,
    costs: NDArray[np.float64],
    bounds: Sequence[Bounds],
    strength: float,
    metric: NDArray[np.float64],
    guess: NDArray[np.float64],
    weaker: int,
) -> tuple[NDArray[np.int8], NDArray[np.float64]]:
    """Search the structures' shifts (K,) by bisection, all at once; return labels within the bounds, and the shifts.

    What is still missing then is assigned such that the energy is least if each voxel's neighbours kept their labels,
    or comes from half the strength, whichever has less energy.
    """
    low, high = _limits(bounds, costs[0].size)
    kept, shifts, missing = None, np.zeros(len(bounds)), costs[0].size + 1
    least, most, steps = np.full(len(bounds), -np.inf), np.full(len(bounds), np.inf), np.full(len(bounds), FIRST_STEP)
    tried, labels = shifts, None
    for number in range(MOST_ROUNDS):
        shifted = costs.copy()
        shifted[1:] -= tried.reshape(-1, *[1] * (costs.ndim - 1))
        labels = label_by_expansion(grid, shifted, strength=strength, pairs=metric, start=labels).labels
        counts = np.bincount(labels.ravel(), minlength=len(costs))[1:]
        few, many = counts < low[1:], counts > high[1:]
        lacking = int(np.maximum(low[1:] - counts, 0).sum() + np.maximum(counts - high[1:], 0).sum())
        if lacking < missing:
            kept, shifts, missing = labels, tried, lacking
        if missing == 0:
            return labels, tried
        least, most = np.where(few, tried, least), np.where(many, tried, most)
        with np.errstate(invalid="ignore"):
            middle = (least + most) / 2
        moved = np.where(np.isfinite(middle), middle, tried + np.where(few, steps, -steps))
        if number == 0:
            moved = np.where(np.where(few, guess > 0, guess < 0), guess, moved)
        steps = np.where(few | many, 2 * steps, steps)
        tried = np.where(few | many, moved, tried)
    assert kept is not None
    pulls = np.stack([grid.pull(kept == number) for number in range(len(costs))])
    kindness = np.tensordot(1 - metric, pulls, axes=1)  # −V·pulls, but for what is the same for all labels of a voxel
    found = assign_by_size(strength * kindness - costs, low, high), shifts
    if weaker:
        other = _shift_several(grid, costs, bounds, strength / 2, metric, shifts, weaker - 1)
        return min(found, other, key=lambda one: energy_of_labels(grid, one[0], costs, strength=strength, pairs=metric))
    return found


def restore_sizes(
    labels: NDArray[np.integer], probabilities: NDArray[np.floating], bounds: Sequence[Bounds]
) -> NDArray[np.uint8]:
    """Return labels (z, y, x) changed where they leave the bounds: next to a structure first, then by probability.

    probabilities: (K, z, y, x). The utility of a label is its probability less twice the steps, across faces, edges and
    corners, to the nearest voxel that has it, so that voxels change shell by shell; a structure that is nowhere is
    one step from everywhere.
    """
    counts = np.bincount(labels.ravel(), minlength=1 + len(bounds))[1:]
    if all(b.low_vox <= count <= b.high_vox for b, count in zip(bounds, counts.tolist(), strict=True)):
        return labels.astype(np.uint8)
    utility = np.concatenate([1 - probabilities.sum(axis=0, keepdims=True), probabilities]).astype(np.float32)
    for number, values in enumerate(utility):
        values -= 2 * _steps_to(labels == number)
    return assign_by_size(utility, *_limits(bounds, labels.size)).astype(np.uint8)


def _steps_to(mask: NDArray[np.bool_]) -> NDArray[np.float32]:
    if not mask.any():
        return np.ones(mask.shape, np.float32)
    return np.minimum(ndimage.distance_transform_cdt(~mask, metric="chessboard"), FARTHEST).astype(np.float32)


def _limits(bounds: Sequence[Bounds], voxels: int) -> tuple[list[int], list[int]]:
    """Return the least and the largest count of each class, the background's open."""
    return [0, *(b.low_vox for b in bounds)], [voxels, *(b.high_vox for b in bounds)]
