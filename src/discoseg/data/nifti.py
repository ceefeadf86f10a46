"""NIfTI files through nibabel. World coordinates are RAS+ mm here as there; only the axes are reversed."""

import gzip
import logging
import math
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from discoseg.data.announced import DEFLATE, SLACK_BYTES, require_room
from discoseg.data.files import file_of, image_suffix, write_atomically
from discoseg.data.volume import Header, Volume, choose_channel, format_shape, same_geometry
from discoseg.errors import UserError

SCANNER, ALIGNED = 1, 2  # NIfTI's codes for the space an affine leads to
NIFTI_2 = (b"\x1c\x02\0\0", b"\0\0\x02\x1c")  # its header's length, 540, in either byte order
LONGEST_HEADER = 544  # bytes, of NIfTI-2 with the flag of its extensions
MOST_EXTENSIONS = 64 * 2**20  # bytes before the voxels
DAMAGE = (OSError, EOFError, zlib.error, ValueError, OverflowError)  # what a bad file can end in

_thread = threading.local()  # whether this thread reads a file

Spacing = tuple[float, float, float]


def read_nifti(path: Path) -> Volume:
    """Read a `.nii` or `.nii.gz` file; integers stay integers unless the header scales them (scl_slope).

    Channels are the last axis of a 4D file, or of a 5D one whose fourth axis has length 1; `path` may name one.
    """
    with _reading(path), _open(path) as stream:
        image = _image(start := _read_start(stream))
        content = _read_voxels(path, stream, start, image)
        image = _image(content)
        further = image.shape[3:]
        channel = choose_channel(path, image.shape, math.prod(further))
        array = np.asanyarray(image.dataobj[(..., *np.unravel_index(channel, further))] if further else image.dataobj)
    if array.ndim < 2 or array.size == 0:
        shape = format_shape(array.shape[::-1])
        raise UserError(f"{path} has the shape {shape}: one 2D or 3D image is needed")
    if array.dtype.kind not in "uif":
        raise UserError(f"{path} holds {array.dtype} voxels: integers or real numbers are needed")
    array = array.reshape((*array.shape[:3], 1)[:3])
    header = _header(image, content)
    array = np.ascontiguousarray(array.T, dtype=array.dtype.newbyteorder("="))
    return Volume(array, header.affine, header.spacing_mm, header)


def read_nifti_geometry(path: Path) -> Header:
    """Return the geometry of a file that :func:`read_nifti` reads, from its first bytes alone."""
    with _reading(path), _open(path) as stream:
        start = _read_start(stream)
        return _header(_image(start), start)


def read_nifti_header(path: Path) -> tuple[NDArray[np.float64], int]:
    """Return the (4, 4) affine of a file, voxel (x, y, z) to world RAS+ mm, and the number of its channels."""
    with _reading(path), _open(path) as stream:
        image = _image(_read_start(stream))
        return np.array(image.affine, dtype=np.float64), math.prod(image.shape[3:])


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn all that a damaged file can end in into one line, and keep nibabel from printing what it thinks of it."""
    from nibabel.spatialimages import HeaderDataError
    from nibabel.wrapstruct import WrapStructError

    logging.getLogger("nibabel.global").addFilter(_is_for_others)  # adding it again changes nothing
    _thread.reads = True
    try:
        with np.errstate(all="ignore"):
            yield
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"{path} cannot be read: no such file") from error
    except (*DAMAGE, HeaderDataError, WrapStructError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{path} cannot be read, it may be truncated or damaged: {reason}") from error
    finally:
        _thread.reads = False


def _is_for_others(record: logging.LogRecord) -> bool:
    return not getattr(_thread, "reads", False)


def _open(path: Path) -> BinaryIO:
    file = file_of(path)
    return cast(BinaryIO, gzip.open(file)) if image_suffix(path) == ".nii.gz" else file.open("rb")


def _kind(content: bytes) -> Any:
    import nibabel

    return nibabel.Nifti2Image if content[:4] in NIFTI_2 else nibabel.Nifti1Image


def _image(content: bytes) -> Any:
    """Return nibabel's image of a file's first bytes, whose voxels are not read yet."""
    image = _kind(content).from_bytes(content)
    if min(image.shape, default=0) < 0:
        raise ValueError(f"negative size {image.shape}")
    return image


def _read_start(stream: BinaryIO) -> bytes:
    """Return the bytes before the voxels: header and extensions."""
    start = stream.read(LONGEST_HEADER)
    kind = _kind(start).header_class
    offset = int(kind(start[: kind.sizeof_hdr]).get_data_offset())
    if not 0 <= offset <= MOST_EXTENSIONS:
        raise ValueError(f"its voxels begin at byte {offset}")
    return start + stream.read(max(0, offset - len(start)))


def _read_voxels(path: Path, stream: BinaryIO, start: bytes, image: Any) -> bytes:
    """Return all bytes of a file up to the last voxel that it announces; it may hold little more."""
    offset, voxels = int(image.dataobj.offset), math.prod(map(int, image.shape))
    wanted = voxels * image.dataobj.dtype.itemsize
    scaled = image.dataobj.slope != 1 or image.dataobj.inter != 0
    packed = image_suffix(path) == ".nii.gz"
    stored = file_of(path).stat().st_size - (0 if packed else offset)
    require_room(path, wanted, stored, ratio=DEFLATE if packed else 1, memory_bytes=voxels * 8 if scaled else 0)
    content = start + stream.read(max(0, offset + wanted - len(start)))
    if packed and len(stream.read(SLACK_BYTES + 1)) > SLACK_BYTES:  # to the end, where the checksum is
        raise ValueError(f"it goes on behind the {wanted} bytes of voxels that its header announces")
    return content


def _header(image: Any, content: bytes) -> Header:
    """Return the geometry of nibabel's image, of which ``content`` are the first bytes at least."""
    header = image.header.copy()
    x, y, z = (*image.shape[:3], 1, 1)[:3]
    header.set_data_shape((x, y, z))
    affine = np.array(image.affine, dtype=np.float64)
    stored = type(header)(content[: header.sizeof_hdr], check=False)["pixdim"][1 : 1 + len(image.shape[:3])]
    spacing_mm = _spacing_mm(stored, header, affine)
    return Header(affine, spacing_mm, (z, y, x), nifti=header)


def write_nifti(path: Path, volume: Volume) -> None:
    """Write a volume; when it still has its file's geometry, the header is the file's, field by field."""
    import nibabel

    known = volume.header
    header = known.nifti.copy() if known is not None and known.nifti is not None else nibabel.Nifti1Header()
    header.set_data_dtype(volume.array.dtype)
    header.set_data_shape(volume.shape[::-1])
    header["cal_min"] = header["cal_max"] = 0  # the display window of the file's voxels, not of these
    if known is None or known.nifti is None or not same_geometry(volume, known):
        _set_geometry(header, volume.affine, volume.spacing_mm)
    kind = nibabel.Nifti2Image if isinstance(header, nibabel.Nifti2Header) else nibabel.Nifti1Image
    with write_atomically(path) as temporary:
        # Without an affine beside it, nibabel leaves the header's geometry alone.
        nibabel.save(kind(volume.array.T, None, header, dtype=volume.array.dtype), temporary)


def _spacing_mm(stored: NDArray[np.floating], header: Any, affine: NDArray[np.float64]) -> Spacing:
    """Return (z, y, x) from pixdim, which is right where the affine is a mere diag(-1, -1, 1), as in ACDC.

    Where a `stored` pixdim cannot be, the affine's voxel edges count, in `header` too: nibabel puts 1 there.
    """
    with np.errstate(invalid="ignore"):  # a damaged pixdim may be a signalling NaN
        zooms = np.array(header["pixdim"][1:4], dtype=np.float64)
    edges = np.linalg.norm(affine[:3, :3], axis=0)
    if not ((stored > 0) & np.isfinite(stored)).all():
        header["pixdim"][1:4] = zooms = edges
    elif (zooms == 1).all():
        zooms = edges
    x, y, z = zooms.tolist()
    return (z, y, x)


def _set_geometry(header: Any, affine: NDArray[np.float64], spacing_mm: Spacing) -> None:
    """Put an affine and a spacing into a header, as quaternion too where that can express both."""
    edges = np.linalg.norm(affine[:3, :3], axis=0)
    cosines = affine[:3, :3] / edges
    rigid = np.allclose(cosines.T @ cosines, np.eye(3), atol=1e-5)
    if rigid and np.allclose(edges, spacing_mm[::-1], rtol=1e-5):
        header.set_qform(affine, SCANNER)
        header.set_sform(affine, SCANNER)
    else:
        header["qform_code"] = 0
        header.set_sform(affine, ALIGNED)
    header["pixdim"][1:4] = spacing_mm[::-1]
