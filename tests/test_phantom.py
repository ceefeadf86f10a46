import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.ndimage import binary_dilation, label

from discoseg.data.phantom import LABELS, Phantom, make_phantom, write_phantom_dataset
from discoseg.data.volume import read_volume
from discoseg.errors import UserError
from discoseg.weak.atlas import build_atlas, centroid, seed_statistics
from discoseg.weak.clicks import read_clicks

SEEDS = range(8)


@pytest.fixture(scope="module")
def phantoms() -> list[Phantom]:
    return [make_phantom(seed) for seed in SEEDS]


def structure(phantom: Phantom, name: str) -> NDArray[np.bool_]:
    return np.asarray(phantom.label.array == LABELS[name])


def dice(a: NDArray[np.bool_], b: NDArray[np.bool_]) -> float:
    return float(2 * (a & b).sum() / (a.sum() + b.sum()))


def test_same_seed_same_voxels(phantoms: list[Phantom]) -> None:
    again = make_phantom(SEEDS[3])
    assert np.array_equal(again.image.array, phantoms[3].image.array)
    assert np.array_equal(again.label.array, phantoms[3].label.array)
    assert np.array_equal(again.image.affine, phantoms[3].image.affine)


def test_noise_of_neighbouring_seeds_does_not_correlate(phantoms: list[Phantom]) -> None:
    """What is left without the anatomy (differences of neighbours across a diagonal) is independent."""
    grains = []
    for phantom in phantoms:
        array = phantom.image.array[:7].astype(float)
        grains.append((array[:, 1:, 1:] - array[:, :-1, 1:] - array[:, 1:, :-1] + array[:, :-1, :-1]).ravel())
    correlations = np.corrcoef(grains)[np.triu_indices(len(grains), k=1)]
    assert np.abs(correlations).max() < 0.05


def test_geometry_is_that_of_thick_slices(phantoms: list[Phantom]) -> None:
    for phantom in phantoms:
        slices, rows, columns = phantom.image.shape
        thick_mm, pixel_mm, other_mm = phantom.image.spacing_mm
        assert 7 <= slices <= 10
        assert (rows, columns) == (96, 96)
        assert 8 <= thick_mm <= 10
        assert 1.4 <= pixel_mm == other_mm <= 1.8
        assert phantom.image.orientation == "LPS"
        assert phantom.label.shape == phantom.image.shape
    assert len({phantom.image.spacing_mm for phantom in phantoms}) == len(phantoms)


def test_in_plane_size_keeps_the_field_of_view() -> None:
    fine, coarse = make_phantom(5, in_plane=(96, 96)), make_phantom(5, in_plane=(48, 64))
    assert coarse.image.shape[1:] == (48, 64)
    assert fine.image.spacing_mm[2] * 96 == pytest.approx(coarse.image.spacing_mm[2] * 64, abs=0.01)


def test_anatomy(phantoms: list[Phantom]) -> None:
    for phantom in phantoms:
        lv, rv, myo = (structure(phantom, name) for name in ("LV", "RV", "MYO"))
        assert set(np.unique(phantom.label.array)) == {0, 1, 2, 3}
        area = lv.sum(axis=(1, 2))
        with_lv = np.flatnonzero(area)
        assert area[0] == 0  # above the valves
        assert area[-1] == 0  # below the apex
        assert len(with_lv) >= 3
        assert np.array_equal(with_lv, np.arange(with_lv[0], with_lv[-1] + 1))
        assert area[with_lv[-1]] < 0.6 * area[with_lv[0]]  # tapers
        assert label(lv, np.ones((3, 3, 3)))[1] == 1
        edge = binary_dilation(lv, np.ones((1, 3, 3))) & ~lv
        assert myo[edge].mean() > 0.9  # the ring closes around the cavity
        assert rv.any()
        assert np.argwhere(rv)[:, 2].mean() < np.argwhere(lv)[:, 2].mean()  # on the patient's right
        assert bulges_into(myo, rv)  # the septum


def bulges_into(inner: NDArray[np.bool_], crescent: NDArray[np.bool_]) -> bool:
    """Whether lines between two points of the crescent cross `inner`, in the crescent's largest slice."""
    z = crescent.sum(axis=(1, 2)).argmax()
    points = np.argwhere(crescent[z])[::5]
    middles = (points[:, None] + points[None]) // 2
    return bool(inner[z][middles[..., 0], middles[..., 1]].any())


def test_size_and_position_vary(phantoms: list[Phantom]) -> None:
    volumes_ml = [structure(p, "LV").sum() * p.label.voxel_ml for p in phantoms]
    centres = np.array([centroid(structure(p, "LV")) for p in phantoms])
    assert max(volumes_ml) > 2 * min(volumes_ml)
    assert min(volumes_ml) > 8
    assert max(volumes_ml) < 200
    assert (np.ptp(centres[:, 1:], axis=0) > 5).all()


def test_blood_is_bright_in_a_dark_ring_but_a_threshold_fails(phantoms: list[Phantom]) -> None:
    for phantom in phantoms:
        array = phantom.image.array
        lv, rv, myo = (structure(phantom, name) for name in ("LV", "RV", "MYO"))
        blood, muscle = np.median(array[lv]), np.median(array[myo])
        assert blood > 1.3 * muscle
        assert 0.7 < np.median(array[rv]) / blood < 1.3
        assert (array[lv] < (blood + muscle) / 2).mean() > 0.02  # papillary muscles, partial volume
        best = max(dice(array > level, lv) for level in np.percentile(array, np.arange(50, 100)))
        assert best < 0.5


def test_dataset_is_complete_and_reproducible(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        write_phantom_dataset(folder, cases=3, test_cases=1, seed=4, in_plane=(32, 32))
    files = sorted(str(p.relative_to(folders[0])) for p in folders[0].rglob("*") if p.is_file())
    assert files == [
        "clicks.json",
        "dataset.json",
        *(f"imagesTr/phantom_00{i}_0000.nii.gz" for i in (1, 2, 3)),
        "imagesTs/phantom_004_0000.nii.gz",
        *(f"labelsTr/phantom_00{i}.nii.gz" for i in (1, 2, 3)),
        "labelsTs/phantom_004.nii.gz",
    ]
    for file in files:
        digests = {hashlib.sha256((folder / file).read_bytes()).hexdigest() for folder in folders}
        assert len(digests) == 1, file
    summary = json.loads((folders[0] / "dataset.json").read_text())
    assert summary["labels"] == {"background": 0, "RV": 1, "MYO": 2, "LV": 3}
    assert summary["numTraining"] == 3
    assert summary["file_ending"] == ".nii.gz"


def test_clicks_and_atlas_of_a_dataset_fit(tmp_path: Path) -> None:
    write_phantom_dataset(tmp_path / "data", cases=6, test_cases=0, seed=1, in_plane=(64, 64))
    clicks = {case: click for (case, _), click in read_clicks(tmp_path / "data" / "clicks.json").items()}
    volumes = {case: read_volume(tmp_path / "data" / "labelsTr" / f"{case}.nii.gz") for case in clicks}
    masks = {case: volume.array == LABELS["LV"] for case, volume in volumes.items()}
    assert len(masks) == 6
    atlas = build_atlas([("", mask) for mask in masks.values()])
    for case, mask in masks.items():
        z, y, x = clicks[case].locate(volumes[case])[::-1]
        assert (z, y, x) == centroid(mask)
        seeds = atlas.seeds("", mask.shape, (z, y, x))
        assert (seeds == 1).any()
        assert (seeds == -1).any()
        statistics = seed_statistics(seeds, mask)
        assert (statistics.wrong_foreground_vox, statistics.wrong_background_vox) == (0, 0)


def test_jitter_moves_clicks_in_the_plane_by_that_much(tmp_path: Path) -> None:
    for name, jitter in (("still", 0), ("moved", 1)):
        write_phantom_dataset(tmp_path / name, cases=8, test_cases=0, seed=2, in_plane=(32, 32), jitter_vox=jitter)
    still, moved = (
        np.array([click.position for click in read_clicks(tmp_path / name / "clicks.json").values()])
        for name in ("still", "moved")
    )
    off = np.abs(moved - still)
    assert off[:, :2].max() == 1
    assert off[:, 2].max() == 0


def test_refuses_a_folder_in_use(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for place in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(UserError, match="already in use"):
            write_phantom_dataset(place, cases=1, test_cases=0, seed=0, in_plane=(32, 32))
    assert (tmp_path / "notes.txt").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    write_phantom_dataset(tmp_path / "empty", cases=1, test_cases=0, seed=0, in_plane=(32, 32))
