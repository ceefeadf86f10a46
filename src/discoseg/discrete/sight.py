"""Voxels decided before any flow: those whose excess fills all their arcs at once."""

import numpy as np
from numpy.typing import NDArray

from discoseg.discrete.preflow import Preflow, capacity_of, inner


@inner
def decide_at_sight(g: Preflow, totals: NDArray[np.float32], inside_pushes: bool) -> None:
    """Decide voxels whose excess fills all arcs to undecided neighbours at once: they are not free any more.

    They leave the graph like seeds: the neighbours receive what the arcs carry, which may decide them in turn.
    totals: (voxels,) weights of a voxel with all its neighbours. No label is set yet, and none is in the end.
    """
    steps, weights, scale, undecided, excess = g.steps, g.weights, g.scale, g.free, g.excess
    room, stack, stacked = g.following.view(np.float32), g.queue, g.label  # of no other use before the flow
    voxels = excess.size
    # About the capacity of a voxel's arcs to undecided neighbours, a little less: a quick test before the exact one.
    for start in range(voxels):
        room[start] = totals[start] * (scale * (1 - 1e-5)) - 32
    for start in range(voxels):
        if not undecided[start] or excess[start] <= 0 or excess[start] < room[start]:
            continue
        stack[0] = start
        height = 1
        while height > 0:
            height -= 1
            p = np.uint64(stack[height])
            stacked[p] = 0
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
                        stacked[q] = 1
                        height += 1


@inner
def _undecided_capacity(p, undecided, steps, weights, scale):  # type: ignore[no-untyped-def]
    """Capacity of all pairs of p with undecided neighbours."""
    total = np.int64(0)
    for k in range(steps.size):
        q, weight = _neighbour(p, k, steps, weights)
        if weight > 0 and undecided[q]:
            total += capacity_of(weight, scale)
    return total


@inner
def _neighbour(p, k, steps, weights):  # type: ignore[no-untyped-def]
    """The k-th neighbour of p and the weight of the pair; the weight is 0 where the neighbour is off the grid."""
    half = steps.size // 2
    q = p + steps[k]
    if k >= half:
        return q, weights[p, k - half]
    if q >= np.uint64(weights.shape[0]):  # before the first voxel, modulo 2⁶⁴
        return q, np.float32(0)
    return q, weights[q, half - 1 - k]
