"""A 3D image or label map with its place in the world, and its way from and to NIfTI and MetaImage files."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discoseg.data.files import IMAGE_SUFFIXES, image_suffix
from discoseg.data.orientation import axis_codes, require_codes, turn_array, turn_axes, turn_matrix
from discoseg.errors import UserError

# Images and their label maps may lie this part of a voxel edge apart: headers round differently.
AFFINE_TOLERANCE_VOX = 0.1


@dataclass(frozen=True, eq=False)
class Header:
    """The geometry as first met, before any turn, and what else its file said: for an exact way back."""

    affine: NDArray[np.float64]
    spacing_mm: tuple[float, float, float]  # (z, y, x)
    shape: tuple[int, ...]  # (z, y, x)
    nifti: Any = None  # nibabel's header
    metaimage: dict[str, tuple[float, ...]] | None = None  # SimpleITK's origin, spacing and direction


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
    corners = np.array([[x, y, z, 1] for x in (0, 1) for y in (0, 1) for z in (0, 1)], dtype=float)
    corners[:, :3] *= np.array(a.shape[::-1]) - 1
    apart_mm = np.linalg.norm(corners @ (a.affine - b.affine).T, axis=1).max()
    edge_mm = np.linalg.norm(a.affine[:3, :3], axis=0).min()
    if apart_mm > AFFINE_TOLERANCE_VOX * edge_mm:
        return f"another affine: voxels lie up to {apart_mm:.3g} mm apart"
    return None


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
    """Read a NIfTI or MetaImage file; trailing axes of length 1 are dropped, a 2D image becomes one slice."""
    path = Path(path)
    suffix = _require_image_suffix(path)
    if not path.is_file():
        raise UserError(f"{path} does not exist" if not path.exists() else f"{path} is not a file")
    if suffix.startswith(".nii"):
        from discoseg.data.nifti import read_nifti as read
    else:
        from discoseg.data.metaimage import read_metaimage as read
    volume = read(path)
    if not np.isfinite(volume.affine).all() or np.linalg.matrix_rank(volume.affine) < 4:
        raise UserError(f"{path}: its affine is singular, so its voxels have no place in the world")
    return volume


def read_orientation(path: Path) -> str:
    """Return where the axes of a file point to, such as "LPS", from its header alone where it is NIfTI."""
    if _require_image_suffix(path).startswith(".nii"):
        from discoseg.data.nifti import read_affine

        return axis_codes(read_affine(path))
    return read_volume(path).orientation


def write_volume(path: Path | str, volume: Volume) -> None:
    """Write a volume in the format its name asks for, all or nothing; bool becomes uint8, float16 float32."""
    path = Path(path)
    suffix = _require_image_suffix(path)
    stored = {np.dtype(bool): np.uint8, np.dtype(np.float16): np.float32}.get(volume.array.dtype)
    if stored is not None:
        volume = volume.like(volume.array.astype(stored))
    if suffix.startswith(".nii"):
        from discoseg.data.nifti import write_nifti as write
    else:
        from discoseg.data.metaimage import write_metaimage as write
    write(path, volume)


def _require_image_suffix(path: Path) -> str:
    suffix = image_suffix(path)
    if not suffix:
        raise UserError(f"{path} is no image: its name must end in one of {', '.join(IMAGE_SUFFIXES)}")
    return suffix
