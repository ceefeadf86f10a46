"""The drawing that page and server exchange: a label map in the structures' order, gzipped.

One uint8 a voxel, x fastest: 0 nothing, k the k-th structure, K + 1 background.
"""

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from discoseg.errors import UserError

MOST_STRUCTURES = 253  # of uint8, nothing and background take two, and a label map's ignore value one
_GZIP = 31  # zlib's number for a gzip stream


@dataclass(frozen=True)
class Palette:
    """Which value of label maps each number of a drawing stands for."""

    values: tuple[int, ...]  # of the structures, in their order
    ignore: int

    def encode(self, labels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return label values as numbers of a drawing; a structure that is not in it is nothing.

        >>> Palette((3, 1), ignore=4).encode(np.array([0, 1, 2, 3, 4], np.uint8))
        array([3, 2, 0, 1, 0], dtype=uint8)
        """
        table = np.zeros(256, np.uint8)
        table[0] = len(self.values) + 1
        table[list(self.values)] = np.arange(1, len(self.values) + 1)
        return table[labels]

    def decode(self, drawing: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return numbers of a drawing as label values.

        >>> Palette((3, 1), ignore=4).decode(np.array([0, 1, 2, 3], np.uint8))
        array([4, 3, 1, 0], dtype=uint8)
        """
        return np.array([self.ignore, *self.values, 0], np.uint8)[drawing]


def pack(drawing: NDArray[np.uint8]) -> bytes:
    """Return a (z, y, x) drawing as the page reads it."""
    return gzip.compress(np.ascontiguousarray(drawing).data, compresslevel=1, mtime=0)


def most_packed(shape: Sequence[int]) -> int:
    """Return how many bytes a packed drawing of ``shape`` can have: gzip adds little even to noise."""
    voxels = int(np.prod(shape))
    return voxels + voxels // 1000 + 1024


def unpack(body: bytes, shape: tuple[int, ...], palette: Palette) -> NDArray[np.uint8]:
    """Return the (z, y, x) drawing that a body holds; never unpacks more than ``shape`` has voxels, and one."""
    voxels = int(np.prod(shape))
    stream = zlib.decompressobj(_GZIP)
    try:
        content = stream.decompress(body, voxels + 1)
    except zlib.error as error:
        raise UserError(f"the drawing is not gzipped: {error}") from error
    if len(content) != voxels or not stream.eof or stream.unused_data:
        raise UserError(f"the drawing has another number of voxels than its image, {voxels}, or is not whole")
    drawing = np.frombuffer(content, np.uint8).reshape(shape)
    highest = len(palette.values) + 1
    if drawing.max() > highest:
        raise UserError(f"the drawing has the value {drawing.max()}; {highest} is background and the highest")
    return drawing
