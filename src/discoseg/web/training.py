"""Trainings started from the page: `discoseg train` as a process of its own, on what is annotated.

In OUT/runs a run NAME is an ordinary run folder. Beside it lie NAME.log, what the process printed; NAME.inputs, the
annotations as they were when it started, so that it can be resumed while annotation goes on; and NAME.lock, which the
process holds locked for as long as it lives: a server that is killed leaves it running, and the next one finds it.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from discoseg.config import Config, Method
from discoseg.data.files import make_folder_whole, no_follow, write_atomically
from discoseg.data.locks import try_lock
from discoseg.data.meta_header import data_file
from discoseg.errors import UserError
from discoseg.finished import is_finished
from discoseg.launch import without_launch
from discoseg.not_begun import is_not_begun
from discoseg.presets import load_config, load_run_config
from discoseg.texts import read_json
from discoseg.web.annotator import Annotator
from discoseg.web.runs import read_metrics

POLL_S = 0.5
PATIENCE_S = 10.0  # for a training to end before the server does

TrainingState = Literal["idle", "running", "stopping", "finished", "failed"]


class Busy(Exception):
    """A training runs already."""


@dataclass(frozen=True)
class Status:
    """Where a training stands; ``rows`` are those of its metrics.csv, ``seconds`` since its start."""

    name: str | None = None
    state: TrainingState = "idle"
    epoch: int = 0
    epochs: int = 0
    rows: Sequence[dict[str, float | None]] = ()
    message: str = "no training yet"
    seconds: float = 0.0


class Training:
    """Starts, watches and stops one training at a time; ``tell`` is called with its status whenever that changes."""

    def __init__(self, annotator: Annotator, *, preset: str, tell: Callable[[Status], None]) -> None:
        load_config(preset)  # a mistake in it is to be known now
        self._annotator, self._preset, self._tell = annotator, preset, tell
        self._folder = annotator.out / "runs"
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = threading.Event()
        if self._is_running():
            self._watch()

    def start(self, *, name: str | None = None, epochs: int | None = None, method: Method | None = None) -> Status:
        """Train on the cases that have seeds; one that was stopped goes on with what it was started with."""
        with self._lock, self._annotator.store.still():
            if self._is_running():
                raise Busy("a training runs; stop it, or wait for it")
            name = name or self._new_name()
            run = self._folder / name
            if (run / "config.toml").is_file():
                command, epochs = self._resume(run, epochs, method)
            else:
                command, epochs = self._begin(run, epochs, method)
            self._launch(name, command, epochs)
            return self.status()

    def status(self) -> Status:
        """Say where the latest training stands, as far as its files tell."""
        with self._lock:
            current = self._current()
            if current is None:
                return Status()
            name, epochs = current["name"], current["epochs"]
            running, run = self._is_running(), self._folder / name
            rows = read_metrics(run)
            log = self._folder / f"{name}.log"
            last = _last_line(log)
            state: TrainingState = "failed"
            if running:
                state = "stopping" if current["stopped"] else "running"
                message = f"epoch {len(rows) + 1} of {epochs}" if rows else "preparing, and the first epoch"
            elif is_finished(run):
                state, message = "finished", f"{len(rows)} epochs"
            elif current["stopped"]:
                state, message = "idle", f"stopped after epoch {len(rows)} of {epochs}; {name} can go on"
            else:
                message = last.removeprefix("discoseg: error: ") or "ended without a word"
            end = time.time() if running else log.stat().st_mtime if log.is_file() else current["started"]
            return Status(name, state, len(rows), epochs, rows, message, max(0.0, end - current["started"]))

    def stop(self) -> Status:
        """Ask a running training to save and end, so that it can go on later; end it at once the second time."""
        with self._lock:
            current = self._current()
            if current is not None and self._is_running():
                self._write_current({**current, "stopped": True})
                with suppress(OSError, ValueError):  # it has just ended
                    pid = int((self._folder / f"{current['name']}.lock").read_text(encoding="utf-8"))
                    os.kill(pid, signal.SIGKILL if current["stopped"] else signal.SIGTERM)
            return self.status()

    def close(self) -> None:
        """Stop what runs, and wait for it a while: the server ends."""
        self._closed.set()
        self.stop()
        deadline = time.monotonic() + PATIENCE_S
        while self._is_running() and time.monotonic() < deadline:
            time.sleep(0.05)
        if self._is_running():
            self.stop()

    def _begin(self, run: Path, epochs: int | None, method: Method | None) -> tuple[list[str], int]:
        """Return the command of a new run and its epochs, with its inputs in place."""
        if run.exists() and not is_not_begun(run):
            raise UserError(f"{run}: is there already, and no run that can go on; choose another name")
        config = load_config(self._preset)
        store = self._annotator.store
        cases = [case for case in self._annotator.cases if self._is_annotated(case)]
        if not cases:
            raise UserError("no case has seeds yet: click or paint in one first")
        sizes = [store.record(case).sizes_vox for case in cases]
        structures = [n for n in self._annotator.structures if any(size.get(n, 0) for size in sizes)]
        if not structures:
            raise UserError("no case has foreground seeds yet: click or paint in one first")
        inputs = run.with_name(f"{run.name}.inputs")
        shutil.rmtree(inputs, ignore_errors=True)
        with make_folder_whole(inputs) as folder:
            (folder / "seeds").mkdir(parents=True)
            for case in cases:
                _link(store.map_path(case), folder / "seeds")
            shutil.copyfile(store.sizes, folder / "sizes.csv")
            (folder / "split.json").write_text(json.dumps({"train": cases, "val": []}), encoding="utf-8")
        values = ",".join(str(self._annotator.structures[name]) for name in structures)
        method, sized = self._method(config, method, cases, structures)
        epochs = epochs or config.epochs
        command = ["--preset", self._preset, "--seeds", str(inputs / "seeds"), "--split", str(inputs / "split.json")]
        command += ["--label", values, "--method", method, "--epochs", str(epochs)]
        return [*command, *(["--size-csv", str(inputs / "sizes.csv")] if sized else [])], epochs

    def _resume(self, run: Path, epochs: int | None, method: Method | None) -> tuple[list[str], int]:
        before = load_run_config(run / "config.toml")
        if is_finished(run):
            raise UserError(f"{run.name} is finished; choose another name")
        if method not in (None, before.method):
            raise UserError(f"{run.name} was started with the method {before.method}; choose another name")
        epochs = epochs or before.epochs
        return ["--resume", "--epochs", str(epochs)], epochs

    def _method(
        self, config: Config, method: Method | None, cases: Sequence[str], structures: Sequence[str]
    ) -> tuple[Method, bool]:
        """Return the method, and whether it takes its sizes from the annotation; by default it fits what is known."""
        given = any(value is not None for value in (config.size_ml, config.size_csv, config.size_eps))
        store = self._annotator.store
        bounded = given or any(name in store.record(case).bounds_ml for case in cases for name in structures)
        chosen = method or (config.method if bounded or config.method != "crf+size" else "crf")
        wants = replace(Config(), method=chosen).needs_bounds
        if wants and not bounded:
            raise UserError(f"method {chosen} needs size bounds, and no case has any; use crf or partial, or set some")
        return chosen, wants and not given

    def _is_annotated(self, case: str) -> bool:
        record = self._annotator.store.record(case)
        return record.state != "new" and self._annotator.store.map_path(case).is_file()

    def _launch(self, name: str, options: Sequence[str], epochs: int) -> None:
        run = self._folder / name
        root = str(self._annotator.dataset.root.resolve())
        command = [sys.executable, "-m", "discoseg", "train", root, "--out", str(run), "--quiet", *options]
        lock = try_lock(self._folder / f"{name}.lock")
        assert lock is not None, "whoever could hold it does not run"
        with lock, open(self._folder / f"{name}.log", "ab", opener=no_follow) as log:
            log.write(f"$ discoseg {' '.join(command[3:])}\n".encode())
            log.flush()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=without_launch(os.environ),
                start_new_session=True,  # an interrupt in the terminal is the server's, which hands it on
                pass_fds=[lock.fileno()],
            )
            lock.truncate(0)
            lock.write(str(self._process.pid))
        self._write_current({"name": name, "epochs": epochs, "started": time.time(), "stopped": False})
        self._watch()

    def _watch(self) -> None:
        """Tell of changes until the training has ended."""

        def watch() -> None:
            told: tuple[Any, ...] | None = None
            while not self._closed.is_set():
                status = self.status()
                if (news := (status.name, status.state, status.epoch)) != told:
                    self._tell(status)
                    told = news
                if status.state not in ("running", "stopping"):
                    return
                self._closed.wait(POLL_S)

        threading.Thread(target=watch, daemon=True).start()

    def _current(self) -> dict[str, Any] | None:
        with suppress(OSError, ValueError):
            return dict(read_json(self._folder / "current.json"))
        return None

    def _is_running(self) -> bool:
        with self._lock:
            if self._process is not None:
                self._process.poll()  # or it would stay in the table of processes
            current = self._current()
            if current is None:
                return False
            lock = try_lock(self._folder / f"{current['name']}.lock")
            if lock is None:
                return True
            lock.close()
            return False

    def _write_current(self, current: dict[str, Any]) -> None:
        with write_atomically(self._folder / "current.json") as temporary:
            temporary.write_text(json.dumps(current), encoding="utf-8")

    def _new_name(self) -> str:
        taken = {path.name.split(".")[0] for path in self._folder.iterdir()}
        return next(name for n in range(1, len(taken) + 2) if (name := f"run-{n}") not in taken)


def _link(path: Path, folder: Path) -> None:
    """Put a label map into a folder, where it stays as it is: files are replaced, never written into."""
    files = [path]
    if path.suffix == ".mhd" and (data := data_file(path)) is not None:
        files.append(data)
    for file in files:
        try:
            os.link(file, folder / file.name)
        except OSError:  # a file system without links
            shutil.copyfile(file, folder / file.name)


def _last_line(path: Path) -> str:
    """Return the last line of a log that is not empty, of its last 4 KiB."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        lines = file.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
