"""Which voxels of a class lose least in another: a heap for each pair of classes, of those near to a change only."""

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from discoseg.discrete.preflow import inner

NEVER = 2**62  # longer than any path: units are within ±2⁵³, and a path has at most 127 arcs


class Heaps(NamedTuple):
    """For each pair of classes (c, d) the voxels of c that lose least in d; some have left c since they were put in."""

    loss: NDArray[np.int64]  # (entries,) the least of a pair first, each not above those at twice its place
    voxel: NDArray[np.int32]  # (entries,)
    start: NDArray[np.int64]  # (C, C) first entry of a pair
    size: NDArray[np.int64]  # (C, C)
    room: NDArray[np.int64]  # (C, C) the largest size
    limit: NDArray[np.int64]  # (C, C) voxels that were left out lose at least this


@intrinsic
def _leading_zeros(typingctx: Any, number: Any) -> Any:
    """Number of zeros above the highest bit set in an int64, 64 for 0."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctlz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.int64), generate


leading_zeros: Any = _leading_zeros


@inner
def gather(units, labels, prices, wanted, spare):  # type: ignore[no-untyped-def]
    """Return heaps of at least the ``wanted`` voxels of each pair that lose least, or all of them, for prices that fit.

    How many lose less than each power of two, prices included, is counted first.
    """
    voxels, classes = units.shape
    counts = np.zeros((classes, classes, 64), np.int64)
    for p in range(voxels):
        c = labels[p]
        own = units[p, c] - prices[c]
        for d in range(classes):
            counts[c, d, 64 - leading_zeros(own - units[p, d] + prices[d])] += 1
    bits, size = np.zeros((classes, classes), np.int64), np.zeros((classes, classes), np.int64)
    start, room = np.zeros((classes, classes), np.int64), np.zeros((classes, classes), np.int64)
    limit = np.full((classes, classes), NEVER)
    entries = 0
    for c in range(classes):
        for d in range(classes):
            if c == d:
                continue
            held = counts[c, d, 0]
            while held < wanted and bits[c, d] < 63:
                bits[c, d] += 1
                held += counts[c, d, bits[c, d]]
            if held < counts[c, c, 0]:  # all voxels of c
                limit[c, d] = (1 << bits[c, d]) + prices[c] - prices[d]
            start[c, d] = entries
            room[c, d] = held + spare
            entries += room[c, d]
    heaps = Heaps(np.empty(entries, np.int64), np.empty(entries, np.int32), start, size, room, limit)
    for p in range(voxels):
        c = labels[p]
        for d in range(classes):
            loss = units[p, c] - units[p, d]
            if d != c and 64 - leading_zeros(loss - prices[c] + prices[d]) <= bits[c, d]:
                at = start[c, d] + size[c, d]
                heaps.loss[at], heaps.voxel[at] = loss, p
                size[c, d] += 1
    for c in range(classes):
        for d in range(classes):
            for i in range(size[c, d] // 2, 0, -1):
                _sink_down(heaps, c, d, i - 1)
    return heaps


@inner
def _sink_down(heaps, c, d, i):  # type: ignore[no-untyped-def]
    """Move the entry at place i of a pair's heap down to where it belongs."""
    loss, voxel = heaps.loss, heaps.voxel
    start, size = heaps.start[c, d], heaps.size[c, d]
    moved, of = loss[start + i], voxel[start + i]
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and loss[start + child + 1] < loss[start + child]:
            child += 1
        if loss[start + child] >= moved:
            break
        loss[start + i], voxel[start + i] = loss[start + child], voxel[start + child]
        i = child
    loss[start + i], voxel[start + i] = moved, of


@inner
def pop(heaps, c, d):  # type: ignore[no-untyped-def]
    """Take the voxel of the least loss off a pair's heap."""
    start = heaps.start[c, d]
    heaps.size[c, d] -= 1
    last = start + heaps.size[c, d]
    voxel = heaps.voxel[start]
    heaps.loss[start], heaps.voxel[start] = heaps.loss[last], heaps.voxel[last]
    if last > start:
        _sink_down(heaps, c, d, np.int64(0))
    return voxel


@inner
def push(heaps, c, d, loss, voxel):  # type: ignore[no-untyped-def]
    start, i = heaps.start[c, d], heaps.size[c, d]
    heaps.size[c, d] += 1
    while i > 0:
        above = (i - 1) // 2
        if heaps.loss[start + above] <= loss:
            break
        heaps.loss[start + i], heaps.voxel[start + i] = heaps.loss[start + above], heaps.voxel[start + above]
        i = above
    heaps.loss[start + i], heaps.voxel[start + i] = loss, voxel
