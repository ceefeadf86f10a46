"""The operations of ``windows.py`` through Triton: launches and gradients.

Pooling and unpooling are each other's gradients, so three kernels do for all; each is deterministic.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from discoseg.networks import triton_windows as kernels
from discoseg.networks.fused import to_channels_last

_TILE = 1024  # values of the small image in a program


class Pool(torch.autograd.Function):
    """x (B, C, 2H, 2W) → maxima (B, C, H, W), corners uint8."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        batch, channels, height, width = x.shape
        shape = batch, channels, height // 2, width // 2
        pooled = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        corners = torch.empty_like(pooled, dtype=torch.uint8)
        grid, options = _launch(shape, pitches={})
        kernels.pool_kernel[grid](x, pooled, corners, **options)
        ctx.save_for_backward(corners)
        ctx.mark_non_differentiable(corners)
        ctx.set_materialize_grads(False)  # or a kernel would make zeros for the corners
        return pooled, corners

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: None) -> Tensor:
        (corners,) = ctx.saved_tensors
        return _spread(gradient, corners)


class Unpool(torch.autograd.Function):
    """x (B, C, H, W), corners → (B, C, 2H, 2W)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, corners: Tensor) -> Tensor:
        ctx.save_for_backward(corners)
        return _spread(x, corners)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (corners,) = ctx.saved_tensors
        return _collect(gradient, corners), None


class JoinDoubled(torch.autograd.Function):
    """x (B, C, H, W), skip (B, D, 2H, 2W) → (B, C + D, 2H, 2W)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, skip: Tensor) -> Tensor:
        batch, added, height, width = skip.shape
        ctx.channels = x.shape[1]
        shape = batch, ctx.channels + added, height, width
        joined = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        _spread(x, None, joined[:, : ctx.channels])
        joined[:, ctx.channels :].copy_(skip)
        return joined

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        gradient = to_channels_last(gradient)
        return _collect(gradient[:, : ctx.channels], None), gradient[:, ctx.channels :]


def _spread(x: Tensor, corners: Tensor | None, y: Tensor | None = None) -> Tensor:
    x, pitch = _pitched(x)
    if y is None:
        batch, channels, height, width = x.shape
        shape = batch, channels, 2 * height, 2 * width
        y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    y_pitch = y.stride(3)
    grid, options = _launch(x.shape, pitches={"x_units": pitch, "y_units": y_pitch})
    kernels.spread_kernel[grid](x, corners, y, **options)
    return y


def _collect(x: Tensor, corners: Tensor | None) -> Tensor:
    x, pitch = _pitched(x)
    batch, channels, height, width = x.shape
    shape = batch, channels, height // 2, width // 2
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    grid, options = _launch(shape, pitches={"x_units": pitch})
    kernels.collect_kernel[grid](x, corners, y, **options)
    return y


def _pitched(x: Tensor) -> tuple[Tensor, int]:
    """Return ``x`` and how many values lie between its pixels: channels-last, or some channels of such a tensor."""
    _, channels, height, width = x.shape
    pitch = x.stride(3)
    if pitch < channels or x.stride() != (height * width * pitch, 1, width * pitch, pitch):
        x, pitch = to_channels_last(x), channels
    return x, pitch


def _launch(shape: tuple[int, ...], *, pitches: dict[str, int]) -> tuple[tuple[int, int], dict[str, int]]:
    """Return the grid and the arguments for a small image (B, C, H, W)."""
    batch, channels, height, width = shape
    unit = math.gcd(channels, *pitches.values(), 16)
    pixels = batch * height * width
    columns = min(1 << (channels - 1).bit_length(), 64)
    options = {"pixels": pixels, "width": width, "units": channels // unit, "UNIT": unit}
    options |= {name: pitch // unit for name, pitch in pitches.items()}
    options |= {"BLOCK_P": _TILE // columns, "BLOCK_C": columns}
    return (math.ceil(pixels * columns / _TILE), math.ceil(channels / columns)), options
