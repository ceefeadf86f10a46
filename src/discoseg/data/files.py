"""Names and safe writing of files: what a reader finds under a name is always a whole file."""

import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from discoseg.errors import UserError

PICTURE_SUFFIXES = (".png", ".tif", ".tiff")
IMAGE_SUFFIXES = (".nii.gz", ".nii", ".mhd", ".mha", ".nrrd", *PICTURE_SUFFIXES)
CHANNEL = re.compile(r"(.+)\[(\d+)\]")
_UNFINISHED = re.compile(r"\.[0-9a-f]{8}-")


def file_of(path: Path) -> Path:
    """Return the file of a path that may name one of its channels.

    >>> file_of(Path("scan.nii.gz[1]")).name, file_of(Path("scan.nii.gz")).name
    ('scan.nii.gz', 'scan.nii.gz')
    """
    match = CHANNEL.fullmatch(path.name)
    return path.with_name(match[1]) if match else path


def channel_of(path: Path) -> int | None:
    """Return the channel that a path names, from 0 on; None where it names the whole file."""
    match = CHANNEL.fullmatch(path.name)
    return int(match[2]) if match else None


def channel_paths(file: Path, channels: int) -> tuple[Path, ...]:
    """Return a path for each channel of a file, the file's own where it has only one."""
    return (file,) if channels == 1 else tuple(file.with_name(f"{file.name}[{n}]") for n in range(channels))


def image_suffix(path: Path) -> str:
    """Return the image suffix of a file name in lower case, "" when the name has none of `IMAGE_SUFFIXES`."""
    name = file_of(path).name.lower()
    return next((suffix for suffix in IMAGE_SUFFIXES if name.endswith(suffix)), "")


def strip_suffix(path: Path) -> str:
    """Return a file's name without folder, image suffix and channel.

    >>> strip_suffix(Path("a/patient001_frame01.nii.gz"))
    'patient001_frame01'
    """
    name = file_of(path).name
    return name[: len(name) - len(image_suffix(path))]


def list_images(folder: Path, *, recursive: bool = False) -> list[Path]:
    """Return a folder's image files in the order of their names, without hidden ones (unfinished writes).

    Beside volumes, pictures (`PICTURE_SUFFIXES`) are previews, and left out.
    """
    found = folder.rglob("*") if recursive else folder.iterdir()
    images = sorted(p for p in found if channel_of(p) is None and image_suffix(p) and is_visible_file(p))
    return [p for p in images if image_suffix(p) not in PICTURE_SUFFIXES] or images


def is_visible_file(path: Path) -> bool:
    """Return whether a path is a file whose name does not begin with a full stop (unfinished writes, macOS's ._)."""
    return not path.name.startswith(".") and path.is_file()


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
        with suppress(OSError):  # what went wrong is known already
            temporary.unlink(missing_ok=True)


def remove_unfinished(folder: Path) -> None:
    """Remove what a kill has left of files on their way into a folder, and into those below it."""
    for path in folder.rglob(".*"):
        if _UNFINISHED.match(path.name) and path.is_file():
            with suppress(OSError):
                path.unlink()


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


def no_follow(path: str, flags: int) -> int:
    """Open a file for the built-in ``open``, but never through a symbolic link in the place of the file."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def flush_to_disk(path: Path) -> None:
    """Wait until a file's content is on the disk, so that a rename never outruns it."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
