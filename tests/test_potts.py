"""PottsGrid: the optimum by enumeration, seeds, symmetries and scaling of the energy, refused input."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from discoseg.discrete import PottsGrid
from discoseg.discrete.preflow import MAX_CAPACITY
from discoseg.errors import UserError

SPACING_MM = (3.0, 1.5, 1.25)
NEIGHBOURS = {2: (4, 8), 3: (6, 8, 18, 26)}


def plain_energy(
    mask: NDArray[np.bool_], image: NDArray, unary: NDArray, neighbours: int, sigma: float, strength: float
) -> float:
    """The definition, pair by pair."""
    differing = {4: 1, 8: 2, 6: 1, 18: 2, 26: 3}[neighbours]
    total = float(unary[mask].sum())
    for p, q in itertools.combinations(np.ndindex(image.shape), 2):
        offset = np.abs(np.subtract(p, q))
        apart = image.ndim == 3 and neighbours == 8 and offset[0] > 0  # in different slices
        if offset.max() == 1 and offset.sum() <= differing and mask[p] != mask[q] and not apart:
            distance = np.linalg.norm(offset * SPACING_MM[-image.ndim :])
            total += strength * np.exp(-((image[p] - image[q]) ** 2) / (2 * sigma**2)) / distance
    return total


def random_grid(
    rng: np.random.Generator, shape: tuple[int, ...], neighbours: int, *, sigma: float = 0.3
) -> tuple[PottsGrid, NDArray]:
    image = rng.random(shape)
    return PottsGrid(image, spacing_mm=SPACING_MM[-len(shape) :], sigma=sigma, neighbours=neighbours), image


def random_seeds(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.int8]:
    return rng.choice([-1, -1, -1, 0, 1], shape).astype(np.int8)


CASES = [((3, 4), n) for n in NEIGHBOURS[2]] + [((2, 2, 3), n) for n in NEIGHBOURS[3]] + [((1, 5, 2), 26), ((9, 1), 8)]


@pytest.mark.parametrize(("shape", "neighbours"), CASES)
def test_is_the_optimum_by_enumeration(shape: tuple[int, ...], neighbours: int) -> None:
    rng = np.random.default_rng(neighbours)
    size = int(np.prod(shape))
    masks = (np.arange(2**size)[:, None] >> np.arange(size)) & 1
    for round_number in range(8):
        grid, image = random_grid(rng, shape, neighbours)
        strength = float(rng.choice([0.3, 1, 5]))
        seeds = random_seeds(rng, shape) if round_number % 2 else np.full(shape, -1, np.int8)
        unary = rng.normal(size=shape)
        # All energies at once: pairs are read off masks of two voxels.
        pair = np.zeros((size, size))
        for p, q in itertools.combinations(range(size), 2):
            single, double = np.zeros(size, bool), np.zeros(size, bool)
            single[[p]], double[[p, q]] = True, True
            other = np.zeros(size, bool)
            other[q] = True
            energies = [
                grid.energy(m.reshape(shape), np.zeros(shape), strength=strength) for m in (single, other, double)
            ]
            pair[p, q] = (energies[0] + energies[1] - energies[2]) / 2
        energy = masks @ unary.ravel()
        for p, q in np.argwhere(pair > 0):
            energy = energy + pair[p, q] * (masks[:, p] != masks[:, q])
        known = seeds.ravel() >= 0
        allowed = (masks[:, known] == seeds.ravel()[known]).all(axis=1)
        mask = grid.cut(unary, strength=strength, seeds=seeds)
        assert grid.energy(mask, unary, strength=strength) == pytest.approx(energy[allowed].min(), abs=1e-7)
        assert plain_energy(mask, image, unary, neighbours, 0.3, strength) == pytest.approx(
            grid.energy(mask, unary, strength=strength), abs=1e-6
        )


@pytest.mark.parametrize("neighbours", [4, 8, 6, 18, 26])
def test_seeds_equal_costs_that_cannot_be_paid(neighbours: int) -> None:
    rng = np.random.default_rng(neighbours)
    shape = (9, 11) if neighbours in NEIGHBOURS[2] else (4, 7, 6)
    for _ in range(10):
        grid, _image = random_grid(rng, shape, neighbours)
        unary = rng.normal(size=shape)
        seeds = random_seeds(rng, shape)
        seeds[0], seeds[:, :2] = 0, 0  # so that the box of the unknown voxels is smaller than the image
        cut = grid.cut_with_flow(unary, strength=2, seeds=seeds)
        forced = np.where(seeds < 0, unary, np.where(seeds == 1, -1e4, 1e4))
        full = grid.cut(forced, strength=2)
        np.testing.assert_array_equal(full[seeds >= 0], seeds[seeds >= 0] == 1)
        np.testing.assert_array_equal(cut.mask, full)
        assert cut.flow == pytest.approx(cut.energy, rel=1e-6)


def test_seeds_changed_in_place_are_seen() -> None:
    rng = np.random.default_rng(2)
    shape = (3, 8, 9)
    grid, image = random_grid(rng, shape, 26)
    unary, seeds = rng.normal(size=shape), random_seeds(rng, shape)
    for _ in range(3):
        fresh = PottsGrid(image, spacing_mm=SPACING_MM, sigma=0.3, neighbours=26)
        np.testing.assert_array_equal(
            grid.cut(unary, strength=0.5, seeds=seeds), fresh.cut(unary, strength=0.5, seeds=seeds)
        )
        np.testing.assert_array_equal(grid.cut(unary, strength=0.5), fresh.cut(unary, strength=0.5))
        seeds[rng.random(shape) < 0.2] = 1


@st.composite
def problems(draw: st.DrawFn) -> tuple[PottsGrid, NDArray, float, NDArray[np.int8], NDArray]:
    axes = draw(st.sampled_from([2, 3]))
    shape = draw(st.tuples(*[st.integers(1, 7)] * axes))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sigma = draw(st.sampled_from([0.005, 0.05, 0.5]))
    grid, image = random_grid(rng, shape, draw(st.sampled_from(NEIGHBOURS[axes])), sigma=sigma)
    unary = rng.normal(size=shape) * draw(st.sampled_from([0.1, 1.0, 20.0]))
    return grid, unary, draw(st.sampled_from([0.3, 3.0, 1000.0])), random_seeds(rng, shape), image


Problem = tuple[PottsGrid, NDArray, float, NDArray[np.int8], NDArray]


@given(problems())
@settings(max_examples=60, deadline=None)
def test_certificate_and_seeds(problem: Problem) -> None:
    grid, unary, strength, seeds, _ = problem
    cut = grid.cut_with_flow(unary, strength=strength, seeds=seeds)
    size = np.abs(unary).sum() + abs(cut.energy)
    unit = strength / MAX_CAPACITY  # what costs are rounded to, at most, where the weights are far above them
    assert cut.flow == pytest.approx(cut.energy, abs=1e-6 * size + unit * unary.size)
    np.testing.assert_array_equal(cut.mask[seeds >= 0], seeds[seeds >= 0] == 1)
    np.testing.assert_array_equal(cut.mask, grid.cut(unary, strength=strength, seeds=seeds))
    np.testing.assert_array_equal(cut.mask, grid.cut(unary.copy(), strength=strength, seeds=seeds))


@given(problems())
@settings(max_examples=40, deadline=None)
def test_symmetries(problem: Problem) -> None:
    grid, unary, strength, _, image = problem

    def least(grid: PottsGrid, unary: NDArray, strength: float) -> float:
        return grid.energy(grid.cut(unary, strength=strength), unary, strength=strength)

    least_energy = least(grid, unary, strength)
    tolerance = 1e-6 * np.abs(unary).sum()
    assert least(grid, 7 * unary, 7 * strength) == pytest.approx(7 * least_energy, abs=7 * tolerance)
    # Σ(−u)(1 − y) = Σ u y − Σ u: the complement of a mask costs the same up to the constant.
    assert least(grid, -unary, strength) == pytest.approx(least_energy - unary.sum(), abs=tolerance)
    flipped = PottsGrid(
        np.flip(image), spacing_mm=SPACING_MM[-image.ndim :], sigma=grid._sigma, neighbours=grid.neighbours
    )
    assert least(flipped, np.flip(unary), strength) == pytest.approx(least_energy, abs=tolerance)


@given(problems(), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_a_higher_cost_never_adds_a_voxel(problem: Problem, seed: int) -> None:
    grid, unary, _, seeds, _ = problem
    raised = unary + np.random.default_rng(seed).choice([0.0, 0.5], unary.shape)
    before = grid.cut(unary, strength=1, seeds=seeds)
    after = grid.cut(raised, strength=1, seeds=seeds)
    assert not (after & ~before).any()


def test_ties_give_the_smallest_mask() -> None:
    grid = PottsGrid(np.zeros((3, 4, 5)), spacing_mm=(1, 1, 1), sigma=1, neighbours=6)
    assert not grid.cut(np.zeros((3, 4, 5)), strength=1).any()
    line = PottsGrid(np.zeros((1, 4)), spacing_mm=(1, 1), sigma=1, neighbours=4)
    # The two middle voxels may go with either end.
    np.testing.assert_array_equal(line.cut(np.array([[-9.0, 0, 0, 9.0]]), strength=1), [[1, 0, 0, 0]])
    np.testing.assert_array_equal(line.cut(np.array([[-9.0, -9, -9, 1.0]]), strength=1), [[1, 1, 1, 0]])
    np.testing.assert_array_equal(line.cut(np.array([[-1.0, 9, 9, 9.0]]), strength=1), [[0, 0, 0, 0]])


def test_no_strength_is_a_threshold() -> None:
    rng = np.random.default_rng(0)
    grid, _ = random_grid(rng, (3, 5, 4), 26)
    unary = rng.normal(size=(3, 5, 4)).astype(np.float32)
    np.testing.assert_array_equal(grid.cut(unary, strength=0), unary < 0)


def test_a_single_strong_bridge_is_not_clamped_away() -> None:
    """Two halves of many tiny costs, joined by pairs so heavy that their capacity does not fit an integer."""
    unary = np.full((1, 400), -1e-3)
    unary[:, 200:] = 1.01e-3
    grid = PottsGrid(np.zeros((1, 400)), spacing_mm=(1, 1), sigma=1, neighbours=4)
    cut = grid.cut_with_flow(unary, strength=1000)
    assert not cut.mask.any()
    assert cut.flow == pytest.approx(cut.energy, abs=1e-6 * np.abs(unary).sum())


def test_threads_agree_with_one() -> None:
    rng = np.random.default_rng(3)
    grid, _ = random_grid(rng, (4, 24, 24), 26)
    unaries = [rng.normal(size=(4, 24, 24)) for _ in range(12)]
    alone = [grid.cut(u, strength=0.5) for u in unaries]
    fresh, _ = random_grid(np.random.default_rng(3), (4, 24, 24), 26)
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda u: fresh.cut(u, strength=0.5), unaries))
    np.testing.assert_array_equal(together, alone)


def test_default_neighbourhood_is_all_that_touch() -> None:
    assert PottsGrid(np.zeros((2, 3, 4)), spacing_mm=(1, 1, 1), sigma=1).neighbours == 26
    assert PottsGrid(np.zeros((3, 4)), spacing_mm=(1, 1), sigma=1).neighbours == 8


def test_bad_input_is_refused() -> None:
    image = np.zeros((3, 4))
    with pytest.raises(UserError, match="4 or 8"):
        PottsGrid(image, spacing_mm=(1, 1), sigma=1, neighbours=26)
    with pytest.raises(UserError, match="6, 8, 18 or 26"):
        PottsGrid(image[None], spacing_mm=(1, 1, 1), sigma=1, neighbours=10)
    with pytest.raises(UserError, match="spacing_mm"):
        PottsGrid(image, spacing_mm=(1, 1, 1), sigma=1)
    with pytest.raises(UserError, match="sigma"):
        PottsGrid(image, spacing_mm=(1, 1), sigma=0)
    with pytest.raises(UserError, match="image has NaN"):
        PottsGrid(image * np.nan, spacing_mm=(1, 1), sigma=1)
    grid = PottsGrid(image, spacing_mm=(1, 1), sigma=1)
    with pytest.raises(UserError, match="unary has NaN"):
        grid.cut(np.full((3, 4), np.nan), strength=1)
    with pytest.raises(UserError, match="shape"):
        grid.cut(np.zeros((4, 3)), strength=1)
    with pytest.raises(UserError, match="seeds"):
        grid.cut(image, strength=1, seeds=np.zeros((4, 3), np.int8))
    with pytest.raises(UserError, match="strength"):
        grid.cut(image, strength=-1)


def test_a_strength_next_to_nothing_is_nothing() -> None:
    grid, _ = random_grid(np.random.default_rng(0), (4, 5), 8)
    unary = np.random.default_rng(1).normal(size=(4, 5))
    foresight = grid.foresee()
    foresight.guess(unary, strength=1e-320)
    for cut in (grid.cut, foresight.cut):
        np.testing.assert_array_equal(cut(unary, strength=1e-320), unary < 0)
