"""The size proposals of all volumes in one pass, on the device where the probabilities are.

A volume's best voxels are those above a threshold, which is found without sorting, by radix selection: histograms of
the utilities' leading, middle and last bits, each taken inside the bin of the one before. Integers only, so the result
is the same on every device and in every order of summation: that of :func:`discoseg.discrete.select_by_size`, ties
included.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discoseg.discrete.ranking import check_bounds
from discoseg.errors import UserError

_DIGITS = ((21, 11), (10, 11), (0, 10))  # shift and width of each digit of a 32-bit key, the leading one first
_VOXELS_AT_ONCE = 2**24  # what one pass takes in: its scratch memory is about 40 bytes a voxel


@dataclass(frozen=True)
class Volumes:
    """Consecutive volumes of a stack of slices, and what may be chosen in them.

    ``slices`` of the stack; ``free`` (M,) int64 places, within those slices, of the voxels that seeds leave open, None
    for all; ``owner`` (M,) int64 the volume of each free voxel; ``ends`` (V,) int64 where each volume's free voxels end
    among the M; ``low`` and ``high`` (V,) int64 how many of them must and may be chosen.
    """

    slices: slice
    free: Tensor | None
    owner: Tensor
    ends: Tensor
    low: Tensor
    high: Tensor


class SizeSelector:
    """Bounds and seeds of all volumes on a device, ready for many selections."""

    def __init__(
        self,
        shapes: Sequence[tuple[int, int, int]],
        bounds: Sequence[tuple[int, int]],
        seeds: Sequence[NDArray[np.int8] | None],
        device: torch.device,
    ) -> None:
        """``shapes`` (z, y, x) of the volumes in their order in the stack; ``bounds`` (low, high) in voxels."""
        self._parts: list[Volumes] = []
        self._finite = torch.ones((), dtype=torch.bool, device=device)
        start, first, voxels = 0, 0, 0
        for index, shape in enumerate(shapes):
            voxels += int(np.prod(shape))
            if voxels >= _VOXELS_AT_ONCE or index == len(shapes) - 1:
                chosen = slice(first, index + 1)
                part = _gather_volumes(start, shapes[chosen], bounds[chosen], seeds[chosen], device)
                self._parts.append(part)
                start, first, voxels = part.slices.stop, index + 1, 0

    def select(self, utility: Tensor, seeds: Tensor | None, price: Tensor | None = None) -> Tensor:
        """Return the best voxels of every volume, as many as its bounds allow: bool, (N, H, W).

        ``utility`` (N, H, W) float32; ``seeds`` (N, H, W) int8, those given at the start on the device, or None.

            max_y Σ a_p y_p   such that   low ≤ Σ y_p ≤ high        in each volume

        ``price`` (), if given, is what each voxel outside the bounds costs; they are then no constraint.

        It does not wait for the device; what NaN would make of it is for `require_finite` to tell.
        """
        chosen = torch.zeros_like(utility, dtype=torch.bool) if seeds is None else seeds == 1
        self._finite.fill_(True)
        for part in self._parts:
            values = utility[part.slices].flatten()
            if part.free is not None:
                values = values[part.free]
            self._finite &= values.isfinite().all()
            best = _select(values, part, price)
            target = chosen[part.slices].view(-1)
            if part.free is None:
                target.copy_(best)
            else:
                target[part.free] = best
        return chosen

    def require_finite(self) -> None:
        """Raise if the last utilities were not all finite."""
        if not self._finite:
            raise UserError("utility has NaN or infinite values: check the network's output and the multipliers")


def _gather_volumes(
    start: int,
    shapes: Sequence[tuple[int, int, int]],
    bounds: Sequence[tuple[int, int]],
    seeds: Sequence[NDArray[np.int8] | None],
    device: torch.device,
) -> Volumes:
    counts, limits, places = [], [], []
    offset = 0
    for shape, (low, high), fixed in zip(shapes, bounds, seeds, strict=True):
        size = int(np.prod(shape))
        unknown = np.arange(size) if fixed is None else np.flatnonzero(fixed < 0)
        seeded = 0 if fixed is None else int(np.count_nonzero(fixed == 1))
        check_bounds(low, high, seeded=seeded, unknown=unknown.size)
        counts.append(unknown.size)
        limits.append((low - seeded, high - seeded))
        places.append(unknown + offset)
        offset += size
    numbers = torch.tensor(counts, device=device)
    lows, highs = torch.tensor(limits, device=device).T
    everything = all(fixed is None for fixed in seeds)
    return Volumes(
        slices=slice(start, start + sum(shape[0] for shape in shapes)),
        free=None if everything else torch.from_numpy(np.concatenate(places)).to(device),
        owner=torch.repeat_interleave(torch.arange(len(counts), device=device), numbers),
        ends=numbers.cumsum(0),
        low=lows,
        high=highs,
    )


def _select(utility: Tensor, part: Volumes, price: Tensor | None) -> Tensor:
    """Return which of the free voxels (M,) are chosen, bool."""
    if not utility.numel():
        return torch.zeros_like(utility, dtype=torch.bool)
    positive = _count(utility > 0, part.ends)
    low, high = part.low, part.high
    if price is not None:
        low = torch.minimum(low, _count(utility > -price, part.ends))
        high = torch.maximum(high, _count(utility > price, part.ends))
    wanted = torch.minimum(torch.maximum(low, positive), high).clamp(min=0)  # (V,)
    key = _ordered_integers(utility)
    threshold, of_equal = _find_thresholds(key, part.owner, wanted)
    threshold, of_equal = threshold[part.owner], of_equal[part.owner]
    equal = key == threshold
    rank = equal.cumsum(0)  # 1 is the first equal one of all volumes, and after the subtraction of its own volume
    before = torch.cat([rank.new_zeros(1), rank[part.ends[:-1] - 1] * (part.ends[:-1] > 0)])
    return (key > threshold) | (equal & (rank - before[part.owner] <= of_equal))


def _count(mask: Tensor, ends: Tensor) -> Tensor:
    """Return how many are set in each volume's stretch of (M,), (V,) int64."""
    running = torch.cat([ends.new_zeros(1), mask.cumsum(0)])[torch.cat([ends.new_zeros(1), ends])]
    return running.diff()


def _ordered_integers(values: Tensor) -> Tensor:
    """Map float32 to int32 of the same order; −0 and 0, which are equal, to the same."""
    bits = (values + 0.0).view(torch.int32)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _find_thresholds(key: Tensor, owner: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Return each volume's key such that ``wanted`` of its keys are chosen, and how many equal to it are.

    ``key`` (M,) int32, ``owner`` (M,), ``wanted`` (V,); the results are (V,). Where nothing is wanted, the key is the
    largest there is, and none equal to it is chosen.
    """
    volumes = wanted.numel()
    ones = owner.new_ones(()).expand_as(owner)
    remaining = wanted
    prefix = torch.zeros_like(wanted)  # of the threshold, of as many leading digits as are known
    for shift, width in _DIGITS:
        bins = 1 << width
        # Keys start at −2³¹: shifted right by all 32 bits of their digits and 2³¹ they count from 0.
        leading = (key.to(torch.int64) + 2**31) >> shift
        inside = (leading >> width) == prefix[owner]
        place = torch.where(inside, owner * bins + (leading & (bins - 1)), volumes * bins)
        counts = place.new_zeros(volumes * bins + 1).scatter_add_(0, place, ones)  # bincount would wait for the device
        histogram = counts[:-1].view(volumes, bins)
        at_least = histogram.flip(1).cumsum(1).flip(1)  # keys of this digit or a higher one
        digit = ((at_least >= remaining[:, None]).sum(1) - 1).clamp(min=0)
        column = digit[:, None]
        remaining = remaining - (at_least - histogram).gather(1, column).squeeze(1)
        prefix = prefix * bins + digit
    return (prefix - 2**31).to(torch.int32), remaining
