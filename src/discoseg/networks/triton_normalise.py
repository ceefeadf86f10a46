"""Triton kernels of one normalisation: batch norm, dropout of features, a residual and an activation in one go.

    x̂ = (x − mean) / sqrt(var + eps),  z = s · (w · x̂ + b) + r,  y = z where z > 0, a · z elsewhere

A tensor (B, C, H, W) in channels-last layout is a matrix of B·H·W rows and C columns. All kernels run on one grid: a
program owns a part of the rows (``chunk`` of them) and BLOCK_C columns, goes through them tile by tile, fetching the
next tile before it uses this one, and leaves sums that the programs of the next kernel combine, each for its own
columns and in a fixed order: no atomics, so the same numbers give the same bits. Arithmetic is float32 whatever the
tensors are. ``channels`` comes as ``units`` of UNIT, which tells the compiler what divides it: loads of 16 bytes.
Pointers may be None: what they stand for is left out.
"""

import triton
import triton.language as tl

_SIZES = ["rows", "chunk", "pixels", "units", "residual_units"]  # whatever they are, one compilation will do


@triton.jit
def columns_of(BLOCK_C: tl.constexpr):
    return tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)


@triton.jit
def offsets_of(start, columns, channels, BLOCK_R: tl.constexpr):
    """Return a tile's offsets (R, C), int64 because a tensor may hold more than 2³¹ values."""
    return start.to(tl.int64) * channels + (tl.arange(0, BLOCK_R)[:, None] * channels + columns[None, :])


@triton.jit
def inside_of(start, last, columns, channels, BLOCK_R: tl.constexpr):
    return (start + tl.arange(0, BLOCK_R) < last)[:, None] & (columns < channels)[None, :]


@triton.jit
def load_tile(pointer, start, last, columns, channels, BLOCK_R: tl.constexpr):
    """Return rows ``start`` and on (R, C), float32, zero from row ``last`` or column ``channels`` on."""
    if pointer is None:
        tile = tl.zeros((1, 1), tl.float32)
    else:
        inside = inside_of(start, last, columns, channels, BLOCK_R)
        tile = tl.load(pointer + offsets_of(start, columns, channels, BLOCK_R), mask=inside, other=0.0).to(tl.float32)
    return tile


@triton.jit
def load_columns(pointer, columns, channels, default: tl.constexpr):
    """Return a parameter of each column (C,)."""
    if pointer is None:
        value = tl.full(columns.shape, default, tl.float32)
    else:
        value = tl.load(pointer + columns, mask=columns < channels, other=default).to(tl.float32)
    return value


@triton.jit
def _load_partials(partials, which, parts, columns, channels, PARTS: tl.constexpr):
    """Return one sum of every part, (PARTS, C) of (sums, parts, channels), zero beyond ``parts``."""
    part = tl.arange(0, PARTS)
    at = (which * parts + part)[:, None] * channels + columns[None, :]
    return tl.load(partials + at, mask=(part < parts)[:, None] & (columns < channels)[None, :], other=0.0)


@triton.jit
def _load_scale(noise, dropout, start, last, pixels, columns, channels, BLOCK_R: tl.constexpr):
    """Return dropout's factor s (R, C): uniform noise (B, C) decides for a channel of a sample."""
    if noise is None:
        scale = tl.full((1, 1), 1.0, tl.float32)
    else:
        sample = (start + tl.arange(0, BLOCK_R)) // pixels
        at = sample[:, None] * channels + columns[None, :]
        kept = tl.load(noise + at, mask=inside_of(start, last, columns, channels, BLOCK_R), other=0.0) >= dropout
        scale = tl.where(kept, 1.0 / (1.0 - dropout), 0.0)
    return scale


@triton.jit
def _combine(count, mean, m2):
    """Merge the means and sums of squared deviations (P, C) of P samples of ``count`` (P,) values (Chan et al.).

    The second pass also takes the rounding error out of the first one's mean: it counts where |mean| ≫ std.
    """
    total = tl.sum(count, axis=0)
    rough = tl.sum(count[:, None] * mean, axis=0) / total
    deviation = mean - rough[None, :]
    error = tl.sum(count[:, None] * deviation, axis=0) / total
    spread = tl.sum(m2 + count[:, None] * deviation * deviation, axis=0)
    return rough + error, spread - total * error * error


@triton.jit
def take_in(value, mean, m2, seen, inside):
    """Return mean and sum of squared deviations (R, C) with one more value each, their number ``seen`` (Welford)."""
    deviation = tl.where(inside, value - mean, 0.0)
    mean += deviation * (1.0 / seen)
    return mean, m2 + deviation * (value - mean)


@triton.jit
def leave_statistics(partials, mean, m2, rows, columns, channels, BLOCK_R: tl.constexpr):
    """Store the statistics of a part of ``rows`` rows, whose tiles' places (R, C) were taken in, in its place."""
    count = (rows - tl.arange(0, BLOCK_R) + BLOCK_R - 1) // BLOCK_R  # rows seen at each place
    part_mean, part_m2 = _combine(count.to(tl.float32), mean, m2)
    at = partials + tl.program_id(1) * channels + columns
    tl.store(at, part_mean, mask=columns < channels)
    tl.store(at + tl.num_programs(1) * channels, part_m2, mask=columns < channels)


@triton.jit(do_not_specialize=_SIZES)
def statistics_kernel(
    x, partials, rows, chunk, units,
    UNIT: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Leave the mean and the sum of squared deviations of each part, (2, parts, channels)."""
    channels = units * UNIT
    columns = columns_of(BLOCK_C)
    first = tl.program_id(1) * chunk
    last = tl.minimum(first + chunk, rows)
    mean = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    m2 = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    seen = 0.0
    value = load_tile(x, first, last, columns, channels, BLOCK_R)
    for step in range(0, chunk, BLOCK_R):  # an update at every place of the tile: no reduction in the loop
        start = first + step
        following = load_tile(x, start + BLOCK_R, last, columns, channels, BLOCK_R)
        seen += 1.0
        inside = inside_of(start, last, columns, channels, BLOCK_R)
        mean, m2 = take_in(value, mean, m2, seen, inside)
        value = following
    leave_statistics(partials, mean, m2, last - first, columns, channels, BLOCK_R)


@triton.jit
def combine_parts(partials, rows, chunk, parts, columns, channels, PARTS: tl.constexpr):
    """Return mean and sum of squared deviations (C,) of all ``rows``, from those of the parts."""
    count = tl.minimum(tl.maximum(rows - tl.arange(0, PARTS) * chunk, 0), chunk).to(tl.float32)
    means = _load_partials(partials, 0, parts, columns, channels, PARTS)
    return _combine(count, means, _load_partials(partials, 1, parts, columns, channels, PARTS))


@triton.jit
def note_statistics(running_mean, running_var, statistics, mean, m2, rows, momentum, eps, columns, channels):
    """Store a batch's mean and 1/std in ``statistics`` (2, channels), and move the running ones."""
    inside = columns < channels
    old_mean = tl.load(running_mean + columns, mask=inside, other=0.0)
    old_var = tl.load(running_var + columns, mask=inside, other=0.0)
    tl.store(running_mean + columns, old_mean + momentum * (mean - old_mean), mask=inside)
    tl.store(running_var + columns, old_var + momentum * (m2 / (rows - 1) - old_var), mask=inside)
    tl.store(statistics + columns, mean, mask=inside)
    tl.store(statistics + channels + columns, 1.0 / tl.sqrt(m2 / rows + eps), mask=inside)


@triton.jit(do_not_specialize=_SIZES)
def apply_kernel(
    x, residual, noise, weight, bias, slope, partials, running_mean, running_var, y, statistics,
    rows, chunk, pixels, units, residual_units, dropout, momentum, eps,
    ACTIVATE: tl.constexpr, PARTS: tl.constexpr, UNIT: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Write y. With ``partials`` also ``statistics`` (2, channels), mean and 1/std, and move the running ones.

    Without ``partials``, in evaluation mode, the running statistics are those that count.
    """
    channels = units * UNIT
    columns = columns_of(BLOCK_C)
    first = tl.program_id(1) * chunk
    last = tl.minimum(first + chunk, rows)
    value = load_tile(x, first, last, columns, channels, BLOCK_R)  # on its way while the sums are combined
    if partials is None:
        mean = load_columns(running_mean, columns, channels, 0.0)
        variance = load_columns(running_var, columns, channels, 1.0)
    else:
        mean, m2 = combine_parts(partials, rows, chunk, tl.num_programs(1), columns, channels, PARTS)
        if tl.program_id(1) == 0:
            note_statistics(running_mean, running_var, statistics, mean, m2, rows, momentum, eps, columns, channels)
        variance = m2 / rows
    inverse = 1.0 / tl.sqrt(variance + eps)
    gain = load_columns(weight, columns, channels, 0.0)
    offset = load_columns(bias, columns, channels, 0.0)
    slope_c = load_columns(slope, columns, channels, 0.0)
    for step in range(0, chunk, BLOCK_R):
        start = first + step
        following = load_tile(x, start + BLOCK_R, last, columns, channels, BLOCK_R)
        normal = (value - mean[None, :]) * inverse[None, :]
        z = normal * gain[None, :] + offset[None, :]
        z = z * _load_scale(noise, dropout, start, last, pixels, columns, channels, BLOCK_R)
        z += load_tile(residual, start, last, columns, residual_units * UNIT, BLOCK_R)
        if ACTIVATE:
            z = tl.where(z > 0, z, z * slope_c[None, :])
        inside = inside_of(start, last, columns, channels, BLOCK_R)
        tl.store(y + offsets_of(start, columns, channels, BLOCK_R), z.to(y.dtype.element_ty), mask=inside)
        value = following


@triton.jit
def leave_sums(partials, slope, sum_g, sum_gx, sum_slope, columns, channels):
    """Store a part's three sums (without ``slope`` two), shares of which a tile's places (R, C) hold, in its place."""
    at = partials + tl.program_id(1) * channels + columns
    stride = tl.num_programs(1) * channels
    tl.store(at, tl.sum(sum_g, axis=0), mask=columns < channels)
    tl.store(at + stride, tl.sum(sum_gx, axis=0), mask=columns < channels)
    if slope is not None:
        tl.store(at + 2 * stride, tl.sum(sum_slope, axis=0), mask=columns < channels)


@triton.jit(do_not_specialize=_SIZES)
def sums_kernel(
    dy, dy2, x, residual, noise, weight, bias, slope, statistics, dz, partials,
    rows, chunk, pixels, units, residual_units, dropout,
    ACTIVATE: tl.constexpr, UNIT: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Leave each part's sums of s·dz, s·dz·x̂ and the slope's gradient, (3, parts, channels).

    y's gradient is the sum of ``dy`` and ``dy2``. With ``dz`` also write the gradient of z, which is the residual's.
    """
    channels = units * UNIT
    columns = columns_of(BLOCK_C)
    first = tl.program_id(1) * chunk
    last = tl.minimum(first + chunk, rows)
    mean = load_columns(statistics, columns, channels, 0.0)
    inverse = load_columns(statistics + channels, columns, channels, 0.0)
    gain = load_columns(weight, columns, channels, 0.0)
    offset = load_columns(bias, columns, channels, 0.0)
    slope_c = load_columns(slope, columns, channels, 0.0)
    sum_g = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    sum_gx = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    sum_slope = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    value = load_tile(x, first, last, columns, channels, BLOCK_R)
    g = load_tile(dy, first, last, columns, channels, BLOCK_R)
    g += load_tile(dy2, first, last, columns, channels, BLOCK_R)
    for step in range(0, chunk, BLOCK_R):
        start = first + step
        following = load_tile(x, start + BLOCK_R, last, columns, channels, BLOCK_R)
        following_g = load_tile(dy, start + BLOCK_R, last, columns, channels, BLOCK_R)
        following_g += load_tile(dy2, start + BLOCK_R, last, columns, channels, BLOCK_R)
        scale = _load_scale(noise, dropout, start, last, pixels, columns, channels, BLOCK_R)
        normal = (value - mean[None, :]) * inverse[None, :]
        if ACTIVATE:
            z = (normal * gain[None, :] + offset[None, :]) * scale
            z += load_tile(residual, start, last, columns, residual_units * UNIT, BLOCK_R)
            sum_slope += tl.where(z > 0, 0.0, g * z)
            g = tl.where(z > 0, g, g * slope_c[None, :])
        if dz is not None:
            inside = inside_of(start, last, columns, channels, BLOCK_R)
            tl.store(dz + offsets_of(start, columns, channels, BLOCK_R), g.to(dz.dtype.element_ty), mask=inside)
        g = g * scale
        sum_g += g
        sum_gx += g * normal
        value = following
        g = following_g
    leave_sums(partials, slope, sum_g, sum_gx, sum_slope, columns, channels)


@triton.jit(do_not_specialize=_SIZES)
def gradient_kernel(
    dy, x, noise, weight, bias, slope, statistics, partials, dx, dweight, dbias, dslope,
    rows, chunk, pixels, units, dropout,
    ACTIVATE: tl.constexpr, PARTS: tl.constexpr, UNIT: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Write dx = w / std · (g − mean(g) − x̂ · mean(g · x̂)) with g = s·dz, and the parameters' gradients.

    Where ``sums_kernel`` wrote the gradient of z, that is what ``dy`` is, and ACTIVATE is off.
    """
    channels = units * UNIT
    columns = columns_of(BLOCK_C)
    first = tl.program_id(1) * chunk
    last = tl.minimum(first + chunk, rows)
    value = load_tile(x, first, last, columns, channels, BLOCK_R)
    g = load_tile(dy, first, last, columns, channels, BLOCK_R)
    parts = tl.num_programs(1)
    sum_g = tl.sum(_load_partials(partials, 0, parts, columns, channels, PARTS), axis=0)
    sum_gx = tl.sum(_load_partials(partials, 1, parts, columns, channels, PARTS), axis=0)
    if tl.program_id(1) == 0:
        tl.store(dbias + columns, sum_g, mask=columns < channels)
        tl.store(dweight + columns, sum_gx, mask=columns < channels)
        if dslope is not None:
            sum_slope = tl.sum(_load_partials(partials, 2, parts, columns, channels, PARTS), axis=0)
            tl.store(dslope + columns, sum_slope, mask=columns < channels)
    mean = load_columns(statistics, columns, channels, 0.0)
    inverse = load_columns(statistics + channels, columns, channels, 0.0)
    gain = load_columns(weight, columns, channels, 0.0)
    offset = load_columns(bias, columns, channels, 0.0)
    slope_c = load_columns(slope, columns, channels, 0.0)
    mean_g = sum_g / rows
    mean_gx = sum_gx / rows
    for step in range(0, chunk, BLOCK_R):
        start = first + step
        following = load_tile(x, start + BLOCK_R, last, columns, channels, BLOCK_R)
        following_g = load_tile(dy, start + BLOCK_R, last, columns, channels, BLOCK_R)
        scale = _load_scale(noise, dropout, start, last, pixels, columns, channels, BLOCK_R)
        normal = (value - mean[None, :]) * inverse[None, :]
        if ACTIVATE:
            z = (normal * gain[None, :] + offset[None, :]) * scale
            g = tl.where(z > 0, g, g * slope_c[None, :])
        g = (g * scale - mean_g[None, :] - normal * mean_gx[None, :]) * (gain * inverse)[None, :]
        inside = inside_of(start, last, columns, channels, BLOCK_R)
        tl.store(dx + offsets_of(start, columns, channels, BLOCK_R), g.to(dx.dtype.element_ty), mask=inside)
        value = following
        g = following_g
