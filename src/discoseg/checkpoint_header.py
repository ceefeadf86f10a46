"""The header of a checkpoint: the metadata, and tensors that lie back to back in the file, and fill it.

It is read without torch: what a run has come to is asked more often than its weights are needed.
"""

import json
import math
import mmap
import zlib
from pathlib import Path
from typing import Any

from discoseg.errors import UserError
from discoseg.texts import parse_json

MOST_HEADER_BYTES = 64 * 2**20
_SIZES = {"F64": 8, "F32": 4, "F16": 2, "I64": 8, "I32": 4, "I8": 1, "U8": 1, "BOOL": 1}  # bytes of a number
HEADER_SUM = '"header_crc32": "{:08x}"'
"""The header's checksum as it stands in the header."""


class DamagedCheckpoint(UserError):
    """A file that is no whole checkpoint, or none any more."""


def load_meta(path: Path) -> dict[str, Any]:
    """Return the metadata of a file alone; damage to its tensors is not looked for."""
    return open_checkpoint(path)[2]


def broken_checkpoint(path: Path) -> DamagedCheckpoint:
    """Return the error about a file that is no whole checkpoint."""
    return DamagedCheckpoint(f"{path}: not a complete discoseg checkpoint; use another one of that run")


def open_checkpoint(path: Path) -> tuple[mmap.mmap, dict[str, Any], dict[str, Any], int]:
    """Return a mapped file, its header, the metadata, and where the tensors begin."""
    broken = broken_checkpoint(path)
    try:
        with path.open("rb") as file:  # mapped: it can be larger than memory
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such checkpoint") from error
    except ValueError as error:  # an empty file
        raise broken from error
    try:
        header, length = read_header(data)
        metadata = header["__metadata__"]
        if not metadata.keys() <= {"discoseg", "crc32", "header_crc32"}:
            raise broken
        if "header_crc32" in metadata and not _header_is_whole(data[: 8 + length], int(metadata["header_crc32"], 16)):
            raise broken  # older files have none
        meta = json.loads(metadata["discoseg"])
        if not isinstance(meta, dict):
            raise broken
        return data, header, meta, 8 + length
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise broken from error


def read_header(data: Any) -> tuple[dict[str, Any], int]:
    """Return the entries of a header by name, and its length in bytes; ``data`` are all bytes of a file.

    A ValueError, KeyError or TypeError where the entries do not describe exactly what follows them: whoever goes by
    them allocates no more than the file has.
    """
    length = int.from_bytes(data[:8], "little")
    if not 2 <= length <= min(len(data) - 8, MOST_HEADER_BYTES):
        raise ValueError(f"a header of {length} bytes")
    header = parse_json(bytes(data[8 : 8 + length]))
    tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
    end = 0
    for name, entry in sorted(tensors.items(), key=lambda item: tuple(item[1]["data_offsets"])):
        (start, stop), shape = entry["data_offsets"], entry["shape"]
        if not all(type(number) is int and number >= 0 for number in (start, stop, *shape)):
            raise ValueError(f"{name}: no place or shape")
        if start != end or stop - start != math.prod(shape) * _SIZES[entry["dtype"]]:
            raise ValueError(f"{name} does not lie where it should, or has another size")
        end = stop
    if end != len(data) - 8 - length:
        raise ValueError("the tensors do not fill the file")
    return header, length


def _header_is_whole(text: bytes, checksum: int) -> bool:
    """Compare the header (with its length in front) with its checksum, which stands in it."""
    return zlib.crc32(text.replace(HEADER_SUM.format(checksum).encode(), HEADER_SUM.format(0).encode())) == checksum
