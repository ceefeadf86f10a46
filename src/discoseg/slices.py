"""Examples to tensors: the slices of all volumes in one stack on the training device."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from discoseg.weak.examples import Example


@dataclass(frozen=True)
class Slices:
    """All slices of a set of volumes on the training device, the slices of a volume consecutive.

    ``image`` (N, C, H, W) float32; ``seeds`` (N, H, W) int8; ``truth`` (N, H, W) bool, False where there is no mask;
    ``volume`` (N,) the volume of each slice; ``low`` and ``high`` (V,) float32 size bounds in voxels.
    """

    image: torch.Tensor
    seeds: torch.Tensor
    truth: torch.Tensor
    volume: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor

    def __len__(self) -> int:
        return len(self.image)


def stack_slices(examples: Sequence[Example], device: torch.device) -> Slices:
    """Put the slices of all examples behind each other on ``device``."""

    def tensor(arrays: Sequence[Any]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(arrays)).to(device)

    bounds = [(0, e.seeds.size) if e.bounds is None else (e.bounds.low_vox, e.bounds.high_vox) for e in examples]
    low, high = torch.tensor(bounds, dtype=torch.float32, device=device).T
    return Slices(
        image=tensor([e.image for e in examples]),
        seeds=tensor([e.seeds for e in examples]),
        truth=tensor([np.zeros(e.seeds.shape, bool) if e.truth is None else e.truth for e in examples]),
        volume=tensor([np.full(len(e.seeds), i) for i, e in enumerate(examples)]),
        low=low,
        high=high,
    )


def near_slices(volume: torch.Tensor, context: int) -> torch.Tensor:
    """Return each slice's place and those of ``context`` slices on either side of it in its volume.

    ``volume`` (N,) is the volume of each slice. The result (N, 1 + 2·context) begins with the slice itself; beyond
    the ends of a volume its last slices are repeated.

    >>> near_slices(torch.tensor([0, 0, 0, 1]), 1).tolist()
    [[0, 0, 1], [1, 0, 2], [2, 1, 2], [3, 3, 3]]
    """
    own = torch.arange(len(volume), device=volume.device)
    columns = [own]
    for sign in (-1, 1):
        nearer = own
        for step in range(1, context + 1):
            place = (own + sign * step).clamp(0, len(volume) - 1)
            nearer = torch.where(volume[place] == volume, place, nearer)
            columns.append(nearer)
    return torch.stack(columns, dim=1)


def with_context(image: torch.Tensor, near: torch.Tensor) -> torch.Tensor:
    """Return slices of ``image`` (N, C, H, W) with those beside them as further channels: (B, K·C, H, W).

    ``near`` (B, K) are their places, from :func:`near_slices`; the channels of a slice itself come first.
    """
    return image[near].flatten(1, 2)


def fingerprint(examples: Sequence[Example]) -> dict[str, str]:
    """Return a checksum of what each example holds by its name: image, seeds, truth and bounds."""
    sums = {}
    for example in examples:
        checksum = zlib.crc32(repr((example.spacing_mm, example.bounds, example.image.shape)).encode())
        for array in (example.image, example.seeds, example.truth):
            if array is not None:
                checksum = zlib.crc32(np.ascontiguousarray(array).data, checksum)
        sums[example.name] = f"{checksum:08x}"
    return sums
