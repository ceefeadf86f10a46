"""Maximum preflow on an implicit grid: highest-label push–relabel, compiled by numba, no graph object.

Only the first phase runs: excess that can reach no deficit stays where it is, and already shows the smallest and the
largest minimum cut. What keeps the work near the surface of the cut:

* Only *live* voxels (no deficit, but one within reach) have labels: label 0 is a deficit, `dead` is a voxel out
  of reach of all deficits, which it stays for good.
* Excess is pushed over short ways first: a ceiling on labels doubles when nothing is left below it.
* Live voxels are listed in the order of memory, and a level's voxels are taken in that order.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from discoseg.discrete.preflow import ARCS, ONE, WRITTEN, Preflow, inner, lowest_arc, write_arcs

RELABEL_WORK = 12  # voxels scanned, as a multiple of the live ones, between two searches for exact labels
FIRST_CEILING = 4  # arcs that excess is pushed over at first; it doubles whenever nothing is left within it


# Scalars that the compiled functions share, by their place in Preflow.now
_HIGHEST, _TOP, _LIVE = range(3)


@njit(nogil=True, cache=True)
def maximise(g: Preflow) -> None:
    """Push until no excess can reach a deficit any more.

    Excess above the ceiling waits. Without one, excess enclosed by full arcs climbs through all levels in use before
    it shows that it cannot get away; most of it is found dead by the next search instead.
    """
    _start(g)
    ceiling = np.int64(FIRST_CEILING)  # typed, or numba would compile all for the constant and again for others
    while True:
        _relabel_globally(g, ceiling)
        waiting = _list_active(g, ceiling)
        waiting += _discharge_highest(g, RELABEL_WORK * g.now[_LIVE], ceiling)
        if g.now[_HIGHEST] == 0:
            if waiting == 0:
                return
            ceiling *= 2


# Below, fields are taken out of the tuple before a loop: each access counts references, which is slow.


@inner
def _start(g: Preflow) -> None:
    """Make every free voxel without a deficit live; its arcs may have been written by an earlier flow."""
    steps, weights, free, residual, outgoing = g.steps, g.weights, g.free, g.residual, g.outgoing
    excess, label, live = g.excess, g.label, g.live
    listed = 0
    for i in range(excess.size):
        p = np.uint64(i)
        if free[p] and excess[p] >= 0:
            if not outgoing[p] & WRITTEN:
                write_arcs(p, steps, weights, g.scale, free, residual, outgoing)
            label[p] = 1
            live[listed] = p
            listed += 1
    g.now[_LIVE] = listed


@inner
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
        mask = outgoing[p] & ARCS
        while mask:
            if label[p + steps[lowest_arc(mask)]] == 0:
                label[p] = 1
                queue[tail] = p
                tail += 1
                break
            mask &= mask - ONE
    head = 0
    while head < tail and label[queue[head]] < ceiling:
        p = np.uint64(queue[head])
        head += 1
        for k in range(arcs):
            # Off the grid q is some other voxel, but then its arc towards p leaves the grid and has no residual.
            q = p + steps[k]
            if q < voxels and label[q] == dead and outgoing[q] & (ONE << np.uint32(arcs - 1 - k)):
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


@inner
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


@inner
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


@inner
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
            mask = outgoing[p] & ARCS
            while mask:
                k = lowest_arc(mask)
                q = p + steps[k]
                if label[q] < level:
                    if not outgoing[q] & WRITTEN:
                        write_arcs(q, steps, weights, g.scale, free, residual, outgoing)
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
                mask &= mask - ONE
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


@njit(inline="always")
def _move(p, k, q, left, opposite, residual, outgoing):  # type: ignore[no-untyped-def]
    """Move as much of `left` as fits over arc k from p to q, and return how much that was."""
    room = np.int64(residual[p, k])
    amount = min(room, left)
    residual[p, k] = np.int32(room - amount)
    if amount == room:
        outgoing[p] &= ~(ONE << np.uint32(k))
    residual[q, opposite] += np.int32(amount)
    outgoing[q] |= ONE << np.uint32(opposite)
    return amount


@inner
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
        mask = outgoing[p] & ARCS
        while mask:
            q = p + steps[lowest_arc(mask)]
            mask &= mask - ONE
            if label[q] != dead:
                level_size[label[q]] -= 1
                label[q] = dead
                queue[tail] = q
                tail += 1


@inner
def add_pushed_to(mask: NDArray[np.bool_], g: Preflow) -> None:
    """Extend a mask by the voxels that its voxels can push to."""
    steps, outgoing, queue = g.steps, g.outgoing, g.queue
    tail = 0
    for start in range(mask.size):
        if mask[start] and outgoing[start] & ARCS:
            queue[tail] = start
            tail += 1
    head = 0
    while head < tail:
        p = np.uint64(queue[head])
        head += 1
        arcs = outgoing[p] & ARCS
        while arcs:
            q = p + steps[lowest_arc(arcs)]
            arcs &= arcs - ONE
            if not mask[q]:
                mask[q] = True
                queue[tail] = q
                tail += 1


@inner
def add_draining(mask: NDArray[np.bool_], g: Preflow) -> None:
    """Extend the mask of the deficits by the voxels that can push to them: all of them are live."""
    label, live = g.label, g.live
    dead = label.size + 1
    _relabel_globally(g, dead)
    for i in range(g.now[_LIVE]):
        if label[live[i]] != dead:
            mask[live[i]] = True
