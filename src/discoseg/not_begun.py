"""Folders in which a training was killed before there was a run: nothing is lost in them, and another may begin."""

import re
from pathlib import Path

from discoseg.data.locks import LOCK

_FOLDERS = ("checkpoints", "snapshots")
_FILES = re.compile(rf"{re.escape(LOCK)}|log\.txt|run\.json|\.[0-9a-f]{{8}}-(run\.json|config\.toml)")


def is_not_begun(root: Path) -> bool:
    """Say whether a folder holds nothing but what a training makes before its config.toml, which makes it a run.

    These are the lock, a log, run.json, folders that are still empty, and what a kill leaves of files on their way. A
    folder that is empty is one of these; one that does not exist is not.
    """
    if not root.is_dir():
        return False
    return all(
        path.is_dir() and not any(path.iterdir())
        if path.name in _FOLDERS
        else path.is_file() and _FILES.fullmatch(path.name)
        for path in root.iterdir()
    )
