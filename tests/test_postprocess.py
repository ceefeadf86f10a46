"""Post-processing of label maps, against small volumes that can be checked by eye."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from discoseg.postprocess import Postprocessing, fill_holes, largest_component


def block(*corners: tuple[slice, slice, slice], shape: tuple[int, int, int] = (7, 9, 9)) -> np.ndarray:
    """A mask of boxes."""
    mask = np.zeros(shape, bool)
    for corner in corners:
        mask[corner] = True
    return mask


LARGE = (slice(1, 6), slice(1, 6), slice(1, 6))
STRAY = (slice(0, 2), slice(7, 9), slice(7, 9))


def test_the_largest_piece_stays() -> None:
    assert np.array_equal(largest_component(block(LARGE, STRAY)), block(LARGE))


def test_a_corner_connects() -> None:
    mask = np.zeros((2, 2, 2), bool)
    mask[0, 0, 0] = mask[1, 1, 1] = True
    assert np.array_equal(largest_component(mask), mask)


def test_of_equal_pieces_the_first_stays() -> None:
    mask = np.array([[[1, 0, 1]]], bool)
    assert largest_component(mask).tolist() == [[[True, False, False]]]


@pytest.mark.parametrize("treat", [largest_component, fill_holes])
def test_nothing_and_everything_stay(treat: object) -> None:
    for mask in (np.zeros((3, 4, 5), bool), np.ones((3, 4, 5), bool)):
        assert np.array_equal(treat(mask), mask)  # type: ignore[operator]


def test_enclosed_holes_are_filled_and_open_ones_stay() -> None:
    whole = block(LARGE)
    hollow = whole.copy()
    hollow[3, 3, 3] = False
    assert np.array_equal(fill_holes(hollow), whole)
    tunnel = whole.copy()
    tunnel[:, 3, 3] = False
    assert np.array_equal(fill_holes(tunnel), tunnel)


def test_a_hole_that_only_a_corner_opens_is_filled() -> None:
    mask = block(LARGE)
    mask[2:5, 2:5, 2:5] = False
    mask[1, 1, 1] = False  # touches the hole at one corner
    assert fill_holes(mask)[3, 3, 3]


def test_structures_are_treated_one_by_one() -> None:
    labels = np.where(block(LARGE), np.uint8(2), np.uint8(0))
    labels[2:5, 2:5, 2:5] = 0
    labels[3, 3, 3] = 5  # a structure inside the hole of another
    labels[STRAY] = 5  # its largest piece
    both = Postprocessing(largest_component=True, fill_holes=True).apply(labels)
    assert np.array_equal(both == 2, block(LARGE))
    assert np.array_equal(both == 5, block(STRAY))
    filled = Postprocessing(fill_holes=True).apply(labels)
    assert filled[3, 3, 3] == 5
    assert np.array_equal(filled == 2, block(LARGE) & (labels != 5))
    assert Postprocessing().apply(labels) is labels


@settings(max_examples=50, deadline=None)
@given(arrays(bool, (3, 4, 4), elements=st.booleans()))
def test_pieces_are_subsets_and_filled_masks_supersets(mask: np.ndarray) -> None:
    piece, filled = largest_component(mask), fill_holes(mask)
    assert not (piece & ~mask).any()
    assert not (mask & ~filled).any()
    assert np.array_equal(largest_component(piece), piece)
    assert np.array_equal(fill_holes(filled), filled)
