"""Where kernels of our own take over from torch's operations: on CUDA, if Triton can be imported and compile.

Networks and losses both have such kernels, and neither may know of the other: what they share is here, below them.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from shutil import which

import torch
from torch import Tensor

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_devices: tuple[str, ...] = ("cuda",)


@contextmanager
def kernels_on(*devices: str) -> Iterator[None]:
    """Use the kernels for tensors on these types of device only; ``kernels_on()`` switches them off, to compare.

    ``kernels_on("cpu")`` needs Triton's interpreter (TRITON_INTERPRET=1): the tests' way.
    """
    global _devices
    before, _devices = _devices, devices
    try:
        yield
    finally:
        _devices = before


def kernels_fit(x: Tensor) -> bool:
    """Say whether the kernels can take over from torch for ``x``; an export or a compiler wants torch's operations."""
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined]
    return x.device.type in _devices and x.dtype in _DTYPES and x.numel() > 0 and not traced and _has_triton()


def kernels_run_on(device: torch.device) -> bool:
    """Say whether there are kernels for tensors on a device, of types and in places that suit them."""
    return device.type in _devices and _has_triton()


@cache
def _has_triton() -> bool:
    if find_spec("triton") is None:
        return False
    if os.environ.get("TRITON_INTERPRET") == "1" or any(map(which, (os.environ.get("CC", "gcc"), "gcc", "clang"))):
        return True
    # Triton compiles what launches its kernels by the system's own compiler.
    warnings.warn("no C compiler (gcc or clang): a GPU trains about half as fast, by torch's operations", stacklevel=2)
    return False
