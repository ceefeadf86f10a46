"""Dropout of features whose random numbers are drawn for a whole network at once: one kernel, not one a layer."""

import torch
from torch import Tensor, nn

from discoseg.kernels import kernels_fit


class Dropout(nn.Dropout2d):
    """torch's Dropout2d of a known number of ``features``; kernels of our own take their random numbers from it."""

    def __init__(self, p: float, features: int) -> None:
        super().__init__(p)
        self.features = features
        self._noise: Tensor | None = None

    def take_noise(self, x: Tensor) -> Tensor | None:
        """Return uniform numbers (B, features) for x (B, features, H, W): what ``draw_noise`` put here, or new ones.

        A feature is dropped where they are below p; None drops none.
        """
        if not self.training or self.p == 0:
            return None
        noise, self._noise = self._noise, None
        return torch.rand(x.shape[:2], device=x.device) if noise is None else noise


def draw_noise(network: nn.Module, image: Tensor) -> None:
    """Draw what the dropouts of a network need to train on images (B, C, H, W), where kernels of our own will."""
    if not kernels_fit(image):
        return
    layers = [
        module for module in network.modules() if isinstance(module, Dropout) and module.training and module.p > 0
    ]
    if not layers:
        return
    sizes = [len(image) * layer.features for layer in layers]
    for layer, noise in zip(layers, torch.rand(sum(sizes), device=image.device).split(sizes), strict=True):
        layer._noise = noise.view(len(image), layer.features)
