"""nibabel's images to volumes and back, for programs that hold them in memory."""

from typing import TYPE_CHECKING, Any

import numpy as np

from discoseg.data.volume import Volume, format_shape
from discoseg.errors import UserError

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image
    from nibabel.spatialimages import SpatialImage


def volume_from_image(image: "SpatialImage", *, name: str = "image") -> Volume:
    """Return a 2D or 3D image of nibabel's, of any format, as a volume; trailing axes of length 1 are dropped."""
    array: Any = np.asanyarray(image.dataobj)  # (x, y, z, ...)
    if array.ndim < 2 or array.size == 0 or any(n != 1 for n in array.shape[3:]):
        raise UserError(f"{name} has the shape {format_shape(array.shape[::-1])}: one 2D or 3D image is needed")
    if array.dtype.kind not in "uif":
        raise UserError(f"{name} holds {array.dtype} voxels: integers or real numbers are needed")
    affine = np.eye(4) if image.affine is None else np.array(image.affine, dtype=np.float64)
    if not np.isfinite(affine).all() or np.linalg.matrix_rank(affine) < 4:
        raise UserError(f"{name}: its affine is singular, so its voxels have no place in the world")
    zooms = [float(zoom) for zoom in image.header.get_zooms()[:3]]
    if len(zooms) < 3 or zooms == [1.0, 1.0, 1.0]:
        zooms = np.linalg.norm(affine[:3, :3], axis=0).tolist()
    x, y, z = zooms
    array = array.reshape((*array.shape[:3], 1)[:3])
    return Volume(np.ascontiguousarray(array.T, dtype=array.dtype.newbyteorder("=")), affine, (z, y, x))


def image_like(mask: Volume, image: "SpatialImage") -> "Nifti1Image":
    """Return a label map on the voxels of ``image`` as a NIfTI image of its shape and geometry, and its header's."""
    import nibabel

    voxels = mask.array.T.reshape(image.shape)
    if not isinstance(image, nibabel.Nifti1Pair):
        return nibabel.Nifti1Image(voxels, image.affine)
    header: Any = image.header.copy()
    header.set_data_dtype(voxels.dtype)
    header["cal_min"] = header["cal_max"] = 0  # the display window of the image's voxels, not of these
    kind = nibabel.Nifti2Image if isinstance(header, nibabel.Nifti2Header) else nibabel.Nifti1Image
    return kind(voxels, image.affine, header)
