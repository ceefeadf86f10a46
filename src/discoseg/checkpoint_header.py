"""What the header of a checkpoint may announce: tensors that lie back to back in the file, and fill it."""

import math
from typing import Any

from discoseg.texts import parse_json

MOST_HEADER_BYTES = 64 * 2**20
_SIZES = {"F64": 8, "F32": 4, "F16": 2, "I64": 8, "I32": 4, "I8": 1, "U8": 1, "BOOL": 1}  # bytes of a number


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
