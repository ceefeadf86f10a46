"""The precision in which a network computes, in training and in prediction alike."""

import torch

from discoseg.config import Config


def network_precision(config: Config, device: torch.device) -> torch.autocast:
    """Return the context in which the network runs: on CUDA in bfloat16 where the configuration says so."""
    return torch.autocast(
        device.type, dtype=torch.bfloat16, enabled=device.type == "cuda" and config.network.precision == "bfloat16"
    )
