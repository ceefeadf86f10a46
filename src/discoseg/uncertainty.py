"""How sure a network is: the entropy of its labels, and what it says of slices that are rotated and flipped."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import entr
from torch import Tensor

from discoseg.augment import apply_transforms, sample_transforms
from discoseg.config import AugmentConfig
from discoseg.prediction_pass import predict_slices

LEAST_ROTATE_DEG = 10.0  # where the training did not rotate


def class_entropy(probabilities: Sequence[NDArray[np.floating]]) -> NDArray[np.float32]:
    """Return the entropy of structures' probabilities and the background's, float32, relative to the largest possible.

    It is 0 where one label is certain and 1 where all are equally probable; of one structure it is in bits.

    >>> class_entropy([np.array([0.0, 0.25, 0.5])]).round(3).tolist()
    [0.0, 0.8109999895095825, 1.0]
    """
    sure = np.clip(np.stack(probabilities), 0.0, 1.0)  # interpolation rounds
    rest = np.clip(1 - sure.sum(axis=0), 0.0, 1.0)
    return np.asarray((entr(sure).sum(axis=0) + entr(rest)) / np.log(1 + len(sure)), dtype=np.float32)


@torch.no_grad()
def predict_views(network: torch.nn.Module, image: Tensor, count: int, augment: AugmentConfig) -> Iterator[Tensor]:
    """Yield the probabilities (K, N, H, W) of a volume's slices (N, C, H, W), then those of ``count`` views of them.

    A view rotates all slices alike, by up to the angle of the network's training (±10° if that had none), and flips
    them if the training did; its probability is moved back, and what it does not see is filled in from the first.
    The views are the same for every volume.
    """
    plain = predict_slices(network, image)
    yield plain
    rotate_deg = augment.rotate_deg or LEAST_ROTATE_DEG
    generator = torch.Generator().manual_seed(0)
    views = sample_transforms(count, generator, rotate_deg=rotate_deg, crop=(1.0, 1.0), flip=augment.flips)
    assert views is not None
    for view in views:
        back = torch.cat([view[:, :2].T, torch.zeros(2, 1)], dim=1)  # a rotation: its transpose undoes it
        turned = predict_slices(network, _move(image, view)[0])
        returned, seen = _move(turned.transpose(0, 1), back)
        yield torch.where(seen, returned.transpose(0, 1), plain)


def _move(image: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
    """Move all slices (N, C, H, W) by the map (2, 3) of ``sample_transforms``; return them and what is not outside."""
    shape = image.shape[-2:]
    nothing = image.new_zeros((len(image), *shape), dtype=torch.int8), image.new_empty((len(image), 0, *shape))
    moved, _, _, seen = apply_transforms(theta.expand(len(image), 2, 3), image, *nothing)
    assert seen is not None
    return moved, seen
