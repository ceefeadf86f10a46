"""Checkpoints of a training that goes on while they are written: the latest, and the one before it."""

import os
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from discoseg.checkpoint import previous_of, save_tensors
from discoseg.checkpoint_header import DamagedCheckpoint
from discoseg.config import Config
from discoseg.errors import UserError
from discoseg.ranks import ALONE, Ranks
from discoseg.shard_files import ShardFiles
from discoseg.state import Files, State, restore_state, snapshot_state

EVERY_S = 60.0  # a kill costs this much work, a step, and the writing of a checkpoint,
MOST_SHARE = 0.05  # unless writing is so slow that it would take more than this share of the time
_GO_ON, _SAVE, _END = range(3)  # what a rank wishes; the largest wish of all is granted

Data = dict[str, dict[str, str]]
"""Checksums of the training and validation cases (:attr:`discoseg.material.Material.data`)."""


class Checkpoints:
    """Writes checkpoints beside the training, one at a time; leave it as a context, which waits for the last one.

    Between two steps `due` says whether it is time for one, and `save` begins to write it.
    """

    def __init__(
        self,
        latest: Path,
        state: State,
        config: Config,
        data: Data,
        *,
        shards: ShardFiles | None = None,
        ranks: Ranks = ALONE,
        check: Callable[[], None] = lambda: None,
        beside: bool = True,
    ) -> None:
        """``latest`` is the file to write, the one before is `previous_of` it; ``data`` are the cases' checksums.

        ``shards`` write what each of several ``ranks`` has of its own. ``check`` raises an error if the state must not
        be kept. ``beside``: whether there is memory for a copy of the state; if not, the training waits for each
        writing.
        """
        self._shards, self._ranks = shards or ShardFiles(latest, state.network), ranks
        self._stop: KeyboardInterrupt | None = None
        self._latest, self._state, self._config, self._data = latest, state, config, data
        self._check, self._beside = check, beside
        self._thread = ThreadPoolExecutor(1)
        self._writing: Future[float] | None = None
        self._last = time.monotonic()
        self._saved: tuple[int, int] | None = None

    @property
    def due(self) -> bool:
        """Whether the last checkpoint is old enough, and was not too long in writing, for another one.

        An error of the last one's writing is raised now. Of several ranks, which ask together, the first decides.
        """
        return bool(self._ranks.most(self._is_time() and self._ranks.first))

    def _is_time(self) -> bool:
        if self._writing is not None and not self._writing.done():
            return False
        took_s = self._writing.result() if self._writing is not None else 0.0
        return time.monotonic() - self._last > max(EVERY_S, took_s / MOST_SHARE)

    def save(self) -> None:
        """Copy the state and begin to write it, unless it is the one that was saved last."""
        if self._saved == self._state.place:
            return
        self._check()
        self._wait()
        self._last, self._saved = time.monotonic(), self._state.place
        content = snapshot_state(self._state, self._config, self._data, copy=self._beside)
        self._writing = self._thread.submit(_write, self._latest, *content, self._shards)
        if not self._beside:
            self._wait()

    def guard(self, progress: Callable[[float, str], None]) -> Callable[[float, str], None]:
        """Return ``progress`` as a training must call it, between two steps: checkpoints are written when they are due.

        If it raises KeyboardInterrupt, the training is to end: its state is saved first.
        """

        def report(done: float, message: str) -> None:
            if self._ranks.several:
                self._report_together(done, message, progress)
                return
            if self.due:
                self.save()
            try:
                progress(done, message)
            except KeyboardInterrupt:
                self.save()
                self._wait()
                raise

        return report

    def _report_together(self, done: float, message: str, progress: Callable[[float, str], None]) -> None:
        """Save or end with all ranks, if the first finds it time to save, or any is asked to end."""
        self.listen(progress)(done, message)
        wish = self._ranks.most(_END if self._stop else _SAVE if self._is_time() and self._ranks.first else _GO_ON)
        if wish != _GO_ON:
            self.save()
        if wish == _END:
            self._wait()
            raise self._stop or KeyboardInterrupt

    def listen(self, progress: Callable[[float, str], None]) -> Callable[[float, str], None]:
        """Return ``progress`` as a training must call it at moments that are not the same for all ranks.

        Several ranks end only where they can do so together, in `guard`; a single one ends here, too.
        """
        if not self._ranks.several:
            return self.guard(progress)

        def report(done: float, message: str) -> None:
            try:
                progress(done, message)
            except KeyboardInterrupt as stop:
                self._stop = stop

        return report

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


def restore_latest(
    latest: Path, state: State, config: Config, data: Data, files: Files, shards: ShardFiles, ranks: Ranks = ALONE
) -> str | None:
    """Bring a fresh ``state`` to the latest checkpoint, or to the one before where that is damaged or missing.

    ``files`` are those of the cases, to name one that has changed. ``shards`` read what the ``ranks`` have of their
    own; all go back to the same checkpoint. Return what is to be said about it, None if all is well. The damaged file
    makes way for the good one.
    """

    def is_whole(path: Path) -> bool:
        whole = True
        with ranks.agree():
            try:
                restore_state(path, state, config, data, files, shards.load)
            except DamagedCheckpoint:
                whole = False
        return all(ranks.gather(whole))

    previous = previous_of(latest)
    there, before = (ranks.gather(path.is_file())[0] for path in (latest, previous))
    if there and is_whole(latest):
        return None
    what = "damaged" if there else "missing"
    if not before:
        raise UserError(f"{latest}: {what}, and there is none before it; train anew into another folder")
    if not is_whole(previous):
        raise UserError(
            f"{latest}: {what}, and so is {previous.name}, the one before it; train anew into another folder"
        )
    if ranks.first:
        os.replace(previous, latest)  # or the next one would take the place of the only good one
    epoch, steps = state.place
    return f"{latest} is {what}: going on from the checkpoint before it, after epoch {epoch}, step {steps}"


def _write(latest: Path, tensors: dict[str, torch.Tensor], meta: dict[str, Any], shards: ShardFiles) -> float:
    """Write a checkpoint, keep the one before, and return the seconds that took; there is a whole one at any time."""
    start = time.monotonic()
    shards.write(tensors, meta, partial(_put, latest))
    return time.monotonic() - start


def _put(latest: Path, tensors: dict[str, torch.Tensor], meta: dict[str, Any]) -> None:
    new = latest.with_name(f"next{latest.suffix}")
    save_tensors(new, tensors, meta)
    try:
        if latest.is_file():
            _keep(latest, previous_of(latest))
        os.replace(new, latest)
    except OSError as error:
        raise UserError(f"cannot write {latest}: {error.strerror or error}") from error


def _keep(latest: Path, previous: Path) -> None:
    """Give the latest checkpoint a second name, so that it stays under its own until the next one is there."""
    link = latest.with_name(f".{uuid.uuid4().hex[:8]}-{previous.name}")
    try:
        os.link(latest, link)
        os.replace(link, previous)
    except OSError:  # a file system without links: for a moment there is the previous one alone
        os.replace(latest, previous)
    finally:
        with suppress(OSError):
            link.unlink(missing_ok=True)
