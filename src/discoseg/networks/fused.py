"""Batch norm, dropout of features, a residual and an activation in one call: few kernels on CUDA, torch elsewhere.

At a training step's sizes (1 to 8 MB a tensor) a GPU waits for kernels to start, not for memory: what counts is how
many there are. On CUDA, where Triton can be imported, ``normalise`` takes two forward (evaluation, or statistics that
a convolution brought along: one) and two backward, where torch's modules take about eleven.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from discoseg.kernels import kernels_fit
from discoseg.networks.dropout import Dropout

Twice = tuple[Tensor, Tensor]
"""One tensor under two names, each with a gradient of its own."""


def to_channels_last(x: Tensor) -> Tensor:
    """Return (B, C, H, W), a pixel's features side by side in memory; copies only where they are not."""
    return x.contiguous(memory_format=torch.channels_last)


def normalise(
    x: Tensor,
    norm: nn.Module,
    activation: nn.Module | None,
    *,
    dropout: nn.Module | None = None,
    residual: Tensor | None = None,
    statistics: Tensor | None = None,
) -> Tensor:
    """Return activation(dropout(norm(x)) + residual) for x (B, C, H, W).

    The modules are the network's own: BatchNorm2d, PReLU (one slope a channel) or ReLU, Dropout. The residual
    (B, C or fewer, H, W) is filled up with zero features. The kernels compute in float32 and return x's type in
    channels-last layout; ``statistics`` of x that its convolution brought along spare them one.
    """
    return normalise_twice(x, norm, activation, dropout=dropout, residual=residual, statistics=statistics)[0]


def normalise_twice(
    x: Tensor,
    norm: nn.Module,
    activation: nn.Module | None,
    *,
    dropout: nn.Module | None = None,
    residual: Tensor | None = None,
    statistics: Tensor | None = None,
) -> Twice:
    """Return what ``normalise`` does, twice: for two uses, whose gradients no kernel of its own has to add then."""
    if kernels_fit(x):
        from discoseg.networks import fused_normalise

        assert isinstance(norm, nn.BatchNorm2d)
        assert isinstance(dropout, Dropout | None)
        assert isinstance(activation, nn.PReLU | nn.ReLU | None)
        x, residual = to_channels_last(x), None if residual is None else to_channels_last(residual)
        if norm.training and x.numel() > x.shape[1]:  # torch refuses one value a channel
            return fused_normalise.train(x, norm, activation, dropout, residual, statistics)
        if not (norm.training or torch.is_grad_enabled()):
            y = fused_normalise.evaluate(x, norm, activation, residual)
            return y, y
    y = norm(x)
    if dropout is not None:
        y = dropout(y)
    if residual is not None:
        y = _widen(residual, y.shape[1]) + y
    if activation is not None:
        y = activation(y)
    return y, y


def _widen(x: Tensor, channels: int) -> Tensor:
    """Fill (B, C, H, W) up with zero features."""
    added = channels - x.shape[1]
    return functional.pad(x, (0, 0, 0, 0, 0, added)) if added else x


def join(x: Tensor, y: Tensor) -> Tensor:
    """Append the features of (B, D, H, W) to those of (B, C, H, W)."""
    if kernels_fit(x):  # torch.cat takes one channel for contiguous, and returns that layout
        pixels = [t.permute(0, 2, 3, 1) for t in (x, y)]
        return torch.cat(pixels, dim=3).permute(0, 3, 1, 2)
    return torch.cat([x, y], dim=1)
