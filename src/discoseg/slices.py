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

    low, high = stack_bounds(examples, device)
    return Slices(
        image=tensor([e.image for e in examples]),
        seeds=tensor([e.seeds for e in examples]),
        truth=tensor([np.zeros(e.seeds.shape, bool) if e.truth is None else e.truth for e in examples]),
        volume=tensor([np.full(len(e.seeds), i) for i, e in enumerate(examples)]),
        low=low,
        high=high,
    )


def stack_bounds(examples: Sequence[Example], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the least and the largest size of each volume in voxels, (V,) float32; without bounds any size will do."""
    bounds = [(0, e.seeds.size) if e.bounds is None else (e.bounds.low_vox, e.bounds.high_vox) for e in examples]
    low, high = torch.tensor(bounds, dtype=torch.float32).T.contiguous().to(device)  # there when it returns
    return low, high


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
