"""The same minimum cut by other libraries: PyMaxflow, SciPy and OR-tools, each by its fastest way in from numpy.

All take a problem that is ready to be built: costs of the free voxels with the pairs at seeds charged to them, one
array of weights a direction. Building their graph is part of a cut: no library keeps one from cut to cut.
"""

from typing import NamedTuple

import maxflow
import numpy as np
from numpy.typing import NDArray

from discoseg.discrete.contrast import distances_mm, forward_offsets

RESOLUTION = 2**24  # of the libraries that take integers: units of a cost of mean size


class Problem(NamedTuple):
    """A cut as other libraries take it; arrays are (z, y, x)."""

    cost: NDArray[np.float64]  # of foreground; a seed's is so large that it is never paid
    weights: list[NDArray[np.float64]]  # of each voxel with its neighbour at the offset; wraps around, not to be used
    offsets: NDArray[np.int64]  # (neighbours / 2, 3)
    strength: float


def pose(
    image: NDArray[np.float32],
    unary: NDArray[np.float32],
    seeds: NDArray[np.int8] | None,
    *,
    spacing_mm: tuple[float, ...],
    neighbours: int,
    sigma: float,
    strength: float,
) -> tuple[Problem, tuple[slice, ...]]:
    """Return the problem within the smallest box around the unknown voxels and their neighbours, and that box.

    The weights are rounded to float32 like PottsGrid's, so that the energies are the same.
    """
    box = tuple(slice(0, n) for n in image.shape)
    if seeds is not None:
        hits = np.argwhere(seeds < 0)
        box = tuple(slice(max(0, low - 1), high + 2) for low, high in zip(hits.min(0), hits.max(0), strict=True))
    cost = unary[box].astype(np.float64)
    inner = image[box].astype(np.float64)
    offsets = forward_offsets(3, neighbours)
    weights = []
    for offset, distance in zip(offsets, distances_mm(offsets, spacing_mm), strict=True):
        difference = inner - np.roll(inner, tuple(-offset), axis=(0, 1, 2))
        weight = np.exp(-0.5 / sigma**2 * difference * difference) / distance
        weights.append(weight.astype(np.float32).astype(np.float64))
    if seeds is not None:
        never = 1 + np.abs(cost).max() + 2 * strength * sum(float(w.max()) for w in weights)
        cost[seeds[box] == 0], cost[seeds[box] == 1] = never, -never
    return Problem(cost, weights, offsets, strength), box


def cut_by_pymaxflow(problem: Problem) -> NDArray[np.bool_]:
    """Boykov and Kolmogorov's search trees, in double precision."""
    cost, weights, offsets, strength = problem
    graph = maxflow.Graph[float](cost.size, cost.size * len(offsets))
    nodes = graph.add_grid_nodes(cost.shape)
    for weight, offset in zip(weights, offsets, strict=True):
        structure = np.zeros((3, 3, 3))
        structure[tuple(offset + 1)] = 1
        graph.add_grid_edges(nodes, weights=strength * weight, structure=structure, symmetric=True)
    graph.add_grid_tedges(nodes, np.maximum(cost, 0), np.maximum(-cost, 0))
    graph.maxflow()
    return np.asarray(graph.get_grid_segments(nodes))


def cut_by_scipy(problem: Problem) -> NDArray[np.bool_]:
    """scipy.sparse.csgraph.maximum_flow (Dinic) with int32 capacities; a search of the residual finds the side."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    tails, heads, capacities, source, sink = _integer_arcs(problem)
    count = source + 2
    graph = csr_array((capacities, (tails, heads)), shape=(count, count))
    result = maximum_flow(graph, source, sink, method="dinic")
    residual = graph - result.flow
    residual.data = np.maximum(residual.data, 0)
    residual.eliminate_zeros()
    reached = breadth_first_order(residual, source, return_predecessors=False)
    mask = np.zeros(count, bool)
    mask[reached] = True
    return mask[: problem.cost.size].reshape(problem.cost.shape)


def cut_by_ortools(problem: Problem) -> NDArray[np.bool_]:
    """OR-tools' push–relabel (SimpleMaxFlow) with integer capacities."""
    from ortools.graph.python.max_flow import SimpleMaxFlow

    tails, heads, capacities, source, sink = _integer_arcs(problem)
    solver = SimpleMaxFlow()
    solver.add_arcs_with_capacity(tails, heads, capacities.astype(np.int64))
    status = solver.solve(source, sink)
    assert status == solver.OPTIMAL
    mask = np.zeros(source + 2, bool)
    mask[solver.get_source_side_min_cut()] = True
    return mask[: problem.cost.size].reshape(problem.cost.shape)


Arcs = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], int, int]


def _integer_arcs(problem: Problem) -> Arcs:
    """Tails, heads and int32 capacities of all arcs (both directions of a pair), the source and the sink."""
    cost, weights, offsets, strength = problem
    heaviest = strength * max(float(w.max()) for w in weights)
    typical = float(np.median(np.abs(cost)))
    scale = min(RESOLUTION / max(typical, 1e-12), (2**30 - 1) / max(heaviest, float(np.abs(cost).max())))
    voxels = np.arange(cost.size, dtype=np.int32).reshape(cost.shape)
    source, sink = cost.size, cost.size + 1
    tails, heads, capacities = [], [], []
    for weight, offset in zip(weights, offsets, strict=True):
        here = tuple(slice(max(0, -o), n - max(0, o)) for o, n in zip(offset, cost.shape, strict=True))
        there = tuple(slice(max(0, o), n - max(0, -o)) for o, n in zip(offset, cost.shape, strict=True))
        units = np.rint(scale * strength * weight[here]).astype(np.int32).ravel()
        p, q = voxels[here].ravel(), voxels[there].ravel()
        tails += [p, q]
        heads += [q, p]
        capacities += [units, units]
    units = np.rint(scale * cost).astype(np.int32).ravel()
    inside, outside = np.flatnonzero(units < 0).astype(np.int32), np.flatnonzero(units > 0).astype(np.int32)
    tails += [np.full(inside.size, source, np.int32), outside]
    heads += [inside, np.full(outside.size, sink, np.int32)]
    capacities += [-units[inside], units[outside]]
    return np.concatenate(tails), np.concatenate(heads), np.concatenate(capacities), source, sink


RIVALS = {"PyMaxflow": cut_by_pymaxflow, "SciPy": cut_by_scipy, "OR-tools": cut_by_ortools}
