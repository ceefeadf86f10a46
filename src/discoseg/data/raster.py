"""NRRD volumes, and pictures (.png, .tif, .tiff) as volumes of one slice, through SimpleITK.

A picture's spacing is 1 mm unless its file says otherwise. Pictures keep no place in the world: x and y spacing is all
that is left of a geometry that is written to one.
"""

from pathlib import Path

import numpy as np

from discoseg.data.announced import require_room
from discoseg.data.files import file_of, image_suffix, write_atomically
from discoseg.data.itk import READERS, itk_from_volume, open_itk, volume_from_itk
from discoseg.data.nrrd_header import put_directions
from discoseg.data.volume import Volume, same_geometry
from discoseg.errors import UserError

PACKED = 4096  # bytes that a byte of a compressed file can stand for at most


def read_raster(path: Path) -> Volume:
    """Read a file of one of these kinds; a path may name one channel of it, `photo.png[0]` for the red one."""
    reader, voxel_bytes = open_itk(path)
    require_room(path, voxel_bytes, file_of(path).stat().st_size, ratio=PACKED)
    try:
        image = reader.Execute()
    except RuntimeError as error:
        raise UserError(f"{path} cannot be read: it is damaged, or of a kind that SimpleITK does not know") from error
    return volume_from_itk(image, path)


def write_raster(path: Path, volume: Volume) -> None:
    """Write a volume, compressed; a `.png` holds one slice of uint8 or uint16."""
    import SimpleITK

    suffix = image_suffix(path)
    if suffix == ".png" and (volume.shape[0] != 1 or volume.array.dtype not in (np.uint8, np.uint16)):
        raise UserError(f"cannot write {path}: a PNG holds one slice of uint8 or uint16; use .nii.gz or .mha instead")
    try:
        with write_atomically(path) as temporary:
            image = itk_from_volume(volume)
            SimpleITK.WriteImage(image, str(temporary), useCompression=True, imageIO=READERS[suffix])
            known = volume.header
            if suffix == ".nrrd" and known is not None and known.nrrd is not None and same_geometry(volume, known):
                put_directions(temporary, known.nrrd)
    except RuntimeError as error:
        kind = volume.array.dtype
        raise UserError(f"cannot write {path}: no such folder, or {suffix} cannot hold {kind} voxels") from error
