"""Triton kernels of the training loss on two classes and its targets; formulas are in ``losses.py`` and ``admm.py``.

With d the difference of a pixel's logits, s = 1 / (1 + e^−d) its foreground probability and y its seed, if any, which
counts w times: 1 if y = 0, ``foreground_weight`` if y = 1,

    loss = 1/n · Σ_p [ w · softplus(d if y = 0, −d if y = 1)  +  Σ_t μ_t / 2 · (s − target_t)² ]
    ∂loss/∂d = 1/n · [ w · (s − y)  +  Σ_t μ_t · (s − target_t) · s (1 − s) ]

or, with ENTROPY, the latter terms μ_t / 2 · (softplus(d) − target_t d) and μ_t / 2 · (s − target_t), targets in [0, 1].

A program owns BLOCK of the ``pixels``. Logits (B, 2, H, W) are in channels-last layout: pairs, one a pixel. Arithmetic
is float32 whatever they are. Pointers may be None: what they stand for is left out.
"""

import triton
import triton.language as tl

_SIZES = ["pixels", "image_pixels", "target_step"]  # whatever they are, one compilation will do


@triton.jit
def _load_pixels(logits, seeds, pixel, inside):
    """Return d, e^−|d|, s, 1 − s, and whether a seed says background or foreground; all (P,)."""
    pairs = tl.load(logits + _pairs(pixel), mask=inside[:, None], other=0.0).to(tl.float32)
    background, foreground = tl.split(pairs)
    d = foreground - background
    small = tl.exp(-tl.abs(d))
    s = tl.where(d > 0, 1.0, small) / (1.0 + small)
    not_s = tl.where(d > 0, small, 1.0) / (1.0 + small)
    seed = tl.load(seeds + pixel, mask=inside, other=-1)
    return d, small, s, not_s, seed == 0, seed == 1


@triton.jit
def _pairs(pixel):
    """Return where the two logits of each pixel are, (P, 2)."""
    return pixel[:, None] * 2 + tl.arange(0, 2)[None, :]


@triton.jit
def _load_target(targets, valid, number: tl.constexpr, pixel, inside, image_pixels, target_step, ENTROPY: tl.constexpr):
    """Return one of the targets and whether it counts: not where a pixel is not valid; both (P,)."""
    at = pixel // image_pixels * target_step + number * image_pixels + pixel % image_pixels
    target = tl.load(targets + at, mask=inside, other=0.0)
    if ENTROPY:
        target = tl.minimum(tl.maximum(target, 0.0), 1.0)
    counts = inside
    if valid is not None:
        counts = inside & (tl.load(valid + pixel, mask=inside, other=0) != 0)
    return target, counts


@triton.jit(do_not_specialize=_SIZES)
def terms_kernel(
    logits, seeds, targets, valid, mu0, mu1, partials, foreground_weight, pixels, image_pixels, target_step,
    TARGETS: tl.constexpr, ENTROPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Leave the program's part of each term, (1 + TARGETS, programs)."""
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    pixel = program * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < pixels
    d, small, s, _, is_background, is_foreground = _load_pixels(logits, seeds, pixel, inside)
    positive = tl.where(is_background, tl.maximum(d, 0.0), tl.maximum(-d, 0.0))
    entropy = tl.where(is_background | is_foreground, positive + tl.log(1.0 + small), 0.0)
    entropy = tl.where(is_foreground, foreground_weight * entropy, entropy)
    tl.store(partials + program, tl.sum(entropy) / pixels)
    for number in tl.static_range(TARGETS):
        target, counts = _load_target(targets, valid, number, pixel, inside, image_pixels, target_step, ENTROPY)
        cost = (s - target) * (s - target)
        if ENTROPY:
            cost = tl.maximum(d, 0.0) + tl.log(1.0 + small) - target * d
        mu = tl.load(mu0 if number == 0 else mu1)
        tl.store(partials + (1 + number) * programs + program, mu / 2 * tl.sum(tl.where(counts, cost, 0.0)) / pixels)


@triton.jit(do_not_specialize=_SIZES)
def logits_gradient_kernel(
    dterms, logits, seeds, targets, valid, mu0, mu1, dlogits, foreground_weight, pixels, image_pixels, target_step,
    TARGETS: tl.constexpr, ENTROPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the gradient of the logits for that of the terms, (1 + TARGETS,)."""
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < pixels
    _, _, s, not_s, is_background, is_foreground = _load_pixels(logits, seeds, pixel, inside)
    gradient = tl.load(dterms) * tl.where(is_background, s, tl.where(is_foreground, -foreground_weight * not_s, 0.0))
    for number in tl.static_range(TARGETS):
        target, counts = _load_target(targets, valid, number, pixel, inside, image_pixels, target_step, ENTROPY)
        steepness = s * not_s
        if ENTROPY:
            steepness = 0.5
        pull = tl.where(counts, (s - target) * steepness, 0.0)
        gradient += tl.load(dterms + 1 + number) * tl.load(mu0 if number == 0 else mu1) * pull
    gradient /= pixels
    pairs = tl.join(-gradient, gradient).to(dlogits.dtype.element_ty)
    tl.store(dlogits + _pairs(pixel), pairs, mask=inside[:, None])


@triton.jit(do_not_specialize=["image_pixels"])
def targets_kernel(
    index, doubled0, multiplier0, doubled1, multiplier1, targets, image_pixels,
    TARGETS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write y − u of the slices ``index``, (B, TARGETS, H, W): the second program axis is the place in the batch."""
    place = tl.program_id(1)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < image_pixels
    source = tl.load(index + place).to(tl.int64) * image_pixels + pixel
    for number in tl.static_range(TARGETS):
        doubled = tl.load((doubled0 if number == 0 else doubled1) + source, mask=inside)
        multiplier = tl.load((multiplier0 if number == 0 else multiplier1) + source, mask=inside)
        at = targets + (place * TARGETS + number) * image_pixels + pixel
        tl.store(at, doubled.to(tl.float32) * 0.5 - multiplier, mask=inside)
