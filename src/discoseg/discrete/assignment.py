"""The exact size proposal for many classes: each voxel one class, each class as many voxels as its bounds allow."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discoseg.discrete.ranking import select_by_size
from discoseg.discrete.transport import certify, count_units, largest_of, transport
from discoseg.errors import UserError

Bounds = Sequence[int | None]


@dataclass(frozen=True)
class Assignment:
    """An assignment of voxels to classes, and the prices that prove it optimal.

    ``labels`` int8, of the voxels' shape; ``value`` the sum of their utilities; ``bound`` what no labels within the
    seeds and bounds can exceed, never below ``value``; ``prices`` (C,) what a voxel more of each class would cost,
    positive where the upper bound holds a class back, negative where the lower one forces it. With p the unknown ones,
    and bounds less the seeds,

        bound = Σ_seeds utility + Σ_p max_c (utility[c, p] − prices[c]) + Σ_c max(prices[c] low[c], prices[c] high[c])
    """

    labels: NDArray[np.int8]
    value: float
    bound: float
    prices: NDArray[np.float64]


@dataclass(frozen=True)
class _Problem:
    """What seeds leave open: the unknown voxels, and how many of them each class must and may have."""

    utility: NDArray  # (C, all voxels)
    labels: NDArray[np.int8]  # (all voxels,) -1 unknown
    unknown: NDArray[np.int64]
    low: NDArray[np.int64]  # (C,)
    high: NDArray[np.int64]  # (C,)
    scale: float  # a power of two that takes the utilities to within ±2⁵²


def assign_by_size(
    utility: ArrayLike, low: Bounds, high: Bounds, *, seeds: NDArray[np.int8] | None = None
) -> NDArray[np.int8]:
    """Give each voxel a class such that class c has low[c] to high[c] voxels and the sum of utilities is largest.

    utility: (C, …) float32 or float64, finite, 2 to 127 classes, class 0 the background. low, high: (C,) in voxels,
    None for no bound. seeds: (…), -1 unknown, else the voxel's class, which it keeps; seeds count towards the sizes.
    Returns int8 of the voxels' shape. The problem (size) for many classes:

        max_y Σ_p utility[y_p, p]   such that   low[c] ≤ #{p : y_p = c} ≤ high[c]

    Of several optima the one with the most background, and of those the one that gives the earliest voxel in C order
    the highest class, then the next one, and so on: the result is unique. It is the global optimum of utilities that
    are rounded by at most 2⁻⁵² of the largest; float32 ones not below 2⁻²⁸ of it are not rounded at all. Two classes
    are told apart by utility[1] − utility[0], in its own precision, as :func:`select_by_size` would.

    Time grows about linearly with the voxels. Memory: 18 bytes for each unknown voxel, 8 C for each one that is not
    clearly background, and up to 48 C for each one whose class is nearly or exactly a tie.

    >>> utility = np.array([[0.1, 0.2, 0.1, 0.3], [0.7, 0.5, 0.6, 0.1], [0.2, 0.3, 0.3, 0.6]])
    >>> for high in (None, 2, 1):
    ...     print(assign_by_size(utility, (0, 0, 0), (None, high, None)))
    [1 1 1 2]
    [1 2 1 2]
    [1 2 2 2]
    """
    utility, problem = _pose(utility, low, high, seeds)
    return _solve(problem).reshape(utility.shape[1:])


def assign_with_prices(
    utility: ArrayLike, low: Bounds, high: Bounds, *, seeds: NDArray[np.int8] | None = None
) -> Assignment:
    """Return what :func:`assign_by_size` does with its value and the prices that prove it optimal.

    The labels are certified after the fact and from nothing but themselves: ``bound`` equals ``value``. Of two classes,
    whose difference may have been rounded, it equals ``value`` up to that.
    """
    utility, problem = _pose(utility, low, high, seeds)
    labels = _solve(problem)
    units = count_units(problem.utility, problem.unknown, problem.scale)
    prices, gap = certify(units, labels[problem.unknown], problem.low, problem.high)
    value = float(problem.utility[labels, np.arange(labels.size)].sum(dtype=np.float64))
    unit = 0.5 / problem.scale
    return Assignment(labels.reshape(utility.shape[1:]), value, value + gap * unit, prices * unit)


def check_class_bounds(low: Bounds, high: Bounds, *, seeded: Sequence[int], unknown: int) -> None:
    """Raise a UserError when no assignment gives every class c between low[c] and high[c] voxels.

    low, high: (C,) in voxels, None for no bound. seeded: (C,) voxels that are seeds of each class. unknown: voxels that
    are not seeds.
    """
    lows, highs = _fill(low, high, sum(seeded) + unknown)
    reason = "size bounds are infeasible: "
    if not len(lows) == len(highs) == len(seeded):
        raise UserError(f"size bounds are for {len(lows)} (lower) and {len(highs)} (upper) classes, not {len(seeded)}")
    for c, (least, most, seeds) in enumerate(zip(lows, highs, seeded, strict=True)):
        if least > most:
            raise UserError(f"{reason}the lower of class {c}, {least} voxels, exceeds its upper, {most}")
        if seeds > most:
            raise UserError(f"{reason}{seeds} seeds of class {c} exceed its upper bound, {most} voxels")
        if least > seeds + unknown:
            raise UserError(
                f"{reason}the lower bound of class {c}, {least} voxels, exceeds the {seeds + unknown} that can be of it"
                f" ({seeds} seeds and {unknown} unknown)"
            )
    needed = sum(max(least - seeds, 0) for least, seeds in zip(lows, seeded, strict=True))
    if needed > unknown:
        raise UserError(f"{reason}the lower bounds of all classes need {needed} unknown voxels, there are {unknown}")
    allowed = sum(most - seeds for most, seeds in zip(highs, seeded, strict=True))
    if allowed < unknown:
        raise UserError(f"{reason}the upper bounds of all classes leave {unknown - allowed} unknown voxels no class")


def _fill(low: Bounds, high: Bounds, voxels: int) -> tuple[list[int], list[int]]:
    return [0 if n is None else int(n) for n in low], [voxels if n is None else int(n) for n in high]


def _pose(utility: ArrayLike, low: Bounds, high: Bounds, seeds: NDArray[np.int8] | None) -> tuple[NDArray, _Problem]:
    """Return the utilities as an array (C, …), and the problem that seeds leave, checked."""
    utility = np.asarray(utility)
    if utility.dtype not in (np.float32, np.float64):
        utility = utility.astype(np.float64)
    classes, shape = utility.shape[0], utility.shape[1:]
    if not 2 <= classes <= 127:
        raise UserError(f"utility has {classes} classes: it takes 2 to 127, class 0 the background")
    largest = max(float(utility.max(initial=0)), -float(utility.min(initial=0)))
    if not math.isfinite(largest):
        raise UserError("utility has NaN or infinite values: check the network's output and the multipliers")
    flat = np.ascontiguousarray(utility.reshape(classes, -1))
    if seeds is None:
        labels = np.full(flat.shape[1], -1, np.int8)
    elif seeds.shape != shape:
        raise UserError(f"seeds have the shape {seeds.shape}, utility has {shape} in each class")
    elif seeds.max(initial=-1) >= classes:
        raise UserError(f"seeds have the class {seeds.max()}, utility has only classes up to {classes - 1}")
    else:
        labels = seeds.astype(np.int8).ravel()
    is_open = labels < 0
    unknown, known = is_open.nonzero()[0], (~is_open).nonzero()[0]
    seeded = np.bincount(labels[known], minlength=classes)
    check_class_bounds(low, high, seeded=seeded.tolist(), unknown=unknown.size)
    if largest_of(flat, known) == largest:  # seeds shall not coarsen what they leave open
        largest = largest_of(flat, unknown)
    lows, highs = _fill(low, high, labels.size)
    return utility, _Problem(
        utility=flat,
        labels=labels,
        unknown=unknown,
        low=np.maximum(np.array(lows) - seeded, 0),
        high=np.minimum(np.array(highs) - seeded, unknown.size),
        scale=math.ldexp(1, min(52 - math.frexp(largest)[1], 1023)),
    )


def _solve(problem: _Problem) -> NDArray[np.int8]:
    """Return the class of every voxel, (voxels,)."""
    labels, unknown, low, high = problem.labels.copy(), problem.unknown, problem.low, problem.high
    if low.size == 2:
        gain = (problem.utility[1] - problem.utility[0])[unknown]
        least, most = max(low[1], unknown.size - high[0]), min(high[1], unknown.size - low[0])
        labels[unknown] = select_by_size(gain, int(least), int(most))
    elif unknown.size:
        labels[unknown] = transport(problem.utility, unknown, problem.scale, low, high)
    return labels
