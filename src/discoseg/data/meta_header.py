"""Headers of MetaImage files: read strictly, since SimpleITK's own reader trusts them, and follows any path in them."""

import mmap
import re
from pathlib import Path

from discoseg.errors import UserError

MOST_AXES = 5
MOST_LINE = 1000  # characters
_MOST_HEADER = 2**20  # bytes
_ENTRY = b"ElementDataFile"
_NUMBER = r"[-+]?(?:\d{1,40}\.?\d{0,40}|\.\d{1,40})(?:[eE][-+]?\d{1,4})?"
_LARGEST = 1e30  # what is more overflows a float
_COUNT = r"\d{1,10}"
_TRUTH = r"(?i:true|false)"
_WORD = r"[A-Za-z0-9_]{1,40}"
# What the values of an entry are, and how many there are by the number of axes; entries that are not here mean nothing.
_VALUES: dict[str, tuple[str, int]] = {  # power of the number of axes
    "NDims": (r"[1-5]", 0),
    "DimSize": (_COUNT, 1),
    "ElementSpacing": (_NUMBER, 1),
    "ElementSize": (_NUMBER, 1),
    "Offset": (_NUMBER, 1),
    "Origin": (_NUMBER, 1),
    "Position": (_NUMBER, 1),
    "CenterOfRotation": (_NUMBER, 1),
    "TransformMatrix": (_NUMBER, 2),
    "Rotation": (_NUMBER, 2),
    "Orientation": (_NUMBER, 2),
    "ElementNumberOfChannels": (_COUNT, 0),
    "HeaderSize": (r"-1|\d{1,18}", 0),
    "CompressedDataSize": (r"\d{1,18}", 0),
    "ElementType": (_WORD, 0),
    "ObjectType": (_WORD, 0),
    "BinaryData": (_TRUTH, 0),
    "BinaryDataByteOrderMSB": (_TRUTH, 0),
    "ElementByteOrderMSB": (_TRUTH, 0),
    "CompressedData": (_TRUTH, 0),
}
_NEEDED = ("NDims", "DimSize", "ElementType")


def data_file(path: Path) -> Path | None:
    """Return the file beside a header that it leaves its voxels to; None when they follow the header."""
    name = read_meta_header(path)[0]["ElementDataFile"]
    if name.upper() == "LOCAL":
        return None
    if name.startswith("="):  # SimpleITK would take it for none, and print that
        raise UserError(f"{path} cannot be read: its header is truncated or damaged: ElementDataFile = {name[:80]}")
    name = name.removeprefix("./")
    if name.split()[:1] == ["LIST"] or "%" in name:
        raise UserError(f"{path}: its slices lie in several files; save it as one file, .mha or .nii.gz")
    if not name or re.search(r"[/\\:]", name) or name in (".", ".."):
        raise UserError(f"{path}: its data file {name} must lie beside it, without a folder in its name; move it there")
    return path.parent / name


def read_meta_header(path: Path) -> tuple[dict[str, str], int]:
    """Return the entries of a header by name, and its length in bytes.

    The one that names the data file is the last, and must be the only one in the file, so that every reader finds the
    same; the others are as many and of the kind that they should be.
    """
    damaged = f"{path} cannot be read: its header is truncated or damaged"
    if not path.stat().st_size:
        raise UserError(damaged)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        place = content.find(_ENTRY)
        end = content.find(b"\n", place)
        length = len(content) if end < 0 else end + 1
        if not 0 <= place < length <= _MOST_HEADER or content.find(_ENTRY, place + 1) >= 0:
            raise UserError(damaged)
        text = content[:length].decode("utf-8", "surrogateescape")
    entries: dict[str, str] = {}
    for line in text.split("\n"):
        name, equals, value = (part.strip() for part in line.partition("="))
        if not line.strip():
            continue
        twice = name in entries and name in _VALUES
        if not equals or twice or len(line) > MOST_LINE or re.search("[\x00-\x08\x0b\x0c\x0e-\x1f]", line):
            raise UserError(f"{damaged}: {line[:80]!r}")
        entries[name] = value
    axes, order = entries.get("NDims", ""), list(entries)
    if order[-1] != _ENTRY.decode():
        raise UserError(damaged)
    for name in (*_NEEDED, *(entries.keys() & _VALUES.keys())):
        kind, power = _VALUES[name]
        values = entries.get(name, "").split()
        number = int(axes) ** power if re.fullmatch("[1-5]", axes) else 1
        early = power and name in entries and axes and order.index(name) < order.index("NDims")
        fitting = all(re.fullmatch(kind, value) for value in values)
        if kind == _NUMBER and fitting:
            fitting = all(abs(float(value)) < _LARGEST for value in values)
        if early or len(values) != number or not fitting:
            raise UserError(f"{damaged}: {name} = {entries.get(name, '')[:80]}")
    return entries, length
