"""Maximum preflow on an implicit grid: highest-label push–relabel, compiled by numba, no graph object.

A voxel has an excess of flow to get rid of (> 0) or a deficit that it can take in (< 0): what is left of the
arcs to the two terminals. Voxel p has K arcs, arc k to voxel p + steps[k]; the opposite arc is number K-1-k of
that voxel, so no arc needs a pointer. Only the first phase runs: excess that can reach no deficit stays where
it is, and already shows the smallest and the largest minimum cut.

What keeps the work near the surface of the cut:

* Only *live* voxels (no deficit, but one within reach) have labels: label 0 is a deficit, `dead` is a voxel out
  of reach of all deficits, which it stays for good. A voxel's arcs are written when flow first touches it.
* A bit mask a voxel names its residual arcs, so that searches read no capacities.
* Live voxels are listed in the order of memory, and a level's voxels are taken in that order.
* Voxels are unsigned: numba would test a signed index for being negative at each access.
"""

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from discoseg.discrete.scratch import borrow, borrow_zeros

MAX_CAPACITY = 2**30 - 1  # of an arc; its residual, at most twice that, is an int32
RELABEL_WORK = 12  # voxels scanned, as a multiple of the live ones, between two searches for exact labels
FIRST_CEILING = 4  # arcs that excess is pushed over at first; it doubles whenever nothing is left within it

_WRITTEN = np.uint32(1 << 31)  # bit of `outgoing` beside those of the arcs: the residuals have been written
_ARCS = np.uint32((1 << 26) - 1)
_ONE = np.uint32(1)

# Scalars that the compiled functions share, by their place in Preflow.now
_HIGHEST, _TOP, _LIVE = range(3)


class Preflow(NamedTuple):
    """The state of one solve; arrays are (voxels,) unless said otherwise."""

    steps: NDArray[np.uint64]  # (K,) to the neighbours, in the flat grid; modulo 2⁶⁴, so -1 is 2⁶⁴ - 1
    weights: NDArray[np.float32]  # (voxels, K / 2) of a voxel with its later neighbours
    scale: float  # capacity of a weight of 1
    free: NDArray[np.bool_]  # voxels that are nodes of the graph
    excess: NDArray[np.int64]
    residual: NDArray[np.int32]  # (voxels, K), undefined until written
    outgoing: NDArray[np.uint32]  # bit k: arc k has a residual
    label: NDArray[np.int32]  # lower bound of the number of arcs to the nearest deficit
    live: NDArray[np.int32]  # list of the live voxels
    queue: NDArray[np.int32]  # of searches
    following: NDArray[np.int32]  # next active voxel of the same level
    first: NDArray[np.int32]  # (voxels + 2,) first active voxel of a level, -1: none
    level_size: NDArray[np.int32]  # (voxels + 2,) live voxels of a level
    now: NDArray[np.int64]  # (3,) highest level with an active voxel, top level in use, number of live voxels


def new_preflow(
    excess: NDArray[np.int64],
    free: NDArray[np.bool_],
    weights: NDArray[np.float32],
    steps: NDArray[np.int64],
    scale: float,
) -> Preflow:
    """Return the state before the first push; `excess` becomes part of it.

    It is valid until the same thread makes the next one.
    """
    voxels = excess.size
    assert voxels < 2**31 - 2
    assert weights.shape == (voxels, steps.size // 2)
    # Memory that is never touched costs nothing, so nothing is filled that need not be.
    residual = borrow("residual", voxels * steps.size, np.int32)
    return Preflow(
        steps=steps.view(np.uint64),
        weights=weights,
        scale=scale,
        free=free,
        excess=excess,
        residual=residual.reshape(voxels, steps.size),
        outgoing=borrow_zeros("outgoing", voxels, np.uint32),
        label=borrow_zeros("label", voxels, np.int32),
        live=borrow("live", voxels, np.int32),
        queue=borrow("queue", voxels, np.int32),
        following=borrow("following", voxels, np.int32),
        first=borrow("first", voxels + 2, np.int32),
        level_size=borrow("level_size", voxels + 2, np.int32),
        now=np.zeros(3, np.int64),
    )


@intrinsic
def _count_zeros(typingctx: Any, bits: Any) -> Any:
    """Number of zeros below the lowest bit set in a uint32 that is not 0."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zeros = builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))
        return builder.zext(zeros, ir.IntType(64))

    return types.int64(types.uint32), generate


lowest_arc: Any = _count_zeros


@njit(nogil=True, cache=True)
def capacity_of(weight: float, scale: float) -> np.int32:
    """Capacity of an arc in integer units, clamped at MAX_CAPACITY."""
    capacity = weight * scale
    return np.int32(MAX_CAPACITY) if capacity >= MAX_CAPACITY else np.int32(capacity + 0.5)


@njit(nogil=True, cache=True)
def _write_arcs(p, steps, weights, scale, free, residual, outgoing):  # type: ignore[no-untyped-def]
    """Write the residuals of one voxel's arcs; only free voxels have arcs, and only to free ones."""
    half = steps.size // 2
    voxels = np.uint64(free.size)
    mask = np.uint32(0)
    for j in range(half):
        capacity = np.int32(0)
        if weights[p, j] > 0 and free[p + steps[half + j]]:
            capacity = capacity_of(weights[p, j], scale)
        residual[p, half + j] = capacity
        if capacity > 0:
            mask |= _ONE << np.uint32(half + j)
        capacity = np.int32(0)
        q = p - steps[half + j]
        if q < voxels and weights[q, j] > 0 and free[q]:
            capacity = capacity_of(weights[q, j], scale)
        residual[p, half - 1 - j] = capacity
        if capacity > 0:
            mask |= _ONE << np.uint32(half - 1 - j)
    outgoing[p] = mask | _WRITTEN


@njit(nogil=True, cache=True)
def maximise(g: Preflow) -> None:
    """Push until no excess can reach a deficit any more.

    Excess above a ceiling waits: most of it is needed close by or cannot be brought to a deficit at all, and would
    climb through all levels in use before that shows.
    """
    _start(g)
    ceiling = FIRST_CEILING
    while True:
        _relabel_globally(g, ceiling)
        waiting = _list_active(g, ceiling)
        waiting += _discharge_highest(g, RELABEL_WORK * g.now[_LIVE], ceiling)
        if g.now[_HIGHEST] == 0:
            if waiting == 0:
                return
            ceiling *= 2


# Below, fields are taken out of the tuple before a loop: each access counts references, which is slow.


@njit(nogil=True, cache=True)
def _start(g: Preflow) -> None:
    """Make every free voxel without a deficit live."""
    steps, weights, free, residual, outgoing = g.steps, g.weights, g.free, g.residual, g.outgoing
    excess, label, live = g.excess, g.label, g.live
    listed = 0
    for p in range(excess.size):
        if free[p] and excess[p] >= 0:
            _write_arcs(p, steps, weights, g.scale, free, residual, outgoing)
            label[p] = 1
            live[listed] = p
            listed += 1
    g.now[_LIVE] = listed


@njit(nogil=True, cache=True)
def _relabel_globally(g: Preflow, ceiling: int) -> None:
    """Set exact labels up to the ceiling by breadth-first search backwards from the deficits.

    Who is not reached is just above the ceiling, or dead if nothing is at the ceiling.
    """
    steps, outgoing, label, live, queue = g.steps, g.outgoing, g.label, g.live, g.queue
    voxels = np.uint64(label.size)
    arcs = steps.size
    dead = np.int32(label.size + 1)
    tail = 0
    for i in range(g.now[_LIVE]):
        p = np.uint64(live[i])
        label[p] = dead
        mask = outgoing[p] & _ARCS
        while mask:
            if label[p + steps[lowest_arc(mask)]] == 0:
                label[p] = 1
                queue[tail] = p
                tail += 1
                break
            mask &= mask - _ONE
    head = 0
    while head < tail and label[queue[head]] < ceiling:
        p = np.uint64(queue[head])
        head += 1
        for k in range(arcs):
            # Off the grid q is some other voxel, but then its arc towards p leaves the grid and has no residual.
            q = p + steps[k]
            if q < voxels and label[q] == dead and outgoing[q] & (_ONE << np.uint32(arcs - 1 - k)):
                label[q] = label[p] + 1
                queue[tail] = q
                tail += 1
    top = max(1, label[queue[tail - 1]] if tail > 0 else 0)
    if head < tail:
        top = ceiling + 1
        for i in range(g.now[_LIVE]):
            if label[live[i]] == dead:
                label[live[i]] = top
        tail = g.now[_LIVE]
    _list_live(g, tail, top)


@njit(nogil=True, cache=True)
def _list_live(g: Preflow, count: int, top: int) -> None:
    """List the `count` live voxels, in the order of memory where they are many, and count those of each level."""
    label, live, level_size = g.label, g.live, g.level_size
    dead = label.size + 1
    level_size[: top + 1] = 0
    g.first[: top + 1] = -1
    everywhere = 16 * count > label.size
    listed = 0
    for i in range(label.size if everywhere else g.now[_LIVE]):
        p = np.uint64(i) if everywhere else np.uint64(live[i])
        level = label[p]
        if level != 0 and level != dead:
            live[listed] = p
            listed += 1
            level_size[level] += 1
    g.now[_LIVE] = listed
    g.now[_TOP] = top


@njit(nogil=True, cache=True)
def _list_active(g: Preflow, ceiling: int) -> int:
    """Chain the live voxels that have an excess, level by level, the first in memory first; count those above."""
    excess, label, live, following, first = g.excess, g.label, g.live, g.following, g.first
    highest, waiting = 0, 0
    for i in range(g.now[_LIVE] - 1, -1, -1):
        p = np.uint64(live[i])
        if excess[p] > 0:
            level = label[p]
            if level > ceiling:
                waiting += 1
                continue
            following[p] = first[level]
            first[level] = p
            highest = max(highest, level)
    g.now[_HIGHEST] = highest
    return waiting


@njit(nogil=True, cache=True)
def _discharge_highest(g: Preflow, limit: int, ceiling: int) -> int:
    """Discharge active voxels, the highest first, until none is left or `limit` voxels have been scanned.

    A voxel is scanned: its excess is pushed to lower neighbours, and if some remains, the voxel is lifted just
    above the lowest neighbour with a residual arc and scanned again, until it has no excess, is dead or above the
    ceiling. Return how many came to wait there.
    """
    steps, weights, free, residual, outgoing = g.steps, g.weights, g.free, g.residual, g.outgoing
    excess, label, queue = g.excess, g.label, g.queue
    live, following, first, level_size = g.live, g.following, g.first, g.level_size
    highest, top, listed = g.now[_HIGHEST], g.now[_TOP], g.now[_LIVE]
    dead = np.int32(label.size + 1)
    work, waiting = 0, 0
    while highest > 0 and work <= limit:
        if first[highest] < 0:
            highest -= 1
            continue
        p = np.uint64(first[highest])
        first[highest] = following[p]
        level = label[p]
        if level != highest:  # found dead since it was listed
            continue
        left = excess[p]
        while True:
            work += 1
            lowest = dead
            mask = outgoing[p] & _ARCS
            while mask:
                k = lowest_arc(mask)
                q = p + steps[k]
                if label[q] < level:
                    if not outgoing[q] & _WRITTEN:
                        _write_arcs(q, steps, weights, g.scale, free, residual, outgoing)
                    amount = _move(p, k, q, left, steps.size - 1 - k, residual, outgoing)
                    left -= amount
                    before = excess[q]
                    excess[q] = before + amount
                    if before < 0 and before + amount >= 0:  # the deficit is filled: one more live voxel
                        label[q] = 1
                        level_size[1] += 1
                        live[listed] = q
                        listed += 1
                    if before <= 0 and before + amount > 0:
                        following[q] = first[label[q]]
                        first[label[q]] = q
                    if left == 0:
                        break
                elif label[q] < lowest:
                    lowest = label[q]
                mask &= mask - _ONE
            if left == 0:
                break
            level_size[level] -= 1
            if level_size[level] == 0:  # a gap: from above an empty level nothing reaches a deficit
                _flood(p, steps, outgoing, label, queue, level_size)
                break
            if lowest >= dead - 1:
                label[p] = dead
                break
            level = lowest + np.int32(1)
            if level > top:
                top += 1
                first[level] = -1
                level_size[level] = 0
            label[p] = level
            level_size[level] += 1
            if level > ceiling:
                waiting += 1
                break
            highest = np.int64(level)
        excess[p] = left
    g.now[_HIGHEST], g.now[_TOP], g.now[_LIVE] = highest, top, listed
    return waiting


@njit(nogil=True, cache=True, inline="always")
def _move(p, k, q, left, opposite, residual, outgoing):  # type: ignore[no-untyped-def]
    """Move as much of `left` as fits over arc k from p to q, and return how much that was."""
    room = np.int64(residual[p, k])
    amount = min(room, left)
    residual[p, k] = np.int32(room - amount)
    if amount == room:
        outgoing[p] &= ~(_ONE << np.uint32(k))
    residual[q, opposite] += np.int32(amount)
    outgoing[q] |= _ONE << np.uint32(opposite)
    return amount


@njit(nogil=True, cache=True)
def _flood(p, steps, outgoing, label, queue, level_size):  # type: ignore[no-untyped-def]
    """Declare dead the voxel p and all that it could push to."""
    dead = np.int32(label.size + 1)
    label[p] = dead
    queue[0] = p
    head = 0
    tail = 1
    while head < tail:
        p = np.uint64(queue[head])
        head += 1
        mask = outgoing[p] & _ARCS
        while mask:
            q = p + steps[lowest_arc(mask)]
            mask &= mask - _ONE
            if label[q] != dead:
                level_size[label[q]] -= 1
                label[q] = dead
                queue[tail] = q
                tail += 1


@njit(nogil=True, cache=True)
def add_pushed_to(mask: NDArray[np.bool_], g: Preflow) -> None:
    """Extend a mask by the voxels that its voxels can push to."""
    steps, outgoing, queue = g.steps, g.outgoing, g.queue
    tail = 0
    for start in range(mask.size):
        if mask[start] and outgoing[start] & _ARCS:
            queue[tail] = start
            tail += 1
    head = 0
    while head < tail:
        p = np.uint64(queue[head])
        head += 1
        arcs = outgoing[p] & _ARCS
        while arcs:
            q = p + steps[lowest_arc(arcs)]
            arcs &= arcs - _ONE
            if not mask[q]:
                mask[q] = True
                queue[tail] = q
                tail += 1


@njit(nogil=True, cache=True)
def add_draining(mask: NDArray[np.bool_], g: Preflow) -> None:
    """Extend the mask of the deficits by the voxels that can push to them: all of them are live."""
    label, live = g.label, g.live
    dead = label.size + 1
    _relabel_globally(g, dead)
    for i in range(g.now[_LIVE]):
        if label[live[i]] != dead:
            mask[live[i]] = True
