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

from discoseg.admm import Prior, Residuals, move_multipliers, residuals_of
from discoseg.config import AdmmConfig, CrfConfig
from discoseg.discrete import Foresight, PottsGrid, select_by_size
from discoseg.discrete.potts import Box, box_around
from discoseg.replay import Replay
from discoseg.selection import SizeSelector
from discoseg.weak.examples import Example

_MOST_FLOW_BYTES = 2**33  # of host memory that a training may take to keep its flows


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
    """Cuts all volumes of an epoch, each as soon as its probabilities are there.

    Beside a GPU the cores have nothing to do while the network trains. They then solve next epoch's cuts with this
    epoch's probabilities, so that only the change is left for when the new ones are there (:meth:`foresee`).
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
    ) -> None:
        """``strength`` is λ, which may change between epochs; ``foresee`` says whether cores are free for guesses.

        ``turns`` are the volumes in the order in which they are predicted, by default that of ``regions``.
        """
        self._regions = regions
        self._turns = list(range(len(regions))) if turns is None else list(turns)
        lengths = [regions[index].slices.stop - regions[index].slices.start for index in self._turns]
        self._ends = list(accumulate(lengths))  # slices predicted when a turn's volume is there
        self.strength = strength
        self._pool = pool
        pinned = device.type == "cuda"  # only then a copy runs beside the host's own work
        shapes = [None if region.grid is None else region.grid.shape for region in regions]
        self._unaries = [None if shape is None else torch.empty(shape, pin_memory=pinned) for shape in shapes]
        self._masks = [
            None if shape is None else torch.empty(shape, dtype=torch.bool, pin_memory=pinned) for shape in shapes
        ]
        self._foresights: list[Foresight | None] = [None] * len(regions)
        if foresee and sum(_flow_bytes(region) for region in regions) <= _MOST_FLOW_BYTES:
            self._foresights = [None if r.grid is None else r.grid.foresee(r.seeds) for r in regions]
        self._guessed = [  # costs of their own, so that nobody waits for a guess before it may copy the next ones
            None if foresight is None or shape is None else torch.empty(shape, pin_memory=pinned)
            for foresight, shape in zip(self._foresights, shapes, strict=True)
        ]
        self._guesses: list[Future[None] | None] = [None] * len(regions)
        guesses = device.type == "cuda" and any(self._foresights)
        self._beside = torch.cuda.Stream(device) if guesses else None  # on which the guesses' costs are copied
        self._has_cut = False  # before the first cut there is nothing to guess from
        self._cuts: dict[int, Future[None] | None] = {}

    def start(self, probability: torch.Tensor, prior: Prior, done: int) -> None:
        """Cut the volumes that have not been started and are among the first ``done`` slices predicted.

        ``probability`` is (N, H, W).
        """
        while len(self._cuts) < len(self._turns) and self._ends[len(self._cuts)] <= done:
            index = self._turns[len(self._cuts)]
            unary, mask, cut = self._unaries[index], self._masks[index], None
            if unary is not None and mask is not None:
                region, foresight, strength = self._regions[index], self._foresights[index], self.strength / prior.mu
                there = _copy_unary(unary, region, probability, prior)
                guess, self._guesses[index] = self._guesses[index], None
                if guess is not None and guess.cancel():  # one that has not begun would come too late
                    guess = None
                cut = self._pool.submit(_cut, region, foresight, guess, unary, mask, strength, there)
            self._cuts[index] = cut

    def finish(self, probability: torch.Tensor, prior: Prior, seeds: torch.Tensor | None) -> torch.Tensor:
        """Return the CRF proposals ŷ of all volumes, (N, H, W) bool; ``seeds`` (N, H, W) where they are honoured."""
        self.start(probability, prior, len(probability))
        proposal = torch.zeros_like(probability, dtype=torch.bool) if seeds is None else seeds == 1
        for index, cut in self._cuts.items():
            region, mask = self._regions[index], self._masks[index]
            if mask is not None and cut is not None:
                cut.result()
                proposal[region.slices][region.box].copy_(mask, non_blocking=True)  # before the residuals are read
        self._cuts = {}
        self._has_cut = True
        return proposal

    def foresee(self, probability: torch.Tensor, prior: Prior, settled: torch.cuda.Event | None = None) -> None:
        """Begin the next cuts with the last probabilities (N, H, W) and the new multipliers, where cores are free.

        Steps of the training may be under way on the current stream: the costs are copied beside them, and what comes
        after the steps waits for the copies. ``settled`` has happened once probabilities and multipliers are there.
        """
        if not self._has_cut or not any(self._foresights):
            return
        if self._beside is not None and settled is not None:
            self._beside.wait_event(settled)
        with torch.cuda.stream(self._beside):
            for index in self._turns:
                foresight, unary = self._foresights[index], self._guessed[index]
                if foresight is not None and unary is not None:
                    there = _copy_unary(unary, self._regions[index], probability, prior)
                    strength = self.strength / prior.mu
                    self._guesses[index] = self._pool.submit(_guess, foresight, unary, strength, there)
        if self._beside is not None:
            torch.cuda.current_stream().wait_stream(self._beside)


def _copy_unary(host: torch.Tensor, region: Region, probability: torch.Tensor, prior: Prior) -> torch.cuda.Event | None:
    """Begin to copy a region's costs ½ − s − û to ``host``; return what tells when they are there."""
    s, u = probability[region.slices][region.box], prior.multiplier[region.slices][region.box]
    host.copy_(0.5 - s - u, non_blocking=True)
    if not probability.is_cuda:
        return None
    there = torch.cuda.Event(blocking=True)  # a thread that waits leaves its core to others
    there.record()
    return there


def _flow_bytes(region: Region) -> int:
    """Return what keeping a region's flow takes (:class:`discoseg.discrete.Foresight`)."""
    return 0 if region.grid is None else (4 * region.grid.neighbours + 22) * int(np.prod(region.grid.shape))


def _cut(
    region: Region,
    foresight: Foresight | None,
    guess: Future[None] | None,
    unary: torch.Tensor,
    mask: torch.Tensor,
    strength: float,
    there: torch.cuda.Event | None,
) -> None:
    """Cut a region once its costs ``unary`` are there, into ``mask``; a ``guess`` under way is awaited first."""
    assert region.grid is not None
    if guess is not None:
        guess.result()
    if there is not None:
        there.synchronize()
    if foresight is not None:
        mask.numpy()[:] = foresight.cut(unary.numpy(), strength=strength)
    else:
        mask.numpy()[:] = region.grid.cut(unary.numpy(), strength=strength, seeds=region.seeds)


def _guess(foresight: Foresight, unary: torch.Tensor, strength: float, there: torch.cuda.Event | None) -> None:
    if there is not None:
        there.synchronize()
    foresight.guess(unary.numpy(), strength=strength)


class SizeProposer:
    """Selects the best voxels of all volumes within their bounds."""

    def __init__(self, examples: Sequence[Example], honour_seeds: bool, pool: Executor, device: torch.device) -> None:
        self._pool = pool
        self._bounds = [(e.bounds.low_vox, e.bounds.high_vox) for e in examples if e.bounds is not None]
        assert len(self._bounds) == len(examples)
        self._seeds = [example.seeds if honour_seeds else None for example in examples]
        self._depths = [len(example.seeds) for example in examples]
        # On a CPU numpy's partition, volume by volume, is several times faster than histograms.
        self._selector = None
        if device.type == "cuda":
            shapes = [example.seeds.shape for example in examples]
            self._selector = SizeSelector(shapes, self._bounds, self._seeds, device)
        self._recorded: Replay | None = None
        self._proposal = torch.empty(0, dtype=torch.bool, device=device)

    def start(self, probability: torch.Tensor, prior: Prior, done: int) -> None:
        """Do nothing yet: all volumes are selected at once."""

    def foresee(self, probability: torch.Tensor, prior: Prior, settled: torch.cuda.Event | None = None) -> None:
        """Do nothing: a selection takes no time to speak of."""

    def finish(self, probability: torch.Tensor, prior: Prior, seeds: torch.Tensor | None) -> torch.Tensor:
        """Return the size proposals ỹ of all volumes, (N, H, W) bool; ``seeds`` (N, H, W) where they are honoured."""
        if self._selector is not None:
            return self._select_on_device(self._selector, probability, prior, seeds)
        utility = probability + prior.multiplier - 0.5
        volumes = np.split(utility.numpy(), np.cumsum(self._depths)[:-1])

        def select(
            values: NDArray[np.float32], bounds: tuple[int, int], fixed: NDArray[np.int8] | None
        ) -> NDArray[np.bool_]:
            return select_by_size(values, *bounds, seeds=fixed)

        return torch.from_numpy(np.concatenate(list(self._pool.map(select, volumes, self._bounds, self._seeds))))

    def _select_on_device(
        self, selector: SizeSelector, probability: torch.Tensor, prior: Prior, seeds: torch.Tensor | None
    ) -> torch.Tensor:
        """Select by a recorded graph: its two hundred operations would contend with the cuts for Python's lock."""
        if self._recorded is None:
            self._proposal = torch.empty_like(probability, dtype=torch.bool)

            def select() -> None:  # the tensors are the training's own and stay where they are
                self._proposal.copy_(selector.select(probability + prior.multiplier - 0.5, seeds))

            self._recorded = Replay(select, probability.device)
        self._recorded()
        selector.require_finite()
        return self._proposal


class MultiplierUpdate:
    """Takes a prior's new proposals over and moves its multipliers; on CUDA recorded once and then replayed.

    The tensors given at the start are read and written each time, where they are.
    """

    def __init__(self, prior: Prior, probability: torch.Tensor, admm: AdmmConfig) -> None:
        """``probability`` (N, H, W); ``admm`` has the multipliers' step and limit."""
        self._prior = prior
        self._proposal = torch.empty_like(probability, dtype=torch.bool)
        self._squares = torch.zeros(2, dtype=torch.float64, device=probability.device)
        self._move = Replay(
            lambda: move_multipliers(prior, probability, self._proposal, admm, self._squares), probability.device
        )

    def __call__(self, proposal: torch.Tensor) -> Residuals:
        """Take over the proposal (N, H, W) bool and return the residuals."""
        self._proposal.copy_(proposal)
        self._move()
        return residuals_of(self._prior, self._squares)
