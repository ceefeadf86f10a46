"""Valid files to invalid ones: mutations that know the formats, for bench/fuzz.py and tests/test_fuzz.py.

Every function takes the bytes of a valid file and a ``random.Random``, and returns other bytes.
"""

import gzip
import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

Mutation = Callable[[bytes, Random], bytes]

NUMBERS = (
    "0",
    "-1",
    "1e999",
    "-1e999",
    "nan",
    "inf",
    "2147483648",
    "-2147483649",
    "9" * 40,
    "1e-320",
    "0x10",
    "1,5",
    "",
)
WORDS = (
    "\x00",
    "\n",
    "\r\n",
    "\x1b]0;owned\x07\x1b[2J",
    "../../../etc/passwd",
    "/dev/zero",
    "=cmd|' /C calc'!A0",
    "<script>alert(1)</script>",
    "\u202e\u2066",
    "\ufeff",
    "%s%n%d",
    "{case}",
    "-rf",
    "a" * 5000,
    "http://127.0.0.1:9/x",
    "LIST",
    "\U0001f9e0",
)
INTEGERS = (0, 1, -1, 2, 7, 127, -128, 255, 32767, -32768, 65535, 2**31 - 1, -(2**31), 2**32, 2**53, 2**63, 10**30)
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e30, -1e30, float("inf"), float("-inf"), float("nan"), 0.5, 352.5)


def mutate_bytes(data: bytes, rng: Random) -> bytes:
    """Flip, cut, insert, repeat, overwrite or re-encode bytes, once to four times."""
    for _ in range(1 + rng.randrange(4)):
        data = rng.choice(_BYTES)(data, rng)
    return data


def _flip(data: bytes, rng: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(1 + rng.randrange(8)):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _truncate(data: bytes, rng: Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _insert(data: bytes, rng: Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    garbage = rng.choice((b"\0" * 64, b"\xff" * 16, b"\n\n", rng.choice(WORDS).encode(), bytes([rng.randrange(256)])))
    return data[:at] + garbage + data[at:]


def _repeat(data: bytes, rng: Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    part = data[start : start + 1 + rng.randrange(200)]
    return data[:start] + part * (1 + rng.randrange(20)) + data[start:]


def _remove(data: bytes, rng: Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + data[start + 1 + rng.randrange(64) :]


def _overwrite(data: bytes, rng: Random) -> bytes:
    """Put an extreme number of 1, 2, 4 or 8 bytes somewhere, in either byte order."""
    size = rng.choice((1, 2, 4, 8))
    at = rng.randrange(max(1, len(data) - size))
    number = (rng.choice(INTEGERS) % 256**size).to_bytes(size, rng.choice(("little", "big")))
    return data[:at] + number + data[at + size :]


def _magic(data: bytes, rng: Random) -> bytes:
    kinds = (
        b"\x1f\x8b\x08\0",
        b"\x89PNG\r\n\x1a\n",
        b"II*\0",
        b"MM\0*",
        b"NRRD0005\n",
        b"PK\x03\x04",
        b"\x80\x04\x95",
        b"\0" * 8,
    )
    start = rng.choice(kinds)
    return start + data[len(start) :]


def _recode(data: bytes, rng: Random) -> bytes:
    return rng.choice((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")) + data


_BYTES: tuple[Mutation, ...] = (
    _flip,
    _flip,
    _truncate,
    _insert,
    _repeat,
    _remove,
    _overwrite,
    _overwrite,
    _magic,
    _recode,
)

# offset and struct's code of the fields of a NIfTI-1 header
_NIFTI = [
    (0, "i"),
    (39, "B"),
    *((40 + 2 * k, "h") for k in range(8)),
    (68, "h"),
    (70, "h"),
    (72, "h"),
    *((76 + 4 * k, "f") for k in range(8)),
    (108, "f"),
    (112, "f"),
    (116, "f"),
    (123, "B"),
    (252, "h"),
    (254, "h"),
    *((256 + 4 * k, "f") for k in range(18)),
    (344, "i"),
    (348, "B"),
]


def mutate_nifti(data: bytes, rng: Random) -> bytes:
    """Set one to four fields of the header to extremes, or mutate bytes."""
    if rng.random() < 0.25:
        return mutate_bytes(data, rng)
    changed = bytearray(data)
    for _ in range(1 + rng.randrange(4)):
        offset, code = rng.choice(_NIFTI)
        changed[offset : offset + struct.calcsize(code)] = _pack(code, rng)
    if rng.random() < 0.1:  # an extension of any length
        changed[348:352] = b"\1\0\0\0"
        changed[352:352] = struct.pack("<ii", _wrap(rng.choice(INTEGERS), 32), rng.randrange(50)) + b"<a/>" * 4
    return bytes(changed)


def mutate_gzip(data: bytes, rng: Random) -> bytes:
    """Mutate a gzipped NIfTI file inside or outside its compression, or let it go on for long."""
    if rng.random() < 0.4:
        return mutate_bytes(data, rng)
    content = mutate_nifti(gzip.decompress(data), rng)
    if rng.random() < 0.1:
        content += b"\0" * (1 << rng.choice((10, 20, 24)))
    packed = gzip.compress(content, 1, mtime=0)
    return packed + (packed if rng.random() < 0.05 else b"")


def mutate_header(data: bytes, rng: Random) -> bytes:
    """Mutate the lines of a text header (MetaImage, NRRD, TOML, CSV, Info.cfg), whatever follows it, or its bytes."""
    if rng.random() < 0.3:
        return mutate_bytes(data, rng)
    lines = data.split(b"\n")
    for _ in range(1 + rng.randrange(3)):
        at = rng.randrange(max(1, min(len(lines), 24)))
        line = lines[at] if lines else b""
        choice = rng.randrange(6)
        if choice == 0:
            lines[at : at + 1] = [line, line]
        elif choice == 1:
            lines[at : at + 1] = []
        elif choice == 2:
            other = rng.randrange(len(lines)) if lines else 0
            lines[at : at + 1], lines[other : other + 1] = lines[other : other + 1], lines[at : at + 1]
        else:
            parts = re.split(rb"([\s=:,]+)", line)
            place = rng.randrange(len(parts))
            parts[place] = rng.choice((*NUMBERS, *WORDS)).encode("utf-8", "surrogatepass")
            lines[at : at + 1] = [b"".join(parts)]
    return b"\n".join(lines)


def mutate_png(data: bytes, rng: Random) -> bytes:
    """Set a chunk's fields, with its checksum made right, or mutate bytes."""
    if rng.random() < 0.4 or len(data) < 33:
        return mutate_bytes(data, rng)
    header = bytearray(data[16:29])
    if rng.random() < 0.5:
        offset, code = rng.choice(((0, ">I"), (4, ">I")))
        header[offset : offset + 4] = struct.pack(code, rng.choice(INTEGERS) % 2**32)
    else:
        header[8 + rng.randrange(5)] = rng.choice((0, 1, 2, 3, 4, 6, 8, 16, 255))
    return data[:16] + bytes(header) + struct.pack(">I", zlib.crc32(b"IHDR" + header)) + data[33:]


def mutate_tiff(data: bytes, rng: Random) -> bytes:
    """Set an entry of the first directory to an extreme type, count or value, or mutate bytes."""
    if rng.random() < 0.3 or data[:4] != b"II*\0":
        return mutate_bytes(data, rng)
    changed = bytearray(data)
    (start,) = struct.unpack_from("<I", data, 4)
    if start + 2 > len(data):
        return mutate_bytes(data, rng)
    (count,) = struct.unpack_from("<H", data, start)
    at = start + 2 + 12 * rng.randrange(max(1, min(count, 40)))
    offset, code = rng.choice(((0, "<H"), (2, "<H"), (4, "<I"), (8, "<I"), (8, "<I"), (8, "<H")))
    size = struct.calcsize(code)
    changed[at + offset : at + offset + size] = struct.pack(code, rng.choice(INTEGERS) % 256**size)
    if rng.random() < 0.2:  # the next directory: this one again, or far away
        end = start + 2 + 12 * count
        changed[end : end + 4] = struct.pack("<I", rng.choice((start, len(data) + 5, 2**32 - 1, 3)))
    return bytes(changed)


def mutate_json(data: bytes, rng: Random) -> bytes:
    """Replace, remove, repeat or nest parts of a document, or mutate bytes."""
    if rng.random() < 0.25:
        return mutate_bytes(data, rng)
    document = json.loads(data)
    for _ in range(1 + rng.randrange(3)):
        document = mutate_tree(document, rng)
    text = json.dumps(document, ensure_ascii=rng.random() < 0.5)
    if rng.random() < 0.1:
        text = text.replace("{", '{"a": 1, "a": 2, ', 1)
    if rng.random() < 0.05:
        depth = rng.choice((500, 5000, 100_000))
        text = "[" * depth + "]" * rng.choice((0, depth))
    encoding = rng.choice(("utf-8", "utf-8", "utf-8", "utf-8", "utf-16", "utf-8-sig"))
    return text.encode(encoding, "surrogatepass")


def mutate_tree(node: Any, rng: Random) -> Any:
    """Return a document of objects, lists and values with one part of it changed."""
    if isinstance(node, dict) and node and rng.random() < 0.8:
        key = rng.choice(sorted(node))
        choice = rng.randrange(8)
        if choice == 0:
            return {name: value for name, value in node.items() if name != key}
        if choice == 1:
            return {**node, rng.choice(WORDS): node[key]}
        return {**node, key: mutate_tree(node[key], rng)}
    if isinstance(node, list) and node and rng.random() < 0.8:
        at = rng.randrange(len(node))
        choice = rng.randrange(6)
        if choice == 0:
            return node[:at] + node[at + 1 :]
        if choice == 1:
            return [*node, node[at]] * (1 + rng.randrange(3))
        return [*node[:at], mutate_tree(node[at], rng), *node[at + 1 :]]
    deep: Any = []
    for _ in range(rng.choice((3, 50))):
        deep = rng.choice(([deep], {"x": deep}))
    return rng.choice((None, True, [], {}, "", deep, rng.choice(INTEGERS), rng.choice(FLOATS), rng.choice(WORDS)))


def mutate_checkpoint(data: bytes, rng: Random) -> bytes:
    """Mutate a checkpoint's header or metadata with all checksums made right, its length, or its bytes."""
    choice = rng.random()
    if choice < 0.25:
        return mutate_bytes(data, rng)
    if choice < 0.35:
        return struct.pack("<Q", rng.choice(INTEGERS) % 2**64) + data[8:]
    (length,) = struct.unpack_from("<Q", data)
    header, payload = json.loads(data[8 : 8 + length]), data[8 + length :]
    metadata = header["__metadata__"]
    if choice < 0.6:
        metadata["discoseg"] = json.dumps(mutate_tree(json.loads(metadata["discoseg"]), rng))
    else:
        header = mutate_tree(header, rng)
    return pack_checkpoint(header, payload)


def pack_checkpoint(header: Any, payload: bytes) -> bytes:
    """Return a file of a header and tensors, whose checksums, where the header has a place for them, are right."""
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    if isinstance(metadata, dict) and "crc32" in metadata:
        metadata["crc32"] = f"{zlib.crc32(payload):08x}"
    if isinstance(metadata, dict) and "header_crc32" in metadata:
        metadata["header_crc32"] = "00000000"
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    whole = struct.pack("<Q", len(text)) + text
    checksum = f'"header_crc32": "{zlib.crc32(whole):08x}"'.encode()
    return whole.replace(b'"header_crc32": "00000000"', checksum) + payload


def mutate_archive(data: bytes, rng: Random) -> bytes:
    """Mutate a member of a zip archive (.npz) inside its compression, drop or repeat it, or mutate bytes."""
    if rng.random() < 0.4:
        return mutate_bytes(data, rng)
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        members = {name: file.read(name) for name in file.namelist()}
    name = rng.choice(sorted(members))
    choice = rng.randrange(6)
    if choice == 0:
        del members[name]
    elif choice == 1:
        members[name] = members[name].replace(b"'descr': '|i1'", b"'descr': '|O'").replace(b"(", b"(9999999999, ")
    elif choice == 2:
        members[name] += b"\0" * (1 << 22)
    elif members[name][:1] == b"{":
        members[name] = mutate_json(members[name], rng)
    else:
        members[name] = mutate_bytes(members[name], rng)
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as file:
        for member, content in members.items():
            file.writestr(member, content)
    return target.getvalue()


def _pack(code: str, rng: Random) -> bytes:
    if code == "f":
        return struct.pack("<f", rng.choice(FLOATS))
    bits = 8 * struct.calcsize(code)
    number = _wrap(rng.choice(INTEGERS), bits)
    return struct.pack(f"<{code}", number % 2**bits if code == "B" else number)


def _wrap(number: int, bits: int) -> int:
    """Return a number as the signed one of so many bits that it overflows to."""
    return (number + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
