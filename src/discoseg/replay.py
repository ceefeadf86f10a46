"""Repeat the same work on a GPU without paying for its launches: CUDA graphs."""

import threading
from collections.abc import Callable

import torch

_EAGER_RUNS = 3  # before the recording: libraries choose algorithms and allocate in their first runs
_recording = threading.Lock()  # several trainings may share the device; only one records at a time


class Replay:
    """Work that is recorded in a CUDA graph after a few plain runs and then replayed; on the CPU it is just called.

    ``work`` takes nothing, returns nothing, and reads and writes the same tensors each time; what changes from one
    run to the next must stand in tensors that it reads. It never waits for the device. The recording itself does not
    run it, so the n-th call always does the n-th run, and a training takes the same steps with a graph and without.
    """

    def __init__(self, work: Callable[[], None], device: torch.device) -> None:
        self._work = work
        self._plain_runs = _EAGER_RUNS if device.type == "cuda" else None
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Do the work once, on the current stream; on CUDA that must not be the default one."""
        if self._graph is not None:
            self._graph.replay()
        elif self._plain_runs is None:
            self._work()
        elif self._plain_runs > 0:
            self._plain_runs -= 1
            self._work()
        else:
            self._record()
            self()

    def _record(self) -> None:
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream()
        with _recording, torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            self._work()
        self._graph = graph
