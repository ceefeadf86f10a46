"""Trainings of a sweep on this machine: threads that share a GPU and what lies on it, or processes on a CPU.

Threads of one process, each on a CUDA stream of its own, read the same slices and contrast weights. They also share
the device's random generator, so a sweep on a GPU does not repeat exactly; trainings that must (``deterministic``) have
processes there too. On a CPU the trainings have processes and cores of their own, and the same seed gives the same
bytes; one that is killed ends no other.
"""

import queue
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from discoseg.config import Config, Method, RoundsConfig
from discoseg.data.files import usable_cores
from discoseg.data.memory import Memory, budget_gib
from discoseg.devices import choose_device
from discoseg.engines import Job, Report, Started, reporter
from discoseg.engines.processes import start_processes
from discoseg.errors import UserError
from discoseg.material import Material, require_room_on_device
from discoseg.out_of_memory import released
from discoseg.replay import reclaim
from discoseg.train import train_on
from discoseg.workflow import Inputs, gather_inputs

_AT_ONCE_ON_CUDA = 2  # more fill the GPU no better: see docs/performance.md


@dataclass(frozen=True)
class LocalEngine:
    """This machine; ``at_once`` trainings at a time, by default one for each core, or two on a GPU."""

    device: str = "auto"
    at_once: int | None = None

    def __post_init__(self) -> None:
        if self.at_once is not None and self.at_once < 1:
            raise UserError(f"at_once is {self.at_once}: it must be at least 1")
        choose_device(self.device)

    def start(self, stack: ExitStack, jobs: Sequence[Job], trainings: int) -> Started:
        """Start threads or processes, which end with ``stack``."""
        device = choose_device(self.device).type
        workers = self.at_once or (_AT_ONCE_ON_CUDA if device == "cuda" else usable_cores())
        # Who trains alone has all cores, and all memory; not so who is left alone: other threads round differently.
        workers = max(1, min(workers, trainings))
        if device == "cuda" and not any(job.config.deterministic for job in jobs):
            return _start_threads(stack, workers)
        return start_processes(stack, workers, device)


def _start_threads(stack: ExitStack, workers: int) -> Started:
    device = choose_device("cuda")
    reports: queue.Queue[Report] = queue.Queue()
    stop = threading.Event()
    shared: dict[str, tuple[Inputs, Material]] = {}  # by all that examples depend on
    volumes: dict[str, Material] = {}  # by all of that but the size bounds and known slices
    gathering = threading.Lock()
    under_way: set[Path] = set()
    materials = stack.enter_context(ExitStack())  # closed after the threads have ended
    pool = stack.enter_context(ThreadPoolExecutor(workers))

    def work(job: Job) -> None:
        failure = None
        under_way.add(job.run)
        try:
            train_job(job)
        except BaseException as error:
            failure = released(error)
        with suppress(RuntimeError):  # of a device that is lost: the failure says so
            reclaim(device)
        under_way.discard(job.run)  # now that others can have its memory
        if failure is not None:
            raise failure

    def train_job(job: Job) -> None:
        report = reporter(job.run, reports.put, stop.is_set)
        report(0.0, "preparing")
        settings, sources = _data_settings(job.config), sorted(job.sources.items())
        key, without_constraints = repr((settings, sources)), repr((_without_constraints(settings), sources))
        with gathering:
            if key not in shared:
                memory = Memory(budget_gib(job.memory_gib) / workers)
                inputs = gather_inputs(job.dataset, job.config, **job.sources, memory=memory)
                require_room_on_device(inputs.training, inputs.validation, job.config, device)
                if without_constraints in volumes:
                    material = volumes[without_constraints].with_constraints(inputs.training)
                else:
                    idle = workers == 1
                    material = Material(
                        inputs.training,
                        inputs.validation,
                        device,
                        idle_cores=idle,
                        memory=memory,
                        others=lambda: len(under_way) > 1,
                    )
                    volumes[without_constraints] = materials.enter_context(material)
                shared[key] = inputs, material
        inputs, material = shared[key]
        config = replace(job.config, size_csv=inputs.config.size_csv)
        facts = {"model": inputs.model, "sources": inputs.sources}
        train_on(material, config, job.run, **facts, resume=job.resume, progress=report)

    return Started(workers, lambda job: pool.submit(work, job), reports, stop, share_memory=True)


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
        rounds=RoundsConfig(first=1, slices=True) if config.uses_slices else plain.rounds,
    )


def _without_constraints(settings: Config) -> Config:
    """Return data settings that are equal for all whose examples differ in their size bounds and known slices alone."""
    method: Method = "full" if settings.method == "full" else "partial"
    return replace(settings, method=method, size_eps=None, size_ml=None, size_csv=None, rounds=RoundsConfig())
