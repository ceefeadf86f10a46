"""Masks within size bounds and a boundary prior: against all masks there are, and in the files that users receive."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from discoseg.discrete import PottsGrid
from discoseg.enforce import Enforced, energy_of, enforce, restore_sizes
from discoseg.weak.bounds import Bounds

SHAPE = (2, 2, 3)
MASKS = np.array(list(itertools.product([False, True], repeat=12))).reshape(-1, *SHAPE)
SIZES = MASKS.sum(axis=(1, 2, 3))


def tiny(seed: int) -> tuple[PottsGrid, NDArray[np.float64]]:
    """A grid and a probability (1, 2, 2, 3)."""
    rng = np.random.default_rng(seed)
    grid = PottsGrid(rng.random(SHAPE), spacing_mm=(2.0, 1.0, 1.5), sigma=0.4, neighbours=(6, 18, 26)[seed % 3])
    return grid, rng.random((1, *SHAPE))


def energies_of_all(grid: PottsGrid, probability: NDArray[np.float64], strength: float) -> NDArray[np.float64]:
    return np.array([grid.energy(mask, 0.5 - probability[0], strength=strength) for mask in MASKS])


def require_claims(found: Enforced, energies: NDArray[np.float64], bounds: Bounds) -> None:
    """Check what a certificate says against the energies of all masks."""
    size = int(np.count_nonzero(found.labels))
    inside = (bounds.low_vox <= SIZES) & (bounds.high_vox >= SIZES)
    best = energies[inside].min()
    assert bounds.low_vox <= size <= bounds.high_vox
    assert found.bound <= best + 1e-6
    assert found.energy <= best + found.gap + 1e-6
    if found.kind == "optimal":
        assert found.energy == pytest.approx(best, abs=1e-6)
    if found.kind == "lagrangian":
        assert found.energy == pytest.approx(energies[size == SIZES].min(), abs=1e-6)
    if found.kind in ("optimal", "lagrangian") and found.gap < 1e-6:
        assert found.energy == pytest.approx(best, abs=1e-5)


def test_certificates_hold_against_all_masks() -> None:
    kinds = []
    for seed, strength in itertools.product(range(6), (0.0, 0.05, 0.2, 1.0)):
        grid, probability = tiny(seed)
        energies = energies_of_all(grid, probability, strength)
        for low, high in ((0, 12), (0, 2), (9, 12), (4, 5), (7, 7), (0, 0), (12, 12), (1, 1)):
            found = enforce(probability, [Bounds(low, high)], grid=grid, strength=strength)
            require_claims(found, energies, Bounds(low, high))
            assert found.energy == pytest.approx(energy_of(found.labels, probability, grid=grid, strength=strength))
            kinds.append(found.kind)
    assert {"optimal", "lagrangian", "completed"} <= set(kinds)


def test_a_jump_of_sizes_is_completed() -> None:
    image = np.zeros((1, 1, 8))
    grid = PottsGrid(image, spacing_mm=(1, 1, 1), sigma=1.0, neighbours=6)
    probability = np.full((1, *image.shape), 0.4)
    probability[..., 3] = 0.45
    found = enforce(probability, [Bounds(4, 4)], grid=grid, strength=1.0)
    assert found.kind == "completed"  # a uniform bar is cut whole or not at all
    assert np.count_nonzero(found.labels) == 4
    assert found.energy == pytest.approx(0.35 + 1.0)  # one end of it
    assert 0 < found.gap <= 1.0


@pytest.mark.parametrize("strength", [0.0, 0.1, 0.6])
def test_several_structures_meet_their_bounds(strength: float) -> None:
    rng = np.random.default_rng(3)
    shape = (2, 2, 2)
    every = np.array(list(itertools.product(range(3), repeat=8))).reshape(-1, *shape)
    grid = PottsGrid(rng.random(shape), spacing_mm=(2.0, 1.0, 1.0), sigma=0.4)
    for seed in range(4):
        s = np.random.default_rng(seed).dirichlet(np.ones(3), shape).transpose(3, 0, 1, 2)[1:]
        for bounds in ([Bounds(3, 4), Bounds(0, 8)], [Bounds(1, 1), Bounds(6, 6)], [Bounds(0, 8), Bounds(0, 8)]):
            found = enforce(s, bounds, grid=grid, strength=strength)
            counts = [int((found.labels == k).sum()) for k in (1, 2)]
            assert all(b.low_vox <= n <= b.high_vox for b, n in zip(bounds, counts, strict=True))
            inside = [
                labels
                for labels in every
                if all(b.low_vox <= (labels == k).sum() <= b.high_vox for k, b in enumerate(bounds, start=1))
            ]
            best = min(
                energy_of(labels, s, grid=grid, strength=strength) for labels in inside[:: 1 if not strength else 3]
            )
            assert found.bound <= best + 1e-6
            assert found.kind == ("optimal" if strength == 0 else "approximate")
            if strength == 0:
                assert found.energy == pytest.approx(best)


def test_sizes_are_restored_shell_by_shell() -> None:
    labels = np.zeros((1, 5, 9), np.uint8)
    labels[0, 2, 2:4] = 1
    probability = np.zeros((1, 1, 5, 9))
    probability[0, 0, 2] = [0.1, 0.3, 0.9, 0.8, 0.2, 0.1, 0.1, 0.9, 0.9]  # far away there is another one
    grown = restore_sizes(labels, probability, [Bounds(3, 9)])
    assert np.flatnonzero(grown).tolist() == [19, 20, 21]
    assert np.flatnonzero(restore_sizes(labels, probability, [Bounds(0, 1)])).tolist() == [20]
    assert np.array_equal(restore_sizes(labels, probability, [Bounds(1, 2)]), labels)
    nothing = np.zeros_like(labels)
    assert np.flatnonzero(restore_sizes(nothing, probability, [Bounds(2, 9)])).tolist() == [20, 25]
