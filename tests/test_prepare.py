"""Preparation: values in [0, 1], geometry that finds its way back, a cache that notices every change."""

import os
from pathlib import Path
from typing import Literal

import nibabel
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discoseg.data import prepare
from discoseg.data.files import channel_paths
from discoseg.data.layouts import Case, find_dataset
from discoseg.data.prepare import (
    Grid,
    common_orientation,
    grid_spacing_mm,
    image_to_grid,
    labels_from_grid,
    labels_to_grid,
    prepare_case,
    prepare_cases,
    probabilities_from_grid,
    resize_labels,
    resize_linear,
    slice_across,
)
from discoseg.data.volume import Volume, read_volume, write_volume
from discoseg.errors import UserError

SHAPES = st.tuples(st.integers(1, 40), st.integers(1, 40))


def _volume(shape: tuple[int, int, int], seed: int = 0) -> Volume:
    array = np.random.default_rng(seed).normal(100, 30, shape).astype(np.float32)
    return Volume(array, np.diag([-1.5, -2.0, 8.0, 1.0]), (8.0, 2.0, 1.5))


@settings(max_examples=60, deadline=None)
@given(SHAPES, SHAPES, st.floats(-5, 5))
def test_resize_keeps_constants_and_range(shape: tuple[int, int], new: tuple[int, int], value: float) -> None:
    assert np.allclose(resize_linear(np.full((2, *shape), value), new), value, atol=1e-5)
    noise = np.random.default_rng(0).random((3, *shape)).astype(np.float32)
    resized = resize_linear(noise, new)
    assert resized.shape == (3, *new)
    assert noise.min() - 1e-5 <= resized.min()
    assert resized.max() <= noise.max() + 1e-5


def test_resize_to_the_same_shape_changes_nothing() -> None:
    noise = np.random.default_rng(0).random((3, 17, 23)).astype(np.float32)
    assert np.array_equal(resize_linear(noise, (17, 23)), noise)
    assert np.array_equal(resize_labels(noise, (17, 23)), noise)


def test_resize_of_a_ramp_is_a_ramp_at_pixel_centres() -> None:
    ramp = np.broadcast_to(np.arange(16) + 0.5, (1, 4, 16))
    for new in (8, 32, 40):
        expected = (np.arange(new) + 0.5) * 16 / new
        resized = resize_linear(ramp, (4, new))[0, 0]
        assert np.allclose(resized[new // 4 : -new // 4], expected[new // 4 : -new // 4], atol=1e-4)


@settings(max_examples=60, deadline=None)
@given(SHAPES, SHAPES)
def test_labels_go_there_and_back(shape: tuple[int, int], new: tuple[int, int]) -> None:
    """Up and down again is exact, whatever the sizes; and every label of the grid is one of the file's."""
    labels = np.random.default_rng(1).integers(0, 4, (2, *shape))
    there = resize_labels(labels, new)
    assert set(np.unique(there)) <= set(np.unique(labels))
    if new[0] >= shape[0] and new[1] >= shape[1]:
        assert np.array_equal(resize_labels(there, shape), labels)


def test_image_lies_in_unit_range_and_clips_percentiles() -> None:
    volume = _volume((5, 30, 20))
    volume.array[0, 0, 0] = 1e6
    plain = image_to_grid([volume], Grid((32, 32)), name="x")
    clipped = image_to_grid([volume], Grid((32, 32), (1.0, 99.0)), name="x")
    assert plain.shape == clipped.shape == (5, 1, 32, 32)
    assert clipped.min() >= 0
    assert clipped.max() <= 1
    assert np.median(plain) < 0.01 < 0.3 < np.median(clipped)


@pytest.mark.parametrize("codes", ["LPS", "RAS", "SPL", "AIR"])
def test_one_grid_for_files_of_any_orientation(codes: str) -> None:
    """A file stored otherwise gives the same slices, and gets its answer back in its own geometry."""
    grid = Grid((32, 32), orientation="LPS")
    volume = _volume((6, 30, 20))
    turned = volume.reoriented(codes)
    assert np.array_equal(
        image_to_grid([turned], grid, name="x"), image_to_grid([volume.reoriented("LPS")], grid, name="x")
    )
    assert grid_spacing_mm(turned, grid) == pytest.approx((8.0, 2.0 * 30 / 32, 1.5 * 20 / 32))
    probability = np.random.default_rng(2).random((6, 32, 32)).astype(np.float32)
    back = probabilities_from_grid(probability, turned, grid)
    assert back.shape == turned.shape
    assert np.array_equal(back.affine, turned.affine)
    assert back.spacing_mm == turned.spacing_mm
    straight = probabilities_from_grid(probability, volume.reoriented("LPS"), grid)
    assert np.array_equal(back.reoriented("LPS").array, straight.array)
    labels = labels_from_grid(probability > 0.5, turned, grid)
    assert labels.shape == turned.shape


def test_label_map_survives_the_grid() -> None:
    label = _volume((4, 20, 20)).like(np.random.default_rng(0).integers(0, 4, (4, 20, 20)).astype(np.int16))
    grid = Grid((40, 60), orientation="RAS")
    back = labels_from_grid(labels_to_grid(label, grid), label, grid)
    assert np.array_equal(back.array, label.array)


def test_second_start_reads_no_image(phantoms: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = find_dataset(phantoms).cases
    grid = Grid((32, 32), orientation=common_orientation(cases))
    seen: list[tuple[int, int]] = []
    first = prepare_cases(cases, grid, cache=tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(i, len(cases)) for i in range(1, len(cases) + 1)]

    def refuse(path: Path) -> Volume:
        raise AssertionError(f"{path} was read again")

    monkeypatch.setattr(prepare, "read_volume", refuse)
    for before, after in zip(first, prepare_cases(cases, grid, cache=tmp_path), strict=True):
        assert np.array_equal(before.image, after.image)
        assert np.array_equal(np.asarray(before.label), np.asarray(after.label))
        assert before.spacing_mm == after.spacing_mm
    with pytest.raises(AssertionError, match="read again"):
        prepare_cases(cases[:1], Grid((40, 40), orientation=grid.orientation), cache=tmp_path)


def test_changed_file_is_prepared_anew(tmp_path: Path) -> None:
    path = tmp_path / "image.nii.gz"
    write_volume(path, _volume((3, 20, 20), seed=1))
    case, grid = Case("a", (path,)), Grid((16, 16), orientation="LPS")
    first = prepare_case(case, grid, tmp_path / "cache")
    write_volume(path, _volume((3, 20, 20), seed=2))
    second = prepare_case(case, grid, tmp_path / "cache")
    assert not np.array_equal(first.image, second.image)


def test_changed_data_file_of_a_metaimage_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "Case00.mhd"
    grid = Grid((16, 16), orientation="LPS")
    images = []
    for seed in (1, 2):
        write_volume(path, _volume((3, 20, 20), seed=seed))
        images.append(prepare_case(Case("a", (path,)), grid, tmp_path / "cache").image)
    assert not np.array_equal(images[0], images[1])


def test_bad_images_and_labels_are_named(tmp_path: Path) -> None:
    grid, cache = Grid((16, 16), orientation="LPS"), tmp_path / "cache"
    image, label = tmp_path / "image.nii.gz", tmp_path / "label.nii.gz"

    def complaint(array: np.ndarray, labels: np.ndarray, affine: np.ndarray | None = None) -> str:
        geometry = np.diag([-1.5, -1.5, 8.0, 1.0])
        write_volume(image, Volume(array, geometry, (8.0, 1.5, 1.5)))
        write_volume(label, Volume(labels, geometry if affine is None else affine, (8.0, 1.5, 1.5)))
        with pytest.raises(UserError) as error:
            prepare_case(Case("a", (image,), label), grid, cache)
        assert "\n" not in str(error.value)
        return str(error.value)

    good = np.random.default_rng(0).random((3, 16, 16)).astype(np.float32)
    none = np.zeros((3, 16, 16), np.uint8)
    nan = good.copy()
    nan[0, 0, 0] = np.nan
    assert "image.nii.gz: 1 NaN or infinite" in complaint(nan, none)
    assert "image.nii.gz: constant image" in complaint(np.ones_like(good), none)
    assert "label.nii.gz does not lie on its image image.nii.gz: shape" in complaint(good, none[:2])
    assert "another affine" in complaint(good, none, np.diag([1.5, -1.5, 8.0, 1.0]))
    assert "label values must be whole numbers" in complaint(good, good)
    assert "300" in complaint(good, none.astype(np.int16) + 300)
    image.unlink()
    with pytest.raises(UserError, match=r"image\.nii\.gz"):
        prepare_case(Case("a", (image,)), grid, cache)
    assert not list(cache.glob(".partial*"))


def test_voxels_of_a_metaimage_may_lie_under_any_name(tmp_path: Path) -> None:
    grid, path = Grid((16, 16), orientation="LPS"), tmp_path / "scan.mhd"
    images = []
    for seed in (1, 2):
        write_volume(path, _volume((3, 20, 20), seed=seed))
        (tmp_path / "scan.zraw").rename(tmp_path / "voxels.bin")
        path.write_text(path.read_text().replace("scan.zraw", "voxels.bin"))
        images.append(prepare_case(Case("a", (path,)), grid, tmp_path / "cache").image)
    assert not np.array_equal(images[0], images[1])


def test_large_offsets_keep_their_contrast() -> None:
    volume = _volume((3, 20, 20))
    far = volume.like(volume.array.astype(np.float64) + 1e9)
    grid = Grid((20, 20))
    assert np.allclose(image_to_grid([far], grid, name="x"), image_to_grid([volume], grid, name="x"), atol=1e-4)


def test_channels_must_lie_on_each_other() -> None:
    volume = _volume((3, 20, 20))
    moved = Volume(volume.array, volume.affine, volume.spacing_mm)
    assert image_to_grid([volume, moved], Grid((16, 16)), name="x").shape == (3, 2, 16, 16)
    affine = volume.affine.copy()
    affine[0, 3] += 50
    elsewhere = Volume(volume.array, affine, volume.spacing_mm)
    with pytest.raises(UserError, match="x: its channel 1 does not lie on the first one: another affine"):
        image_to_grid([volume, elsewhere], Grid((16, 16)), name="x")


def test_the_channels_of_one_file_are_told_apart(tmp_path: Path) -> None:
    path, grid = tmp_path / "scan.nii.gz", Grid((20, 20), orientation="LPS")
    volumes = [_volume((3, 20, 20), seed=seed) for seed in (1, 2)]
    data = np.stack([volume.array.T for volume in volumes], axis=-1)
    nibabel.save(nibabel.Nifti1Image(data, volumes[0].affine), path)
    both, first, second = (
        prepare_case(Case("a", images), grid, tmp_path / "cache").image
        for images in (channel_paths(path, 2), (tmp_path / "scan.nii.gz[0]",), (tmp_path / "scan.nii.gz[1]",))
    )
    assert both.shape == (3, 2, 20, 20)
    assert np.array_equal(both, np.concatenate([first, second], axis=1))
    assert not np.array_equal(first, second)
    assert np.array_equal(both, image_to_grid(volumes, grid, name="x"))


def test_up_to_half_a_voxel_apart_a_label_map_goes_by_the_array(tmp_path: Path) -> None:
    volume, grid = _volume((3, 16, 16)), Grid((16, 16), orientation="LPS")
    labels = np.random.default_rng(3).integers(0, 3, (3, 16, 16)).astype(np.uint8)
    write_volume(tmp_path / "image.nii.gz", volume)
    near = volume.affine.copy()
    near[:3, 3] += (0.75, 1.0, -4.0)
    turned = volume.like(labels).reoriented("SAR")
    for label in (Volume(labels, near, volume.spacing_mm), turned):
        write_volume(tmp_path / "label.nii.gz", label)
        case = Case("a", (tmp_path / "image.nii.gz",), tmp_path / "label.nii.gz")
        item = prepare_case(case, grid, tmp_path / "cache")
        assert item.label is not None
        assert np.array_equal(item.label, labels)


@pytest.mark.parametrize("axis", ["x", "y", "z"])
def test_slices_lie_across_the_chosen_axis(axis: Literal["x", "y", "z"]) -> None:
    array = np.random.default_rng(0).random((6, 8, 10)).astype(np.float32)
    volume = Volume(array, np.diag([-1.5, -2.0, 4.0, 1.0]), (4.0, 2.0, 1.5))
    codes = slice_across(volume.orientation, axis)
    slices = {"z": (6, 8, 10), "y": (8, 6, 10), "x": (10, 6, 8)}[axis]
    spacing_mm = {"z": (4.0, 2.0, 1.5), "y": (2.0, 4.0, 1.5), "x": (1.5, 4.0, 2.0)}[axis]
    grid = Grid((slices[1], slices[2]), orientation=codes)
    assert image_to_grid([volume], grid, name="x").shape == (slices[0], 1, *slices[1:])
    assert grid_spacing_mm(volume, grid) == pytest.approx(spacing_mm)
    labels = (array > 0.5).astype(np.uint8)
    back = labels_from_grid(labels_to_grid(volume.like(labels), grid), volume, grid)
    assert np.array_equal(back.array, labels)


def test_mixed_orientations_become_one(tmp_path: Path) -> None:
    volume, grid = _volume((3, 16, 16)), Grid((16, 16), orientation="LPS")
    images = []
    for codes in ("LPS", "RAS", "SAR"):
        write_volume(tmp_path / f"{codes}.nii.gz", volume.reoriented(codes))
        images.append(prepare_case(Case(codes, (tmp_path / f"{codes}.nii.gz",)), grid, tmp_path / "cache").image)
    assert np.array_equal(images[0], images[1])
    assert np.array_equal(images[0], images[2])


@pytest.mark.parametrize("shape", [(2, 32, 1024), (500, 32, 32)])
def test_volumes_of_any_size_fit_the_grid(tmp_path: Path, shape: tuple[int, int, int]) -> None:
    write_volume(tmp_path / "a.nii", _volume(shape))
    item = prepare_case(Case("a", (tmp_path / "a.nii",)), Grid((64, 48), orientation="LPS"), tmp_path / "cache")
    assert item.image.shape == (shape[0], 1, 64, 48)


def test_full_disk_names_the_cache(phantoms: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError("9216 requested and 5088 written")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(UserError, match=r"cannot write to the cache .*DISCOSEG_CACHE"):
        prepare_cases(find_dataset(phantoms).cases[:1], Grid((16, 16), orientation="LPS"), cache=tmp_path / "c")
    assert not list((tmp_path / "c").iterdir())


def test_unusable_cache_is_named(phantoms: Path, tmp_path: Path) -> None:
    case, grid = find_dataset(phantoms).cases[0], Grid((16, 16), orientation="LPS")
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(UserError, match=r"cannot write to the cache .*file"):
        prepare_case(case, grid, tmp_path / "file")
    prepare_case(case, grid, tmp_path / "cache")
    for array in (tmp_path / "cache").glob("*/array.npy"):
        array.write_bytes(array.read_bytes()[:200])
    with pytest.raises(UserError, match="this entry of the cache is damaged; remove it"):
        prepare_case(case, grid, tmp_path / "cache")


def test_the_files_voxels_are_remembered(tmp_path: Path) -> None:
    array = np.random.default_rng(0).random((3, 20, 10)).astype(np.float32)
    write_volume(tmp_path / "a.nii", Volume(array, np.diag([-2.0, -1.5, 5.0, 1.0]), (5.0, 1.5, 2.0)))
    for _ in range(2):  # prepared, and from the cache
        item = prepare_case(Case("a", (tmp_path / "a.nii",)), Grid((40, 40), orientation="LPS"), tmp_path / "cache")
        assert item.file_voxel_ml == pytest.approx(0.015)
        assert item.voxel_ml == pytest.approx(0.015 * 200 / 1600)


def test_prepared_grid_matches_the_files(phantoms: Path) -> None:
    dataset = find_dataset(phantoms)
    (item,) = prepare_cases(dataset.cases[:1], Grid((48, 48), orientation="LPS"))
    image = read_volume(dataset.cases[0].images[0])
    assert item.image.shape == (image.shape[0], 1, 48, 48)
    assert item.voxel_ml == pytest.approx(image.voxel_ml)
    assert item.label is not None
    assert set(np.unique(item.label)) == {0, 1, 2, 3}


def test_prepared_cases_keep_no_file_open(phantoms: Path, tmp_path: Path) -> None:
    """Of ten thousand cases a process could not have as many open."""
    prepared = prepare_cases(find_dataset(phantoms).cases, Grid((16, 16), orientation="LPS"), cache=tmp_path)
    links = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    assert not [link for link in links if link.startswith(str(tmp_path))]
    mapped = Path("/proc/self/maps").read_text().count(str(tmp_path))
    assert mapped >= len(prepared)  # and yet the arrays are not copies in memory
    with pytest.raises(ValueError, match="read-only"):
        prepared[0].image[0] = 0
