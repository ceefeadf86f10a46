"""The run folder: what a training leaves behind, each file whole at any time.

config.toml      the resolved configuration           run.json       command, cases, label, versions, device, seed
metrics.csv      one row an epoch                      timing.csv     seconds by phase, one row an epoch
cases.csv        the last epoch, case by case          log.txt        the same for people
next.csv         which training case to annotate next, by how much network and proposals disagree
checkpoints/     latest (to resume), best and final (to predict)
snapshots/       a slice of a few cases at several epochs: image, truth, seeds, proposals, probability
contours.npz     the last epoch, a slice of the best cases, the worst and some between
report.html      a page about all of this, and tensorboard/ its curves (discoseg.report.live), where they are wanted
"""

import csv
import hashlib
import io
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from discoseg import __version__
from discoseg.admm import Prior
from discoseg.config import Config, to_toml
from discoseg.data.files import no_follow, require_new_folder, write_atomically
from discoseg.errors import UserError
from discoseg.weak.examples import Example

_SNAPSHOT_CASES = 4


@dataclass(frozen=True)
class RunFolder:
    """The paths of one run, and how its files are written."""

    root: Path

    @classmethod
    def open(cls, root: Path, *, resume: bool) -> "RunFolder":
        """Make a new run folder, or with ``resume`` take an existing one; nothing is ever overwritten.

        A run that was stopped before its first checkpoint resumes from the beginning.
        """
        cls.require_usable(root, resume=resume)
        folder = cls(root)
        for path in (folder.latest.parent, folder.snapshots):
            path.mkdir(parents=True, exist_ok=True)
        return folder

    @staticmethod
    def require_usable(root: Path, *, resume: bool) -> None:
        """Raise a :class:`UserError` unless ``root`` can take a new run, or with ``resume`` holds one to go on with."""
        if resume and not (root / "config.toml").is_file():
            raise UserError(f"{root}: nothing to resume, it has no config.toml; remove it and start without --resume")
        if not resume:
            require_new_folder(root, hint="choose another --out, or go on with it by --resume if it is a run")

    @property
    def latest(self) -> Path:
        """The checkpoint that a training resumes from."""
        return self.root / "checkpoints" / "latest.safetensors"

    @property
    def best(self) -> Path:
        """The model of the best validation epoch."""
        return self.root / "checkpoints" / "best.safetensors"

    @property
    def final(self) -> Path:
        """The model after the last epoch."""
        return self.root / "checkpoints" / "final.safetensors"

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
        training: Sequence[Example],
        validation: Sequence[Example],
        device: torch.device,
        data: Mapping[str, Mapping[str, str]],
    ) -> None:
        """Write what is known before the first epoch: run.json and, last, config.toml, which makes it a run.

        ``data`` are the cases' checksums, of which run.json has one for all training and one for all validation cases.
        """
        facts = {
            "command": _command(),
            "model": dict(model),
            "sources": dict(sources),
            "training": [example.name for example in training],
            "validation": [example.name for example in validation],
            "checksums": {part: _digest(cases) for part, cases in data.items()},
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "threads": torch.get_num_threads(),
            "versions": {"discoseg": __version__, "torch": torch.__version__, "python": platform.python_version()},
            "platform": platform.platform(),
            "commit": _commit(),
        }
        _write_text(self.root / "run.json", json.dumps(facts, indent=1) + "\n")
        self.write_config(config)

    def write_config(self, config: Config) -> None:
        """Write config.toml."""
        _write_text(self.root / "config.toml", to_toml(config))

    def rewind(self, epoch: int) -> None:
        """Forget the timings of epochs after ``epoch``: they will be made again."""
        timing = self.root / "timing.csv"
        if timing.is_file():
            header, *rows = timing.read_text(encoding="utf-8").splitlines(keepends=True) or [""]
            kept = [row for row in rows if row.endswith("\n") and int(row.split(",")[0]) <= epoch]
            _write_text(timing, "".join([header, *kept]))
        self._log(f"resumed after epoch {epoch}, commit {_commit() or 'unknown'}")

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

    def write_cases(self, splits: Mapping[str, tuple[Sequence[Example], Sequence[Mapping[str, float]]]]) -> None:
        """Write cases.csv: for each split its examples, their scores, and the millilitres of one of their voxels."""
        rows: list[dict[str, Any]] = []
        for split, (examples, scores) in splits.items():
            for example, score in zip(examples, scores, strict=True):
                voxel_ml = float(f"{np.prod(example.spacing_mm) / 1000:.9g}")
                rows.append({"case": example.name, "split": split, **score, "voxel_ml": voxel_ml})
        _write_text(self.root / "cases.csv", _csv(rows))

    def write_snapshot(
        self,
        epoch: int,
        epochs: int,
        training: Sequence[Example],
        probability: torch.Tensor,
        priors: Sequence[Prior],
    ) -> None:
        """Keep one slice of the first training cases at epochs 1, 2, 5, 10, 20, 50, … and the last.

        snapshots/epoch_NNNN.npz holds, for case k, ``k.image`` uint8 (H, W), ``k.seeds`` int8, ``k.truth`` int8 where
        there is one, ``k.probability`` uint8 (0 to 255), and ``k.crf`` and ``k.size`` int8 where they are made. With K
        structures these are labels 0 to K, and the probability is (K, H, W).
        """
        if epoch != epochs and str(epoch).rstrip("0") not in ("1", "2", "5"):
            return
        arrays: dict[str, NDArray[Any]] = {"names": np.array([e.name for e in training[:_SNAPSHOT_CASES]])}
        start = 0
        for index, example in enumerate(training[:_SNAPSHOT_CASES]):
            shown = middle_slice(example)
            arrays[f"{index}.image"] = np.round(example.image[shown, 0] * 255).astype(np.uint8)
            arrays[f"{index}.seeds"] = example.seeds[shown]
            levels = (probability[:, start + shown] * 255).round().to(torch.uint8).cpu().numpy()
            arrays[f"{index}.probability"] = levels[0] if len(levels) == 1 else levels
            if example.truth is not None:
                arrays[f"{index}.truth"] = example.truth[shown]
            for prior in priors:
                masks = (prior.doubled[:, start + shown] == 2).cpu().numpy()  # (K, H, W)
                numbers = np.arange(1, 1 + len(masks), dtype=np.int8)
                arrays[f"{index}.{prior.name}"] = np.tensordot(numbers, masks.astype(np.int8), axes=1)
            start += len(example.seeds)
        with write_atomically(self.snapshots / f"epoch_{epoch:04d}.npz") as path, path.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)


def _command() -> str:
    """Return the command line of this process, ``python -m discoseg`` as ``discoseg``, for a shell."""
    program = Path(sys.argv[0])
    return shlex.join([program.parent.name if program.name == "__main__.py" else program.name, *sys.argv[1:]])


def _digest(checksums: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(checksums, sort_keys=True).encode()).hexdigest()[:16]


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


def middle_slice(example: Example) -> int:
    """Return the number of the slice with the most foreground, by the truth where there is one, else by the seeds."""
    labels = example.seeds if example.truth is None else example.truth
    return int((labels > 0).sum(axis=(1, 2)).argmax())


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV whose columns are all keys in the order they first occur."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _append(path: Path, text: str) -> None:
    try:
        with open(path, "a", encoding="utf-8", opener=no_follow) as file:
            file.write(text)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; the last checkpoint is kept") from error


def _write_text(path: Path, text: str) -> None:
    with write_atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
