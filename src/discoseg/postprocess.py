"""What may be done to a label map after prediction: keep the largest piece of each structure, fill its holes.

Voxels count, not millimetres. Those that share a face, an edge or a corner are connected (26 neighbours); a hole is
therefore what voxels that share faces (6 neighbours) do not connect with the border of the volume.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage


@dataclass(frozen=True)
class Postprocessing:
    """What to do to a label map, in this order; by default nothing."""

    largest_component: bool = False
    fill_holes: bool = False

    def apply(self, labels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the label map (z, y, x) with each of its structures treated; 0 is background."""
        structures = [int(value) for value in np.unique(labels) if value]
        if self.largest_component:
            for value in structures:
                labels = np.where((labels == value) & ~largest_component(labels == value), 0, labels).astype(np.uint8)
        if self.fill_holes:
            for value in structures:  # another structure inside is no hole
                labels = np.where((labels == 0) & fill_holes(labels == value), value, labels).astype(np.uint8)
        return labels


NO_POSTPROCESSING = Postprocessing()


def largest_component(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the piece of a mask (z, y, x) with the most voxels, of equal ones the first; 26 neighbours.

    >>> largest_component(np.array([[[1, 0, 1, 1, 0, 1]]], bool)).astype(int)
    array([[[0, 0, 1, 1, 0, 0]]])
    """
    pieces, count = ndimage.label(mask, structure=np.ones((3, 3, 3), bool))
    if count < 2:
        return mask
    sizes = np.bincount(pieces.ravel())
    return np.asarray(pieces == 1 + sizes[1:].argmax())


def fill_holes(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a mask (z, y, x) with what it encloses; a hole that reaches the first or last slice stays one."""
    return np.asarray(ndimage.binary_fill_holes(mask))
