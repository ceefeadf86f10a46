"""assign_by_size: the one optimum that its rule names, certified, seeds honoured, infeasible bounds refused."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment, linprog

from discoseg.discrete import Assignment, assign_by_size, assign_with_prices, select_by_size
from discoseg.discrete.transport import certify, count_units, transport
from discoseg.errors import UserError

Seeds = NDArray[np.int8]
Problem = tuple[NDArray, list[int], list[int], Seeds]


def best_by_enumeration(utility: NDArray, low: list[int], high: list[int], seeds: Seeds) -> tuple[float, Seeds] | None:
    """The value and the labels of the best assignment: the most background, then the last in lexicographic order."""
    classes, voxels = utility.shape
    labels = np.array(list(itertools.product(range(classes), repeat=voxels)), np.int8)  # in lexicographic order
    counts = (labels[:, :, None] == np.arange(classes)).sum(1)
    fits = ((counts >= low) & (counts <= high)).all(1) & ((labels == seeds) | (seeds < 0)).all(1)
    if not fits.any():
        return None
    labels, counts = labels[fits], counts[fits]
    values = utility[labels, np.arange(voxels)].sum(1, dtype=np.float64)
    best = np.lexsort((np.arange(len(values)), counts[:, 0], values))[-1]
    return values[best], labels[best]


def random_problem(rng: np.random.Generator, classes: int, voxels: int, *, ties: bool) -> Problem:
    """Feasible bounds around the sizes of random labels, and seeds that agree with them."""
    shape = (classes, voxels)
    utility = rng.integers(-2, 3, shape) / 4 if ties else rng.normal(size=shape).astype(np.float32)
    truth = rng.integers(0, classes, voxels).astype(np.int8)
    counts = np.bincount(truth, minlength=classes)
    slack = int(rng.choice([0, 1, max(1, voxels // 10), voxels]))
    low = np.maximum(counts - rng.integers(0, slack + 1, classes), 0)
    high = np.minimum(counts + rng.integers(0, slack + 1, classes), voxels)
    seeds = np.where(rng.random(voxels) < rng.choice([0, 0.3]), truth, -1).astype(np.int8)
    return utility, low.tolist(), high.tolist(), seeds


def require_certified(found: Assignment, problem: Problem) -> None:
    """Check labels, value and bound from their definitions."""
    utility, low, high, seeds = problem
    labels = found.labels.astype(np.intp)
    counts = np.bincount(labels, minlength=len(utility))
    assert (counts >= low).all()
    assert (counts <= high).all()
    assert (labels == seeds)[seeds >= 0].all()
    unknown = seeds < 0
    seeded = counts - np.bincount(labels[unknown], minlength=len(utility))
    least, most = np.maximum(low - seeded, 0), np.minimum(high - seeded, unknown.sum())
    prices = found.prices
    known = utility[labels, np.arange(labels.size)].astype(np.float64)[~unknown].sum()
    bound = (
        known + (utility[:, unknown] - prices[:, None]).max(0).sum() + np.maximum(prices * least, prices * most).sum()
    )
    assert found.value == pytest.approx(utility[labels, np.arange(labels.size)].sum(dtype=np.float64))
    assert found.bound == pytest.approx(bound, rel=1e-12, abs=1e-9)
    assert found.bound == found.value


@pytest.mark.parametrize(("classes", "voxels"), [(2, 7), (3, 1), (3, 6), (4, 5)])
@pytest.mark.parametrize("ties", [True, False])
def test_equals_enumeration(classes: int, voxels: int, ties: bool) -> None:
    rng = np.random.default_rng(classes * voxels)
    for _ in range(40):
        problem = random_problem(rng, classes, voxels, ties=ties)
        expected = best_by_enumeration(*problem)
        assert expected is not None
        found = assign_with_prices(*problem[:3], seeds=problem[3])
        np.testing.assert_array_equal(found.labels, expected[1])
        assert found.value == pytest.approx(expected[0])
        require_certified(found, problem)


def test_every_pair_of_bounds_is_met_or_refused() -> None:
    rng = np.random.default_rng(0)
    utility = rng.integers(-1, 2, (3, 3)) / 2
    seeds = np.array([-1, -1, 2], np.int8)
    for numbers in itertools.product(range(4), repeat=6):
        low, high = list(numbers[:3]), list(numbers[3:])
        expected = best_by_enumeration(utility, low, high, seeds)
        if expected is None:
            with pytest.raises(UserError, match="infeasible"):
                assign_by_size(utility, low, high, seeds=seeds)
        else:
            np.testing.assert_array_equal(assign_by_size(utility, low, high, seeds=seeds), expected[1])


@pytest.mark.parametrize("ties", [True, False])
def test_equals_linear_programming(ties: bool) -> None:
    rng = np.random.default_rng(1)
    for classes in (3, 4, 7):
        problem = random_problem(rng, classes, 300, ties=ties)
        utility, low, high, seeds = problem
        found = assign_with_prices(utility, low, high, seeds=seeds)
        require_certified(found, problem)
        sizes = np.kron(np.eye(classes), np.ones(300))
        limits = np.broadcast_to((seeds == np.arange(classes)[:, None]) | (seeds < 0), (classes, 300)).ravel()
        oracle = linprog(
            -utility.ravel(),
            A_ub=np.concatenate([sizes, -sizes]),
            b_ub=np.concatenate([high, -np.array(low)]),
            A_eq=np.tile(np.eye(300), classes),
            b_eq=np.ones(300),
            bounds=np.stack([np.zeros(limits.size), limits], 1),
        )
        assert found.value == pytest.approx(-oracle.fun, abs=1e-6)


def test_exact_sizes_equal_linear_sum_assignment() -> None:
    rng = np.random.default_rng(2)
    sizes = [100, 7, 0, 93, 50]
    utility = rng.normal(size=(5, 250))
    found = assign_with_prices(utility, sizes, sizes)
    expanded = np.repeat(utility, sizes, axis=0)
    assert found.value == pytest.approx(expanded[linear_sum_assignment(expanded, maximize=True)].sum())
    assert np.bincount(found.labels, minlength=5).tolist() == sizes


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_two_classes_equal_the_selection(dtype: type) -> None:
    rng = np.random.default_rng(3)
    for trial in range(50):
        utility, low, high, seeds = random_problem(rng, 2, 200, ties=trial % 2 == 0)
        utility = utility.astype(dtype)
        expected = select_by_size(utility[1] - utility[0], low[1], high[1], seeds=seeds)
        labels = assign_by_size(utility, [0, low[1]], [None, high[1]], seeds=seeds)
        np.testing.assert_array_equal(labels, expected)
        # So do those that do not take the short way, and those of three classes of which one stays empty.
        free = (seeds < 0).nonzero()[0]
        least, most = np.array([0, low[1] - (seeds == 1).sum()]), np.array([200, high[1] - (seeds == 1).sum()])
        solved = transport(utility, free, 2.0**48, least.clip(0, free.size), most.clip(0, free.size))
        np.testing.assert_array_equal(solved, labels[free])
        third = np.concatenate([utility, utility[1:]])
        np.testing.assert_array_equal(assign_by_size(third, [0, low[1], 0], [None, high[1], 0], seeds=seeds), labels)


def test_rounded_differences_of_two_classes_are_within_the_bound() -> None:
    rng = np.random.default_rng(9)
    utility = (rng.normal(size=(2, 5000)) * 10.0 ** rng.integers(-12, 1, (2, 5000))).astype(np.float32)
    found = assign_with_prices(utility, [0, 2600], [None, 2700])
    assert found.value <= found.bound <= found.value + 1e-6 * np.abs(utility).sum()


@pytest.mark.parametrize("kind", ["smooth", "few values", "one value", "in order", "saturated"])
def test_large_problems_are_certified(kind: str) -> None:
    rng = np.random.default_rng(4)
    voxels = 100_000
    utility = {
        "smooth": np.cumsum(rng.normal(size=(4, voxels)), 1) / 100,
        "few values": rng.integers(0, 3, (4, voxels)),
        "one value": np.zeros((4, voxels)),
        "in order": np.outer(np.arange(4), np.sort(rng.normal(size=voxels))),
        "saturated": (20 * rng.normal(size=(4, voxels))).clip(0, 1),
    }[kind].astype(np.float32)
    low, high = [0, 30_000, 20_000, 0], [voxels, 30_000, 25_000, 11]
    found = assign_with_prices(utility, low, high)
    require_certified(found, (utility, low, high, np.full(voxels, -1, np.int8)))


def test_prices_from_a_misleading_sample_only_cost_time() -> None:
    rng = np.random.default_rng(5)
    utility = rng.random((3, 40_000))
    utility[1, -30:] += 5  # hardly any of them is in the sample, and all but 10 must be given up
    found = assign_with_prices(utility, [39_000, 0, 0], [None, 10, None])
    assert (found.labels == 1).sum() == 10
    assert found.bound == found.value


@pytest.mark.parametrize("ties", [True, False])
def test_heaps_gathered_again_and_again_change_nothing(ties: bool) -> None:
    rng = np.random.default_rng(10)
    for classes in (3, 5):
        utility, low, high, _ = random_problem(rng, classes, 5000, ties=ties)
        posed = utility, np.arange(5000), 2.0**40, np.array(low), np.array(high)
        expected = transport(*posed)
        for wanted, spare in ((0.01, 4), (2.0, 0), (0.01, 0)):
            labels = transport(*posed, wanted=wanted, spare=spare)
            np.testing.assert_array_equal(labels, expected)


@given(st.integers(0, 2**32 - 1), st.sampled_from([3, 4, 6]), st.booleans(), st.sampled_from([0.0, 0.7, 3.0]))
@settings(max_examples=40, deadline=None)
def test_voxels_left_out_change_nothing(seed: int, classes: int, ties: bool, ahead: float) -> None:
    """Whatever is left out at first, too much of it included, and however far the background is ahead."""
    rng = np.random.default_rng(seed)
    utility, low, high, _ = random_problem(rng, classes, 25_000, ties=ties)
    utility[0] += ahead
    if rng.random() < 0.5:  # sizes near those of the best classes, as in a training
        counts = np.bincount(utility.argmax(0), minlength=classes)
        slack = rng.integers(0, 500, (2, classes))
        low, high = (counts - slack[0]).clip(0).tolist(), (counts + slack[1]).clip(max=25_000).tolist()
    free = (rng.random(25_000) < 0.9).nonzero()[0]
    share = free.size / 25_000
    least = np.floor(np.array(low) * share).astype(np.int64)
    most = np.minimum(np.ceil(np.array(high) * share).astype(np.int64) + 1, free.size)
    expected = transport(utility, free, 2.0**49, least, most, reach=np.inf)
    for reach in (0.0, 0.1, 2.0):
        np.testing.assert_array_equal(transport(utility, free, 2.0**49, least, most, reach=reach), expected)
    assert certify(count_units(utility, free, 2.0**49), expected, least, most)[1] == 0


@pytest.mark.parametrize("background", [(0, 20_000), (18_000, 20_000), (0, 300), (20_000, 20_000)])
def test_a_background_that_bounds_force_or_hold_back(background: tuple[int, int]) -> None:
    rng = np.random.default_rng(12)
    utility = rng.normal(size=(3, 20_000))
    utility[0] += 4 if background[1] == 300 else -2
    low, high = np.array([background[0], 0, 0]), np.array([background[1], 20_000, 20_000])
    free = np.arange(20_000)
    expected = transport(utility, free, 2.0**48, low, high, reach=np.inf)
    np.testing.assert_array_equal(transport(utility, free, 2.0**48, low, high, reach=0.0), expected)
    assert background[0] <= (expected == 0).sum() <= background[1]


def test_seeds_do_not_coarsen_what_they_leave_open() -> None:
    rng = np.random.default_rng(13)
    utility = rng.normal(size=(4, 30_000)).astype(np.float32)
    seeds = np.where(rng.random(30_000) < 0.05, 1, -1).astype(np.int8)
    utility[:, seeds == 1] *= 1e30
    low, high = [0, 4000, 2000, 100], [30_000, 5000, 2100, 100]
    seeded = int((seeds == 1).sum())
    labels = assign_by_size(
        utility, [0, low[1] + seeded, *low[2:]], [high[0], high[1] + seeded, *high[2:]], seeds=seeds
    )
    alone = assign_by_size(utility[:, seeds < 0], low, np.minimum(high, 30_000 - seeded).tolist())
    np.testing.assert_array_equal(labels[seeds < 0], alone)


@pytest.mark.parametrize("wanted", [2.0, 0.01])
def test_bounds_that_hardly_matter_are_certified(wanted: float) -> None:
    """A sample takes a bound to hold a class back where the whole does not, and the other way round."""
    rng = np.random.default_rng(11)
    for _ in range(40):
        units = 2 * rng.integers(0, 2**20, (4000, 3))
        counts = np.bincount(units.argmax(1), minlength=3)
        high = np.array([4000, *(counts[1:] + rng.integers(-40, 41, 2))])
        low = np.array([0, *(high[1:] - rng.integers(0, 60, 2))])
        labels = transport(units.T / 2.0, np.arange(4000), 1.0, low, high, wanted=wanted)
        assert certify(units, labels, low, high)[1] == 0


def test_all_seeded_and_none_at_all() -> None:
    seeds = np.array([[0, 2, 1], [1, 1, 0]], np.int8)
    found = assign_with_prices(np.ones((3, 2, 3)), [2, 3, 1], [2, 3, 1], seeds=seeds)
    np.testing.assert_array_equal(found.labels, seeds)
    assert found.value == found.bound == 6
    assert assign_by_size(np.ones((3, 0)), [0] * 3, [None] * 3).shape == (0,)


def test_keeps_the_shape_and_layout() -> None:
    utility = np.random.default_rng(6).random((3, 4, 5))
    labels = assign_by_size(utility, [0, 6, 8], [None, 6, 8])
    assert labels.dtype == np.int8
    turned = assign_by_size(utility.transpose(0, 2, 1), [0, 6, 8], [None, 6, 8])
    np.testing.assert_array_equal(turned, labels.T)


def test_threads_find_the_same() -> None:
    rng = np.random.default_rng(7)
    problems = [random_problem(rng, 4, 20_000, ties=ties) for ties in (True, False)] * 4
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda p: assign_by_size(*p[:3], seeds=p[3]), problems))
    for problem, labels in zip(problems, found, strict=True):
        np.testing.assert_array_equal(labels, assign_by_size(*problem[:3], seeds=problem[3]))


@pytest.mark.parametrize(
    ("low", "high", "reason"),
    [
        ([0, 4, 0], [6, 3, 6], r"class 1, 4 voxels, exceeds its upper, 3"),
        ([0, 0, 0], [6, 6, 1], r"2 seeds of class 2 exceed its upper bound, 1 voxels"),
        ([0, 4, 0], [6, 6, 6], r"class 1, 4 voxels, exceeds the 3 that can be of it \(0 seeds and 3 unknown\)"),
        ([2, 2, 3], [6, 6, 6], r"lower bounds of all classes need 4 unknown voxels, there are 3"),
        ([0, 0, 0], [1, 1, 3], r"upper bounds of all classes leave 1 unknown voxels no class"),
        ([0, 0], [6, 6], r"2 \(lower\) and 2 \(upper\) classes, not 3"),
    ],
)
def test_infeasible_bounds_are_named(low: list[int], high: list[int], reason: str) -> None:
    seeds = np.array([2, 2, 0, -1, -1, -1], np.int8)
    with pytest.raises(UserError, match=reason):
        assign_by_size(np.ones((3, 6)), low, high, seeds=seeds)


def test_bad_input_is_refused() -> None:
    none, unlimited = [None] * 3, [None] * 3
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(UserError, match="NaN"):
            assign_by_size(np.array([[1.0, 0.0], [bad, 0.0], [0.0, 0.0]]), none, unlimited)
    with pytest.raises(UserError, match="shape"):
        assign_by_size(np.ones((3, 3)), none, unlimited, seeds=np.zeros(4, np.int8))
    with pytest.raises(UserError, match="class 3"):
        assign_by_size(np.ones((3, 3)), none, unlimited, seeds=np.full(3, 3, np.int8))
    with pytest.raises(UserError, match="1 classes"):
        assign_by_size(np.ones((1, 3)), [None], [None])


@pytest.mark.parametrize("factor", [2.0**-960, 2.0**-149, 2.0**1020])
def test_any_scale_will_do(factor: float) -> None:
    utility, low, high, seeds = random_problem(np.random.default_rng(8), 4, 100, ties=True)
    labels = assign_by_size(utility, low, high, seeds=seeds)
    np.testing.assert_array_equal(assign_by_size(utility * factor, low, high, seeds=seeds), labels)


@given(st.integers(0, 2**32 - 1), st.integers(3, 6), st.integers(1, 60), st.booleans())
@settings(max_examples=60, deadline=None)
def test_properties(seed: int, classes: int, voxels: int, ties: bool) -> None:
    """Certified; a constant per voxel changes nothing; permuted classes have permuted sizes and the same value."""
    rng = np.random.default_rng(seed)
    utility, low, high, seeds = problem = random_problem(rng, classes, voxels, ties=ties)
    found = assign_with_prices(utility, low, high, seeds=seeds)
    require_certified(found, problem)

    shifted = utility.astype(np.float64) + rng.integers(-4, 5, voxels)
    np.testing.assert_array_equal(assign_by_size(shifted, low, high, seeds=seeds), found.labels)

    order = rng.permutation(classes)
    moved = np.where(seeds >= 0, np.argsort(order)[seeds], -1).astype(np.int8)
    other = assign_with_prices(utility[order], [low[c] for c in order], [high[c] for c in order], seeds=moved)
    assert other.value == pytest.approx(found.value, rel=1e-12, abs=1e-12)
