"""Arrays in a .npz file: nothing is unpickled, and what the file announces is looked at before it is unpacked."""

import math
import zipfile
import zlib
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from discoseg.data.announced import require_room

DAMAGE = (zipfile.BadZipFile, zlib.error, ValueError, LookupError, EOFError, OSError, NotImplementedError, RuntimeError)
"""What reading a damaged file can end in; a ``UserError`` is one of them."""

_MOST_ARRAYS = 10_000
_MOST_HEADER = 10_000  # characters, numpy's own limit
_RATIO = 1032  # of a byte that is unpacked to one that is packed, by deflate


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of numbers and of text in a file by name; one of :data:`DAMAGE` where it is not whole."""
    with zipfile.ZipFile(path) as file:
        members = file.infolist()
        if len(members) > _MOST_ARRAYS:
            raise ValueError(f"{len(members)} arrays")
        require_room(path, sum(m.file_size for m in members), path.stat().st_size, ratio=_RATIO)
        return {member.filename.removesuffix(".npy"): _read(file, member) for member in members}


def _read(file: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    with file.open(member) as stream:
        version = npy.read_magic(stream)
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        try:
            shape, fortran, dtype = read_header(stream, max_header_size=_MOST_HEADER)
        except (TokenError, SyntaxError, TypeError, RecursionError) as error:
            raise ValueError(f"{member.filename} has a broken header") from error
        if dtype.kind not in "biufU" or min(shape, default=1) < 0:
            raise ValueError(f"{member.filename} holds {dtype}")
        content = stream.read()  # as long as the archive says, or an error
    if len(content) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{member.filename} has another length than it announces")
    order = "F" if fortran else "C"
    return np.frombuffer(content, dtype).reshape(shape, order=order)  # type: ignore[call-overload]
