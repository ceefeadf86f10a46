"""Processes of this machine that train: one that is killed takes no other training with it."""

import multiprocessing
import os
import queue
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any, NamedTuple

from discoseg.data.files import usable_cores
from discoseg.data.memory import budget_gib
from discoseg.engines import Job, Report, Started, reporter
from discoseg.errors import UserError
from discoseg.interruption import SIGNALS, Interrupted, Interruption, interruptible
from discoseg.workflow import fit

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess


class _Processes:
    """Processes that train, one training at a time each: one that is killed takes no other training with it.

    ``set`` asks all trainings to end, like an event; ``close`` ends the processes, which must be idle then.
    """

    def __init__(self, share: "_Share") -> None:
        self.reports: queue.Queue[Report] = queue.Queue()
        self._share, self._stopped = share, threading.Event()
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()

    def train(self, job: Job) -> None:
        """Train in a process until that has ended; what ended it is raised, or that the process was killed."""
        if self._stopped.is_set():
            raise Interrupted
        worker = self._idle.pop() if self._idle else _Worker.start(self._share)
        self._busy.add(worker)
        if self._stopped.is_set():  # while it started: it may not have been among those that `set` told
            worker.process.terminate()
        try:
            worker.pipe.send(job)
            while not isinstance(message := worker.pipe.recv(), _Ended):
                self.reports.put(message)
        except (EOFError, OSError) as gone:
            worker.process.join()
            raise UserError(
                f"its process was ended by {_say_exit(worker.process.exitcode)}; is there too little memory? go on "
                "with --resume"
            ) from gone
        finally:
            self._busy.discard(worker)
        self._idle.append(worker)
        if message.error is not None:
            raise message.error

    def set(self) -> None:
        self._stopped.set()
        for worker in tuple(self._busy):
            worker.process.terminate()

    def is_set(self) -> bool:
        return self._stopped.is_set()

    def close(self) -> None:
        for worker in self._idle:
            worker.pipe.close()
            worker.process.join()


class _Share(NamedTuple):
    """What each process has of the machine: a device, torch's ``threads``, and one of so many ``parts`` of memory."""

    device: str
    threads: int
    parts: int


class _Worker(NamedTuple):
    """A process that trains, and the pipe to it: jobs go there, reports and `_Ended` come back."""

    process: "SpawnProcess"
    pipe: "Connection[Any, Any]"

    @classmethod
    def start(cls, share: "_Share") -> "_Worker":
        context = multiprocessing.get_context("spawn")
        pipe, its_pipe = context.Pipe()
        process = context.Process(target=_train_apart, args=(its_pipe, share), daemon=True)
        resource_tracker.ensure_running()  # the first process would start it, which unblocks signals
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until it can handle them: this is inherited
        process.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        its_pipe.close()
        return cls(process, pipe)


class _Ended(NamedTuple):
    """The last that a process says of a training: the error that ended it, if one did."""

    error: BaseException | None


def _say_exit(code: int | None) -> str:
    return signal.Signals(-code).name if code is not None and code < 0 else f"an exit with status {code}"


def start_processes(stack: ExitStack, workers: int, device: str) -> Started:
    """Get processes ready that train on ``device``, ``workers`` of them at a time, each with its share of the cores."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin would take the other trainings' cores
    processes = _Processes(_Share(device, max(1, usable_cores() // workers), workers))
    stack.callback(processes.close)
    pool = stack.enter_context(ThreadPoolExecutor(workers))  # each waits for a process
    return Started(workers, lambda job: pool.submit(processes.train, job), processes.reports, processes)


def _train_apart(pipe: "Connection[Any, Any]", share: _Share) -> None:
    """Train, in this process, what comes through the pipe; send reports and, last, how each training ended."""
    import torch

    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(share.threads)
    asked: list[int] = []  # by which signals, when there was nothing to interrupt
    for number in SIGNALS:
        signal.signal(number, lambda number, frame: asked.append(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    with suppress(EOFError):  # nothing more to do
        while True:
            pipe.send(_Ended(_train_one(pipe.recv(), pipe, share, asked)))


def _train_one(job: Job, pipe: "Connection[Any, Any]", share: _Share, asked: Sequence[int]) -> BaseException | None:
    """Train, and return the error that ended it, if one did: at once, if the process was ``asked`` to end before."""
    try:
        with warnings.catch_warnings(), interruptible() as interruption:
            if asked:
                raise Interrupted(asked[0])
            warnings.showwarning = lambda message, *where, **more: print(
                f"discoseg: warning: {job.run}: {message}", file=sys.stderr, flush=True
            )
            _fit(job, pipe, share, interruption)
    except BaseException as error:
        error.add_note("".join(traceback.format_exception(error)))
        return error
    return None


def _fit(job: Job, pipe: "Connection[Any, Any]", share: _Share, interruption: Interruption) -> None:
    report = reporter(job.run, pipe.send, lambda: False)  # signals end it
    report(0.0, "preparing")
    memory_gib = budget_gib(job.memory_gib) / share.parts
    settings: dict[str, Any] = {"device": share.device, "memory_gib": memory_gib, "resume": job.resume}
    fit(job.dataset, job.run, job.config, **job.sources, **settings, progress=interruption.guard(report))


def _end_with_parent() -> None:
    """End this process when the one that began it is gone: killed, it cannot say so."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
