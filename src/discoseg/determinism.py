"""Trainings that repeat on a GPU: the same command on the same machine, the same numbers.

Our own kernels add in a fixed order anyway; so do cuts and selections, which are solved exactly. What is left are
torch's operations that add in any order, algorithms that libraries choose by trial, cuts that begin with a guess if it
comes in time, and random numbers that trainings share. A recorded step (:class:`discoseg.replay.Replay`) cannot hold
some of torch's deterministic operations, which read indices back to the host: here every step is launched anew.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from discoseg.errors import UserError
from discoseg.kernels import kernels_run_on


@contextmanager
def repeatable(wanted: bool, device: torch.device) -> Iterator[None]:
    """Within it a training on ``device`` repeats exactly, if that is ``wanted``; one at a time in a process.

    A CPU's does so anyway. An operation that cannot raises torch's RuntimeError; those of networks without our kernels
    could not, so these are insisted on.
    """
    if not wanted or device.type != "cuda":
        yield
        return
    if not kernels_run_on(device):
        raise UserError("--deterministic on a GPU needs Triton and a C compiler (gcc or clang); install them")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it torch refuses matrix products
    cudnn, memory = torch.backends.cudnn, torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), cudnn.deterministic, cudnn.benchmark
    filled = memory.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True)
    cudnn.deterministic, cudnn.benchmark = True, False
    memory.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # all that is read is written first
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        cudnn.deterministic, cudnn.benchmark = before[1:]
        memory.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
