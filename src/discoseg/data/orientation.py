"""Axis codes ("LPS") of an affine, and the turns between them as flips and permutations of an array.

Codes name where the voxel axes x, y, z point to, as in nibabel: R/L, A/P, S/I. World coordinates are RAS+ mm.
"""

from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from discoseg.errors import UserError

POSITIVE, NEGATIVE = "RAS", "LPI"

# A volume turned by exactly 45° has two equally good codes. Seen through this rotation by about 0.02° it
# always gets the same one, however its axes are flipped and permuted.
TIE_BREAK = np.eye(3) + 1e-4 * np.array([[0.0, -3.0, 2.0], [3.0, 0.0, -1.0], [-2.0, 1.0, 0.0]])


def axis_codes(affine: NDArray[np.float64]) -> str:
    """Return the codes of the world axes nearest to the voxel axes x, y, z of a (4, 4) affine.

    >>> axis_codes(np.diag([-1.5, -1.5, 10.0, 1.0]))
    'LPS'
    """
    edges = affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0)
    cosines = TIE_BREAK @ edges  # (world axis, voxel axis)
    world = max(permutations(range(3)), key=lambda axes: sum(abs(cosines[axes[v], v]) for v in range(3)))
    return "".join((POSITIVE if cosines[w, v] > 0 else NEGATIVE)[w] for v, w in enumerate(world))


def require_codes(codes: str) -> None:
    """Refuse what does not name each of the three world axes once."""
    if len(codes) != 3 or sorted(_world_axis(code) for code in codes) != [0, 1, 2]:
        raise UserError(f"orientation {codes!r} must have one of L/R, one of A/P and one of I/S, such as LPS")


def turn_matrix(start: str, end: str, shape_xyz: tuple[int, ...]) -> NDArray[np.float64]:
    """Return the (4, 4) matrix from voxel indices after the turn to `end` to those before it, in `start`.

    `shape_xyz` is the shape in `start`. An affine A of the volume becomes A @ turn_matrix(...).
    """
    matrix = np.zeros((4, 4))
    matrix[3, 3] = 1.0
    for new, code in enumerate(end):
        old = _source_axis(start, code)
        if start[old] == code:
            matrix[old, new] = 1.0
        else:
            matrix[old, new] = -1.0
            matrix[old, 3] = shape_xyz[old] - 1.0
    return matrix


def turn_axes(start: str, end: str) -> tuple[int, ...]:
    """Return for each voxel axis x, y, z after the turn which axis it was before."""
    return tuple(_source_axis(start, code) for code in end)


def turn_array(array: NDArray, start: str, end: str) -> NDArray:
    """Return a (z, y, x) array in the codes `start` permuted and flipped to `end`; C-contiguous."""
    turned = array.T.transpose(turn_axes(start, end))  # (x, y, z)
    flips = tuple(axis for axis, code in enumerate(end) if code not in start)
    return np.ascontiguousarray(np.flip(turned, flips).T)


def _world_axis(code: str) -> int:
    return max(POSITIVE.find(code), NEGATIVE.find(code))


def _source_axis(start: str, code: str) -> int:
    return [_world_axis(c) for c in start].index(_world_axis(code))
