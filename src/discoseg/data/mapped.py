"""Arrays in files, mapped into memory and read as they are used; no file stays open for it.

numpy's own maps keep a file open each (Python's mmap duplicates the descriptor), and of those a process may have few
thousands. torch's do not. What remains is Linux's limit of mappings (vm.max_map_count, 65,530 by default).
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discoseg.errors import UserError


def map_array(path: Path) -> NDArray[Any]:
    """Return the array of an .npy file, read-only; a ValueError where it is not whole.

    Only one thread may call it at a time: numpy reads a file's header with Python's parser, which in Python 3.11 can
    fail when two threads use it at a time (CPython issue 106905: "AST constructor recursion depth mismatch").
    """
    import torch

    with path.open("rb") as file:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError(f"{path}: of another version than numpy.save writes")
        shape, columns_first, dtype = np.lib.format.read_array_header_1_0(file)
        start, size_bytes = file.tell(), file.seek(0, 2)
    if columns_first or start + int(np.prod(shape)) * dtype.itemsize != size_bytes:
        raise ValueError(f"{path}: not whole")
    try:
        mapped = torch.from_file(str(path), shared=False, size=size_bytes, dtype=torch.uint8)
    except RuntimeError as error:
        raise UserError(
            f"cannot map {path}: {' '.join(str(error).split())}; of more than 30,000 cases at a time: raise it by "
            "'sysctl vm.max_map_count'"
        ) from error
    array = mapped.numpy()[start:].view(dtype).reshape(shape)
    array.flags.writeable = False
    return array
