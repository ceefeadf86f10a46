"""A 3D image or label map with its place in the world, and its way from and to files."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discoseg.data.files import IMAGE_SUFFIXES, channel_of, channel_paths, file_of, image_suffix
from discoseg.data.orientation import axis_codes, require_codes, turn_array, turn_axes, turn_matrix
from discoseg.errors import UserError

METAIMAGE_SUFFIXES = (".mhd", ".mha")
TIFF_SUFFIXES = (".tif", ".tiff")
ROUNDING_VOX = 0.1  # headers round differently: this much apart is nothing to speak of
NEAREST_VOX = 0.55  # up to half a voxel apart (voxel centres against corners) no other voxel lies nearer
LABEL_ROUNDING = 1e-3  # a label value this near to a whole number is meant to be one


@dataclass(frozen=True, eq=False)
class Header:
    """The geometry as first met, before any turn, and what else its file said: for an exact way back."""

    affine: NDArray[np.float64]
    spacing_mm: tuple[float, float, float]  # (z, y, x)
    shape: tuple[int, ...]  # (z, y, x)
    nifti: Any = None  # nibabel's header
    itk: dict[str, tuple[float, ...]] | None = None  # SimpleITK's origin, spacing and direction
    nrrd: tuple[float, ...] | None = None  # steps of the axes in LPS+ mm, 3 each, of which a NRRD file consists


@dataclass(frozen=True, eq=False)
class Volume:
    """Voxels with their geometry.

    `array` is (z, y, x): the file's axes, reversed. `affine` maps voxel (x, y, z) to world RAS+ mm.
    `spacing_mm` is (z, y, x) and comes from the header's own entry: some affines (ACDC's) tell another one.
    """

    array: NDArray
    affine: NDArray[np.float64]
    spacing_mm: tuple[float, float, float]
    header: Header | None = None

    def __post_init__(self) -> None:
        assert self.array.ndim == 3, f"a volume has three axes, not {self.array.ndim}"
        assert self.affine.shape == (4, 4)

    @property
    def shape(self) -> tuple[int, ...]:
        """(z, y, x)."""
        return self.array.shape

    @property
    def orientation(self) -> str:
        """Where the axes x, y, z point to, such as "LPS"."""
        return axis_codes(self.affine)

    @property
    def voxel_ml(self) -> float:
        """One voxel's volume in millilitres, by `spacing_mm`."""
        return float(np.prod(self.spacing_mm)) / 1000.0

    def like(self, array: NDArray) -> "Volume":
        """Return other voxels of any dtype, (z, y, x), in the same geometry."""
        assert array.shape == self.shape, f"{array.shape} voxels do not fit a geometry of {self.shape}"
        return replace(self, array=array)

    def reoriented(self, codes: str) -> "Volume":
        """Flip and permute to the axis codes; every voxel keeps its world position.

        The geometry is always derived from the first one, so turning back returns the very same numbers.
        """
        require_codes(codes)
        now = self.orientation
        if codes == now:
            return self
        first = self.header
        if first is None or not same_geometry(self, _turned(first, now)):
            first = Header(self.affine, self.spacing_mm, self.shape)
        turned = _turned(first, codes)
        array = turn_array(self.array, now, codes)
        return Volume(array, turned.affine, turned.spacing_mm, header=first)


def _turned(first: Header, codes: str) -> Header:
    """Return the first geometry turned to the axis codes."""
    start = axis_codes(first.affine)
    if start == codes:
        return first
    axes = turn_axes(start, codes)
    x, y, z = (first.spacing_mm[::-1][axis] for axis in axes)
    return replace(
        first,
        affine=first.affine @ turn_matrix(start, codes, first.shape[::-1]),
        spacing_mm=(z, y, x),
        shape=tuple(first.shape[::-1][axis] for axis in axes)[::-1],
    )


def same_geometry(a: Volume | Header, b: Volume | Header) -> bool:
    """Return whether two geometries are equal to the last bit."""
    return a.shape == b.shape and a.spacing_mm == b.spacing_mm and np.array_equal(a.affine, b.affine)


def describe_mismatch(a: Volume, b: Volume) -> str | None:
    """Return what keeps `b` from lying voxel by voxel on `a`, in words; None when nothing does."""
    if a.shape != b.shape:
        return f"shape {format_shape(b.shape)} instead of {format_shape(a.shape)}"
    apart_mm = _corners(a) @ (b.affine - a.affine).T  # (corner, 4)
    apart_vox = np.linalg.solve(a.affine[:3, :3], apart_mm[:, :3].T)
    if np.abs(apart_vox).max() > NEAREST_VOX:
        return f"another affine: voxels lie up to {np.linalg.norm(apart_mm, axis=1).max():.3g} mm apart"
    return None


def offset_mm(a: Volume, b: Volume) -> float:
    """Return how far apart the affines put the same voxel of two volumes of one shape at most; 0 within rounding."""
    apart_mm = float(np.linalg.norm(_corners(a) @ (b.affine - a.affine).T, axis=1).max())
    edge_mm = np.linalg.norm(a.affine[:3, :3], axis=0).min()
    return apart_mm if apart_mm > ROUNDING_VOX * edge_mm else 0.0


def describe_displaced(path: Path, image_path: Path, mismatch: str) -> str:
    """Return what to do about a file that does not lie on its image (:func:`describe_mismatch`), in one line."""
    return f"{path} does not lie on its image {image_path.name}: {mismatch}; resample it, or correct its header"


def turn_onto(volume: Volume, image: Volume) -> Volume:
    """Return a label map or channel in the orientation of its image, unless it lies on the image as it is."""
    return volume if describe_mismatch(image, volume) is None else volume.reoriented(image.orientation)


def _corners(volume: Volume) -> NDArray[np.float64]:
    """Return the (8, 4) voxel indices (x, y, z, 1) of the corners of a volume."""
    corners = np.array([[x, y, z, 1] for x in (0, 1) for y in (0, 1) for z in (0, 1)], dtype=float)
    corners[:, :3] *= np.array(volume.shape[::-1]) - 1
    return corners


def describe_bad_voxels(image: Volume) -> str | None:
    """Return what makes an image useless, in words (NaN, infinite, constant voxels); None if nothing does."""
    bad = int(image.array.size - np.count_nonzero(np.isfinite(image.array)))
    if bad:
        return f"{bad} NaN or infinite voxels"
    low, high = image.array.min(), image.array.max()
    return f"constant image: every voxel is {low:g}" if low == high else None


def format_shape(shape: tuple[int, ...]) -> str:
    """Write a (z, y, x) shape in the order of the file, x first, as viewers show it.

    >>> format_shape((10, 256, 216))
    '216×256×10'
    """
    return "×".join(str(n) for n in reversed(shape))


def read_volume(path: Path | str) -> Volume:
    """Read an image file; trailing axes of length 1 are dropped, a 2D image becomes one slice.

    A file of several channels (a 4D NIfTI file, a coloured picture) is read one by one: `scan.nii.gz[0]` is the first.
    """
    path = Path(path)
    suffix = _require_image_file(path)
    if suffix.startswith(".nii"):
        from discoseg.data.nifti import read_nifti as read
    elif suffix in METAIMAGE_SUFFIXES:
        from discoseg.data.metaimage import read_metaimage as read
    elif suffix in TIFF_SUFFIXES:
        from discoseg.data.tiff import read_tiff as read
    else:
        from discoseg.data.raster import read_raster as read
    volume = read(path)
    _require_place(path, volume.affine)
    return volume


def read_geometry(path: Path | str) -> Volume:
    """Return a volume with the geometry of the one that :func:`read_volume` reads, from the file's header alone.

    Its voxels are all 0 and take no memory.
    """
    path = Path(path)
    suffix = _require_image_file(path)
    if suffix.startswith(".nii"):
        from discoseg.data.nifti import read_nifti_geometry as read
    elif suffix in TIFF_SUFFIXES:
        from discoseg.data.tiff import read_tiff_geometry as read
    else:
        from discoseg.data.itk import read_itk_geometry as read
    header = read(path)
    _require_place(path, header.affine)
    return Volume(np.broadcast_to(np.uint8(0), header.shape), header.affine, header.spacing_mm, header)


def _require_place(path: Path, affine: NDArray[np.float64]) -> None:
    if not np.isfinite(affine).all() or np.linalg.matrix_rank(affine) < 4:
        raise UserError(f"{path}: its affine is singular, so its voxels have no place in the world")


def read_label_map(path: Path | str) -> Volume:
    """Read a label map; where a scaled header (scl_slope) leaves 1.00000002, the value is 1."""
    volume = read_volume(path)
    if volume.array.dtype.kind == "f" and np.isfinite(volume.array).all():
        whole = np.rint(volume.array)
        if np.abs(volume.array - whole).max() < LABEL_ROUNDING:
            return volume.like(whole)
    return volume


def choose_channel(path: Path, shape: tuple[int, ...], channels: int) -> int:
    """Return which channel of a file with this shape (x, y, z, …) a path names; a bare one needs a file of one."""
    channel = channel_of(path)
    if channels > 1 and channel is None:
        raise UserError(
            f"{path} has {channels} channels or time points ({format_shape(shape[::-1])}): one 2D or 3D image is "
            f"needed; {path.name}[0] names the first"
        )
    if channel is not None and channel >= channels:
        raise UserError(f"{path}: channels are counted from 0, and {file_of(path).name} has {channels}")
    return channel or 0


def read_orientation(path: Path) -> str:
    """Return where the axes of a file point to, such as "LPS", from its header alone."""
    return axis_codes(_read_header(path)[0])


def count_channels(path: Path) -> int:
    """Return how many channels a file has, by its header alone."""
    return _read_header(path)[1]


def list_channels(path: Path) -> tuple[Path, ...]:
    """Return a path for each channel of a file, by its header alone."""
    try:
        return channel_paths(path, count_channels(path))
    except UserError:  # whoever reads its voxels says why
        return (path,)


def _read_header(path: Path) -> tuple[NDArray[np.float64], int]:
    suffix = _require_image_suffix(path)
    if suffix.startswith(".nii"):
        from discoseg.data.nifti import read_nifti_header as read
    elif suffix in TIFF_SUFFIXES:
        from discoseg.data.tiff import read_tiff_header as read
    else:
        from discoseg.data.itk import read_itk_header as read
    return read(file_of(path))


def write_volume(path: Path | str, volume: Volume) -> None:
    """Write a volume in the format its name asks for, all or nothing; bool becomes uint8, float16 float32."""
    path = Path(path)
    suffix = _require_image_suffix(path)
    stored = {np.dtype(bool): np.uint8, np.dtype(np.float16): np.float32}.get(volume.array.dtype)
    if stored is not None:
        volume = volume.like(volume.array.astype(stored))
    if suffix.startswith(".nii"):
        from discoseg.data.nifti import write_nifti as write
    elif suffix in METAIMAGE_SUFFIXES:
        from discoseg.data.metaimage import write_metaimage as write
    else:
        from discoseg.data.raster import write_raster as write
    write(path, volume)


def _require_image_file(path: Path) -> str:
    suffix = _require_image_suffix(path)
    if not file_of(path).is_file():
        raise UserError(f"{path} is not a file" if file_of(path).exists() else f"{path} does not exist")
    return suffix


def _require_image_suffix(path: Path) -> str:
    suffix = image_suffix(path)
    if not suffix:
        raise UserError(f"{path} is no image: its name must end in one of {', '.join(IMAGE_SUFFIXES)}")
    return suffix
