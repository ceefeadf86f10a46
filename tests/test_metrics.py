import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from discoseg.metrics import count_overlap, dice, dice_by_volume, surface_distances

SPACING_MM = (5.0, 1.5, 0.7)


def blob(seed: int, shape: tuple[int, int, int] = (5, 12, 14)) -> NDArray[np.bool_]:
    """Return a few random boxes, some of which touch the border."""
    rng = np.random.default_rng(seed)
    mask = np.zeros(shape, dtype=bool)
    for _ in range(3):
        low = rng.integers(0, np.array(shape) - 2)
        z, y, x = low
        dz, dy, dx = rng.integers(1, 6, size=3)
        mask[z : z + dz, y : y + dy, x : x + dx] = True
    return mask


def surface_points_mm(mask: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the voxels that have a face neighbour outside, by definition."""
    padded = np.pad(mask, 1)
    points = []
    for z, y, x in np.argwhere(padded):
        faces = [padded[z - 1, y, x], padded[z + 1, y, x], padded[z, y - 1, x], padded[z, y + 1, x]]
        faces += [padded[z, y, x - 1], padded[z, y, x + 1]]
        if not all(faces):
            points.append((z, y, x))
    return np.array(points) * np.array(SPACING_MM)


def test_dice_counts_overlap() -> None:
    a, b = np.zeros((2, 8), dtype=bool), np.zeros((2, 8), dtype=bool)
    a[0, :4] = b[0, 2:8] = True
    assert dice(a, b) == dice(b, a) == pytest.approx(2 * 2 / (4 + 6))
    assert dice(a, a) == 1.0
    assert dice(a, ~a) == 0.0


def test_dice_of_empty_masks() -> None:
    empty, full = np.zeros((3, 3), dtype=bool), np.ones((3, 3), dtype=bool)
    assert dice(empty, empty) == 1.0
    assert dice(empty, full) == 0.0


def test_dice_by_volume_equals_dice_of_each_volume() -> None:
    volume_of_slice = np.array([2, 0, 0, 2, 1, 0, 2, 3])  # in any order; 3 is empty in both
    rng = np.random.default_rng(0)
    mask, truth = rng.random((2, 8, 6, 7)) < 0.3
    mask[7] = truth[7] = False
    a, b, volume = (torch.from_numpy(array) for array in (mask, truth, volume_of_slice))
    together = dice_by_volume(torch.zeros(3, 4, dtype=torch.int64).index_add(1, volume, count_overlap(a, b)))
    alone = [dice(mask[volume_of_slice == v], truth[volume_of_slice == v]) for v in range(4)]
    assert together.tolist() == pytest.approx(alone)
    assert together[3] == 1.0


@pytest.mark.parametrize("seed", range(6))
def test_surface_distances_follow_their_definition(seed: int) -> None:
    a, b = blob(seed), blob(100 + seed)
    points_a, points_b = surface_points_mm(a), surface_points_mm(b)
    apart = np.linalg.norm(points_a[:, None] - points_b[None], axis=-1)
    there, back = apart.min(axis=1), apart.min(axis=0)
    hd95_mm, asd_mm = surface_distances(a, b, SPACING_MM)
    assert hd95_mm == pytest.approx(max(np.percentile(there, 95), np.percentile(back, 95)), rel=1e-5)
    assert asd_mm == pytest.approx(np.concatenate([there, back]).mean(), rel=1e-5)
    assert surface_distances(b, a, SPACING_MM) == pytest.approx((hd95_mm, asd_mm))


@pytest.mark.filterwarnings("ignore:monai.metrics.utils:FutureWarning")  # MONAI calls itself in a deprecated way
def test_surface_distances_equal_monais() -> None:
    from monai.metrics.hausdorff_distance import compute_hausdorff_distance
    from monai.metrics.surface_distance import compute_average_surface_distance

    a, b = blob(7), blob(8)
    x, y = (torch.from_numpy(m)[None, None] for m in (a, b))
    hd95_mm = compute_hausdorff_distance(x, y, True, percentile=95, spacing=SPACING_MM)
    asd_mm = compute_average_surface_distance(x, y, True, symmetric=True, spacing=SPACING_MM)
    assert surface_distances(a, b, SPACING_MM) == pytest.approx((hd95_mm.item(), asd_mm.item()), rel=1e-5)


def test_surface_distances_of_a_shift_and_of_nothing() -> None:
    a = np.zeros((6, 20, 20), dtype=bool)
    a[2:4, 5:9, 5:9] = True
    assert surface_distances(a, a, SPACING_MM) == (0.0, 0.0)
    hd95_mm, _ = surface_distances(a, np.roll(a, 2, axis=0), SPACING_MM)
    assert hd95_mm == pytest.approx(2 * SPACING_MM[0])
    assert all(math.isnan(d) for d in surface_distances(a, np.zeros_like(a), SPACING_MM))
    assert all(math.isnan(d) for d in surface_distances(np.zeros_like(a), np.zeros_like(a), SPACING_MM))
