"""The run folder: what a training leaves behind, each file whole at any time.

config.toml      the resolved configuration           run.json       command, cases, label, versions, hardware
metrics.csv      one row an epoch                      timing.csv     seconds by phase, one row an epoch
cases.csv        the last epoch, case by case          log.txt        the same for people
next.csv         which training case to annotate next, by how much network and proposals disagree
checkpoints/     latest (to resume) and the one before it; best, mean and final (to predict)
snapshots/       a slice of a few cases at several epochs: image, truth, seeds, proposals, probability
contours.npz     the last epoch, a slice of the best cases, the worst and some between
report.html      a page about all of this, and tensorboard/ its curves (discoseg.report.live), where they are wanted
"""

import csv
import hashlib
import io
import json
import math
import os
import platform
import shlex
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from discoseg.checkpoint import previous_of
from discoseg.checkpoint_header import load_meta
from discoseg.config import Config
from discoseg.data.files import no_follow, remove_unfinished, require_new_folder, write_atomically
from discoseg.data.locks import LOCK, alone_in, require_unlocked
from discoseg.errors import UserError
from discoseg.finished import FINAL
from discoseg.launch_store import forget_begun, note_begun
from discoseg.not_begun import is_not_begun
from discoseg.plain import to_toml
from discoseg.ranks import ALONE, Ranks
from discoseg.surroundings import hardware, versions

ModelName = Literal["best", "mean", "final"]
"""Which model of a run: :meth:`RunFolder.model`."""


@dataclass(frozen=True)
class RunFolder:
    """The paths of one run, and how its files are written."""

    root: Path

    @contextmanager
    def open(self, *, resume: bool) -> Iterator[None]:
        """Make a new run folder, or with ``resume`` take an existing one; nothing is ever overwritten.

        Within the context no other process can have it. A run that was stopped before its first checkpoint resumes from
        the beginning; a start that fails before there is a run leaves nothing behind, and one that was killed then is
        no run, but begins as if it were new.
        """
        self.require_usable(self.root, resume=resume)
        self.root.mkdir(parents=True, exist_ok=True)
        with alone_in(self.root):
            if not resume and (self.root / "config.toml").exists():
                raise UserError(f"{self.root}: another training has just been there; choose another --out")
            remove_unfinished(self.root)
            if resume and not (self.root / "config.toml").exists():
                self.warn(f"{self.root}: nothing was trained there yet; beginning, with the settings of this command")
            try:
                for path in (self.latest.parent, self.snapshots):
                    path.mkdir(exist_ok=True)
                yield
            finally:
                self._clear_failed_start()

    def _clear_failed_start(self) -> None:
        """Leave no folder where no run came about."""
        if not (self.root / "config.toml").exists():
            forget_begun(self.root)  # first, as a folder that is still there can be begun without --resume
            with suppress(OSError):  # something else is there: then all of it stays
                for path in (self.latest.parent, self.snapshots):
                    path.rmdir()
                for name in ("run.json", "log.txt", LOCK):
                    (self.root / name).unlink(missing_ok=True)
                self.root.rmdir()

    @staticmethod
    def require_usable(root: Path, *, resume: bool) -> None:
        """Raise a :class:`UserError` unless ``root`` can take a new run, or with ``resume`` holds one to go on with.

        Either may be a folder in which a training was killed before it began. Nor may another process be at it.
        """
        require_unlocked(root)
        if is_not_begun(root):
            return
        if resume and not (root / "config.toml").is_file():
            raise UserError(f"{root}: nothing to resume, it has no config.toml; remove it and start without --resume")
        if not resume:
            require_new_folder(root, hint="choose another --out, or go on with it by --resume if it is a run")

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is one to resume from."""
        return self.latest.is_file() or previous_of(self.latest).is_file()

    @property
    def latest(self) -> Path:
        """The checkpoint that a training resumes from."""
        return self.root / "checkpoints" / "latest.safetensors"

    @property
    def best(self) -> Path:
        """The model of the best validation epoch."""
        return self.root / "checkpoints" / "best.safetensors"

    @property
    def mean(self) -> Path:
        """The model of the mean of the last epochs' weights."""
        return self.root / "checkpoints" / "mean.safetensors"

    @property
    def final(self) -> Path:
        """The model after the last epoch."""
        return self.root / FINAL

    def model(self, checkpoint: ModelName) -> Path:
        """Return the file of a model.

        The ``best`` is that of the best epoch by validation, or the mean if that is better, or nothing validates.
        """
        if checkpoint == "best":
            if not self.best.is_file():
                return self.mean if self.mean.is_file() else self.final
            best, mean = _validation_dice(self.best), _validation_dice(self.mean)
            return self.mean if best is not None and mean is not None and mean > best else self.best
        return self.mean if checkpoint == "mean" else self.final

    @property
    def snapshots(self) -> Path:
        """The folder of slices for pictures."""
        return self.root / "snapshots"

    @property
    def contours(self) -> Path:
        """The slices of cases after the last epoch."""
        return self.root / "contours.npz"

    def write_start(
        self,
        config: Config,
        model: Mapping[str, Any],
        sources: Mapping[str, Any],
        device: torch.device,
        data: Mapping[str, Mapping[str, str]],
        ranks: Ranks = ALONE,
    ) -> None:
        """Write what is known before the first epoch: run.json and, last, config.toml, which makes it a run.

        ``data`` are the cases' checksums by name, of which run.json has one for all training and one for all validation
        cases.
        """
        facts = {
            "command": _command(),
            "model": dict(model),
            "sources": dict(sources),
            "training": list(data["training"]),
            "validation": list(data["validation"]),
            "checksums": {part: _digest(cases) for part, cases in data.items()},
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "threads": torch.get_num_threads(),
            "ranks": {"size": ranks.size, "machines": ranks.size // ranks.local_size, "backend": ranks.backend},
            "hardware": hardware(device),
            "versions": versions(),
            "platform": platform.platform(),
            "commit": _commit(),
        }
        _write_text(self.root / "run.json", json.dumps(facts, indent=1) + "\n")
        note_begun(self.root)  # before it is a run, as after a kill in between --resume begins it, too
        self.write_config(config)

    def write_config(self, config: Config) -> None:
        """Write config.toml."""
        _write_text(self.root / "config.toml", to_toml(config))

    def rewind(self, epoch: int, steps: int = 0) -> None:
        """Forget the timings of epochs after ``epoch``, which are made again; ``steps`` of the next one are done.

        Forget rows that are broken, too.
        """
        timing = self.root / "timing.csv"
        if timing.is_file():
            header, *rows = timing.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True) or [""]
            kept = [row for row in rows if _timed_epoch(row, columns=header.count(",") + 1) <= epoch]
            if header.startswith("epoch,") and header.endswith("\n"):
                _write_text(timing, "".join([header, *kept]))
            else:  # nobody can read it; the next epoch begins another one
                _remove(timing)
        within = f", step {steps}" if steps else ""
        self._log(f"resumed after epoch {epoch}{within}, commit {_commit() or 'unknown'}")

    def warn(self, line: str) -> None:
        """Say something on the terminal, as a warning, and in log.txt."""
        warnings.warn(line, stacklevel=2)
        self._log(line)

    def write_metrics(self, history: Sequence[Mapping[str, float]]) -> None:
        """Write metrics.csv anew."""
        _write_text(self.root / "metrics.csv", _csv(history))

    def write_next(self, rows: Sequence[Mapping[str, str | float]]) -> None:
        """Write next.csv anew, a row for each training case, the highest score first."""
        _write_text(self.root / "next.csv", _csv(sorted(rows, key=lambda row: -float(row["score"]))))

    def write_epoch(self, last: Mapping[str, float], seconds: Mapping[str, float]) -> None:
        """Add the last epoch to timing.csv and log.txt."""
        timing = self.root / "timing.csv"
        phases = {"epoch": last["epoch"], **{name: round(value, 4) for name, value in sorted(seconds.items())}}
        lines = _csv([phases]).splitlines(keepends=True)
        empty = not timing.is_file() or not timing.stat().st_size
        _append(timing, "".join(lines if empty else lines[1:]))
        terms = "  ".join(f"{name} {value:.5g}" for name, value in last.items() if name != "epoch")
        self._log(f"epoch {last['epoch']:.0f}  {terms}")

    def _log(self, line: str) -> None:
        _append(self.root / "log.txt", f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {line}\n")

    def write_cases(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write cases.csv, a row for each case (`case_rows`)."""
        _write_text(self.root / "cases.csv", _csv(rows))

    def write_snapshot(self, epoch: int, names: Sequence[str], slices: Mapping[str, NDArray[Any]]) -> None:
        """Keep slices (`snapshot_slices`) of the first training cases, whose ``names`` these are.

        snapshots/epoch_NNNN.npz holds, for case k, ``k.image`` uint8 (H, W), ``k.seeds`` int8, ``k.truth`` int8 where
        there is one, ``k.probability`` uint8 (0 to 255), and ``k.crf`` and ``k.size`` int8 where they are made. With K
        structures these are labels 0 to K, and the probability is (K, H, W).
        """
        arrays = {"names": np.array(names), **slices}
        with write_atomically(self.snapshots / f"epoch_{epoch:04d}.npz") as path, path.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)


def _command() -> str:
    """Return the command line of this process, ``python -m discoseg`` as ``discoseg``, for a shell."""
    program = Path(sys.argv[0])
    return shlex.join([program.parent.name if program.name == "__main__.py" else program.name, *sys.argv[1:]])


def _digest(checksums: Mapping[str, str]) -> str:
    whole = {case: sums.split()[-1] for case, sums in checksums.items()}
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]


def _commit() -> str | None:
    """Return what DISCOSEG_COMMIT says, or the commit of the checkout that the package stands in, if it does.

    Where files differ from the commit, "-dirty" follows it.
    """
    checkout = Path(__file__).parents[2]
    if "DISCOSEG_COMMIT" in os.environ or not (checkout / ".git").exists():
        return os.environ.get("DISCOSEG_COMMIT")
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV whose columns are all keys in the order they first occur."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _timed_epoch(row: str, *, columns: int) -> float:
    """Return the epoch of a row of timing.csv, not a number if the row is not a whole one."""
    try:
        values = [float(value) for value in row.split(",")]
    except ValueError:
        return math.nan
    return values[0] if len(values) == columns and row.endswith("\n") else math.nan


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except OSError as error:
        raise UserError(f"cannot remove {path}: {error.strerror}") from error


def _append(path: Path, text: str) -> None:
    try:
        with open(path, "a", encoding="utf-8", opener=no_follow) as file:
            file.write(text)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; the last checkpoint is kept") from error


def _write_text(path: Path, text: str) -> None:
    with write_atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _validation_dice(model: Path) -> float | None:
    """Return how well a model does on the cases that validate; None where it does not say, or cannot be read."""
    try:
        return float(load_meta(model)["val_dice"])
    except (UserError, KeyError, TypeError, ValueError, OverflowError):
        return None
