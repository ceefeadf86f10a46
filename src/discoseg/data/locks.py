"""A lock on a file that goes with the process that holds it, however it ends."""

import errno
import fcntl
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from discoseg.data.files import no_follow
from discoseg.errors import UserError

LOCK = ".lock"  # in the folder that it is for


def try_lock(path: Path) -> IO[str] | None:
    """Return the file, opened and locked until it is closed by all that have it open; None where another has it.

    A child process that is given its descriptor holds the lock too. What stands in the file is left alone. An OSError
    where the file system knows no locks.
    """
    try:
        file = open(path, "a+", encoding="utf-8", opener=no_follow)  # noqa: SIM115  # Path.open has no opener
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UserError(f"{path} is a symbolic link, but must be a file; remove it") from error
        raise
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        if isinstance(error, BlockingIOError):
            return None
        raise
    return file


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold a folder's lock; a :class:`UserError` names the host and process that hold it already.

    Where the file system knows no locks (a network's may not), nobody is kept out, and a warning says so.
    """
    try:
        file = _lock(folder)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        warnings.warn(f"{folder}: cannot be locked ({error.strerror}); start no other training in it", stacklevel=3)
        yield
        return
    with file:
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield


def require_unlocked(folder: Path) -> None:
    """Raise what :func:`alone_in` would raise now."""
    if (folder / LOCK).is_file():
        with suppress(OSError):  # no locks, or no right to write: said when it matters
            _lock(folder).close()


def _lock(folder: Path) -> IO[str]:
    path = folder / LOCK
    file = try_lock(path)
    if file is None:
        holder = path.read_text(encoding="utf-8", errors="replace").strip() or "which has just begun"
        raise UserError(f"{folder}: in use by another training, {holder}; wait for it, or stop it")
    return file
