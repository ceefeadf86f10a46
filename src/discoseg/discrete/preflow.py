"""The state of a flow on an implicit grid: what each voxel holds, and how its arcs come into being.

A voxel has an excess of flow to get rid of (> 0) or a deficit that it can take in (< 0): what is left of the
arcs to the two terminals. Voxel p has K arcs, arc k to voxel p + steps[k]; the opposite arc is number K-1-k of
that voxel, so no arc needs a pointer.

* A voxel's arcs are written when flow first touches it.
* A bit mask a voxel names its residual arcs, so that searches read no capacities.
* Voxels are unsigned: numba would test a signed index for being negative at each access.
"""

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from discoseg.discrete.scratch import borrow

MAX_CAPACITY = 2**30 - 1  # of an arc; its residual, at most twice that, is an int32
WRITTEN = np.uint32(1 << 31)  # bit of `outgoing` beside those of the arcs: the residuals have been written
ARCS = np.uint32((1 << 26) - 1)
ONE = np.uint32(1)

# Of functions that only compiled ones call: without a way in from Python they compile in half the time.
inner = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)  # type: ignore[call-overload]


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


class Flow(NamedTuple):
    """What a solve leaves for another one to go on from; arrays are (voxels,) unless said otherwise."""

    excess: NDArray[np.int64]
    residual: NDArray[np.int32]  # (voxels, K)
    outgoing: NDArray[np.uint32]  # 0: no arc is written yet


class Room(NamedTuple):
    """Memory to solve in, contents undefined; arrays are (voxels,) unless said otherwise."""

    cost: NDArray[np.float64]  # in the memory of `filled`, so not any more once there is a preflow
    filled: NDArray[np.int32]  # (2, voxels), those of a preflow's lists that are filled anyway
    live: NDArray[np.int32]
    queue: NDArray[np.int32]
    first: NDArray[np.int32]  # (voxels + 2,)
    level_size: NDArray[np.int32]  # (voxels + 2,)
    undecided: NDArray[np.bool_]
    inside: NDArray[np.bool_]


def borrow_flow(voxels: int, arcs: int) -> Flow:
    """Return a flow in memory that is valid until the same thread borrows the next one."""
    residual = borrow("residual", voxels * arcs, np.int32).reshape(voxels, arcs)
    return Flow(borrow("excess", voxels, np.int64), residual, borrow("outgoing", voxels, np.uint32))


def borrow_room(voxels: int) -> Room:
    """Return memory that is valid until the same thread borrows the next."""
    assert voxels < 2**31 - 2
    filled = borrow("filled", 2 * voxels, np.int32)
    # Memory that is never touched costs nothing, but in one large array whole huge pages would be touched at once.
    return Room(
        cost=filled.view(np.float64),
        filled=filled.reshape(2, voxels),
        live=borrow("live", voxels, np.int32),
        queue=borrow("queue", voxels, np.int32),
        first=borrow("first", voxels + 2, np.int32),
        level_size=borrow("level_size", voxels + 2, np.int32),
        undecided=borrow("undecided", voxels, np.bool_),
        inside=borrow("inside", voxels, np.bool_),
    )


@njit(nogil=True, cache=True)
def new_preflow(flow, free, weights, steps, scale, room):  # type: ignore[no-untyped-def]
    """Return the state before the first push, which lies in `flow` and `room`; `free` is copied."""
    label, undecided = room.filled[0], room.undecided
    for p in range(free.size):
        label[p] = 0
        undecided[p] = free[p]
    return Preflow(
        steps=steps.view(np.uint64),
        weights=weights,
        scale=scale,
        free=undecided,
        excess=flow.excess,
        residual=flow.residual,
        outgoing=flow.outgoing,
        label=label,
        live=room.live,
        queue=room.queue,
        following=room.filled[1],
        first=room.first,
        level_size=room.level_size,
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


@inner
def capacity_of(weight: float, scale: float) -> np.int32:
    """Capacity of an arc in integer units, clamped at MAX_CAPACITY."""
    capacity = weight * scale
    return np.int32(MAX_CAPACITY) if capacity >= MAX_CAPACITY else np.int32(capacity + 0.5)


@inner
def write_arcs(p, steps, weights, scale, free, residual, outgoing):  # type: ignore[no-untyped-def]
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
            mask |= ONE << np.uint32(half + j)
        capacity = np.int32(0)
        q = p - steps[half + j]
        if q < voxels and weights[q, j] > 0 and free[q]:
            capacity = capacity_of(weights[q, j], scale)
        residual[p, half - 1 - j] = capacity
        if capacity > 0:
            mask |= ONE << np.uint32(half - 1 - j)
    outgoing[p] = mask | WRITTEN
