"""1×1 convolutions through Triton, with parts of the normalisations around them: fewer kernels.

Every one brings the statistics of its result along, for the normalisation behind it. Small ones are one function with
the normalisation before them: forward, its last kernel convolves too; backward, its first undoes the convolution.
A launch depends on the shapes alone, so a CUDA graph can record it.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from discoseg.kernels import kernels_fit
from discoseg.networks import triton_pointwise as kernels
from discoseg.networks.convolution import WeightGradients
from discoseg.networks.fused import to_channels_last
from discoseg.networks.fused_normalise import input_gradient, plan, power_of_2, statistics_in_parts

_LEAST = 16  # rows and columns that a tensor core takes
_INPUTS = 32  # of a block, at most: a few blocks wait in shared memory
_MOST_INPUTS = 64  # of a convolution whose programs normalise all of them
_PER_THREAD = 8  # values of a tile, and as many of each of its two statistics or three sums
_WORK = 2**28  # multiplications: beyond, libraries use the GPU better
_LAST = torch.channels_last
_POINTWISE = (1, 1), (0, 0), (1, 1), False, (0, 0), 1


def convolution_fits(x: Tensor, weight: Tensor, bias: Tensor | None, shape: tuple[Any, ...]) -> bool:
    """Say whether ``convolve`` can take over from torch, and is likely to be faster.

    ``shape`` are the settings of ``aten::convolution``.
    """
    if bias is not None or weight.shape[2:] != (1, 1) or shape != _POINTWISE or not kernels_fit(x):
        return False
    if x.dtype == torch.float32 and not torch.backends.cudnn.allow_tf32:
        return False
    return weight.shape[0] >= _LEAST and x.numel() * weight.shape[0] <= _WORK


def convolve(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the 1×1 convolution (B, outputs, H, W) of x (B, inputs, H, W), and its statistics in parts.

    ``weight`` (outputs, inputs, 1, 1) is of x's type. The parts (2, parts, outputs), float32, are those that
    ``fused_normalise.train`` would find in the result.
    """
    x = to_channels_last(x)
    batch, inputs, height, width = x.shape
    outputs = len(weight)
    rows = batch * height * width
    y = torch.empty((batch, outputs, height, width), dtype=x.dtype, device=x.device, memory_format=_LAST)
    cut = plan(rows, outputs, x.element_size())
    partials = x.new_empty(2, cut.parts, outputs, dtype=torch.float32)
    unit_i, unit = math.gcd(inputs, _LEAST), math.gcd(outputs, _LEAST)
    kernels.convolve_kernel[cut.grid](
        *(x, weight, y, partials, rows, cut.chunk, inputs // unit_i, outputs // unit),
        UNIT_I=unit_i,
        UNIT=unit,
        BLOCK_I=min(max(power_of_2(inputs), _LEAST), _INPUTS),
        **cut.tile(_PER_THREAD),
    )
    return y, partials


def both_fit(x: Tensor, weight: Tensor, bias: Tensor | None, shape: tuple[Any, ...]) -> bool:
    """Say whether ``normalise_convolve`` can take over from torch."""
    several = x.numel() > x.shape[1]  # torch refuses to normalise one value a channel
    return several and _LEAST <= x.shape[1] <= _MOST_INPUTS and convolution_fits(x, weight, bias, shape)


def normalise_convolve(
    x: Tensor,
    norm: nn.BatchNorm2d,
    activation: nn.PReLU | nn.ReLU,
    weight: Tensor,
    rounded: Tensor,
    beside: WeightGradients,
) -> tuple[Tensor, Tensor]:
    """Return ``convolve`` of activation(norm(x)), which moves the running statistics, with gradients.

    ``weight`` (outputs, inputs, 1, 1), which is ``rounded`` to x's type, gets its gradient from ``beside``.
    """
    slope = activation.weight if isinstance(activation, nn.PReLU) else None
    x = to_channels_last(x)
    y, partials = _NormaliseConvolve.apply(x, norm.weight, norm.bias, slope, weight, rounded, norm, beside)
    return y, partials


class _NormaliseConvolve(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gain: Tensor,
        bias: Tensor,
        slope: Tensor | None,
        weight: Tensor,
        rounded: Tensor,
        norm: nn.BatchNorm2d,
        beside: WeightGradients,
    ) -> tuple[Tensor, Tensor]:
        batch, inputs, height, width = x.shape
        outputs = len(weight)
        rows = batch * height * width
        x_cut, cut = plan(rows, inputs, x.element_size()), plan(rows, outputs, x.element_size())
        statistics, normalised = x.new_empty(2, inputs, dtype=torch.float32), torch.empty_like(x)
        y = torch.empty((batch, outputs, height, width), dtype=x.dtype, device=x.device, memory_format=_LAST)
        partials = x.new_empty(2, cut.parts, outputs, dtype=torch.float32)
        unit_i, unit = math.gcd(inputs, _LEAST), math.gcd(outputs, _LEAST)
        kernels.normalise_convolve_kernel[cut.grid](
            *(x, statistics_in_parts(x), gain, bias, slope, norm.running_mean, norm.running_var, statistics),
            *(normalised, rounded, y, partials),
            *(rows, cut.chunk, x_cut.chunk, x_cut.parts, inputs // unit_i, outputs // unit),
            momentum=norm.momentum,
            eps=norm.eps,
            PARTS=x_cut.padded_parts,
            UNIT_I=unit_i,
            UNIT=unit,
            BLOCK_I=power_of_2(inputs),
            **cut.tile(_PER_THREAD),
        )
        ctx.save_for_backward(x, gain, bias, slope, statistics, normalised, rounded)
        ctx.weight, ctx.beside = weight, beside
        ctx.mark_non_differentiable(partials)
        ctx.set_materialize_grads(False)  # or a kernel would make zeros for the statistics
        return y, partials

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, _: None) -> tuple[Tensor | None, ...]:
        x, gain, bias, slope, statistics, normalised, rounded = ctx.saved_tensors
        dy = to_channels_last(dy)
        ctx.beside.start(dy, normalised, rounded, ctx.weight, None, _POINTWISE)
        outputs, inputs = rounded.shape[:2]
        rows = x.numel() // inputs
        cut = plan(rows, inputs, x.element_size())
        dz, partials = torch.empty_like(x), x.new_empty(3, cut.parts, inputs, dtype=torch.float32)
        unit_o, unit = math.gcd(outputs, _LEAST), math.gcd(inputs, _LEAST)
        kernels.gradient_sums_kernel[cut.grid](
            *(dy, rounded, x, gain, bias, slope, statistics, dz, partials),
            *(rows, cut.chunk, outputs // unit_o, inputs // unit),
            UNIT_O=unit_o,
            UNIT=unit,
            BLOCK_O=min(max(power_of_2(outputs), _LEAST), _INPUTS),
            **cut.tile(_PER_THREAD),
        )
        gradients = input_gradient(dz, x, None, gain, bias, slope, statistics, partials)
        return *gradients, None, None, None, None
