"""Probabilities shifted to a known size: their ranking, their number above ½, and when nothing changes."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from discoseg.discrete import select_by_size
from discoseg.discrete.odds import shift_to_size, shift_to_sizes

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


@settings(deadline=None)  # the first call compiles
@given(seed=st.integers(0, 2**32 - 1), data=st.data())
def test_each_classes_odds_are_shifted_by_one_number_into_its_bounds(seed: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    classes, voxels = data.draw(st.integers(2, 5)), data.draw(st.integers(1, 80))
    p = rng.dirichlet(np.full(classes, data.draw(st.sampled_from([0.3, 1, 5]))), voxels).T
    p[0] *= data.draw(st.sampled_from([1, 20]))  # much background, as of a young network
    p = np.maximum(p / p.sum(axis=0), 1e-4)
    p = (p / p.sum(axis=0)).astype(np.float32)
    seeds = None
    if data.draw(st.booleans()):
        seeds = np.where(rng.random(voxels) < 0.7, -1, rng.integers(0, classes, voxels)).astype(np.int8)
    reached = rng.multinomial(voxels, np.full(classes, 1 / classes))  # some labelling has these sizes
    if seeds is not None:
        unknown = int((seeds < 0).sum())
        known = np.bincount(seeds[seeds >= 0], minlength=classes)
        reached = known + rng.multinomial(unknown, np.full(classes, 1 / classes))
    low, high = np.maximum(reached - 2, 0), reached + 2
    costs = (p[0] - p) / 2
    shifted = shift_to_sizes(costs, low.tolist(), high.tolist(), seeds)
    assert np.isfinite(shifted).all()
    assert (shifted[0] == 0).all()
    labels, before = shifted.argmin(axis=0), costs.argmin(axis=0)
    free = np.ones(voxels, bool) if seeds is None else seeds < 0
    if seeds is not None:
        labels, before = (np.where(free, found, seeds) for found in (labels, before))
    sizes = np.bincount(before, minlength=classes)
    if (low <= sizes).all() and (sizes <= high).all():
        assert np.array_equal(shifted, costs)
        return
    background = (1 + 2 * shifted.sum(axis=0)) / classes
    q = background - 2 * shifted
    np.testing.assert_allclose(q.sum(axis=0), 1, rtol=1e-5)
    sure = (np.minimum(p, q) > 1e-4).all(axis=0)  # float32 costs hold log odds of others badly
    odds = (np.log(np.maximum(q, 1e-9)) - np.log(p))[:, sure]
    assert not sure.any() or np.ptp(odds - odds[0], axis=1).max() < 0.05
    # The last voxels of a class that its bounds hold back, or let in, are at a tie.
    ties = np.sort(shifted, axis=0)
    tied = free & (ties[1] - ties[0] < 1e-4)
    counts = np.bincount(labels[~tied], minlength=classes)
    assert (counts <= high).all()
    assert (counts + int(tied.sum()) >= low).all()


def test_two_classes_are_shifted_like_one_structure() -> None:
    s = np.random.default_rng(0).random(500).astype(np.float32) * np.float32(0.3)
    cost = np.float32(0.5) - s
    costs = np.stack([np.zeros_like(cost), cost])
    shift_to_size(cost, NO_SEEDS, 40, 60)
    shifted = shift_to_sizes(costs, (0, 40), (500, 60))
    assert int((shifted[1] < 0).sum()) in (39, 40)
    np.testing.assert_allclose(shifted[1], cost, atol=0.01)
