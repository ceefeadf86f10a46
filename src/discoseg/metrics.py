"""How well a mask agrees with its reference: overlap and surface distances."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor


def dice(mask: NDArray[np.bool_], truth: NDArray[np.bool_]) -> float:
    """Return 2|A∩B| / (|A|+|B|) of two masks of one shape; two empty masks agree perfectly: 1.

    >>> dice(np.array([True, True, False]), np.array([True, False, False]))
    0.6666666666666666
    """
    total = int(np.count_nonzero(mask)) + int(np.count_nonzero(truth))
    return 2 * int(np.count_nonzero(mask & truth)) / total if total else 1.0


def count_overlap(mask: Tensor, truth: Tensor) -> Tensor:
    """Count the voxels (3, N) int64 of each slice that both masks (N, H, W) bool share, of the first, of the second."""
    import torch

    return torch.stack([voxels.sum(dim=(1, 2)) for voxels in (mask & truth, mask, truth)])


def dice_by_volume(counts: Tensor) -> Tensor:
    """Return the 3D Dice (…, V) of what `count_overlap` counts, summed by volume, (…, 3, V). Both empty: 1."""
    common, size, true = counts.unbind(dim=-2)
    total = size + true
    return (2 * common / total.clamp(min=1)).where(total > 0, 1.0)


def surface_distances(
    mask: NDArray[np.bool_], truth: NDArray[np.bool_], spacing_mm: tuple[float, ...]
) -> tuple[float, float]:
    """Return the 95 % Hausdorff and the average symmetric surface distance in mm; nan for an empty mask.

    The surface of a mask (z, y, x) is its voxels with a face neighbour outside. HD95 is the larger of the two
    directed 95th percentiles, the average runs over the distances of both directions together.
    """
    if not mask.any() or not truth.any():
        return math.nan, math.nan
    from monai.metrics.utils import get_mask_edges, get_surface_distance

    box = _bounding_box(mask | truth)  # MONAI's own cropping copies the whole volume several times
    edges, truth_edges = get_mask_edges(mask[box], truth[box], crop=False)
    there = get_surface_distance(edges, truth_edges, spacing=spacing_mm)
    back = get_surface_distance(truth_edges, edges, spacing=spacing_mm)
    hd95_mm = max(np.percentile(there, 95), np.percentile(back, 95))
    return float(hd95_mm), float(np.concatenate([there, back]).mean())


def _bounding_box(mask: NDArray[np.bool_]) -> tuple[slice, ...]:
    axes = range(mask.ndim)
    used = [np.flatnonzero(mask.any(axis=tuple(a for a in axes if a != axis))) for axis in axes]
    return tuple(slice(int(u[0]), int(u[-1]) + 1) for u in used)
