"""Proposals of several structures: every voxel of a volume gets one of them or the background, on the CPU's cores.

As with one structure (:mod:`discoseg.proposals`), a volume is solved as soon as its probabilities are there, in the box
around its unknown voxels.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray

from discoseg.admm import Prior
from discoseg.config import AdmmConfig
from discoseg.data.memory import BOUNDLESS, Memory
from discoseg.discrete import assign_by_size, label_by_expansion
from discoseg.discrete.odds import shift_to_sizes
from discoseg.regions import Region, stack_places
from discoseg.waiting import await_cases
from discoseg.weak.examples import Example

Solve = Callable[[int, Region, NDArray[np.float32], float], NDArray[np.int8]]
"""Takes a volume's number, its region, costs (1 + K, z, y, x) in its box, background first, and μ; returns labels."""


class LabelProposer:
    """Labels all volumes of an epoch, each as soon as its probabilities are there."""

    def __init__(
        self,
        regions: Sequence[Region],
        structures: int,
        solve: Solve,
        pool: Executor,
        device: torch.device,
        *,
        turns: Sequence[int] | None = None,
        memory: Memory = BOUNDLESS,
    ) -> None:
        """``turns`` are the volumes in the order in which they are predicted, by default that of ``regions``."""
        self._turns = list(range(len(regions)) if turns is None else turns)
        self._regions, self._solve, self._pool, self._device = regions, solve, pool, device
        ordered = [regions[index] for index in self._turns]
        self._ends = list(accumulate(region.slices.stop - region.slices.start for region in ordered))
        self._stops = [0, *accumulate(math.prod(region.shape) for region in ordered)]
        self._places = stack_places(ordered, device, memory)
        voxels, shape = self._stops[-1], (self._ends[-1], *regions[0].plane)
        if device.type == "cuda":
            self._costs = torch.empty(1 + structures, voxels, pin_memory=True)
            self._labels = torch.empty(voxels, dtype=torch.int8, pin_memory=True)
        else:
            self._costs = memory.tensor((1 + structures, voxels), torch.float32, device)
            self._labels = memory.tensor((voxels,), torch.int8, device)
        self._costs[0] = 0  # of the background
        self._stack = memory.tensor(shape, torch.int8, device)  # of labels
        self._proposal = memory.tensor((structures, *shape), torch.bool, device)
        self._jobs: list[tuple[str, Future[None]]] = []
        self._started = 0

    def start(self, probability: torch.Tensor, prior: Prior | None, done: int) -> None:
        """Solve the volumes that have not been started and are among the first ``done`` slices predicted.

        ``probability`` is (K, N, H, W). Without a ``prior`` there are no multipliers, and μ is 1.
        """
        first, last = self._started, bisect_right(self._ends, done)
        if first == last:
            return
        part = slice(self._stops[first], self._stops[last])
        places = self._places[part]
        values = probability.flatten(1)[:, places]
        if prior is not None:
            values = values + prior.multiplier.flatten(1)[:, places]
        new = (1 - values - values.sum(dim=0)) / 2
        # Row by row: together they are not contiguous, and such a copy waits for the device.
        for row, costs in zip(self._costs[1:], new, strict=True):
            row[part].copy_(costs, non_blocking=True)
        there = None
        if probability.is_cuda:
            there = torch.cuda.Event(blocking=True)
            there.record()
        mu = 1.0 if prior is None else prior.mu
        for turn in range(first, last):
            if self._regions[self._turns[turn]].box is not None:
                name = self._regions[self._turns[turn]].name
                self._jobs.append((name, self._pool.submit(self._label, turn, mu, there)))
        self._started = last

    def finish(
        self,
        probability: torch.Tensor,
        prior: Prior | None,
        seeds: torch.Tensor | None,
        tick: Callable[[], None] = lambda: None,
    ) -> torch.Tensor:
        """Return the proposals of all volumes, (K, N, H, W) bool; ``seeds`` (N, H, W) where they are honoured.

        The next ones are written in their place. ``tick`` is called now and then while cores solve.
        """
        self.start(probability, prior, probability.shape[1])
        await_cases(self._jobs, tick)
        self._jobs, self._started = [], 0
        labels = self._stack.zero_() if seeds is None else torch.clamp(seeds, min=0, out=self._stack)
        labels.view(-1)[self._places] = self._labels.to(self._device, non_blocking=True)
        for number, mask in enumerate(self._proposal, start=1):
            torch.eq(labels, number, out=mask)
        return self._proposal

    def foresee(self, probability: torch.Tensor, prior: Prior, settled: torch.cuda.Event | None = None) -> None:
        """Do nothing: only cuts of one structure can begin with a guess."""

    def _label(self, turn: int, mu: float, there: torch.cuda.Event | None) -> None:
        if there is not None:
            there.synchronize()
        index = self._turns[turn]
        region, part = self._regions[index], slice(self._stops[turn], self._stops[turn + 1])
        costs = self._costs[:, part].numpy().reshape(len(self._costs), *region.shape)
        self._labels[part] = torch.from_numpy(self._solve(index, region, costs, mu).reshape(-1))


Limits = tuple[list[int], list[int]]
"""How many of the voxels that seeds leave open the background and each structure get, least and most."""


def expansion(
    strength: float, pairs: NDArray[np.float64] | None = None, limits: Sequence[Limits] | None = None
) -> Solve:
    """Return what finds the CRF proposal by α-expansion; ``strength`` is λ, ``pairs`` (1 + K, 1 + K) its factors.

    With the ``limits`` of each volume, its probabilities are first shifted to them.
    """

    def solve(index: int, region: Region, costs: NDArray[np.float32], mu: float) -> NDArray[np.int8]:
        if limits is not None:
            costs = shift_to_sizes(costs, *_limits_in_box(limits[index], region), seeds=region.seeds)
        found = label_by_expansion(region.grid(), costs, strength=strength / mu, seeds=region.seeds, pairs=pairs)
        return found.labels

    return solve


def assignment(limits: Sequence[Limits]) -> Solve:
    """Return what finds the size proposal within the ``limits`` of each volume."""

    def solve(index: int, region: Region, costs: NDArray[np.float32], mu: float) -> NDArray[np.int8]:
        return assign_by_size(-costs, *_limits_in_box(limits[index], region), seeds=region.seeds)

    return solve


def open_limits(example: Example, admm: AdmmConfig) -> Limits:
    """Return the limits of a volume's structures, ``admm.margin`` inside its bounds."""
    low, high = _limits_inside(example, admm, admm.margin)
    if sum(low) > high[0]:  # with the margin structures do not fit together: they do without
        low, high = _limits_inside(example, admm, 0.0)
    return low, high


def _limits_in_box(limits: Limits, region: Region) -> Limits:
    """Return limits that count the seeds of the region's box as well, which are some of the volume's only."""
    low, high = limits
    if region.seeds is None:
        return low, high
    seeded = np.bincount(region.seeds[region.seeds >= 0], minlength=len(low)).tolist()
    return [a + b for a, b in zip(low, seeded, strict=True)], [a + b for a, b in zip(high, seeded, strict=True)]


def _limits_inside(example: Example, admm: AdmmConfig, margin: float) -> Limits:
    assert example.bounds is not None
    seeds = example.seeds if admm.honour_seeds else np.full_like(example.seeds, -1)
    unknown = int(np.count_nonzero(seeds < 0))
    low, high = [0], [unknown]
    for number, bounds in enumerate(example.bounds, start=1):
        own = np.where(seeds > 0, seeds == number, seeds).astype(np.int8)
        inside, seeded = bounds.inside(margin, own), int(np.count_nonzero(own == 1))
        low.append(max(inside.low_vox - seeded, 0))
        high.append(min(inside.high_vox - seeded, unknown))
    return low, high
