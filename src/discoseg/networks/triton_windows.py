"""Triton kernels on 2×2 windows of a channels-last tensor: pool them, spread a value over one, collect from one.

A program takes BLOCK_P pixels of the small image × BLOCK_C channels. A corner is 0 to 3, row by row.
"""

import triton
import triton.language as tl


@triton.jit
def _tile(pixels, columns, pitch):
    """Return the offsets (P, C) of pixels ``pitch`` values apart, int64: a tensor may hold more than 2³¹ values."""
    return pixels.to(tl.int64)[:, None] * pitch + columns[None, :]


@triton.jit
def _window(pixels, corner: tl.constexpr, width):
    """Return the pixels of the large image in this corner of the small one's (B·H·W, width W)."""
    return (pixels // width) * (4 * width) + (pixels % width) * 2 + (corner // 2) * (2 * width) + corner % 2


@triton.jit
def pool_kernel(
    x, pooled, corners, pixels, width, units,
    UNIT: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Write each window's maximum and the corner it came from, the first of equals, as torch does."""
    channels = units * UNIT  # tells the compiler what divides it: loads of 16 bytes
    pixel = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = (pixel < pixels)[:, None] & (columns < channels)[None, :]
    best = tl.load(x + _tile(_window(pixel, 0, width), columns, channels), mask=inside)
    where = tl.zeros((BLOCK_P, BLOCK_C), tl.uint8)
    for corner in tl.static_range(1, 4):
        value = tl.load(x + _tile(_window(pixel, corner, width), columns, channels), mask=inside)
        better = (value > best) | (value != value)
        best = tl.where(better, value, best)
        where = tl.where(better, corner, where).to(tl.uint8)
    at = _tile(pixel, columns, channels)
    tl.store(pooled + at, best, mask=inside)
    tl.store(corners + at, where, mask=inside)


@triton.jit
def spread_kernel(
    x, corners, y, pixels, width, units, x_units, y_units,
    UNIT: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Write each value into its corner of the window, zeros into the others; without ``corners`` into all four."""
    channels = units * UNIT
    pixel = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = (pixel < pixels)[:, None] & (columns < channels)[None, :]
    value = tl.load(x + _tile(pixel, columns, x_units * UNIT), mask=inside)
    if corners is not None:
        where = tl.load(corners + _tile(pixel, columns, channels), mask=inside)
    for corner in tl.static_range(4):
        at = y + _tile(_window(pixel, corner, width), columns, y_units * UNIT)
        if corners is None:
            tl.store(at, value, mask=inside)
        else:
            tl.store(at, tl.where(where == corner, value, 0.0).to(y.dtype.element_ty), mask=inside)


@triton.jit
def collect_kernel(
    x, corners, y, pixels, width, units, x_units,
    UNIT: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Write the value in each window's corner; without ``corners`` the sum of all four."""
    channels = units * UNIT
    pixel = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = (pixel < pixels)[:, None] & (columns < channels)[None, :]
    at = _tile(pixel, columns, channels)
    total = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    if corners is not None:
        where = tl.load(corners + at, mask=inside)
    for corner in tl.static_range(4):
        place = _tile(_window(pixel, corner, width), columns, x_units * UNIT)
        value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
        if corners is None:
            total += value
        else:
            total = tl.where(where == corner, value, total)
    tl.store(y + at, total.to(y.dtype.element_ty), mask=inside)
