"""Repeat the same work on a GPU without paying for its launches: CUDA graphs."""

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

_EAGER_RUNS = 3  # before the recording: libraries choose algorithms and allocate in their first runs
# Recorded runs on their way to the device at most. Who launches into a full queue waits within the driver, which we
# suspect of keeping other trainings' threads waiting, too (docs/performance.md).
_AHEAD = 2


class _Gate:
    """Lets many threads run and replay at a time, or one record: its recording takes torch's random generator over."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._running = 0
        self._recording = False

    @contextmanager
    def run(self) -> Iterator[None]:
        with self._change:
            self._change.wait_for(lambda: not self._recording)
            self._running += 1
        try:
            yield
        finally:
            with self._change:
                self._running -= 1
                if self._recording:
                    self._change.notify_all()

    @contextmanager
    def record(self) -> Iterator[None]:
        with self._change:
            self._change.wait_for(lambda: not self._recording)
            self._recording = True
            self._change.wait_for(lambda: not self._running)
        try:
            yield
        finally:
            with self._change:
                self._recording = False
                self._change.notify_all()


_gate = _Gate()


def undisturbing() -> AbstractContextManager[None]:
    """Return a context for other first runs on the device: none of a :class:`Replay` is recorded meanwhile.

    Libraries that choose algorithms or load kernels then make the whole device wait, which would spoil what another
    thread records. No Replay may be called within.
    """
    return _gate.run()


def let_go(device: torch.device) -> None:
    """Give memory that an attempt took and nobody uses back to the device."""
    if device.type == "cuda":
        with undisturbing():
            torch.cuda.empty_cache()


def reclaim(device: torch.device) -> None:
    """Give the memory of a training that has ended back to the device: its passes and recordings hold each other."""
    with undisturbing():
        gc.collect()
    let_go(device)


class Replay:
    """Work that is recorded in a CUDA graph after a few plain runs and then replayed; on the CPU it is just called.

    So it is where torch is to be deterministic: some of its operations then cannot be recorded.
    ``work`` takes nothing, returns nothing, and reads and writes the same tensors each time; what changes from one
    run to the next must stand in tensors that it reads. It never waits for the device. The recording itself does not
    run it, so the n-th call always does the n-th run, and a training takes the same steps with a graph and without.
    """

    def __init__(self, work: Callable[[], None], device: torch.device) -> None:
        self._work: Callable[[], None] | None = work
        records = device.type == "cuda" and not torch.are_deterministic_algorithms_enabled()
        self._plain_runs = _EAGER_RUNS if records else None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._runs = 0
        self._ends: list[torch.cuda.Event] = []

    def __call__(self) -> None:
        """Do the work once, on the current stream; on CUDA that must not be the default one."""
        if self._work is not None and self._plain_runs is None:
            self._work()
            return
        if self._work is not None and self._plain_runs == 0:
            self._graph = _record(self._work)
            self._ends = [torch.cuda.Event(blocking=True) for _ in range(_AHEAD)]
            self._work = None  # it may hold what holds this: the graph's memory must not wait for a garbage collection
        if self._graph is not None:
            self._replay(self._graph, self._ends[self._runs % _AHEAD])
        elif self._work is not None and self._plain_runs is not None:
            with _gate.run():
                self._plain_runs -= 1
                self._work()

    @property
    def recorded(self) -> bool:
        """Whether all further runs are replayed: they take no memory but what they have."""
        return self._graph is not None

    def _replay(self, graph: torch.cuda.CUDAGraph, end: torch.cuda.Event) -> None:
        end.synchronize()  # of the run before the last one; nothing, if there was none
        self._runs += 1
        with _gate.run():
            graph.replay()
            end.record()


def _record(work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.current_stream()
    with _gate.record(), torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        work()
    return graph
