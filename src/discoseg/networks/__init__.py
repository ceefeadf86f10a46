"""The networks: (B, channels, H, W) images in, (B, classes, H, W) logits out, for any H and W."""

from typing import Literal

from torch import nn

from discoseg.networks.enet import ENet
from discoseg.networks.unet import UNet

__all__ = ["ENet", "UNet", "build_network"]


def build_network(
    name: Literal["enet", "unet"], *, channels: int, classes: int, width: int = 0, depth: int = 0
) -> nn.Module:
    """Build a network whose weights come from torch's global generator.

    ``width`` is the number of features at the first level, ``depth`` that of a U-Net's poolings; 0 takes the network's
    own (ENet 16; U-Net 64 and 3).
    """
    if name == "enet":
        return ENet(channels, classes, width=width or 16)
    return UNet(channels, classes, width=width or 64, depth=depth or 3)
