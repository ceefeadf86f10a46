"""The smallest minimum cut of a Potts energy: integer capacities, voxels decided at sight, then the flow."""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from discoseg.discrete.maxflow import add_draining, add_pushed_to, maximise
from discoseg.discrete.preflow import MAX_CAPACITY, Preflow, capacity_of, new_preflow
from discoseg.discrete.scratch import borrow

# A typical cost is at least this many units. Where the heaviest pairs then exceed MAX_CAPACITY they are clamped.
RESOLUTION = 2**24


class Pairs(NamedTuple):
    """The pairs of neighbours of a grid and their weights."""

    steps: NDArray[np.int64]  # (K,) from a voxel to its neighbours in the flat grid, the earlier ones first
    weights: NDArray[np.float32]  # (voxels, K / 2) of a voxel with its later neighbours, 0 outside the grid
    totals: NDArray[np.float32]  # (voxels,) of a voxel with all neighbours
    heaviest: float


def smallest_cut(
    cost: NDArray[np.floating], free: NDArray[np.bool_], pairs: Pairs, strength: float
) -> tuple[NDArray[np.bool_], float]:
    """Return the mask that minimises Σ cost·y + strength·Σ w|y_p − y_q|, and the minimum by the flow.

    cost, free: (voxels,). Only free voxels take part; no other is in the mask. Of several minimisers the smallest
    is returned.
    """
    number, number_inside, total, total_inside = survey(cost, free)
    if strength * pairs.heaviest / MAX_CAPACITY == 0 or number_inside in (0, number):
        return (cost < 0) & free, total_inside
    # The fewer push: a deficit costs nothing until it is reached.
    inside_pushes = 2 * number_inside <= number
    exact_unit = strength * pairs.heaviest / MAX_CAPACITY
    unit = min(exact_unit, total / number / RESOLUTION)
    while True:
        mask, flow = _cut_in_units(cost, free, pairs, strength, unit, inside_pushes)
        # Clamping only lowers energies, so a mask that separates no clamped pair is optimal without it too.
        if unit == exact_unit or not separates_clamped(mask, free, pairs, strength / unit):
            return mask, total_inside + flow * unit
        unit = min(16 * unit, exact_unit)


def _cut_in_units(
    cost: NDArray[np.floating],
    free: NDArray[np.bool_],
    pairs: Pairs,
    strength: float,
    unit: float,
    inside_pushes: bool,
) -> tuple[NDArray[np.bool_], float]:
    """Return the smallest mask for costs and weights rounded to integer units, and the flow in units."""
    scale = strength / unit
    excess = borrow("excess", cost.size, np.int64)
    deficits = to_units(cost, free, -unit if inside_pushes else unit, cost_bound(pairs), excess)
    undecided = free.copy()
    # The flow takes these two arrays over, so that they cost no memory of their own.
    room, stack = borrow("following", cost.size, np.float32), borrow("queue", cost.size, np.int32)
    _decide_at_sight(excess, undecided, pairs, scale, inside_pushes, room, stack)
    preflow = new_preflow(excess, undecided, pairs.weights, pairs.steps, scale)
    maximise(preflow)
    return smallest_side(preflow, inside_pushes), deficits - _sum_of_deficits(excess)


def cost_bound(pairs: Pairs) -> float:
    """A cost of more units than a voxel's arcs can carry: it decides the voxel, however large it is."""
    return float(pairs.steps.size * (MAX_CAPACITY + 1))


def smallest_side(preflow: Preflow, inside_pushes: bool) -> NDArray[np.bool_]:
    """Return the smallest mask (voxels,) of least energy, once no excess can reach a deficit."""
    if inside_pushes:
        mask = preflow.excess > 0
        add_pushed_to(mask, preflow)
    else:
        mask = preflow.excess < 0
        add_draining(mask, preflow)
    return mask


@njit(nogil=True, cache=True)
def survey(cost: NDArray[np.floating], free: NDArray[np.bool_]) -> tuple[int, int, float, float]:
    """Count the free voxels and those of negative cost among them; sum the sizes of all costs and the negative ones."""
    number, number_inside = 0, 0
    total, total_inside = 0.0, 0.0
    for p in range(cost.size):
        if free[p]:
            number += 1
            total += abs(cost[p])
            if cost[p] < 0:
                number_inside += 1
                total_inside += cost[p]
    return number, number_inside, total, total_inside


@njit(nogil=True, cache=True)
def to_units(
    cost: NDArray[np.floating], free: NDArray[np.bool_], unit: float, bound: float, units: NDArray[np.int64]
) -> float:
    """Round costs to integer units, at most `bound` in size, 0 where a voxel is not free; return the deficits' sum."""
    deficits = 0.0  # a float, because the sum may exceed an integer where each term does not
    for p in range(cost.size):
        rounded = np.rint(min(max(cost[p] / unit, -bound), bound)) if free[p] else 0.0
        units[p] = np.int64(rounded)
        deficits -= min(rounded, 0.0)
    return deficits


@njit(nogil=True, cache=True)
def _sum_of_deficits(excess: NDArray[np.int64]) -> float:
    total = 0.0
    for p in range(excess.size):
        if excess[p] < 0:
            total -= excess[p]
    return total


@njit(nogil=True, cache=True)
def _decide_at_sight(
    excess: NDArray[np.int64],
    undecided: NDArray[np.bool_],
    pairs: Pairs,
    scale: float,
    inside_pushes: bool,
    room: NDArray[np.float32],
    stack: NDArray[np.int32],
) -> None:
    """Decide voxels whose excess fills all arcs to undecided neighbours at once.

    They leave the graph like seeds: the neighbours receive what the arcs carry, which may decide them in turn.
    room, stack: (voxels,) to work in.
    """
    steps, weights = pairs.steps.view(np.uint64), pairs.weights  # unsigned, as in the flow
    voxels = excess.size
    # About the capacity of a voxel's arcs to undecided neighbours, a little less: a quick test before the exact one.
    for start in range(voxels):
        room[start] = pairs.totals[start] * (scale * (1 - 1e-5)) - 32
    stacked = np.zeros(voxels, np.bool_)
    for start in range(voxels):
        if not undecided[start] or excess[start] <= 0 or excess[start] < room[start]:
            continue
        stack[0] = start
        height = 1
        while height > 0:
            height -= 1
            p = np.uint64(stack[height])
            stacked[p] = False
            capacity = _undecided_capacity(p, undecided, steps, weights, scale)
            # At equality the voxel may be on either side: outside, for the smallest mask.
            if excess[p] < capacity or (inside_pushes and excess[p] == capacity):
                continue
            undecided[p] = False
            for k in range(steps.size):
                q, weight = _neighbour(p, k, steps, weights)
                if weight > 0 and undecided[q]:
                    carried = np.int64(capacity_of(weight, scale))
                    excess[q] += carried
                    room[q] -= carried
                    if not stacked[q] and excess[q] > 0 and excess[q] >= room[q]:
                        stack[height] = q
                        stacked[q] = True
                        height += 1


@njit(nogil=True, cache=True)
def _undecided_capacity(p, undecided, steps, weights, scale):  # type: ignore[no-untyped-def]
    """Capacity of all pairs of p with undecided neighbours."""
    total = np.int64(0)
    for k in range(steps.size):
        q, weight = _neighbour(p, k, steps, weights)
        if weight > 0 and undecided[q]:
            total += capacity_of(weight, scale)
    return total


@njit(nogil=True, cache=True)
def _neighbour(p, k, steps, weights):  # type: ignore[no-untyped-def]
    """The k-th neighbour of p and the weight of the pair; the weight is 0 where the neighbour is off the grid."""
    half = steps.size // 2
    q = p + steps[k]
    if k >= half:
        return q, weights[p, k - half]
    if q >= np.uint64(weights.shape[0]):  # before the first voxel, modulo 2⁶⁴
        return q, np.float32(0)
    return q, weights[q, half - 1 - k]


@njit(nogil=True, cache=True)
def separates_clamped(mask: NDArray[np.bool_], free: NDArray[np.bool_], pairs: Pairs, scale: float) -> bool:
    """Say whether two free voxels whose capacity was clamped lie on different sides of the mask."""
    steps, weights = pairs.steps, pairs.weights
    half = steps.size // 2
    for j in range(half):
        step = steps[half + j]
        if step <= 0:  # leaves this narrow grid from everywhere
            continue
        for p in range(mask.size - step):
            q = p + step
            if mask[p] != mask[q] and free[p] and free[q] and weights[p, j] * scale >= MAX_CAPACITY:
                return True
    return False
