"""Several trainings on one dataset at once: threads that share a GPU and what lies on it, or a process for each core.

    discoseg sweep ACDC --configs lv-rho0.1.toml lv-rho1.toml --seeds seeds/LV --out runs

Small networks leave a GPU mostly idle. Trainings in threads of one process fill it, each on a stream of its own, and
read the same slices and contrast weights. On a CPU the trainings have processes, one core each: torch's generator is
one for all threads of a process, and the same seed must give the same bytes.
"""

import multiprocessing
import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from discoseg.config import Config
from discoseg.data.files import usable_cores
from discoseg.errors import UserError
from discoseg.material import Material
from discoseg.run import RunFolder
from discoseg.train import Progress, choose_device, train_on
from discoseg.workflow import Inputs, fit, gather_inputs

RunProgress = Callable[[Path, float, str], None]
"""Called with a run folder, the epochs done so far and a line about what is going on."""

_AT_ONCE_ON_CUDA = 8


def fit_many(
    dataset: Path,
    runs: Mapping[Path, Config],
    *,
    seeds: Path | None = None,
    split: Path | None = None,
    validation_fraction: float = 0.2,
    device: str = "auto",
    at_once: int | None = None,
    resume: bool = False,
    progress: RunProgress = lambda run, done, message: None,
) -> None:
    """Train every configuration into its run folder, ``at_once`` of them at a time; see :func:`discoseg.fit`.

    By default that is one for each core, or eight on a GPU. With ``resume`` finished runs stay as they are and begun
    ones go on. A training that fails does not stop the others; its error is raised in the end.
    """
    unfinished = {run: config for run, config in runs.items() if not (resume and RunFolder(run).final.is_file())}
    begun = {run: resume and (run / "config.toml").is_file() for run in unfinished}
    for run, resumed in begun.items():
        RunFolder.require_usable(run, resume=resumed)
    sources: dict[str, Any] = {"seeds": seeds, "split": split, "validation_fraction": validation_fraction}
    on_cuda = choose_device(device).type == "cuda"
    start = _start_threads if on_cuda else _start_processes
    workers = min(at_once or (_AT_ONCE_ON_CUDA if on_cuda else usable_cores()), max(1, len(unfinished)))
    with ExitStack() as stack:
        reports: queue.Queue[tuple[Path, float, str]]
        jobs, reports = start(stack, dataset, unfinished, begun, sources, workers)
        while not all(job.done() for job in jobs.values()) or not reports.empty():
            with suppress(queue.Empty):
                progress(*reports.get(timeout=0.2))
    for run, job in jobs.items():
        try:
            job.result()
        except UserError as error:
            raise UserError(f"{run}: {error}") from error


Started = tuple[dict[Path, "Future[None]"], "queue.Queue[tuple[Path, float, str]]"]


def _start_processes(
    stack: ExitStack,
    dataset: Path,
    runs: Mapping[Path, Config],
    begun: Mapping[Path, bool],
    sources: dict[str, Any],
    workers: int,
) -> Started:
    context = multiprocessing.get_context("spawn")
    reports = stack.enter_context(context.Manager()).Queue()
    pool = stack.enter_context(ProcessPoolExecutor(workers, mp_context=context))
    stack.callback(pool.shutdown, cancel_futures=True)  # after an interruption what has not begun does not begin
    threads = max(1, usable_cores() // workers)
    jobs = {run: pool.submit(_fit, dataset, run, runs[run], begun[run], sources, threads, reports) for run in runs}
    return jobs, reports


def _fit(
    dataset: Path,
    run: Path,
    config: Config,
    resume: bool,
    sources: dict[str, Any],
    threads: int,
    reports: "queue.Queue[tuple[Path, float, str]]",
) -> None:
    import torch

    torch.set_num_threads(threads)
    report: Progress = lambda done, message: reports.put((run, done, message))  # noqa: E731
    fit(dataset, run, config, **sources, device="cpu", resume=resume, progress=report)


def _start_threads(
    stack: ExitStack,
    dataset: Path,
    runs: Mapping[Path, Config],
    begun: Mapping[Path, bool],
    sources: dict[str, Any],
    workers: int,
) -> Started:
    device = choose_device("cuda")
    reports: queue.Queue[tuple[Path, float, str]] = queue.Queue()
    shared: dict[Config, tuple[Inputs, Material]] = {}
    for config in runs.values():
        key = _data_settings(config)
        if key not in shared:
            inputs = gather_inputs(dataset, config, **sources)
            material = Material(inputs.training, inputs.validation, device, idle_cores=workers == 1)
            shared[key] = inputs, stack.enter_context(material)
    stop = threading.Event()
    pool = stack.enter_context(ThreadPoolExecutor(workers))
    stack.callback(pool.shutdown, cancel_futures=True)
    stack.callback(stop.set)  # first of all: running ones end, and what has not begun does not begin

    def work(run: Path, config: Config) -> None:
        def report(done: float, message: str) -> None:
            if stop.is_set():
                raise KeyboardInterrupt
            reports.put((run, done, message))

        inputs, material = shared[_data_settings(config)]
        config = replace(config, size_csv=inputs.config.size_csv)
        train_on(
            material,
            config,
            run,
            model=inputs.model,
            sources=inputs.sources,
            resume=begun[run],
            progress=report,
        )

    return {run: pool.submit(work, run, config) for run, config in runs.items()}, reports


def _data_settings(config: Config) -> Config:
    """Return a configuration that is equal for all whose examples are: what does not touch them is left out."""
    plain = Config(method="full" if config.method == "full" else "crf+size" if config.needs_bounds else "partial")
    honour = replace(plain.admm, honour_seeds=config.admm.honour_seeds)
    return replace(
        plain,
        label=config.label,
        grid=config.grid,
        size_eps=config.size_eps,
        size_ml=config.size_ml,
        size_csv=config.size_csv,
        admm=honour,
    )
