"""Progress: a line for everything that goes on at once, live on a terminal or now and then in a log.

Both are written to standard error; standard output is for results.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from discoseg.terminal.pace import Pace
from discoseg.terminal.words import say_seconds

if TYPE_CHECKING:
    from rich.progress import Progress, Task, TaskID
    from rich.text import Text

LOG_EVERY_S = 30.0  # at most: a line about the same thing in a log, when a step of it has ended,
LOG_WITHIN_S = 120.0  # or while a long step goes on
_LINES = 12  # on a terminal; finished ones make room


class _Draw(Protocol):
    def __call__(self, title: str, done: float, total: float | None, message: str, pace: Pace) -> None: ...


class Display:
    """What commands tell of their progress; every title is a line of its own."""

    def __init__(self, draw: _Draw) -> None:
        self._draw = draw
        self._paces: dict[str, Pace] = {}

    def wait(self, title: str, message: str) -> None:
        """Show that something goes on of which nobody knows how long it takes."""
        self._show(title, 0, None, message)

    def counter(self, title: str, things: str) -> Callable[[int, int], None]:
        """Return a function to be called with the number of things done and of all."""
        return lambda done, total: self._show(title, done, total, f"{done} of {total} {things}")

    def epoch(self, title: str, done: float, epochs: int, message: str) -> None:
        """Show a training: ``done`` of ``epochs``, a fraction within an epoch, and what it is at."""
        if done > 0:
            number = int(done) if done == int(done) else int(done) + 1
            message = f"epoch {number} of {epochs}" + (f", {message}" if message else "")
        self._show(title, done, epochs, message)

    def _show(self, title: str, done: float, total: float | None, message: str) -> None:
        pace = self._paces.setdefault(title, Pace())
        pace.note(done)
        self._draw(title, done, total, message, pace)


@contextmanager
def open_display(*, quiet: bool, log: bool) -> Iterator[Display]:
    """Yield a display: live where standard error is a terminal, else, with ``log``, a line every 30 s at most."""
    if not quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        with _live() as draw:
            yield Display(draw)
    else:
        yield Display(_Log() if log and not quiet else _nothing)


def _nothing(title: str, done: float, total: float | None, message: str, pace: Pace) -> None:
    pass


class _Log:
    """Plain lines: one when a step has ended, or goes on for long, and the last line about the same is old enough."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._last: dict[str, float] = {}

    def __call__(self, title: str, done: float, total: float | None, message: str, pace: Pace) -> None:
        now = time.monotonic()
        within = done != int(done)
        if done == 0 or now - self._last.get(title, self._begun) < (LOG_WITHIN_S if within else LOG_EVERY_S):
            return
        self._last[title] = now
        message += f", {int(100 * (done % 1))} % of this epoch" if within else ""
        left_s = None if total is None else pace.left_s(total)
        left = "" if not left_s else f", about {say_seconds(left_s)} left"
        print(f"{title}: {message}{left}", file=sys.stderr, flush=True)


@contextmanager
def _live() -> Iterator[_Draw]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column
    from rich.text import Text

    class LeftColumn(ProgressColumn):
        """The time left, by a pace."""

        def render(self, task: "Task") -> "Text":
            left_s = None if task.total is None else task.fields["pace"].left_s(task.total)
            return Text("-:--:--" if left_s is None else _clock(left_s), style="progress.remaining")

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=14),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left", table_column=Column(no_wrap=True)),
        LeftColumn(table_column=Column(no_wrap=True)),
        TextColumn(
            "{task.fields[message]}",
            markup=False,
            table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
        ),
    )
    # What commands print in between goes above the lines, but into a file if that is where it should go.
    redirect = sys.stdout.isatty()
    with Progress(
        *columns, console=Console(stderr=True), expand=True, transient=True, redirect_stdout=redirect
    ) as progress:
        yield _Lines(progress)


class _Lines:
    """Lines of a live display by their titles."""

    def __init__(self, progress: "Progress") -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}
        self._done: dict[str, float] = {}

    def __call__(self, title: str, done: float, total: float | None, message: str, pace: Pace) -> None:
        if title not in self._tasks:
            self._make_room()
            self._tasks[title] = self._progress.add_task(title, total=None, message=message, pace=pace)
        elif done < self._done[title]:  # the same again, with others
            self._progress.reset(self._tasks[title])
        self._done[title] = done
        self._progress.update(self._tasks[title], completed=done, total=total, message=message)

    def _make_room(self) -> None:
        """Hide the oldest finished line where there are many."""
        shown = [task for task in self._progress.tasks if task.visible]
        finished = [task for task in shown if task.finished]
        if len(shown) >= _LINES and finished:
            self._progress.update(finished[0].id, visible=False)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
