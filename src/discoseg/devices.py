"""The device that a training or a prediction runs on."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from discoseg.errors import UserError
from discoseg.ranks import ALONE, Ranks


def choose_device(name: str, ranks: Ranks = ALONE) -> torch.device:
    """Return the device ``auto``, ``cpu`` or ``cuda`` stands for here, for one of several ``ranks`` its own GPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: this machine has no usable CUDA device; use --device cpu or auto")
    if name == "cuda" and ranks.several:
        return torch.device(name, ranks.local_rank % torch.cuda.device_count())
    return torch.device(name)


def own_stream(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which the thread's work on a CUDA device runs beside that of other trainings."""
    return torch.cuda.stream(torch.cuda.Stream(device)) if device.type == "cuda" else nullcontext()
