"""Proposals of all volumes at once: each volume's own optimum, however its probabilities arrive."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from discoseg import proposals
from discoseg.admm import Prior
from discoseg.config import AdmmConfig, CrfConfig
from discoseg.discrete import PottsGrid, select_by_size
from discoseg.errors import UserError
from discoseg.multipliers import MultiplierUpdate
from discoseg.proposals import CrfProposer, SizeProposer, sizes_to_choose
from discoseg.regions import open_regions
from discoseg.slices import Slices, stack_slices
from discoseg.weak.examples import Example

CPU = torch.device("cpu")
CRF = CrfConfig(strength=0.6, sigma=0.1)


@pytest.fixture
def slices(examples: list[Example]) -> Slices:
    return stack_slices(examples, CPU)


@pytest.fixture
def probability(slices: Slices) -> torch.Tensor:
    return torch.rand(1, *slices.seeds.shape, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def prior(slices: Slices) -> Prior:
    count, rows, columns = slices.seeds.shape
    prior = Prior("crf", (1, count, rows, columns), 2.0, CPU)
    prior.multiplier.copy_(torch.randn(slices.seeds.shape, generator=torch.Generator().manual_seed(1)) * 0.3)
    return prior


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as pool:
        yield pool


def _parts(examples: list[Example]) -> Iterator[tuple[Example, slice]]:
    start = 0
    for example in examples:
        yield example, slice(start, start + len(example.seeds))
        start += len(example.seeds)


@pytest.mark.parametrize("honour", [True, False])
@pytest.mark.parametrize("batch", [3, 1000])
def test_cuts_are_each_volumes_own_optimum(
    examples: list[Example],
    slices: Slices,
    probability: torch.Tensor,
    prior: Prior,
    pool: ThreadPoolExecutor,
    honour: bool,
    batch: int,
) -> None:
    regions, turns = open_regions(examples, CRF, honour_seeds=honour), [2, 0, 3, 1]
    proposer = CrfProposer(regions, CRF.strength, pool, CPU, turns=turns)
    order = torch.cat([torch.arange(probability.shape[1])[regions[index].slices] for index in turns])
    for _ in range(2):  # an epoch leaves nothing behind
        arrived = torch.full_like(probability, torch.nan)  # a cut that starts too early sees these
        for done in range(batch, probability.shape[1] + 1, batch):
            arrived[:, order[:done]] = probability[:, order[:done]]
            proposer.start(arrived, prior, done)
        proposal = proposer.finish(probability, prior, slices.seeds if honour else None)
    for example, part in _parts(examples):
        unary = (0.5 - probability[0, part] - prior.multiplier[0, part]).numpy()
        grid = PottsGrid(example.image[:, 0], spacing_mm=example.spacing_mm, sigma=0.1, neighbours=26)
        expected = grid.cut(unary, strength=0.6 / 2.0, seeds=example.seeds if honour else None)
        assert np.array_equal(proposal[0, part].numpy(), expected)


@pytest.mark.parametrize("honour", [True, False])
def test_a_timid_network_keeps_the_size_that_is_known(
    examples: list[Example],
    slices: Slices,
    probability: torch.Tensor,
    prior: Prior,
    pool: ThreadPoolExecutor,
    honour: bool,
) -> None:
    """Costs are shifted as if the whole volume were seen, whatever box and turn a region has."""
    regions, truth = open_regions(examples, CRF, honour_seeds=honour), np.concatenate([e.truth for e in examples])
    timid = 0.02 * probability + 0.4 * probability.sqrt() * torch.from_numpy(truth)
    prior.multiplier.zero_()
    admm = AdmmConfig(honour_seeds=honour, margin=0.02)
    sizes = sizes_to_choose(examples, admm)
    proposer = CrfProposer(regions, CRF.strength, pool, CPU, turns=[2, 0, 3, 1], sizes=sizes)
    proposal = proposer.finish(timid, prior, slices.seeds if honour else None)
    chosen = SizeProposer(examples, admm, pool, CPU).finish(timid, prior, slices.seeds if honour else None)
    for example, part in _parts(examples):
        s, size = timid[0, part].numpy(), chosen[0, part].numpy()
        free = (example.seeds < 0) | (not honour)
        middle = s[size & free].min()
        odds = s / (1 - s) * ((1 - middle) / middle)
        grid = PottsGrid(example.image[:, 0], spacing_mm=example.spacing_mm, sigma=0.1, neighbours=26)
        seeds = example.seeds if honour else None
        expected = grid.cut(0.5 - odds / (1 + odds), strength=0.6 / 2.0, seeds=seeds)
        assert (proposal[0, part].numpy() != expected).mean() < 1e-3  # float32 rounds
        assert 0.8 * size.sum() < proposal[0, part].sum() < 1.2 * size.sum()
        assert grid.cut(0.5 - s, strength=0.6 / 2.0, seeds=seeds).sum() < 0.5 * size.sum()  # without the shift


@pytest.mark.parametrize("calibrate", [False, True])
def test_a_guess_changes_no_proposal(
    examples: list[Example],
    slices: Slices,
    probability: torch.Tensor,
    prior: Prior,
    pool: ThreadPoolExecutor,
    calibrate: bool,
) -> None:
    regions = open_regions(examples, CRF, honour_seeds=True)
    sizes = sizes_to_choose(examples, AdmmConfig()) if calibrate else None
    plain = CrfProposer(regions, CRF.strength, pool, CPU, sizes=sizes)
    proposer = CrfProposer(regions, CRF.strength, pool, CPU, foresee=True, sizes=sizes)
    for step in range(4):
        drawn = torch.rand(probability.shape, generator=torch.Generator().manual_seed(step))
        probability = 0.8 * probability + 0.2 * drawn
        proposal = proposer.finish(probability, prior, slices.seeds)
        assert torch.equal(proposal, plain.finish(probability, prior, slices.seeds))
        MultiplierUpdate(prior, probability, AdmmConfig(rho=0.5))(proposal)
        prior.mu *= 1.5 if step == 2 else 1.0  # the guess is made with the new one
        proposer.foresee(probability, prior)
    proposer.finish(probability, prior, slices.seeds)


def test_nobody_but_its_own_cut_waits_for_a_guess(
    examples: list[Example],
    slices: Slices,
    probability: torch.Tensor,
    prior: Prior,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    regions, pool = open_regions(examples, CRF, honour_seeds=True), ThreadPoolExecutor(9)
    plain, proposer = (CrfProposer(regions, CRF.strength, pool, CPU, foresee=foresee) for foresee in (False, True))
    proposer.finish(probability, prior, slices.seeds)
    go_on, guess = threading.Event(), proposals._guess

    def late(*given: Any) -> None:
        assert go_on.wait(30)
        guess(*given)

    monkeypatch.setattr(proposals, "_guess", late)
    proposer.foresee(probability, prior)
    probability = 1 - probability
    expected = plain.finish(probability, prior, slices.seeds)  # there are threads enough
    proposer.start(probability, prior, probability.shape[1])  # returns at once
    time.sleep(0.2)
    assert not any(cut is not None and cut.done() for cut in proposer._cuts)
    go_on.set()
    assert torch.equal(proposer.finish(probability, prior, slices.seeds), expected)
    pool.shutdown()


def test_flows_too_large_to_keep_are_not_kept(
    examples: list[Example], pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proposals, "_MOST_FLOW_BYTES", 1000)
    proposer = CrfProposer(open_regions(examples, CRF, honour_seeds=True), CRF.strength, pool, CPU, foresee=True)
    assert proposer._foresights == [None] * len(examples)


@pytest.mark.parametrize("complete", [(0,), (1, 2), (3,), (0, 1, 2, 3)])
@pytest.mark.parametrize("foresee", [False, True])
def test_volumes_without_unknown_voxels_keep_their_seeds(
    examples: list[Example],
    probability: torch.Tensor,
    prior: Prior,
    pool: ThreadPoolExecutor,
    complete: tuple[int, ...],
    foresee: bool,
) -> None:
    known = [
        replace(e, seeds=e.truth.astype(np.int8)) if index in complete and e.truth is not None else e
        for index, e in enumerate(examples)
    ]
    regions, seeds = open_regions(known, CRF, honour_seeds=True), stack_slices(known, CPU).seeds
    proposer = CrfProposer(regions, CRF.strength, pool, CPU, turns=[2, 0, 3, 1], foresee=foresee)
    for _ in range(2):
        proposal = proposer.finish(probability, prior, seeds)
        for example, part in _parts(known):
            unary = (0.5 - probability[0, part] - prior.multiplier[0, part]).numpy()
            grid = PottsGrid(example.image[:, 0], spacing_mm=example.spacing_mm, sigma=0.1, neighbours=26)
            expected = grid.cut(unary, strength=0.6 / 2.0, seeds=example.seeds)
            assert np.array_equal(proposal[0, part].numpy(), expected)
        proposer.foresee(probability, prior)


@pytest.mark.parametrize("honour", [True, False])
@pytest.mark.parametrize("margin", [0.0, 0.04])
def test_selections_are_each_volumes_own_optimum(
    examples: list[Example],
    slices: Slices,
    probability: torch.Tensor,
    prior: Prior,
    pool: ThreadPoolExecutor,
    honour: bool,
    margin: float,
) -> None:
    proposer = SizeProposer(examples, AdmmConfig(honour_seeds=honour, margin=margin), pool, CPU)
    proposal = proposer.finish(probability, prior, slices.seeds if honour else None)
    for example, part in _parts(examples):
        assert example.bounds is not None
        bounds = example.bounds[0].inside(margin, example.seeds)
        low, high = bounds.low_vox, bounds.high_vox
        utility = (probability[0, part] + prior.multiplier[0, part] - 0.5).numpy()
        expected = select_by_size(utility, low, high, seeds=example.seeds if honour else None)
        assert np.array_equal(proposal[0, part].numpy(), expected)
        assert low <= int(proposal[0, part].sum()) <= high


def test_soft_bounds_have_their_price_by_mu(
    examples: list[Example], slices: Slices, probability: torch.Tensor, prior: Prior, pool: ThreadPoolExecutor
) -> None:
    proposer = SizeProposer(examples, AdmmConfig(soft_bounds=0.5), pool, CPU)
    for mu in (2.0, 0.05):
        prior.mu = mu
        proposal = proposer.finish(probability, prior, slices.seeds)
        outside = 0
        for example, part in _parts(examples):
            assert example.bounds is not None
            low, high = example.bounds[0].low_vox, example.bounds[0].high_vox
            utility = (probability[0, part] + prior.multiplier[0, part] - 0.5).numpy()
            expected = select_by_size(utility, low, high, seeds=example.seeds, price=0.5 / mu)
            assert np.array_equal(proposal[0, part].numpy(), expected)
            outside += not low <= int(expected.sum()) <= high
        assert (outside > 0) == (mu == 2.0)


def test_a_broken_network_is_said(
    examples: list[Example], slices: Slices, probability: torch.Tensor, prior: Prior, pool: ThreadPoolExecutor
) -> None:
    probability[:] = torch.nan
    proposer = CrfProposer(open_regions(examples, CRF, honour_seeds=True), CRF.strength, pool, CPU)
    with pytest.raises(UserError, match="NaN"):
        proposer.finish(probability, prior, slices.seeds)
