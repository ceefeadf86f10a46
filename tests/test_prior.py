"""What the bench of the boundary prior says of structures whose cheapest border is known."""

import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.ndimage import binary_erosion, generate_binary_structure

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

from discoseg.config import CrfConfig
from discoseg.weak.examples import Example
from prior import cut_truth, move_contours, print_moved, true_mask

CROSS = generate_binary_structure(2, 1)[None]  # in a slice


@pytest.fixture
def shared() -> Example:
    """A cylinder in three of five slices, whose outermost pixels look like what is around it."""
    y, x = np.indices((32, 32)) - 16
    truth = np.zeros((5, 32, 32), np.int8)
    truth[1:4] = np.hypot(y, x) <= 9
    bright = binary_erosion(truth, CROSS)
    image = np.where(bright, np.float32(0.8), np.float32(0.2))[:, None]
    seeds = np.full_like(truth, -1)
    seeds[[0, 4]], seeds[2, 16, 16] = 0, 1
    return Example("cylinder", image, seeds, truth, (1.5, 1.5, 1.5))


def slides_to(capsys: pytest.CaptureFixture[str], example: Example, crf: CrfConfig) -> str:
    """Return the size relative to the mask's that the printed table says contours slide to."""
    print_moved([example], crf, [0.05], [-3, -2, -1, 0, 1])
    return capsys.readouterr().out.splitlines()[-1].split("|")[-3].strip()


def test_contours_slide_to_the_steepest_edge_of_the_image_that_counts(
    shared: Example, capsys: pytest.CaptureFixture[str]
) -> None:
    bright = np.count_nonzero(shared.image > 0.5) / np.count_nonzero(true_mask(shared))
    assert slides_to(capsys, shared, CrfConfig()) == f"{bright:.2f} ± 0.00"
    assert slides_to(capsys, shared, CrfConfig(widen=1)) == "1.00 ± 0.00"


def test_a_cut_keeps_a_true_mask_until_its_border_costs_more_than_the_mask(shared: Example) -> None:
    assert cut_truth([shared], CrfConfig(strength=0.0, sigma=0.05)) == (1.0, 1.0)
    dice, size = cut_truth([shared], CrfConfig(strength=1000.0, sigma=10.0))
    assert 0 < size < 0.01  # its seed is honoured
    assert 0 < dice < 0.01


@pytest.mark.parametrize("pixels", [-3, -1, 1, 2])
def test_moved_contours_are_those_of_larger_or_smaller_cylinders(shared: Example, pixels: int) -> None:
    y, x = np.indices((32, 32)) - 16
    moved = move_contours(true_mask(shared), pixels)
    assert not moved[[0, 4]].any()
    assert not (moved[2] & (np.hypot(y, x) > 10 + pixels)).any()
    assert moved[2][np.hypot(y, x) <= 8 + pixels].all()
