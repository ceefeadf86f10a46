"""The training loss through Triton: a kernel for the targets, two and a sum for the terms, instead of about fifty.

A launch depends on the shapes alone, so a CUDA graph can record it. The sums of programs are added in a fixed order.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from discoseg.config import Coupling
from discoseg.kernels import triton_loss as kernels

_BLOCK = 2048  # pixels of a program
MOST_TARGETS = 2  # of priors


def terms_fit(logits: Tensor, targets: Tensor) -> bool:
    """Say whether ``stack_terms`` can take over from torch, where kernels can."""
    return logits.shape[1] == 2 and targets.shape[1] <= MOST_TARGETS and logits.numel() < 2**31


def stack_terms(
    logits: Tensor,
    seeds: Tensor,
    targets: Tensor,
    mus: Sequence[Tensor],
    valid: Tensor | None,
    foreground_weight: float,
    coupling: Coupling,
) -> Tensor:
    """Return the terms (1 + T,) of ``losses.stack_terms``, for the same arguments, float32."""
    _, _, height, width = logits.shape
    if targets.stride()[1:] != (height * width, width, 1):  # some channels of a contiguous tensor will do
        targets = targets.contiguous()
    mask = None if valid is None else valid.contiguous().view(torch.uint8)
    logits = logits.contiguous(memory_format=torch.channels_last)
    weight, entropy = float(foreground_weight), coupling == "entropy"
    result: Tensor = _Terms.apply(logits, seeds.contiguous(), targets, mask, weight, entropy, *mus)
    return result


def gather_targets(priors: Sequence[tuple[Tensor, Tensor]], index: Tensor) -> Tensor:
    """Return y − u (B, T, H, W) of the slices ``index`` (B,), for one or two pairs of 2y uint8 and u, (N, H, W)."""
    first, last = priors[0], priors[-1]
    image = first[1].shape[1:]
    targets = first[1].new_empty(len(index), len(priors), *image)
    grid = math.ceil(image.numel() / _BLOCK), len(index)
    kernels.targets_kernel[grid](*(index, *first, *last, targets, image.numel()), TARGETS=len(priors), BLOCK=_BLOCK)
    return targets


class _Terms(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        seeds: Tensor,
        targets: Tensor,
        valid: Tensor | None,
        foreground_weight: float,
        entropy: bool,
        *mus: Tensor,
    ) -> Tensor:
        inputs = logits, seeds, targets, valid, *mus, *[None] * (MOST_TARGETS - len(mus))
        ctx.save_for_backward(*inputs)
        ctx.settings = {"foreground_weight": foreground_weight, "ENTROPY": entropy}
        programs = math.ceil(seeds.numel() / _BLOCK)
        partials = logits.new_empty(1 + len(mus), programs, dtype=torch.float32)
        kernels.terms_kernel[(programs,)](*inputs, partials, **ctx.settings, **_sizes(seeds, targets))
        return partials.sum(dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dterms: Tensor) -> tuple[Tensor | None, ...]:
        logits, seeds, targets, *_ = inputs = ctx.saved_tensors
        dlogits = torch.empty_like(logits)
        programs = math.ceil(seeds.numel() / _BLOCK)
        kernels.logits_gradient_kernel[(programs,)](
            dterms.contiguous(), *inputs, dlogits, **ctx.settings, **_sizes(seeds, targets)
        )
        return dlogits, *[None] * (5 + targets.shape[1])


def _sizes(seeds: Tensor, targets: Tensor) -> dict[str, int]:
    return {
        "pixels": seeds.numel(),
        "image_pixels": seeds[0].numel(),
        "target_step": targets.stride(0),
        "TARGETS": targets.shape[1],
        "BLOCK": _BLOCK,
    }
