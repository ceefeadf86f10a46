"""Pictures are volumes of one slice, their colours channels; NRRD files are tested with the other volumes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import SimpleITK
from numpy.typing import NDArray
from PIL import Image

from discoseg.data.files import channel_of, channel_paths, file_of, list_images, strip_suffix
from discoseg.data.volume import Volume, count_channels, read_orientation, read_volume, write_volume
from discoseg.errors import UserError

SUFFIXES = [".png", ".tif", ".tiff"]
GREY = np.random.default_rng(0).integers(0, 255, (40, 32)).astype(np.uint8)
COLOUR = np.random.default_rng(1).integers(0, 255, (40, 32, 4)).astype(np.uint8)


def write_picture(path: Path, array: NDArray, spacing_mm: tuple[float, float] | None = None) -> Path:
    """Write (y, x) grey values or (y, x, 3 or 4) colours; the spacing is (x, y)."""
    image = SimpleITK.GetImageFromArray(array, isVector=array.ndim == 3)
    if spacing_mm is not None:
        image.SetSpacing(spacing_mm)
    SimpleITK.WriteImage(image, str(path))
    return path


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_a_grey_picture_is_one_slice(tmp_path: Path, suffix: str, dtype: str) -> None:
    path = write_picture(tmp_path / f"a{suffix}", GREY.astype(dtype))
    volume = read_volume(path)
    np.testing.assert_array_equal(volume.array, GREY[None])
    assert volume.array.dtype == np.dtype(dtype)
    assert volume.spacing_mm == pytest.approx((1.0, 1.0, 1.0))  # TIFF rounds it
    assert volume.orientation == read_orientation(path) == "LPS"
    assert count_channels(path) == 1


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_pictures_own_spacing_counts(tmp_path: Path, suffix: str) -> None:
    volume = read_volume(write_picture(tmp_path / f"a{suffix}", GREY, (0.5, 0.7)))
    assert volume.spacing_mm == pytest.approx((1.0, 0.7, 0.5))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_colours_are_channels(tmp_path: Path, suffix: str) -> None:
    path = write_picture(tmp_path / f"a{suffix}", COLOUR[..., :3])
    assert count_channels(path) == 3
    for number, channel in enumerate(channel_paths(path, 3)):
        np.testing.assert_array_equal(read_volume(channel).array, COLOUR[None, ..., number])
    with pytest.raises(UserError, match=rf"a{suffix} has 3 channels .*32×40.*a{suffix}\[0\]"):
        read_volume(path)


def test_a_pngs_opacity_is_no_channel(tmp_path: Path) -> None:
    path = write_picture(tmp_path / "a.png", COLOUR)
    assert count_channels(path) == 3
    np.testing.assert_array_equal(read_volume(tmp_path / "a.png[2]").array, COLOUR[None, ..., 2])
    Image.fromarray(COLOUR[..., :2]).save(tmp_path / "grey.png")
    with pytest.raises(UserError, match=r"grey\.png: grey with opacity is not read; save it without opacity$"):
        read_volume(tmp_path / "grey.png")


def test_a_tiff_of_several_pages_is_a_volume(tmp_path: Path) -> None:
    stack = np.arange(3 * 40 * 32, dtype=np.uint16).reshape(3, 40, 32)
    SimpleITK.WriteImage(SimpleITK.GetImageFromArray(stack), str(tmp_path / "a.tif"))
    np.testing.assert_array_equal(read_volume(tmp_path / "a.tif").array, stack)


def test_a_tiffs_opacity_is_no_channel(tmp_path: Path) -> None:
    Image.fromarray(COLOUR[..., :2]).save(tmp_path / "a.tif")
    assert count_channels(tmp_path / "a.tif") == 1
    np.testing.assert_array_equal(read_volume(tmp_path / "a.tif").array, COLOUR[None, ..., 0])


def test_tiff_files_that_are_not_read_are_not_called_damaged(tmp_path: Path) -> None:
    write_picture(tmp_path / "deep.tif", COLOUR[..., :3].astype(np.uint16) * 257)
    write_picture(tmp_path / "two.tif", COLOUR[..., :2])
    Image.fromarray(GREY).save(tmp_path / "jpeg.tif", compression="jpeg")
    Image.fromarray(GREY > 100).save(tmp_path / "fax.tif", compression="group4")
    reasons = {
        "deep": "colours of 16 bits are not read; save it as .nii.gz or .nrrd",
        "two": "pixels of a kind that cannot be read; save it as .nii.gz or .nrrd",
        "jpeg": "JPEG compression is not read; save it with LZW or deflate",
        "fax": "CCITT compression is not read; save it with LZW or deflate",
    }
    for name, reason in reasons.items():
        for read in (read_volume, read_orientation):
            with pytest.raises(UserError) as caught:
                read(tmp_path / f"{name}.tif")
            assert str(caught.value) == f"{tmp_path / name}.tif: {reason}"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_label_map_written_like_its_picture_lies_on_it(tmp_path: Path, suffix: str) -> None:
    image = read_volume(write_picture(tmp_path / f"a{suffix}", GREY, (0.5, 0.7)))
    label = (GREY[None] > 100).astype(np.uint8)
    for codes in ("LPS", "SRA"):  # there and back
        turned = image.like(label).reoriented(codes).reoriented("LPS")
        write_volume(tmp_path / f"b{suffix}", turned)
        again = read_volume(tmp_path / f"b{suffix}")
        np.testing.assert_array_equal(again.array, label)
        np.testing.assert_allclose(again.affine, image.affine, rtol=1e-6)
    write_volume(tmp_path / "b.nii.gz", image.like(label))
    np.testing.assert_allclose(read_volume(tmp_path / "b.nii.gz").affine, image.affine, rtol=1e-6)


def test_what_a_picture_cannot_hold_is_refused(tmp_path: Path) -> None:
    def volume(dtype: str, slices: int = 1) -> Volume:
        return Volume(np.zeros((slices, 4, 5), dtype), np.diag([-1.0, -1.0, 1.0, 1.0]), (1.0, 1.0, 1.0))

    for bad in (volume("float32"), volume("uint8", slices=2), volume("int16")):
        with pytest.raises(UserError, match=r"cannot write .*a\.png: a PNG holds one slice of uint8 or uint16; use"):
            write_volume(tmp_path / "a.png", bad)
    with pytest.raises(UserError, match=r"^cannot write [^\n]*a\.tif: [^\n]*float64 voxels$"):
        write_volume(tmp_path / "a.tif", volume("float64"))
    with pytest.raises(UserError, match=r"^cannot write [^\n]*nowhere"):
        write_volume(tmp_path / "nowhere" / "a.png", volume("uint8"))
    assert list(tmp_path.iterdir()) == []
    write_volume(tmp_path / "a.tif", volume("float32"))
    assert read_volume(tmp_path / "a.tif").array.dtype == np.float32


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def no_image(path: Path) -> None:
    path.write_text("hello")


@pytest.mark.parametrize("suffix", [*SUFFIXES, ".nrrd"])
@pytest.mark.parametrize("damage", [cut, empty, no_image])
def test_a_damaged_file_is_named(tmp_path: Path, suffix: str, damage: Callable[[Path], None]) -> None:
    path = write_picture(tmp_path / f"broken{suffix}", GREY)
    damage(path)
    with pytest.raises(UserError, match=rf"broken{suffix} cannot be read[^\n]*$"):
        read_volume(path)


def test_channels_have_paths() -> None:
    first, second = channel_paths(Path("d/a.nii.gz"), 2)
    assert (first, second) == (Path("d/a.nii.gz[0]"), Path("d/a.nii.gz[1]"))
    assert (file_of(second), channel_of(second), strip_suffix(second)) == (Path("d/a.nii.gz"), 1, "a")
    assert channel_paths(Path("a.nii"), 1) == (Path("a.nii"),)
    assert channel_of(Path("a[1].nii")) is None


def test_pictures_beside_volumes_are_previews(tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "._a.png"):
        (tmp_path / name).touch()
    assert [path.name for path in list_images(tmp_path)] == ["a.png", "b.png"]
    (tmp_path / "a.nii.gz").touch()
    assert [path.name for path in list_images(tmp_path)] == ["a.nii.gz"]
