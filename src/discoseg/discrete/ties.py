"""One of many optima, told by a rule: which of equally good assignments of voxels to classes is meant."""

import numpy as np
from numba import njit

from discoseg.discrete.preflow import inner


@njit(nogil=True, cache=True)
def settle_ties(units, labels, flow, prices, free, low, high):  # type: ignore[no-untyped-def]
    """Make an optimal assignment the last one in lexicographic order, in place: the first voxel's class first.

    units: (voxels, C). labels: (voxels,). flow: (C,) voxels of each class. prices: (C,) that prove the labels optimal.
    free: (C,) whether a class may have more or fewer voxels, within its bounds, in an optimum.

    All optima keep to the same prices: a voxel takes one of the classes where ``units - prices`` is largest, and only
    these voxels and free classes are looked at. In voxel order, each one goes to the highest class from which the
    others, the later voxels, can make up for it. Which of them do so does not matter: what they can still do does not
    depend on it. Memory: 9 bytes for each such voxel and class.
    """
    classes = flow.size
    tied = _find_tied(units, labels, prices)
    equal = np.empty((tied.size, classes), np.bool_)  # classes that a voxel may take
    # Voxel t and class d are entry t·C + d of a doubly linked list: that of the voxels that may go to d from t's class.
    head = np.full((classes, classes), -1, np.int32)
    after, before = np.empty(tied.size * classes, np.int32), np.empty(tied.size * classes, np.int32)
    for t in range(tied.size - 1, -1, -1):
        p, c = tied[t], np.int64(labels[tied[t]])
        for d in range(classes):
            equal[t, d] = units[p, c] - prices[c] == units[p, d] - prices[d]
        _link(t, c, equal, head, after, before)
    step = np.empty(classes + 1, np.int64)  # the next node of a path to the class of interest, -1: there is none
    queue = np.empty(classes + 1, np.int64)
    for t in range(tied.size):
        c = np.int64(labels[tied[t]])
        _unlink(t, c, equal, head, after, before)
        highest = classes - 1
        while not equal[t, highest]:
            highest -= 1
        if highest == c:
            continue
        _search_back(c, flow, free, low, high, head, step, queue)
        for d in range(highest, c, -1):
            if equal[t, d] and step[d] >= 0:
                labels[tied[t]] = d
                _shift(d, c, step, labels, tied, flow, equal, head, after, before)
                break


@inner
def _find_tied(units, labels, prices):  # type: ignore[no-untyped-def]
    """Return the voxels that may take several classes, in order."""
    voxels, classes = units.shape
    several, found = np.empty(voxels, np.bool_), 0
    for p in range(voxels):
        own = units[p, labels[p]] - prices[labels[p]]
        equal = 0
        for d in range(classes):
            equal += own == units[p, d] - prices[d]
        several[p] = equal > 1
        found += several[p]
    tied = np.empty(found, np.int32)
    found = 0
    for p in range(voxels):
        if several[p]:
            tied[found] = p
            found += 1
    return tied


@inner
def _link(t, c, equal, head, after, before):  # type: ignore[no-untyped-def]
    for d in range(equal.shape[1]):
        if d != c and equal[t, d]:
            entry = t * equal.shape[1] + d
            after[entry], before[entry] = head[c, d], -1
            if head[c, d] >= 0:
                before[head[c, d]] = entry
            head[c, d] = entry


@inner
def _unlink(t, c, equal, head, after, before):  # type: ignore[no-untyped-def]
    for d in range(equal.shape[1]):
        if d != c and equal[t, d]:
            entry = t * equal.shape[1] + d
            if before[entry] >= 0:
                after[before[entry]] = after[entry]
            else:
                head[c, d] = after[entry]
            if after[entry] >= 0:
                before[after[entry]] = before[entry]


@inner
def _search_back(end, flow, free, low, high, head, step, queue):  # type: ignore[no-untyped-def]
    """Write the next node on a path from each class, and from the sink, the last node, to ``end``."""
    sink = flow.size
    for a in range(sink + 1):
        step[a] = -1
    step[end] = end
    queue[0], length, i = end, 1, 0
    while i < length:
        b = queue[i]
        i += 1
        for a in range(sink + 1):
            if step[a] >= 0:
                continue
            if a == sink:
                open_ = free[b] and flow[b] > low[b]
            elif b == sink:
                open_ = free[a] and flow[a] < high[a]
            else:
                open_ = head[a, b] >= 0
            if open_:
                step[a] = b
                queue[length] = a
                length += 1


@inner
def _shift(a, end, step, labels, tied, flow, equal, head, after, before):  # type: ignore[no-untyped-def]
    """Move one voxel along each arc of the path from class a, or what a class holds."""
    sink = classes = flow.size
    moved = np.empty(classes, np.int64)  # the voxel that each class gives away
    start = a
    while a != end:  # all are taken before any arrives, so that none is moved twice
        b = step[a]
        if b == sink:
            flow[a] += 1
        elif a == sink:
            flow[b] -= 1
        else:
            moved[a] = head[a, b] // classes
        a = b
    a = start
    while a != end:
        b = step[a]
        if a != sink and b != sink:
            _unlink(moved[a], a, equal, head, after, before)
            _link(moved[a], b, equal, head, after, before)
            labels[tied[moved[a]]] = b
        a = b
