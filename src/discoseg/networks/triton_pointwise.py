"""A Triton kernel of a 1×1 convolution that leaves the statistics of its result, for the normalisation behind it.

    y[r, c] = Σ_i x[r, i] · W[c, i]

Rows are pixels, columns are features, and the grid is that of ``triton_normalise.py``, whose ``statistics_kernel`` it
makes superfluous: a program owns a part of the rows and BLOCK_C of the result's columns.
"""

import triton
import triton.language as tl

from discoseg.networks.triton_normalise import columns_of, inside_of, leave_statistics, offsets_of, take_in


@triton.jit(do_not_specialize=["rows", "chunk", "input_units", "units"])
def convolve_kernel(
    x, weight, y, partials, rows, chunk, input_units, units,
    UNIT_I: tl.constexpr, UNIT: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    """Write y, and the mean and the sum of squared deviations of each part, (2, parts, channels).

    float32 is multiplied as TF32 and added as float32. The statistics are those of y as it is stored.
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
