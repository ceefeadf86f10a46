"""Event files for TensorBoard, written without it.

A file is a sequence of records (TFRecord): length as 8 bytes, its checksum, data, its checksum, where a checksum is a
masked CRC-32C; the data of each is a protobuf message Event, of which we use wall_time (1), step (2), file_version (3)
and summary (5), a list (1) of values with tag (1) and simple_value (2). Numbers and names of the fields are those of
TensorFlow's event.proto and summary.proto.
"""

import struct
import time
from collections.abc import Mapping
from pathlib import Path

_POLYNOMIAL = 0x82F63B78  # of CRC-32C (Castagnoli), bits reversed


class EventFile:
    """An event file in a folder, to which steps are added; TensorBoard reads them as they come."""

    def __init__(self, folder: Path) -> None:
        """Begin a new file; those that an earlier start of the same run left are removed."""
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("events.out.tfevents.*.discoseg"):
            old.unlink()
        self.path = folder / f"events.out.tfevents.{time.time_ns() // 1000}.discoseg"
        self._append(_field(3, b"brain.Event:2"))

    def add_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Add the values of one step by tag."""
        values = (
            _field(1, tag.encode()) + b"\x15" + struct.pack("<f", value)  # field 2, 4 bytes
            for tag, value in scalars.items()
        )
        summary = b"".join(_field(1, value) for value in values)
        self._append(b"\x10" + _varint(step) + _field(5, summary))  # field 2, a number

    def _append(self, event: bytes) -> None:
        data = b"\x09" + struct.pack("<d", time.time()) + event  # field 1, 8 bytes
        length = struct.pack("<Q", len(data))
        with self.path.open("ab") as file:
            file.write(length + _checksum(length) + data + _checksum(data))


def _field(number: int, content: bytes) -> bytes:
    """Return a field of bytes, text or a message."""
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Return a number in groups of seven bits, the lowest first.

    >>> _varint(300).hex()
    'ac02'
    """
    groups = []
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])


def _crc32c(data: bytes) -> int:
    """Return the CRC-32C of some bytes.

    >>> hex(_crc32c(b"123456789"))  # the check value in the catalogue of CRCs
    '0xe3069283'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _table_entry(entry: int) -> int:
    for _ in range(8):
        entry = entry >> 1 ^ (_POLYNOMIAL if entry & 1 else 0)
    return entry


_TABLE = [_table_entry(byte) for byte in range(256)]


def _checksum(data: bytes) -> bytes:
    """Return the masked checksum of a record's part: rotated, and moved by a constant."""
    crc = _crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
