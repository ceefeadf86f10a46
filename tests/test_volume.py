"""Volumes keep every voxel where it is: through files, formats and turns."""

import gzip
import os
from collections.abc import Callable
from itertools import permutations, product
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import SimpleITK
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numpy.typing import DTypeLike, NDArray

from discoseg.data.orientation import axis_codes
from discoseg.data.volume import (
    Volume,
    count_channels,
    describe_bad_voxels,
    describe_mismatch,
    offset_mm,
    read_geometry,
    read_label_map,
    read_orientation,
    read_volume,
    same_geometry,
    turn_onto,
    write_volume,
)
from discoseg.errors import UserError

ALL_CODES = [
    "".join(pair[up] for pair, up in zip(axes, ups, strict=True))
    for axes in permutations(("LR", "PA", "IS"))
    for ups in product((0, 1), repeat=3)
]
DTYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64"]
SUFFIXES = [".nii.gz", ".nii", ".mhd", ".mha", ".nrrd"]

needs_data = pytest.mark.skipif("DISCOSEG_DATA" not in os.environ, reason="DISCOSEG_DATA is not set")
quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def rotation(seed: int) -> NDArray[np.float64]:
    """A random rotation matrix."""
    q, r = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))
    q = q * np.sign(np.diag(r))
    return q * np.linalg.det(q)


def make_volume(
    seed: int = 0,
    *,
    shape: tuple[int, int, int] = (4, 5, 6),
    dtype: DTypeLike = np.int16,
    spacing_mm: tuple[float, float, float] = (10.0, 1.5, 1.25),
    turned: bool = True,
) -> Volume:
    """Random voxels in a random place; the affine and the spacing agree."""
    rng = np.random.default_rng(seed)
    affine = np.eye(4)
    affine[:3, :3] = (rotation(seed) if turned else np.diag([-1.0, -1.0, 1.0])) * spacing_mm[::-1]
    affine[:3, 3] = rng.uniform(-300, 300, size=3)
    return Volume(rng.integers(0, 100, shape).astype(dtype), affine, spacing_mm)


def world_of_voxels(volume: Volume) -> dict[float, tuple[float, ...]]:
    """World position (rounded to a micrometre) of each voxel by its value; values must be distinct."""
    z, y, x = np.indices(volume.shape).reshape(3, -1)
    world = (volume.affine @ np.stack([x, y, z, np.ones_like(x)]))[:3].T.round(3) + 0.0
    return dict(zip(volume.array.ravel().tolist(), map(tuple, world.tolist()), strict=True))


def write_acdc_like(path: Path, array_xyz: NDArray, zooms: tuple[float, float, float]) -> None:
    """Write what ACDC has: an sform of diag(-1, -1, 1) and the true spacing in pixdim."""
    image = nibabel.Nifti1Image(array_xyz, np.diag([-1.0, -1.0, 1.0, 1.0]))
    image.header["pixdim"][1:4] = zooms
    nibabel.save(image, path)


def header_of(path: Path) -> list[Any]:
    image: Any = nibabel.load(path)
    h = image.header
    codes = [int(h["sform_code"]), int(h["qform_code"])]
    return [image.affine.tolist(), h["pixdim"].tolist(), codes, [float(h[f"quatern_{a}"]) for a in "bcd"]]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_voxels_and_geometry_survive_a_file(tmp_path: Path, suffix: str, dtype: str) -> None:
    volume = make_volume(dtype=dtype)
    write_volume(tmp_path / f"a{suffix}", volume)
    again = read_volume(tmp_path / f"a{suffix}")
    assert again.array.dtype == np.dtype(dtype)
    assert again.array.flags.c_contiguous
    np.testing.assert_array_equal(again.array, volume.array)
    np.testing.assert_allclose(again.affine, volume.affine, rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(again.spacing_mm, volume.spacing_mm, rtol=1e-6)
    write_volume(tmp_path / f"b{suffix}", again)
    third = read_volume(tmp_path / f"b{suffix}")
    assert same_geometry(third, again), "a file that was read is written with the very same geometry"


@pytest.mark.parametrize("world", ["left-posterior-superior", "RAS", "left-anterior-superior"])
def test_a_nrrd_file_keeps_its_directions_to_the_last_bit(tmp_path: Path, world: str) -> None:
    """SimpleITK alone loses a bit of some of them, of which ones depends on the processor."""
    rng = np.random.default_rng(0)
    for number in range(100):
        turn, _ = np.linalg.qr(rng.normal(size=(3, 3)))
        steps = turn * rng.uniform(0.3, 9, 3)
        vectors = " ".join(f"({','.join(repr(float(value)) for value in vector)})" for vector in steps.T)
        head = f"NRRD0004\ntype: uint8\ndimension: 3\nspace: {world}\nsizes: 4 3 2\nspace directions: {vectors}\n"
        (tmp_path / "a.nrrd").write_bytes(f"{head}encoding: raw\nspace origin: (1,2,3)\n\n".encode() + bytes(range(24)))
        first = read_volume(tmp_path / "a.nrrd")
        path = tmp_path / f"{number}.nrrd"
        write_volume(path, first.like(first.array + 1))
        again = read_volume(path)
        assert same_geometry(again, first)
        assert np.array_equal(again.array, first.array + 1)
        assert again.header is not None
        assert first.header is not None
        assert again.header.nrrd == first.header.nrrd
        assert same_geometry(read_geometry(path), first)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(("dtype", "stored"), [("bool", "uint8"), ("float16", "float32")])
def test_types_no_format_knows_are_widened(tmp_path: Path, suffix: str, dtype: str, stored: str) -> None:
    volume = make_volume(dtype=dtype)
    write_volume(tmp_path / f"a{suffix}", volume)
    again = read_volume(tmp_path / f"a{suffix}").array
    assert again.dtype == np.dtype(stored)
    np.testing.assert_array_equal(again, volume.array)


def test_axes_are_reversed_and_spacing_comes_from_pixdim(tmp_path: Path) -> None:
    array = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    write_acdc_like(tmp_path / "a.nii.gz", array, (1.5625, 1.25, 10.0))
    volume = read_volume(tmp_path / "a.nii.gz")
    assert volume.spacing_mm == (10.0, 1.25, 1.5625)
    assert volume.voxel_ml == pytest.approx(10.0 * 1.25 * 1.5625 / 1000)
    assert volume.orientation == "LPS"
    np.testing.assert_array_equal(volume.array, array.T)


@pytest.mark.parametrize(
    ("zooms", "expected"), [((1, 1, 1), (8, 3, 2)), ((0, 2, 8), (8, 3, 2)), ((5, 1, 1), (1, 1, 5))]
)
def test_spacing_falls_back_on_the_affine(
    tmp_path: Path, zooms: tuple[float, float, float], expected: tuple[float, float, float]
) -> None:
    image = nibabel.Nifti1Image(np.zeros((2, 3, 4), np.uint8), None)
    image.header.set_sform(np.diag([2.0, 3.0, 8.0, 1.0]), 1)
    image.header["pixdim"][1:4] = zooms
    nibabel.save(image, tmp_path / "a.nii")
    volume = read_volume(tmp_path / "a.nii")
    assert volume.spacing_mm == expected
    write_volume(tmp_path / "b.nii", volume)
    assert same_geometry(read_volume(tmp_path / "b.nii"), volume)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int16"])
def test_a_map_written_like_its_image_has_the_images_header(tmp_path: Path, dtype: str) -> None:
    write_acdc_like(tmp_path / "image.nii.gz", np.ones((3, 4, 5), np.int16), (1.5625, 1.5625, 10.0))
    image = read_volume(tmp_path / "image.nii.gz")
    write_volume(tmp_path / "map.nii.gz", image.like(np.ones(image.shape, dtype)))
    assert header_of(tmp_path / "map.nii.gz") == header_of(tmp_path / "image.nii.gz")
    assert read_volume(tmp_path / "map.nii.gz").array.dtype == np.dtype(dtype)


def test_different_sform_and_qform_survive(tmp_path: Path) -> None:
    image = nibabel.Nifti1Image(np.ones((3, 4, 5), np.uint8), None)
    image.header.set_qform(make_volume(1).affine, 1)
    image.header.set_sform(make_volume(2).affine, 4)
    nibabel.save(image, tmp_path / "a.nii.gz")
    write_volume(tmp_path / "b.nii.gz", read_volume(tmp_path / "a.nii.gz"))
    assert header_of(tmp_path / "b.nii.gz") == header_of(tmp_path / "a.nii.gz")


def test_a_header_without_any_affine_survives(tmp_path: Path) -> None:
    image = nibabel.Nifti1Image(np.ones((3, 4, 5), np.uint8), None)
    image.header["pixdim"][1:4] = (0.7, 0.7, 3.3)
    nibabel.save(image, tmp_path / "a.nii")
    write_volume(tmp_path / "b.nii", read_volume(tmp_path / "a.nii"))
    assert header_of(tmp_path / "b.nii") == header_of(tmp_path / "a.nii")


def test_scl_slope_scales_an_image_but_not_its_labels(tmp_path: Path) -> None:
    image = nibabel.Nifti1Image(np.arange(24, dtype=np.int16).reshape(2, 3, 4), np.eye(4))
    image.header.set_slope_inter(0.5, -3.0)
    nibabel.save(image, tmp_path / "a.nii")
    with (tmp_path / "a.nii").open("rb+") as file:  # nibabel chooses its own slope while saving
        file.seek(112)
        file.write(np.array([0.5, -3.0], "<f4").tobytes())
        stored = np.frombuffer((tmp_path / "a.nii").read_bytes()[352:], "<i2")
    volume = read_volume(tmp_path / "a.nii")
    np.testing.assert_allclose(volume.array.T.ravel(order="F"), stored * 0.5 - 3.0)
    labels = np.arange(24).reshape(volume.shape).astype(np.uint8)
    write_volume(tmp_path / "b.nii", volume.like(labels))
    np.testing.assert_array_equal(read_volume(tmp_path / "b.nii").array, labels)


def test_big_endian_voxels_become_native(tmp_path: Path) -> None:
    header = nibabel.Nifti1Header(endianness=">")
    array = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    header.set_data_dtype(np.int16)
    nibabel.save(nibabel.Nifti1Image(array, np.eye(4), header), tmp_path / "a.nii")
    volume = read_volume(tmp_path / "a.nii")
    assert volume.array.dtype.isnative
    np.testing.assert_array_equal(volume.array, array.T)


def test_nifti_2_stays_nifti_2(tmp_path: Path) -> None:
    nibabel.save(nibabel.Nifti2Image(np.arange(24, dtype=np.uint8).reshape(2, 3, 4), np.eye(4)), tmp_path / "a.nii.gz")
    volume = read_volume(tmp_path / "a.nii.gz")
    write_volume(tmp_path / "b.nii.gz", volume)
    assert isinstance(nibabel.load(tmp_path / "b.nii.gz"), nibabel.Nifti2Image)
    np.testing.assert_array_equal(read_volume(tmp_path / "b.nii.gz").array, volume.array)


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 5, 1), (3, 4, 5, 1, 1)])
def test_nifti_of_other_dimensions_that_is_one_volume(tmp_path: Path, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.int16).reshape(shape)
    nibabel.save(nibabel.Nifti1Image(array, np.diag([2.0, 2.0, 5.0, 1.0])), tmp_path / "a.nii.gz")
    volume = read_volume(tmp_path / "a.nii.gz")
    assert volume.shape == (shape[2] if len(shape) > 2 else 1, 4, 3)
    assert volume.spacing_mm[1:] == (2.0, 2.0)
    np.testing.assert_array_equal(volume.array.ravel(), array.ravel(order="F"))
    write_volume(tmp_path / "b.nii.gz", volume)
    assert same_geometry(read_volume(tmp_path / "b.nii.gz"), volume)


@pytest.mark.parametrize("size", [(3, 4), (3, 4, 5, 1)])
def test_metaimage_of_other_dimensions_that_is_one_volume(tmp_path: Path, size: tuple[int, ...]) -> None:
    image = SimpleITK.Image(size, SimpleITK.sitkUInt8)
    image.SetSpacing([0.5, 0.7, 3.0, 1.0][: len(size)])
    SimpleITK.WriteImage(image, str(tmp_path / "a.mha"))
    volume = read_volume(tmp_path / "a.mha")
    assert volume.shape == ((5 if len(size) > 2 else 1), 4, 3)
    assert volume.spacing_mm == ((3.0 if len(size) > 2 else 1.0), 0.7, 0.5)


def test_metaimage_geometry_is_exact(tmp_path: Path) -> None:
    image = SimpleITK.GetImageFromArray(np.arange(24, dtype=np.int16).reshape(2, 3, 4))
    image.SetDirection(rotation(5).ravel().tolist())
    image.SetOrigin((-123.456789012345, 1 / 3, 1e-7))
    image.SetSpacing((1 / 3, 0.7, 10.123456789))
    SimpleITK.WriteImage(image, str(tmp_path / "a.mha"))
    for codes in ("LPS", "RAS", "ASR"):
        volume = read_volume(tmp_path / "a.mha")
        turned_back = volume.reoriented(codes).reoriented(volume.orientation)
        write_volume(tmp_path / "b.mhd", turned_back)
        again = SimpleITK.ReadImage(str(tmp_path / "b.mhd"))
        assert again.GetOrigin() == image.GetOrigin()
        assert again.GetSpacing() == image.GetSpacing()
        assert again.GetDirection() == image.GetDirection()


@quick
@given(seed=st.integers(0, 10_000), kinds=st.permutations([".nii.gz", ".mha"]))
def test_both_formats_agree_on_the_world(tmp_path: Path, seed: int, kinds: list[str]) -> None:
    volume = make_volume(seed)
    first, second = (tmp_path / f"{i}{suffix}" for i, suffix in enumerate(kinds))
    write_volume(first, volume)
    write_volume(second, read_volume(first))
    image = SimpleITK.ReadImage(str(tmp_path / f"{kinds.index('.mha')}.mha"))
    nifti: Any = nibabel.load(tmp_path / f"{kinds.index('.nii.gz')}.nii.gz")
    for x, y, z in ((0, 0, 0), (5, 0, 0), (0, 4, 0), (0, 0, 3), (5, 4, 3)):
        left, back, up = image.TransformIndexToPhysicalPoint((x, y, z))
        expected = volume.affine @ [x, y, z, 1]
        np.testing.assert_allclose([-left, -back, up], expected[:3], atol=1e-3)
        np.testing.assert_allclose(nifti.affine @ [x, y, z, 1], expected, atol=1e-3)
        assert image[x, y, z] == nifti.dataobj[x, y, z] == volume.array[z, y, x]


def test_simpleitk_reads_our_nifti_as_nibabel_does(tmp_path: Path) -> None:
    volume = make_volume(3)
    write_volume(tmp_path / "a.nii.gz", volume)
    image = SimpleITK.ReadImage(str(tmp_path / "a.nii.gz"))
    left, back, up = image.TransformIndexToPhysicalPoint((5, 4, 3))
    np.testing.assert_allclose([-left, -back, up], (volume.affine @ [5, 4, 3, 1])[:3], atol=1e-3)
    np.testing.assert_allclose(image.GetSpacing(), volume.spacing_mm[::-1], rtol=1e-6)


def test_metaimage_gets_the_spacing_where_the_affine_tells_another(tmp_path: Path) -> None:
    write_acdc_like(tmp_path / "a.nii.gz", np.ones((3, 4, 5), np.int16), (1.5625, 1.5625, 10.0))
    write_volume(tmp_path / "a.mha", read_volume(tmp_path / "a.nii.gz"))
    volume = read_volume(tmp_path / "a.mha")
    assert volume.spacing_mm == (10.0, 1.5625, 1.5625)
    assert volume.orientation == "LPS"


def test_codes_are_nibabels() -> None:
    for seed in range(48):
        affine = make_volume(turned=False).reoriented(ALL_CODES[seed]).affine
        affine[:3, :3] += np.random.default_rng(seed).uniform(-0.3, 0.3, (3, 3))
        assert axis_codes(affine) == "".join(nibabel.aff2axcodes(affine)) == ALL_CODES[seed]


@quick
@given(seed=st.integers(0, 10_000), codes=st.sampled_from(ALL_CODES), turned=st.booleans())
def test_turning_keeps_every_voxel_in_its_place(seed: int, codes: str, turned: bool) -> None:
    volume = make_volume(seed, turned=turned)
    volume = volume.like(np.arange(volume.array.size).reshape(volume.shape))
    other = volume.reoriented(codes)
    assert other.orientation == codes
    assert world_of_voxels(other) == world_of_voxels(volume)
    edges = np.linalg.norm(other.affine[:3, :3], axis=0)
    np.testing.assert_allclose(edges[::-1], other.spacing_mm)


@quick
@given(seed=st.integers(0, 10_000), path=st.lists(st.sampled_from(ALL_CODES), max_size=4))
def test_turning_back_is_exact(seed: int, path: list[str]) -> None:
    volume = make_volume(seed)
    other = volume
    for codes in path:
        other = other.reoriented(codes)
    back = other.reoriented(volume.orientation)
    assert same_geometry(back, volume)
    np.testing.assert_array_equal(back.array, volume.array)


@pytest.mark.parametrize("degrees", [45, 135, 225])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_tie_between_codes_is_broken_alike_after_a_turn(degrees: int, axis: int) -> None:
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    turn = np.insert(np.insert(np.array([[c, -s], [s, c]]), axis, 0, axis=0), axis, 0, axis=1)
    turn[axis, axis] = 1
    affine = np.eye(4)
    affine[:3, :3] = turn
    volume = Volume(np.arange(24).reshape(2, 3, 4), affine, (1.0, 1.0, 1.0))
    for codes in ALL_CODES:
        other = volume.reoriented(codes)
        assert other.orientation == codes
        assert same_geometry(other.reoriented(volume.orientation), volume)


@pytest.mark.parametrize("suffix", [".nii.gz", ".mha"])
@pytest.mark.parametrize("codes", ["RAS", "SAL", "PIR"])
def test_a_turned_volume_is_written_as_it_is(tmp_path: Path, suffix: str, codes: str) -> None:
    volume = make_volume(7)
    volume = volume.like(np.arange(volume.array.size, dtype=np.int16).reshape(volume.shape))
    write_volume(tmp_path / f"a{suffix}", volume)
    turned = read_volume(tmp_path / f"a{suffix}").reoriented(codes)
    write_volume(tmp_path / f"b{suffix}", turned)
    again = read_volume(tmp_path / f"b{suffix}")
    assert again.orientation == codes
    np.testing.assert_allclose(again.affine, turned.affine, atol=1e-4)
    np.testing.assert_array_equal(again.array, turned.array)
    np.testing.assert_allclose(again.spacing_mm, turned.spacing_mm, rtol=1e-6)


def test_a_turned_acdc_volume_keeps_affine_and_spacing_apart(tmp_path: Path) -> None:
    write_acdc_like(tmp_path / "a.nii.gz", np.ones((3, 4, 5), np.int16), (1.5, 1.25, 10.0))
    write_volume(tmp_path / "b.nii.gz", read_volume(tmp_path / "a.nii.gz").reoriented("SRA"))
    volume = read_volume(tmp_path / "b.nii.gz")
    assert volume.spacing_mm == (1.25, 1.5, 10.0)
    assert volume.orientation == "SRA"
    np.testing.assert_array_equal(np.linalg.norm(volume.affine[:3, :3], axis=0), [1, 1, 1])


def test_another_geometry_under_an_old_header_counts(tmp_path: Path) -> None:
    write_volume(tmp_path / "a.nii.gz", make_volume(1))
    old = read_volume(tmp_path / "a.nii.gz")
    moved = Volume(old.array[:2], old.affine @ np.diag([2.0, 1, 1, 1]), (10.0, 1.5, 2.5), header=old.header)
    write_volume(tmp_path / "b.nii.gz", moved.reoriented("RAS").reoriented(moved.orientation))
    again = read_volume(tmp_path / "b.nii.gz")
    np.testing.assert_allclose(again.affine, moved.affine, atol=1e-4)
    assert again.spacing_mm == (10.0, 1.5, 2.5)


@pytest.mark.parametrize("codes", ["LP", "LPL", "XYZ", "LPSA", ""])
def test_unknown_codes_are_refused(codes: str) -> None:
    with pytest.raises(UserError, match="orientation"):
        make_volume().reoriented(codes)


def cut_gzip(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2000])


def cut_content(path: Path) -> None:
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-100]))


def spoil_gzip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 400] = b"\xff" * 400
    path.write_bytes(data)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def no_image(path: Path) -> None:
    path.write_text("hello")


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [cut_gzip, cut_content, spoil_gzip, empty, no_image, remove])
def test_a_damaged_nifti_is_named(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = tmp_path / "broken.nii.gz"
    write_volume(path, make_volume(shape=(10, 20, 30)))
    damage(path)
    with pytest.raises(UserError, match=r"broken\.nii\.gz [^\n]*$"):
        read_volume(path)


@pytest.mark.parametrize("kept_bytes", [0, 100, 351, 352, 1000])
def test_a_truncated_plain_nifti_is_named(tmp_path: Path, kept_bytes: int) -> None:
    path = tmp_path / "broken.nii"
    write_volume(path, make_volume(shape=(10, 20, 30)))
    path.write_bytes(path.read_bytes()[:kept_bytes])
    with pytest.raises(UserError, match=r"broken\.nii [^\n]*$"):
        read_volume(path)


@quick
@given(offset=st.integers(0, 351), value=st.binary(min_size=1, max_size=8))
@example(offset=81, value=b"\x00\x81\x7f")  # a pixdim that is a signalling NaN
def test_a_spoilt_header_is_read_or_named(tmp_path: Path, offset: int, value: bytes) -> None:
    path = tmp_path / "broken.nii"
    write_volume(path, make_volume())
    data = bytearray(path.read_bytes())
    data[offset : offset + len(value)] = value
    path.write_bytes(data)
    try:
        volume = read_volume(path)
    except UserError:
        return
    assert volume.array.ndim == 3
    np.testing.assert_equal(geometry_of(read_geometry(path)), geometry_of(volume))


def geometry_of(volume: Volume) -> tuple[Any, ...]:
    assert volume.header is not None
    nifti = None if volume.header.nifti is None else volume.header.nifti.binaryblock
    return volume.shape, volume.spacing_mm, volume.affine, volume.header.itk, nifti


@pytest.mark.parametrize(
    "name", [*(f"a{suffix}" for suffix in SUFFIXES), "a.tif", "a.png", "flat.nii", "two.nii.gz[1]"]
)
def test_the_geometry_is_known_from_the_header_alone(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "two.nii.gz[1]":
        affine = np.diag([2.0, 2.0, 5.0, 1.0])
        nibabel.save(nibabel.Nifti1Image(np.ones((3, 4, 5, 2), np.int16), affine), tmp_path / "two.nii.gz")
    elif name == "flat.nii":
        nibabel.save(nibabel.Nifti1Image(np.ones((3, 4), np.int16), None), path)
    else:
        picture = name in ("a.png", "a.tif")
        write_volume(path, make_volume(shape=(1, 5, 6) if picture else (4, 5, 6), dtype=np.uint8))
    known = read_geometry(path)
    np.testing.assert_equal(geometry_of(known), geometry_of(read_volume(path)))
    assert not known.array.any()
    with pytest.raises(UserError, match="does not exist"):
        read_geometry(tmp_path / f"no-{name}")


def spoil_middle(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-60:-30] = b"\xff" * 30
    path.write_bytes(data)


def cut_end(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-50])


@pytest.mark.parametrize(
    ("suffix", "compressed", "damage"),
    [
        (".zraw", True, cut_end),
        (".zraw", True, spoil_middle),
        (".zraw", True, remove),
        (".raw", False, cut_end),
        (".raw", False, remove),
        (".mhd", True, no_image),
        (".mhd", True, empty),
        (".mha", True, cut_end),
        (".mha", True, spoil_middle),
        (".mha", False, cut_end),
        (".mha", False, no_image),
    ],
)
def test_a_damaged_metaimage_is_named(
    tmp_path: Path, suffix: str, compressed: bool, damage: Callable[[Path], None]
) -> None:
    path = tmp_path / ("broken.mha" if suffix == ".mha" else "broken.mhd")
    SimpleITK.WriteImage(SimpleITK.GetImageFromArray(make_volume().array), str(path), compressed)
    damage(tmp_path / f"broken{suffix}")
    with pytest.raises(UserError, match=rf"{path.name} cannot be read[^\n]*$"):
        read_volume(path)


def test_what_is_no_single_volume_is_refused(tmp_path: Path) -> None:
    nibabel.save(nibabel.Nifti1Image(np.zeros((2, 3, 4, 5), np.int16), np.eye(4)), tmp_path / "cine.nii.gz")
    nibabel.save(nibabel.Nifti1Image(np.zeros((2, 3, 4), np.complex64), np.eye(4)), tmp_path / "complex.nii.gz")
    SimpleITK.WriteImage(SimpleITK.Image((2, 3, 4, 5), SimpleITK.sitkUInt8), str(tmp_path / "cine.mha"))
    SimpleITK.WriteImage(SimpleITK.Image((2, 3, 4), SimpleITK.sitkVectorUInt8, 3), str(tmp_path / "rgb.mha"))
    (tmp_path / "photo.png").touch()
    (tmp_path / "folder.nii").mkdir()
    for name in ("cine.nii.gz", "complex.nii.gz", "cine.mha", "rgb.mha", "photo.png", "folder.nii"):
        with pytest.raises(UserError, match=name):
            read_volume(tmp_path / name)


def write_channels(path: Path, channels: NDArray) -> None:
    """Write (channel, z, y, x) voxels as the format has them: NIfTI as a fourth axis, the others as components."""
    if path.name.endswith(".nii.gz"):
        nibabel.save(nibabel.Nifti1Image(channels.T, np.diag([-2.0, -2.0, 5.0, 1.0])), path)
    else:
        image = SimpleITK.GetImageFromArray(np.moveaxis(channels, 0, -1), isVector=True)
        image.SetSpacing((2.0, 2.0, 5.0))
        SimpleITK.WriteImage(image, str(path))


@pytest.mark.parametrize("suffix", [".nii.gz", ".mha", ".nrrd"])
def test_channels_of_one_file_are_read_one_by_one(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    channels = np.arange(3 * 4 * 5 * 6, dtype=np.int16).reshape(3, 4, 5, 6)
    write_channels(path, channels)
    assert count_channels(path) == 3
    for number, channel in enumerate(channels):
        volume = read_volume(tmp_path / f"a{suffix}[{number}]")
        np.testing.assert_array_equal(volume.array, channel)
        assert (volume.spacing_mm, volume.orientation) == ((5.0, 2.0, 2.0), "LPS")
        assert read_orientation(tmp_path / f"a{suffix}[{number}]") == "LPS"
    write_volume(tmp_path / f"b{suffix}", volume)
    assert same_geometry(read_volume(tmp_path / f"b{suffix}"), volume)
    with pytest.raises(UserError, match=rf"a{suffix} has 3 channels .*6×5×4.*; a{suffix}\[0\] names the first$"):
        read_volume(path)
    with pytest.raises(UserError, match=rf"a{suffix}\[3\]: channels are counted from 0, and a{suffix} has 3$"):
        read_volume(tmp_path / f"a{suffix}[3]")
    with pytest.raises(UserError, match=r"c\.mha\[0\] does not exist"):
        read_volume(tmp_path / "c.mha[0]")


def test_a_truncated_file_of_several_channels_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.nii"
    nibabel.save(nibabel.Nifti1Image(np.zeros((6, 5, 4, 3), np.int16), np.eye(4)), path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UserError, match=r"broken\.nii\[2\] cannot be read[^\n]*$"):
        read_volume(tmp_path / "broken.nii[2]")


def test_simpleitks_vector_nifti_has_channels_too(tmp_path: Path) -> None:
    image = SimpleITK.GetImageFromArray(np.arange(24, dtype=np.int16).reshape(2, 2, 3, 2), isVector=True)
    SimpleITK.WriteImage(image, str(tmp_path / "a.nii"))
    assert count_channels(tmp_path / "a.nii") == 2
    np.testing.assert_array_equal(read_volume(tmp_path / "a.nii[1]").array.ravel(), np.arange(1, 24, 2))


def test_a_file_of_one_channel_may_be_named_with_it(tmp_path: Path) -> None:
    write_volume(tmp_path / "a.nii.gz", make_volume())
    assert count_channels(tmp_path / "a.nii.gz") == 1
    np.testing.assert_array_equal(read_volume(tmp_path / "a.nii.gz[0]").array, make_volume().array)


@pytest.mark.parametrize("suffix", [".nii.gz", ".mha", ".nrrd"])
def test_a_sheared_affine_keeps_voxels_and_edges(tmp_path: Path, suffix: str) -> None:
    volume = make_volume(4)
    affine = volume.affine @ np.array([[1, 0.3, 0, 0], [0, 1, 0.1, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    x, y, z = np.linalg.norm(affine[:3, :3], axis=0).tolist()
    write_volume(tmp_path / f"a{suffix}", Volume(volume.array, affine, (z, y, x)))
    again = read_volume(tmp_path / f"a{suffix}")
    np.testing.assert_array_equal(again.array, volume.array)
    np.testing.assert_allclose(again.spacing_mm, (z, y, x), rtol=1e-6)
    np.testing.assert_allclose(again.affine, affine, atol=1e-4)


@pytest.mark.parametrize("shape", [(2, 32, 32), (500, 32, 40), (2, 1024, 1024), (1, 1, 1)])
def test_volumes_of_any_size(tmp_path: Path, shape: tuple[int, int, int]) -> None:
    write_volume(tmp_path / "a.nii", make_volume(shape=shape))
    assert read_volume(tmp_path / "a.nii").shape == shape


def test_labels_that_a_scaled_header_left_beside_whole_numbers(tmp_path: Path) -> None:
    labels = np.arange(24, dtype=np.float64).reshape(2, 3, 4) % 4
    image = nibabel.Nifti1Image(labels, np.eye(4))
    image.header.set_data_dtype(np.uint8)  # nibabel then scales 0 … 3 to 0 … 255
    nibabel.save(image, tmp_path / "a.nii")
    assert not np.array_equal(read_volume(tmp_path / "a.nii").array, labels.T)
    np.testing.assert_array_equal(read_label_map(tmp_path / "a.nii").array, labels.T)
    for array in (labels + 0.01, np.where(labels == 0, np.nan, labels), np.where(labels == 0, np.inf, labels)):
        nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), tmp_path / "b.nii")
        np.testing.assert_array_equal(read_label_map(tmp_path / "b.nii").array, array.T)


def test_a_singular_affine_is_refused(tmp_path: Path) -> None:
    image = nibabel.Nifti1Image(np.zeros((2, 3, 4), np.int16), None)
    image.header["sform_code"] = 1
    nibabel.save(image, tmp_path / "flat.nii.gz")
    with pytest.raises(UserError, match=r"flat\.nii\.gz.*singular"):
        read_volume(tmp_path / "flat.nii.gz")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_write_replaces_the_old_file_and_leaves_nothing_else(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    write_volume(path, make_volume(1))
    write_volume(path, make_volume(2))
    np.testing.assert_array_equal(read_volume(path).array, make_volume(2).array)
    expected = {path.name, "a.zraw"} if suffix == ".mhd" else {path.name}
    assert {p.name for p in tmp_path.iterdir()} == expected


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_write_that_cannot_be_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "nowhere" / f"a{suffix}"
    with pytest.raises(UserError, match=r"cannot write .*nowhere"):
        write_volume(path, make_volume())


def test_the_data_of_a_metaimage_stand_before_its_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[str] = []
    replace = os.replace

    def record(source: Path, target: Path) -> None:
        moved.append(target.name)
        replace(source, target)

    monkeypatch.setattr(os, "replace", record)
    write_volume(tmp_path / "a.mhd", make_volume())
    assert moved == ["a.zraw", "a.mhd"]


def test_mismatches_are_described() -> None:
    volume = make_volume(turned=False)
    assert describe_mismatch(volume, volume) is None
    shifted = volume.affine.copy()
    shifted[0, 3] += 0.01
    assert describe_mismatch(volume, Volume(volume.array, shifted, volume.spacing_mm)) is None
    shifted[0, 3] += 1
    assert "1.01 mm" in (describe_mismatch(volume, Volume(volume.array, shifted, volume.spacing_mm)) or "")
    smaller = Volume(volume.array[:2], volume.affine, volume.spacing_mm)
    assert describe_mismatch(volume, smaller) == "shape 6×5×2 instead of 6×5×4"
    flipped = volume.reoriented("RPS")
    assert "affine" in (describe_mismatch(volume, flipped) or "")


def moved(volume: Volume, vox: tuple[float, float, float]) -> Volume:
    affine = volume.affine.copy()
    affine[:3, 3] += affine[:3, :3] @ vox
    return Volume(volume.array, affine, volume.spacing_mm)


@pytest.mark.parametrize("turned", [False, True])
def test_up_to_half_a_voxel_apart_the_array_counts(turned: bool) -> None:
    volume = make_volume(turned=turned)
    assert offset_mm(volume, moved(volume, (0.01, 0.0, 0.0))) == 0
    for near in ((0.5, 0.5, 0.5), (0.0, 0.0, -0.5)):
        assert describe_mismatch(volume, moved(volume, near)) is None
        assert offset_mm(volume, moved(volume, near)) == pytest.approx(np.linalg.norm(near * np.array([1.25, 1.5, 10])))
    for far in ((0.6, 0.0, 0.0), (0.0, 0.0, 1.0)):
        assert "another affine" in (describe_mismatch(volume, moved(volume, far)) or "")


@quick
@given(seed=st.integers(0, 10_000), codes=st.sampled_from(ALL_CODES))
def test_a_label_map_in_another_orientation_is_turned_onto_its_image(seed: int, codes: str) -> None:
    volume = make_volume(seed)
    back = turn_onto(volume.reoriented(codes), volume)
    np.testing.assert_array_equal(back.array, volume.array)
    assert describe_mismatch(volume, back) is None
    assert turn_onto(moved(volume, (0.2, 0.2, 0.2)), volume).array is volume.array


def test_bad_voxels_are_described() -> None:
    volume = make_volume(dtype=np.float32)
    assert describe_bad_voxels(volume) is None
    assert "every voxel is 7" in (describe_bad_voxels(volume.like(np.full(volume.shape, 7))) or "")
    spoilt = volume.array.copy()
    spoilt[0, 0, :2] = np.nan, np.inf
    assert "2 NaN or infinite voxels" in (describe_bad_voxels(volume.like(spoilt)) or "")


@needs_data
def test_real_acdc_survives_a_write(tmp_path: Path) -> None:
    root = Path(os.environ["DISCOSEG_DATA"]) / "acdc" / "training"
    for name in ("patient001/patient001_frame01", "patient090/patient090_frame04_gt"):
        source, copy = root / f"{name}.nii.gz", tmp_path / "copy.nii.gz"
        volume = read_volume(source)
        assert min(volume.spacing_mm) > 1.01, "the spacing is pixdim's, not the affine's"
        write_volume(copy, volume.reoriented("RAS").reoriented(volume.orientation))
        assert header_of(copy) == header_of(source)
        np.testing.assert_array_equal(read_volume(copy).array, volume.array)


@needs_data
def test_real_promise12_is_read_and_written(tmp_path: Path) -> None:
    volume = read_volume(Path(os.environ["DISCOSEG_DATA"]) / "promise12" / "Case00.mhd")
    assert volume.shape == (47, 256, 256)
    assert volume.orientation == "LPS"
    write_volume(tmp_path / "Case00.mhd", volume)
    again = read_volume(tmp_path / "Case00.mhd")
    assert same_geometry(again, volume)
    np.testing.assert_array_equal(again.array, volume.array)
