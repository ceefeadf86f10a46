"""The normalisation of ``fused.py`` through Triton: block sizes, launches and the gradient.

A launch depends on the shapes alone (nothing is tuned or read back on the way), so a CUDA graph can record it.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from discoseg.networks import triton_normalise as kernels
from discoseg.networks.dropout import Dropout
from discoseg.networks.fused import to_channels_last

_PROGRAMS = 256  # about two for each of an H200's 132 multiprocessors
_PARTS = 256  # at most, and
_PARTIALS = 2048  # values of each sum for a program to combine: fewer than it then works on
_FEW_PARTS = 64
_PART = 2048  # values in a part, at least
_PER_THREAD = 16  # values of a tile: four loads of 16 bytes under way at once in float32
_SEGMENT_BYTES = 64  # of a row in a tile: two sectors


@dataclass(frozen=True)
class Plan:
    """How a matrix of rows × channels is cut: ``parts`` of ``chunk`` rows, ``groups`` of ``columns`` channels."""

    chunk: int
    parts: int
    columns: int
    groups: int
    warps: int

    @property
    def padded_parts(self) -> int:
        """How many parts the kernels make room for: two sizes at most, because each is compiled anew."""
        return power_of_2(self.parts if self.parts > _FEW_PARTS else _FEW_PARTS)

    @property
    def grid(self) -> tuple[int, int]:
        """Programs of a launch, groups of channels by parts of rows."""
        return self.groups, self.parts  # groups first: programs that share lines of memory run together

    def tile(self, per_thread: int) -> dict[str, int]:
        """Return the launch options of a kernel whose threads hold ``per_thread`` values of each tensor."""
        rows = self.warps * 32 * per_thread // self.columns
        return {"BLOCK_R": rows, "BLOCK_C": self.columns, "num_warps": self.warps}


def plan(rows: int, channels: int, itemsize: int) -> Plan:
    """Cut into parts enough to fill the GPU, and few enough that combining what they leave is cheap."""
    columns = min(power_of_2(channels), _SEGMENT_BYTES // itemsize)
    if channels < 2 * columns:
        columns = min(columns, 16)  # one group alone needs many parts, and each adds to what is combined
    groups = math.ceil(channels / columns)
    parts = min(_PROGRAMS // groups, _PARTIALS // columns, _PARTS, rows * columns // _PART)
    chunk = math.ceil(rows / 2 ** (max(parts, 1).bit_length() - 1))
    parts = math.ceil(rows / chunk)
    most = 16 if groups * parts <= _PROGRAMS // 2 else 8  # of 128 registers a thread: one or two on a multiprocessor
    warps = min(max(power_of_2(chunk * columns // (32 * _PER_THREAD)), 4), most)
    return Plan(chunk, parts, columns, groups, warps)


def power_of_2(n: int) -> int:
    """Return the smallest power of two that is at least ``n``."""
    return 1 << max(n - 1, 0).bit_length()


def train(
    x: Tensor,
    norm: nn.BatchNorm2d,
    activation: nn.PReLU | nn.ReLU | None,
    dropout: Dropout | None,
    residual: Tensor | None,
    partials: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Normalise by the batch's statistics, and move the running ones as torch does; return the result twice.

    The two are one tensor, and two to autograd: each has a gradient, and the backward kernel adds these. ``partials``
    (2, parts, C) are the statistics of x in the parts of its ``plan``, where they are known already.
    ``num_batches_tracked`` stays as it is: nothing needs it beside a momentum, and counting is a kernel more.
    """
    noise = None if dropout is None else dropout.take_noise(x)
    slope = activation.weight if isinstance(activation, nn.PReLU) else None
    settings = norm, activation is not None, dropout.p if dropout else 0.0
    first, second = _Normalise.apply(x, residual, norm.weight, norm.bias, slope, noise, partials, *settings)
    return first, second


def evaluate(x: Tensor, norm: nn.BatchNorm2d, activation: nn.PReLU | nn.ReLU | None, residual: Tensor | None) -> Tensor:
    """Normalise by the running statistics; no gradients."""
    slope = activation.weight if isinstance(activation, nn.PReLU) else None
    parameters = norm.weight, norm.bias, slope
    return _apply(x, residual, None, *parameters, None, None, norm, activation is not None, 0.0)


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        slope: Tensor | None,
        noise: Tensor | None,
        partials: Tensor | None,
        norm: nn.BatchNorm2d,
        activate: bool,
        dropout: float,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)  # or a kernel would make zeros for what is not used
        if partials is None:
            partials = statistics_in_parts(x)
        statistics = x.new_empty(2, x.shape[1], dtype=torch.float32)
        inputs = x, residual, noise, weight, bias, slope
        ctx.save_for_backward(*inputs, statistics)
        ctx.activate, ctx.dropout = activate, dropout
        y = _apply(*inputs, partials, statistics, norm, activate, dropout)
        return y, y.view_as(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        x, residual, noise, weight, bias, slope, statistics = ctx.saved_tensors
        dy, *more = (to_channels_last(dy) for dy in gradients if dy is not None)
        cut, shape = _cut(x, residual)
        partials = x.new_empty(3, cut.parts, x.shape[1], dtype=torch.float32)
        dz = torch.empty_like(x) if more or residual is not None else None
        kernels.sums_kernel[cut.grid](
            *(dy, more[0] if more else None, x, residual, noise, weight, bias, slope, statistics, dz, partials),
            **shape,
            dropout=ctx.dropout,
            ACTIVATE=ctx.activate,
            **cut.tile(_PER_THREAD // 2),  # it also holds three sums
        )
        dx, *parameters = input_gradient(
            *(dy if dz is None else dz, x, noise, weight, bias, slope, statistics, partials),
            activate=ctx.activate and dz is None,
            dropout=ctx.dropout,
        )
        dresidual = None if dz is None or residual is None else dz[:, : residual.shape[1]]
        return dx, dresidual, *parameters, None, None, None, None, None


def statistics_in_parts(x: Tensor) -> Tensor:
    """Return mean and sum of squared deviations of each channel in the parts of x's plan, (2, parts, C) float32."""
    cut, shape = _cut(x, None)
    partials = x.new_empty(2, cut.parts, x.shape[1], dtype=torch.float32)
    kernels.statistics_kernel[cut.grid](
        x, partials, shape["rows"], shape["chunk"], shape["units"], UNIT=shape["UNIT"], **cut.tile(_PER_THREAD)
    )
    return partials


def input_gradient(
    dy: Tensor,
    x: Tensor,
    noise: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    slope: Tensor | None,
    statistics: Tensor,
    partials: Tensor,
    *,
    activate: bool = False,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the gradients of x, weight, bias and slope from the sums that ``sums_kernel`` left, (3, parts, C).

    ``dy`` is the gradient behind the activation if ``activate``, before it otherwise.
    """
    cut, shape = _cut(x, None)
    del shape["residual_units"]
    dx, dweight, dbias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)
    dslope = None if slope is None else torch.empty_like(slope)
    kernels.gradient_kernel[cut.grid](
        *(dy, x, noise, weight, bias, slope, statistics, partials, dx, dweight, dbias, dslope),
        **shape,
        dropout=dropout,
        ACTIVATE=activate,
        PARTS=cut.padded_parts,
        **cut.tile(_PER_THREAD),
    )
    return dx, dweight, dbias, dslope


def _apply(
    x: Tensor,
    residual: Tensor | None,
    noise: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    slope: Tensor | None,
    partials: Tensor | None,
    statistics: Tensor | None,
    norm: nn.BatchNorm2d,
    activate: bool,
    dropout: float,
) -> Tensor:
    y = torch.empty_like(x)
    cut, shape = _cut(x, residual)
    kernels.apply_kernel[cut.grid](
        *(x, residual, noise, weight, bias, slope, partials, norm.running_mean, norm.running_var, y, statistics),
        **shape,
        dropout=dropout,
        momentum=norm.momentum,
        eps=norm.eps,
        ACTIVATE=activate,
        PARTS=1 if partials is None else cut.padded_parts,
        **cut.tile(_PER_THREAD),
    )
    return y


def _cut(x: Tensor, residual: Tensor | None) -> tuple[Plan, dict[str, int]]:
    """Return the plan for a tensor (B, C, H, W), and what every kernel is told of its shape."""
    batch, channels, height, width = x.shape
    added = 0 if residual is None else residual.shape[1]
    unit = math.gcd(channels, added, 16)
    cut = plan(batch * height * width, channels, x.element_size())
    shape = {
        "rows": batch * height * width,
        "chunk": cut.chunk,
        "pixels": height * width,
        "units": channels // unit,
        "residual_units": added // unit,
        "UNIT": unit,
    }
    return cut, shape
