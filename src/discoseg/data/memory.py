"""Room for what grows with the dataset: memory up to a budget, and beyond it files that the system pages in and out.

Such a file is mapped, so that arrays in it are used like any other, and the system writes them to the disk and drops
them from memory as it needs the room. It has no name in its folder: however the process ends, nothing is left of it.
"""

import math
import mmap
import os
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from discoseg.data.prepare import default_cache
from discoseg.errors import UserError

if TYPE_CHECKING:
    import torch

GIB = 2**30
_SHARE = 0.5  # of the machine's memory that is the budget, unless another is given
_SHARED_FILE_BYTES = 2**26
_ALIGN = 64  # bytes, for vector instructions
_GROUPS = Path("/sys/fs/cgroup")
_LIMITS = {  # by the kind of control group (the second version has none): where they are, and the file of a limit
    "": (_GROUPS, "memory.max"),
    "memory": (_GROUPS / "memory", "memory.limit_in_bytes"),
}

_T = TypeVar("_T", bound=np.generic)


class Memory:
    """A budget of the host's memory, and a folder of scratch files for what is beyond it.

    What is taken from it stays taken: arrays are to live as long as the training that they are made for.
    """

    def __init__(self, gib: float, folder: Path | None = None) -> None:
        """``folder`` is where the files lie, by default the cache (:func:`default_cache`)."""
        if not gib >= 0:
            raise UserError(f"--memory-gib {gib} must be 0 or more")
        self._left = gib * GIB
        self._folder = folder
        self._lock = threading.Lock()
        self._shared = memoryview(b"")  # what is left of the last file that small arrays share

    def reserve(self, size_bytes: int) -> bool:
        """Take a part of the budget, if it is still there; say whether it was."""
        with self._lock:
            fits = size_bytes <= self._left
            self._left -= size_bytes if fits else 0
            return fits

    def keep(self, array: NDArray[_T]) -> NDArray[_T]:
        """Return an array itself where the budget has room for it, else a copy in a file."""
        if self.reserve(array.nbytes):
            return array
        copy = np.frombuffer(self._place(array.nbytes), array.dtype).reshape(array.shape)
        copy[...] = array
        return copy

    def tensor(self, shape: tuple[int, ...], dtype: "torch.dtype", device: "torch.device") -> "torch.Tensor":
        """Return a tensor of undefined content; only the host's memory has a budget."""
        import torch

        size_bytes = math.prod(shape) * dtype.itemsize
        if device.type != "cpu" or self.reserve(size_bytes):
            return torch.empty(shape, dtype=dtype, device=device)
        return torch.frombuffer(self._place(size_bytes), dtype=dtype).view(shape)

    def _place(self, size_bytes: int) -> memoryview:
        """Return room in a file; what is small shares one with others, as a mapped file stays open."""
        if size_bytes > _SHARED_FILE_BYTES:
            return memoryview(self._map_file(size_bytes))
        with self._lock:
            if size_bytes > len(self._shared):
                self._shared = memoryview(self._map_file(_SHARED_FILE_BYTES))
            place, self._shared = self._shared[:size_bytes], self._shared[-(-size_bytes // _ALIGN) * _ALIGN :]
            return place

    def _map_file(self, size_bytes: int) -> mmap.mmap:
        """Return a mapped file without a name; the disk has room for all of it, or this is a :class:`UserError`."""
        folder = self._folder or default_cache()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as file:
                if hasattr(os, "posix_fallocate"):  # to find the disk full at a write would end the process
                    os.posix_fallocate(file.fileno(), 0, size_bytes)
                else:
                    file.truncate(size_bytes)
                return mmap.mmap(file.fileno(), size_bytes)
        except OSError as error:
            raise UserError(
                f"{folder}: cannot hold {size_bytes / GIB:.2f} GiB that --memory-gib leaves no room for: "
                f"{error.strerror or error}; free some space, or set DISCOSEG_CACHE elsewhere"
            ) from error


BOUNDLESS = Memory(math.inf)


def budget_gib(gib: float | None) -> float:
    """Return the budget that was asked for, by default half of the memory that this process may use, in GiB."""
    return _SHARE * usable_memory_bytes() / GIB if gib is None else gib


def usable_memory_bytes() -> float:
    """Return how much memory this process may use, which in a container or a batch job can be less than there is."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")] if hasattr(os, "sysconf") else []
    with suppress(OSError):  # control groups are Linux's
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, kind, path = line.split(":", 2)
            if kind in _LIMITS:
                root, name = _LIMITS[kind]
                own = root / path.lstrip("/")
                files = [folder / name for folder in (own, *own.parents)]
                texts = [file.read_text(encoding="utf-8").strip() for file in files if file.is_file()]
                limits += [int(text) for text in texts if text.isdigit()]  # "max" is none
    return min(limits, default=math.inf)
