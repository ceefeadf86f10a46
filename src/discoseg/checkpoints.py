"""Checkpoints of a training that goes on while they are written."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from discoseg.checkpoint import save_tensors
from discoseg.config import Config
from discoseg.state import State, snapshot_state

EVERY_S = 60.0  # a kill costs this much work, an epoch, and the writing of a checkpoint,
MOST_SHARE = 0.05  # unless writing is so slow that it would take more than this share of the time


class Checkpoints:
    """Writes checkpoints beside the training, one at a time; leave it as a context, which waits for the last one."""

    def __init__(self, *, beside: bool = True) -> None:
        """``beside``: whether there is memory for a copy of the state; if not, the training waits for each writing."""
        self._beside = beside
        self._thread = ThreadPoolExecutor(1)
        self._writing: Future[float] | None = None
        self._last = time.monotonic()

    @property
    def due(self) -> bool:
        """Whether the last checkpoint is old enough, and was not too long in writing, for another one."""
        if self._writing is not None and not self._writing.done():
            return False
        took_s = self._writing.result() if self._writing is not None else 0.0
        return time.monotonic() - self._last > max(EVERY_S, took_s / MOST_SHARE)

    def write(self, path: Path, state: State, config: Config, data: dict[str, dict[str, str]]) -> None:
        """Copy the state and begin to write it; an error of the one before is raised now."""
        self._wait()
        self._last = time.monotonic()
        self._writing = self._thread.submit(_write, path, *snapshot_state(state, config, data, copy=self._beside))
        if not self._beside:
            self._wait()

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.result()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown()
        if error is None:
            self._wait()


def _write(path: Path, tensors: dict[str, torch.Tensor], meta: dict[str, Any]) -> float:
    """Write a checkpoint and return the seconds that took."""
    start = time.monotonic()
    save_tensors(path, tensors, meta)
    return time.monotonic() - start
