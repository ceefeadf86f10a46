"""Proposals of all volumes: cuts on the CPU while the device goes on, selections on the device itself.

What a cut needs of a volume is the box around its unknown voxels. It is copied to the host as soon as the volume's
probabilities are there, and cut by the next free core; the device meanwhile predicts further volumes.
"""

from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray

from discoseg.admm import Prior
from discoseg.config import CrfConfig
from discoseg.discrete import PottsGrid, select_by_size
from discoseg.discrete.potts import Box, box_around
from discoseg.selection import SizeSelector
from discoseg.weak.examples import Example


@dataclass(frozen=True)
class Region:
    """The part of a volume that its seeds leave open: ``slices`` of the stack, ``box`` within them.

    ``grid`` and ``seeds`` are those of the box; ``box`` is None where every voxel is known.
    """

    slices: slice
    box: Box | None
    grid: PottsGrid | None
    seeds: NDArray[np.int8] | None


def open_regions(examples: Sequence[Example], crf: CrfConfig, *, honour_seeds: bool) -> list[Region]:
    """Return where each volume must be cut; contrast is that of the image's first channel.

    Contrast weights are computed at a region's first cut and kept, so that trainings which share the regions share
    them too.
    """
    stops = list(accumulate(len(example.seeds) for example in examples))
    regions = []
    for example, stop in zip(examples, stops, strict=True):
        slices = slice(stop - len(example.seeds), stop)
        box: Box | None = (slice(None), slice(None), slice(None))
        if honour_seeds:
            unknown = example.seeds < 0
            box = box_around(unknown) if unknown.any() else None
        if box is None:
            regions.append(Region(slices, None, None, None))
            continue
        image = example.image[:, 0][box]
        grid = PottsGrid(image, spacing_mm=example.spacing_mm, sigma=crf.sigma, neighbours=crf.neighbours)
        regions.append(Region(slices, box, grid, np.ascontiguousarray(example.seeds[box]) if honour_seeds else None))
    return regions


class CrfProposer:
    """Cuts all volumes of an epoch, each as soon as its probabilities are there."""

    def __init__(self, regions: Sequence[Region], strength: float, pool: Executor, device: torch.device) -> None:
        """``strength`` is λ; the cuts run in ``pool``."""
        self._regions = regions
        self._strength = strength
        self._pool = pool
        pinned = device.type == "cuda"  # only then a copy runs beside the host's own work
        shapes = [None if region.grid is None else region.grid.shape for region in regions]
        self._unaries = [None if shape is None else torch.empty(shape, pin_memory=pinned) for shape in shapes]
        self._cuts: list[Future[NDArray[np.bool_]] | None] = []

    def start(self, probability: torch.Tensor, prior: Prior, until: int) -> None:
        """Cut the volumes that end before slice ``until`` and have not been started; ``probability`` is (N, H, W)."""
        while len(self._cuts) < len(self._regions) and self._regions[len(self._cuts)].slices.stop <= until:
            region, host = self._regions[len(self._cuts)], self._unaries[len(self._cuts)]
            if region.box is None or host is None:
                self._cuts.append(None)
                continue
            s, u = probability[region.slices][region.box], prior.multiplier[region.slices][region.box]
            host.copy_(0.5 - s - u, non_blocking=True)
            there = None
            if probability.is_cuda:
                there = torch.cuda.Event(blocking=True)  # a thread that waits leaves its core to others
                there.record()
            self._cuts.append(self._pool.submit(_cut, region, host, self._strength / prior.mu, there))

    def finish(self, probability: torch.Tensor, prior: Prior, seeds: torch.Tensor | None) -> torch.Tensor:
        """Return the CRF proposals ŷ of all volumes, (N, H, W) bool; ``seeds`` (N, H, W) where they are honoured."""
        self.start(probability, prior, len(probability))
        proposal = torch.zeros_like(probability, dtype=torch.bool) if seeds is None else seeds == 1
        for region, cut in zip(self._regions, self._cuts, strict=True):
            if cut is not None:
                proposal[region.slices][region.box] = torch.from_numpy(cut.result()).to(proposal.device)
        self._cuts = []
        return proposal


def _cut(region: Region, unary: torch.Tensor, strength: float, there: torch.cuda.Event | None) -> NDArray[np.bool_]:
    assert region.grid is not None
    if there is not None:
        there.synchronize()
    return region.grid.cut(unary.numpy(), strength=strength, seeds=region.seeds)


class SizeProposer:
    """Selects the best voxels of all volumes within their bounds."""

    def __init__(self, examples: Sequence[Example], honour_seeds: bool, pool: Executor, device: torch.device) -> None:
        self._pool = pool
        self._bounds = [(e.bounds.low_vox, e.bounds.high_vox) for e in examples if e.bounds is not None]
        self._seeds = [example.seeds if honour_seeds else None for example in examples]
        self._depths = [len(example.seeds) for example in examples]
        # On a CPU numpy's partition, volume by volume, is several times faster than histograms.
        self._selector = None
        if device.type == "cuda":
            shapes = [example.seeds.shape for example in examples]
            self._selector = SizeSelector(shapes, self._bounds, self._seeds, device)

    def start(self, probability: torch.Tensor, prior: Prior, until: int) -> None:
        """Do nothing yet: all volumes are selected at once."""

    def finish(self, probability: torch.Tensor, prior: Prior, seeds: torch.Tensor | None) -> torch.Tensor:
        """Return the size proposals ỹ of all volumes, (N, H, W) bool; ``seeds`` (N, H, W) where they are honoured."""
        utility = probability + prior.multiplier - 0.5
        if self._selector is not None:
            return self._selector.select(utility, seeds)
        volumes = np.split(utility.numpy(), np.cumsum(self._depths)[:-1])

        def select(
            values: NDArray[np.float32], bounds: tuple[int, int], fixed: NDArray[np.int8] | None
        ) -> NDArray[np.bool_]:
            return select_by_size(values, *bounds, seeds=fixed)

        return torch.from_numpy(np.concatenate(list(self._pool.map(select, volumes, self._bounds, self._seeds))))
