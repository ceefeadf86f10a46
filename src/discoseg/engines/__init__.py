"""Engines: where the trainings of a sweep run. Each takes jobs and passes on what they report.

``local`` has threads on a GPU and processes on a CPU, ``on_ray`` the nodes of a Ray cluster. What a training writes is
the same on either.
"""

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from discoseg.config import Config
from discoseg.interruption import Interrupted

_REPORT_EVERY_S = 0.2  # at most: who reads reports holds Python's lock, which the trainings' threads need at every step

Report = tuple[Path, float, str]
"""A run folder, the epochs done so far and a line about what is going on."""


@dataclass(frozen=True)
class Job:
    """One training of a sweep; ``sources`` are what :func:`discoseg.fit` takes.

    ``memory_gib`` is what was asked for all trainings together, None for the default.
    """

    dataset: Path
    run: Path
    config: Config
    resume: bool
    sources: dict[str, Any]
    memory_gib: float | None


class Reports(Protocol):
    """Where the reports of trainings arrive: a queue of this process, or what is like one."""

    def get(self, block: bool = True, timeout: float | None = None) -> Report:
        """Return the next report, or raise :class:`queue.Empty` after ``timeout`` seconds."""

    def empty(self) -> bool:
        """Say whether there is no report to get."""


class Stop(Protocol):
    """What ends all trainings."""

    def set(self) -> None:
        """End them; they save what they have."""


@dataclass(frozen=True)
class Started:
    """An engine at work: ``submit`` begins a job, of which ``at_once`` may be under way at a time.

    ``share_memory`` says that what one training has another lacks, so that fewer of them may fit where all do not.
    """

    at_once: int
    submit: Callable[[Job], "Future[None]"]
    reports: Reports
    stop: Stop
    share_memory: bool = False


class Engine(Protocol):
    """What a sweep needs of an engine."""

    def start(self, stack: ExitStack, jobs: Sequence[Job], trainings: int) -> Started:
        """Get ready for ``jobs``, those left to do of all ``trainings``, until ``stack`` is closed."""


def reporter(run: Path, put: Callable[[Report], None], stops: Callable[[], bool]) -> Callable[[float, str], None]:
    """Return what a training calls with its progress: reports go on to ``put``; it ends where ``stops``.

    Of reports within an epoch that follow each other closely, only the first is passed on.
    """
    last = -math.inf

    def report(done: float, message: str) -> None:
        nonlocal last
        now = time.monotonic()
        if stops():
            raise Interrupted
        if done == int(done) or now - last >= _REPORT_EVERY_S:
            put((run, done, message))
            last = now

    return report
