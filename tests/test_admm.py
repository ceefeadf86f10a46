"""Multipliers, residuals and μ against their formulas."""

from dataclasses import replace
from typing import Literal

import pytest
import torch

from discoseg import admm
from discoseg.config import AdmmConfig, PriorName
from discoseg.weak.examples import Example

CPU = torch.device("cpu")


@pytest.fixture
def probability(examples: list[Example]) -> torch.Tensor:
    count = sum(len(example.seeds) for example in examples)
    return torch.rand(1, count, 32, 32, generator=torch.Generator().manual_seed(0))


def _prior(name: PriorName, probability: torch.Tensor, mu: float = 2.0) -> admm.Prior:
    structures, count, rows, columns = probability.shape
    prior = admm.Prior(name, (structures, count, rows, columns), mu, CPU)
    prior.multiplier.copy_(torch.randn(probability.shape, generator=torch.Generator().manual_seed(1)) * 0.3)
    return prior


def _move(prior: admm.Prior, probability: torch.Tensor, proposal: torch.Tensor) -> admm.Residuals:
    squares = torch.full((2,), torch.nan, dtype=torch.float64)  # what stood there before does not count
    admm.move_multipliers(prior, probability, proposal, AdmmConfig(rho=0.25), squares)
    return admm.residuals_of(prior, squares, prior.multiplier.numel())


def test_start_is_undecided() -> None:
    for structures in (1, 4):
        prior = admm.Prior("crf", (structures, 2, 3, 4), 1.0, CPU)
        assert torch.equal(prior.target(torch.tensor([1])), torch.full((structures, 1, 3, 4), 1 / (1 + structures)))


@pytest.mark.parametrize("slices_at_once", [1, 7, 256])
def test_multipliers_move_by_rho_times_the_residual(
    probability: torch.Tensor, slices_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admm, "_SLICES_AT_ONCE", slices_at_once)
    prior = _prior("size", probability, mu=3.0)
    before, old = prior.multiplier.clone(), prior.doubled / 2
    proposal = probability > 0.7
    residuals = _move(prior, probability, proposal)
    torch.testing.assert_close(prior.multiplier, before + 0.25 * (probability - proposal.float()))
    assert torch.equal(prior.proposal, proposal)
    rms = lambda x: float(x.double().square().mean().sqrt())  # noqa: E731
    assert residuals.primal == pytest.approx(rms(probability - proposal.float()), rel=1e-5)
    assert residuals.dual == pytest.approx(3.0 * rms(proposal.float() - old), rel=1e-5)
    again = _move(prior, probability, proposal)
    assert again.dual == 0


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
