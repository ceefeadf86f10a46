"""Names and safe writing of files: what a reader finds under a name is always a whole file."""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from discoseg.errors import UserError

IMAGE_SUFFIXES = (".nii.gz", ".nii", ".mhd", ".mha")


def image_suffix(path: Path) -> str:
    """Return the image suffix of a file name in lower case, "" when the name has none of `IMAGE_SUFFIXES`."""
    name = path.name.lower()
    return next((suffix for suffix in IMAGE_SUFFIXES if name.endswith(suffix)), "")


def strip_suffix(path: Path) -> str:
    """Return a file's name without folder and image suffix.

    >>> strip_suffix(Path("a/patient001_frame01.nii.gz"))
    'patient001_frame01'
    """
    return path.name[: len(path.name) - len(image_suffix(path))]


def list_images(folder: Path, *, recursive: bool = False) -> list[Path]:
    """Return a folder's image files in the order of their names, without hidden ones (unfinished writes)."""
    found = folder.rglob("*") if recursive else folder.iterdir()
    return sorted(p for p in found if image_suffix(p) and not p.name.startswith(".") and p.is_file())


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` that takes its place when the block ends without an error.

    The temporary name is hidden and ends like `path`, so writers that go by the suffix need no care. After an
    error the temporary file is gone and what stood under `path` is untouched. An operating-system error (disk
    full, no permission, no such folder) becomes a `UserError` that names `path`.
    """
    temporary = path.with_name(f".{uuid.uuid4().hex[:8]}-{path.name}")
    try:
        yield temporary
        flush_to_disk(temporary)
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def make_folder_whole(folder: Path) -> Iterator[Path]:
    """Yield a folder to fill that becomes `folder` when all is there; what an interruption left of it is removed."""
    partial = folder.with_name(f"{folder.name}-unfinished")
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    yield partial
    partial.rename(folder)


def require_new_folder(folder: Path, *, hint: str) -> None:
    """Raise a `UserError` unless the folder is missing or empty; `hint` says what to do otherwise."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: already in use; {hint}")


def usable_cores() -> int:
    """Return how many cores this process may use, which in a container or a batch job can be fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def flush_to_disk(path: Path) -> None:
    """Wait until a file's content is on the disk, so that a rename never outruns it."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
