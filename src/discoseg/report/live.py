"""A run's page and TensorBoard events, kept up to date beside its training.

A thread of its own looks at the run folder as any reader could, and writes ``report.html`` and ``tensorboard/`` there:
the training knows nothing of it, and none of its files differ by it.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from discoseg.data.files import write_atomically
from discoseg.report.events import EventFile
from discoseg.report.page import render
from discoseg.report.runs import read_columns, read_runs

PAGE, EVENTS = "report.html", "tensorboard"
REFRESH_S = 30  # after which a browser looks again
_LOOK_S = 1.0
_EVERY_S = 15.0  # between two pages,
_MOST_SHARE = 0.02  # and no more than this share of a core's time


@contextmanager
def keep_live(run: Path, *, page: bool = True, events: bool = False) -> Iterator[None]:
    """Keep the page and, if asked for, the events of the run in folder ``run`` up to date while the block trains it.

    The page appears after the first epoch, is written anew at most every 15 seconds, and says while the block goes on
    that a browser shall load it again. What cannot be written is said on standard error at the end; the training goes
    on without it. A folder in which the block changes nothing is left as it is.
    """
    if not (page or events):
        yield
        return
    follower = _Follower(run, page=page, events=events)
    stop = threading.Event()
    thread = threading.Thread(target=follower.follow, args=(stop,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        follower.finish()


class _Follower:
    def __init__(self, run: Path, *, page: bool, events: bool) -> None:
        self._run, self._page, self._events = run, page, events
        self._seen = self._before = self._state()
        self._next_page = 0.0
        self._file: EventFile | None = None
        self._epochs_written = 0

    def follow(self, stop: threading.Event) -> None:
        """Write what is due whenever the run's tables have changed, until told to stop."""
        while not stop.wait(_LOOK_S):
            try:
                self._look()
            except Exception:  # a table in the making, perhaps; whatever lasts is said at the end
                continue

    def finish(self) -> None:
        """Write the last page and events, if the run has changed at all."""
        if self._state() == self._before:
            return
        try:
            if self._events:
                self._write_events()
            if self._page:
                self._write_page(refresh_s=None)
        except Exception as error:  # even a mistake of ours here is no reason to lose a training
            print(f"discoseg: no report of {self._run}: {type(error).__name__}: {error}", file=sys.stderr)

    def _look(self) -> None:
        state = self._state()
        if state == self._before:
            return
        if self._events:
            self._write_events()
        if self._page and state != self._seen and time.monotonic() >= self._next_page:
            start = time.monotonic()
            self._write_page(refresh_s=REFRESH_S)
            self._seen = state
            took_s = time.monotonic() - start
            self._next_page = time.monotonic() + max(_EVERY_S, took_s / _MOST_SHARE)

    def _state(self) -> Sequence[object]:
        """What tells whether the run's tables are still those seen before."""
        found = []
        for name in ("metrics.csv", "cases.csv"):
            path = self._run / name
            stat = os.stat(path) if path.is_file() else None
            found.append(stat and (stat.st_ino, stat.st_mtime_ns, stat.st_size))
        return found

    def _write_page(self, *, refresh_s: int | None) -> None:
        text = render(read_runs([self._run]), {}, refresh_s=refresh_s)
        with write_atomically(self._run / PAGE) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def _write_events(self) -> None:
        """Add the epochs since the last time; timing.csv is the last of an epoch's tables."""
        if self._file is None:
            self._file = EventFile(self._run / EVENTS)
        metrics, timing = (read_columns(self._run / name) for name in ("metrics.csv", "timing.csv"))
        complete = min(len(table.get("epoch", ())) for table in (metrics, timing))
        for index in range(self._epochs_written, complete):
            scalars = {name.replace("_", "/", 1): values[index] for name, values in metrics.items()}
            scalars |= {f"seconds/{phase}": values[index] for phase, values in timing.items()}
            known = {tag: value for tag, value in scalars.items() if "epoch" not in tag and not np.isnan(value)}
            self._file.add_scalars(int(metrics["epoch"][index]), known)
            self._epochs_written = index + 1
