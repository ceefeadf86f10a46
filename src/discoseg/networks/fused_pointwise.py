"""1×1 convolutions through Triton that bring the statistics of their result along: a kernel less for each.

A launch depends on the shapes alone, so a CUDA graph can record it.
"""

import math
from typing import Any

import torch
from torch import Tensor

from discoseg.kernels import kernels_fit
from discoseg.networks import triton_pointwise as kernels
from discoseg.networks.fused import to_channels_last
from discoseg.networks.fused_normalise import plan, power_of_2

_LEAST = 16  # rows and columns that a tensor core takes
_INPUTS = 32  # of a block, at most: a few blocks wait in shared memory
_PER_THREAD = 8  # values of a tile, and as many of each of its two statistics
_POINTWISE = (1, 1), (0, 0), (1, 1), False, (0, 0), 1


def convolution_fits(x: Tensor, weight: Tensor, bias: Tensor | None, shape: tuple[Any, ...]) -> bool:
    """Say whether ``convolve`` can take over from torch; ``shape`` are the settings of ``aten::convolution``."""
    if bias is not None or weight.shape[2:] != (1, 1) or shape != _POINTWISE or not kernels_fit(x):
        return False
    if x.dtype == torch.float32 and not torch.backends.cudnn.allow_tf32:
        return False
    return weight.shape[0] >= _LEAST and max(x.shape[1], weight.shape[0]) * x[:, 0].numel() < 2**31


def convolve(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the 1×1 convolution (B, outputs, H, W) of x (B, inputs, H, W), and its statistics in parts.

    ``weight`` (outputs, inputs, 1, 1) is of x's type. The parts (2, parts, outputs), float32, are those that
    ``fused_normalise.train`` would find in the result.
    """
    x = to_channels_last(x)
    batch, inputs, height, width = x.shape
    outputs = len(weight)
    rows = batch * height * width
    shape = batch, outputs, height, width
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
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
