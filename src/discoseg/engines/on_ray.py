"""Trainings of a sweep on a Ray cluster: each is a task on some node, and goes on elsewhere when it is lost.

    discoseg sweep DATASET --configs a.toml b.toml --out runs --engine ray --address HOST:6379

Nodes share the storage that dataset and run folders lie on, so a task whose node or process dies is begun again from
the latest checkpoint. What a training cannot do (a :class:`UserError`, or a defect) fails at once.
"""

import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from discoseg.data.files import usable_cores
from discoseg.data.locks import require_unlocked
from discoseg.data.memory import budget_gib
from discoseg.engines import Job, Report, Started, reporter
from discoseg.errors import UserError
from discoseg.finished import is_finished
from discoseg.run import RunFolder

_MOST_AT_ONCE = 256  # trainings that are handed to Ray at a time, a thread each; what has no room waits there
_LOSSES = 5  # of a training in a row, without a checkpoint in between, that end it
_PATIENCE_S = 60.0  # for a training that was told to end to save what it has, or a lost one to leave its folder
_ANSWER_S = 15.0  # for a cluster to say that it is there
_STORE_BYTES = 2**27  # of a cluster that we start ourselves: trainings pass no arrays through it
_GPUS = 0.5  # of a training by default: two fill one, see docs/performance.md


@dataclass(frozen=True)
class RayEngine:
    """A Ray cluster, by default that of RAY_ADDRESS, else one that is started on this machine for the while.

    ``cpus`` and ``gpus`` of a node are set aside for each training, the GPUs also in parts (0.5 lets two share one);
    None is half a GPU where the cluster has any and ``device`` allows it. ``at_once`` limits how many are under way.
    """

    address: str | None = None
    cpus: int = 1
    gpus: float | None = None
    device: str = "auto"
    at_once: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("at_once", self.at_once), ("--cpus-per-training", self.cpus)):
            if value is not None and value < 1:
                raise UserError(f"{name} {value} must be at least 1")
        gpus = self.gpus or 0.0
        if gpus < 0 or (gpus > 1 and gpus != int(gpus)):
            raise UserError(f"--gpus-per-training {gpus} must be a part of one GPU, such as 0.5, or a whole number")
        if gpus and self.device == "cpu":
            raise UserError(f"--gpus-per-training {gpus} contradicts --device cpu: leave out one of them")

    def start(self, stack: ExitStack, jobs: Sequence[Job], trainings: int) -> Started:
        """Connect to the cluster; leaving ``stack`` waits for the trainings and disconnects."""
        ray = _connect(self.address)
        stack.callback(ray.shutdown)
        gpus = self._choose_gpus(ray.nodes())
        desk = _Desk(ray)
        workers = min(self.at_once or _MOST_AT_ONCE, max(1, len(jobs)))
        pool = stack.enter_context(ThreadPoolExecutor(workers))
        task = ray.remote(_train).options(num_cpus=self.cpus, num_gpus=gpus, max_retries=0)
        stack.callback(desk.set)  # however it ends: nobody waits for trainings that nobody watches
        return Started(workers, lambda job: pool.submit(desk.watch, task, job, self.cpus, gpus), desk, desk)

    def _choose_gpus(self, nodes: list[dict[str, Any]]) -> float:
        """Return how much of a GPU a training gets; some node must have room for one."""
        there = [node["Resources"] for node in nodes if node["Alive"]]
        most = max((node.get("GPU", 0.0) for node in there), default=0.0)
        gpus = self.gpus if self.gpus is not None else _GPUS if most and self.device != "cpu" else 0.0
        if not gpus and self.device == "cuda":
            raise UserError("--device cuda: the Ray cluster has no GPU; use --device cpu or auto")
        if not any(node.get("CPU", 0.0) >= self.cpus and node.get("GPU", 0.0) >= gpus for node in there):
            largest = max((node.get("CPU", 0.0) for node in there), default=0.0)
            raise UserError(
                f"no node of the Ray cluster has {self.cpus} CPUs and {gpus:g} GPUs for a training: the most are "
                f"{largest:g} and {most:g}; lower --cpus-per-training or --gpus-per-training"
            )
        return gpus


def _connect(address: str | None) -> Any:
    """Return the module ``ray``, connected; whatever stands in the way is a :class:`UserError` within seconds."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what Ray would otherwise warn about
    try:
        import ray
    except ImportError as error:
        raise UserError(
            "--engine ray needs Ray: install it with: pip install 'discoseg[cluster]' (in a checkout: '.[cluster]')"
        ) from error

    address = address or os.environ.get("RAY_ADDRESS") or "local"
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        settings |= {"num_cpus": usable_cores(), "include_dashboard": False, "object_store_memory": _STORE_BYTES}
    elif address != "auto":
        _require_answer(address)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        ray.init(address=address, **settings)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        reason = " ".join(str(error).split(". ")[0].split())
        raise UserError(f"--address {address}: {reason}; run this command on a machine of the cluster") from error
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():  # Ray puts its own in their place
            signal.signal(number, handler)
    return ray


def _require_answer(address: str) -> None:
    """Raise a :class:`UserError` unless a Ray cluster answers; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if "//" in address or not host or not port.isdigit():
        raise UserError(f"--address {address}: give HOST:PORT of the cluster's head, or auto for one that runs here")
    nobody = f"--address {address}: no Ray cluster answers there"
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S / 3).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{nobody}: {reason}; begin one with: ray start --head") from error
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    with suppress(subprocess.TimeoutExpired):
        if subprocess.run(command, capture_output=True, timeout=_ANSWER_S).returncode == 0:
            return
    raise UserError(
        f"{nobody}, or it wants a token that is not here (RAY_AUTH_MODE=token, RAY_AUTH_TOKEN or ~/.ray/auth_token)"
    )


class _Board:
    """The actor that trainings report to, on the node of who watches them."""

    def __init__(self) -> None:
        self._reports: list[Report] = []
        self._stopped = False

    def put(self, item: Report) -> bool:
        """Take a report; return whether the training is to end."""
        self._reports.append(item)
        return self._stopped

    def take(self) -> list[Report]:
        """Return the reports since the last time."""
        reports, self._reports = self._reports, []
        return reports

    def stop(self) -> None:
        """Tell all trainings, when they report next, to end."""
        self._stopped = True


class _Desk:
    """What this process has of the board, and who waits for the trainings: a thread each."""

    def __init__(self, ray: Any) -> None:
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        self._ray = ray
        self._board = ray.remote(_Board).options(num_cpus=0, scheduling_strategy=here).remote()
        self._unread: deque[Report] = deque()
        self._names: dict[Path, Path] = {}  # of run folders: as they were given, by where they are
        self._tasks: dict[Path, Any] = {}  # under way, or waiting for a node
        self._begun: set[Path] = set()
        self._stopped: float | None = None

    def get(self, block: bool = True, timeout: float | None = None) -> Report:
        """Return the next report."""
        if self.empty():
            if block:
                time.sleep(timeout or 0.0)
            raise queue.Empty
        return self._unread.popleft()

    def empty(self) -> bool:
        """Say whether there is no report, on the board neither."""
        if not self._unread:
            try:
                new: list[Report] = self._ray.get(self._board.take.remote())
            except self._ray.exceptions.RayError as error:
                raise UserError(
                    "the Ray cluster is gone; once it is back, what was begun goes on from its checkpoints: start "
                    "reproduce again, sweep with --resume"
                ) from error
            self._begun.update(run for run, _, _ in new)
            self._unread.extend((self._names[run], done, message) for run, done, message in new)
        return not self._unread

    def set(self) -> None:
        """End all trainings: those under way by the board, those that wait for a node at once."""
        if self._stopped is not None:
            return
        self._stopped = time.monotonic()
        with suppress(self._ray.exceptions.RayError):
            self._ray.get(self._board.stop.remote())
            for run, task in list(self._tasks.items()):
                if run not in self._begun:
                    self._ray.cancel(task)

    def watch(self, task: Any, given: Job, cpus: int, gpus: float) -> None:
        """Have a job done, again and again when its node or process is lost; raise what it failed by."""
        errors = self._ray.exceptions
        job = _absolute(given)
        self._names[job.run] = given.run
        job.run.parent.mkdir(parents=True, exist_ok=True)  # by which a node knows the shared storage
        losses, checkpoint = 0, _checkpointed(job.run)
        while self._stopped is None:
            self._begun.discard(job.run)
            self._tasks[job.run] = task.remote(job, cpus, gpus, self._board, sys.argv)
            try:
                failure = self._wait(self._tasks[job.run])
            except errors.TaskCancelledError:
                return
            except (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError, errors.ObjectLostError):
                before, checkpoint = checkpoint, _checkpointed(job.run)
                losses = 1 if checkpoint != before else losses + 1
                if losses == _LOSSES:
                    raise UserError(
                        f"its process or its node was lost {losses} times in a row; is there too little memory?"
                    ) from None
                self._await_lock(job.run)
                job = _to_go_on(job)
                self._unread.append((given.run, 0.0, "its node or process was lost, so it begins again"))
                continue
            except errors.RayTaskError as error:  # what a node says that cannot even begin
                lines = [line.strip() for line in str(error).splitlines() if line.strip()]
                raise UserError(f"a node could not begin it: {lines[-1]}; is discoseg installed there?") from None
            if failure is not None:
                raise failure
            if self._stopped is None and not is_finished(given.run, given.config.epochs):
                raise UserError("trained, but its files are not here: nodes must share the storage of run folders")
            return

    def _await_lock(self, run: Path) -> None:
        """Wait until the lost training has left its folder: a node that is cut off ends what runs on it a bit later."""
        end = time.monotonic() + _PATIENCE_S
        while self._stopped is None and time.monotonic() < end:
            try:
                require_unlocked(run)
            except UserError:
                time.sleep(1)
            else:
                return

    def _wait(self, task: Any) -> BaseException | None:
        while True:
            done, _ = self._ray.wait([task], timeout=0.5)
            if done:
                failure: BaseException | None = self._ray.get(task)
                return failure
            if self._stopped is not None and time.monotonic() - self._stopped > _PATIENCE_S:
                self._ray.cancel(task, force=True)


def _absolute(job: Job) -> Job:
    """Return a job whose paths mean the same on another machine with the same storage."""
    sources = {name: value.resolve() if isinstance(value, Path) else value for name, value in job.sources.items()}
    config = replace(job.config, size_csv=job.config.size_csv and job.config.size_csv.resolve())
    return replace(job, dataset=job.dataset.resolve(), run=job.run.resolve(), sources=sources, config=config)


def _checkpointed(run: Path) -> int | None:
    """Return when the latest checkpoint was written, in ns; None if there is none."""
    with suppress(OSError):
        return RunFolder(run).latest.stat().st_mtime_ns
    return None


def _to_go_on(job: Job) -> Job:
    """Return a lost job such that it goes on; a folder that is not yet a run is removed: it was new, and is ours."""
    if (job.run / "config.toml").is_file():
        return replace(job, resume=True)
    if not job.resume:
        shutil.rmtree(job.run, ignore_errors=True)
    return job


def _train(job: Job, cpus: int, gpus: float, board: Any, command: list[str]) -> BaseException | None:
    """Train on this node; return what failed, with the trace of where: an error that Ray carries over says less."""
    import ray
    import torch

    from discoseg.workflow import fit

    sys.argv[:] = command  # which run.json records
    line = _Line(board)
    report = reporter(job.run, line.put, line.stops)
    try:
        report(0.0, "preparing")
        if line.stops():
            return None
        if not job.run.parent.is_dir():
            raise UserError(
                f"{job.run.parent} is not on node {socket.gethostname()}: nodes must share the storage of the dataset "
                "and the run folders"
            )
        torch.set_num_threads(cpus)
        node = next(n["Resources"] for n in ray.nodes() if n["NodeID"] == ray.get_runtime_context().get_node_id())
        share = max(cpus / node["CPU"], gpus / node.get("GPU", 1.0), 0.0)
        memory_gib = budget_gib(job.memory_gib) * min(share, 1.0)
        device = "cuda" if gpus else "cpu"
        fit(
            job.dataset,
            job.run,
            job.config,
            **job.sources,
            device=device,
            memory_gib=memory_gib,
            resume=job.resume,
            progress=report,
        )
    except KeyboardInterrupt:
        return None
    except Exception as error:
        if not isinstance(error, UserError):
            error.add_note(f"on node {socket.gethostname()}:\n{traceback.format_exc()}")
        return error
    return None


class _Line:
    """A training's way to the board: reports go there, and whether to end comes back."""

    def __init__(self, board: Any) -> None:
        self._board = board
        self._stopped = False

    def put(self, item: Report) -> None:
        """Report, and hear whether to go on."""
        import ray

        self._stopped = ray.get(self._board.put.remote(item))

    def stops(self) -> bool:
        """Say whether the last report was answered with the wish to end."""
        return self._stopped
