"""Chunks of PNG files: whole, and with the right checksums, before SimpleITK reads them."""

import struct
import zlib
from pathlib import Path

from discoseg.errors import UserError

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEADER = struct.Struct(">IIBBBBB")
_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}  # bits by kind of colour
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_GREY_AND_OPACITY = 4  # a kind of colour that SimpleITK cannot hold
_MOST_SIDE = 2**20  # pixels
_DEFLATE = 1032
_CRITICAL = {b"IHDR", b"PLTE", b"IDAT", b"IEND"}
_ANCILLARY = 0x20  # the bit of a chunk's first letter that says: who does not know it passes over it


def require_png_header(path: Path) -> None:
    """Refuse a file with damaged chunks, or fewer data than its header announces."""
    damaged = f"{path} cannot be read: it may be truncated or damaged, or is no PNG file"
    data_bytes, header, palette = 0, b"", False
    with path.open("rb") as file:
        if file.read(len(_SIGNATURE)) != _SIGNATURE:
            raise UserError(damaged)
        size = path.stat().st_size
        kind = b""
        while kind != b"IEND":
            length, kind = struct.unpack(">I4s", file.read(8).ljust(8, b"\0"))
            known = kind in _CRITICAL or (kind.isalpha() and kind[0] & _ANCILLARY)
            if not known or length > size:
                raise UserError(f"{damaged}: a chunk {kind!r}")
            content = file.read(length)
            if file.read(4) != struct.pack(">I", zlib.crc32(kind + content)):
                raise UserError(f"{damaged}: the chunk {kind!r} is not whole")
            if (kind == b"IHDR") == bool(header):
                raise UserError(damaged)
            header = content if kind == b"IHDR" else header
            data_bytes += length if kind == b"IDAT" else 0
            palette = palette or (kind == b"PLTE" and not data_bytes and length % 3 == 0)
    if len(header) != _HEADER.size:
        raise UserError(damaged)
    width, height, depth, colour, compression, filtering, interlace = _HEADER.unpack(header)
    known = depth in _DEPTHS.get(colour, ()) and (compression, filtering) == (0, 0) and interlace in (0, 1)
    if not known or (colour == 3 and not palette) or not (0 < width <= _MOST_SIDE and 0 < height <= _MOST_SIDE):
        raise UserError(f"{damaged}: {width}×{height} pixels of {depth} bits")
    if colour == _GREY_AND_OPACITY:
        raise UserError(f"{path}: grey with opacity is not read; save it without opacity")
    if width * height * depth * _CHANNELS[colour] // 8 > data_bytes * _DEFLATE:
        raise UserError(f"{damaged}: {data_bytes} bytes cannot hold {width}×{height} pixels")
