"""The networks: (B, channels, H, W) images in, (B, classes, H, W) logits out, for any H and W."""

from typing import Literal

from torch import nn

from discoseg.networks.enet import ENet
from discoseg.networks.unet import UNet

__all__ = ["ENet", "UNet", "build_network"]


def build_network(name: Literal["enet", "unet"], *, channels: int, classes: int, width: int | None = None) -> nn.Module:
    """Build a network whose weights come from torch's global generator.

    ``width`` is the number of features at the first level; None takes the network's own (ENet 16, U-Net 64).
    """
    network = {"enet": ENet, "unet": UNet}[name]
    return network(channels, classes) if width is None else network(channels, classes, width=width)
