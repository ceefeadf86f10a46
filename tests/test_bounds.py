import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discoseg.errors import UserError
from discoseg.weak.bounds import (
    Bounds,
    bounds_from_eps,
    bounds_from_ml,
    check_feasible,
)


@given(size=st.integers(0, 10**7))
def test_eps_zero_is_the_very_size(size: int) -> None:
    assert bounds_from_eps(size, 0) == Bounds(size, size)


@given(data=st.data(), margin=st.floats(0, 0.99))
def test_a_margin_narrows_bounds_to_what_seeds_allow(data: st.DataObject, margin: float) -> None:
    seeds = np.array(data.draw(st.lists(st.integers(-1, 1), min_size=1, max_size=40)), np.int8).reshape(1, 1, -1)
    least, most = int((seeds == 1).sum()), int((seeds != 0).sum())
    low = data.draw(st.integers(0, most))
    high = data.draw(st.integers(max(low, least), 60))
    inner = Bounds(low, high).inside(margin, seeds)
    check_feasible("inner", inner, seeds)
    assert low <= inner.low_vox <= inner.high_vox <= high
    assert inner.low_vox >= min(low * (1 + margin), (low + high) // 2, most)


def test_bounds_closer_than_their_margins_become_their_middle() -> None:
    free = np.full((1, 20, 20), -1, np.int8)
    assert Bounds(100, 102).inside(0.05, free) == Bounds(101, 101)
    assert Bounds(100, 100).inside(0.05, free) == Bounds(100, 100)
    assert Bounds(100, 102).inside(0.0, free) == Bounds(100, 102)


def test_margins_are_reckoned_in_decimals() -> None:
    free = np.full((1, 20, 20), -1, np.int8)
    assert Bounds(100, 200).inside(0.1, free) == Bounds(110, 180)
    assert Bounds(50, 150).inside(0.14, free) == Bounds(57, 129)
    assert Bounds(90, 110).inside(0.1, free) == Bounds(99, 99)


@given(size=st.integers(0, 10**7), per_mille=st.integers(0, 2000))
def test_eps_bounds_are_the_extreme_whole_sizes(size: int, per_mille: int) -> None:
    bounds = bounds_from_eps(size, per_mille / 1000)
    low, high = max(0, 1000 - per_mille) * size, (1000 + per_mille) * size  # thousandths of a voxel, exact
    assert 1000 * (bounds.low_vox - 1) < low <= 1000 * bounds.low_vox
    assert 1000 * bounds.high_vox <= high < 1000 * (bounds.high_vox + 1)


def test_eps_does_not_suffer_from_floats() -> None:
    assert 1.1 * 110 > 121  # what floats say
    assert bounds_from_eps(110, 0.1) == Bounds(99, 121)
    assert bounds_from_eps(np.int64(30), np.float64(0.3)) == Bounds(21, 39)  # type: ignore[arg-type]


@pytest.mark.parametrize("eps", [-0.1, math.nan, math.inf])
def test_eps_must_be_a_number_from_zero(eps: float) -> None:
    with pytest.raises(UserError, match="0 or more"):
        bounds_from_eps(100, eps)


@given(low=st.integers(0, 5000), more=st.integers(0, 5000), voxel=st.integers(1, 300))
def test_whole_voxels_in_ml_come_back(low: int, more: int, voxel: int) -> None:
    voxel_ml = voxel / 1000
    bounds = bounds_from_ml((low * voxel_ml, (low + more) * voxel_ml), voxel_ml=voxel_ml, voxels=20000)
    assert bounds == Bounds(low, low + more)


@given(low=st.floats(0, 500), more=st.floats(0, 500), voxel_ml=st.floats(0.001, 1))
def test_ml_bounds_are_ordered_and_at_most_a_voxel_off(low: float, more: float, voxel_ml: float) -> None:
    bounds = bounds_from_ml((low, low + more), voxel_ml=voxel_ml, voxels=10**7)
    assert bounds.low_vox <= bounds.high_vox
    assert (bounds.low_vox > 0) == (low > 0)
    # An exact reference: at most one voxel beside the interval, where it holds no whole one.
    size = Fraction(voxel_ml)
    assert abs(bounds.low_vox - Fraction(low) / size) <= 1 + Fraction(1, 1000)
    assert abs(bounds.high_vox - Fraction(low + more) / size) <= 1 + Fraction(1, 1000)


def test_open_and_excessive_tops_end_at_the_volume() -> None:
    assert bounds_from_ml((1, math.inf), voxel_ml=0.1, voxels=500) == Bounds(10, 500)
    assert bounds_from_ml((1, 1000), voxel_ml=0.1, voxels=500) == Bounds(10, 500)


def test_interval_without_a_whole_voxel_is_the_nearest_one() -> None:
    assert bounds_from_ml((1.02, 1.06), voxel_ml=0.1, voxels=500) == Bounds(10, 10)
    assert bounds_from_ml((0.001, 0.002), voxel_ml=0.1, voxels=500) == Bounds(1, 1)


SEEDS = np.array([[[1, 1, 1, -1, -1, 0, 0, 0]]], np.int8)


@pytest.mark.parametrize("bounds", [Bounds(0, 3), Bounds(5, 5), Bounds(4, 100)])
def test_feasible_bounds_pass(bounds: Bounds) -> None:
    check_feasible("case_1", bounds, SEEDS)


@pytest.mark.parametrize(
    ("bounds", "complaint"),
    [
        (Bounds(0, 2), "case_1: 3 foreground seeds exceed the upper size bound of 2"),
        (Bounds(6, 9), "case_1: the lower size bound of 6 voxels exceeds the 5"),
        (Bounds(5, 4), "case_1: the lower size bound, 5 voxels, exceeds the upper one, 4"),
    ],
)
def test_infeasible_bounds_name_the_case_and_numbers(bounds: Bounds, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        check_feasible("case_1", bounds, SEEDS)
