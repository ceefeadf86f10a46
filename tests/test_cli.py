"""The command line as a user meets it: the whole path on phantoms, and every mistake in one line with status 2."""

import csv
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from discoseg.cli import main, parse
from discoseg.data.volume import read_volume, same_geometry, write_volume
from discoseg.postprocess import Postprocessing
from discoseg.presets import PRESETS

SMALL = ["--epochs", "2", "--grid.shape", "32", "32", "--network.width", "4", "--device", "cpu"]
LV = ["--label", "LV"]


def run(*arguments: object) -> int:
    """Run the command in this process and return its exit status."""
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


@pytest.fixture(scope="module")
def seeds(phantoms: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weak label maps of all training phantoms; read only."""
    folder = tmp_path_factory.mktemp("seeds") / "LV"
    clicks = phantoms / "clicks.json"
    assert run("seeds", phantoms, *LV, "--out", folder, "--grid", 32, 32, "--clicks", clicks) == 0
    return folder


@pytest.fixture(scope="module")
def trained(phantoms: Path, seeds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two epochs; read only."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    wanted = ["--seeds", seeds, "--size-eps", 0.2, "--tensorboard"]
    assert run("train", phantoms, *LV, *wanted, "--out", folder, *SMALL) == 0
    return folder


@pytest.fixture
def broken(phantoms: Path, tmp_path: Path) -> Path:
    """A copy of the phantoms to spoil."""
    return Path(shutil.copytree(phantoms, tmp_path / "broken"))


# The whole path


def test_seeds_are_label_maps_with_the_images_geometry(phantoms: Path, seeds: Path) -> None:
    maps = sorted(seeds.glob("*.nii.gz"))
    assert [path.name for path in maps] == [f"phantom_{n:03d}.nii.gz" for n in range(1, 7)]
    for path in maps:
        weak = read_volume(path)
        image = read_volume(phantoms / "imagesTr" / path.name.replace(".nii", "_0000.nii"))
        assert np.array_equal(weak.affine, image.affine)
        assert weak.spacing_mm == image.spacing_mm
        assert weak.array.dtype == np.uint8
        assert set(np.unique(weak.array)) == {0, 3, 4}


def test_an_atlas_serves_volumes_that_have_only_a_click(phantoms: Path, seeds: Path, tmp_path: Path) -> None:
    bare = Path(shutil.copytree(phantoms, tmp_path / "bare"))
    shutil.rmtree(bare / "labelsTr")
    atlas = seeds / "atlas.npz"
    clicks = bare / "clicks.json"
    assert run("seeds", bare, *LV, "--atlas", atlas, "--clicks", clicks, "--out", tmp_path / "again") == 0
    for path in seeds.glob("*.nii.gz"):
        assert np.array_equal(read_volume(path).array, read_volume(tmp_path / "again" / path.name).array)


def test_an_atlas_serves_a_plain_folder_too(phantoms: Path, seeds: Path, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    shutil.copy(phantoms / "imagesTr/phantom_001_0000.nii.gz", tmp_path / "plain/phantom_001.nii.gz")
    clicks = tmp_path / "clicks.json"
    clicks.write_text(json.dumps({"phantom_001": json.loads((phantoms / "clicks.json").read_text())["phantom_001"]}))
    atlas = ["--atlas", seeds / "atlas.npz", "--clicks", clicks]
    assert run("seeds", tmp_path / "plain", *atlas, "--out", tmp_path / "out") == 0
    ours, theirs = read_volume(tmp_path / "out/phantom_001.nii.gz"), read_volume(seeds / "phantom_001.nii.gz")
    assert np.array_equal(ours.array == 1, theirs.array == 3)


def test_an_atlas_needs_not_all_masks(phantoms: Path, tmp_path: Path, complaint: Callable[..., str]) -> None:
    few = Path(shutil.copytree(phantoms, tmp_path / "few"))
    for number in range(3, 7):
        (few / f"labelsTr/phantom_{number:03d}.nii.gz").unlink()
    command = ["seeds", few, *LV, "--clicks", few / "clicks.json", "--out", tmp_path / "out"]
    assert run(*command) == 0
    assert len(list((tmp_path / "out").glob("*.nii.gz"))) == 6
    shutil.rmtree(few / "labelsTr")
    command[-1] = tmp_path / "none"
    assert "no training case has a complete mask" in complaint(*command)


def test_run_predicts_evaluates_and_reports(
    trained: Path, phantoms: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, table, page = tmp_path / "out", tmp_path / "scores.json", tmp_path / "page.html"
    assert run("predict", trained, phantoms / "imagesTs", "--out", out, "--probabilities", "--device", "cpu") == 0
    for image in sorted((phantoms / "imagesTs").iterdir()):
        mask, source = read_volume(out / image.name), read_volume(image)
        assert np.array_equal(mask.affine, source.affine)
        assert mask.shape == source.shape
        assert set(np.unique(mask.array)) <= {0, 3}
        probability = read_volume(out / image.name.replace("_0000", "_0000_probability"))
        assert probability.array.dtype == np.float32
        assert np.array_equal(probability.array >= 0.5, mask.array == 3)
    assert run("evaluate", out, phantoms, *LV, "--out", table) == 0
    assert len(json.loads(table.read_text())["cases"]) == 2
    assert run("report", trained, "--out", page, "--evaluations", table) == 0
    assert "evaluated 3D Dice, LV" in page.read_text()
    assert "evaluated" not in (trained / "report.html").read_text()
    assert len(list((trained / "tensorboard").iterdir())) == 1
    assert "LV" in capsys.readouterr().out


def test_an_evaluation_tells_training_from_validation(trained: Path, phantoms: Path, tmp_path: Path) -> None:
    maps, table = phantoms / "labelsTr", tmp_path / "scores.csv"
    assert run("evaluate", maps, phantoms, *LV, "--run-folder", trained, "--out", table) == 0
    with table.open() as file:
        parts = {row["case"]: row["part"] for row in csv.DictReader(file)}
    facts = json.loads((trained / "run.json").read_text())
    assert parts == {case: part for part in ("training", "validation") for case in facts[part]}
    assert sorted(parts.values()) == ["training"] * 5 + ["validation"]


def test_predict_cleans_masks_and_says_how_sure_it_is(trained: Path, phantoms: Path, tmp_path: Path) -> None:
    image = phantoms / "imagesTs/phantom_007_0000.nii.gz"
    plain, views = tmp_path / "plain", tmp_path / "views"
    predict = ["predict", trained, image, "--probabilities", "--uncertainty", "--device", "cpu"]
    assert run(*predict, "--out", plain, "--largest-component", "--fill-holes") == 0
    assert run(*predict, "--out", views, "--augmentations", 2) == 0
    maps = {}
    for folder in (plain, views):
        probability, entropy, mask = (
            read_volume(folder / f"phantom_007_0000{end}.nii.gz") for end in ("_probability", "_uncertainty", "")
        )
        assert same_geometry(entropy, read_volume(image))
        assert entropy.array.dtype == np.float32
        p = probability.array.astype(float).clip(1e-12, 1 - 1e-12)
        assert np.allclose(entropy.array, -p * np.log2(p) - (1 - p) * np.log2(1 - p), atol=1e-5)
        maps[folder] = probability.array, mask.array == 3
    whole = Postprocessing(largest_component=True, fill_holes=True).apply((maps[plain][0] >= 0.5).astype(np.uint8))
    assert np.array_equal(maps[plain][1], whole == 1)
    assert not np.array_equal(maps[plain][0], maps[views][0])
    assert np.array_equal(maps[views][1], maps[views][0] >= 0.5)


def test_volumes_are_those_of_the_masks(
    trained: Path, phantoms: Path, tmp_path: Path, complaint: Callable[..., str]
) -> None:
    first, second = sorted((phantoms / "imagesTs").iterdir())
    predict = ["predict", trained, "--out", tmp_path, "--device", "cpu"]
    assert run(*predict, first) == 0
    assert (tmp_path / "volumes.csv").read_text().startswith("case,label,voxels,ml\nphantom_007_0000,LV,")
    assert run(*predict, second, "--augmentations", 2) == 0
    with (tmp_path / "volumes.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["case"] for row in rows] == ["phantom_007_0000", "phantom_008_0000"]
    for row in rows:
        mask = read_volume(tmp_path / f"{row['case']}.nii.gz")
        assert int(row["voxels"]) == np.count_nonzero(mask.array)
        assert float(row["ml"]) == pytest.approx(int(row["voxels"]) * mask.voxel_ml, abs=1e-4)
    assert (rows[0]["ml_min"], rows[0]["ml_max"]) == ("", "")
    assert 0 <= float(rows[1]["ml_min"]) <= float(rows[1]["ml_max"])
    assert run("evaluate", tmp_path, phantoms, *LV) == 0
    (tmp_path / "other").mkdir()
    (tmp_path / "other/volumes.csv").write_text("mine")
    predict = ["predict", trained, first, "--out", tmp_path / "other", "--device", "cpu"]
    assert "volumes.csv: not a table that discoseg predict wrote" in complaint(*predict)
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["volumes.csv"]


@pytest.mark.parametrize("codes", ["RAS", "SLA"])
def test_prediction_does_not_depend_on_how_a_file_is_stored(
    codes: str, trained: Path, phantoms: Path, tmp_path: Path
) -> None:
    image = read_volume(phantoms / "imagesTs/phantom_007_0000.nii.gz")
    write_volume(tmp_path / "straight.nii.gz", image)
    write_volume(tmp_path / "turned.mha", image.reoriented(codes))
    files = (tmp_path / "straight.nii.gz", tmp_path / "turned.mha")
    assert run("predict", trained, *files, "--out", tmp_path / "out", "--device", "cpu") == 0
    straight, turned = read_volume(tmp_path / "out/straight.nii.gz"), read_volume(tmp_path / "out/turned.mha")
    assert turned.orientation == codes
    assert np.array_equal(turned.reoriented(straight.orientation).array, straight.array)


def test_resume_needs_no_setting_twice(
    phantoms: Path, seeds: Path, trained: Path, tmp_path: Path, complaint: Callable[..., str]
) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    assert "already in use" in complaint("train", phantoms, "--out", folder)
    assert run("train", phantoms, "--out", folder, "--resume", "--epochs", 3, "--device", "cpu") == 0
    assert len((folder / "metrics.csv").read_text().splitlines()) == 4
    assert "3 epochs are done already" in complaint(
        "train", phantoms, "--out", folder, "--resume", "--epochs", 2, "--device", "cpu"
    )
    line = complaint("train", phantoms, "--out", folder, "--resume", "--crf.sigma", 0.7, "--device", "cpu")
    assert "latest.safetensors: was made with another setting: crf.sigma" in line


def test_patients_without_masks_train_where_nobody_chose_them_to_validate(
    phantoms: Path, seeds: Path, tmp_path: Path
) -> None:
    weak = Path(shutil.copytree(phantoms, tmp_path / "weak"))
    for path in sorted(seeds.glob("phantom_*.nii.gz"))[1:]:
        shutil.copy(path, weak / "labelsTr" / path.name)  # only the first case keeps its complete mask
    assert run("train", weak, *LV, "--method", "partial", "--out", tmp_path / "run", *SMALL, "--seed", 5) == 0
    facts = json.loads((tmp_path / "run/run.json").read_text())
    assert len(facts["training"]) + len(facts["validation"]) == 6
    assert set(facts["validation"]) <= {"phantom_001"}


def test_other_random_seeds_keep_the_split(phantoms: Path, seeds: Path, trained: Path, tmp_path: Path) -> None:
    again = ["--seeds", seeds, "--size-eps", 0.2, "--out", tmp_path / "run", *SMALL, "--seed", 7]
    assert run("train", phantoms, *LV, *again) == 0
    facts = [json.loads((folder / "run.json").read_text()) for folder in (trained, tmp_path / "run")]
    assert facts[0]["validation"] == facts[1]["validation"] != []


def test_one_bad_image_does_not_cost_the_others_their_masks(
    trained: Path, phantoms: Path, tmp_path: Path, complaint: Callable[..., str]
) -> None:
    images = Path(shutil.copytree(phantoms / "imagesTs", tmp_path / "images"))
    (images / "a_broken.nii.gz").write_bytes(b"nothing")
    line = complaint("predict", trained, images, "--out", tmp_path / "out", "--device", "cpu")
    assert "a_broken.nii.gz" in line
    assert "2 of 3 masks were written" in line
    assert len(list((tmp_path / "out").glob("*.nii.gz"))) == 2
    assert len((tmp_path / "out/volumes.csv").read_text().splitlines()) == 3


def test_check_says_what_is_there(phantoms: Path, seeds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", phantoms, *LV, "--seeds", seeds, "--cases") == 0
    printed = capsys.readouterr().out
    for word in ("nnunet", "48×48", "LV", "phantom_003", "no problem found"):
        assert word in printed


def test_check_of_several_structures(
    phantoms: Path, tmp_path: Path, complaint: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("check", phantoms, "--label", "RV,MYO,LV", "--size-ml", "LV=adult-ed,RV=20:200mm,MYO=9:vox") == 0
    printed = capsys.readouterr().out
    assert "note: size of LV: 83 to 218 ml, end-diastolic" in printed
    assert "Hudsmith et al. 2005" in printed
    assert "size bounds of MYO" in printed
    assert run("check", phantoms, "--label", "all", "--size-ml", "LV=9999:,RV=3:") == 2
    assert "problem: phantom_001, LV: the lower size bound of 9999 ml exceeds" in capsys.readouterr().out
    assert "--label is needed" in complaint("check", phantoms, "--size-ml", "60:180")
    assert "--size-ml adult: no size 'adult' of LV is known, only LV adult-ed" in complaint(
        "check", phantoms, *LV, "--size-ml", "adult"
    )
    bounds = tmp_path / "bounds.csv"
    bounds.write_text("case,label,low_vox,high_vox\nphantom_001,LV,1,x\n")
    check = ["check", phantoms, "--label", "LV,RV", "--size-csv", bounds]
    assert f"{bounds} line 2: high_vox must be a number" in complaint(*check)
    assert "one of --size-ml and --size-csv" in complaint(*check, "--size-ml", "LV=1:2")


def test_preset_and_options_make_the_configuration(tmp_path: Path) -> None:
    command = parse(["train", "x", "--out", "y", "--preset", "paper-acdc-rv", "--epochs", "7"])
    assert command.config.epochs == 7  # type: ignore[union-attr]
    assert command.config.crf == PRESETS["paper-acdc-rv"].crf  # type: ignore[union-attr]


# Mistakes


@contextmanager
def _untouched(*folders: Path) -> Iterator[None]:
    """Check that a failing command leaves nothing behind in ``folders``."""
    before = [sorted(folder.rglob("*")) for folder in folders]
    yield
    assert [sorted(folder.rglob("*")) for folder in folders] == before


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (["train", "x", "--out", "y", "--method", "magic"], "--method"),
        (["train", "x", "--out", "y", "--epochs", "many"], "--epochs"),
        (["train", "x", "--out", "y", "--epochs", "0"], "--epochs 0"),
        (["train", "x", "--out", "y", "--size-eps", "-1"], "--size-eps"),
        (["train", "x", "--out", "y", "--size-eps", "1", "--size-ml", "1:2"], "--size-ml"),
        (["train", "x", "--out", "y", "--admm.soft-bounds", "0"], "--admm.soft-bounds 0"),
        (["train", "x", "--out", "y", "--admm.soft-bounds", "1", "--method", "crf"], "--admm.soft-bounds"),
        (["train", "x", "--out", "y", "--preset", "paper-liver"], "--preset paper-liver"),
        (["train", "x", "--out", "y", "--epoch", "3"], "--epoch"),
        (["train", "x"], "--out"),
        (["train", "x", "--out", "y", "--seed", "-1"], "--seed -1"),
        (["train", "x", "--out", "y", "--crf.sigma", "inf"], "--crf.sigma inf"),
        (["train", "x", "--out", "y", "--network.name", "enet", "--network.width", "2"], "--network.width 2"),
        (["phantom", "--out", "y", "--cases", "0"], "0 training"),
        (["predict", "nowhere", "--out", "y"], "IMAGE"),
        (["predict", "nowhere", "a.nii.gz", "--out", "y"], "nowhere"),
        (["predict", "nowhere", "a.nii.gz", "--out", "y", "--augmentations", "-1"], "--augmentations -1"),
        (["evaluate", "nowhere", "nowhere"], "nowhere"),
        (["report", "nowhere", "--out", "y.html"], "nowhere"),
        (["report", "a", "b", "--evaluations", "e.csv", "--out", "y.html"], "1 files for 2 runs"),
        (["check", "nowhere"], "nowhere"),
        (["dance"], "dance"),
    ],
)
def test_wrong_words_name_the_option(
    arguments: list[str],
    culprit: str,
    complaint: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with _untouched(tmp_path):
        assert culprit in complaint(*arguments)


def _spoil_truncated(root: Path) -> str:
    path = root / "imagesTr/phantom_002_0000.nii.gz"
    path.write_bytes(path.read_bytes()[:2000])
    return path.name


def _spoil_missing(root: Path) -> str:
    path = root / "imagesTr/phantom_002_0000.nii.gz"
    path.unlink()
    return path.name


def _spoil_nonsense(root: Path) -> str:
    path = root / "labelsTr/phantom_003.nii.gz"
    path.write_bytes(b"no image at all")
    return path.name


def _change(path: Path, change: Callable[[np.ndarray], np.ndarray]) -> str:
    volume = read_volume(path)
    array = change(volume.array.copy())
    header = volume.header if array.shape == volume.shape else None
    write_volume(path, type(volume)(array, volume.affine, volume.spacing_mm, header))
    return path.name


def _spoil_nan(root: Path) -> str:
    def change(array: np.ndarray) -> np.ndarray:
        array = array.astype(np.float32)
        array[0, 0, 0] = np.nan
        return array

    return _change(root / "imagesTr/phantom_001_0000.nii.gz", change)


def _spoil_constant(root: Path) -> str:
    return _change(root / "imagesTr/phantom_001_0000.nii.gz", np.ones_like)


def _spoil_shape(root: Path) -> str:
    return _change(root / "labelsTr/phantom_001.nii.gz", lambda array: array[:, 1:])


def _spoil_affine(root: Path) -> str:
    path = root / "labelsTr/phantom_001.nii.gz"
    volume = read_volume(path)
    affine = volume.affine.copy()
    affine[0, 3] += 30
    write_volume(path, type(volume)(volume.array, affine, volume.spacing_mm))
    return path.name


def _spoil_values(root: Path) -> str:
    return _change(root / "labelsTr/phantom_001.nii.gz", lambda array: np.where(array == 2, 77, array))


def _spoil_json(root: Path) -> str:
    (root / "dataset.json").write_text("{")
    return "dataset.json"


def _spoil_empty(root: Path) -> str:
    for folder in ("imagesTr", "labelsTr", "imagesTs", "labelsTs"):
        shutil.rmtree(root / folder)
    return str(root)


SPOILS = [
    _spoil_truncated,
    _spoil_missing,
    _spoil_nonsense,
    _spoil_nan,
    _spoil_constant,
    _spoil_shape,
    _spoil_affine,
    _spoil_values,
    _spoil_json,
    _spoil_empty,
]


@pytest.mark.parametrize("spoil", SPOILS)
def test_spoilt_dataset_is_named_by_check_and_by_training(
    spoil: Callable[[Path], str],
    broken: Path,
    tmp_path: Path,
    complaint: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    culprit = spoil(broken)
    with _untouched(broken):
        line = complaint("train", broken, *LV, "--method", "full", "--out", tmp_path / "run", *SMALL)
    assert culprit in line or culprit.replace(".nii.gz", "") in line
    assert not (tmp_path / "run").exists()
    assert run("check", broken) == 2
    printed = capsys.readouterr()
    assert culprit in (printed.out + printed.err).replace("\n", "")


def test_annotations_that_cannot_train(
    phantoms: Path, seeds: Path, tmp_path: Path, complaint: Callable[..., str]
) -> None:
    out = ["--out", tmp_path / "run", *SMALL]
    assert "--label is needed" in complaint("train", phantoms, *out)
    assert "'liver'" in complaint("train", phantoms, "--label", "liver", *out)
    assert "every voxel is annotated already" in complaint("train", phantoms, *LV, "--size-eps", 0.1, *out)
    assert "--size-eps, --size-ml or --size-csv" in complaint("train", phantoms, *LV, "--seeds", seeds, *out)
    assert "no training case has a foreground seed" in complaint(
        "train", phantoms, "--label", "RV", "--seeds", seeds, "--method", "partial", *out
    )
    empty = tmp_path / "empty"
    empty.mkdir()
    assert str(empty) in complaint("train", phantoms, *LV, "--seeds", empty, "--method", "partial", *out)
    some = Path(shutil.copytree(seeds, tmp_path / "some"))
    (some / "phantom_002.nii.gz").unlink()
    (some / "phantom_003.nii.gz").unlink()
    line = complaint("train", phantoms, *LV, "--seeds", some, "--method", "partial", *out)
    assert "no weak label map for case phantom_00" in line
    assert not (tmp_path / "run").exists()


def test_infeasible_bounds_name_the_case(
    phantoms: Path, seeds: Path, tmp_path: Path, complaint: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    train = ["train", phantoms, *LV, "--seeds", seeds, "--out", tmp_path / "run", *SMALL]
    assert "foreground seeds exceed the upper size bound" in complaint(*train, "--size-ml", ":0.1")
    assert "exceeds the" in complaint(*train, "--size-ml", "900:")
    assert "exceeds the upper one" in complaint(*train, "--size-ml", "180:60")
    assert "looks like 60:180" in complaint(*train, "--size-ml", "60-180")
    bounds = tmp_path / "bounds.csv"
    bounds.write_text("case,low_ml,high_ml\nphantom_001,1,900\n")
    assert "bounds.csv: no bounds for case phantom_00" in complaint(*train, "--size-csv", bounds)
    bounds.write_text("case,low_ml\nphantom_001,1\n")
    assert "bounds.csv line 1" in complaint(*train, "--size-csv", bounds)
    assert run("check", phantoms, *LV, "--seeds", seeds, "--size-ml", ":0.1") == 2
    assert "phantom_001: " in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


def test_clicks_that_lie_elsewhere(phantoms: Path, tmp_path: Path, complaint: Callable[..., str]) -> None:
    clicks, out = tmp_path / "clicks.json", tmp_path / "seeds"
    command = ["seeds", phantoms, *LV, "--clicks", clicks, "--out", out]
    clicks.write_text('{"phantom_002": {"voxel": [480, 3, 2]}}')
    line = complaint(*command)
    assert "clicks.json: the click of case phantom_002" in line
    assert "outside its volume" in line
    clicks.write_text('{"phantom_099": {"voxel": [4, 3, 2]}}')
    assert "clicks.json: case phantom_099 is not in" in complaint(*command)
    clicks.write_text('{"phantom_002": {"voxel": [4, 3]}}')
    assert "phantom_002" in complaint(*command)
    assert not out.exists()


def test_outputs_are_never_overwritten(
    trained: Path, phantoms: Path, seeds: Path, tmp_path: Path, complaint: Callable[..., str]
) -> None:
    image = phantoms / "imagesTs/phantom_007_0000.nii.gz"
    (tmp_path / image.name).write_text("mine")
    (tmp_path / "page.html").write_text("mine")
    (tmp_path / "scores.csv").write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/phantom_007_0000_probability.nii.gz").write_text("mine")
    (tmp_path / "out/phantom_007_0000_uncertainty.nii.gz").write_text("mine")
    with _untouched(tmp_path):
        assert "already exists" in complaint("predict", trained, image, "--out", tmp_path, "--device", "cpu")
        predict = ["predict", trained, image, "--out", tmp_path / "out", "--probabilities", "--device", "cpu"]
        assert "probability.nii.gz: already exists" in complaint(*predict)
        predict[-3] = "--uncertainty"
        assert "uncertainty.nii.gz: already exists" in complaint(*predict)
        labels = phantoms / "labelsTr"
        assert "scores.csv" in complaint("evaluate", labels, labels, "--out", tmp_path / "scores.csv")
        assert ".csv or .json" in complaint("evaluate", labels, labels, "--out", tmp_path / "scores.txt")
        assert "page.html" in complaint("report", trained, "--out", tmp_path / "page.html")
        assert "already in use" in complaint("seeds", phantoms, *LV, "--out", tmp_path)
        assert str(tmp_path) in complaint("phantom", "--out", tmp_path)
    assert (tmp_path / image.name).read_text() == "mine"
    assert (tmp_path / "page.html").read_text() == "mine"


def test_lack_of_memory_ends_in_one_line(
    trained: Path, complaint: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: object, terminal: object) -> int:
        raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later")

    monkeypatch.setattr("discoseg.commands.results.Info.run", refuse)
    assert "out of memory (CUDA error: out of memory CUDA kernel errors" in complaint("info", trained)


def test_full_disk_ends_in_one_line_and_keeps_the_checkpoint(
    trained: Path, phantoms: Path, tmp_path: Path, complaint: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    before = (folder / "checkpoints/latest.safetensors").read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    resume = ["train", phantoms, "--out", folder, "--resume", "--epochs", 3, "--device", "cpu"]
    assert "No space left on device" in complaint(*resume)
    image = phantoms / "imagesTs/phantom_007_0000.nii.gz"
    assert "No space left" in complaint("predict", trained, image, "--out", tmp_path / "out", "--device", "cpu")
    monkeypatch.undo()
    assert (folder / "checkpoints/latest.safetensors").read_bytes() == before
    assert not list((tmp_path / "out").iterdir())
    assert run(*resume) == 0


def test_states_that_cannot_be_resumed(
    trained: Path, phantoms: Path, tmp_path: Path, complaint: Callable[..., str]
) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    resume = ["train", phantoms, "--out", folder, "--resume", "--epochs", 3, "--device", "cpu"]
    shutil.copy(folder / "checkpoints/best.safetensors", folder / "checkpoints/latest.safetensors")
    assert "latest.safetensors: a model, not the state of a training" in complaint(*resume)
    for text in ("[]", '{"sources": {}}', "{"):
        (folder / "run.json").write_text(text)
        assert "run.json is missing or broken" in complaint(*resume)
    (folder / "config.toml").unlink()
    assert "nothing to resume" in complaint(*resume)
    assert "nothing to resume" in complaint("train", phantoms, "--out", tmp_path / "nowhere", "--resume")


def test_held_out_case_without_mask_or_seeds_is_left_out(phantoms: Path, tmp_path: Path) -> None:
    part = Path(shutil.copytree(phantoms, tmp_path / "part"))
    everything = ["--out", tmp_path / "first", *SMALL, "--epochs", 1]
    assert run("train", part, *LV, "--method", "full", *everything) == 0
    (held_out,) = json.loads((tmp_path / "first/run.json").read_text())["validation"]
    (part / f"labelsTr/{held_out}.nii.gz").unlink()
    assert run("seeds", part, *LV, "--out", tmp_path / "seeds", "--grid", 32, 32) == 0
    weak = ["--seeds", tmp_path / "seeds", "--method", "partial", "--out", tmp_path / "second", *SMALL]
    assert run("train", part, *LV, *weak) == 0
    facts = json.loads((tmp_path / "second/run.json").read_text())
    assert facts["validation"] == []
    assert held_out not in facts["training"]


def test_models_that_cannot_be_loaded(trained: Path, tmp_path: Path, complaint: Callable[..., str]) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    best = folder / "checkpoints/best.safetensors"
    best.write_bytes(best.read_bytes()[:-100])
    predict = ["predict", folder, tmp_path / "x.nii.gz", "--out", tmp_path / "out", "--device", "cpu"]
    assert "best.safetensors: not a complete discoseg checkpoint" in complaint(*predict)
    shutil.rmtree(folder / "checkpoints")
    assert "finish its training first" in complaint(*predict)
    assert "x.nii.gz" in complaint("predict", trained, *predict[2:])


def test_interruption_says_how_to_go_on(
    phantoms: Path, seeds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object, **keywords: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("discoseg.workflow.fit", interrupt)
    again = f"discoseg train {phantoms} {' '.join(LV)} --out {tmp_path}/run"
    assert run("train", phantoms, *LV, "--out", tmp_path / "run") == 130
    assert capsys.readouterr().err == f"discoseg: interrupted; go on with: {again}\n"
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.toml").write_text("")
    assert run("train", phantoms, *LV, "--out", tmp_path / "run") == 130
    assert capsys.readouterr().err == f"discoseg: interrupted; go on with: {again} --resume\n"
