"""Several trainings on one dataset at a time, on this machine or on a cluster (:mod:`discoseg.engines`).

discoseg sweep ACDC --configs lv-rho0.1.toml lv-rho1.toml --seeds seeds/LV --out runs
"""

import queue
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from discoseg.checkpoint import previous_of
from discoseg.config import Config
from discoseg.engines import Engine, Job, Started
from discoseg.engines.local import LocalEngine
from discoseg.errors import UserError
from discoseg.finished import is_finished
from discoseg.out_of_memory import is_out_of_memory
from discoseg.presets import load_run_config
from discoseg.run import RunFolder
from discoseg.workflow import recorded_sources

RunProgress = Callable[[Path, float, str], None]
"""Called with a run folder, the epochs done so far and a line about what is going on."""


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
    engine: Engine | None = None,
    progress: RunProgress = lambda run, done, message: None,
) -> None:
    """Train every configuration into its run folder, ``at_once`` of them at a time; see :func:`discoseg.fit`.

    By default that is one for each core, or two on a GPU; they share ``memory_gib``. With ``resume`` finished runs stay
    as they are and begun ones go on with the sources they were started with. A training that fails does not stop the
    others; all failures are raised together in the end. An ``engine``, by default :class:`LocalEngine`, has its own
    ``device`` and ``at_once``. A script that calls this needs ``if __name__ == "__main__":`` around the call.
    """
    engine = LocalEngine(device, at_once) if engine is None else engine
    given = {"seeds": seeds, "split": split, "validation_fraction": validation_fraction}
    begun = {run: resume and (run / "config.toml").is_file() for run in runs}
    left = {run: config for run, config in runs.items() if not (begun[run] and _is_finished(run, config))}
    jobs = []
    for run, config in left.items():
        RunFolder.require_usable(run, resume=begun[run])
        sources = _recorded(run, given) if begun[run] else given
        jobs.append(Job(dataset, run, config, begun[run], sources, memory_gib))
    if not jobs:
        return
    with ExitStack() as stack:
        failures = _run_all(jobs, engine.start(stack, jobs, len(runs)), progress)
    _raise(failures)


def _is_finished(run: Path, config: Config) -> bool:
    """Say whether a run has all its files and was made with these settings; if not with these, resuming says so."""
    if not (is_finished(run, config.epochs) and (run / "cases.csv").is_file()):
        return False
    stored = load_run_config(run / "config.toml")
    return stored == replace(config, size_csv=config.size_csv and config.size_csv.resolve())


def _recorded(run: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Return the sources of a begun run; what is given anew takes their place."""
    recorded = recorded_sources(run)
    folders = {name: given[name] or (recorded[name] and Path(recorded[name])) for name in ("seeds", "split")}
    return {**folders, "validation_fraction": recorded["validation_fraction"]}


def _run_all(jobs: Sequence[Job], engine: Started, progress: RunProgress) -> dict[Path, BaseException]:
    """Keep as many jobs under way as may be until all are done; return errors of those that failed, the first first.

    Those that run out of memory which others have go on later, beside fewer of them.
    """
    waiting, at_once = list(jobs), engine.at_once
    running: dict[Future[None], Job] = {}
    beside: set[Path] = set()  # runs that were not alone
    failures: dict[Path, BaseException] = {}
    try:
        while waiting or running or not engine.reports.empty():
            while waiting and len(running) < at_once:  # a pool would begin what waits after an interruption
                job = waiting.pop(0)
                beside.discard(job.run)
                running[engine.submit(job)] = job
            if len(running) > 1:
                beside.update(job.run for job in running.values())
            with suppress(queue.Empty):
                progress(*engine.reports.get(timeout=0.2))
            under_way, short = len(running), list[Job]()
            for job, error in _take_ended(running):
                if engine.share_memory and job.run in beside and is_out_of_memory(error):
                    short.append(job)
                else:
                    failures[job.run] = error
            if short:
                at_once = max(1, min(at_once, under_way) - 1)
                waiting[:0] = [_to_go_on(job, at_once) for job in short]
    except BaseException:
        engine.stop.set()
        raise
    return failures


def _take_ended(running: dict[Future[None], Job]) -> list[tuple[Job, BaseException]]:
    """Take the jobs that have ended out of those under way; return those that failed, and their errors.

    Of those that are finished the last checkpoint stays, but not the one before: each is as large as the dataset.
    """
    failed = []
    for future in [future for future in running if future.done()]:
        job, error = running.pop(future), future.exception()
        if error is not None:
            failed.append((job, error))
            continue
        with suppress(OSError):
            previous_of(RunFolder(job.run).latest).unlink(missing_ok=True)
    return failed


def _to_go_on(job: Job, at_once: int) -> Job:
    """Return a job that lacked memory such that it goes on from its last checkpoint, if it has begun, and say so."""
    line = f"{job.run}: out of memory beside others; goes on later, with {at_once} at a time from now on"
    begun = (job.run / "config.toml").is_file()
    if begun:
        RunFolder(job.run).warn(line)
    else:
        warnings.warn(line, stacklevel=2)
    return replace(job, resume=job.resume or begun)


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
