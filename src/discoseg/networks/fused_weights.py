"""The weight gradients of small convolutions through Triton: whether, how they are cut, launches.

At a small network's sizes the products themselves take a microsecond, what a library does around them (clear, choose,
split, add, convert) ten or more. Here it is one kernel, whose result is already in the weight's type and layout.
A launch depends on the shapes alone, so a CUDA graph can record it.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from discoseg.kernels import kernels_fit
from discoseg.networks import triton_weights as kernels
from discoseg.networks.fused import to_channels_last
from discoseg.networks.fused_normalise import power_of_2

Pair = tuple[int, int]

_WORK = 2**29  # multiplications: beyond, libraries use the GPU better
_PROGRAMS = 128  # about one for each of an H200's 132 multiprocessors, or
_BLOCKS = 8  # blocks of rows to a part, if that takes two programs each at most
_OUTPUTS = 32  # of a tile, at most, and
_COLUMNS = 64  # taps × inputs: in float32 as many values as the threads hold beside their loads
_ROWS = 128  # in a block, at most: two or three blocks wait in shared memory
_TILE = 4096  # values of x in a block, at most
_LEAST = 16  # rows and columns that a tensor core takes
_WARPS = 4
_GROUP = 16  # parts that one program adds up: about the root of how many there are
_COUNTERS = 3 * _PROGRAMS  # tiles are no more than programs, groups of parts hardly more than tiles


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

    @property
    def counters(self) -> int:
        """How many counters the programs need to find out who is the last: each tile's groups of parts, and itself."""
        return self.tiles * (math.ceil(self.parts / _GROUP) + 1) if self.parts > 1 else 0


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


def new_counters(device: torch.device) -> Tensor:
    """Return the zeros, int32, that ``weight_gradient`` counts with and leaves as zeros.

    Gradients that are computed one after the other, on one stream, can share them.
    """
    return torch.zeros(_COUNTERS, dtype=torch.int32, device=device)


def weight_gradient_fits(dy: Tensor, x: Tensor, weight: Tensor, groups: int) -> bool:
    """Say whether ``weight_gradient`` can take over from torch, and is likely to be faster."""
    if groups != 1 or not kernels_fit(x) or dy.dtype != x.dtype or _steps(weight) is None:
        return False
    if x.dtype == torch.float32 and not torch.backends.cudnn.allow_tf32:
        return False
    rows = dy.numel() // dy.shape[1]
    small = max(dy.numel(), x.numel(), rows * max(dy.shape[2:])) < 2**31
    return small and rows * weight.numel() <= _WORK


def weight_gradient(
    dy: Tensor, x: Tensor, weight: Tensor, counters: Tensor, *, stride: Pair, padding: Pair, dilation: Pair
) -> Tensor:
    """Return the gradient of ``weight`` (outputs, inputs, h, w), in its type and memory layout.

    For a convolution of x (B, inputs, H, W) whose result has the gradient dy (B, outputs, H', W'). A transposed
    convolution's is found the other way around: its input as ``dy``, its result's gradient as ``x``. float32 is
    multiplied as TF32 and added as float32. ``counters`` come from ``new_counters``.
    """
    dy, x = to_channels_last(dy), to_channels_last(x)
    outputs, inputs, *kernel = weight.shape
    taps, rows = math.prod(kernel), dy.numel() // outputs
    cut = plan(rows, outputs, taps, inputs)
    unit_o, unit_i = math.gcd(outputs, _LEAST), math.gcd(inputs, _LEAST)
    steps = _steps(weight)
    assert steps is not None
    dw, partials = torch.empty_like(weight), None
    if cut.parts > 1:
        assert cut.counters <= len(counters)
        partials = x.new_empty(cut.tiles, cut.parts, cut.block_o, cut.block_t * cut.block_i, dtype=torch.float32)
    kernels.product_kernel[(cut.tiles, cut.parts)](
        *(dy, x, dw, partials, None if partials is None else counters),
        *(rows, cut.chunk, outputs // unit_o, inputs // unit_i),
        *(*dy.shape[2:], *x.shape[2:], taps, kernel[1], *stride, *padding, *dilation, *steps),
        SHIFT=(taps, stride, padding) != (1, (1, 1), (0, 0)),
        UNIT_O=unit_o,
        UNIT_I=unit_i,
        BLOCK_R=cut.block_r,
        BLOCK_O=cut.block_o,
        BLOCK_T=cut.block_t,
        BLOCK_I=cut.block_i,
        GROUP=_GROUP,
        num_warps=_WARPS,
    )
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
