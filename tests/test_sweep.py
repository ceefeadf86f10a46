"""Several trainings at once give the bytes of one after the other, and a failure stops nobody else."""

import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from discoseg import engines
from discoseg.about_run import describe_run
from discoseg.checkpoint import load_tensors
from discoseg.checkpoint_header import load_meta
from discoseg.cli import main
from discoseg.config import Config, OptimiserConfig
from discoseg.engines import Job, Report, Started, local, processes, reporter
from discoseg.engines.local import _data_settings, _without_constraints
from discoseg.errors import UserError
from discoseg.finished import is_finished
from discoseg.interruption import Interrupted
from discoseg.material import Material
from discoseg.run import RunFolder
from discoseg.sweep import fit_many
from discoseg.train import train_on
from discoseg.training_pass import TrainingPass
from discoseg.weak.bounds import Bounds
from discoseg.weak.examples import Example
from discoseg.workflow import fit
from test_train import MODEL, SMALL

TINY = replace(SMALL, label="LV", method="full", epochs=2)


FINAL = "checkpoints/final.safetensors"


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread for each of two trainings, as for those that tests compare them with."""
    for module in (local, processes):
        monkeypatch.setattr(module, "usable_cores", lambda: 2)


def test_equals_one_after_the_other_and_resumes(phantoms: Path, tmp_path: Path) -> None:
    runs = {tmp_path / name: replace(TINY, seed=seed) for seed, name in enumerate(("a", "b"))}
    seen: dict[str, float] = {}
    fit_many(phantoms, runs, device="cpu", progress=lambda run, done, _: seen.update({run.name: done}))
    assert seen == {"a": 2, "b": 2}
    fit(phantoms, tmp_path / "alone", replace(TINY, seed=1), device="cpu")
    kept = {name: {path.stem for path in tmp_path.glob(f"{name}/checkpoints/*")} for name in ("a", "alone")}
    assert kept["alone"] - kept["a"] == {"previous"}  # many trainings would fill a disk
    assert "latest" in kept["a"]
    whole = (tmp_path / "alone" / FINAL).read_bytes()
    assert (tmp_path / "b" / FINAL).read_bytes() == whole
    with pytest.raises(UserError, match="already in use"):
        fit_many(phantoms, runs, device="cpu")
    before = (tmp_path / "a" / FINAL).stat().st_mtime_ns
    shutil.rmtree(tmp_path / "b")
    with pytest.raises(_Interrupted):
        fit(phantoms, tmp_path / "b", replace(TINY, seed=1), device="cpu", progress=_interrupt_after_one)
    fit_many(phantoms, runs, device="cpu", resume=True)
    assert (tmp_path / "a" / FINAL).stat().st_mtime_ns == before
    assert (tmp_path / "b" / FINAL).read_bytes() == whole


class _Interrupted(Exception):
    pass


def _interrupt_after_one(done: float, message: str) -> None:
    if done > 1:
        raise _Interrupted


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads in the place of processes, which take seconds to begin."""

    def start(stack: ExitStack, workers: int, device: str) -> Started:
        reports, stop = queue.Queue[Report](), threading.Event()
        pool = stack.enter_context(ThreadPoolExecutor(workers))

        def work(job: Job) -> None:
            report = reporter(job.run, reports.put, stop.is_set)
            fit(job.dataset, job.run, job.config, **job.sources, device=device, resume=job.resume, progress=report)

        return Started(workers, lambda job: pool.submit(work, job), reports, stop)

    monkeypatch.setattr(local, "start_processes", start)


@pytest.mark.usefixtures("in_threads")
def test_a_finished_run_goes_on_to_more_epochs_but_not_with_other_settings(phantoms: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    fit(phantoms, run, TINY, device="cpu")
    fit_many(phantoms, {run: replace(TINY, epochs=3)}, device="cpu", resume=True)
    assert len((run / "metrics.csv").read_text().splitlines()) == 1 + 3
    other = replace(TINY, epochs=3, optimiser=OptimiserConfig(lr=1e-5))
    with pytest.raises(UserError, match=r"run: .*another setting: optimiser"):
        fit_many(phantoms, {run: other}, device="cpu", resume=True)


@pytest.mark.usefixtures("in_threads")
def test_a_run_that_was_interrupted_on_its_way_to_more_epochs_is_not_finished(phantoms: Path, tmp_path: Path) -> None:
    """Though the model is there that it ended with before."""
    run, longer = tmp_path / "run", replace(TINY, epochs=5)

    def stop(done: float, message: str) -> None:
        if done >= 5:  # the models that it ends with are not written yet
            raise KeyboardInterrupt

    fit(phantoms, run, TINY, device="cpu")
    with pytest.raises(KeyboardInterrupt):
        fit(phantoms, run, longer, device="cpu", resume=True, progress=stop)
    assert describe_run(run)["state"] == "begun"
    fit_many(phantoms, {run: longer}, device="cpu", resume=True)
    assert describe_run(run)["state"] == "finished"
    assert len((run / "metrics.csv").read_text().splitlines()) == 1 + 5


def test_failures_are_all_named_and_stop_nobody_else(phantoms: Path, tmp_path: Path) -> None:
    """One of their processes gets a SIGKILL, as from a machine without memory."""
    bad = replace(TINY, optimiser=OptimiserConfig(lr=1e30))
    runs = {tmp_path / "bad": bad, tmp_path / "killed": replace(TINY, epochs=100_000)}
    runs |= {tmp_path / "worse": replace(TINY, method="partial"), tmp_path / "good": TINY}

    def progress(run: Path, done: float, message: str) -> None:
        if run.name == "killed" and done > 0:
            with suppress(ProcessLookupError):
                os.kill(int((run / ".lock").read_text().split()[1]), signal.SIGKILL)

    complaints = r"bad: (the loss|weights).*killed: its process was ended by SIGKILL.*worse: --method partial"
    with pytest.raises(UserError, match=complaints):
        fit_many(phantoms, runs, device="cpu", progress=progress)
    assert (tmp_path / "good" / FINAL).is_file()


class _Threads:
    """The engine of a GPU, on the CPU: threads that share examples and memory."""

    def start(self, stack: ExitStack, jobs: Sequence[Job], trainings: int) -> Started:
        return local._start_threads(stack, trainings)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[TrainingPass], None]], None]:
    """Returns what makes every step of a training do something first, on a CPU that threads share like a GPU."""
    monkeypatch.setattr(local, "choose_device", lambda name: torch.device("cpu"))
    take = TrainingPass._batch_losses

    def make(before: Callable[[TrainingPass], None]) -> None:
        def taken(self: TrainingPass, *given: Any) -> Any:
            before(self)
            return take(self, *given)

        monkeypatch.setattr(TrainingPass, "_batch_losses", taken)

    return make


_Steps = Callable[[Callable[[TrainingPass], None]], None]


@pytest.mark.filterwarnings("ignore:.*out of memory beside others")
def test_who_lacks_memory_that_others_have_goes_on_later(phantoms: Path, tmp_path: Path, steps: _Steps) -> None:
    """From its checkpoint, with whole batches: two of three trainings run out in their second epoch."""
    there, everybody = list[int](), threading.Event()

    def meet(learn: TrainingPass) -> None:
        if learn._state.epoch == 1 and learn._config.seed not in there:
            there.append(learn._config.seed)
            if len(there) == 3:
                everybody.set()
            everybody.wait(60)
            if learn._config.seed != there[0]:
                raise torch.OutOfMemoryError("CUDA out of memory")

    steps(meet)
    runs = {tmp_path / name: replace(TINY, epochs=3, seed=seed) for seed, name in enumerate("abc")}
    fit_many(phantoms, runs, engine=_Threads())
    logs = [(run / "log.txt").read_text(encoding="utf-8") for run in runs]
    assert all(is_finished(run, 3) for run in runs)
    assert [load_meta(RunFolder(run).latest)["parts"] for run in runs] == [1, 1, 1]
    assert sorted("out of memory beside others" in log for log in logs) == [False, True, True]
    assert sorted("resumed after epoch 1" in log for log in logs) == [False, True, True]


@pytest.mark.filterwarnings("ignore:.*out of memory")
def test_who_lacks_memory_alone_fails(phantoms: Path, tmp_path: Path, steps: _Steps) -> None:
    tried = 0

    def never(learn: TrainingPass) -> None:
        nonlocal tried
        tried += 1
        if tried > 100:
            pytest.fail("tries for ever")
        raise torch.OutOfMemoryError("CUDA out of memory")

    steps(never)
    with pytest.raises(UserError, match=r"a: out of memory in epoch 1, with .*b: out of memory in epoch 1, with"):
        fit_many(phantoms, {tmp_path / name: TINY for name in "ab"}, engine=_Threads())


@pytest.mark.filterwarnings("ignore:.*out of memory beside others")
@pytest.mark.parametrize("why", ["memory", "proposal", "defect", "loss"])
def test_a_training_that_failed_holds_no_memory(why: str, phantoms: Path, tmp_path: Path, steps: _Steps) -> None:
    """While another one goes on, whatever it failed of."""
    failed, freed, begun = list["weakref.ref[TrainingPass]"](), list[bool](), threading.Event()

    def fail(learn: TrainingPass) -> None:
        if learn._config.seed == 1 and not failed:
            begun.wait(60)
            failed.append(weakref.ref(learn))
            if why == "memory":
                raise torch.OutOfMemoryError("CUDA out of memory")
            if why == "proposal":
                raise UserError("case: its proposal failed") from MemoryError("out of memory")
            raise UserError("the loss is not finite") if why == "loss" else ValueError("a defect")
        if learn._config.seed == 0 and not begun.is_set():
            begun.set()
            end = time.monotonic() + 60
            while (not failed or failed[0]() is not None) and time.monotonic() < end:
                time.sleep(0.02)
            freed.append(failed[0]() is None)

    steps(fail)
    runs = {tmp_path / name: replace(TINY, epochs=1, seed=seed) for seed, name in enumerate(("good", "bad"))}
    with {
        "defect": pytest.raises(ValueError, match="a defect"),
        "loss": pytest.raises(UserError, match="bad: the loss is not finite"),
    }.get(why, nullcontext()) as raised:
        fit_many(phantoms, runs, engine=_Threads())
    assert freed == [True]
    assert is_finished(tmp_path / "good", 1)
    assert is_finished(tmp_path / "bad", 1) == (why in ("memory", "proposal"))
    if raised is not None and why == "defect":
        assert any("in fail" in note for note in raised.value.__notes__)  # where it came from


@pytest.mark.filterwarnings("ignore:.*out of memory beside others")
def test_who_lacks_memory_goes_on_beside_fewer(tmp_path: Path) -> None:
    """Also where not as many are under way as could be."""
    under_way, beside = set[str](), list[int]()
    end = threading.Event()

    class Fake:
        def start(self, stack: ExitStack, jobs: Sequence[Job], trainings: int) -> Started:
            pool = stack.enter_context(ThreadPoolExecutor(6))

            def work(job: Job) -> None:
                under_way.add(job.run.name)
                others = len(under_way) - 1
                try:
                    if job.run.name == "c":
                        beside.append(others)
                        if len(beside) > 2:
                            end.set()
                        if others:
                            raise MemoryError
                    elif job.run.name == "b":
                        time.sleep(0.5)
                    else:
                        end.wait(2)
                finally:
                    under_way.discard(job.run.name)

            return Started(6, lambda job: pool.submit(work, job), queue.Queue(), threading.Event(), share_memory=True)

    fit_many(tmp_path, {tmp_path / name: TINY for name in "abc"}, engine=Fake())
    assert beside == [2, 1, 0]


def test_a_stop_between_two_trainings_is_heard(phantoms: Path, tmp_path: Path) -> None:
    pool = processes._Processes(processes._Share("cpu", threads=1, parts=1))
    sources = {"seeds": None, "split": None, "validation_fraction": 0.2}

    def train(name: str) -> None:
        pool.train(Job(phantoms, tmp_path / name, replace(TINY, epochs=1), False, sources, None))

    train("first")
    assert (tmp_path / "first" / FINAL).is_file()
    idle = pool._idle[0]
    idle.process.terminate()
    with pytest.raises(Interrupted):
        train("second")
    pool.set()
    with pytest.raises(Interrupted):
        train("third")
    assert [path.name for path in tmp_path.iterdir()] == ["first"]
    assert idle.process.is_alive()
    pool.close()


@pytest.mark.usefixtures("in_threads")
def test_an_interruption_begins_nothing_new(phantoms: Path, tmp_path: Path) -> None:
    runs = {tmp_path / name: replace(TINY, epochs=30) for name in ("a", "b", "c", "d")}

    def progress(run: Path, done: float, message: str) -> None:
        if done > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_many(phantoms, runs, device="cpu", at_once=1, progress=progress)
    assert not any((tmp_path / name).exists() for name in ("b", "c", "d"))
    assert not (tmp_path / "a" / FINAL).exists()


def test_command_refuses_what_cannot_be(phantoms: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.toml").write_text("epochs = 1\n")
    twice = [str(tmp_path / folder / "same.toml") for folder in ("x", "y")]
    out = tmp_path / "out"
    for arguments, said in (
        (["--configs", *twice], "same name"),
        (["--configs", twice[0], "--at-once", "0"], "--at-once 0"),
        (["--configs", str(tmp_path / "none.toml")], "none.toml"),
    ):
        with pytest.raises(SystemExit) as exited:
            main(["sweep", str(phantoms), "--out", str(out), *arguments])
        assert exited.value.code == 2
        error = capsys.readouterr().err
        assert error.startswith("discoseg: error: ")
        assert error.count("\n") == 1
        assert said in error
        assert not out.exists()


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (replace(SMALL, seed=5, epochs=9, method="size"), True),
        (replace(SMALL, method="penalty"), True),
        (replace(SMALL, method="full"), False),
        (replace(SMALL, method="partial"), False),
        (replace(SMALL, label="RV"), False),
        (replace(SMALL, size_eps=0.2), False),
        (replace(SMALL, admm=replace(SMALL.admm, honour_seeds=False)), False),
    ],
)
def test_shares_examples_only_where_they_are_equal(other: Config, same: bool) -> None:
    assert (_data_settings(other) == _data_settings(SMALL)) is same


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (replace(SMALL, size_eps=0.2), True),
        (replace(SMALL, method="crf"), True),
        (replace(SMALL, method="full"), False),
        (replace(SMALL, label="RV"), False),
        (replace(SMALL, admm=replace(SMALL.admm, honour_seeds=False)), False),
    ],
)
def test_shares_volumes_where_bounds_alone_differ(other: Config, same: bool) -> None:
    assert (_without_constraints(_data_settings(other)) == _without_constraints(_data_settings(SMALL))) is same


def test_other_bounds_are_all_that_differs(examples: list[Example], tmp_path: Path) -> None:
    """A training on material with other bounds is that on material of its own."""
    cpu, narrow = torch.device("cpu"), []
    for example in examples[:3]:
        assert example.bounds is not None
        low = example.bounds[0].low_vox
        narrow.append(replace(example, bounds=(Bounds(low + 5, low + 9),)))
    with Material(examples[:3], examples[3:], cpu) as first, Material(narrow, examples[3:], cpu) as own:
        shared = first.with_constraints(narrow)
        assert shared.slices.image is first.slices.image
        assert shared.regions(SMALL.crf, honour_seeds=True) is first.regions(SMALL.crf, honour_seeds=True)
        assert shared.data == own.data != first.data
        for method in ("crf+size", "penalty"):
            config = replace(SMALL, method=method, epochs=2)
            histories = [
                train_on(material, config, tmp_path / method / str(number), model=MODEL).history
                for number, material in enumerate((first, shared, own))
            ]
            assert histories[1] == histories[2] != histories[0]


def test_trainings_end_with_the_process_that_began_them(tmp_path: Path) -> None:
    """It is killed (SIGKILL) while a worker is busy: nobody is left to use the cores."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, time\n"
        "from contextlib import ExitStack\n"
        "from discoseg.engines.processes import start_processes\n"
        "class Sleep:\n"
        "    @property\n"
        "    def run(self):  # what a training asks for first\n"
        "        print(os.getpid(), flush=True)\n"
        "        time.sleep(60)\n"
        "if __name__ == '__main__':\n"
        "    with ExitStack() as stack:\n"
        "        start_processes(stack, 1, 'cpu').submit(Sleep())\n"
        "        time.sleep(60)\n",
        encoding="utf-8",
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        os.kill(worker, 0)  # it is there
        process.kill()
    deadline = time.monotonic() + 20
    while _is_running(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _is_running(worker)


def _is_running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(("every_s", "within"), [(0.0, 9), (1000.0, 1)])
def test_reports_within_an_epoch_are_few(every_s: float, within: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_REPORT_EVERY_S", every_s)
    reports = queue.Queue[Report]()
    report = reporter(Path("run"), reports.put, lambda: False)
    for step in range(1, 10):
        report(step / 10, "")
    assert reports.qsize() == within
    report(1.0, "the epoch has ended")
    report(2.0, "the next, too")
    assert reports.qsize() == within + 2


@pytest.mark.usefixtures("in_threads")
def test_an_interrupted_sweep_saves_what_it_has(phantoms: Path, tmp_path: Path) -> None:
    run, begun = tmp_path / "run", 0.0

    def progress(run: Path, done: float, message: str) -> None:
        nonlocal begun
        begun = done
        if done > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_many(phantoms, {run: replace(TINY, epochs=100_000)}, device="cpu", progress=progress)
    _, meta = load_tensors(RunFolder(run).latest)
    assert meta["epoch"] + meta["steps"] / 100 > 0
    assert meta["epoch"] >= int(begun)
