"""Where volumes must be cut: the box around what seeds leave open, its grid, and its place in the stack of slices."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray

from discoseg.config import CrfConfig
from discoseg.data.memory import BOUNDLESS, Memory
from discoseg.discrete import PottsGrid
from discoseg.discrete.contrast import widen_bright
from discoseg.discrete.potts import Box, box_around
from discoseg.weak.examples import Example


@dataclass(frozen=True)
class Region:
    """The part of the volume ``name`` that its seeds leave open: ``slices`` of the stack, ``box`` within them.

    ``plane`` is (H, W) of a slice; ``box`` is None where every voxel is known. ``seeds`` are those of the box, and so
    is the grid, which ``make_grid`` makes anew for each cut unless it is ``kept``.
    """

    name: str
    slices: slice
    plane: tuple[int, int]
    box: Box | None
    make_grid: Callable[[], PottsGrid]
    kept: PottsGrid | None
    seeds: NDArray[np.int8] | None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the box, (z, y, x)."""
        return (0, 0, 0) if self.box is None else tuple(part.stop - part.start for part in self.box)

    def grid(self) -> PottsGrid:
        """Return the grid of the box."""
        return self.make_grid() if self.kept is None else self.kept

    def places(self) -> NDArray[np.int64]:
        """Return where the box's voxels lie in the flat stack of slices (N, H, W), (voxels,)."""
        if self.box is None:
            return np.empty(0, np.int64)
        rows, columns = self.plane
        z, y, x = (np.arange(part.start, part.stop) for part in self.box)
        planes = (self.slices.start + z) * (rows * columns)
        return (planes[:, None, None] + (y * columns)[:, None] + x).ravel()


def open_regions(
    examples: Sequence[Example], crf: CrfConfig, *, honour_seeds: bool, memory: Memory = BOUNDLESS
) -> list[Region]:
    """Return where each volume must be cut; contrast is that of the image's first channel.

    Contrast weights are computed at a region's first cut and kept, so that trainings which share the regions share
    them too; those that ``memory`` has no room for are computed for every cut.
    """
    stops = list(accumulate(len(example.seeds) for example in examples))
    regions = []
    for example, stop in zip(examples, stops, strict=True):
        slices = slice(stop - len(example.seeds), stop)
        depth, rows, columns = example.seeds.shape
        box: Box | None = (slice(0, depth), slice(0, rows), slice(0, columns))
        if honour_seeds:
            unknown = example.seeds < 0
            box = box_around(unknown) if unknown.any() else None
        make = partial(contrast_grid, example.image[:, 0], example.spacing_mm, crf, box)
        kept = make() if box is not None and memory.reserve(_grid_bytes(example.seeds[box].size, crf)) else None
        seeds = example.seeds[box] if honour_seeds and box is not None else None
        if kept is not None and seeds is not None:
            seeds = np.ascontiguousarray(seeds)
        regions.append(Region(example.name, slices, (rows, columns), box, make, kept, seeds))
    return regions


def contrast_grid(
    image: NDArray[np.float32], spacing_mm: tuple[float, float, float], crf: CrfConfig, box: Box | None = None
) -> PottsGrid:
    """Return the boundary prior's grid of an image (z, y, x) in [0, 1], or of a ``box`` of it."""
    seen = widen_bright(image, crf.widen, box)
    return PottsGrid(seen, spacing_mm=spacing_mm, sigma=crf.sigma, neighbours=crf.neighbours)


def _grid_bytes(voxels: int, crf: CrfConfig) -> int:
    """Return what a grid keeps: a weight for each pair of neighbours, their sums, the image, and what is open."""
    return (4 * (crf.neighbours // 2) + 12) * voxels


def stack_places(regions: Sequence[Region], device: torch.device, memory: Memory) -> torch.Tensor:
    """Return where the voxels of all regions, one behind the other, lie in the stack of slices, (voxels,) int64."""
    places = memory.tensor((sum(math.prod(region.shape) for region in regions),), torch.int64, device)
    start = 0
    for region in regions:
        own = torch.from_numpy(region.places())
        places[start : start + len(own)] = own
        start += len(own)
    return places
