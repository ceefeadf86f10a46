"""MetaImage files (.mhd, .mha) through SimpleITK, with the checks of their data that it leaves out."""

import os
import re
import tempfile
import zlib
from pathlib import Path

from discoseg.data.files import file_of, flush_to_disk
from discoseg.data.itk import itk_from_volume, volume_from_itk
from discoseg.data.volume import Volume
from discoseg.errors import UserError

ANY_WRAPPER = 47  # zlib's number for "zlib or gzip, whichever it is"


def read_metaimage(path: Path) -> Volume:
    """Read a `.mha` file, or a `.mhd` file with the data file it names; a path may name one channel, `a.mha[1]`."""
    import SimpleITK

    file = file_of(path)
    try:
        _require_whole_data(file)
        image = SimpleITK.ReadImage(str(file), imageIO="MetaImageIO")
    except (OSError, zlib.error, RuntimeError) as error:
        raise UserError(f"{path} cannot be read: it or its data are truncated or damaged") from error
    return volume_from_itk(image, path)


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


def data_file(path: Path) -> Path | None:
    """Return the one file that a header leaves its voxels to; None when they follow the header, or lie in several."""
    _, _, rest = path.read_bytes().partition(b"ElementDataFile")
    name = rest.partition(b"\n")[0].decode(errors="replace").strip(" =\r")
    return None if name == "LOCAL" or name.startswith("LIST") or "%" in name else path.parent / name


def _require_whole_data(path: Path) -> None:
    """Refuse a missing data file, and damaged compressed data, which SimpleITK reads as if all were well."""
    header, _, rest = path.read_bytes().partition(b"ElementDataFile")
    entry, _, data = rest.partition(b"\n")
    if b"LIST" in entry or b"%" in entry:  # one file a slice
        return
    file = data_file(path)
    if file is not None:
        if not file.is_file():
            raise UserError(f"{path} cannot be read: its data file {file.name} does not exist")
        data = file.read_bytes()
    if re.search(rb"^CompressedData\s*=\s*True", header, re.MULTILINE | re.IGNORECASE):
        zlib.decompress(data, wbits=ANY_WRAPPER)  # to the end, where the checksum is
