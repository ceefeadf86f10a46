"""The image that contrast counts in: wider bright structures, and where that puts the cheapest border."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.ndimage import binary_dilation, binary_erosion, generate_binary_structure, grey_dilation

from discoseg.config import CrfConfig
from discoseg.discrete.contrast import widen_bright
from discoseg.errors import UserError
from discoseg.material import Material
from discoseg.regions import contrast_grid
from discoseg.weak.examples import Example

CROSS = generate_binary_structure(2, 1)[None]  # in a slice
SPACING_MM = (8.0, 1.5, 1.5)


def make_disc(radius: float, side: int = 24) -> NDArray[np.bool_]:
    y, x = np.indices((side, side)) - side // 2
    return np.stack([np.hypot(y, x) <= radius, np.hypot(y, x) <= radius - 1])


@given(st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 6)), st.integers(0, 3), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_widening_is_grey_dilation_in_slices(shape: tuple[int, int, int], pixels: int, seed: int) -> None:
    image = np.random.default_rng(seed).random(shape).astype(np.float32)
    before, expected = image.copy(), image
    for _ in range(pixels):
        expected = grey_dilation(expected, footprint=CROSS)
    np.testing.assert_array_equal(widen_bright(image, pixels), expected)
    np.testing.assert_array_equal(widen_bright(-image, -pixels), -expected)
    np.testing.assert_array_equal(image, before)


def cheapest(image: NDArray[np.float32], mask: NDArray[np.bool_], widen: int) -> int:
    """Return by how many pixels the mask must grow, or shrink if negative, for the cheapest border."""
    moved = {0: mask}
    for pixels in (1, 2):
        moved[pixels] = binary_dilation(mask, CROSS, iterations=pixels)
        moved[-pixels] = binary_erosion(mask, CROSS, iterations=pixels)
    grid = contrast_grid(image, SPACING_MM, CrfConfig(sigma=0.1, widen=widen))
    nothing = np.zeros(mask.shape)
    return min(moved, key=lambda pixels: grid.energy(moved[pixels], nothing, strength=1))


def test_the_cheapest_border_moves_outwards_by_the_pixels_that_bright_structures_are_widened() -> None:
    mask = make_disc(7)
    shared = mask & ~binary_erosion(mask, CROSS)  # pixels of both, which the mask includes
    image = np.where(mask, np.float32(0.6), np.float32(0.2))
    image[shared] = 0.25
    assert [cheapest(image, mask, widen) for widen in (0, 1, 2)] == [-1, 0, 1]
    dark = np.float32(1) - image
    assert [cheapest(dark, mask, widen) for widen in (0, -1, -2)] == [-1, 0, 1]


def test_a_box_is_cut_out_of_the_widened_image() -> None:
    image = np.random.default_rng(1).random((3, 9, 8)).astype(np.float32)
    box = slice(1, 3), slice(2, 7), slice(0, 5)
    crf, unary = CrfConfig(sigma=0.2, widen=1), np.random.default_rng(2).normal(size=(2, 5, 5))
    part = contrast_grid(image, SPACING_MM, crf, box)
    whole = contrast_grid(np.ascontiguousarray(widen_bright(image, 1)[box]), SPACING_MM, CrfConfig(sigma=0.2))
    assert (part.cut(unary, strength=3) == whole.cut(unary, strength=3)).all()
    assert part.energy(unary < 0, unary, strength=3) == whole.energy(unary < 0, unary, strength=3)


def test_trainings_that_share_volumes_share_no_grids_of_another_image(examples: list[Example]) -> None:
    with Material(examples[:2], [], torch.device("cpu")) as material:
        narrow, wide, again = (
            material.regions(CrfConfig(sigma=0.1, widen=widen), honour_seeds=False) for widen in (0, 1, 1)
        )
    assert wide is again
    for example, region, other in zip(examples, wide, narrow, strict=False):
        mask, nothing = np.equal(example.seeds, 1), np.zeros(example.seeds.shape)
        expected = contrast_grid(example.image[:, 0], example.spacing_mm, CrfConfig(sigma=0.1, widen=1))
        weight = region.grid().energy(mask, nothing, strength=1)
        assert weight == expected.energy(mask, nothing, strength=1)
        assert weight != other.grid().energy(mask, nothing, strength=1)


def test_how_far_is_bounded() -> None:
    CrfConfig(widen=-16)
    with pytest.raises(UserError, match=r"--crf\.widen -17 must be -16 to 16"):
        CrfConfig(widen=-17)
    with pytest.raises(UserError, match=r"--crf\.widen 17 must be -16 to 16"):
        CrfConfig(widen=17)
