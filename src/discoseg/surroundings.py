"""What a training ran with, and on: versions of what computes, processor, memory, graphics card."""

import platform
import re
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from discoseg import __version__
from discoseg.data.files import usable_cores
from discoseg.data.memory import GIB, usable_memory_bytes

_PACKAGES = ("numpy", "scipy", "numba", "triton", "nibabel", "SimpleITK", "monai")


def versions() -> dict[str, str]:
    """Return the version of discoseg, of Python and of each package that a result may depend on, as far as installed.

    ``cuda`` and ``cudnn`` are those that torch was built with.
    """
    found = {"discoseg": __version__, "torch": torch.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package.lower()] = metadata.version(package)
    if torch.version.cuda is not None:
        found |= {"cuda": torch.version.cuda, "cudnn": str(torch.backends.cudnn.version())}
    return found


def hardware(device: torch.device) -> dict[str, Any]:
    """Return the processor's model, cores and memory (GiB) that this process may use; with CUDA, the card's too."""
    facts: dict[str, Any] = {
        "cpu": _processor(),
        "cores": usable_cores(),
        "memory_gib": round(usable_memory_bytes() / GIB, 1),
    }
    if device.type == "cuda":
        card = torch.cuda.get_device_properties(device)
        facts |= {"gpu": card.name, "gpu_memory_gib": round(card.total_memory / GIB, 1), "gpu_driver": _driver()}
    return facts


def _processor() -> str:
    with suppress(OSError):  # Linux's; elsewhere Python knows
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        if found := re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE):
            return found[1]
    return platform.processor() or platform.machine()


def _driver() -> str | None:
    """Return the version of the graphics card's driver, where the system shows it."""
    with suppress(OSError):
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
        if found := re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", text):
            return found[1]
    return None
