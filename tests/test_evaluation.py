import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from discoseg.data.volume import Volume, write_volume
from discoseg.errors import UserError
from discoseg.evaluation import Evaluation, Score, evaluate, print_evaluation, write_evaluation

SPACING_MM = (5.0, 2.0, 1.0)  # (z, y, x)


def cube(low: int = 2, high: int = 6, *, label: int = 1) -> NDArray[np.uint8]:
    array = np.zeros((4, 10, 12), dtype=np.uint8)
    array[1:3, low:high, low:high] = label
    return array


def save(path: Path, array: NDArray, *, flip_x: bool = False, shift_mm: float = 0.0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    affine = np.diag([*SPACING_MM[::-1], 1.0])
    affine[0, 3] = shift_mm
    volume = Volume(array, affine, SPACING_MM)
    write_volume(path, volume.reoriented("LAS") if flip_x else volume)


def test_scores_one_case(tmp_path: Path) -> None:
    save(tmp_path / "p/a.nii.gz", cube())
    save(tmp_path / "r/a_gt.nii.gz", cube(low=3))
    (score,) = evaluate(tmp_path / "p", tmp_path / "r").scores
    assert (score.case, score.label) == ("a", 1)
    assert score.dice == pytest.approx(2 * 18 / (32 + 18))
    assert 2.0 < score.hd95_mm < math.hypot(2.0, 1.0)  # one voxel off in y and in x at the worst corner
    assert 0 < score.asd_mm < score.hd95_mm
    assert score.predicted_ml == pytest.approx(32 * 10 / 1000)
    assert score.reference_ml == pytest.approx(18 * 10 / 1000)


def test_matches_by_case_and_names_what_is_missing(tmp_path: Path) -> None:
    for name in ("a", "b_0000", "only_here"):
        save(tmp_path / f"p/{name}.nii.gz", cube())
    save(tmp_path / "p/a_probability.nii.gz", cube().astype(np.float32) / 3)
    for name in ("a_segmentation", "b_segmentation", "only_there_segmentation", "a"):
        save(tmp_path / f"r/{name}.mha", cube())  # "a" lies beside its segmentation: an image
    found = evaluate(tmp_path / "p", tmp_path / "r")
    assert [(s.case, s.dice) for s in found.scores] == [("a", 1.0), ("b", 1.0)]
    assert found.missing_predictions == ("only_there",)
    assert found.missing_references == ("only_here",)


def test_takes_the_references_and_label_names_of_a_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = np.maximum(cube(label=3), cube(low=7, high=9, label=1))
    folder = tmp_path / "acdc/patient001"
    for frame in ("01", "12"):
        save(folder / f"patient001_frame{frame}.nii.gz", cube())
        save(folder / f"patient001_frame{frame}_gt.nii.gz", both)
    (folder / "Info.cfg").write_text("ED: 1\nES: 12\n")
    save(tmp_path / "p/patient001_frame12.nii.gz", cube(label=3))
    found = evaluate(tmp_path / "p", tmp_path / "acdc")
    assert [(s.label, s.dice) for s in found.scores] == [(3, 1.0)]  # the structure that is predicted
    assert found.never_predicted == (1,)
    print_evaluation(found)
    assert "no prediction has it: RV" in capsys.readouterr().out
    found = evaluate(tmp_path / "p", tmp_path / "acdc", labels=("RV", "LV"))
    assert [(s.label, s.dice) for s in found.scores] == [(1, 0.0), (3, 1.0)]
    save(tmp_path / "p/patient001_frame12.nii.gz", np.zeros_like(both))
    assert [s.label for s in evaluate(tmp_path / "p", tmp_path / "acdc").scores] == [1, 3]
    assert found.missing_predictions == ("patient001_frame01",)
    assert found.names is not None
    assert found.names[3] == "LV"
    assert [s.label for s in evaluate(tmp_path / "p", tmp_path / "acdc", labels=["LV"]).scores] == [3]


def test_leaves_unannotated_voxels_out(tmp_path: Path) -> None:
    reference = cube()
    reference[:, :, 6:] = 2  # "ignore"
    save(tmp_path / "d/labelsTr/a.nii.gz", reference)
    save(tmp_path / "d/imagesTr/a_0000.nii.gz", cube())
    about = {"labels": {"background": 0, "organ": 1, "ignore": 2}, "channel_names": {"0": "MR"}}
    (tmp_path / "d/dataset.json").write_text(json.dumps(about | {"file_ending": ".nii.gz", "numTraining": 1}))
    prediction = cube()
    prediction[1:3, 2:6, 6:9] = 1
    save(tmp_path / "p/a.nii.gz", prediction)
    (score,) = evaluate(tmp_path / "p", tmp_path / "d").scores
    assert (score.label, score.dice, score.hd95_mm) == (1, 1.0, 0.0)
    assert score.predicted_ml > score.reference_ml


def test_compares_in_the_world_not_in_the_file(tmp_path: Path) -> None:
    save(tmp_path / "p/a.nii.gz", cube(), flip_x=True)
    save(tmp_path / "r/a.nii.gz", cube())
    assert evaluate(tmp_path / "p", tmp_path / "r").scores[0].dice == 1.0


def test_accepts_two_files(tmp_path: Path) -> None:
    save(tmp_path / "p/a.nii.gz", cube())
    save(tmp_path / "r/a_gt.nii.gz", cube())
    assert evaluate(tmp_path / "p/a.nii.gz", tmp_path / "r/a_gt.nii.gz").scores[0].dice == 1.0


def test_summary_leaves_undefined_distances_out(tmp_path: Path) -> None:
    save(tmp_path / "p/a.nii.gz", cube())
    save(tmp_path / "p/b.nii.gz", np.zeros_like(cube()))
    for name in "ab":
        save(tmp_path / f"r/{name}.nii.gz", cube())
    found = evaluate(tmp_path / "p", tmp_path / "r")
    assert math.isnan(found.scores[1].hd95_mm)
    (summary,) = found.summaries()
    assert (summary.cases, summary.surfaces) == (2, 1)
    assert (summary.dice_mean, summary.dice_std) == (0.5, 0.5)
    assert (summary.hd95_mm_mean, summary.asd_mm_std) == (0.0, 0.0)


def test_writes_csv_and_json(tmp_path: Path) -> None:
    scores = (Score("a", 1, 0.5, 2.0, 1.0, 3.0, 4.0), Score("b", 1, 0.0, math.nan, math.nan, 0.0, 4.0))
    found = Evaluation(scores, missing_predictions=("c",))
    write_evaluation(tmp_path / "e.csv", found)
    with (tmp_path / "e.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["case"], float(row["dice"])) for row in rows] == [("a", 0.5), ("b", 0.0)]
    write_evaluation(tmp_path / "e.json", found)
    document = json.loads((tmp_path / "e.json").read_text())
    assert document["cases"][1]["hd95_mm"] is None
    assert document["summary"][0]["dice_mean"] == 0.25
    assert document["missing_predictions"] == ["c"]
    with pytest.raises(UserError, match=r"e\.txt: .*\.csv or \.json"):
        write_evaluation(tmp_path / "e.txt", found)
    assert {path.name for path in tmp_path.iterdir()} == {"e.csv", "e.json"}


def test_training_and_held_out_cases_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "abc":
        save(tmp_path / f"p/{name}_0000.nii.gz", cube() if name != "a" else np.roll(cube(), 1))
        save(tmp_path / f"r/{name}.nii.gz", cube())
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text('{"training": ["b", "z"], "validation": ["a"]}')
    found = evaluate(tmp_path / "p", tmp_path / "r", run=tmp_path / "run")
    assert [(score.case, score.part) for score in found.scores] == [("a", "validation"), ("b", "training"), ("c", None)]
    assert [(s.part, s.cases) for s in found.summaries()] == [(None, 1), ("training", 1), ("validation", 1)]
    assert found.summaries()[1].dice_mean == 1.0 > found.summaries()[2].dice_mean
    write_evaluation(tmp_path / "e.csv", found)
    with (tmp_path / "e.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header[-1] == "part"  # behind what was there before
    assert [row[-1] for row in rows] == ["validation", "training", ""]
    write_evaluation(tmp_path / "e.json", found)
    assert [case["part"] for case in json.loads((tmp_path / "e.json").read_text())["cases"]][1:] == ["training", None]
    print_evaluation(found)
    assert ["mean", "of", "1", "training", "1", "1.000", "0.00", "0.00"] in [
        line.split() for line in capsys.readouterr().out.splitlines()
    ]
    with pytest.raises(UserError, match=r"p: not a run folder: .*run\.json is missing or broken"):
        evaluate(tmp_path / "p", tmp_path / "r", run=tmp_path / "p")


def test_prints_cases_means_and_missing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    first = Score("patient001_frame01", 3, 0.5, 12.0, 1.0, 103.0, 104.0)
    second = Score("patient001_frame12", 3, 0.7, math.nan, math.nan, 0.0, 4.0)
    print_evaluation(Evaluation((first, second), missing_predictions=("c", "d"), names={3: "LV"}))
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["patient001_frame01", "LV", "0.500", "12.00", "1.00", "103.0", "104.0"] in rows
    assert ["patient001_frame12", "LV", "0.700", "–", "–", "0.0", "4.0"] in rows
    assert ["mean", "of", "2", "LV", "0.600", "12.00", "1.00"] in rows
    assert ["±", "LV", "0.100", "0.00", "0.00"] in rows
    assert ["2", "without", "prediction:", "c,", "d"] in rows


def test_refuses_what_does_not_fit_its_reference(tmp_path: Path) -> None:
    save(tmp_path / "r/a.nii.gz", cube())
    save(tmp_path / "shape/a.nii.gz", cube()[:, :, :-1])
    save(tmp_path / "affine/a.nii.gz", cube(), shift_mm=3.0)
    save(tmp_path / "fraction/a.nii.gz", cube().astype(np.float32) / 2)
    for folder, reason in (("shape", "11×10×4"), ("affine", "3 mm"), ("fraction", "no label map")):
        with pytest.raises(UserError, match=reason) as error:
            evaluate(tmp_path / folder, tmp_path / "r")
        assert str(tmp_path / folder / "a.nii.gz") in str(error.value)


def test_refuses_nothing_to_compare(tmp_path: Path) -> None:
    save(tmp_path / "p/a.nii.gz", cube())
    save(tmp_path / "r/b.nii.gz", cube())
    save(tmp_path / "black/a.nii.gz", np.zeros_like(cube()))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no case of .*\(a\) has a reference in .*\(b\)"):
        evaluate(tmp_path / "p", tmp_path / "r")
    with pytest.raises(UserError, match="empty holds no label map"):
        evaluate(tmp_path / "empty", tmp_path / "r")
    with pytest.raises(UserError, match="nowhere does not exist"):
        evaluate(tmp_path / "nowhere", tmp_path / "r")
    with pytest.raises(UserError, match="black: only background"):
        evaluate(tmp_path / "black", tmp_path / "black")
    with pytest.raises(UserError, match="'LV'"):
        evaluate(tmp_path / "p/a.nii.gz", tmp_path / "p", labels=["LV"])


def test_refuses_an_unreadable_file_and_a_case_twice(tmp_path: Path) -> None:
    save(tmp_path / "r/a.nii.gz", cube())
    (tmp_path / "p").mkdir()
    (tmp_path / "p/a.nii.gz").write_bytes(b"not an image")
    with pytest.raises(UserError, match=r"a\.nii\.gz"):
        evaluate(tmp_path / "p", tmp_path / "r")
    save(tmp_path / "p/a.mha", cube())
    with pytest.raises(UserError, match="same case"):
        evaluate(tmp_path / "p", tmp_path / "r")
