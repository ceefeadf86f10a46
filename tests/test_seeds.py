"""Seeds of several structures: one click on each, one label map of all, and a training from it."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from discoseg.data.phantom import LABELS
from discoseg.data.volume import read_volume, write_volume
from discoseg.weak.atlas import centroid
from discoseg.weak.clicks import Click, write_clicks
from test_cli import SMALL, run

GRID = ["--grid", 48, 48]  # the phantoms' own, so that maps are compared voxel by voxel
ALL = ["--label", "RV,MYO,LV"]
HEART = {name: value for name, value in LABELS.items() if value}


def click_on(phantoms: Path) -> list[Click]:
    """A click at the centre of each structure of each training phantom."""
    clicks = []
    for path in sorted((phantoms / "labelsTr").iterdir()):
        label = read_volume(path).array
        for name, value in HEART.items():
            z, y, x = centroid(label == value)
            clicks.append(Click(path.name.removesuffix(".nii.gz"), (x, y, z), label=name))
    return clicks


@pytest.fixture(scope="module")
def seeds(phantoms: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weak label maps of all training phantoms and all structures; read only."""
    folder = tmp_path_factory.mktemp("seeds")
    write_clicks(folder / "clicks.csv", click_on(phantoms))
    assert run("seeds", phantoms, *ALL, "--clicks", folder / "clicks.csv", *GRID, "--out", folder / "all") == 0
    return folder / "all"


def test_seeds_of_all_are_those_of_each(phantoms: Path, seeds: Path, tmp_path: Path) -> None:
    for name in HEART:
        own = [click for click in click_on(phantoms) if click.label == name]
        write_clicks(tmp_path / f"{name}.json", own)
        arguments = ["--label", name, "--clicks", tmp_path / f"{name}.json", *GRID]
        assert run("seeds", phantoms, *arguments, "--out", tmp_path / name) == 0
    maps = sorted(seeds.glob("*.nii.gz"))
    assert len(maps) == 6
    for path in maps:
        merged = read_volume(path).array
        alone = {name: read_volume(tmp_path / name / path.name).array for name in HEART}
        assert set(np.unique(merged)) == {0, *HEART.values(), 4}
        assert np.array_equal(merged == 0, np.all([array == 0 for array in alone.values()], axis=0))
        claims = np.sum([alone[name] == value for name, value in HEART.items()], axis=0)
        for name, value in HEART.items():
            assert np.array_equal(merged == value, (alone[name] == value) & (claims == 1))


def test_seeds_at_the_centres_contradict_no_mask_they_are_made_of(phantoms: Path, tmp_path: Path) -> None:
    assert run("seeds", phantoms, "--label", "all", *GRID, "--out", tmp_path / "seeds") == 0
    maps = sorted((tmp_path / "seeds").glob("*.nii.gz"))
    assert len(maps) == 5  # one phantom validates
    for path in maps:
        found, truth = read_volume(path).array, read_volume(phantoms / "labelsTr" / path.name).array
        assert (found[found != 4] == truth[found != 4]).all()


def test_clicks_on_all_structures_become_a_training(phantoms: Path, seeds: Path, tmp_path: Path) -> None:
    run_folder = tmp_path / "run"
    bounds = ["--size-ml", "RV=20:250,MYO=20:250,LV=10:250"]
    assert run("train", phantoms, *ALL, "--seeds", seeds, *bounds, "--out", run_folder, *SMALL) == 0
    with (run_folder / "cases.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {f"dice_{name}" for name in HEART} <= rows[0].keys()
    assert run("check", phantoms, *ALL, "--seeds", seeds, *bounds) == 0


def test_one_atlas_serves_all_structures_or_some(phantoms: Path, seeds: Path, tmp_path: Path) -> None:
    atlas, clicks = ["--atlas", seeds / "atlas.npz"], tmp_path / "clicks.json"
    write_clicks(clicks, click_on(phantoms))
    assert run("seeds", phantoms, *ALL, *atlas, "--clicks", clicks, "--out", tmp_path / "again") == 0
    assert run("seeds", phantoms, "--label", "RV", *atlas, "--clicks", clicks, "--out", tmp_path / "RV") == 0
    for path in seeds.glob("*.nii.gz"):
        merged, again, right = (read_volume(f / path.name).array for f in (seeds, tmp_path / "again", tmp_path / "RV"))
        assert np.array_equal(again, merged)
        assert (right[merged == HEART["RV"]] == HEART["RV"]).all()
    assert (tmp_path / "again" / "atlas.npz").read_bytes() == (seeds / "atlas.npz").read_bytes()


def test_clicks_far_off_leave_what_two_structures_claim_open(phantoms: Path, seeds: Path, tmp_path: Path) -> None:
    clicks = [Click(c.case, (20, 20, 4), label=c.label) for c in click_on(phantoms)]  # all on one place
    write_clicks(tmp_path / "clicks.json", clicks)
    arguments = [*ALL, "--atlas", seeds / "atlas.npz", "--clicks", tmp_path / "clicks.json"]
    assert run("seeds", phantoms, *arguments, "--out", tmp_path / "seeds") == 0
    assert read_volume(tmp_path / "seeds" / "phantom_001.nii.gz").array[4, 20, 20] == 4


def test_a_case_may_lack_a_structure(phantoms: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = Path(shutil.copytree(phantoms, tmp_path / "data"))
    path = data / "labelsTr" / "phantom_001.nii.gz"
    label = read_volume(path)
    label.array[label.array == HEART["RV"]] = 0
    path.unlink()
    write_volume(path, label)
    arguments = ["--validation-fraction", 0.2, *GRID]
    assert run("seeds", data, *ALL, *arguments, "--out", tmp_path / "seeds") == 0
    assert "wrong" in capsys.readouterr().out
    found = read_volume(tmp_path / "seeds" / "phantom_001.nii.gz").array
    assert set(np.unique(found)) == {0, HEART["MYO"], HEART["LV"], 4}
    assert run("seeds", data, "--label", "RV", *arguments, "--out", tmp_path / "RV") == 2


def test_a_structure_without_seeds_is_noted(phantoms: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = Path(shutil.copytree(phantoms, tmp_path / "data"))
    for number, path in enumerate(
        sorted((data / "labelsTr").iterdir())
    ):  # rings of another width have nothing in common
        label = read_volume(path)
        label.array[label.array == HEART["MYO"]] = 0
        label.array[4, 2, [2 + number, 40 - number]] = HEART["MYO"]
        path.unlink()
        write_volume(path, label)
    assert run("seeds", data, *ALL, *GRID, "--out", tmp_path / "seeds") == 0
    assert "note: no seed of MYO: the masks of its atlas have no voxel in common" in capsys.readouterr().out


def test_clicks_that_do_not_say_enough(
    phantoms: Path, seeds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def complaint(*arguments: object) -> str:
        capsys.readouterr()
        assert run(*arguments) == 2
        return capsys.readouterr().err

    clicks = tmp_path / "clicks.json"
    command = ["seeds", phantoms, *ALL, "--clicks", clicks, *GRID, "--out", tmp_path / "out"]
    clicks.write_text('{"phantom_002": {"voxel": [20, 20, 4]}}')
    assert "clicks.json: say which of RV, MYO, LV the click of case phantom_002 is on" in complaint(*command)
    clicks.write_text('{"phantom_002": {"aorta": {"voxel": [20, 20, 4]}}}')
    assert "clicks.json: case phantom_002: label 'aorta' is not in" in complaint(*command)
    clicks.write_text('{"phantom_002": {"LV": {"voxel": [20, 20, 4]}, "3": {"voxel": [20, 20, 4]}}}')
    assert "case phantom_002 has two clicks on LV" in complaint(*command)
    clicks.write_text('{"phantom_002": {"LV": {"voxel": [20, 20, 4]}}}')
    other = ["seeds", phantoms, "--label", "RV", "--clicks", clicks, "--out", tmp_path / "out"]
    assert "clicks.json: no click on RV" in complaint(*other)
    bare = Path(shutil.copytree(phantoms, tmp_path / "bare"))
    shutil.rmtree(bare / "labelsTr")
    bare_command = ["seeds", bare, *ALL, "--clicks", clicks, "--atlas", seeds / "atlas.npz", "--out", tmp_path / "out"]
    assert "phantom_002: no click on RV and no mask" in complaint(*bare_command)
    one = json.dumps({"phantom_002": {name: {"voxel": [20, 20, 4]} for name in HEART}})
    clicks.write_text(one)
    assert run("seeds", phantoms, "--label", "LV", "--clicks", clicks, *GRID, "--out", tmp_path / "LV") == 0
    command += ["--atlas", tmp_path / "LV" / "atlas.npz"]
    assert "this atlas is of label 3, not 1; choose --label accordingly" in complaint(*command)
