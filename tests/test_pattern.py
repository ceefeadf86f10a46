"""A discoseg.json says by patterns where images and label maps are, and what their values mean."""

import json
from pathlib import Path
from typing import Any

import pytest

from discoseg.data.layouts import Dataset, find_dataset
from discoseg.errors import UserError


def make(root: Path, about: Any, *files: str) -> Path:
    root.mkdir(exist_ok=True)
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (root / "discoseg.json").write_text(about if isinstance(about, str) else json.dumps(about))
    return root


def found(dataset: Dataset) -> list[tuple[str, list[str], str | None]]:
    return [(c.name, [path.name for path in c.images], c.label.name if c.label else None) for c in dataset.cases]


def test_images_and_labels_in_one_folder(tmp_path: Path) -> None:
    about = {"images": "{case}.nii.gz", "labels": "{case}_seg.nii.gz", "names": {"LV": 3, "RV": 1}, "ignore": 9}
    names = ("b.nii.gz", "b_seg.nii.gz", "a.nii.gz", "._a.nii.gz", "notes.txt", "c.mha")
    dataset = find_dataset(make(tmp_path, about, *names))
    assert (dataset.layout, dataset.labels, dataset.ignore) == ("pattern", {"background": 0, "LV": 3, "RV": 1}, 9)
    assert found(dataset) == [("a", ["a.nii.gz"], None), ("b", ["b.nii.gz"], "b_seg.nii.gz")]


def test_a_folder_for_each_case_and_a_file_for_each_channel(tmp_path: Path) -> None:
    about = {"images": ["{case}/{case}_t1.nii", "./{case}/{case}_t2.nii"], "labels": "{case}/mask.nii"}
    files = ("p1/p1_t1.nii", "p1/p1_t2.nii", "p1/mask.nii", "p2/p2_t1.nii", "p3/p1_t1.nii")
    dataset = find_dataset(make(tmp_path, about, *files))
    assert found(dataset) == [
        ("p1", ["p1_t1.nii", "p1_t2.nii"], "mask.nii"),
        ("p2", ["p2_t1.nii", "p2_t2.nii"], None),  # a check names the file that is not there
    ]
    assert (dataset.labels, dataset.ignore) == ({"background": 0, "foreground": 1}, 2)


def test_the_shorter_pattern_may_be_any_channels(tmp_path: Path) -> None:
    about = {"images": ["{case}_t1.nii", "{case}.nii"]}
    dataset = find_dataset(make(tmp_path, about, "a.nii", "a_t1.nii", "b.nii", "b_t1.nii"))
    assert found(dataset) == [("a", ["a_t1.nii", "a.nii"], None), ("b", ["b_t1.nii", "b.nii"], None)]


def test_patients_and_groups(tmp_path: Path) -> None:
    about = {"images": "{patient}/{case}_{group}.nii.gz"}
    dataset = find_dataset(make(tmp_path, about, "p1/x_1_ED.nii.gz", "p1/y_ES.nii.gz", "p2/z_ED.nii.gz"))
    assert [(case.name, case.patient, case.group) for case in dataset.cases] == [
        ("x_1", "p1", "ED"),
        ("y", "p1", "ES"),
        ("z", "p2", "ED"),
    ]


def test_patients_make_names_unique_where_they_must(tmp_path: Path) -> None:
    about = {"images": "sub-{patient}/{case}/t1.nii", "labels": "sub-{patient}/{case}/mask.nii"}
    files = ("sub-1/a/t1.nii", "sub-1/b/t1.nii", "sub-2/a/t1.nii", "sub-2/a/mask.nii")
    dataset = find_dataset(make(tmp_path, about, *files))
    assert [(case.name, case.patient) for case in dataset.cases] == [("1_a", "1"), ("1_b", "1"), ("2_a", "2")]
    assert dataset.cases[2].label == tmp_path / "sub-2" / "a" / "mask.nii"


def test_files_may_lie_elsewhere(tmp_path: Path) -> None:
    make(tmp_path / "far", "", "images/[1] a.nii.gz", "labels/[1] a.png")
    about = {"images": "../far/images/{case}.nii.gz", "labels": f"{tmp_path}/far/labels/{{case}}.png"}
    (case,) = find_dataset(make(tmp_path / "here", about)).cases
    assert case.name == "[1] a"
    assert case.images[0].samefile(tmp_path / "far" / "images" / "[1] a.nii.gz")
    assert case.label == tmp_path / "far" / "labels" / "[1] a.png"


def test_channels_of_one_file(tmp_path: Path) -> None:
    about = {"images": ["{case}.nii.gz[10]", "{case}.nii.gz[0]"], "labels": f"{tmp_path}/{{case}}_y.nii.gz"}
    dataset = find_dataset(make(tmp_path, about, "a.nii.gz", "a_y.nii.gz"))
    assert found(dataset) == [("a", ["a.nii.gz[10]", "a.nii.gz[0]"], "a_y.nii.gz")]


def test_a_mask_of_255(tmp_path: Path) -> None:
    dataset = find_dataset(make(tmp_path, {"images": "{case}.png", "names": {"lesion": 255}}, "a.png"))
    assert (dataset.labels, dataset.ignore) == ({"background": 0, "lesion": 255}, 254)


@pytest.mark.parametrize(
    ("about", "complaint"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "must be a JSON object with the entry 'images'"),
        ({"image": "{case}.nii"}, "unknown entry 'image'; known are images, labels"),
        ({"images": "a.nii"}, "'images' must be a pattern with {case}"),
        ({"images": 3}, "'images' must be a pattern with {case}"),
        ({"images": []}, "'images' is empty; give a pattern"),
        ({"images": "{case}.dcm"}, r"'{case}\.dcm' must end in one of \.nii\.gz"),
        ({"images": "{case}/{scan}.nii"}, "{case}, {patient} and {group} in braces, nothing else"),
        ({"images": "{case}.nii", "labels": "{patient}/{case}.nii"}, "has {patient}, which '{case}.nii' lacks"),
        ({"images": "{case}.nii", "cases": "cases.csv"}, "not both"),
        ({"images": "{case}.mha"}, r"no file fits 'images', '{case}\.mha', relative to"),
        ({"images": "{group}/{case}.nii"}, "are both case 'x'; let {case} stand for more"),
        ({"images": "{case}.nii", "names": ["LV"]}, "'names' must give every structure its value"),
        ({"images": "{case}.nii", "names": {}}, "at least one structure"),
        ({"images": "{case}.nii", "names": {"LV": [1, 2]}}, r"'LV' is a region of several values, \[1, 2\]: give"),
        ({"images": "{case}.nii", "names": {"LV": "one"}}, "'LV' must be one whole number from 0 to 255"),
        ({"images": "{case}.nii", "names": {"LV": 300}}, "'LV' must be one whole number from 0 to 255"),
        ({"images": "{case}.nii", "names": {"LV": 1}, "ignore": 1}, "a value of its own"),
        ({"images": "{case}.nii", "names": {"LV": 1}, "ignore": "none"}, "'ignore' must be one whole number"),
    ],
)
def test_a_discoseg_json_that_cannot_work_is_named(tmp_path: Path, about: Any, complaint: str) -> None:
    make(tmp_path, about, "a.nii", "p/x.nii", "q/x.nii")
    with pytest.raises(UserError, match=rf"^[^\n]*discoseg\.json[^\n]*{complaint}[^\n]*$"):
        find_dataset(tmp_path)


def test_a_label_map_without_an_image_is_named(tmp_path: Path) -> None:
    make(tmp_path, {"images": "{case}.nii", "labels": "{case}_seg.nii"}, "a.nii", "b_seg.nii")
    with pytest.raises(UserError, match=r"b_seg\.nii has no image that fits '{case}\.nii': add it, or correct .*json$"):
        find_dataset(tmp_path)


def test_a_table_may_get_its_names_there(tmp_path: Path) -> None:
    make(tmp_path, {"names": {"LV": 3}, "cases": "list.csv"}, "a.nii")
    (tmp_path / "list.csv").write_text("case,image\na,a.nii\n")
    dataset = find_dataset(tmp_path)
    assert (dataset.layout, dataset.labels, dataset.ignore) == ("table", {"background": 0, "LV": 3}, 4)
    (tmp_path / "list.csv").unlink()
    with pytest.raises(UserError, match=r"^cannot read .*list\.csv: No such file"):
        find_dataset(tmp_path)
