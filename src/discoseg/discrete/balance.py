"""Voxels to classes by shortest paths, from any prices: exact, in integers.

Voxels are handed to classes, and classes hand on what they hold to one sink, class c between low[c] and high[c] of it.
A voxel p of class c that would lose ``units[p, c] - units[p, d]`` in class d is an arc from c to d of that length. A
class has an arc to the sink while it may hand on more, and one from it while it may hand on less. So only the classes
and the sink are nodes, and of all voxels of c the one with the least loss is the arc to d.

Any prices make a start. Each voxel takes the class of the largest ``units[p, c] - prices[c]``. Each class hands on as
much as it may where its price is positive, as little as it must where it is negative, and where it is 0 what is nearest
to what it holds. Then no arc is shorter than the price at its tail less that at its head (the sink's is 0), so that no
cycle has a negative length: this is the best there is for its own imbalances, the voxels that a class holds and does
not hand on. Sending one after another along a shortest path from an excess to a deficit keeps it the best, until none
is left. The end is therefore a global optimum, whatever the prices were; good ones only leave less to send.
"""

import numpy as np
from numba import njit

from discoseg.discrete.heaps import NEVER, gather, pop, push
from discoseg.discrete.preflow import inner


@njit(nogil=True, cache=True)
def balance(units, low, high, prices, wanted, spare):  # type: ignore[no-untyped-def]
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
        done = _send_excess(units, labels, flow, excess, heaps, arcs, low, high)
        prices = prices_along(arcs)
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
def connect_sink(arcs, flow, low, high, reward):  # type: ignore[no-untyped-def]
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
def prices_along(arcs):  # type: ignore[no-untyped-def]
    """Return prices (C,) of which no arc is shorter than their difference at its ends; the sink's is 0."""
    distance = np.zeros(arcs.shape[0], np.int64)
    _shorten(arcs, distance, np.empty(distance.size, np.int64))
    prices = np.empty(distance.size - 1, np.int64)
    for c in range(prices.size):
        prices[c] = distance[prices.size] - distance[c]
    return prices


@inner
def _send_excess(units, labels, flow, excess, heaps, arcs, low, high):  # type: ignore[no-untyped-def]
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
        connect_sink(arcs, flow, low, high, 1)
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
