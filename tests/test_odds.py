"""Probabilities shifted to a known size: their ranking, their number above ½, and when nothing changes."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from discoseg.discrete import select_by_size
from discoseg.discrete.odds import shift_to_size

NO_SEEDS = np.empty(0, np.int8)


@settings(deadline=None)  # the first call compiles
@given(seed=st.integers(0, 2**32 - 1), data=st.data())
def test_the_ranking_stays_and_the_size_is_met(seed: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    voxels = data.draw(st.integers(1, 200))
    level = data.draw(st.sampled_from([0.01, 0.3, 0.9]))
    # Of distinct values, far enough apart for float32 to keep them so.
    s = (level * (rng.permutation(voxels) + 0.5) / voxels).astype(np.float32)
    seeds = rng.integers(-1, 2, voxels).astype(np.int8) if data.draw(st.booleans()) else NO_SEEDS
    unknown = seeds < 0 if seeds.size else np.ones(voxels, bool)
    low = data.draw(st.integers(0, int(unknown.sum())))
    high = data.draw(st.integers(low, int(unknown.sum())))
    cost = np.float32(0.5) - s
    shift_to_size(cost, seeds, low, high)
    shifted = 0.5 - cost
    assert np.isfinite(shifted).all()
    assert (np.diff(shifted[np.argsort(s)]) >= -1e-6).all()
    if not unknown.any():
        return
    before = int((s[unknown] > 0.5).sum())
    if low <= before <= high:
        assert np.array_equal(cost, np.float32(0.5) - s)
        return
    # The voxels that a size proposal chooses are above ½, the last of them at ½.
    chosen = select_by_size(s - np.float32(0.5), low, high) if unknown.all() else None
    assert (shifted[unknown] > 0.5 + 1e-5).sum() <= max(high, 1)
    assert (shifted[unknown] >= 0.5 - 1e-5).sum() >= low
    if chosen is not None and chosen.any():
        assert shifted[chosen].min() >= 0.5 - 1e-5
        assert abs(shifted[chosen].min() - 0.5) < 1e-5


def test_the_odds_of_all_change_by_one_factor() -> None:
    s = np.array([0.9, 0.7, 0.6, 0.2], np.float32)
    cost = np.float32(0.5) - s
    shift_to_size(cost, NO_SEEDS, 0, 1)
    shifted = 0.5 - cost
    factor = shifted / (1 - shifted) / (s / (1 - s))
    np.testing.assert_allclose(factor, 1 / 9, rtol=1e-5)


def test_what_is_sure_stays_on_its_side() -> None:
    """Nothing tells which of the equally sure voxels are too many, or which to take if all others are excluded."""
    certain = np.array([-0.5, -0.5, -0.5, 0.4], np.float32)
    shift_to_size(certain, NO_SEEDS, 0, 1)
    assert (certain[:3] < -0.1).all()
    excluded = np.array([-0.3, 0.5, 0.5, 0.5], np.float32)
    shift_to_size(excluded, NO_SEEDS, 2, 3)
    assert (excluded[1:] > 0.1).all()
    assert excluded[0] < 0


def test_a_voxel_that_crosses_one_half_moves_the_others_little() -> None:
    below, above = (np.array([-7.0, cost, 0.4], np.float32) for cost in (1e-4, -1e-4))
    for cost in (below, above):
        shift_to_size(cost, NO_SEEDS, 2, 3)
    np.testing.assert_allclose(below, above, atol=1e-3)


def test_multipliers_may_leave_the_range_of_probabilities() -> None:
    cost = np.array([-7.0, 0.4, 9.0], np.float32)
    shift_to_size(cost, NO_SEEDS, 2, 3)
    np.testing.assert_allclose(0.5 - cost, [1, 0.5, 0], atol=1e-4)
