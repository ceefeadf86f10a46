"""What is exported of a model: its network as plain operations on the CPU, and what prediction needs besides.

Kernels of our own take over on CUDA alone, and never while torch traces, so an exported network is made of torch's.
"""

import copy
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from discoseg import __version__
from discoseg.errors import UserError
from discoseg.predict import Model

TOLERANCE = 1e-4  # largest difference between a probability here and in the exported file
TRIALS = 5  # images on which they may agree


class Probabilities(nn.Module):
    """A network that ends in class probabilities: (N, C, H, W) in, (N, classes, H, W) out, float32."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: Tensor) -> Tensor:
        """Map slices scaled to [0, 1] to probabilities that sum to one over the classes."""
        return torch.softmax(self.network(image), dim=1)


def model_on_cpu(model: Model) -> Model:
    """Return a copy of a model on the CPU, in float32 and evaluation mode."""
    network = copy.deepcopy(model.network).cpu().float().eval().requires_grad_(False)
    return replace(model, network=network, device=torch.device("cpu"))


def describe_model(model: Model) -> dict[str, Any]:
    """Return all that prediction needs besides the network, ready for JSON; classes are in the network's order."""
    return {
        "discoseg_version": __version__,
        "class_names": ["background", *model.labels],
        "label_values": [0, *model.labels.values()],
        "channels": model.channels,
        "orientation": model.grid.orientation,
        "grid_shape": list(model.grid.shape),
        "clip_percent": list(model.grid.clip_percent),
        "epoch": model.epoch,
    }


def require_agreement(path: Path, difference: Callable[[int], float]) -> float:
    """Return the largest difference of probabilities, ``difference(seed)``, on a random image where it is tolerable.

    ENet unpools to where the largest of four values was: where two of them are equal but for rounding, a right file may
    differ too. So several images are tried; a :class:`UserError` about ``path`` says that none agrees.
    """
    found = []
    for seed in range(TRIALS):
        found.append(difference(seed))
        if found[-1] <= TOLERANCE:
            return found[-1]
    raise UserError(
        f"{path}: not written: its probabilities would differ from torch's by {min(found):.1e}, "
        f"more than {TOLERANCE:.0e}"
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Silence what torch warns and logs of its own way of exporting."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
