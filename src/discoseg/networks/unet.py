"""U-Net (Ronneberger et al. 2015) in the paper's variant: 15 convolutions, batch normalisation, ReLU."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from discoseg.networks.padding import pad_to_multiple


class UNet(nn.Module):
    """Three poolings, seven double convolutions and one 1×1 convolution.

    Upsampling repeats pixels, faster than bilinear interpolation, and leaves the smoothing to the convolution
    behind it. ``width`` features at the first level, twice as many at each level below.
    """

    stride = 8

    def __init__(self, channels: int, classes: int, *, width: int = 64) -> None:
        super().__init__()
        levels = [width * 2**level for level in range(4)]
        steps = list(pairwise(levels))  # (shallow, deep)
        self.encoder = nn.ModuleList(_double_convolution(i, o) for i, o in [(channels, width), *steps])
        self.decoder = nn.ModuleList(_double_convolution(i + o, o) for o, i in reversed(steps))
        self.output = nn.Conv2d(width, classes, kernel_size=1)

    def forward(self, image: Tensor) -> Tensor:
        """Map an image (B, channels, H, W) to logits (B, classes, H, W)."""
        rows, columns = image.shape[-2:]
        x = pad_to_multiple(image, self.stride)
        skips = []
        for level, block in enumerate(self.encoder):
            x = block(functional.max_pool2d(x, 2) if level else x)
            skips.append(x)
        skips.pop()  # the deepest level is x itself
        for block in self.decoder:
            x = functional.interpolate(x, scale_factor=2, mode="nearest")
            x = block(torch.cat([x, skips.pop()], dim=1))
        return self.output(x)[..., :rows, :columns]


def _double_convolution(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for features in (inputs, outputs):
        layers += [
            nn.Conv2d(features, outputs, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers)
