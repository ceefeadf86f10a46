"""Progress in the terminal: bars where there is one, nothing where output goes to a file."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Update = Callable[[str, float, float, str], None]
"""Called with a bar's title, what is done, what there is in all, and a few words about it."""


@contextmanager
def progress_bars() -> Iterator[Update]:
    """Yield a function that draws one bar for every title it is called with, with the time left, on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as TimeLeftColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeLeftColumn(),
        TextColumn("{task.fields[message]}"),
    )
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bars:

        def update(title: str, done: float, total: float, message: str) -> None:
            if title not in tasks:
                tasks[title] = bars.add_task(title, message="")
            bars.update(tasks[title], completed=done, total=total, message=message)

        yield update
