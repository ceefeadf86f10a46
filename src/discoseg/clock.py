"""How long the phases of an epoch take."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Clock:
    """Seconds spent in each named phase of an epoch, the device's work included."""

    def __init__(self, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        if self._on_cuda:
            torch.cuda.current_stream().synchronize()
        self.seconds[phase] += time.perf_counter() - start
