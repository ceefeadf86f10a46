"""Directories of TIFF files: walked strictly, since readers can go in circles, or for hours, in a damaged one."""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from discoseg.errors import UserError

_MOST_PAGES = 65_536
_MOST_ENTRIES = 4096
_MOST_SIDE = 2**20  # pixels
_PACKED = 4096  # bytes that a byte of a compressed page can stand for at most
_CODES = {1: "B", 3: "H", 4: "I", 16: "Q"}  # struct's codes of the types that numbers have here
WIDTH, HEIGHT, BITS, COMPRESSION, COLOURS, STRIPS = 256, 257, 258, 259, 262, 273
SAMPLES, ROWS, STRIP_BYTES, PLANAR, KIND = 277, 278, 279, 284, 339
TILE_WIDTH, TILE_HEIGHT, TILES, TILE_BYTES, TURN, UNIT = 322, 323, 324, 325, 274, 296
_SAME = (WIDTH, HEIGHT, BITS, COMPRESSION, COLOURS, SAMPLES, PLANAR, KIND, TILE_WIDTH, TILE_HEIGHT)  # on all pages
_TAGS = {*_SAME, STRIPS, ROWS, STRIP_BYTES, TILES, TILE_BYTES, TURN, UNIT}
_TYPES = {  # by kind (unsigned, signed, real) and bits of a sample
    (1, 1): "u1",
    (1, 8): "u1",
    (2, 8): "i1",
    (1, 16): "u2",
    (2, 16): "i2",
    (1, 32): "u4",
    (2, 32): "i4",
    (3, 32): "f4",
}
_COMPRESSIONS = {1, 5, 8, 32773, 32946}  # none, LZW, deflate, PackBits, deflate by its old number
_UNREAD = {2: "CCITT", 3: "CCITT", 4: "CCITT", 6: "JPEG", 7: "JPEG", 34712: "JPEG 2000", 50000: "Zstandard"}
_TYPES_BY_BYTES = {1: (1, 2, 6, 7), 2: (3, 8), 4: (4, 9, 11, 13), 8: (5, 10, 12, 16, 17, 18)}
_BYTES = {kind: size for size, kinds in _TYPES_BY_BYTES.items() for kind in kinds}
_COLOURS = {0, 1, 2, 3}  # white or black is 0, red green blue, palette


class _UnreadError(Exception):
    """The file is whole, but of a kind that is not read."""


@dataclass(frozen=True)
class _Layout:
    """How a file stores its numbers: byte order, and the struct codes of counts and places."""

    order: str
    count: str
    place: str


@dataclass(frozen=True)
class Page:
    """What all pages of a file are like: pixels, samples of each, and their type."""

    width: int
    height: int
    samples: int
    dtype: np.dtype[Any]


def read_tiff_pages(path: Path) -> tuple[Page, int]:
    """Return what a file's pages are like, and how many there are.

    Refuses a file whose pages do not lie in it, with as much data as they announce, one after the other; and one whose
    pages share entries or their values, so that they are more to read than the file is long.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _walk(content)
    except _UnreadError as error:
        raise UserError(f"{path}: {error}") from error
    except FileNotFoundError as error:
        raise UserError(f"{path} cannot be read: no such file") from error
    except (ValueError, KeyError, IndexError, struct.error, OverflowError) as error:
        reason = "it may be truncated or damaged, or is no TIFF file"
        raise UserError(f"{path} cannot be read: {reason}: {error}") from error


def _walk(content: mmap.mmap) -> tuple[Page, int]:
    order = {b"II": "<", b"MM": ">"}[content[:2]]
    big = struct.unpack_from(f"{order}H", content, 2)[0] == 43
    layout = _Layout(order, "Q" if big else "H", "Q" if big else "I")
    (place,) = struct.unpack_from(f"{order}{layout.place}", content, 8 if big else 4)
    seen: set[int] = set()
    first: dict[int, tuple[int, ...]] = {}
    taken = 0
    while place:
        if place in seen or len(seen) == _MOST_PAGES:
            raise ValueError("its pages go in circles, or are too many")
        seen.add(place)
        tags, place, size = _read_page(content, layout, place)
        taken += size
        if taken > len(content):
            raise ValueError("its pages have more entries and values than it can hold")
        _require_page(tags, len(content))
        first = first or tags
        if any(tags.get(tag) != first.get(tag) for tag in _SAME):
            raise ValueError("its pages differ in size or kind")
    kind = first.get(KIND, (1,))[0], first.get(BITS, (1,))[0]
    return Page(first[WIDTH][0], first[HEIGHT][0], first.get(SAMPLES, (1,))[0], np.dtype(_TYPES[kind])), len(seen)


def _read_page(content: mmap.mmap, layout: _Layout, place: int) -> tuple[dict[int, tuple[int, ...]], int, int]:
    """Return the numbers of a page's tags, where the next page is, and the bytes of all its entries and values."""
    (count,) = struct.unpack_from(f"{layout.order}{layout.count}", content, place)
    if count > _MOST_ENTRIES:
        raise ValueError(f"a page of {count} entries")
    place += struct.calcsize(layout.count)
    entry, room = f"{layout.order}HH{layout.place}", struct.calcsize(layout.place)
    tags: dict[int, tuple[int, ...]] = {}
    taken = count * (struct.calcsize(entry) + room)
    for _ in range(count):
        tag, kind, number = struct.unpack_from(entry, content, place)
        value = place + struct.calcsize(entry)
        place = value + room
        size = number * _BYTES.get(kind, 0)
        taken += size if size > room else 0  # of tags that only Pillow reads, too
        if tag not in _TAGS:
            continue
        code = _CODES[kind]
        if size > room:
            (value,) = struct.unpack_from(f"{layout.order}{layout.place}", content, value)
        if tag in tags or not 0 < number <= (len(content) - value) // struct.calcsize(code):
            raise ValueError(f"tag {tag} has {number} values")
        tags[tag] = struct.unpack_from(f"{layout.order}{number}{code}", content, value)
    (following,) = struct.unpack_from(f"{layout.order}{layout.place}", content, place)
    return tags, following, taken


def _require_page(tags: dict[int, tuple[int, ...]], size: int) -> None:
    compression = tags.get(COMPRESSION, (1,))[0]
    if compression in _UNREAD:
        raise _UnreadError(f"{_UNREAD[compression]} compression is not read; save it with LZW or deflate")
    width, height = tags[WIDTH][0], tags[HEIGHT][0]
    samples, bits = tags.get(SAMPLES, (1,))[0], tags.get(BITS, (1,))
    if not (0 < width <= _MOST_SIDE and 0 < height <= _MOST_SIDE and 0 < samples <= 1000):
        raise ValueError(f"a page of {width}×{height} pixels of {samples} samples")
    if len(set(bits)) != 1 or len(bits) not in (1, samples):
        raise ValueError(f"samples of {bits} bits")
    if samples > 1 and bits[0] > 8:
        raise _UnreadError(f"colours of {bits[0]} bits are not read; save it as .nii.gz or .nrrd")
    if compression not in _COMPRESSIONS or tags.get(COLOURS, (1,))[0] not in _COLOURS:
        raise ValueError("compressed or coloured in an unknown way")
    if tags.get(TURN, (1,))[0] not in range(1, 9) or tags.get(UNIT, (2,))[0] not in (1, 2, 3):
        raise ValueError("an unknown orientation or unit")
    if TILES in tags:
        places, lengths = tags[TILES], tags[TILE_BYTES]
        tile_width, tile_height = tags[TILE_WIDTH][0], tags[TILE_HEIGHT][0]
        if not (0 < tile_width <= _MOST_SIDE and 0 < tile_height <= _MOST_SIDE):
            raise ValueError(f"tiles of {tile_width}×{tile_height} pixels")
        parts = math.ceil(width / tile_width) * math.ceil(height / tile_height)
        pixels = parts * tile_width * tile_height
    else:
        places, lengths = tags[STRIPS], tags.get(STRIP_BYTES, (0,))
        rows = min(tags.get(ROWS, (height,))[0], height)
        if rows == 0:
            raise ValueError("strips of 0 rows")
        parts, pixels = math.ceil(height / rows), width * height
    parts *= samples if tags.get(PLANAR, (1,))[0] == 2 else 1
    if len(places) != parts or len(lengths) != parts:
        raise ValueError(f"{len(places)} parts of {parts}")
    if any(place + length > size for place, length in zip(places, lengths, strict=True)):
        raise ValueError("parts outside the file")
    stored = sum(lengths) * (1 if compression == 1 else _PACKED)
    if pixels * samples * bits[0] // 8 > stored:
        raise ValueError("less data than a page announces")
