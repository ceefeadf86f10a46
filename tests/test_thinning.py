import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from discoseg.thinning import describe_pick, pick_cases, pick_peaks


@given(count=st.integers(0, 500), most=st.integers(3, 120))
def test_picked_cases_are_in_order_and_hold_both_ends(count: int, most: int) -> None:
    picked = pick_cases(count, most)
    assert len(picked) == min(count, most)
    assert picked == sorted(set(picked))
    ends = min(count, most // 3)
    assert picked[:ends] == list(range(ends))
    assert picked[len(picked) - ends :] == list(range(count - ends, count))
    assert bool(describe_pick(count, most)) == (len(picked) < count)


def test_peaks_of_a_long_curve_stay() -> None:
    values = np.sin(np.arange(10_000) / 50)
    values[[1234, 7777]] = 9.0, -9.0
    values[:100] = np.nan
    kept = pick_peaks(values, 600)
    assert len(kept) <= 602
    assert {0, 1234, 7777, 9999} <= set(kept.tolist())
    assert np.array_equal(pick_peaks(values[:600], 600), np.arange(600))
