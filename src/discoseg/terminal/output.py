"""Where a command speaks: results on standard output, progress, warnings and errors on standard error."""

import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from functools import cached_property
from typing import TYPE_CHECKING, Any, TextIO

from discoseg.errors import one_line, printable
from discoseg.terminal.display import Display, open_display
from discoseg.terminal.words import say_seconds, to_json

if TYPE_CHECKING:
    from rich.console import Console


class Terminal:
    """Speaks for one command: to people, or with ``json`` to a script, which gets one document in the end.

    With ``quiet`` people hear of errors alone, and of what the command is asked for (:attr:`answers`).
    """

    def __init__(self, command: str = "", *, quiet: bool = False, json: bool = False) -> None:
        self._command, self._quiet, self._json = command, quiet, json
        self._begun = time.monotonic()
        self._warned: list[str] = []
        self._stdout: TextIO = sys.stdout

    @cached_property
    def console(self) -> "Console":
        """Where to print what people may want to read: nowhere if they do not, or nobody is there."""
        from discoseg.terminal.console import Console

        return Console(quiet=self._quiet or self._json)

    @cached_property
    def answers(self) -> "Console":
        """Where to print what the command was asked for, also with ``quiet``; with ``json`` nowhere."""
        from discoseg.terminal.console import Console

        return Console(quiet=self._json)

    @property
    def took(self) -> str:
        """The time since the command began, in words."""
        return say_seconds(time.monotonic() - self._begun)

    def say(self, line: str) -> None:
        """Print a line for people; above a live display, if there is one."""
        if not (self._quiet or self._json):
            print(printable(line), flush=True)

    def progress(self) -> AbstractContextManager[Display]:
        """Open a display of progress; a script has no use for lines of it in a log."""
        return open_display(quiet=self._quiet, log=not self._json)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Turn Python's warnings into lines, and keep libraries from writing between a script and its document."""

        def show(message: Warning | str, *where: Any, **more: Any) -> None:
            said = printable(" ".join(str(message).split()))
            self._warned.append(said)
            if not self._quiet:
                print(f"discoseg: warning: {said}", file=sys.stderr)

        with warnings.catch_warnings(), redirect_stdout(sys.stderr if self._json else sys.stdout):
            warnings.showwarning = show
            yield

    def finish(
        self, facts: Mapping[str, Any], lines: Sequence[str] = (), *, notes: Sequence[str] = (), status: int = 0
    ) -> int:
        """End the command: the facts as JSON, or the notes and lines for people; return the exit status.

        The notes are ``warnings`` in the JSON, with those that the facts have already.
        """
        if self._json:
            seconds = round(time.monotonic() - self._begun, 2)
            all_warnings = [*facts.get("warnings", ()), *notes, *self._warned]
            self._write({"command": self._command, **facts, "seconds": seconds, "warnings": all_warnings})
        else:
            for line in (*(f"note: {note}" for note in notes), *lines):
                self.say(line)
        return status

    def fail(self, complaint: str, status: int) -> int:
        """End the command with one line on standard error, for a script also as JSON; return the exit status."""
        print(f"discoseg: {one_line(complaint)}", file=sys.stderr)
        if self._json:
            self._write({"error": complaint.removeprefix("error: ")})
        return status

    def _write(self, document: Mapping[str, Any]) -> None:
        print(to_json(document), file=self._stdout, flush=True)
