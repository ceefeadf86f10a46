"""MetaImage files (.mhd, .mha) through SimpleITK, whose world is LPS+ mm: x and y change their sign."""

import os
import re
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from discoseg.data.files import flush_to_disk
from discoseg.data.volume import Header, Volume, format_shape, same_geometry
from discoseg.errors import UserError

LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0])
ANY_WRAPPER = 47  # zlib's number for "zlib or gzip, whichever it is"


def read_metaimage(path: Path) -> Volume:
    """Read a `.mha` file, or a `.mhd` file with the data file it names."""
    import SimpleITK

    try:
        _require_whole_data(path)
        image = SimpleITK.ReadImage(str(path), imageIO="MetaImageIO")
    except (OSError, zlib.error, RuntimeError) as error:
        raise UserError(f"{path} cannot be read: it or its data are truncated or damaged") from error
    size = image.GetSize()
    if any(n != 1 for n in size[3:]):
        raise UserError(f"{path} has the shape {format_shape(size[::-1])}: one 2D or 3D image is needed")
    if image.GetNumberOfComponentsPerPixel() != 1:
        kind = image.GetPixelIDTypeAsString()
        raise UserError(f"{path} holds voxels of the kind {kind!r}: integers or real numbers are needed")
    array = SimpleITK.GetArrayFromImage(image).reshape((*size, 1)[2::-1])
    geometry = _geometry_3d(image)
    spacing = np.array(geometry["spacing"])
    affine = np.eye(4)
    affine[:3, :3] = LPS_TO_RAS @ np.reshape(geometry["direction"], (3, 3)) * spacing
    affine[:3, 3] = LPS_TO_RAS @ geometry["origin"]
    x, y, z = geometry["spacing"]
    return Volume(array, affine, (z, y, x), Header(affine, (z, y, x), array.shape, metaimage=geometry))


def write_metaimage(path: Path, volume: Volume) -> None:
    """Write a volume, compressed; the data file of a `.mhd` (`.zraw`) stands before the header does.

    The format keeps one spacing only: where the affine tells another one than `spacing_mm`, `spacing_mm` is
    written, with the affine's directions and origin.
    """
    import SimpleITK

    image = SimpleITK.GetImageFromArray(volume.array)
    known = volume.header
    geometry = known.metaimage if known is not None and same_geometry(volume, known) else None
    if geometry is None:
        directions = LPS_TO_RAS @ volume.affine[:3, :3]
        geometry = {
            "origin": tuple((LPS_TO_RAS @ volume.affine[:3, 3]).tolist()),
            "spacing": volume.spacing_mm[::-1],
            "direction": tuple((directions / np.linalg.norm(directions, axis=0)).ravel().tolist()),
        }
    image.SetOrigin(geometry["origin"])
    image.SetSpacing(geometry["spacing"])
    image.SetDirection(geometry["direction"])
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


def _geometry_3d(image: Any) -> dict[str, tuple[float, ...]]:
    """SimpleITK's origin, spacing and direction (row by row) of the first three axes of an image."""
    axes = image.GetDimension()
    n = min(axes, 3)
    origin, spacing, direction = np.zeros(3), np.ones(3), np.eye(3)
    origin[:n] = image.GetOrigin()[:n]
    spacing[:n] = image.GetSpacing()[:n]
    direction[:n, :n] = np.reshape(image.GetDirection(), (axes, axes))[:n, :n]
    return {
        "origin": tuple(origin.tolist()),
        "spacing": tuple(spacing.tolist()),
        "direction": tuple(direction.ravel().tolist()),
    }
