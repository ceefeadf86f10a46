"""The paper on one page: discrete proposals, multipliers, residuals.

After each pass of the network over the training slices, every volume gets a binary proposal per prior,

    ŷ = argmin_{y∈{0,1}ⁿ}  Σ_p (½ − s_p − û_p) y_p  +  (λ/μ̂) Σ_{pq} w_pq |y_p − y_q|          exact minimum cut
    ỹ = argmax_{y∈{0,1}ⁿ}  Σ_p (s_p + ũ_p − ½) y_p     s.t.  S_min ≤ Σ y ≤ S_max              exact ranking

and the multipliers move by u += ρ (s − y), where s is the network's foreground probability. The loss then draws s to
y − u (:func:`discoseg.losses.augmented_term`). With ``crf.calibrate`` the cut sees s + û with its log odds shifted to
the known size (:mod:`discoseg.discrete.odds`); with ``admm.soft_bounds`` τ, ỹ may leave its bounds for τ/μ̃ a voxel.
Arrays over all training slices are (K, N, H, W); the slices of a volume are consecutive.

With K structures a proposal labels each voxel with one of them or the background, component c of y is 1 where the label
is c, and with v_c = s_c + u_c, v_0 = 1 − Σ v_c,

    ŷ = argmin  −½ Σ_p v_{y_p, p}  +  (λ/μ̂) Σ_{pq} w_pq [y_p ≠ y_q]                            α-expansion
    ỹ = argmax   ½ Σ_p v_{y_p, p}     s.t.  bounds on the voxels of each structure             exact assignment
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from discoseg.config import AdmmConfig, PriorName
from discoseg.data.memory import BOUNDLESS, Memory
from discoseg.kernels import kernels_fit

_BALANCE_RANGE = 16.0  # how far residual balancing may take μ from where it started, either way
_SLICES_AT_ONCE = 256  # that an update takes in, so that its scratch memory does not grow with the dataset,
_VOXELS_AT_ONCE = 2**24  # and of large slices only so many voxels


class Prior:
    """One prior's proposal y and scaled multiplier u over all slices, and its penalty parameter μ.

    ``doubled`` (K, N, H, W) uint8 is 2y: 0 or 2, and 1 before the first proposal, which stands for all labels being
    equal, y = 1/(1 + K). ``multiplier``, of the same shape, is u in float32. ``mu_on_device`` is μ where the loss can
    read it. The tensors stay where they are: recorded steps read them.
    """

    def __init__(
        self,
        name: PriorName,
        shape: tuple[int, int, int, int],
        mu: float,
        device: torch.device,
        memory: Memory = BOUNDLESS,
    ) -> None:
        self.name = name
        self.doubled = memory.tensor(shape, torch.uint8, device).fill_(1)
        self.multiplier = memory.tensor(shape, torch.float32, device).zero_()
        self.mu_on_device = torch.tensor(mu, device=device)
        self._mu = mu

    @property
    def mu(self) -> float:
        """μ, of which the device has a copy."""
        return self._mu

    @mu.setter
    def mu(self, value: float) -> None:
        self._mu = value
        self.mu_on_device.fill_(value)

    @property
    def proposal(self) -> torch.Tensor:
        """The masks y, (K, N, H, W) bool."""
        return self.doubled == 2

    def target(self, index: torch.Tensor) -> torch.Tensor:
        """Return y − u of the slices ``index``: what the network's probabilities are drawn to, (K, B, H, W)."""
        return self.values(self.doubled[:, index]) - self.multiplier[:, index]

    def values(self, doubled: torch.Tensor) -> torch.Tensor:
        """Return y of a part of ``doubled``."""
        structures = len(self.doubled)
        values = doubled * 0.5
        return values if structures == 1 else values.where(doubled != 1, 1 / (1 + structures))


def stack_targets(priors: Sequence[Prior], index: torch.Tensor) -> torch.Tensor:
    """Return the targets of the slices ``index`` (B,), (B, T · K, H, W): the structures of one prior after the other.

    On CUDA one kernel gathers those of a single structure.
    """
    if kernels_fit(priors[0].multiplier):
        from discoseg.kernels import fused_loss

        if len(priors) <= fused_loss.MOST_TARGETS and len(priors[0].multiplier) == 1:
            return fused_loss.gather_targets([(prior.doubled[0], prior.multiplier[0]) for prior in priors], index)
    return torch.cat([prior.target(index) for prior in priors]).transpose(0, 1)


@dataclass(frozen=True)
class Residuals:
    """Root mean square over voxels of s − y (primal) and of μ (y − y_previous) (dual)."""

    primal: float
    dual: float


def move_multipliers(
    prior: Prior, probability: torch.Tensor, proposal: torch.Tensor, admm: AdmmConfig, squares: torch.Tensor
) -> None:
    """Take over the new proposal (K, N, H, W) bool and move the multipliers by ρ (s − y); never wait for the device.

    ``probability`` has the same shape. ``squares`` (2,) float64 becomes the sums over voxels and structures of (s − y)²
    and (y − y_previous)²: see `residuals_of`.
    """
    squares.zero_()
    probability, proposal, doubled, multiplier = (
        x.flatten(0, 1) for x in (probability, proposal, prior.doubled, prior.multiplier)
    )
    at_once = max(1, min(_SLICES_AT_ONCE, _VOXELS_AT_ONCE // probability[0].numel()))
    for start in range(0, len(probability), at_once):
        part = slice(start, start + at_once)
        new = proposal[part].to(torch.uint8) * 2
        difference = probability[part] - new * 0.5
        change = (new * 0.5).sub_(prior.values(doubled[part]))
        squares += torch.stack([x.square().sum(dtype=torch.float64) for x in (difference, change)])
        multiplier[part].add_(difference, alpha=admm.rho)
        doubled[part] = new


def residuals_of(prior: Prior, squares: torch.Tensor, values: int) -> Residuals:
    """Read the residuals from what `move_multipliers` summed, over this many ``values`` of voxels and structures."""
    primal, dual = (squares / values).sqrt().tolist()
    return Residuals(primal, prior.mu * dual)


def adapt_mu(prior: Prior, residuals: Residuals, admm: AdmmConfig, epoch: int) -> None:
    """Set μ for the next epoch by the schedule; ``epoch`` (from 0) has just ended.

    Scaled multipliers are rescaled with it, so that the unscaled ones, μu, stay what they are.
    """
    before = prior.mu
    if admm.schedule == "ramp":
        prior.mu = scheduled_mu(admm, prior.name, epoch + 1)
    elif admm.schedule == "balance" and residuals.dual > 0:  # proposals that stand still are no reason to push
        start = scheduled_mu(admm, prior.name, admm.warm_up)
        factor = (
            2.0 if residuals.primal > 10 * residuals.dual else 0.5 if residuals.dual > 10 * residuals.primal else 1.0
        )
        prior.mu = min(max(prior.mu * factor, start / _BALANCE_RANGE), start * _BALANCE_RANGE)
    if prior.mu != before:
        prior.multiplier.mul_(before / prior.mu)


def scheduled_mu(admm: AdmmConfig, name: PriorName, epoch: int) -> float:
    """Return μ at the start of an epoch (from 0), as far as the schedule fixes it in advance; 0 in the warm-up."""
    mu, done = admm.mu_crf if name == "crf" else admm.mu_size, epoch - admm.warm_up
    if done < 0:
        return 0.0
    return mu * min(1.0, (done + 1) / admm.ramp_epochs) if admm.schedule == "ramp" else mu
