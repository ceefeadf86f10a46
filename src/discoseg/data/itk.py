"""Volumes from and to SimpleITK's images, whose world is LPS+ mm: x and y change their sign."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discoseg.data.files import file_of, image_suffix
from discoseg.data.meta_header import data_file
from discoseg.data.nrrd_header import read_directions, require_nrrd_header
from discoseg.data.png_header import require_png_header
from discoseg.data.volume import Header, Volume, choose_channel, same_geometry
from discoseg.errors import UserError

LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0])
READERS = {
    ".mhd": "MetaImageIO",
    ".mha": "MetaImageIO",
    ".nrrd": "NrrdImageIO",
    ".png": "PNGImageIO",
    ".tif": "TIFFImageIO",
    ".tiff": "TIFFImageIO",
}
_REQUIRE: dict[str, Callable[[Path], object]] = {  # what refuses headers that SimpleITK would trust
    "MetaImageIO": data_file,
    "NrrdImageIO": require_nrrd_header,
    "PNGImageIO": require_png_header,
}


def open_itk(path: Path) -> tuple[Any, int]:
    """Return SimpleITK's reader of a file, whose header it has read, and how many bytes of voxels that announces."""
    import SimpleITK

    reader = _read_information(file_of(path))
    bits = re.search(r"(\d+)-bit", SimpleITK.GetPixelIDValueAsString(reader.GetPixelID()))
    voxels = math.prod(reader.GetSize()) * reader.GetNumberOfComponents()
    return reader, voxels * (int(bits[1]) if bits else 64) // 8


def volume_from_itk(image: Any, path: Path) -> Volume:
    """Return the one volume of an image, or the channel of it that `path` names.

    Channels are the components of a voxel (red, green, blue), or the fourth axis.
    """
    import SimpleITK

    size, components = image.GetSize(), image.GetNumberOfComponentsPerPixel()
    channel = choose_channel(path, size, _count_channels(path, size, components))
    array = SimpleITK.GetArrayFromImage(image)  # (..., z, y, x) or (..., z, y, x, component)
    if array.dtype.kind not in "uif":
        raise UserError(f"{path} holds {array.dtype} voxels: integers or real numbers are needed")
    array = array.reshape((-1, *(*size, 1)[2::-1], components))[channel // components, ..., channel % components]
    header = _header(image, file_of(path))
    return Volume(np.ascontiguousarray(array), header.affine, header.spacing_mm, header)


def read_itk_geometry(path: Path) -> Header:
    """Return the geometry of a file, of which only the header is read."""
    return _header(_read_information(file_of(path)), file_of(path))


def read_itk_header(path: Path) -> tuple[NDArray[np.float64], int]:
    """Return the (4, 4) affine of a file, voxel (x, y, z) to world RAS+ mm, and the number of its channels."""
    reader = _read_information(path)
    channels = _count_channels(path, reader.GetSize(), reader.GetNumberOfComponents())
    return _affine(_geometry_3d(reader)), channels


def _read_information(path: Path) -> Any:
    import SimpleITK

    _REQUIRE[READERS[image_suffix(path)]](path)
    SimpleITK.ProcessObject.SetGlobalWarningDisplay(False)  # an error of ours says it in one line
    reader = SimpleITK.ImageFileReader()
    reader.SetImageIO(READERS[image_suffix(path)])
    reader.SetFileName(str(path))
    try:
        reader.ReadImageInformation()
    except RuntimeError as error:
        reason = "it may be truncated or damaged" if path.exists() else "no such file"
        raise UserError(f"{path} cannot be read: {reason}") from error
    return reader


def _header(image: Any, path: Path) -> Header:
    """Return the geometry of an image, or of a reader that has read its information, and what its file said."""
    header = header_of(_geometry_3d(image), tuple((*image.GetSize(), 1)[2::-1]))
    return replace(header, nrrd=read_directions(path)) if image_suffix(path) == ".nrrd" else header


def header_of(geometry: dict[str, tuple[float, ...]], shape: tuple[int, ...]) -> Header:
    """Return SimpleITK's origin, spacing and direction of a volume of `shape` (z, y, x) as a header."""
    x, y, z = geometry["spacing"]
    return Header(_affine(geometry), (z, y, x), shape, itk=geometry)


def itk_from_volume(volume: Volume) -> Any:
    """Return a volume as SimpleITK's image, with its file's very geometry where it still has that.

    There is only one spacing: where the affine tells another one than `spacing_mm`, `spacing_mm` counts, with the
    affine's directions and origin.
    """
    import SimpleITK

    image = SimpleITK.GetImageFromArray(volume.array)
    known = volume.header
    geometry = known.itk if known is not None and same_geometry(volume, known) else None
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
    return image


def _count_channels(path: Path, size: tuple[int, ...], components: int) -> int:
    """Return how many channels an image has; a PNG's opacity is none."""
    if image_suffix(path) == ".png" and components == 4:
        components = 3
    return components * int(np.prod(size[3:]))


def _affine(geometry: dict[str, tuple[float, ...]]) -> NDArray[np.float64]:
    affine = np.eye(4)
    affine[:3, :3] = LPS_TO_RAS @ np.reshape(geometry["direction"], (3, 3)) * np.array(geometry["spacing"])
    affine[:3, 3] = LPS_TO_RAS @ geometry["origin"]
    return affine


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
