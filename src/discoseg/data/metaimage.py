"""MetaImage files (.mhd, .mha) through SimpleITK, with the checks of their data that it leaves out."""

import os
import tempfile
import zlib
from pathlib import Path

from discoseg.data.announced import DEFLATE, SLACK_BYTES, require_room
from discoseg.data.files import file_of, flush_to_disk
from discoseg.data.itk import itk_from_volume, open_itk, volume_from_itk
from discoseg.data.meta_header import data_file, read_meta_header
from discoseg.data.volume import Volume
from discoseg.errors import UserError

LONGEST_NUMBER = 8  # bytes that a number of a text takes once it is read
ANY_WRAPPER = 47  # zlib's number for "zlib or gzip, whichever it is"


def read_metaimage(path: Path) -> Volume:
    """Read a `.mha` file, or a `.mhd` file with the data file it names; a path may name one channel, `a.mha[1]`."""
    try:
        return _read(path)
    except (OSError, zlib.error, RuntimeError) as error:
        raise UserError(f"{path} cannot be read: it or its data are truncated or damaged") from error


def _read(path: Path) -> Volume:
    """Read a file whose data are as long, and where they are compressed as whole, as its header announces."""
    file = file_of(path)
    entries, length = read_meta_header(file)
    data = data_file(file)
    if data is not None and not data.is_file():
        raise UserError(f"{path} cannot be read: its data file {data.name} does not exist")
    skipped = length if data is None else max(0, int(entries.get("HeaderSize", "0")))
    stored = (data or file).stat().st_size - skipped
    compressed = entries.get("CompressedData", "").lower() == "true"
    unknown = compressed and data is None and "CompressedDataSize" not in entries
    if unknown or int(entries.get("CompressedDataSize", "0")) > stored:
        raise UserError(f"{path} cannot be read: its header is damaged")
    reader, voxel_bytes = open_itk(path)
    text = entries.get("BinaryData", "").lower() == "false"
    require_room(path, voxel_bytes, stored, ratio=DEFLATE if compressed else LONGEST_NUMBER if text else 1)
    if compressed:
        _require_whole(data or file, skipped, int(entries.get("CompressedDataSize", stored)), voxel_bytes)
    return volume_from_itk(reader.Execute(), path)


def _require_whole(file: Path, skipped: int, stored: int, voxel_bytes: int) -> None:
    """Refuse damaged compressed data, which SimpleITK reads as if all were well, and more than was announced."""
    stream, unpacked = zlib.decompressobj(ANY_WRAPPER), 0
    with file.open("rb") as opened:
        opened.seek(skipped)
        while not stream.eof and unpacked <= voxel_bytes:
            packed = stream.unconsumed_tail or opened.read(min(stored, SLACK_BYTES))
            if not packed:
                raise zlib.error("truncated")
            stored -= 0 if stream.unconsumed_tail else len(packed)
            unpacked += len(stream.decompress(packed, SLACK_BYTES))  # to the end, where the checksum is
    if not stream.eof or unpacked != voxel_bytes or stream.unused_data or stored:
        raise zlib.error("another length than announced")


def write_metaimage(path: Path, volume: Volume) -> None:
    """Write a volume, compressed; the data file of a `.mhd` (`.zraw`) stands before the header does."""
    import SimpleITK

    image = itk_from_volume(volume)
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".") as folder:
            # The header names its data file, so both get their final names in a folder of their own first.
            header = Path(folder, path.name)
            SimpleITK.WriteImage(image, str(header), useCompression=True, imageIO="MetaImageIO")
            for file in sorted(Path(folder).iterdir(), key=lambda file: file == header):
                flush_to_disk(file)
                os.replace(file, path.with_name(file.name))
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "SimpleITK could not write it"
        raise UserError(f"cannot write {path}: {reason}") from error
