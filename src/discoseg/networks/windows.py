"""Halving and doubling the resolution in 2×2 windows; the sides are even."""

import torch
from torch import Tensor
from torch.nn import functional

from discoseg.kernels import kernels_fit
from discoseg.networks.fused import to_channels_last


def pool(x: Tensor) -> Tensor:
    """Return 2×2 max pooling of (B, C, H, W)."""
    return pool_with_corners(x)[0] if kernels_fit(x) else functional.max_pool2d(x, 2)


def pool_with_corners(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return 2×2 max pooling and the corner (0 to 3, row by row, uint8) each maximum came from."""
    if kernels_fit(x):
        from discoseg.networks.fused_windows import Pool

        pooled, corners = Pool.apply(to_channels_last(x))
        return pooled, corners
    pooled, indices = functional.max_pool2d(x, 2, return_indices=True)
    columns = x.shape[-1]  # even, so a flat index has the parity of its column
    return pooled, (indices // columns % 2 * 2 + indices % 2).to(torch.uint8)


def unpool(x: Tensor, corners: Tensor) -> Tensor:
    """Put each value of (B, C, H, W) into its corner of a 2×2 window, zeros into the other three.

    Equals torch's max_unpool2d, and as fast, but that one has no deterministic CUDA implementation.
    """
    if kernels_fit(x):
        from discoseg.networks.fused_windows import Unpool

        result: Tensor = Unpool.apply(x, to_channels_last(corners))
        return result
    windows = torch.stack([torch.where(corners == corner, x, 0) for corner in range(4)], dim=2)  # (B, C, 4, H, W)
    return functional.pixel_shuffle(windows.flatten(1, 2), 2)


def join_doubled(x: Tensor, skip: Tensor) -> Tensor:
    """Repeat each pixel of (B, C, H, W) 2×2 times, and append the features of ``skip`` (B, D, 2H, 2W)."""
    if kernels_fit(x):
        from discoseg.networks.fused_windows import JoinDoubled

        result: Tensor = JoinDoubled.apply(x, skip)
        return result
    return torch.cat([functional.interpolate(x, scale_factor=2, mode="nearest"), skip], dim=1)
