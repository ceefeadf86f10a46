"""The paper on one page: discrete proposals, multipliers, residuals.

After each pass of the network over the training slices, every volume gets a binary proposal per prior,

    ŷ = argmin_{y∈{0,1}ⁿ}  Σ_p (½ − s_p − û_p) y_p  +  (λ/μ̂) Σ_{pq} w_pq |y_p − y_q|          exact minimum cut
    ỹ = argmax_{y∈{0,1}ⁿ}  Σ_p (s_p + ũ_p − ½) y_p     s.t.  S_min ≤ Σ y ≤ S_max              exact ranking

and the multipliers move by u += ρ (s − y), where s is the network's foreground probability. The loss then draws s to
y − u (:func:`discoseg.losses.augmented_term`). Arrays over all training slices are (N, H, W); the slices of a volume
are consecutive.
"""

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from discoseg.config import AdmmConfig, CrfConfig, PriorName
from discoseg.discrete import PottsGrid, select_by_size
from discoseg.weak.bounds import Bounds
from discoseg.weak.examples import Example

_BALANCE_RANGE = 16.0  # how far residual balancing may take μ from where it started, either way


@dataclass
class Prior:
    """One prior's proposal y and scaled multiplier u over all slices, (N, H, W) each, and its penalty parameter μ."""

    name: PriorName
    proposal: torch.Tensor
    multiplier: torch.Tensor
    mu: float

    def target(self, index: torch.Tensor) -> torch.Tensor:
        """Return y − u of the slices ``index``: what the network's probability is drawn to, (B, H, W)."""
        return self.proposal[index] - self.multiplier[index]


@dataclass(frozen=True)
class Residuals:
    """Root mean square over voxels of s − y (primal) and of μ (y − y_previous) (dual)."""

    primal: float
    dual: float


def start_prior(name: PriorName, shape: tuple[int, int, int], mu: float, device: torch.device) -> Prior:
    """Return a prior before the first epoch: undecided proposals (½) and no multipliers."""
    return Prior(name, torch.full(shape, 0.5, device=device), torch.zeros(shape, device=device), mu)


def build_grids(examples: Sequence[Example], crf: CrfConfig) -> list[PottsGrid]:
    """Return the boundary prior of every volume; contrast is that of the image's first channel."""
    return [
        PottsGrid(e.image[:, 0], spacing_mm=e.spacing_mm, sigma=crf.sigma, neighbours=crf.neighbours) for e in examples
    ]


def propose_crf(
    probability: torch.Tensor,
    prior: Prior,
    grids: Sequence[PottsGrid],
    seeds: Sequence[NDArray[np.int8] | None],
    *,
    strength: float,
    pool: Executor,
) -> torch.Tensor:
    """Return the CRF proposals ŷ of all volumes, (N, H, W) of zeros and ones.

    ``seeds`` are what each proposal must obey, or None; ``strength`` is λ.
    """
    unary = (0.5 - probability - prior.multiplier).cpu().numpy()
    volumes = split_by_volume(unary, [grid.shape[0] for grid in grids])

    def cut(grid: PottsGrid, values: NDArray[np.float32], fixed: NDArray[np.int8] | None) -> NDArray[np.bool_]:
        return grid.cut(values, strength=strength / prior.mu, seeds=fixed)

    return _stack(list(pool.map(cut, grids, volumes, seeds)), probability)


def propose_size(
    probability: torch.Tensor,
    prior: Prior,
    bounds: Sequence[Bounds],
    seeds: Sequence[NDArray[np.int8] | None],
    depths: Sequence[int],
    *,
    pool: Executor,
) -> torch.Tensor:
    """Return the size proposals ỹ of all volumes, (N, H, W) of zeros and ones; ``depths`` are their slices."""
    utility = (probability + prior.multiplier - 0.5).cpu().numpy()

    def select(values: NDArray[np.float32], limit: Bounds, fixed: NDArray[np.int8] | None) -> NDArray[np.bool_]:
        return select_by_size(values, limit.low_vox, limit.high_vox, seeds=fixed)

    return _stack(list(pool.map(select, split_by_volume(utility, depths), bounds, seeds)), probability)


def split_by_volume(stack: NDArray[np.float32], depths: Sequence[int]) -> list[NDArray[np.float32]]:
    """Cut an (N, H, W) stack into the volumes it consists of, (z, H, W) each."""
    return np.split(stack, np.cumsum(depths)[:-1])


def _stack(masks: Sequence[NDArray[np.bool_]], like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(masks)).to(device=like.device, dtype=like.dtype)


def update_multipliers(prior: Prior, probability: torch.Tensor, proposal: torch.Tensor, rho: float) -> Residuals:
    """Take over the new proposal, move the multipliers by ρ (s − y), and return the residuals."""
    difference = probability - proposal
    change = proposal - prior.proposal
    prior.multiplier.add_(difference, alpha=rho)
    prior.proposal = proposal
    return Residuals(_rms(difference), prior.mu * _rms(change))


def _rms(tensor: torch.Tensor) -> float:
    return float(tensor.square().mean(dtype=torch.float64).sqrt())


def adapt_mu(prior: Prior, residuals: Residuals, admm: AdmmConfig, epoch: int) -> None:
    """Set μ for the next epoch by the schedule; ``epoch`` (from 0) has just ended.

    Scaled multipliers are rescaled with it, so that the unscaled ones, μu, stay what they are.
    """
    before = prior.mu
    if admm.schedule == "ramp":
        prior.mu = scheduled_mu(admm, prior.name, epoch + 1)
    elif admm.schedule == "balance" and residuals.dual > 0:  # proposals that stand still are no reason to push
        start = scheduled_mu(admm, prior.name, 0)
        factor = (
            2.0 if residuals.primal > 10 * residuals.dual else 0.5 if residuals.dual > 10 * residuals.primal else 1.0
        )
        prior.mu = min(max(prior.mu * factor, start / _BALANCE_RANGE), start * _BALANCE_RANGE)
    if prior.mu != before:
        prior.multiplier.mul_(before / prior.mu)


def scheduled_mu(admm: AdmmConfig, name: PriorName, epoch: int) -> float:
    """Return μ at the start of an epoch (from 0), as far as the schedule fixes it in advance."""
    mu = admm.mu_crf if name == "crf" else admm.mu_size
    return mu * min(1.0, (epoch + 1) / admm.ramp_epochs) if admm.schedule == "ramp" else mu
