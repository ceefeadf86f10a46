"""The ADMM step against its formulas, one volume at a time and by brute force."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch

from discoseg import admm
from discoseg.config import AdmmConfig, CrfConfig
from discoseg.discrete import PottsGrid, select_by_size
from discoseg.weak.examples import Example

CPU = torch.device("cpu")


@pytest.fixture
def probability(examples: list[Example]) -> torch.Tensor:
    count = sum(len(example.seeds) for example in examples)
    return torch.rand(count, 32, 32, generator=torch.Generator().manual_seed(0))


def _prior(name: str, probability: torch.Tensor, mu: float = 2.0) -> admm.Prior:
    prior = admm.start_prior("crf" if name == "crf" else "size", tuple(probability.shape), mu, CPU)  # type: ignore[arg-type]
    prior.multiplier = torch.randn(probability.shape, generator=torch.Generator().manual_seed(1)) * 0.3
    return prior


def test_start_is_undecided() -> None:
    prior = admm.start_prior("crf", (2, 3, 4), 1.0, CPU)
    assert torch.equal(prior.target(torch.tensor([1])), torch.full((1, 3, 4), 0.5))


def test_proposals_of_all_volumes_are_each_volumes_own_optimum(
    examples: list[Example], probability: torch.Tensor
) -> None:
    crf, size = _prior("crf", probability), _prior("size", probability)
    grids = admm.build_grids(examples, CrfConfig(sigma=0.1))
    seeds: list[np.ndarray | None] = [example.seeds for example in examples]
    bounds = [example.bounds for example in examples if example.bounds is not None]
    depths = [len(example.seeds) for example in examples]
    with ThreadPoolExecutor(3) as pool:
        cuts = admm.propose_crf(probability, crf, grids, seeds, strength=0.6, pool=pool)
        selections = admm.propose_size(probability, size, bounds, seeds, depths, pool=pool)
    start = 0
    for example, limit in zip(examples, bounds, strict=True):
        part = slice(start, start + len(example.seeds))
        s = probability[part].numpy()
        unary = 0.5 - s - crf.multiplier[part].numpy()
        grid = PottsGrid(example.image[:, 0], spacing_mm=example.spacing_mm, sigma=0.1, neighbours=26)
        assert np.array_equal(cuts[part].numpy() == 1, grid.cut(unary, strength=0.6 / 2.0, seeds=example.seeds))
        utility = s + size.multiplier[part].numpy() - 0.5
        expected = select_by_size(utility, limit.low_vox, limit.high_vox, seeds=example.seeds)
        assert np.array_equal(selections[part].numpy() == 1, expected)
        assert limit.low_vox <= selections[part].sum() <= limit.high_vox
        for proposal in (cuts[part].numpy(), selections[part].numpy()):
            assert (proposal[example.seeds >= 0] == example.seeds[example.seeds >= 0]).all()
        start = part.stop


def test_multipliers_move_by_rho_times_the_residual(probability: torch.Tensor) -> None:
    prior = _prior("size", probability, mu=3.0)
    before, old = prior.multiplier.clone(), prior.proposal.clone()
    proposal = (probability > 0.7).float()
    residuals = admm.update_multipliers(prior, probability, proposal, rho=0.25)
    torch.testing.assert_close(prior.multiplier, before + 0.25 * (probability - proposal))
    assert torch.equal(prior.proposal, proposal)
    rms = lambda x: float(x.double().square().mean().sqrt())  # noqa: E731
    assert residuals.primal == pytest.approx(rms(probability - proposal), rel=1e-5)
    assert residuals.dual == pytest.approx(3.0 * rms(proposal - old), rel=1e-5)


@pytest.mark.parametrize(
    ("schedule", "primal", "dual", "factor"),
    [
        ("constant", 1.0, 0.01, 1.0),
        ("balance", 1.0, 0.01, 2.0),
        ("balance", 0.01, 1.0, 0.5),
        ("balance", 1.0, 0.5, 1.0),
        ("balance", 1.0, 0.0, 1.0),
    ],
)
def test_mu_follows_its_schedule_and_keeps_the_unscaled_multiplier(
    schedule: Literal["constant", "balance"], primal: float, dual: float, factor: float, probability: torch.Tensor
) -> None:
    prior = _prior("crf", probability, mu=2.0)
    unscaled = prior.mu * prior.multiplier
    config = replace(AdmmConfig(mu_crf=2.0), schedule=schedule)
    admm.adapt_mu(prior, admm.Residuals(primal, dual), config, epoch=4)
    assert prior.mu == 2.0 * factor
    torch.testing.assert_close(prior.mu * prior.multiplier, unscaled)


def test_balancing_never_runs_away(probability: torch.Tensor) -> None:
    prior = _prior("crf", probability, mu=2.0)
    config = AdmmConfig(mu_crf=2.0, schedule="balance")
    for epoch in range(30):
        admm.adapt_mu(prior, admm.Residuals(1.0, 1e-9), config, epoch)
    assert prior.mu == 32.0
    for epoch in range(60):
        admm.adapt_mu(prior, admm.Residuals(1e-9, 1.0), config, epoch)
    assert prior.mu == 2.0 / 16


def test_ramp_reaches_mu_and_stays(probability: torch.Tensor) -> None:
    config = AdmmConfig(mu_size=4.0, schedule="ramp", ramp_epochs=4)
    prior = _prior("size", probability, mu=admm.scheduled_mu(config, "size", 0))
    seen = []
    for epoch in range(6):
        seen.append(prior.mu)
        admm.adapt_mu(prior, admm.Residuals(1.0, 1.0), config, epoch)
    assert seen == [1.0, 2.0, 3.0, 4.0, 4.0, 4.0]
