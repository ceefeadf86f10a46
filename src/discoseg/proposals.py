"""Proposals of all volumes: cuts on the CPU while the device goes on, selections on the device itself.

What a cut needs of a volume is the box around its unknown voxels. It is copied to the host as soon as the volume's
probabilities are there, and cut by the next free core; the device meanwhile predicts further volumes.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from discoseg.admm import Prior
from discoseg.config import AdmmConfig
from discoseg.data.memory import BOUNDLESS, Memory
from discoseg.discrete import Foresight, select_by_size
from discoseg.discrete.odds import shift_to_size
from discoseg.regions import Region, stack_places
from discoseg.replay import Replay
from discoseg.selection import SizeSelector
from discoseg.waiting import await_cases
from discoseg.weak.examples import Example

_MOST_FLOW_BYTES = 2**33  # of host memory that a training may take to keep its flows


class CrfProposer:
    """Cuts all volumes of an epoch, each as soon as its probabilities are there, for one structure.

    Beside a GPU the cores have nothing to do while the network trains. They then solve next epoch's cuts with this
    epoch's probabilities, so that only the change is left for when the new ones are there (:meth:`foresee`).

    The voxels of all regions lie behind each other in flat arrays, volume by volume in the order of prediction: what
    a batch completes is copied at once, by few calls, because the threads that cut contend for Python's lock.
    """

    def __init__(
        self,
        regions: Sequence[Region],
        strength: float,
        pool: Executor,
        device: torch.device,
        *,
        turns: Sequence[int] | None = None,
        foresee: bool = False,
        sizes: Sequence[tuple[int, int]] | None = None,
        memory: Memory = BOUNDLESS,
    ) -> None:
        """``strength`` is λ, which may change between epochs; ``foresee`` says whether cores are free for guesses.

        ``turns`` are the volumes in the order in which they are predicted, by default that of ``regions``. ``sizes``,
        if given, are how many voxels of each region, of those that seeds leave open, belong to the structure, at least
        and at most: costs are shifted accordingly (:func:`discoseg.discrete.odds.shift_to_size`).
        """
        order = range(len(regions)) if turns is None else turns
        self._turns = [regions[index] for index in order]
        self._sizes = [None if sizes is None else sizes[index] for index in order]
        self._ends = list(accumulate(region.slices.stop - region.slices.start for region in self._turns))
        self.strength = strength
        self._pool, self._device, self._memory = pool, device, memory
        # Of the regions' voxels in the flat arrays.
        self._stops = [0, *accumulate(math.prod(region.shape) for region in self._turns)]
        self._places = stack_places(self._turns, device, memory)
        self._proposal = memory.tensor((1, self._ends[-1], *regions[0].plane), torch.bool, device)
        self._costs = self._host_array(torch.float32)
        self._masks = self._host_array(torch.bool)
        self._foresights: list[Foresight | None] = [None] * len(self._turns)
        if foresee and sum(_flow_bytes(region) for region in self._turns) <= _MOST_FLOW_BYTES:
            self._foresights = [None if r.kept is None else r.kept.foresee(r.seeds) for r in self._turns]
        guesses = any(self._foresights)
        self._guessed = self._host_array(torch.float32) if guesses else torch.empty(0)
        self._guesses: list[Future[None] | None] = [None] * len(self._turns)
        # The stream on which the guesses' costs are copied.
        self._beside = torch.cuda.Stream(device) if guesses and device.type == "cuda" else None
        self._has_cut = False  # before the first cut there is nothing to guess from
        self._cuts: list[Future[None] | None] = []

    def start(self, probability: torch.Tensor, prior: Prior, done: int) -> None:
        """Cut the volumes that have not been started and are among the first ``done`` slices predicted.

        ``probability`` is (1, N, H, W).
        """
        first, last = len(self._cuts), bisect_right(self._ends, done)
        if first == last:
            return
        there = self._copy_costs(self._costs, probability, prior, first, last)
        for turn in range(first, last):
            region, guess, cut = self._turns[turn], self._guesses[turn], None
            if region.box is not None:
                if guess is not None and guess.cancel():  # one that has not begun would come too late
                    guess = None
                costs, mask = self._awaited(self._costs, turn, there), self._part(self._masks, turn)
                strength = self.strength / prior.mu
                cut = self._pool.submit(_cut, region, self._foresights[turn], guess, costs, mask, strength)
            self._cuts.append(cut)

    def finish(
        self,
        probability: torch.Tensor,
        prior: Prior,
        seeds: torch.Tensor | None,
        tick: Callable[[], None] = lambda: None,
    ) -> torch.Tensor:
        """Return the CRF proposals ŷ of all volumes, (1, N, H, W) bool; ``seeds`` (N, H, W) where they are honoured.

        The next ones are written in their place. ``tick`` is called now and then while cores cut.
        """
        self.start(probability, prior, probability.shape[1])
        proposal = self._proposal.zero_() if seeds is None else torch.eq(seeds[None], 1, out=self._proposal)
        cuts = zip(self._turns, self._cuts, strict=True)
        await_cases(((region.name, cut) for region, cut in cuts if cut is not None), tick)
        masks = self._masks.to(self._device, non_blocking=True)  # which is read before the residuals are
        proposal.view(-1)[self._places] = masks
        self._cuts = []
        self._has_cut = True
        return proposal

    def foresee(self, probability: torch.Tensor, prior: Prior, settled: torch.cuda.Event | None = None) -> None:
        """Begin the next cuts with the last probabilities (1, N, H, W) and the new multipliers, where cores are free.

        Steps of the training may be under way on the current stream: the costs are copied beside them, and what comes
        after the steps waits for the copies. ``settled`` has happened once probabilities and multipliers are there.
        """
        if not self._has_cut or not any(self._foresights):
            return
        if self._beside is not None and settled is not None:
            self._beside.wait_event(settled)
        with torch.cuda.stream(self._beside):
            there = self._copy_costs(self._guessed, probability, prior, 0, len(self._turns))
        if self._beside is not None:
            torch.cuda.current_stream().wait_stream(self._beside)
        for turn, foresight in enumerate(self._foresights):
            if foresight is not None:
                costs, strength = self._awaited(self._guessed, turn, there), self.strength / prior.mu
                self._guesses[turn] = self._pool.submit(_guess, foresight, costs, strength)

    def _host_array(self, dtype: torch.dtype) -> torch.Tensor:
        """Return a flat array of the regions' voxels; beside a GPU it is pinned, so that copies do not wait."""
        if self._device.type == "cuda":
            return torch.empty(self._stops[-1], dtype=dtype, pin_memory=True)
        return self._memory.tensor((self._stops[-1],), dtype, self._device)

    def _part(self, flat: torch.Tensor, turn: int) -> NDArray[Any]:
        """Return the part of a flat array on the host that is a region's, with its shape."""
        return flat[self._stops[turn] : self._stops[turn + 1]].numpy().reshape(self._turns[turn].shape)

    def _awaited(self, flat: torch.Tensor, turn: int, there: torch.cuda.Event | None) -> "Costs":
        """Return the costs of a region, which are in ``flat`` once ``there`` has happened."""
        return Costs(self._part(flat, turn), there, self._turns[turn].seeds, self._sizes[turn])

    def _copy_costs(
        self, host: torch.Tensor, probability: torch.Tensor, prior: Prior, first: int, last: int
    ) -> torch.cuda.Event | None:
        """Begin to copy the costs ½ − s − û of some turns to ``host``; return what tells when they are there."""
        part = slice(self._stops[first], self._stops[last])
        places = self._places[part]
        costs = 0.5 - probability.view(-1)[places] - prior.multiplier.view(-1)[places]
        host[part].copy_(costs, non_blocking=True)
        if not probability.is_cuda:
            return None
        there = torch.cuda.Event(blocking=True)  # a thread that waits leaves its core to others
        there.record()
        return there


def _flow_bytes(region: Region) -> int:
    """Return what keeping a region's flow takes (:class:`discoseg.discrete.Foresight`)."""
    return 0 if region.kept is None else (4 * region.kept.neighbours + 22) * math.prod(region.shape)


class Costs(NamedTuple):
    """The costs of a region's voxels, that may still be on their way to the host."""

    values: NDArray[np.float32]
    there: torch.cuda.Event | None
    seeds: NDArray[np.int8] | None
    size: tuple[int, int] | None

    def take(self) -> NDArray[np.float32]:
        """Wait for them, shift them in place where a size is known, and return them; to be called once."""
        if self.there is not None:
            self.there.synchronize()
        if self.size is not None:
            seeds = np.empty(0, np.int8) if self.seeds is None else self.seeds.reshape(-1)
            shift_to_size(self.values.reshape(-1), seeds, *self.size)
        return self.values


def _cut(
    region: Region,
    foresight: Foresight | None,
    guess: Future[None] | None,
    costs: Costs,
    mask: NDArray[np.bool_],
    strength: float,
) -> None:
    """Cut a region into ``mask`` once its ``costs`` are there; a ``guess`` under way is awaited first."""
    if guess is not None:
        guess.result()
    if foresight is not None:
        mask[:] = foresight.cut(costs.take(), strength=strength)
    else:
        mask[:] = region.grid().cut(costs.take(), strength=strength, seeds=region.seeds)


def _guess(foresight: Foresight, costs: Costs, strength: float) -> None:
    foresight.guess(costs.take(), strength=strength)


def sizes_to_choose(examples: Sequence[Example], admm: AdmmConfig) -> list[tuple[int, int]]:
    """Return how many voxels that seeds leave open belong to each volume's structure, at least and at most."""
    sizes = []
    for example in examples:
        assert example.bounds is not None
        (whole,) = example.bounds
        bounds = whole.inside(admm.margin, example.seeds)
        seeded = int(np.count_nonzero(example.seeds == 1)) if admm.honour_seeds else 0
        sizes.append((max(bounds.low_vox - seeded, 0), max(bounds.high_vox - seeded, 0)))
    return sizes


class SizeProposer:
    """Selects the best voxels of all volumes within their bounds, for one structure."""

    def __init__(
        self,
        examples: Sequence[Example],
        admm: AdmmConfig,
        pool: Executor,
        device: torch.device,
        memory: Memory = BOUNDLESS,
    ) -> None:
        """``examples`` have bounds; ``admm`` says whether seeds are honoured, the margin, and what leaving it costs."""
        self._pool, self._soft = pool, admm.soft_bounds
        self._price = torch.zeros((), device=device)  # where a recorded selection reads it
        honour_seeds = admm.honour_seeds
        within = [e.bounds[0].inside(admm.margin, e.seeds) for e in examples if e.bounds is not None]
        assert len(within) == len(examples)
        self._bounds = [(bounds.low_vox, bounds.high_vox) for bounds in within]
        self._names = [example.name for example in examples]
        self._seeds = [example.seeds if honour_seeds else None for example in examples]
        stops = list(accumulate(len(example.seeds) for example in examples))
        self._slices = [slice(start, stop) for start, stop in pairwise([0, *stops])]
        # On a CPU numpy's partition, volume by volume, is several times faster than histograms.
        self._selector = None
        if device.type == "cuda":
            shapes = [example.seeds.shape for example in examples]
            self._selector = SizeSelector(shapes, self._bounds, self._seeds, device)
        self._recorded: Replay | None = None
        self._proposal = memory.tensor((1, stops[-1], *examples[0].seeds.shape[1:]), torch.bool, device)

    def start(self, probability: torch.Tensor, prior: Prior, done: int) -> None:
        """Do nothing yet: all volumes are selected at once."""

    def foresee(self, probability: torch.Tensor, prior: Prior, settled: torch.cuda.Event | None = None) -> None:
        """Do nothing: a selection takes no time to speak of."""

    def finish(
        self,
        probability: torch.Tensor,
        prior: Prior,
        seeds: torch.Tensor | None,
        tick: Callable[[], None] = lambda: None,
    ) -> torch.Tensor:
        """Return the size proposals ỹ of all volumes, (1, N, H, W) bool; ``seeds`` (N, H, W) where these count.

        The next ones are written in their place. ``tick`` is called now and then while cores select.
        """
        if self._selector is not None:
            return self._select_on_device(self._selector, probability, prior, seeds)
        s, u, y = (tensor[0].numpy() for tensor in (probability, prior.multiplier, self._proposal))
        price = None if self._soft is None else self._soft / prior.mu

        def select(part: slice, bounds: tuple[int, int], fixed: NDArray[np.int8] | None) -> None:
            y[part] = select_by_size(s[part] + u[part] - np.float32(0.5), *bounds, seeds=fixed, price=price)

        volumes = zip(self._slices, self._bounds, self._seeds, strict=True)
        selections = [self._pool.submit(select, *volume) for volume in volumes]
        await_cases(zip(self._names, selections, strict=True), tick)
        return self._proposal

    def _select_on_device(
        self, selector: SizeSelector, probability: torch.Tensor, prior: Prior, seeds: torch.Tensor | None
    ) -> torch.Tensor:
        """Select by a recorded graph: its two hundred operations would contend with the cuts for Python's lock."""
        if self._recorded is None:

            def select() -> None:  # the tensors are the training's own and stay where they are
                utility = probability[0] + prior.multiplier[0] - 0.5
                self._proposal[0] = selector.select(utility, seeds, None if self._soft is None else self._price)

            self._recorded = Replay(select, probability.device)
        if self._soft is not None:
            self._price.fill_(self._soft / prior.mu)
        self._recorded()
        selector.require_finite()
        return self._proposal
