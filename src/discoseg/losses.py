"""The terms of the training loss; each sums over pixels and shares one 1/n, n being all pixels of the batch.

    loss = 1/n · [ Σ_{p∈Ω} CE(s, y)  +  μ̂/2 · Σ_p (s − ŷ + û)²  +  μ̃/2 · Σ_p (s − ỹ + ũ)² ]

With the coupling ``entropy`` the squares become CE(s, ŷ − û) and CE(s, ỹ − ũ), their second arguments cut to [0, 1].

With K structures s, y and u have a component for each and one for the background, and (s − y + u)² becomes half the sum
of their squares, which for K = 1 is the same. Components of s − y + u sum to 0, so the background's is minus the sum of
the others.

Nothing here reads a value back to the host or lacks a deterministic CUDA implementation (torch's own 2D
cross-entropy does), so a step made of these can be captured in a CUDA graph and repeated exactly.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from discoseg.config import Coupling
from discoseg.kernels import kernels_fit


def partial_cross_entropy(logits: Tensor, seeds: Tensor, foreground_weight: float = 1.0) -> Tensor:
    """Sum the cross-entropy over the annotated pixels Ω and divide by all pixels.

    ``logits`` (B, K, H, W); ``seeds`` (B, H, W) int8: the class of a pixel, −1 where nobody annotated it. Pixels of all
    classes but the background, 0, count ``foreground_weight`` times.
    """
    classes = torch.arange(logits.shape[1], device=logits.device).view(1, -1, 1, 1)
    annotated = seeds.unsqueeze(1) == classes  # (B, K, H, W)
    log_probability = logits.float().log_softmax(dim=1)
    if foreground_weight != 1:
        log_probability = log_probability * torch.where(classes == 0, 1.0, foreground_weight)
    return -log_probability.where(annotated, 0.0).sum() / seeds.numel()


def augmented_term(probability: Tensor, target: Tensor, mu: float | Tensor, valid: Tensor | None = None) -> Tensor:
    """Pull the foreground probability towards a proposal: μ/2 · 1/n Σ (s − t)², with t = ŷ − û.

    ``probability`` and ``target`` (B, H, W). ``valid`` (B, H, W) bool drops the pixels that augmentation
    moved in from outside the image; they still count in n. The gradient is a term of Eq. (params_gradient).
    """
    square = (probability - target).square()
    if valid is not None:
        square = square * valid
    return mu / 2 * square.sum() / probability.numel()


def augmented_terms(probability: Tensor, target: Tensor, mu: float | Tensor, valid: Tensor | None = None) -> Tensor:
    """Pull the probabilities of K structures, (B, K, H, W), towards targets of the same shape, as `augmented_term`."""
    difference = probability - target
    square = (difference.square().sum(dim=1) + difference.sum(dim=1).square()) / 2
    if valid is not None:
        square = square * valid
    return mu / 2 * square.sum() / square.numel()


def entropy_terms(logits: Tensor, target: Tensor, mu: float | Tensor, valid: Tensor | None = None) -> Tensor:
    """Pull the probabilities of K structures towards targets (B, K, H, W), as `entropy_term`.

    The targets and the background's, 1 minus their sum, are cut to [0, 1] and divided by what they then sum to.
    ``logits`` (B, 1 + K, H, W).
    """
    target = torch.cat([1 - target.sum(dim=1, keepdim=True), target], dim=1).clamp(0, 1)
    target = target / target.sum(dim=1, keepdim=True)  # which is at least 1: what was cut off is negative or above 1
    entropy = -(target * logits.float().log_softmax(dim=1)).sum(dim=1)
    if valid is not None:
        entropy = entropy * valid
    return mu / 2 * entropy.sum() / entropy.numel()


def entropy_term(logits: Tensor, target: Tensor, mu: float | Tensor, valid: Tensor | None = None) -> Tensor:
    """Pull the foreground probability towards a proposal: μ/2 · 1/n Σ CE(s, t), with t = ŷ − û cut to [0, 1].

    Other than the square's, its gradient by the logits, μ/2 (s − t), does not vanish where the network is sure and
    wrong. ``logits`` (B, K, H, W), of which class 1 is the foreground; ``target`` and ``valid`` as in `augmented_term`.
    """
    log_probability = logits.float().log_softmax(dim=1)
    rest = torch.cat([log_probability[:, :1], log_probability[:, 2:]], dim=1).logsumexp(dim=1)
    target = target.clamp(0, 1)
    entropy = -(target * log_probability[:, 1] + (1 - target) * rest)
    if valid is not None:
        entropy = entropy * valid
    return mu / 2 * entropy.sum() / target.numel()


def stack_terms(
    logits: Tensor,
    seeds: Tensor,
    targets: Tensor,
    mus: Sequence[Tensor],
    valid: Tensor | None,
    foreground_weight: float = 1.0,
    coupling: Coupling = "square",
) -> Tensor:
    """Return the cross-entropy and the term of each prior, (1 + T,).

    ``logits`` (B, 1 + K, H, W), background first; ``seeds`` (B, H, W); ``targets`` (B, T · K, H, W), the K structures
    of one prior after the other, and ``mus``, the T penalty parameters; ``valid`` (B, H, W) or None;
    ``foreground_weight`` of the cross-entropy; ``coupling``: `augmented_term` or `entropy_term`. For one structure on
    CUDA it is a few kernels, of the same formulas.
    """
    if kernels_fit(logits):
        from discoseg.kernels import fused_loss

        if fused_loss.terms_fit(logits, targets):
            return fused_loss.stack_terms(logits, seeds, targets, mus, valid, foreground_weight, coupling)
    terms = [partial_cross_entropy(logits, seeds, foreground_weight)]
    structures = logits.shape[1] - 1
    if structures > 1:
        probabilities = logits.float().softmax(dim=1)[:, 1:]
        for several, mu in zip(targets.unflatten(1, (len(mus), structures)).unbind(dim=1), mus, strict=True):
            if coupling == "entropy":
                terms.append(entropy_terms(logits, several, mu, valid))
            else:
                terms.append(augmented_terms(probabilities, several, mu, valid))
        return torch.stack(terms)
    probability = foreground(logits)
    for target, mu in zip(targets.unbind(dim=1), mus, strict=True):
        if coupling == "entropy":
            terms.append(entropy_term(logits, target, mu, valid))
        else:
            terms.append(augmented_term(probability, target, mu, valid))
    return torch.stack(terms)


def foreground(logits: Tensor) -> Tensor:
    """Return the probability of class 1, (B, H, W) float32, for logits (B, K, H, W)."""
    return logits.float().softmax(dim=1)[:, 1]


def structures(logits: Tensor) -> Tensor:
    """Return the probability of each structure, (K, B, H, W) float32, for logits (B, 1 + K, H, W)."""
    return logits.float().softmax(dim=1)[:, 1:].transpose(0, 1)


def size_penalty(
    slice_sums: Tensor,
    *,
    slice_index: Tensor,
    volume_of_slice: Tensor,
    remembered_sums: Tensor,
    low: Tensor,
    high: Tensor,
    mu: float | Tensor,
    pixels: int,
) -> Tensor:
    """Penalise volumes whose summed probability leaves its bounds, Eq. (penalty_formulation) with two bounds.

    Only some slices of a volume are in the batch, the others count with their latest sums. Each volume of the
    batch costs, once,

        1/n · μ / (2 S_max) · (max{0, Σs − S_max}² + max{0, S_min − Σs}²),

    so that a pixel's gradient holds μ times the relative violation (Σs − S_max)/S_max, on the scale of
    ``augmented_term``'s μ (s − t). ``slice_sums`` (B,) summed probabilities, with gradient; ``slice_index``
    (B,) their distinct places among all N slices; ``volume_of_slice`` (N,); ``remembered_sums`` (N,) kept by
    ``remember_sums``; ``low`` and ``high`` (V,) voxels; ``pixels`` n, all pixels of the batch.
    """
    news = slice_sums.float() - remembered_sums[slice_index]
    volumes = volume_of_slice[slice_index]  # (B,), one volume may occur several times
    totals = torch.zeros_like(high, dtype=torch.float32)
    totals = totals.index_add(0, volume_of_slice, remembered_sums).index_add(0, volumes, news)  # (V,)
    squared_violation = (totals - high).relu().square() + (low - totals).relu().square()
    in_batch = torch.zeros_like(totals).index_fill(0, volumes, 1.0)
    return mu / 2 * (in_batch * squared_violation / high.clamp(min=1)).sum() / pixels


def remember_sums(remembered_sums: Tensor, slice_index: Tensor, slice_sums: Tensor) -> None:
    """Note the latest sums (B,) of the slices in the table (N,), in place and without gradient."""
    remembered_sums.index_copy_(0, slice_index, slice_sums.detach().to(remembered_sums.dtype))
