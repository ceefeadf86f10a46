"""Rounds: networks one after the other, each of which learns the masks that its predecessor proposes.

The first round is the paper's ADMM. Its network learns while its targets still move, and keeps what it learnt of early
ones. At the end of a round the mean of its weights predicts every training volume once more, and each volume gets one
mask: smooth, as large as is known, seeds honoured. A network that starts anew then learns these masks, which stay.
"""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from discoseg.averaging import MeanWeights
from discoseg.config import Config
from discoseg.discrete import cut_at_size
from discoseg.epoch import Work, require_finite
from discoseg.labelling import LabelProposer, Solve, assignment, expansion, open_limits
from discoseg.material import Material
from discoseg.networks import build_network
from discoseg.regions import Region
from discoseg.replay import undisturbing
from discoseg.start import drawing
from discoseg.state import State
from discoseg.weak.pairs import read_pairs

_APART = 1_000_003  # random seeds of two rounds


def is_due(state: State, config: Config) -> bool:
    """Say whether the next epoch belongs to another round than the network."""
    return state.running.steps == 0 and config.round_of(state.epoch) > state.round


def begin_round(state: State, work: Work, material: Material, config: Config) -> None:
    """Give both priors the masks of the last round's network, and start a new network and its optimiser.

    Weights are drawn from torch's global generator, which is then as it was; all ranks draw the same.
    """
    masks = propose_masks(state, work, material, config)
    for prior in state.priors:
        prior.doubled.copy_(masks).mul_(2)
        prior.mu = 2 / len(state.priors)  # by which all of them together have the weight of one annotation
    state.round, state.mean = config.round_of(state.epoch), MeanWeights()
    slices = material.slices
    with drawing, undisturbing(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.seed + _APART * state.round)
        fresh = build_network(
            config.network.name,
            channels=slices.image.shape[1],
            classes=1 + len(slices.structures),
            width=config.network.width,
            depth=config.network.depth,
        )
        state.network.load_state_dict(fresh.state_dict())
    for moments in state.optimiser.state.values():
        for moment in moments.values():
            moment.zero_()
    work.learn.record_anew()


def propose_masks(state: State, work: Work, material: Material, config: Config) -> torch.Tensor:
    """Return one mask of each structure for all training slices, (K, N, H, W) bool; multipliers become 0.

    They come from probabilities of the mean weights: with a boundary prior they are cut, with size bounds they have
    the known size, those of several structures that are cut about the known size.
    """
    with state.mean.in_place_of(state.network) if state.mean.epochs else nullcontext():
        work.predict.all()
    require_finite(state.epoch, work, material)
    for prior in state.priors:
        prior.multiplier.zero_()
    honour = config.admm.honour_seeds
    with undisturbing():
        proposer = LabelProposer(
            material.regions(config.crf, honour_seeds=honour),
            len(material.slices.structures),
            _solver(material, config),
            material.pool,
            material.device,
            turns=material.turns,
            memory=material.memory,
        )
        seeds = material.slices.seeds if honour else None
        return proposer.finish(work.predict.probability, state.priors[0], seeds)


def _solver(material: Material, config: Config) -> Solve:
    """Return what makes the masks of a volume."""
    admm, strength = replace(config.admm, margin=config.rounds.margin), config.rounds.strength
    limits = [open_limits(example, admm) for example in material.training] if config.uses_size else None
    if not config.uses_crf:
        return assignment(limits or [])
    if len(material.slices.structures) > 1:
        solve = expansion(strength, read_pairs(config.crf.pairs, material.slices.structures), limits)
        return lambda index, region, costs, mu: solve(index, region, costs, 1.0)

    def cut(index: int, region: Region, costs: NDArray[np.float32], mu: float) -> NDArray[np.int8]:
        if limits is None:
            mask = region.grid().cut(costs[1], strength=strength, seeds=region.seeds)
        else:
            (_, low), (_, high) = limits[index]
            mask = cut_at_size(region.grid(), 0.5 - costs[1], strength=strength, low=low, high=high, seeds=region.seeds)
        return mask.astype(np.int8)

    return cut
