"""The selection of all volumes at once against `select_by_size`, volume by volume, bit for bit."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from discoseg import selection
from discoseg.discrete import select_by_size
from discoseg.errors import UserError
from discoseg.selection import SizeSelector

CPU = torch.device("cpu")
SPECIAL = np.array([-0.0, 0.0, 1e-45, -1e-45, 1e-38, 0.5, -0.5, 1.0, np.nextafter(np.float32(1), 2), 3e38, -3e38])


def _utility(rng: np.random.Generator, shape: tuple[int, int, int]) -> NDArray[np.float32]:
    kind = rng.integers(4)
    values = [rng.normal(size=shape), rng.normal(size=shape).round(), np.zeros(shape), rng.choice(SPECIAL, size=shape)]
    return values[kind].astype(np.float32)


def _bounds(rng: np.random.Generator, size: int, seeds: NDArray[np.int8] | None) -> tuple[int, int]:
    seeded = 0 if seeds is None else int((seeds == 1).sum())
    unknown = size if seeds is None else int((seeds < 0).sum())
    low = int(rng.integers(0, seeded + unknown + 1))
    return low, int(rng.integers(max(low, seeded), size + 5))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from([1, 50, 2**26]), st.sampled_from([None, 0.3, 1.0]))
def test_equals_the_selection_of_each_volume(seed: int, honour: bool, voxels_at_once: int, price: float | None) -> None:
    rng = np.random.default_rng(seed)
    shapes = [(int(rng.integers(1, 4)), 4, 5) for _ in range(rng.integers(1, 6))]
    utilities = [_utility(rng, shape) for shape in shapes]
    seeds = [rng.choice([-1, -1, -1, 0, 1], size=s).astype(np.int8) if honour else None for s in shapes]
    if honour and rng.random() < 0.2:
        seeds[0] = np.zeros(shapes[0], np.int8)  # nothing to choose
    bounds = [_bounds(rng, int(np.prod(s)), f) for s, f in zip(shapes, seeds, strict=True)]
    expected = [
        select_by_size(u, low, high, seeds=f, price=price)
        for u, (low, high), f in zip(utilities, bounds, seeds, strict=True)
    ]
    known = torch.from_numpy(np.concatenate([f for f in seeds if f is not None])) if honour else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "_VOXELS_AT_ONCE", voxels_at_once)
        selector = SizeSelector(shapes, bounds, seeds, CPU)
    on_device = None if price is None else torch.tensor(price)
    chosen = selector.select(torch.from_numpy(np.concatenate(utilities)), known, on_device)
    assert np.array_equal(chosen.numpy(), np.concatenate(expected))


def test_bad_input_is_refused() -> None:
    with pytest.raises(UserError, match="infeasible"):
        SizeSelector([(1, 2, 2)], [(5, 6)], [None], CPU)
    selector = SizeSelector([(1, 2, 2)], [(1, 2)], [None], CPU)
    selector.select(torch.full((1, 2, 2), torch.nan), None)
    with pytest.raises(UserError, match="NaN"):
        selector.require_finite()
    selector.select(torch.zeros(1, 2, 2), None)
    selector.require_finite()
