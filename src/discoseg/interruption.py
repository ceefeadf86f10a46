"""Ctrl-C and SIGTERM as a wish, which a training grants between two steps."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import ParamSpec

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_AGAIN_S = 1.0  # a second Ctrl-C sooner than this is the same one, which a launcher has passed on

P = ParamSpec("P")


class Interrupted(KeyboardInterrupt):
    """Somebody asked this process to end, by the signal ``number``."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__(number)
        self.number = number

    @property
    def status(self) -> int:
        """The exit status of a process that ends by it."""
        return 128 + self.number


class Interruption:
    """Whether an interruption was asked for; it is raised at once, or from the first call of `guard` on within one."""

    def __init__(self) -> None:
        self.asked: int | None = None  # the signal's number
        self._asked_s = 0.0
        self._waits = False

    def guard(self, progress: Callable[P, None]) -> Callable[P, None]:
        """Return ``progress`` for a training to call between two steps: it raises `Interrupted` if that was asked."""

        def report(*arguments: P.args, **keywords: P.kwargs) -> None:
            self._waits = True
            progress(*arguments, **keywords)
            if self.asked is not None:
                raise Interrupted(self.asked)

        return report

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Note a signal; a second Ctrl-C ends the process at once."""
        if self.asked is None:
            self.asked, self._asked_s = number, time.monotonic()
            if not self._waits:
                raise Interrupted(number)
        elif number == signal.SIGINT and time.monotonic() - self._asked_s > _AGAIN_S:
            if sys.stderr.isatty():
                sys.stderr.write("\x1b[?25h")  # the cursor, which a live display hides
            sys.stderr.write("discoseg: ended at once; the last checkpoint is whole\n")
            sys.stderr.flush()
            os._exit(128 + number)


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Yield an interruption that SIGINT and SIGTERM ask for meanwhile; in other threads than the main one none do.

    A signal that this process was started to ignore (SIGINT in the background of a script) stays ignored.
    """
    interruption = Interruption()
    heard = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    if threading.current_thread() is not threading.main_thread():
        heard = []
    before = {number: signal.signal(number, interruption.handle) for number in heard}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
