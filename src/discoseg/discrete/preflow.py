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

from discoseg.discrete.scratch import borrow, borrow_zeros

MAX_CAPACITY = 2**30 - 1  # of an arc; its residual, at most twice that, is an int32
WRITTEN = np.uint32(1 << 31)  # bit of `outgoing` beside those of the arcs: the residuals have been written
ARCS = np.uint32((1 << 26) - 1)
ONE = np.uint32(1)


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
    *,
    arcs: tuple[NDArray[np.int32], NDArray[np.uint32]] | None = None,
) -> Preflow:
    """Return the state before the first push; `excess` becomes part of it, and so do `arcs`.

    These are `residual` and `outgoing` of a flow to go on from; without them no arc is written yet. The state is valid
    until the same thread makes the next one.
    """
    voxels = excess.size
    assert voxels < 2**31 - 2
    assert weights.shape == (voxels, steps.size // 2)
    # Memory that is never touched costs nothing, so nothing is filled that need not be.
    if arcs is None:
        residual = borrow("residual", voxels * steps.size, np.int32).reshape(voxels, steps.size)
        arcs = residual, borrow_zeros("outgoing", voxels, np.uint32)
    return Preflow(
        steps=steps.view(np.uint64),
        weights=weights,
        scale=scale,
        free=free,
        excess=excess,
        residual=arcs[0],
        outgoing=arcs[1],
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
