"""Voxels to classes, each class within its bounds, such that the sum of utilities is largest: exact, in integers.

Voxels are handed to classes, and classes hand on what they hold to one sink, class c between low[c] and high[c] of it.
A voxel p of class c that would lose ``units[p, c] - units[p, d]`` in class d is an arc from c to d of that length. A
class has an arc to the sink while it may hand on more, and one from it while it may hand on less. So only the classes
and the sink are nodes, and of all voxels of c the one with the least loss is the arc to d.

Any prices make a start. Each voxel takes the class of the largest ``units[p, c] - prices[c]``. Each class hands on as
much as it may where its price is positive, as little as it must where it is negative, and where it is 0 what is nearest
to what it holds. Then no arc is shorter than the price at its tail less that at its head (the sink's is 0), so that no
cycle has a negative length: this is the best there is for its own imbalances, the voxels that a class holds and does
not hand on. Sending one after another along a shortest path from an excess to a deficit keeps it the best, until none
is left. The end is therefore a global optimum, whatever the prices were; good ones only leave less to send. They come
from the same problem on a sample of the voxels, whose own come from a smaller sample.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from discoseg.discrete.heaps import NEVER, gather, pop, push
from discoseg.discrete.preflow import inner
from discoseg.discrete.ties import settle_ties

THINNING = 8  # voxels of which a sample takes one
COARSEST = 300  # voxels of a sample, at least


@njit(nogil=True, cache=True)
def count_units(utility: NDArray, free: NDArray[np.int64], scale: float) -> NDArray[np.int64]:
    """Return the utilities (C, voxels) of the free voxels in even integers, (free, C), of 1 / scale for 2."""
    units = np.empty((free.size, utility.shape[0]), np.int64)
    for i in range(free.size):
        for c in range(units.shape[1]):
            units[i, c] = 2 * np.int64(np.rint(utility[c, free[i]] * scale))
    return units


def transport(
    units: NDArray[np.int64],
    low: NDArray[np.int64],
    high: NDArray[np.int64],
    *,
    wanted: float = 2.0,
    spare: int = 4,
) -> NDArray[np.int8]:
    """Return the class of each voxel, (voxels,) int8, for bounds that can be met.

    units: (voxels, C) even and within ±2⁵³. low, high: (C,), 0 ≤ low ≤ high ≤ voxels. Of several optima the one with
    the most voxels of class 0, and of those the one that is last in lexicographic order. Scratch memory: 1/8 of the
    units for the sample, and at most 48 C bytes for each voxel that is moved or near to a change of class.

    For each one that is to be moved, ``wanted`` of a class that lose least in another are gathered at first, and there
    is room for ``spare`` per voxel to be moved before they are gathered anew: neither changes the result.
    """
    voxels, classes = units.shape
    assert voxels * classes < 2**31
    prices = np.zeros(classes, np.int64)
    stride = 1
    while voxels // (stride * THINNING) >= COARSEST:
        stride *= THINNING
    while stride > 1:
        sample = units[_thin_out(voxels, stride)]
        few, many = low * len(sample) // voxels, -(-high * len(sample) // voxels)  # rounded such that they can be met
        prices = _solve(sample, few, many, prices, wanted, spare)[2]
        stride //= THINNING
    labels, flow, prices = _solve(units, low, high, prices, wanted, spare)
    earned = prices + (np.arange(classes) == 0)  # by handing on a voxel: a class that earns nothing may hand on any
    settle_ties(units, labels, flow, prices, earned == 0, low, high)
    return labels


@njit(nogil=True, cache=True)
def certify(  # type: ignore[no-untyped-def]
    units: NDArray[np.int64], labels: NDArray[np.int8], low: NDArray[np.int64], high: NDArray[np.int64]
):
    """Return prices (C,) of the classes, in units, and how far the labels can be from the optimum at most, in units.

    units: (voxels, C). labels: (voxels,). Whatever the prices, no labels within the bounds are worth more than

        Σ_p max_c (units[p, c] - prices[c])  +  Σ_c max(prices[c] · low[c], prices[c] · high[c])

    The sums are over terms that are not negative, so the distance of an optimum is exactly 0.
    """
    voxels, classes = units.shape
    arcs = np.full((classes + 1, classes + 1), NEVER)
    counts = np.zeros(classes, np.int64)
    for p in range(voxels):
        c = labels[p]
        counts[c] += 1
        for d in range(classes):
            if d != c:
                arcs[c, d] = min(arcs[c, d], units[p, c] - units[p, d])
    _connect_sink(arcs, counts, low, high, 0)
    prices = _prices_along(arcs)
    gap = 0.0
    for c in range(classes):
        spare = high[c] - counts[c] if prices[c] > 0 else low[c] - counts[c]
        gap += np.float64(prices[c]) * np.float64(spare)
    for p in range(voxels):
        own = units[p, labels[p]] - prices[labels[p]]
        best = own
        for c in range(classes):
            best = max(best, units[p, c] - prices[c])
        gap += np.float64(best - own)
    return prices, gap


def _thin_out(voxels: int, stride: int) -> NDArray[np.int64]:
    """Return one of every ``stride`` voxels, at a place in the stretch that looks random, so that no period is met."""
    stretch = np.arange(voxels // stride)
    return stretch * stride + (((stretch * 2654435761) & 0xFFFFFFFF) * stride >> 32)


@njit(nogil=True, cache=True)
def _solve(units, low, high, prices, wanted, spare):  # type: ignore[no-untyped-def]
    """Return labels (voxels,), what each class hands on (C,) and prices (C,) that prove them optimal.

    Handing on a voxel from class 0 earns 1, half of what utilities can differ by: it only decides between optima.
    """
    voxels, classes = units.shape
    labels, excess = _take_best(units, prices)  # what the classes hold; less what they hand on below
    flow = np.empty(classes, np.int64)
    excess[classes] = -voxels
    for c in range(classes):
        price = prices[c] + (1 if c == 0 else 0)
        flow[c] = min(max(excess[c], low[c] if price <= 0 else high[c]), high[c] if price >= 0 else low[c])
        excess[c] -= flow[c]
        excess[classes] += flow[c]
    arcs = np.empty((classes + 1, classes + 1), np.int64)
    while True:
        need = 0
        for a in range(classes + 1):
            need += max(excess[a], 0)
        room = min(need, spare * (voxels // classes + 256) + 1)  # memory that is not used is never touched
        heaps = gather(units, labels, prices, np.int64(wanted * (need + 32)) + 1, room)
        done = _balance(units, labels, flow, excess, heaps, arcs, low, high)
        prices = _prices_along(arcs)
        if done:
            return labels, flow, prices
        wanted = min(4 * wanted, np.float64(voxels))  # so that in the end all voxels are in the heaps


@inner
def _take_best(units, prices):  # type: ignore[no-untyped-def]
    """Return the class of each voxel's largest ``units - prices``, and (C + 1,) how many voxels each has."""
    voxels, classes = units.shape
    labels = np.empty(voxels, np.int8)
    counts = np.zeros(classes + 1, np.int64)
    for p in range(voxels):
        best, most = 0, units[p, 0] - prices[0]
        for c in range(1, classes):
            value = units[p, c] - prices[c]
            if value > most:
                best, most = c, value
        labels[p] = best
        counts[best] += 1
    return labels, counts


@inner
def _connect_sink(arcs, flow, low, high, reward):  # type: ignore[no-untyped-def]
    """Write the lengths of the arcs to and from the sink, the last node; handing on from class 0 earns a reward."""
    sink = flow.size
    for c in range(sink):
        earned = reward if c == 0 else 0
        arcs[c, sink] = -earned if flow[c] < high[c] else NEVER
        arcs[sink, c] = earned if flow[c] > low[c] else NEVER


@inner
def _shorten(arcs, distance, parent):  # type: ignore[no-untyped-def]
    """Make the distances (nodes,) the shortest along arcs (nodes, nodes), and note whence each came: Bellman–Ford."""
    for _ in range(distance.size):
        changed = False
        for a in range(distance.size):
            if distance[a] == NEVER:
                continue
            for b in range(distance.size):
                if arcs[a, b] != NEVER and distance[a] + arcs[a, b] < distance[b]:
                    distance[b] = distance[a] + arcs[a, b]
                    parent[b] = a
                    changed = True
        if not changed:
            break


@inner
def _prices_along(arcs):  # type: ignore[no-untyped-def]
    """Return prices (C,) of which no arc is shorter than their difference at its ends; the sink's is 0."""
    distance = np.zeros(arcs.shape[0], np.int64)
    _shorten(arcs, distance, np.empty(distance.size, np.int64))
    prices = np.empty(distance.size - 1, np.int64)
    for c in range(prices.size):
        prices[c] = distance[prices.size] - distance[c]
    return prices


@inner
def _balance(units, labels, flow, excess, heaps, arcs, low, high):  # type: ignore[no-untyped-def]
    """Send what is in excess to where it is missing; False: the heaps have to be gathered anew before the next path.

    A voxel that is not in the heaps counts with the least that it can lose: a path that needs none is the shortest.
    Paths never become shorter, so one that is as long as before is still a shortest one, and need not be sought.
    """
    classes = flow.size
    distance, parent = np.empty(classes + 1, np.int64), np.empty(classes + 1, np.int64)
    path, last = np.zeros(classes + 1, np.int64), np.int64(0)  # nodes, and the place of the last one
    length = NEVER
    full = False
    arcs[classes, classes] = NEVER
    for c in range(classes):
        full |= _measure_arcs(c, arcs, heaps, labels)
    while True:
        _connect_sink(arcs, flow, low, high, 1)
        left = False
        for a in range(classes + 1):
            left |= excess[a] != 0
        if not left or full:
            return not left
        if excess[path[0]] <= 0 or excess[path[last]] >= 0 or _length(arcs, path, last) != length:
            for a in range(classes + 1):
                distance[a] = 0 if excess[a] > 0 else NEVER
                parent[a] = -1
            _shorten(arcs, distance, parent)
            end, length = path[0], NEVER
            for a in range(classes + 1):
                if excess[a] < 0 and distance[a] < length:
                    end, length = a, distance[a]
            assert length < NEVER
            last = _trace(parent, end, path)
        for i in range(last):
            a, b = path[i], path[i + 1]
            if a < classes and b < classes and (heaps.size[a, b] == 0 or heaps.loss[heaps.start[a, b]] != arcs[a, b]):
                return False
        _send(units, labels, flow, heaps, path, last)
        excess[path[0]] -= 1
        excess[path[last]] += 1
        for i in range(last + 1):
            if path[i] < classes:
                full |= _measure_arcs(path[i], arcs, heaps, labels)


@inner
def _measure_arcs(c, arcs, heaps, labels):  # type: ignore[no-untyped-def]
    """Write the lengths of the arcs from c to other classes, without the voxels that left c; say if a heap is full."""
    full = False
    for d in range(arcs.shape[0] - 1):
        arcs[c, d] = NEVER
        if d != c:
            start = heaps.start[c, d]
            while heaps.size[c, d] > 0 and labels[heaps.voxel[start]] != c:
                pop(heaps, c, d)
            arcs[c, d] = heaps.limit[c, d]
            if heaps.size[c, d] > 0:
                arcs[c, d] = min(arcs[c, d], heaps.loss[start])
            full |= heaps.size[c, d] == heaps.room[c, d]
    return full


@inner
def _length(arcs, path, last):  # type: ignore[no-untyped-def]
    total = 0
    for i in range(last):
        if arcs[path[i], path[i + 1]] == NEVER:
            return NEVER
        total += arcs[path[i], path[i + 1]]
    return total


@inner
def _trace(parent, end, path):  # type: ignore[no-untyped-def]
    """Write the nodes of the path to ``end``, first to last, and return the place of the last."""
    last, a = 0, end
    while parent[a] >= 0:
        last += 1
        a = parent[a]
        assert last < path.size  # no cycle has a negative length
    for i in range(last, -1, -1):
        path[i] = end
        end = parent[end]
    return last


@inner
def _send(units, labels, flow, heaps, path, last):  # type: ignore[no-untyped-def]
    """Move one voxel along each arc of the path, or what a class hands on."""
    classes = flow.size
    moved = np.empty(last, np.int64)
    for i in range(last):  # all are taken before any arrives, so that none is moved twice
        a, b = path[i], path[i + 1]
        if b == classes:
            flow[a] += 1
        elif a == classes:
            flow[b] -= 1
        else:
            moved[i] = pop(heaps, a, b)
    for i in range(last):
        a, b = path[i], path[i + 1]
        if a < classes and b < classes:
            p = moved[i]
            labels[p] = b
            for d in range(classes):
                if d != b:
                    push(heaps, b, d, units[p, b] - units[p, d], p)
