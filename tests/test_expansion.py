"""label_by_expansion: moves by enumeration, energies by definition, PyMaxflow's expansion, seeds, refused input."""

import itertools
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.ndimage import generate_binary_structure, label

from discoseg.discrete import Expansion, PottsGrid, energy_of_labels, label_by_expansion
from discoseg.discrete.moves import Model, Posed, propose_move
from discoseg.discrete.pieces import find_pieces
from discoseg.discrete.preflow import borrow_flow, borrow_room
from discoseg.errors import UserError

SPACING_MM = (3.0, 1.5, 1.25)
SIGMA = 0.3
NEIGHBOURS = {2: (4, 8), 3: (6, 8, 18, 26)}
# Shapes small enough to try all sets of voxels, and all labellings in three classes.
SMALL = [((3, 3), 8), ((2, 4), 4), ((2, 2, 2), 6), ((2, 2, 2), 26), ((1, 3, 3), 18), ((9, 1), 4)]

Labels = NDArray[np.int8]


def random_grid(rng: np.random.Generator, shape: tuple[int, ...], neighbours: int) -> PottsGrid:
    return PottsGrid(rng.random(shape), spacing_mm=SPACING_MM[-len(shape) :], sigma=SIGMA, neighbours=neighbours)


def random_metric(rng: np.random.Generator, classes: int) -> NDArray[np.float64]:
    """Distances of points, some of them at the same place; or, every other time, one of two values."""
    if rng.random() < 0.5:
        points = rng.integers(0, 3, (classes, 2)).astype(np.float64)
        return np.abs(points[:, None] - points).sum(axis=2)
    matrix = np.triu(rng.choice([0.7, 1.4], (classes, classes)), 1)
    return matrix + matrix.T


def random_seeds(rng: np.random.Generator, shape: tuple[int, ...], classes: int) -> Labels:
    return np.where(rng.random(shape) < 0.7, -1, rng.integers(0, classes, shape)).astype(np.int8)


def pair_weights(grid: PottsGrid) -> NDArray[np.float64]:
    """Weights of any two voxels, (voxels, voxels), 0 unless they are neighbours, from their definition."""
    image, spacing_mm = grid._image, (1.0, *SPACING_MM[-2:]) if len(grid.shape) == 2 else SPACING_MM
    differing = {4: 1, 8: 2, 6: 1, 18: 2, 26: 3}[grid.neighbours]
    weights = np.zeros((image.size, image.size))
    for (i, p), (j, q) in itertools.combinations(enumerate(np.ndindex(image.shape)), 2):
        offset = np.abs(np.subtract(p, q))
        if offset.max() == 1 and offset.sum() <= differing and not (grid.neighbours == 8 and offset[0] > 0):
            weights[i, j] = np.exp(-((image[p] - image[q]) ** 2) / (2 * SIGMA**2)) / np.linalg.norm(offset * spacing_mm)
    return weights


def plain_energies(
    grid: PottsGrid, labellings: NDArray[np.integer], costs: NDArray, strength: float, metric: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Energies of labellings (N, voxels), pair by pair."""
    energies = costs.reshape(len(costs), -1)[labellings, np.arange(labellings.shape[1])].sum(axis=1)
    weights = pair_weights(grid)
    for p, q in np.argwhere(weights):
        energies = energies + strength * weights[p, q] * metric[labellings[:, p], labellings[:, q]]
    return np.asarray(energies)


def all_moves(labels: Labels, alpha: int, seeds: Labels | None) -> Labels:
    """Every labelling, (2ⁿ, voxels), that a move to α can make; those of seeds are the labels' own."""
    flat = labels.ravel()
    taken = (np.arange(2**flat.size)[:, None] >> np.arange(flat.size)) & 1
    if seeds is not None:
        taken[:, seeds.ravel() >= 0] = 0
    return np.where(taken, alpha, flat).astype(np.int8)


def propose(
    grid: PottsGrid, labels: Labels, alpha: int, costs: NDArray, strength: float, metric: NDArray, seeds: Labels | None
) -> Labels:
    """The labels that one compiled move proposes, on a grid whose box is the whole image."""
    volume = None if seeds is None else grid._as_volume(seeds)
    part = grid._open(volume)
    z, y, x = (slice(low, low + size) for low, size in zip(part.corner, part.shape, strict=True))
    moved = grid._as_volume(labels.copy())
    boxed = np.ascontiguousarray(np.reshape(costs, (len(costs), *moved.shape))[:, z, y, x]).reshape(len(costs), -1)
    voxels, arcs = boxed.shape[1], grid.neighbours
    posed = Posed(
        movable=np.empty(voxels, np.bool_),
        cost=np.empty(voxels),
        weights=np.empty((voxels, arcs // 2), np.float32),
        totals=np.empty(voxels, np.float32),
        mask=np.empty(voxels, np.bool_),
        labels=np.empty(voxels, np.int8),
    )
    model, before = Model(boxed, strength, metric, part), moved[z, y, x].flatten()
    if propose_move(model, before, alpha, borrow_flow(voxels, grid.neighbours), borrow_room(voxels), posed):
        moved[z, y, x] = posed.labels.reshape(part.shape)
    return moved.reshape(labels.shape)


@pytest.mark.parametrize(("shape", "neighbours"), SMALL)
def test_a_move_is_the_best_of_all(shape: tuple[int, ...], neighbours: int) -> None:
    rng = np.random.default_rng(neighbours)
    for turn in range(12):
        classes = int(rng.integers(3, 6))
        grid = random_grid(rng, shape, neighbours)
        strength = float(rng.choice([0.1, 0.5, 3]))
        metric = random_metric(rng, classes) if turn % 2 else 1 - np.eye(classes)
        costs, labels = rng.normal(size=(classes, *shape)), rng.integers(0, classes, shape).astype(np.int8)
        seeds = random_seeds(rng, shape, classes) if turn % 3 == 0 else None
        if seeds is not None:
            labels = np.where(seeds < 0, labels, seeds)
        for alpha in range(classes):
            moved = propose(grid, labels, alpha, costs, strength, metric, seeds)
            least = plain_energies(grid, all_moves(labels, alpha, seeds), costs, strength, metric).min()
            assert plain_energies(grid, moved.reshape(1, -1), costs, strength, metric)[0] == pytest.approx(least)
            if seeds is not None:
                np.testing.assert_array_equal(moved[seeds >= 0], seeds[seeds >= 0])


@pytest.mark.parametrize(("shape", "neighbours"), SMALL)
def test_no_move_improves_the_end_and_potts_is_within_twice_the_optimum(
    shape: tuple[int, ...], neighbours: int
) -> None:
    rng = np.random.default_rng(neighbours)
    every = np.array(list(itertools.product(range(3), repeat=int(np.prod(shape)))))
    for turn in range(6):
        grid, costs, strength = random_grid(rng, shape, neighbours), rng.random((3, *shape)), rng.choice([0.1, 0.4])
        metric = random_metric(rng, 3) if turn % 2 else 1 - np.eye(3)
        result = label_by_expansion(grid, costs, strength=strength, pairs=metric if turn % 2 else None)
        for alpha in range(3):
            least = plain_energies(grid, all_moves(result.labels, alpha, None), costs, strength, metric).min()
            assert result.energy <= least + 1e-6
        if turn % 2 == 0:
            optimum = plain_energies(grid, every, costs, strength, metric).min()
            assert optimum - 1e-6 <= result.energy <= 2 * optimum


Problem = tuple[PottsGrid, NDArray, float, NDArray[np.float64], Labels]


@st.composite
def problems(draw: st.DrawFn, least: int = 1) -> Problem:
    axes = draw(st.sampled_from([2, 3]))
    shape = draw(st.tuples(*[st.integers(1, 5)] * axes))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    classes = draw(st.integers(least, 5))
    grid = random_grid(rng, shape, draw(st.sampled_from(NEIGHBOURS[axes])))
    costs = rng.normal(size=(classes, *shape)) * draw(st.sampled_from([0.1, 1.0, 20.0]))
    metric = random_metric(rng, classes) if draw(st.booleans()) else 1 - np.eye(classes)
    return grid, costs, draw(st.sampled_from([0.0, 0.3, 3.0])), metric, random_seeds(rng, shape, classes)


@given(problems())
@settings(max_examples=60, deadline=None)
def test_energies_fall_to_that_of_the_labels(problem: Problem) -> None:
    grid, costs, strength, metric, seeds = problem
    for known in (None, seeds):
        result = label_by_expansion(grid, costs, strength=strength, pairs=metric, seeds=known)
        assert result.labels.dtype == np.int8
        assert result.labels.shape == grid.shape
        tolerance = 1e-6 * np.abs(costs).sum()
        (plain,) = plain_energies(grid, result.labels.reshape(1, -1), costs, strength, metric)
        assert result.energy == pytest.approx(plain, abs=tolerance)
        computed = energy_of_labels(grid, result.labels, costs, strength=strength, pairs=metric)
        assert result.energy == pytest.approx(computed, abs=1e-9 * np.abs(costs).sum())
        steps = np.diff(result.energies)
        assert (
            (steps < 0).all() if known is None else (steps <= 0).all()
        )  # what seeds far away cost may round a step off
        if known is not None:
            np.testing.assert_array_equal(result.labels[seeds >= 0], seeds[seeds >= 0])
        again = label_by_expansion(grid, costs, strength=strength, pairs=metric, seeds=known, start=result.labels)
        np.testing.assert_array_equal(again.labels, result.labels)
        assert again.cycles == 1


@given(problems(least=3))
@settings(max_examples=30, deadline=None)
def test_starts_with_the_cheapest_class_and_seeds(problem: Problem) -> None:
    grid, costs, strength, metric, seeds = problem
    rounded = np.rint(costs)  # with ties
    start = np.where(seeds < 0, rounded.argmin(axis=0), seeds)
    one = label_by_expansion(grid, rounded, strength=strength, pairs=metric, seeds=seeds)
    other = label_by_expansion(grid, rounded, strength=strength, pairs=metric, seeds=seeds, start=start)
    np.testing.assert_array_equal(one.labels, other.labels)
    assert one.energies == other.energies
    begun = energy_of_labels(grid, start, rounded, strength=strength, pairs=metric)
    tolerance = 1e-9 * np.abs(costs).sum()
    apart = metric[~np.eye(len(metric), dtype=bool)]
    if len(apart) and (apart == apart[0]).all():  # Potts: one cut settles a part before the first move
        assert one.energies[0] <= begun + tolerance
    else:
        assert one.energies[0] == pytest.approx(begun, abs=tolerance)


@given(problems(), st.booleans())
@settings(max_examples=30, deadline=None)
def test_two_classes_are_one_cut(problem: Problem, seeded: bool) -> None:
    grid, costs, strength, _, seeds = problem
    costs = np.concatenate([costs, costs[::-1] + 0.1])[:2]
    known = np.minimum(seeds, 1) if seeded else None
    for pairs, factor in ((None, 1.0), ([[0, 2.5], [2.5, 0]], 2.5)):
        for dtype in (np.float32, np.float64):
            typed = costs.astype(dtype)
            result = label_by_expansion(grid, typed, strength=strength, seeds=known, pairs=pairs)
            mask = grid.cut(typed[1] - typed[0], strength=strength * factor, seeds=known)
            np.testing.assert_array_equal(result.labels, mask)
            energy = typed[0].sum(dtype=np.float64) + grid.energy(
                mask, typed[1].astype(np.float64) - typed[0], strength=strength * factor
            )
            assert result.energy == pytest.approx(energy, abs=1e-9 * np.abs(costs).sum())


@pytest.mark.parametrize("neighbours", [6, 26])
def test_ends_like_pymaxflow(neighbours: int) -> None:
    """The same start and order of classes: the same energy at the end."""
    pytest.importorskip("maxflow")
    sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
    from pymaxflow_moves import contrast_by_direction, expand_by_pymaxflow

    rng = np.random.default_rng(neighbours)
    for turn in range(8):
        shape, classes = ((4, 9, 8), (3, 12, 12), (1, 20, 17))[turn % 3], 3 + turn % 3
        grid, strength = random_grid(rng, shape, neighbours), float(rng.choice([0.05, 0.2, 1]))
        metric = random_metric(rng, classes) if turn % 2 else 1 - np.eye(classes)
        costs, seeds = rng.normal(size=(classes, *shape)), random_seeds(rng, shape, classes)
        seeds[:, :2] = 0  # so that the box of the unknown voxels is smaller than the image
        result = label_by_expansion(grid, costs, strength=strength, pairs=metric, seeds=seeds)
        weights, offsets = contrast_by_direction(grid._image, spacing_mm=SPACING_MM, neighbours=neighbours, sigma=SIGMA)
        forced = costs + 1e3 * ((seeds >= 0) & (seeds != np.arange(classes)[:, None, None, None]))
        start = np.where(seeds < 0, costs.argmin(axis=0), seeds).astype(np.int8)
        theirs = expand_by_pymaxflow(start, forced, weights, offsets, strength * metric, least_gain=1e-9)
        expected = energy_of_labels(grid, theirs, costs, strength=strength, pairs=metric)
        assert result.energy == pytest.approx(expected, abs=1e-6 * np.abs(costs).sum())


@pytest.mark.parametrize("neighbours", [6, 26])
def test_pieces_are_the_connected_components(neighbours: int) -> None:
    rng = np.random.default_rng(neighbours)
    for shape in ((4, 9, 8), (1, 20, 17), (6, 1, 5)):
        grid, seeds = random_grid(rng, shape, neighbours), random_seeds(rng, shape, 3)
        seeds[:, :, -2:] = 0
        contested = rng.random(shape) < 0.4
        part = grid._open(seeds)
        number, queue = np.empty((2, part.free.size), np.int32)
        boxes = find_pieces(contested, part, number, queue)
        box = tuple(slice(low, low + size) for low, size in zip(part.corner, part.shape, strict=True))
        touching = generate_binary_structure(3, 3 if neighbours == 26 else 1)
        expected, count = label((contested & (seeds < 0))[box], touching)
        assert len(boxes) == count
        pairs = set(zip(number.tolist(), expected.ravel().tolist(), strict=True))
        assert len(pairs) == len(set(number.tolist())) == len(np.unique(expected))
        for piece, (*low, z, y, x) in enumerate(boxes.tolist()):
            places = np.argwhere(number.reshape(part.shape) == piece)
            np.testing.assert_array_equal(low, np.maximum(places.min(axis=0) - 1, 0))
            np.testing.assert_array_equal((z, y, x), np.minimum(places.max(axis=0) + 2, part.shape))


def test_forbidden_classes_do_not_coarsen_the_others() -> None:
    rng = np.random.default_rng(0)
    grid, costs = random_grid(rng, (3, 9, 9), 26), rng.random((4, 3, 9, 9))
    ban = rng.random(costs.shape) < 0.3
    ban[rng.integers(0, 4)] = False
    start = np.full((3, 9, 9), 3)  # forbidden in places
    results = [label_by_expansion(grid, costs + far * ban, strength=0.2, start=start) for far in (1e3, 1e12)]
    np.testing.assert_array_equal(results[0].labels, results[1].labels)


def test_classes_alike_are_one() -> None:
    """Where two classes are at no distance, the energy is that of one class that costs the lesser of theirs."""
    rng = np.random.default_rng(1)
    grid, costs = random_grid(rng, (3, 7, 8), 26), rng.random((3, 3, 7, 8))
    result = label_by_expansion(grid, costs, strength=0.3, pairs=[[0, 0, 1], [0, 0, 1], [1, 1, 0]])
    merged = np.stack([costs[:2].min(axis=0), costs[2]])
    assert result.energy == pytest.approx(label_by_expansion(grid, merged, strength=0.3).energy, rel=1e-6)


def test_one_class_and_seeds_everywhere() -> None:
    grid = random_grid(np.random.default_rng(0), (3, 4), 8)
    one = label_by_expansion(grid, np.ones((1, 3, 4)), strength=1)
    assert (one.labels.sum(), one.energies, one.cycles) == (0, (12.0,), 1)
    seeds = np.arange(12).reshape(3, 4) % 3
    known = label_by_expansion(grid, np.zeros((3, 3, 4)), strength=1, seeds=seeds)
    np.testing.assert_array_equal(known.labels, seeds)
    assert known.energy == pytest.approx(energy_of_labels(grid, seeds, np.zeros((3, 3, 4)), strength=1))


def test_threads_agree_with_one() -> None:
    rng = np.random.default_rng(3)
    image, costs = rng.random((4, 20, 20)), rng.random((10, 4, 4, 20, 20)).astype(np.float32)

    def label(at_once: int) -> list[Expansion]:
        grids = [PottsGrid(image, spacing_mm=SPACING_MM, sigma=SIGMA) for _ in range(2)]
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(lambda i: label_by_expansion(grids[i % 2], costs[i], strength=0.1), range(len(costs))))

    for alone, together in zip(label(1), label(4), strict=True):
        np.testing.assert_array_equal(alone.labels, together.labels)
        assert alone.energies == together.energies


def test_bad_input_is_refused() -> None:
    grid = PottsGrid(np.zeros((3, 4)), spacing_mm=(1, 1), sigma=1)
    costs, seeds = np.zeros((3, 3, 4)), np.full((3, 4), -1, np.int8)

    def refuse(match: str, costs: NDArray = costs, strength: float = 1, **others: object) -> None:
        with pytest.raises(UserError, match=match) as caught:
            label_by_expansion(grid, costs, strength=strength, **others)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)

    refuse("costs have the shape", np.zeros((3, 4)))
    refuse("costs have the shape", np.zeros((3, 4, 3)))
    refuse("0 classes", np.zeros((0, 3, 4)))
    refuse("200 classes", np.zeros((200, 3, 4)))
    refuse("costs have NaN", np.full((3, 3, 4), np.nan))
    refuse("strength", strength=-1)
    refuse("seeds has the shape", seeds=seeds[:2])
    refuse("seeds: 3 is no label", seeds=seeds + 4)
    refuse("seeds: -2 is no label", seeds=seeds - 1)
    refuse("seeds must be integers", seeds=seeds.astype(np.float64))
    refuse("start: -1 is no label, expected 0 to 2", start=seeds)
    refuse("pairs has the shape", pairs=np.zeros((2, 2)))
    refuse("negative", pairs=np.eye(3) - 1)
    refuse("symmetric", pairs=np.triu(np.ones((3, 3)), 1))
    refuse("diagonal", pairs=np.ones((3, 3)))
    refuse("5 between classes 0 and 2, but 2 by way of class 1", pairs=[[0, 1, 5], [1, 0, 1], [5, 1, 0]])
