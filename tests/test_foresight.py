"""A cut begun with a guess is the cut: the energies of `PottsGrid.cut`, whatever the guess was."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from discoseg.discrete import PottsGrid
from discoseg.errors import UserError


def _costs(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> NDArray[np.float32]:
    if kind == "equal":
        return np.full(shape, rng.choice([-1.0, 0.0, 1.0]), np.float32)
    if kind == "integers":
        return rng.integers(-3, 4, shape).astype(np.float32)
    size = {"usual": 1.0, "large": 1e6, "tiny": 1e-6}[kind]
    return (size * rng.normal(size=shape)).astype(np.float32)


KINDS = st.sampled_from(["usual", "integers", "equal", "large", "tiny"])


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    kinds=st.tuples(KINDS, KINDS),
    strength=st.sampled_from([0.0, 0.01, 0.7, 30.0]),
    neighbours=st.sampled_from([6, 26]),
    seeded=st.booleans(),
)
def test_has_the_energy_of_the_cut(
    seed: int, kinds: tuple[str, str], strength: float, neighbours: int, seeded: bool
) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(1, 7, 3))
    grid = PottsGrid(rng.random(shape), spacing_mm=(3, 1, 1), sigma=0.3, neighbours=neighbours)
    seeds = rng.choice([-1, -1, -1, 0, 1], size=shape).astype(np.int8) if seeded else None
    foresight = grid.foresee(seeds)
    for _ in range(2):  # it serves cut after cut
        foresight.guess(_costs(rng, shape, kinds[0]), strength=strength)
        unary = _costs(rng, shape, kinds[1])
        mask = foresight.cut(unary, strength=strength)
        expected = grid.cut(unary, strength=strength, seeds=seeds)
        energies = [grid.energy(m, unary, strength=strength) for m in (mask, expected)]
        assert energies[0] == pytest.approx(energies[1], rel=1e-6, abs=1e-5 * float(np.abs(unary).mean()))
        if seeds is not None:
            assert (mask[seeds >= 0] == seeds[seeds >= 0]).all()


def test_is_the_same_mask_as_a_training_goes_on() -> None:
    """Costs that change a little from cut to cut, on volumes large enough for long ways."""
    rng = np.random.default_rng(3)
    shape = (6, 40, 40)
    image = rng.random(shape)
    seeds = np.full(shape, -1, np.int8)
    seeds[:, :3], seeds[3, 18:22, 18:22] = 0, 1
    grid = PottsGrid(image, spacing_mm=(5, 1, 1), sigma=0.3)
    foresight = grid.foresee(seeds)
    unary = rng.normal(size=shape).astype(np.float32)
    used = 0
    for _ in range(6):
        foresight.guess(unary, strength=0.3)
        unary = unary + 0.1 * rng.normal(size=shape).astype(np.float32)
        mask = foresight.cut(unary, strength=0.3)
        assert np.array_equal(mask, grid.cut(unary, strength=0.3, seeds=seeds))
        used += int(mask.any() and not mask.all())
    assert used == 6


def test_needs_no_guess_and_takes_another_strength() -> None:
    rng = np.random.default_rng(4)
    grid = PottsGrid(rng.random((8, 9)), spacing_mm=(1, 1), sigma=0.3)
    foresight, unary = grid.foresee(), rng.normal(size=(8, 9))
    assert np.array_equal(foresight.cut(unary, strength=0.5), grid.cut(unary, strength=0.5))
    foresight.guess(unary, strength=0.5)
    assert np.array_equal(foresight.cut(unary, strength=2.0), grid.cut(unary, strength=2.0))


def test_a_volume_of_seeds_is_its_seeds() -> None:
    seeds = np.array([[0, 1], [1, 0]], np.int8)
    foresight = PottsGrid(np.zeros((2, 2)), spacing_mm=(1, 1), sigma=1).foresee(seeds)
    foresight.guess(np.zeros((2, 2)), strength=1.0)
    assert np.array_equal(foresight.cut(np.zeros((2, 2)), strength=1.0), seeds == 1)


def test_bad_input_is_refused() -> None:
    foresight = PottsGrid(np.zeros((2, 2)), spacing_mm=(1, 1), sigma=1).foresee()
    with pytest.raises(UserError, match="NaN"):
        foresight.guess(np.full((2, 2), np.nan), strength=1.0)
    with pytest.raises(UserError, match="strength"):
        foresight.cut(np.zeros((2, 2)), strength=-1.0)
