"""select_by_size: the optimum within the bounds, ties by voxel order, seeds honoured, bad bounds refused."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from discoseg.discrete import select_by_size
from discoseg.errors import UserError


@st.composite
def problems(draw: st.DrawFn) -> tuple[NDArray, int, int, NDArray[np.int8]]:
    """Utilities with many ties, feasible bounds, and seeds."""
    shape = draw(st.sampled_from([(7,), (3, 3), (2, 2, 2)]))
    size = int(np.prod(shape))
    values = draw(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 0.5, 2.0]), min_size=size, max_size=size))
    seeds = draw(st.lists(st.sampled_from([-1, -1, 0, 1]), min_size=size, max_size=size))
    seeded, possible = seeds.count(1), size - seeds.count(0)
    low = draw(st.integers(0, possible))
    high = draw(st.integers(max(low, seeded), size))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    return np.array(values, dtype).reshape(shape), low, high, np.array(seeds, np.int8).reshape(shape)


def best_by_enumeration(utility: NDArray, low: int, high: int, seeds: NDArray[np.int8]) -> float:
    best = -np.inf
    for bits in itertools.product((0, 1), repeat=utility.size):
        y = np.array(bits).reshape(utility.shape)
        if low <= y.sum() <= high and (y[seeds == 1] == 1).all() and (y[seeds == 0] == 0).all():
            best = max(best, float((utility * y).sum()))
    return best


@given(problems())
@settings(max_examples=60, deadline=None)
def test_is_optimal_within_bounds_and_seeds(problem: tuple[NDArray, int, int, NDArray[np.int8]]) -> None:
    utility, low, high, seeds = problem
    chosen = select_by_size(utility, low, high, seeds=seeds)
    assert low <= chosen.sum() <= high
    assert chosen[seeds == 1].all()
    assert not chosen[seeds == 0].any()
    assert utility[chosen].sum() == pytest.approx(best_by_enumeration(utility, low, high, seeds))


@given(problems())
@settings(max_examples=200, deadline=None)
def test_equals_a_stable_sort(problem: tuple[NDArray, int, int, NDArray[np.int8]]) -> None:
    utility, low, high, seeds = problem
    expected = seeds.ravel() == 1
    unknown = (seeds.ravel() < 0).nonzero()[0]
    order = unknown[np.argsort(-utility.ravel()[unknown], kind="stable")]
    for p in order:
        if expected.sum() < low or (utility.ravel()[p] > 0 and expected.sum() < high):
            expected[p] = True
    chosen = select_by_size(utility, low, high, seeds=seeds)
    np.testing.assert_array_equal(chosen.ravel(), expected)
    if not (seeds >= 0).any():
        np.testing.assert_array_equal(chosen, select_by_size(utility, low, high))


@given(problems(), st.sampled_from([0.25, 0.3, 0.5, 1.5, 9.0]), st.integers(0, 8), st.integers(0, 8))
@settings(max_examples=60, deadline=None)
def test_outside_its_bounds_a_voxel_has_its_price(
    problem: tuple[NDArray, int, int, NDArray[np.int8]], price: float, low: int, more: int
) -> None:
    utility, _, _, seeds = problem
    high = low + more  # perhaps what no mask can have
    chosen = select_by_size(utility, low, high, seeds=seeds, price=price)
    assert chosen[seeds == 1].all()
    assert not chosen[seeds == 0].any()

    def worth(y: NDArray) -> float:
        size = int(y.sum())
        return float((utility * y).sum()) - price * max(0, low - size, size - high)

    masks = (np.array(bits).reshape(utility.shape) for bits in itertools.product((0, 1), repeat=utility.size))
    allowed = [y for y in masks if (y[seeds == 1] == 1).all() and (y[seeds == 0] == 0).all()]
    best = max(worth(y) for y in allowed)
    assert worth(chosen) == pytest.approx(best)
    assert chosen.sum() == min(y.sum() for y in allowed if worth(y) == pytest.approx(best))


@given(problems())
@settings(max_examples=60, deadline=None)
def test_a_high_price_forbids(problem: tuple[NDArray, int, int, NDArray[np.int8]]) -> None:
    utility, low, high, seeds = problem
    hard = select_by_size(utility, low, high, seeds=seeds)
    np.testing.assert_array_equal(select_by_size(utility, low, high, seeds=seeds, price=2.5), hard)


def test_earlier_voxel_wins_a_tie() -> None:
    tied = np.ones((2, 3))
    np.testing.assert_array_equal(select_by_size(tied, 0, 4), [[1, 1, 1], [1, 0, 0]])
    np.testing.assert_array_equal(select_by_size(-tied, 2, 4), [[1, 1, 0], [0, 0, 0]])


def test_zero_utility_is_not_positive() -> None:
    assert not select_by_size(np.zeros(4), 0, 4).any()


def test_keeps_layout_of_a_transposed_array() -> None:
    utility = np.arange(12.0).reshape(3, 4)
    np.testing.assert_array_equal(select_by_size(utility.T, 0, 5), select_by_size(utility, 0, 5).T)


@pytest.mark.parametrize(("low", "high", "numbers"), [(4, 3, ("4", "3")), (0, 1, ("2", "1")), (5, 6, ("5", "4", "2"))])
def test_infeasible_bounds_are_named(low: int, high: int, numbers: tuple[str, ...]) -> None:
    seeds = np.array([1, 1, 0, 0, -1, -1], np.int8)
    with pytest.raises(UserError, match="infeasible") as caught:
        select_by_size(np.ones(6), low, high, seeds=seeds)
    assert all(number in str(caught.value) for number in numbers)


def test_bad_input_is_refused() -> None:
    with pytest.raises(UserError, match="NaN"):
        select_by_size(np.array([1.0, np.nan]), 0, 1)
    with pytest.raises(UserError, match="shape"):
        select_by_size(np.ones(3), 0, 1, seeds=np.zeros(4, np.int8))
    with pytest.raises(UserError, match=r"price .* must be positive, not 0"):
        select_by_size(np.ones(3), 0, 1, price=0.0)
    with pytest.raises(UserError, match="the lower, 2 voxels, exceeds the upper, 1"):
        select_by_size(np.ones(3), 2, 1, price=1.0)
