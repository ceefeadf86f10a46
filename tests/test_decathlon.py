"""The Decathlon's dataset.json lists the cases; several modalities lie in one 4D file."""

import json
from pathlib import Path
from typing import Any

import pytest

from discoseg.data.layouts import find_dataset
from discoseg.errors import UserError

LABELS = {"0": "background", "1": "PZ", "2": "TZ"}
TRAINING = [{"image": "./imagesTr/b.nii.gz", "label": "./labelsTr/b.nii.gz"}, {"image": "./imagesTr/a.nii.gz"}]


def make(root: Path, about: dict[str, Any], *files: str) -> Path:
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (root / "dataset.json").write_text(json.dumps(about))
    return root


def test_decathlon(tmp_path: Path) -> None:
    hidden = {"image": "./imagesTr/._a.nii.gz", "label": "./labelsTr/._a.nii.gz"}
    about = {
        "name": "PROSTATE",
        "tensorImageSize": "4D",
        "modality": {"0": "T2", "1": "ADC"},
        "labels": LABELS,
        "numTraining": 2,
        "training": [*TRAINING, hidden],
        "test": ["./imagesTs/t.nii.gz", "./imagesTs/._t.nii.gz"],
    }
    dataset = find_dataset(make(tmp_path, about, "imagesTr/a.nii.gz", "imagesTr/._a_0000.nii.gz"))
    assert (dataset.layout, dataset.labels, dataset.ignore) == ("decathlon", {"background": 0, "PZ": 1, "TZ": 2}, 3)
    assert [(case.name, case.test) for case in dataset.cases] == [("a", False), ("b", False), ("t", True)]
    first, second, _ = dataset.cases
    assert first.label is None
    assert second.label == tmp_path / "labelsTr" / "b.nii.gz"
    assert second.images == (tmp_path / "imagesTr" / "b.nii.gz[0]", tmp_path / "imagesTr" / "b.nii.gz[1]")


def test_one_modality_is_one_file(tmp_path: Path) -> None:
    about = {"modality": {"0": "CT"}, "labels": LABELS, "training": TRAINING}
    dataset = find_dataset(make(tmp_path, about))
    assert dataset.cases[0].images == (tmp_path / "imagesTr" / "a.nii.gz",)


def test_nnunets_version_1_lists_files_under_other_names(tmp_path: Path) -> None:
    about = {"modality": {"0": "CT"}, "labels": LABELS, "training": TRAINING}
    assert find_dataset(make(tmp_path, about, "imagesTr/a_0000.nii.gz")).layout == "nnunet"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"training": []}, "'training' names no image; list them"),
        ({"training": [{"label": "a.nii.gz"}]}, "'training' entry 0 must name an image and its label map"),
        ({"training": ["a.txt"]}, "'training' entry 0 must name"),
        ({"training": [*TRAINING, {"image": "a.nii.gz", "label": 3}]}, "'training' entry 2 must name"),
        ({"test": "imagesTs"}, "'test' must be a list of images"),
        ({"labels": {"0": "background"}}, "at least one structure"),
        ({"labels": None}, "at least one structure"),
        ({"modality": "MRI"}, "must be an object of names"),
    ],
)
def test_a_list_that_cannot_work_is_named(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    make(tmp_path, {"modality": {"0": "CT"}, "labels": LABELS, "training": TRAINING, **change})
    with pytest.raises(UserError, match=rf"^[^\n]*dataset\.json: [^\n]*{complaint}[^\n]*$"):
        find_dataset(tmp_path)
