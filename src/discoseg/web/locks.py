"""A lock on a file that goes with the process that holds it, however it ends."""

import fcntl
from pathlib import Path
from typing import IO


def try_lock(path: Path) -> IO[str] | None:
    """Return the file, opened and locked until it is closed by all that have it open; None where another has it.

    A child process that is given its descriptor holds the lock too. What stands in the file is left alone.
    """
    file = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file
