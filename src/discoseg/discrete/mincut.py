"""The smallest minimum cut of a Potts energy: integer capacities, voxels decided at sight, then the flow.

A whole cut is one compiled call, which does without Python's lock: a lock that threads take again and again would be
missing to the thread that drives the GPU.

A cut may be begun before its costs are known, by a guess of them. After a flow, what is left of the costs and arcs is
a problem of its own with the same minimisers. When some costs change, only the change has to flow on: exact, whatever
the guess was, and the sooner done the better it was.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from discoseg.discrete.maxflow import add_draining, add_pushed_to, maximise
from discoseg.discrete.preflow import MAX_CAPACITY, Flow, Preflow, Room, inner, new_preflow
from discoseg.discrete.sight import decide_at_sight

# A typical cost is at least this many units. Where the heaviest pairs then exceed MAX_CAPACITY they are clamped.
RESOLUTION = 2**24
COARSENING = 16  # how much coarser a guess's unit may be than the one the costs themselves would get


class Pairs(NamedTuple):
    """The pairs of neighbours of a grid and their weights."""

    steps: NDArray[np.int64]  # (K,) from a voxel to its neighbours in the flat grid, the earlier ones first
    weights: NDArray[np.float32]  # (voxels, K / 2) of a voxel with its later neighbours, 0 outside the grid
    totals: NDArray[np.float32]  # (voxels,) of a voxel with all neighbours
    heaviest: float


class Part(NamedTuple):
    """What seeds leave open of an image: a box, of which only the free voxels take part in a cut."""

    seeds: NDArray[np.int8]  # (z, y, x) of the image; empty: there are none
    corner: tuple[int, int, int]  # the box's first voxel
    shape: tuple[int, int, int]
    free: NDArray[np.bool_]  # (voxels,) of the box
    charged: NDArray[np.int64]  # (seed neighbours,) free voxels that have seeds beside them
    charges: NDArray[np.float64]  # (seed neighbours,) what those add to the voxel's cost, if strength is 1
    pairs: Pairs


class Guess(NamedTuple):
    """The costs that a flow was begun with."""

    units: NDArray[np.int64]  # (voxels,)
    unit: float  # 0: no flow was begun
    strength: float
    inside_pushes: bool


NO_GUESS = Guess(np.empty(0, np.int64), 0.0, 0.0, False)


@njit(nogil=True, cache=True)
def cut(
    unary: NDArray[np.floating],
    strength: float,
    part: Part,
    flow: Flow,
    guess: Guess,
    room: Room,
    mask: NDArray[np.bool_],
) -> tuple[bool, float]:
    """Write the mask that minimises Σ unary·y + strength·Σ w|y_p − y_q| and honours the seeds; the guess is used up.

    unary, mask: (z, y, x). Of several minimisers the smallest is written. Return whether all costs are finite, and the
    energy that the mask gains over the foreground seeds alone, by the flow.
    """
    if not _read_costs(unary, strength, part, room.cost):
        return False, 0.0
    flows, inside_pushes, exact_unit, fine_unit, gain = _survey(room.cost, strength, part)
    if not flows:
        _find_negative(room.cost, part.free, room.inside)
        _write_mask(room.inside, part, mask)
        return True, gain
    begun = 0 < guess.unit <= COARSENING * fine_unit and guess.strength == strength
    unit, pushes = (guess.unit, guess.inside_pushes) if begun else (min(exact_unit, fine_unit), inside_pushes)
    while True:
        if begun:
            units = room.cost.view(np.int64)  # rounded in place
            deficits = _to_units(room.cost, part, unit, pushes, units)
            _add_change(guess.units, units, flow.excess)
        else:
            deficits = _to_units(room.cost, part, unit, pushes, flow.excess)
            flow.outgoing[:] = 0
        g = new_preflow(flow, part.free, part.pairs.weights, part.pairs.steps, strength / unit, room)
        if not begun:
            decide_at_sight(g, part.pairs.totals, pushes)
        maximise(g)
        _find_smallest_side(g, pushes, room.inside)
        # Clamping only lowers energies, so a mask that separates no clamped pair is optimal without it too.
        if unit == exact_unit or not _separates_clamped(room.inside, part, strength / unit):
            _write_mask(room.inside, part, mask)
            return True, gain + (deficits - _sum_of_deficits(flow.excess)) * unit
        unit = min(fine_unit if begun else 16 * unit, exact_unit)
        begun, pushes = False, inside_pushes
        _read_costs(unary, strength, part, room.cost)


@njit(nogil=True, cache=True)
def begin_cut(
    unary: NDArray[np.floating], strength: float, part: Part, flow: Flow, units: NDArray[np.int64], room: Room
) -> tuple[bool, float, bool]:
    """Let costs (z, y, x) flow that are near those of the next cut; return whether all of them are finite.

    Also return `unit` and `inside_pushes` of the Guess, whose `units` (voxels,) are written.
    """
    if not _read_costs(unary, strength, part, room.cost):
        return False, 0.0, False
    flows, inside_pushes, exact_unit, fine_unit, _ = _survey(room.cost, strength, part)
    if not flows:
        return True, 0.0, False
    unit = min(exact_unit, fine_unit)
    for rounded in (units, flow.excess):
        _to_units(room.cost, part, unit, inside_pushes, rounded)
    flow.outgoing[:] = 0
    maximise(new_preflow(flow, part.free, part.pairs.weights, part.pairs.steps, strength / unit, room))
    return True, unit, inside_pushes


@inner
def _read_costs(unary: NDArray[np.floating], strength: float, part: Part, cost: NDArray[np.float64]) -> bool:
    """Set the costs (voxels,) of the box's voxels, pairs with seeds included; say whether all of `unary` is finite."""
    infinite = 0
    for value in unary.flat:
        infinite += not np.isfinite(value)
    (z0, y0, x0), (depth, height, width) = part.corner, part.shape
    for line in range(depth * height):
        read = unary[z0 + line // height, y0 + line % height, x0 : x0 + width]
        written = cost[line * width : (line + 1) * width]
        for x in range(width):
            written[x] = read[x]
    charged, charges = part.charged, part.charges
    for i in range(charged.size):
        cost[charged[i]] += strength * charges[i]
    return infinite == 0


@inner
def _write_mask(inside: NDArray[np.bool_], part: Part, mask: NDArray[np.bool_]) -> None:
    """Write the box's mask (voxels,) and the foreground seeds into that of the image, (z, y, x)."""
    seeds, flat = part.seeds.ravel(), mask.ravel()
    flat[:] = False
    for i in range(seeds.size):
        flat[i] = seeds[i] == 1
    (z0, y0, x0), (depth, height, width) = part.corner, part.shape
    for line in range(depth * height):
        written = mask[z0 + line // height, y0 + line % height, x0 : x0 + width]
        read = inside[line * width : (line + 1) * width]
        for x in range(width):
            written[x] |= read[x]


@inner
def _survey(cost: NDArray[np.float64], strength: float, part: Part) -> tuple[bool, bool, float, float, float]:
    """Say whether anything flows, and from which side; return two units and the sum of the negative costs.

    The exact unit is the least that clamps no pair, the fine one the largest that keeps the costs' resolution.
    """
    free = part.free
    number, number_inside = 0, 0
    total, total_inside = 0.0, 0.0
    for p in range(cost.size):  # without branches, which nobody could predict
        value = cost[p] if free[p] else 0.0
        number += free[p]
        number_inside += value < 0
        total += abs(value)
        total_inside += min(value, 0.0)
    exact_unit = strength * part.pairs.heaviest / MAX_CAPACITY
    flows = exact_unit > 0 and 0 < number_inside < number
    # The fewer push: a deficit costs nothing until it is reached.
    return flows, 2 * number_inside <= number, exact_unit, total / max(number, 1) / RESOLUTION, total_inside


@inner
def _to_units(
    cost: NDArray[np.float64], part: Part, unit: float, inside_pushes: bool, units: NDArray[np.int64]
) -> float:
    """Round costs to integer units, what pushes being positive, 0 where a voxel is not free; return the deficits' sum.

    A cost of more units than a voxel's arcs can carry decides the voxel, however large it is.
    """
    free, bound = part.free, np.float64(part.pairs.steps.size * (MAX_CAPACITY + 1))
    signed = -unit if inside_pushes else unit
    deficits = 0.0  # a float, because the sum may exceed an integer where each term does not
    for p in range(cost.size):
        rounded = np.rint(min(max(cost[p] / signed, -bound), bound)) if free[p] else 0.0
        units[p] = np.int64(rounded)
        deficits -= min(rounded, 0.0)
    return deficits


# Loops, where numpy's whole arrays would do: numba takes seconds to compile those.


@inner
def _add_change(before: NDArray[np.int64], after: NDArray[np.int64], excess: NDArray[np.int64]) -> None:
    for p in range(excess.size):
        excess[p] += after[p] - before[p]


@inner
def _find_smallest_side(g: Preflow, inside_pushes: bool, inside: NDArray[np.bool_]) -> None:
    """Set the smallest mask (voxels,) of least energy, once no excess can reach a deficit."""
    excess = g.excess
    for p in range(inside.size):
        inside[p] = excess[p] > 0 if inside_pushes else excess[p] < 0
    if inside_pushes:
        add_pushed_to(inside, g)
    else:
        add_draining(inside, g)


@inner
def _find_negative(cost: NDArray[np.float64], free: NDArray[np.bool_], inside: NDArray[np.bool_]) -> None:
    for p in range(cost.size):
        inside[p] = free[p] & (cost[p] < 0)


@inner
def _sum_of_deficits(excess: NDArray[np.int64]) -> float:
    total = 0.0
    for p in range(excess.size):
        if excess[p] < 0:
            total -= excess[p]
    return total


@inner
def _separates_clamped(mask: NDArray[np.bool_], part: Part, scale: float) -> bool:
    """Say whether two free voxels whose capacity was clamped lie on different sides of the mask."""
    free, steps, weights = part.free, part.pairs.steps, part.pairs.weights
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
