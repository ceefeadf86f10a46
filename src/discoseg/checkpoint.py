"""Checkpoints: tensors and JSON in one file, in the safetensors format, written atomically.

The file is eight bytes (little-endian header length), a JSON header, then the raw tensors back to back. Nothing in it
is executable and nothing is unpickled; the safetensors library reads it too. A CRC-32 of the tensors stands in the
metadata, and one of the header (with zeros in its own place), so that truncation and flipped bytes are noticed.
"""

import json
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from discoseg.checkpoint_header import HEADER_SUM, broken_checkpoint, open_checkpoint
from discoseg.data.files import write_atomically
from discoseg.errors import UserError

_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}


def save_tensors(path: Path, tensors: dict[str, torch.Tensor], meta: dict[str, Any]) -> None:
    """Write named tensors (any device) and JSON-able ``meta`` to ``path``; the old file stays until all is written."""
    header: dict[str, Any] = {}
    buffers: list[memoryview] = []
    offset, checksum = 0, 0
    for name, tensor in sorted(tensors.items()):
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
        end = offset + len(data)
        header[name] = {"dtype": _CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        checksum, offset = zlib.crc32(data, checksum), end
        buffers.append(data)
    header["__metadata__"] = {"discoseg": json.dumps(meta), "crc32": f"{checksum:08x}", "header_crc32": "00000000"}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the tensors start at a multiple of eight bytes
    text = struct.pack("<Q", len(text)) + text
    text = text.replace(HEADER_SUM.format(0).encode(), HEADER_SUM.format(zlib.crc32(text)).encode())
    with write_atomically(path) as temporary, temporary.open("wb") as file:
        file.write(text)
        for data in buffers:
            file.write(data)


def load_tensors(
    path: Path,
    into: Mapping[str, torch.Tensor] | None = None,
    *,
    wanted: Callable[[str], bool] = lambda name: True,
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Read back what :func:`save_tensors` wrote: tensors on the CPU whose names are ``wanted``, and the metadata.

    Those of ``into`` that are on the CPU and have the right name, shape and type are filled and returned. A file that
    is damaged is a `DamagedCheckpoint`, and ``into`` is left alone.
    """
    data, header, meta, start = open_checkpoint(path)
    broken = broken_checkpoint(path)
    try:
        checksum = int(header.pop("__metadata__")["crc32"], 16)
        payload = memoryview(data)[start:]
        if zlib.crc32(payload) != checksum:
            raise broken
        chosen = {name: entry for name, entry in header.items() if wanted(name)}
        tensors = {name: _tensor(payload, entry, (into or {}).get(name)) for name, entry in chosen.items()}
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise broken from error
    return tensors, meta


def previous_of(latest: Path) -> Path:
    """Return where the checkpoint before the latest one is kept."""
    return latest.with_name(f"previous{latest.suffix}")


def load_slices(path: Path, name: str, start: int, stop: int) -> tuple[torch.Tensor, dict[str, Any]]:
    """Return ``[:, start:stop]`` of one tensor of (K, N, H, W), and the metadata, of a file as large as it may be.

    Only that part is read, so the checksum, which is of all, is not looked at. A KeyError where there is no such
    tensor.
    """
    data, header, meta, begin = open_checkpoint(path)
    entry = header[name]
    if len(entry["shape"]) < 2 or entry["shape"][1] < stop:
        raise UserError(f"{path}: of other data than its run says")
    first, _ = entry["data_offsets"]
    dtype = torch.empty(0, dtype=_DTYPES[entry["dtype"]]).numpy().dtype
    whole = np.frombuffer(data, dtype, int(np.prod(entry["shape"])), begin + first).reshape(entry["shape"])
    return torch.from_numpy(whole[:, start:stop].copy()), meta


def _tensor(payload: memoryview, entry: dict[str, Any], into: torch.Tensor | None) -> torch.Tensor:
    start, end = entry["data_offsets"]
    shape, dtype = torch.Size(entry["shape"]), _DTYPES[entry["dtype"]]
    fits = into is not None and not into.is_cuda and into.shape == shape and into.dtype == dtype
    tensor = into if into is not None and fits else torch.empty(shape, dtype=dtype)
    if tensor.numel():
        tensor.view(-1).view(torch.uint8).numpy()[:] = np.frombuffer(payload[start:end], dtype=np.uint8)
    return tensor
