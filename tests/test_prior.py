"""What the bench of the boundary prior says of structures whose cheapest border is known."""

import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.ndimage import binary_dilation, binary_erosion, generate_binary_structure

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

from discoseg.config import CrfConfig
from discoseg.regions import contrast_grid
from discoseg.weak.examples import Example
from prior import cut_truth, move_contours, print_moved, true_mask

CROSS = generate_binary_structure(2, 1)[None]  # in a slice
MOVES = [-3, -2, -1, 0, 1, 2]


def make_cylinder(outside: int = 0) -> Example:
    """Return a cylinder in three of five slices, bright up to so many pixels outside of its mask's contour."""
    y, x = np.indices((32, 32)) - 16
    truth = np.zeros((5, 32, 32), np.int8)
    truth[1:4] = np.hypot(y, x) <= 9
    change = binary_dilation if outside > 0 else binary_erosion
    bright = change(truth, CROSS, iterations=abs(outside)) if outside else truth == 1
    image = np.where(bright, np.float32(0.8), np.float32(0.2))[:, None]
    seeds = np.full_like(truth, -1)
    seeds[[0, 4]], seeds[2, 16, 16] = 0, 1
    return Example("cylinder", image, seeds, truth, (1.5, 1.5, 1.5))


def slides(capsys: pytest.CaptureFixture[str], examples: list[Example], crf: CrfConfig, sigma: float) -> list[str]:
    """Return where the printed table says contours slide to, relative to the masks' size, and how many do not stop."""
    print_moved(examples, crf, [sigma], MOVES)
    return [cell.strip() for cell in capsys.readouterr().out.splitlines()[-1].split("|")[-3:-1]]


def ratio(example: Example, pixels: int) -> float:
    return np.count_nonzero(move_contours(true_mask(example), pixels)) / np.count_nonzero(true_mask(example))


@pytest.mark.parametrize(
    ("outside", "widen", "end"), [(-2, 0, -2), (-2, 1, -1), (-1, 0, -1), (-1, 1, 0), (0, 0, 0), (1, 0, 1)]
)
def test_contours_slide_to_the_steepest_edge_of_the_image_that_counts(
    outside: int, widen: int, end: int, capsys: pytest.CaptureFixture[str]
) -> None:
    example = make_cylinder(outside)
    found = slides(capsys, [example], CrfConfig(widen=widen), 0.3)
    assert found == [f"{ratio(example, end):.2f} ± 0.00", "0 of 1"]


def test_contours_do_not_stop_where_no_edge_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    assert slides(capsys, [make_cylinder(-1)], CrfConfig(), 100.0) == ["–", "1 of 1"]


def test_means_are_of_the_volumes_whose_contours_stop(capsys: pytest.CaptureFixture[str]) -> None:
    near, far = make_cylinder(-1), make_cylinder(-2)
    mean, half = (ratio(near, -1) + ratio(far, -2)) / 2, (ratio(near, -1) - ratio(far, -2)) / 2
    beyond = make_cylinder(-3)  # at the last of the moves: it might go on
    assert slides(capsys, [near, far, beyond], CrfConfig(), 0.3) == [f"{mean:.2f} ± {half:.2f}", "1 of 3"]


@pytest.mark.parametrize(("factor", "kept"), [(0.9, True), (1.1, False)])
def test_a_cut_drops_what_its_border_costs_more_than(factor: float, kept: bool) -> None:
    example = make_cylinder()
    assert example.truth is not None
    spot = np.zeros(example.truth.shape, bool)
    spot[1:4, 3, 3] = True  # of the mask as well, in dark surroundings
    example.truth[spot] = 1
    grid = contrast_grid(example.image[:, 0], example.spacing_mm, CrfConfig(sigma=0.1))
    gain = 0.5 * np.count_nonzero(spot)  # of what belongs to the mask, in units of the unaries
    strength = factor * gain / grid.energy(spot, np.zeros(spot.shape), strength=1)
    whole, lost = np.count_nonzero(example.truth), 0 if kept else np.count_nonzero(spot)
    dice, size = cut_truth([example], CrfConfig(strength=strength, sigma=0.1))
    assert size == pytest.approx((whole - lost) / whole)
    assert dice == pytest.approx(2 * (whole - lost) / (2 * whole - lost))


def move_by_force(mask: NDArray[np.bool_], pixels: int) -> NDArray[np.bool_]:
    """Move the contour of a slice: to what is near the mask, or, if negative, what is far from everything else."""
    inside, outside = np.argwhere(mask), np.argwhere(~mask)
    moved = np.zeros_like(mask)
    for place in np.ndindex(mask.shape):
        if pixels > 0:
            moved[place] = np.hypot(*(inside - place).T).min() <= pixels
        else:
            moved[place] = mask[place] and np.hypot(*(outside - place).T).min() > -pixels
    return moved


@pytest.mark.parametrize("pixels", [-3, -1, 0, 1, 2])
def test_moved_contours_equal_brute_force(pixels: int) -> None:
    mask = true_mask(make_cylinder())
    mask[3, 4, 4:7] = True  # one slice differs
    moved = move_contours(mask, pixels)
    assert not moved[[0, 4]].any()
    for k in (1, 3):
        np.testing.assert_array_equal(moved[k], move_by_force(mask[k], pixels))
