"""A cut at a known size: within its bounds, seeds honoured, and the best mask of its size where a shift finds it."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from discoseg.discrete import PottsGrid, cut_at_size
from discoseg.errors import UserError


def _grid(rng: np.random.Generator, shape: tuple[int, ...]) -> PottsGrid:
    return PottsGrid(rng.random(shape).astype(np.float32), spacing_mm=(5.0, 1.0, 1.0)[-len(shape) :], sigma=0.2)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_mask_has_a_size_within_its_bounds_and_honours_seeds(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    shape = (3, 5, 6)
    # A network that tells nothing, one that is sure, and what lies between.
    probability = rng.random(shape).astype(np.float32) ** data.draw(st.sampled_from([0.0, 0.1, 1.0, 8.0]))
    seeds: NDArray[np.int8] | None = None
    if data.draw(st.booleans()):
        seeds = rng.choice(np.array([-1, -1, -1, 0, 1], np.int8), shape)
    free = np.ones(shape, bool) if seeds is None else seeds < 0
    low = data.draw(st.integers(0, int(free.sum())))
    high = data.draw(st.integers(low, int(free.sum())))
    strength = data.draw(st.sampled_from([0.0, 0.1, 1.0, 10.0]))
    mask = cut_at_size(_grid(rng, shape), probability, strength=strength, low=low, high=high, seeds=seeds)
    assert low <= (mask & free).sum() <= high
    if seeds is not None:
        assert mask[seeds == 1].all()
        assert not mask[seeds == 0].any()


@pytest.mark.parametrize("seed", range(20))
def test_where_some_shift_has_a_cut_that_fits_the_mask_is_one(seed: int) -> None:
    """By trying all masks of a tiny grid, at many shifts."""
    rng = np.random.default_rng(seed)
    grid, probability = _grid(rng, (3, 4)), rng.uniform(0.05, 0.6, (3, 4)).astype(np.float32)
    mask = cut_at_size(grid, probability, strength=0.05, low=5, high=6)
    odds = np.log(probability / (1 - probability)).astype(np.float64)
    others = [np.array(bits, bool).reshape(3, 4) for bits in itertools.product((0, 1), repeat=12)]
    surface = np.array([grid.energy(other, np.zeros((3, 4), np.float32), strength=0.05) for other in others])
    flat, number = np.array([other.ravel() for other in others]), int(mask.ravel().dot(1 << np.arange(11, -1, -1)))
    assert (others[number] == mask).all()
    best, fits = [], False
    for shift in np.linspace(-6, 6, 2401):
        energies = flat @ (0.5 - 1 / (1 + np.exp(-odds - shift))).ravel() + surface
        best.append(energies[number] - energies.min())
        fits |= 5 <= flat[energies.argmin()].sum() <= 6
    assert min(best) < 1e-3 or not fits
    assert fits or seed in (7, 18)  # where cuts jump


@pytest.mark.parametrize("seed", range(10))
def test_a_mask_is_next_to_the_bound_that_it_was_beyond(seed: int) -> None:
    """However far the other bound is: of the cuts at many shifts the one next to the bound, or nearly."""
    rng = np.random.default_rng(seed)
    probability = gaussian_filter(rng.random((4, 24, 24)), 2)
    probability = np.clip(0.5 + 4 * (probability - np.quantile(probability, 0.8)), 0.01, 0.99).astype(np.float32)
    grid, odds = _grid(rng, probability.shape), np.log(probability / (1 - probability))
    shifts = np.arange(-2, 2, 0.02)
    sizes = [int(grid.cut(0.5 - 1 / (1 + np.exp(-odds - shift)), strength=0.02).sum()) for shift in shifts]
    plain = sizes[len(shifts) // 2]
    low, high = int(1.1 * plain), int(0.9 * plain)
    grown = cut_at_size(grid, probability, strength=0.02, low=low, high=probability.size).sum()
    shrunk = cut_at_size(grid, probability, strength=0.02, low=0, high=high).sum()
    fits = sum(size < low for size in sizes)  # the first shift; shifts that are only half as far apart are told apart
    assert low <= grown <= sizes[fits + 1]
    fits = sum(size <= high for size in sizes) - 1
    assert high >= shrunk >= sizes[fits - 1]


def test_bounds_that_cannot_be_met_are_refused() -> None:
    grid = PottsGrid(np.zeros((1, 6), np.float32), spacing_mm=(1, 1), sigma=1)
    for low, high in ((5, 3), (9, 12)):
        with pytest.raises(UserError, match="infeasible"):
            cut_at_size(grid, np.full((1, 6), 0.4, np.float32), strength=0.1, low=low, high=high)


def test_a_mask_that_fits_is_left_alone() -> None:
    rng = np.random.default_rng(0)
    grid, probability = _grid(rng, (4, 8, 8)), rng.random((4, 8, 8)).astype(np.float32)
    plain = grid.cut(0.5 - probability, strength=0.1)
    size = int(plain.sum())
    assert (cut_at_size(grid, probability, strength=0.1, low=size - 3, high=size) == plain).all()


def test_where_cuts_jump_the_most_probable_voxels_fill_up() -> None:
    """Two equal discs that a strong prior takes or leaves as they are: some of the second is taken."""
    probability = np.full((1, 5, 11), 0.01, np.float32)
    probability[0, 1:4, 1:4] = probability[0, 1:4, 7:10] = 0.4
    probability[0, 2, 8] = 0.41
    grid = PottsGrid(np.zeros((1, 5, 11), np.float32), spacing_mm=(1, 1, 1), sigma=1)
    mask = cut_at_size(grid, probability, strength=0.3, low=10, high=10)
    assert mask.sum() == 10
    assert mask[0, 2, 8]
    assert mask[probability < 0.1].sum() == 0
