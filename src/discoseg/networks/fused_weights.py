"""The weight gradients of small convolutions through Triton: whether, how they are cut, launches.

At a small network's sizes the products themselves take a microsecond, what a library does around them (clear, choose,
split, add, convert) ten or more. Here it is two kernels, whose result is already in the weight's type and layout.
A launch depends on the shapes alone, so a CUDA graph can record it.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from discoseg.networks import triton_weights as kernels
from discoseg.networks.fused import kernels_fit, to_channels_last
from discoseg.networks.fused_normalise import power_of_2

Pair = tuple[int, int]

_WORK = 2**29  # multiplications: beyond, libraries use the GPU better
_PROGRAMS = 128  # about one for each of an H200's 132 multiprocessors, or
_BLOCKS = 8  # blocks of rows to a part, if that takes two programs each at most
_OUTPUTS = 32  # of a tile, at most, and
_COLUMNS = 64  # taps × inputs: in float32 as many values as the threads hold beside their loads
_ROWS = 128  # in a block, at most: two or three blocks wait in shared memory
_TILE = 4096  # values of x in a block, at most, and of what a program adds up
_LEAST = 16  # rows and columns that a tensor core takes
_WARPS = 4


@dataclass(frozen=True)
class Plan:
    """How a gradient is cut: ``parts`` of ``chunk`` rows, tiles of outputs × (taps × inputs)."""

    chunk: int
    parts: int
    tiles: int
    block_o: int
    block_t: int
    block_i: int

    @property
    def block_r(self) -> int:
        """Rows that a program multiplies at a time."""
        return _block_of_rows(self.block_t * self.block_i)


def plan(rows: int, outputs: int, taps: int, inputs: int) -> Plan:
    """Cut into parts enough to occupy the GPU, each a whole number of blocks of rows."""
    block_o = min(max(power_of_2(outputs), _LEAST), _OUTPUTS)
    block_i = min(power_of_2(inputs), _COLUMNS)
    block_t = min(power_of_2(taps), _COLUMNS // block_i)
    if block_t * block_i < _LEAST:
        block_i = _LEAST // block_t
    tiles = math.ceil(outputs / block_o) * math.ceil(taps / block_t) * math.ceil(inputs / block_i)
    block_r = _block_of_rows(block_t * block_i)
    blocks = math.ceil(rows / block_r)
    parts = min(max(_PROGRAMS // tiles, math.ceil(blocks / _BLOCKS)), 2 * _PROGRAMS // tiles)
    chunk = math.ceil(blocks / max(parts, 1)) * block_r
    return Plan(chunk, math.ceil(rows / chunk), tiles, block_o, block_t, block_i)


def _block_of_rows(columns: int) -> int:
    return min(_TILE // columns, _ROWS)


def weight_gradient_fits(dy: Tensor, x: Tensor, weight: Tensor, groups: int) -> bool:
    """Say whether ``weight_gradient`` can take over from torch, and is likely to be faster."""
    if groups != 1 or not kernels_fit(x) or dy.dtype != x.dtype or _steps(weight) is None:
        return False
    if x.dtype == torch.float32 and not torch.backends.cudnn.allow_tf32:
        return False
    rows = dy.numel() // dy.shape[1]
    small = max(dy.numel(), x.numel(), rows * max(dy.shape[2:])) < 2**31
    return small and rows * weight.numel() <= _WORK


def weight_gradient(dy: Tensor, x: Tensor, weight: Tensor, *, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
    """Return the gradient of ``weight`` (outputs, inputs, h, w), in its type and memory layout.

    For a convolution of x (B, inputs, H, W) whose result has the gradient dy (B, outputs, H', W'). A transposed
    convolution's is found the other way around: its input as ``dy``, its result's gradient as ``x``. float32 is
    multiplied as TF32 and added as float32.
    """
    dy, x = to_channels_last(dy), to_channels_last(x)
    outputs, inputs, *kernel = weight.shape
    taps, rows = math.prod(kernel), dy.numel() // outputs
    cut = plan(rows, outputs, taps, inputs)
    unit_o, unit_i = math.gcd(outputs, _LEAST), math.gcd(inputs, _LEAST)
    steps = _steps(weight)
    assert steps is not None
    dw = torch.empty_like(weight)
    partials = dw if cut.parts == 1 else x.new_empty(cut.parts, weight.numel(), dtype=torch.float32)
    kernels.product_kernel[(cut.tiles, cut.parts)](
        *(dy, x, partials, rows, cut.chunk, outputs // unit_o, inputs // unit_i),
        *(*dy.shape[2:], *x.shape[2:], taps, kernel[1], *stride, *padding, *dilation, *steps),
        SHIFT=(taps, stride, padding) != (1, (1, 1), (0, 0)),
        UNIT_O=unit_o,
        UNIT_I=unit_i,
        BLOCK_R=cut.block_r,
        BLOCK_O=cut.block_o,
        BLOCK_T=cut.block_t,
        BLOCK_I=cut.block_i,
        num_warps=_WARPS,
    )
    if cut.parts > 1:
        parts = max(power_of_2(cut.parts), _LEAST)
        block = _TILE // parts
        grid = (math.ceil(weight.numel() / block),)
        kernels.add_kernel[grid](partials, dw, cut.parts, weight.numel(), PARTS=parts, BLOCK=block)
    return dw


def _steps(weight: Tensor) -> tuple[int, int, int] | None:
    """Return how far outputs, taps and inputs lie apart in memory, which has no holes; None for other layouts."""
    _, inputs, *kernel = weight.shape
    taps = math.prod(kernel)
    if weight.is_contiguous(memory_format=torch.channels_last):
        return taps * inputs, inputs, 1
    if weight.is_contiguous():
        return taps * inputs, 1, taps
    return None
