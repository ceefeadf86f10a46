"""Triton kernels of 1×1 convolutions that do what the normalisations before and behind them would take kernels for.

    y[r, c] = Σ_i x[r, i] · W[c, i]

Rows are pixels, columns are features, and the grid is that of ``triton_normalise.py`` for the result: a program owns a
part of the rows and BLOCK_C of the columns. float32 is multiplied as TF32 and added as float32.
"""

import triton
import triton.language as tl

from discoseg.networks.triton_normalise import (
    columns_of,
    combine_parts,
    inside_of,
    leave_statistics,
    leave_sums,
    load_columns,
    load_tile,
    note_statistics,
    offsets_of,
    take_in,
)


@triton.jit(do_not_specialize=["rows", "chunk", "input_units", "units"])
def convolve_kernel(
    x, weight, y, partials, rows, chunk, input_units, units,
    UNIT_I: tl.constexpr, UNIT: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    """Write y, and the mean and the sum of squared deviations of each part, (2, parts, channels), of y as it is stored.

    Those are what ``statistics_kernel`` finds.
    """
    channels = units * UNIT
    inputs = input_units * UNIT_I
    columns = columns_of(BLOCK_C)
    first = tl.program_id(1) * chunk
    last = tl.minimum(first + chunk, rows)
    mean = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    m2 = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    seen = 0.0
    for step in range(0, chunk, BLOCK_R):
        start = first + step
        value = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
        for origin in range(0, inputs, BLOCK_I):
            i = origin + tl.arange(0, BLOCK_I)
            left = tl.load(
                x + offsets_of(start, i, inputs, BLOCK_R), mask=inside_of(start, last, i, inputs, BLOCK_R), other=0.0
            )  # (R, I)
            inside_w = (i < inputs)[:, None] & (columns < channels)[None, :]
            right = tl.load(weight + columns[None, :] * inputs + i[:, None], mask=inside_w, other=0.0)  # (I, C)
            value = tl.dot(left, right, value, input_precision="tf32")
        stored = value.to(y.dtype.element_ty)
        inside = inside_of(start, last, columns, channels, BLOCK_R)
        tl.store(y + offsets_of(start, columns, channels, BLOCK_R), stored, mask=inside)
        seen += 1.0
        mean, m2 = take_in(stored.to(tl.float32), mean, m2, seen, inside)
    leave_statistics(partials, mean, m2, last - first, columns, channels, BLOCK_R)


@triton.jit(do_not_specialize=["rows", "chunk", "x_chunk", "x_parts", "input_units", "units"])
def normalise_convolve_kernel(
    x, x_partials, gain, bias, slope, running_mean, running_var, statistics, normalised, weight, y, partials,
    rows, chunk, x_chunk, x_parts, input_units, units, momentum, eps,
    PARTS: tl.constexpr, UNIT_I: tl.constexpr, UNIT: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    """Do as ``apply_kernel`` to x, then as ``convolve_kernel``; BLOCK_I holds all inputs.

    ``x_partials`` (2, x_parts, inputs) are of x's own plan. Each program normalises for itself what it convolves.
    """
    channels = units * UNIT
    inputs = input_units * UNIT_I
    columns = columns_of(BLOCK_C)
    i = tl.arange(0, BLOCK_I)
    first = tl.program_id(1) * chunk
    last = tl.minimum(first + chunk, rows)
    value = load_tile(x, first, last, i, inputs, BLOCK_R)  # on its way while the sums are combined
    inside_w = (i < inputs)[:, None] & (columns < channels)[None, :]
    right = tl.load(weight + columns[None, :] * inputs + i[:, None], mask=inside_w, other=0.0)  # (I, C)
    x_mean, x_m2 = combine_parts(x_partials, rows, x_chunk, x_parts, i, inputs, PARTS)
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        note_statistics(running_mean, running_var, statistics, x_mean, x_m2, rows, momentum, eps, i, inputs)
    inverse = 1.0 / tl.sqrt(x_m2 / rows + eps)
    gain_i = load_columns(gain, i, inputs, 0.0)
    offset = load_columns(bias, i, inputs, 0.0)
    slope_i = load_columns(slope, i, inputs, 0.0)
    mean = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    m2 = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    seen = 0.0
    for step in range(0, chunk, BLOCK_R):
        start = first + step
        following = load_tile(x, start + BLOCK_R, last, i, inputs, BLOCK_R)
        z = (value - x_mean[None, :]) * inverse[None, :] * gain_i[None, :] + offset[None, :]
        z = tl.where(z > 0, z, z * slope_i[None, :])
        left = z.to(normalised.dtype.element_ty)
        if tl.program_id(0) == 0:
            inside_x = inside_of(start, last, i, inputs, BLOCK_R)
            tl.store(normalised + offsets_of(start, i, inputs, BLOCK_R), left, mask=inside_x)
        product = tl.dot(left, right, input_precision="tf32").to(y.dtype.element_ty)
        inside = inside_of(start, last, columns, channels, BLOCK_R)
        tl.store(y + offsets_of(start, columns, channels, BLOCK_R), product, mask=inside)
        seen += 1.0
        mean, m2 = take_in(product.to(tl.float32), mean, m2, seen, inside)
        value = following
    leave_statistics(partials, mean, m2, last - first, columns, channels, BLOCK_R)


@triton.jit(do_not_specialize=["rows", "chunk", "output_units", "units"])
def gradient_sums_kernel(
    dy, weight, x, gain, bias, slope, statistics, dz, partials, rows, chunk, output_units, units,
    UNIT_O: tl.constexpr, UNIT: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """Take dy (rows, outputs) back through the convolution of what x was normalised to, then do as ``sums_kernel``.

    Columns are the convolution's inputs. dz is always written.
    """
    channels = units * UNIT
    outputs = output_units * UNIT_O
    columns = columns_of(BLOCK_C)
    first = tl.program_id(1) * chunk
    last = tl.minimum(first + chunk, rows)
    mean = load_columns(statistics, columns, channels, 0.0)
    inverse = load_columns(statistics + channels, columns, channels, 0.0)
    gain_c = load_columns(gain, columns, channels, 0.0)
    offset = load_columns(bias, columns, channels, 0.0)
    slope_c = load_columns(slope, columns, channels, 0.0)
    sum_g = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    sum_gx = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    sum_slope = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for step in range(0, chunk, BLOCK_R):
        start = first + step
        value = load_tile(x, start, last, columns, channels, BLOCK_R)
        g = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
        for origin in range(0, outputs, BLOCK_O):
            o = origin + tl.arange(0, BLOCK_O)
            inside_y = inside_of(start, last, o, outputs, BLOCK_R)
            left = tl.load(dy + offsets_of(start, o, outputs, BLOCK_R), mask=inside_y, other=0.0)  # (R, O)
            inside_w = (o < outputs)[:, None] & (columns < channels)[None, :]
            right = tl.load(weight + o[:, None] * channels + columns[None, :], mask=inside_w, other=0.0)  # (O, C)
            g = tl.dot(left, right, g, input_precision="tf32")
        normal = (value - mean[None, :]) * inverse[None, :]
        z = normal * gain_c[None, :] + offset[None, :]
        sum_slope += tl.where(z > 0, 0.0, g * z)
        g = tl.where(z > 0, g, g * slope_c[None, :])
        inside = inside_of(start, last, columns, channels, BLOCK_R)
        tl.store(dz + offsets_of(start, columns, channels, BLOCK_R), g.to(dz.dtype.element_ty), mask=inside)
        sum_g += g
        sum_gx += g * normal
    leave_sums(partials, slope, sum_g, sum_gx, sum_slope, columns, channels)
