"""The solver against PyMaxflow in double precision: hundreds of random instances, all neighbourhoods."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from discoseg.discrete import PottsGrid
from discoseg.discrete.contrast import arc_steps, distances_mm, forward_offsets
from discoseg.discrete.maxflow import maximise
from discoseg.discrete.preflow import MAX_CAPACITY, Flow, borrow_room, new_preflow

maxflow = pytest.importorskip("maxflow")


def pymaxflow_energy(
    image: NDArray,
    unary: NDArray,
    spacing_mm: tuple[float, ...],
    neighbours: int,
    sigma: float,
    strength: float,
) -> float:
    """Least energy by PyMaxflow's flow, from weights computed here in double precision."""
    graph = maxflow.Graph[float]()
    nodes = graph.add_grid_nodes(image.shape)
    axes = tuple(range(image.ndim))
    offsets = forward_offsets(image.ndim, neighbours)
    for offset, distance in zip(offsets, distances_mm(offsets, spacing_mm), strict=True):
        other = np.roll(image, tuple(-offset), axis=axes)
        weights = strength * np.exp(-((image - other) ** 2) / (2 * sigma**2)) / distance
        structure = np.zeros((3,) * image.ndim)
        structure[tuple(offset + 1)] = 1
        graph.add_grid_edges(nodes, weights=weights, structure=structure, symmetric=True)
    graph.add_grid_tedges(nodes, np.maximum(unary, 0), np.maximum(-unary, 0))
    return float(graph.maxflow()) + float(np.minimum(unary, 0).sum())


def smooth_noise(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray:
    """Noise with neighbours alike, so that cuts have long surfaces."""
    noise = rng.normal(size=shape)
    for axis in range(len(shape)):
        noise = noise + np.roll(noise, 1, axis=axis) + np.roll(noise, 2, axis=axis)
    return noise / max(noise.std(), 1e-3)


def random_unary(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> NDArray:
    if kind == "probabilities":
        return 0.5 - rng.random(shape)
    if kind == "multipliers":
        return 20 * np.tanh(smooth_noise(rng, shape) * rng.choice([0.02, 1.0]))
    if kind == "mostly background":
        return np.where(rng.random(shape) < 0.1, -1.0, 1.0) * rng.random(shape)
    return np.sign(rng.normal(size=shape)) * 10 ** rng.uniform(-6, 1.3, shape)  # all magnitudes


KINDS = ("probabilities", "multipliers", "mostly background", "all magnitudes")
SHAPES: dict[int, list[tuple[int, ...]]] = {
    2: [(1, 1), (1, 9), (13, 17), (30, 30)],
    3: [(1, 5, 5), (2, 1, 7), (5, 8, 7), (6, 13, 12)],
}


@pytest.mark.parametrize("neighbours", [4, 8, 6, 18, 26])
@pytest.mark.parametrize("strength", [0.3, 2.0, 30.0, 1000.0])
def test_equals_pymaxflow(neighbours: int, strength: float) -> None:
    axes = 2 if neighbours in (4, 8) else 3
    rng = np.random.default_rng(int(neighbours + 100 * strength))
    spacing_mm = (10.0, 1.4, 1.2)[-axes:]
    for kind, shape, sigma in itertools.product(KINDS, SHAPES[axes], [0.0007, 0.05, 0.5]):
        image = np.clip(0.5 + 0.15 * smooth_noise(rng, shape), 0, 1) if min(shape) > 1 else rng.random(shape)
        unary = random_unary(rng, kind, shape)
        cut = PottsGrid(image, spacing_mm=spacing_mm, sigma=sigma, neighbours=neighbours).cut_with_flow(
            unary, strength=strength
        )
        expected = pymaxflow_energy(image, unary, spacing_mm, neighbours, sigma, strength)
        tolerance = 1e-7 * np.abs(unary).sum() + 1e-6 * abs(expected)
        assert cut.energy == pytest.approx(expected, abs=tolerance), (kind, shape, sigma)
        assert cut.flow == pytest.approx(cut.energy, abs=tolerance), (kind, shape, sigma)


def test_flow_is_conserved_and_maximal() -> None:
    """After the solve no excess reaches a deficit, residuals of a pair add up, and no flow is lost."""
    rng = np.random.default_rng(0)
    shape = (4, 9, 8)
    steps = arc_steps(forward_offsets(3, 26), shape)
    size = int(np.prod(shape))
    weights = rng.random((size, 13)).astype(np.float32)
    for j, offset in enumerate(forward_offsets(3, 26)):
        at = np.indices(shape).reshape(3, -1).T + offset
        weights[((at < 0) | (at >= shape)).any(axis=1), j] = 0
    excess = rng.integers(-2000, 2000, size)
    start = excess.copy()
    flow = Flow(excess, np.empty((size, 26), np.int32), np.zeros(size, np.uint32))
    g = new_preflow(flow, np.ones(size, bool), weights, steps, 500.0, borrow_room(size))
    maximise(g)
    assert g.excess.sum() == start.sum()
    written = g.outgoing >> np.uint32(31) == 1
    for p, j in zip(*np.nonzero(weights), strict=True):
        q = p + steps[13 + j]
        if written[p] and written[q]:
            assert g.residual[p, 13 + j] + g.residual[q, 12 - j] == 2 * int(np.float64(weights[p, j]) * 500 + 0.5)
            assert min(g.residual[p, 13 + j], g.residual[q, 12 - j]) >= 0
    reached = set(np.flatnonzero(g.excess > 0))
    frontier = list(reached)
    while frontier:
        p = frontier.pop()
        for k in range(26):
            if g.outgoing[p] >> np.uint32(k) & 1 and p + steps[k] not in reached:
                reached.add(p + steps[k])
                frontier.append(p + steps[k])
    assert reached
    assert (g.excess[list(reached)] >= 0).all()
    assert (g.excess < 0).any()


def test_capacities_fit_their_integers() -> None:
    assert np.iinfo(np.int32).max >= 2 * MAX_CAPACITY
