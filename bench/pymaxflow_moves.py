"""Expansion moves by PyMaxflow in double precision: every voxel is a node, and each pair is posed by enumeration."""

import maxflow
import numpy as np
from numpy.typing import NDArray

from discoseg.discrete.contrast import distances_mm, forward_offsets

Floats = NDArray[np.float64]


def contrast_by_direction(
    image: NDArray[np.floating], *, spacing_mm: tuple[float, ...], neighbours: int, sigma: float
) -> tuple[list[Floats], NDArray[np.int64]]:
    """Return an array of weights (z, y, x) for each later neighbour, 0 off the grid, and these neighbours' offsets."""
    offsets = forward_offsets(3, neighbours)
    weights = []
    for offset, distance in zip(offsets, distances_mm(offsets, spacing_mm), strict=True):
        axes = (0, 1, 2)
        difference = image - np.roll(image, tuple(-offset), axis=axes).astype(np.float64)
        weight = (np.exp(-(difference**2) / (2 * sigma**2)) / distance).astype(np.float32).astype(np.float64)
        for axis, step in enumerate(offset):
            if step:
                weight[(slice(None),) * axis + (-1 if step > 0 else 0,)] = 0
        weights.append(weight)
    return weights, offsets


def move_by_pymaxflow(
    labels: NDArray[np.int8],
    alpha: int,
    costs: Floats,
    weights: list[Floats],
    offsets: NDArray[np.int64],
    metric: Floats,
) -> NDArray[np.int8]:
    """Return the best labels (z, y, x) that become of others by a move to α; `metric` holds the strength as well."""
    graph = maxflow.Graph[float](labels.size, labels.size * len(offsets))
    nodes = graph.add_grid_nodes(labels.shape)
    taking = costs[alpha] - np.take_along_axis(costs, labels[np.newaxis].astype(np.intp), axis=0)[0]
    for weight, offset in zip(weights, offsets, strict=True):
        other = np.roll(labels, tuple(-offset), axis=(0, 1, 2))
        stay, first, second = (weight * metric[a, b] for a, b in ((labels, other), (alpha, other), (labels, alpha)))
        # stay + (first − stay) x_p − first x_q + (first + second − stay) (1 − x_p) x_q
        taking += first - stay
        taking -= np.roll(first, tuple(offset), axis=(0, 1, 2))
        structure = np.zeros((3, 3, 3))
        structure[tuple(offset + 1)] = 1
        graph.add_grid_edges(nodes, weights=np.maximum(first + second - stay, 0), structure=structure, symmetric=False)
    graph.add_grid_tedges(nodes, np.maximum(taking, 0), np.maximum(-taking, 0))
    graph.maxflow()
    return np.where(graph.get_grid_segments(nodes), alpha, labels).astype(np.int8)


def expand_by_pymaxflow(
    labels: NDArray[np.int8],
    costs: Floats,
    weights: list[Floats],
    offsets: NDArray[np.int64],
    metric: Floats,
    *,
    least_gain: float,
) -> NDArray[np.int8]:
    """Return the labels (z, y, x) after rounds of moves that each gain at least that much."""

    def energy(labels: NDArray[np.int8]) -> float:
        total = np.take_along_axis(costs, labels[np.newaxis].astype(np.intp), axis=0).sum()
        for weight, offset in zip(weights, offsets, strict=True):
            total += (weight * metric[labels, np.roll(labels, tuple(-offset), axis=(0, 1, 2))]).sum()
        return float(total)

    best, unchanged, alpha = energy(labels), 0, 0
    while unchanged < len(costs):
        moved = move_by_pymaxflow(labels, alpha, costs, weights, offsets, metric)
        gained = best - energy(moved)
        unchanged += 1
        if gained > least_gain:
            labels, best, unchanged = moved, best - gained, 1  # a class needs no second move before another one's
        alpha = (alpha + 1) % len(costs)
    return labels
