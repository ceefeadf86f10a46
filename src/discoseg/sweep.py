"""Several trainings on one dataset at a time: threads that share a GPU and what lies on it, or processes on a CPU.

    discoseg sweep ACDC --configs lv-rho0.1.toml lv-rho1.toml --seeds seeds/LV --out runs

Threads of one process, each on a CUDA stream of its own, read the same slices and contrast weights. They also share
the device's random generator, so a sweep on a GPU does not repeat exactly. On a CPU the trainings have processes and
cores of their own, and the same seed gives the same bytes; one that is killed ends no other.
"""

import math
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from discoseg.config import Config, Method, load_run_config
from discoseg.data.files import usable_cores
from discoseg.data.memory import Memory, budget_gib
from discoseg.errors import UserError
from discoseg.interruption import SIGNALS, Interrupted, Interruption, interruptible
from discoseg.material import Material, require_room_on_device
from discoseg.out_of_memory import is_out_of_memory
from discoseg.run import RunFolder
from discoseg.train import choose_device, train_on
from discoseg.workflow import Inputs, fit, gather_inputs, recorded_sources

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

RunProgress = Callable[[Path, float, str], None]
"""Called with a run folder, the epochs done so far and a line about what is going on."""

_AT_ONCE_ON_CUDA = 2  # more fill the GPU no better: see docs/performance.md
_REPORT_EVERY_S = 0.2  # at most: who reads reports holds Python's lock, which the trainings' threads need at every step

Report = tuple[Path, float, str]
"""What a :data:`RunProgress` is called with."""


@dataclass(frozen=True)
class Job:
    """One training of a sweep; ``sources`` and ``memory_gib`` are what :func:`discoseg.fit` takes."""

    dataset: Path
    run: Path
    config: Config
    resume: bool
    sources: dict[str, Any]
    memory_gib: float


class _Stop(Protocol):
    """What tells all trainings to end: an event."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...


class _Puts(Protocol):
    """Where a training puts its progress."""

    def put(self, item: Report) -> None: ...


_Reports = queue.Queue[Report]


def fit_many(
    dataset: Path,
    runs: Mapping[Path, Config],
    *,
    seeds: Path | None = None,
    split: Path | None = None,
    validation_fraction: float = 0.2,
    device: str = "auto",
    at_once: int | None = None,
    memory_gib: float | None = None,
    resume: bool = False,
    progress: RunProgress = lambda run, done, message: None,
) -> None:
    """Train every configuration into its run folder, ``at_once`` of them at a time; see :func:`discoseg.fit`.

    By default that is one for each core, or two on a GPU; they share ``memory_gib``. With ``resume`` finished runs stay
    as they are and begun ones go on with the sources they were started with. A training that fails does not stop the
    others; all failures are raised together in the end. A script that calls this needs ``if __name__ == "__main__":``
    around the call.
    """
    if at_once is not None and at_once < 1:
        raise UserError(f"at_once is {at_once}: it must be at least 1")
    on_cuda = choose_device(device).type == "cuda"
    workers = at_once or (_AT_ONCE_ON_CUDA if on_cuda else usable_cores())
    given = {"seeds": seeds, "split": split, "validation_fraction": validation_fraction}
    begun = {run: resume and (run / "config.toml").is_file() for run in runs}
    left = {run: config for run, config in runs.items() if not (begun[run] and _is_finished(run, config))}
    # Who trains alone has all cores, and all memory; not so who is left alone: other threads round differently.
    workers = max(1, min(workers, len(runs)))
    jobs = []
    for run, config in left.items():
        RunFolder.require_usable(run, resume=begun[run])
        sources = _recorded(run, given) if begun[run] else given
        jobs.append(Job(dataset, run, config, begun[run], sources, budget_gib(memory_gib) / workers))
    with ExitStack() as stack:
        submit, reports, stop = (_start_threads if on_cuda else _start_processes)(stack, workers)
        failures = _run_all(jobs, workers, submit, reports, stop, progress)
    _raise(failures)


def _is_finished(run: Path, config: Config) -> bool:
    """Say whether a run has all its files and was made with these settings; if not with these, resuming says so."""
    folder = RunFolder(run)
    if not (folder.final.is_file() and (run / "cases.csv").is_file()):
        return False
    stored = load_run_config(run / "config.toml")
    return stored == replace(config, size_csv=config.size_csv and config.size_csv.resolve())


def _recorded(run: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Return the sources of a begun run; what is given anew takes their place."""
    recorded = recorded_sources(run)
    folders = {name: given[name] or (recorded[name] and Path(recorded[name])) for name in ("seeds", "split")}
    return {**folders, "validation_fraction": recorded["validation_fraction"]}


def _run_all(
    jobs: list[Job],
    workers: int,
    submit: Callable[[Job], "Future[None]"],
    reports: _Reports,
    stop: _Stop,
    progress: RunProgress,
) -> dict[Path, BaseException]:
    """Keep ``workers`` jobs under way until all are done; return the errors of those that failed, the first first."""
    waiting = list(jobs)
    running: dict[Future[None], Path] = {}
    failures: dict[Path, BaseException] = {}
    try:
        while waiting or running or not reports.empty():
            while waiting and len(running) < workers:  # a pool would begin what waits in it after an interruption
                job = waiting.pop(0)
                running[submit(job)] = job.run
            with suppress(queue.Empty):
                progress(*reports.get(timeout=0.2))
            for future in [future for future in running if future.done()]:
                run, error = running.pop(future), future.exception()
                if error is not None:
                    failures[run] = error
    except BaseException:
        stop.set()
        raise
    return failures


def _raise(failures: dict[Path, BaseException]) -> None:
    """Raise one error that names every run that failed, and why: a defect, if there is one, the first of them."""
    lines = []
    for run, error in failures.items():
        if isinstance(error, UserError):
            lines.append(f"{run}: {error}")
        elif isinstance(error, KeyboardInterrupt):
            lines.append(f"{run}: interrupted; its state is saved: go on with --resume")
        elif is_out_of_memory(error):
            lines.append(f"{run}: out of memory; go on with --resume, fewer at a time")
        else:
            others = "".join(f"; {other} failed too: {why}" for other, why in failures.items() if other != run)
            error.add_note(f"while training {run}{others}")
            raise error
    if lines:
        raise UserError("; ".join(sorted(lines)))


class _Processes:
    """Processes that train, one training at a time each: one that is killed takes no other training with it.

    ``set`` asks all trainings to end, like an event; ``close`` ends the processes, which must be idle then.
    """

    def __init__(self, threads: int) -> None:
        """``threads`` are those of torch in each."""
        self.reports: queue.Queue[Report] = queue.Queue()
        self._threads, self._stopped = threads, threading.Event()
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()

    def train(self, job: Job) -> None:
        """Train in a process until that has ended; what ended it is raised, or that the process was killed."""
        worker = self._idle.pop() if self._idle else _Worker.start(self._threads)
        self._busy.add(worker)
        if self._stopped.is_set():
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


class _Worker(NamedTuple):
    """A process that trains, and the pipe to it: jobs go there, reports and `_Ended` come back."""

    process: "SpawnProcess"
    pipe: "Connection[Any, Any]"

    @classmethod
    def start(cls, threads: int) -> "_Worker":
        context = multiprocessing.get_context("spawn")
        pipe, its_pipe = context.Pipe()
        process = context.Process(target=_train_apart, args=(its_pipe, threads), daemon=True)
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


def _start_processes(stack: ExitStack, workers: int) -> tuple[Callable[[Job], "Future[None]"], _Reports, _Stop]:
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin would take the other trainings' cores
    processes = _Processes(threads=max(1, usable_cores() // workers))
    stack.callback(processes.close)
    pool = stack.enter_context(ThreadPoolExecutor(workers))  # each waits for a process
    return lambda job: pool.submit(processes.train, job), processes.reports, processes


def _train_apart(pipe: "Connection[Any, Any]", threads: int) -> None:
    """Train, in this process, what comes through the pipe; send reports and, last, how each training ended."""
    import torch

    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    for number in SIGNALS:  # when there is nothing to interrupt
        signal.signal(number, lambda number, frame: None)
    with suppress(EOFError):  # nothing more to do
        while True:
            pipe.send(_Ended(_train_one(pipe.recv(), pipe)))


def _train_one(job: Job, pipe: "Connection[Any, Any]") -> BaseException | None:
    """Train, and return the error that ended it, if one did."""
    try:
        with warnings.catch_warnings(), interruptible() as interruption:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            warnings.showwarning = lambda message, *where, **more: print(
                f"discoseg: warning: {job.run}: {message}", file=sys.stderr, flush=True
            )
            _fit(job, pipe, interruption)
    except BaseException as error:
        error.add_note("".join(traceback.format_exception(error)))
        return error
    return None


def _fit(job: Job, pipe: "Connection[Any, Any]", interruption: Interruption) -> None:
    report = _reporter(job.run, _Sender(pipe), threading.Event())
    report(0.0, "preparing")
    settings: dict[str, Any] = {"device": "cpu", "memory_gib": job.memory_gib, "resume": job.resume}
    fit(job.dataset, job.run, job.config, **job.sources, **settings, progress=interruption.guard(report))


class _Sender(NamedTuple):
    """Reports of a process to the one that made it."""

    pipe: "Connection[Any, Any]"

    def put(self, item: Report) -> None:
        self.pipe.send(item)


def _end_with_parent() -> None:
    """End this process when the one that began it is gone: killed, it cannot say so."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _reporter(run: Path, reports: _Puts, stop: _Stop) -> Callable[[float, str], None]:
    """Return what a training calls with its progress: it ends the training, which saves, when the sweep is interrupted.

    Of reports within an epoch that follow each other closely, only the first is passed on.
    """
    last = -math.inf

    def report(done: float, message: str) -> None:
        nonlocal last
        now = time.monotonic()
        if stop.is_set():
            raise Interrupted
        if done == int(done) or now - last >= _REPORT_EVERY_S:
            reports.put((run, done, message))
            last = now

    return report


def _start_threads(stack: ExitStack, workers: int) -> tuple[Callable[[Job], "Future[None]"], _Reports, _Stop]:
    device = choose_device("cuda")
    reports: queue.Queue[tuple[Path, float, str]] = queue.Queue()
    stop = threading.Event()
    shared: dict[str, tuple[Inputs, Material]] = {}  # by all that examples depend on
    volumes: dict[str, Material] = {}  # by all of that but the size bounds
    gathering = threading.Lock()
    materials = stack.enter_context(ExitStack())  # closed after the threads have ended
    pool = stack.enter_context(ThreadPoolExecutor(workers))

    def work(job: Job) -> None:
        report = _reporter(job.run, reports, stop)
        report(0.0, "preparing")
        settings, sources = _data_settings(job.config), sorted(job.sources.items())
        key, without_bounds = repr((settings, sources)), repr((_without_bounds(settings), sources))
        with gathering:
            if key not in shared:
                memory = Memory(job.memory_gib)
                inputs = gather_inputs(job.dataset, job.config, **job.sources, memory=memory)
                require_room_on_device(inputs.training, inputs.validation, job.config, device)
                if without_bounds in volumes:
                    material = volumes[without_bounds].with_bounds(inputs.training)
                else:
                    idle = workers == 1
                    material = Material(inputs.training, inputs.validation, device, idle_cores=idle, memory=memory)
                    volumes[without_bounds] = materials.enter_context(material)
                shared[key] = inputs, material
        inputs, material = shared[key]
        config = replace(job.config, size_csv=inputs.config.size_csv)
        facts = {"model": inputs.model, "sources": inputs.sources}
        train_on(material, config, job.run, **facts, resume=job.resume, progress=report)

    return lambda job: pool.submit(work, job), reports, stop


def _data_settings(config: Config) -> Config:
    """Return a configuration that is equal for all whose examples are: what does not touch them is left out."""
    plain = Config(method="full" if config.method == "full" else "crf+size" if config.needs_bounds else "partial")
    return replace(
        plain,
        label=config.label,
        grid=config.grid,
        size_eps=config.size_eps,
        size_ml=config.size_ml,
        size_csv=config.size_csv,
        admm=replace(plain.admm, honour_seeds=config.admm.honour_seeds),
    )


def _without_bounds(settings: Config) -> Config:
    """Return data settings that are equal for all whose examples differ in nothing but their size bounds."""
    method: Method = "full" if settings.method == "full" else "partial"
    return replace(settings, method=method, size_eps=None, size_ml=None, size_csv=None)
