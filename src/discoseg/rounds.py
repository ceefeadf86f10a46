"""A second round: a new network learns the masks that the first one proposes.

The first round is the paper's ADMM. Its network learns while its targets still move, and keeps what it learnt of early
ones. At its end the mean of its weights predicts every training volume once more, and each volume gets one mask:
smooth, as large as is known, in the slices that are known, seeds honoured. A network that starts anew then learns these
masks, which stay.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from discoseg.averaging import MeanWeights
from discoseg.config import Config
from discoseg.discrete import cut_at_size
from discoseg.epoch import Work, require_finite
from discoseg.labelling import LabelProposer, Solve, expansion, open_limits
from discoseg.material import Material
from discoseg.regions import Region
from discoseg.replay import undisturbing
from discoseg.start import draw_network, drawing
from discoseg.state import State
from discoseg.weak.examples import Example
from discoseg.weak.extents import limit_to
from discoseg.weak.pairs import read_pairs

APART = 1_000_003  # random seeds of the two rounds


def is_due(state: State, config: Config) -> bool:
    """Say whether the next epoch belongs to another round than the network."""
    return state.running.steps == 0 and config.round_of(state.epoch) > state.round


def begin_round(
    state: State, work: Work, material: Material, config: Config, tick: Callable[[], None] = lambda: None
) -> None:
    """Give both priors the masks of the first round's network, and start a new network and its optimiser.

    ``tick`` is called now and then while masks are made. A state that is saved then may have the mean in the place of
    the weights, which makes no difference to what follows. New weights are drawn from torch's global generator, which
    is then as it was; all ranks draw the same.
    """
    masks = propose_masks(state, work, material, config, tick)
    for prior in state.priors:
        prior.doubled.copy_(masks).mul_(2)
        prior.multiplier.zero_()
        prior.mu = 1.0  # μ/2 · CE of each, so that both together have the weight of an annotation
    state.round, state.began, state.mean = config.round_of(state.epoch), state.epoch, MeanWeights()
    with drawing, undisturbing(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.seed + APART)
        state.network.load_state_dict(draw_network(material.slices, config).state_dict())
    for moments in state.optimiser.state.values():
        for moment in moments.values():
            moment.zero_()
    work.learn.record_anew()


def propose_masks(
    state: State, work: Work, material: Material, config: Config, tick: Callable[[], None] = lambda: None
) -> torch.Tensor:
    """Return one mask of each structure for all training slices, (K, N, H, W) bool.

    They are cut from probabilities of the mean weights, or of the last ones where other epochs than planned were the
    last, at the known size; those of several structures at about the known size. Soft bounds are left out.
    """
    honour, slices, rounds = config.admm.honour_seeds, material.slices, config.rounds
    sigma, neighbours = rounds.sigma or config.crf.sigma, rounds.neighbours or config.crf.neighbours
    crf = replace(config.crf, sigma=sigma, neighbours=neighbours)
    with undisturbing():
        proposer = LabelProposer(
            material.regions(crf, honour_seeds=honour),
            len(slices.structures),
            _solver(material, config),
            material.pool,
            material.device,
            turns=material.turns,
            memory=material.memory,
        )
    done = 0
    with state.mean.in_place_of(state.network) if state.mean.epochs else nullcontext():
        for new in work.predict.run():
            done += len(new)
            proposer.start(work.predict.probability, None, done)
            tick()
    require_finite(state.epoch, work, material)
    seeds = slices.seeds if honour else None
    return proposer.finish(work.predict.probability, None, seeds, tick)


def _solver(material: Material, config: Config) -> Solve:
    """Return what makes the masks of a volume."""
    admm, strength = replace(config.admm, margin=config.rounds.margin), config.rounds.strength
    limits = [open_limits(e, admm) for e in material.training] if admm.soft_bounds is None else None
    if len(material.slices.structures) > 1:
        return expansion(strength, read_pairs(config.crf.pairs, material.slices.structures), limits)

    def cut(index: int, region: Region, costs: NDArray[np.float32], mu: float) -> NDArray[np.int8]:
        seeds = _known_voxels(material.training[index], region)
        if limits is None:
            mask = region.grid().cut(costs[1], strength=strength, seeds=seeds)
        else:
            free = costs[1].size if seeds is None else int(np.count_nonzero(seeds < 0))
            (_, low), (_, high) = limits[index]
            bounds = {"low": min(low, free), "high": min(high, free)}
            mask = cut_at_size(region.grid(), 0.5 - costs[1], strength=strength, seeds=seeds, **bounds)
        return mask.astype(np.int8)

    return cut


def _known_voxels(example: Example, region: Region) -> NDArray[np.int8] | None:
    """Return the seeds of a region that is to be cut, with background beyond the slices that are known."""
    if example.slices is None or region.box is None:
        return region.seeds
    seeds = np.full(region.shape, -1, np.int8) if region.seeds is None else region.seeds
    return limit_to(example.slices, seeds, start=region.box[0].start)
