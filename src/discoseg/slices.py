"""Examples to tensors: the slices of all volumes in one stack on the training device."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from discoseg.data.memory import BOUNDLESS, Memory
from discoseg.weak.examples import Example, ExamplePart


@dataclass(frozen=True)
class Slices:
    """All slices of a set of volumes on the training device, the slices of a volume consecutive.

    ``image`` (N, C, H, W) float32; ``seeds`` (N, H, W) int8; ``truth`` (N, H, W) int8, 0 where there is no mask;
    ``volume`` (N,) the volume of each slice; ``low`` and ``high`` (K, V) float32 size bounds in voxels, of each of the
    K ``structures``; ``names`` those of the V volumes.
    """

    image: torch.Tensor
    seeds: torch.Tensor
    truth: torch.Tensor
    volume: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor
    names: tuple[str, ...]
    structures: tuple[str, ...] = ("foreground",)

    def __len__(self) -> int:
        return len(self.image)


def stack_slices(examples: Sequence[Example], device: torch.device, memory: Memory = BOUNDLESS) -> Slices:
    """Put the slices of all examples behind each other on ``device``, on a CPU in ``memory``."""

    def tensor(arrays: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
        if device.type != "cpu":
            return torch.from_numpy(np.concatenate(arrays)).to(device)
        stack = memory.tensor((sum(map(len, arrays)), *arrays[0].shape[1:]), dtype, device)
        np.concatenate(arrays, out=stack.numpy())
        return stack

    nothing = np.zeros((), np.int8)
    low, high = stack_bounds(examples, device)
    return Slices(
        image=tensor([e.image for e in examples], torch.float32),
        seeds=tensor([e.seeds for e in examples], torch.int8),
        truth=tensor(
            [np.broadcast_to(nothing, e.seeds.shape) if e.truth is None else e.truth for e in examples], torch.int8
        ),
        volume=tensor([np.full(len(e.seeds), i) for i, e in enumerate(examples)], torch.int64),
        low=low,
        high=high,
        names=tuple(e.name for e in examples),
        structures=examples[0].structures,
    )


def stack_bounds(examples: Sequence[Example], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the least and the largest size of each structure in each volume, in voxels, (K, V) float32.

    Without bounds any size will do.
    """
    free = [(0, e.seeds.size) for e in examples]
    bounds = [
        [any_size] * len(e.structures) if e.bounds is None else [(b.low_vox, b.high_vox) for b in e.bounds]
        for e, any_size in zip(examples, free, strict=True)
    ]
    low, high = torch.tensor(bounds, dtype=torch.float32).permute(2, 1, 0).contiguous().to(device)  # there on return
    return low, high


def fingerprint(examples: Sequence[Example]) -> dict[str, str]:
    """Return checksums of what each example holds by its name.

    They are of the geometry; of that and the bounds; and of these with the image, the seeds with the known slices, and
    the truth, one after the other: the first that differs tells what has changed (:func:`what_changed`), the last is
    that of everything.
    """
    sums = {}
    for example in examples:
        bounds = example.bounds[0] if example.bounds is not None and len(example.bounds) == 1 else example.bounds
        geometry = zlib.crc32(repr((example.spacing_mm, example.image.shape)).encode())
        chain = [geometry, zlib.crc32(repr((example.spacing_mm, bounds, example.image.shape)).encode())]
        for array in (example.image, example.seeds, example.truth):
            chain.append(chain[-1] if array is None else zlib.crc32(np.ascontiguousarray(array).data, chain[-1]))
            if array is example.seeds and example.slices is not None:
                chain[-1] = zlib.crc32(repr(example.slices).encode(), chain[-1])
        sums[example.name] = " ".join(f"{checksum:08x}" for checksum in chain)
    return sums


def what_changed(before: str, now: str) -> ExamplePart | Literal["image, annotation or bounds", ""]:
    """Return what differs between two fingerprints of an example, the first thing that does; "" if nothing does."""
    old, new = before.split(), now.split()
    if old[-1] == new[-1]:
        return ""
    if len(old) == 1:  # older checkpoints have the last checksum alone
        return "image, annotation or bounds"
    parts: tuple[ExamplePart, ...] = ("image", "bounds", "image", "annotation", "mask")
    return next(part for part, was, is_ in zip(parts, old, new, strict=True) if was != is_)
