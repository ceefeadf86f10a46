"""Triton kernels of a convolution's weight gradient, a product of matrices that are long and narrow.

    dW[o, t, i] = Σ_r dy[r, o] · x[pixel of r under tap t, i],  nothing where that pixel lies outside the image

dy (B, outputs, H', W') in channels-last layout is a matrix of B·H'·W' rows and ``outputs`` columns; x gives each of the
rows ``inputs`` values at each of the kernel's ``taps``. A program owns a part of the rows (``chunk`` of them), BLOCK_O
outputs and BLOCK_T taps × BLOCK_I inputs, side by side as the columns of one product: a tile. Channels come as units of
UNIT_O and UNIT_I, which tell the compiler what divides them: loads of 16 bytes.

The parts' products of a tile are added by the same kernel, in groups of GROUP. Whichever program of a group is the last
to be done adds up the group's products, and whichever of these is the last adds up the groups' sums. They find out by
counting; which of them it is differs from run to run, but the order of the additions does not, so the same numbers give
the same bits.
"""

import triton
import triton.language as tl


@triton.jit
def _divide(n, divisor):
    """Return n // divisor by a multiplication; n · divisor < 2³¹. The reciprocal leaves the loop."""
    reciprocal = tl.full((), 0x7FFFFFFF, tl.uint32) // divisor.to(tl.uint32) + 1  # 2³¹ / divisor, rounded up
    return tl.umulhi(n.to(tl.uint32) * 2, reciprocal + tl.zeros_like(n).to(tl.uint32)).to(tl.int32)


@triton.jit
def _below(n, limit):
    """Say where 0 ≤ n < limit, by one comparison."""
    return n.to(tl.uint32, bitcast=True) < limit.to(tl.uint32)


@triton.jit
def _is_last(counter, count):
    """Say to one of ``count`` programs that all others were here before; then the counter is 0 again.

    What these stored before can be read after: all threads of a program are done storing when one of them counts.
    """
    tl.debug_barrier()
    last = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == count - 1
    if last:
        tl.store(counter, 0)
    return last


@triton.jit
def _add(tiles, count, stride):
    """Add ``count`` tiles that lie ``stride`` values apart, in their order."""
    total = tl.zeros(tiles.shape, tl.float32)
    for number in tl.range(count, loop_unroll_factor=4):  # as many loads under way
        total += tl.load(tiles + number * stride, cache_modifier=".cg")  # from where other programs' stores arrive
    return total


@triton.jit(
    do_not_specialize=[
        "rows", "chunk", "output_units", "input_units", "dy_height", "dy_width", "x_height", "x_width",
        "taps", "kernel_width", "stride_y", "stride_x", "padding_y", "padding_x", "dilation_y", "dilation_x",
        "step_o", "step_t",
    ]
)  # fmt: skip
def product_kernel(
    dy, x, dw, partials, counters, rows, chunk, output_units, input_units, dy_height, dy_width, x_height, x_width,
    taps, kernel_width, stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x,
    step_o, step_t, step_i,
    SHIFT: tl.constexpr, UNIT_O: tl.constexpr, UNIT_I: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_I: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Write dw (outputs · taps · inputs), at steps of step_o, step_t and step_i.

    ``partials`` (tiles, parts, BLOCK_O, BLOCK_T · BLOCK_I) holds the parts' products, and ``counters`` (tiles, 1 +
    groups) int32 is 0 before and after; with one part both are None. Without SHIFT a row's only pixel in x is the one
    of its own number.
    """
    outputs = output_units * UNIT_O
    inputs = input_units * UNIT_I
    tile = tl.program_id(0)
    blocks_i = tl.cdiv(inputs, BLOCK_I)
    blocks_t = tl.cdiv(taps, BLOCK_T)
    column = tl.arange(0, BLOCK_T * BLOCK_I)
    i = tile % blocks_i * BLOCK_I + column % BLOCK_I
    t = tile // blocks_i % blocks_t * BLOCK_T + column // BLOCK_I
    o = tile // (blocks_i * blocks_t) * BLOCK_O + tl.arange(0, BLOCK_O)
    first = tl.program_id(1) * chunk
    inside_o = (o < outputs)[:, None]
    inside_i = ((t < taps) & (i < inputs))[None, :]
    outside: tl.constexpr = -(2**30)  # where a column stands for nothing
    shift_y = tl.where((t < taps) & (i < inputs), t // kernel_width * dilation_y - padding_y, outside)
    shift_x = t % kernel_width * dilation_x - padding_x
    product = tl.zeros((BLOCK_O, BLOCK_T * BLOCK_I), tl.float32)
    for start in range(first, first + chunk, BLOCK_R):
        row = start + tl.arange(0, BLOCK_R)
        inside = row < rows
        left = tl.load(dy + row[None, :] * outputs + o[:, None], mask=inside[None, :] & inside_o, other=0.0)  # (O, R)
        inside = inside[:, None]
        if SHIFT:
            line = _divide(row, dy_width)
            sample = _divide(line, dy_height)
            at_y = ((line - sample * dy_height) * stride_y)[:, None] + shift_y[None, :]
            at_x = ((row - line * dy_width) * stride_x)[:, None] + shift_x[None, :]
            inside = inside & _below(at_y, x_height) & _below(at_x, x_width)
            pixel = ((sample * x_height)[:, None] + at_y) * x_width + at_x
        else:
            inside = inside & inside_i
            pixel = row[:, None]
        right = tl.load(x + pixel * inputs + i[None, :], mask=inside, other=0.0)  # (R, T · I)
        product = tl.dot(left, right, product, input_precision="tf32")
    at = dw + (o * step_o)[:, None] + (t * step_t + i * step_i)[None, :]
    inside_dw = inside_o & inside_i
    if partials is None:
        tl.store(at, product.to(dw.dtype.element_ty), mask=inside_dw)
    else:
        size: tl.constexpr = BLOCK_O * BLOCK_T * BLOCK_I
        part = tl.program_id(1)
        parts = tl.num_programs(1)
        group = part // GROUP
        groups = tl.cdiv(parts, GROUP)
        members = tl.minimum(parts - group * GROUP, GROUP)
        places = tl.arange(0, BLOCK_O)[:, None] * (BLOCK_T * BLOCK_I) + column[None, :]
        tiles = partials + tile * parts * size + places  # of the parts, one behind the other
        own = tiles + group * GROUP * size  # of the group: their sum replaces the first
        tl.store(tiles + part * size, product)
        counters += tile * (1 + groups)
        if _is_last(counters + 1 + group, members):
            tl.store(own, _add(own, members, size))
            if _is_last(counters, groups):
                total = _add(tiles, groups, GROUP * size)
                tl.store(at, total.to(dw.dtype.element_ty), mask=inside_dw)
