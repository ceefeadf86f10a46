"""Folders of files become cases, whichever layout they have."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from discoseg.data.layouts import Dataset, find_dataset, find_weak_maps
from discoseg.errors import UserError

needs_data = pytest.mark.skipif("DISCOSEG_DATA" not in os.environ, reason="DISCOSEG_DATA is not set")


def touch(root: Path, *names: str) -> Path:
    """Create empty files: finding a dataset reads no voxels."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


def make_acdc(root: Path, patients: dict[str, tuple[int, int]]) -> Path:
    for patient, frames in patients.items():
        for frame in frames:
            name = f"{patient}/{patient}_frame{frame:02d}"
            touch(root, f"{name}.nii.gz", f"{name}_gt.nii.gz")
        touch(root, f"{patient}/{patient}_4d.nii.gz")
        (root / patient / "Info.cfg").write_text(f"ED: {frames[0]}\nES: {frames[1]}\nGroup: DCM\n")
    return root


def make_nnunet(root: Path, about: dict[str, Any] | str, *names: str) -> Path:
    touch(root, *names)
    (root / "dataset.json").write_text(about if isinstance(about, str) else json.dumps(about))
    return root


def test_acdc(tmp_path: Path) -> None:
    make_acdc(tmp_path / "training", {"patient001": (1, 12), "patient090": (11, 4)})
    for root in (tmp_path, tmp_path / "training"):
        dataset = find_dataset(root)
        assert dataset.layout == "acdc"
        assert dataset.labels == {"background": 0, "RV": 1, "MYO": 2, "LV": 3}
        assert dataset.ignore == 4
        assert {case.name: case.group for case in dataset.cases} == {
            "patient001_frame01": "ED",
            "patient001_frame12": "ES",
            "patient090_frame11": "ED",
            "patient090_frame04": "ES",
        }
        for case in dataset.cases:
            assert case.images[0].name == f"{case.name}.nii.gz"
            assert case.images[0].is_file()
            assert case.label is not None
            assert case.label.name == f"{case.name}_gt.nii.gz"
            assert case.patient == case.name[:10]
            assert not case.test


def test_acdcs_testing_folder_is_held_out(tmp_path: Path) -> None:
    make_acdc(tmp_path / "training", {"patient001": (1, 12)})
    make_acdc(tmp_path / "testing", {"patient101": (1, 9)})
    assert [case.test for case in find_dataset(tmp_path).cases] == [False, False, True, True]


def test_acdc_with_a_missing_image_still_names_the_file(tmp_path: Path) -> None:
    make_acdc(tmp_path, {"patient001": (1, 12)})
    (tmp_path / "patient001" / "patient001_frame12.nii.gz").unlink()
    (tmp_path / "patient001" / "patient001_frame12_gt.nii.gz").unlink()
    case = find_dataset(tmp_path).cases[1]
    assert case.images[0].name == "patient001_frame12.nii.gz"
    assert case.label is None


def test_acdc_needs_the_frames_of_info_cfg(tmp_path: Path) -> None:
    make_acdc(tmp_path, {"patient001": (1, 12)})
    info = tmp_path / "patient001" / "Info.cfg"
    info.write_text("ED: 1\nES: twelve\n")
    with pytest.raises(UserError, match=r"Info\.cfg.*'ES: NUMBER'"):
        find_dataset(tmp_path)
    info.unlink()
    with pytest.raises(UserError, match=r"Info\.cfg does not exist"):
        find_dataset(tmp_path)


def test_promise12(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "Case00.mhd",
        "Case00.zraw",
        "Case00_segmentation.mhd",
        "Case00_segmentation.zraw",
        "Case01.mhd",
    )
    dataset = find_dataset(tmp_path)
    assert (dataset.layout, dataset.labels, dataset.ignore) == (
        "promise12",
        {"background": 0, "prostate": 1},
        2,
    )
    assert [(c.name, c.patient, c.group) for c in dataset.cases] == [
        ("Case00", "Case00", ""),
        ("Case01", "Case01", ""),
    ]
    assert [c.label and c.label.name for c in dataset.cases] == ["Case00_segmentation.mhd", None]


def test_nnunet(tmp_path: Path) -> None:
    make_nnunet(
        tmp_path,
        {
            "channel_names": {"0": "T2", "1": "ADC"},
            "labels": {"background": 0, "PZ": 1, "TZ": 2, "ignore": 7},
            "file_ending": ".mha",
        },
        "imagesTr/b_1_0000.mha",
        "imagesTr/b_1_0001.mha",
        "imagesTr/a_0000.mha",
        "labelsTr/a.mha",
        "labelsTr/b_1.mha",
        "labelsTr/c.mha",
        "imagesTs/t_0000.mha",
        "imagesTr/other.nii.gz",
    )
    dataset = find_dataset(tmp_path)
    assert (dataset.layout, dataset.ignore) == ("nnunet", 7)
    assert dataset.labels == {"background": 0, "PZ": 1, "TZ": 2}
    assert [(case.name, case.test) for case in dataset.cases] == [
        ("a", False),
        ("b_1", False),
        ("c", False),
        ("t", True),
    ]
    by_name = {case.name: case for case in dataset.cases}
    assert [path.name for path in by_name["b_1"].images] == ["b_1_0000.mha", "b_1_0001.mha"]
    assert by_name["b_1"].label == tmp_path / "labelsTr" / "b_1.mha"
    assert by_name["t"].label is None


def test_frames_of_one_patient_stay_together_in_nnunet(tmp_path: Path) -> None:
    names = [f"imagesTr/patient001_frame{frame}_0000.nii.gz" for frame in ("01", "12")]
    make_nnunet(tmp_path, {"labels": {"background": 0, "LV": 1}}, *names)
    assert {case.patient for case in find_dataset(tmp_path).cases} == {"patient001"}


def test_nnunet_version_1_and_no_ignore(tmp_path: Path) -> None:
    about = {"modality": {"0": "MRI"}, "labels": {"0": "background", "1": "LV", "3": "RV"}}
    dataset = find_dataset(make_nnunet(tmp_path, about, "imagesTr/a_0000.nii.gz"))
    assert dataset.labels == {"background": 0, "LV": 1, "RV": 3}
    assert dataset.ignore == 4


def test_a_coloured_picture_has_all_channels_in_one_file(tmp_path: Path) -> None:
    about = {"channel_names": {"0": "R", "1": "G"}, "labels": {"background": 0, "LV": 255}, "file_ending": ".png"}
    names = ("imagesTr/a_0000.png", "imagesTr/b_0000.png", "imagesTr/b_0001.png", "imagesTr/._b_0001.png", "x.nii")
    dataset = find_dataset(make_nnunet(tmp_path, about, *names))
    assert [[path.name for path in case.images] for case in dataset.cases] == [
        ["a_0000.png[0]", "a_0000.png[1]"],
        ["b_0000.png", "b_0001.png"],
    ]
    assert dataset.ignore == 254  # label maps are uint8


def test_nnunet_with_listed_files(tmp_path: Path) -> None:
    listed = {"b": {"images": ["far/x.nii.gz"], "label": "/y.nii.gz"}, "a": {"images": ["z.mha"], "label": "w.mha"}}
    about = {"labels": {"background": 0, "LV": 1}, "dataset": listed}
    make_nnunet(tmp_path, about, "imagesTr/c_0000.nii.gz", "imagesTs/t_0000.nii.gz")
    dataset = find_dataset(tmp_path)
    assert [(case.name, case.test) for case in dataset.cases] == [("a", False), ("b", False), ("t", True)]
    assert dataset.cases[1].images == (tmp_path / "far" / "x.nii.gz",)
    assert dataset.cases[1].label == Path("/y.nii.gz")
    two = {"a": {"images": ["z.mha", "u.mha"], "label": "w.mha"}}
    several_wrong: list[Any] = [two, [], {"a": {"images": ["z.mha"]}}, {"a": 3}]
    for wrong in several_wrong:
        make_nnunet(tmp_path, {**about, "dataset": wrong})
        with pytest.raises(UserError, match=r"dataset\.json: 'dataset' must give 'a?' 1 'images' .* and a 'label'$"):
            find_dataset(tmp_path)


def test_splits_final_json_beside_dataset_json(tmp_path: Path) -> None:
    make_nnunet(tmp_path, {"labels": {"background": 0, "LV": 1}}, "imagesTr/a_0000.nii.gz")
    assert find_dataset(tmp_path).split is None
    (tmp_path / "splits_final.json").write_text("[]")
    assert find_dataset(tmp_path).split == tmp_path / "splits_final.json"


@pytest.mark.parametrize(
    ("about", "complaint"),
    [
        ("{", "JSON"),
        ("[]", "labels"),
        ({}, "labels"),
        ({"labels": {"background": 0}}, "at least one structure"),
        ({"labels": {"background": 0, "whole": [1, 2]}}, "'whole' is a region"),
        ({"labels": {"background": 1, "LV": 0}}, "background 0"),
        ({"labels": {"background": 0, "LV": 1, "RV": 1}}, "value of its own"),
        ({"labels": {"background": 0, "LV": 1}, "file_ending": ".bmp"}, "file_ending"),
        ({"labels": {"background": 0, "LV": 1}, "file_ending": ".mha"}, "no case"),
    ],
)
def test_a_dataset_json_that_cannot_work_is_named(tmp_path: Path, about: dict[str, Any] | str, complaint: str) -> None:
    make_nnunet(tmp_path, about, "imagesTr/a_0000.nii.gz")
    with pytest.raises(UserError, match=rf"^[^\n]*dataset\.json[^\n]*{complaint}[^\n]*$"):
        find_dataset(tmp_path)


def test_plain_folder(tmp_path: Path) -> None:
    touch(tmp_path, "b.mha", "a.nii.gz", "notes.txt", ".0af3-c.nii.gz")
    dataset = find_dataset(tmp_path)
    assert (dataset.layout, dataset.labels, dataset.ignore) == (
        "folder",
        {"background": 0, "foreground": 1},
        2,
    )
    assert [(case.name, case.label) for case in dataset.cases] == [("a", None), ("b", None)]


def test_images_and_labels_side_by_side(tmp_path: Path) -> None:
    touch(tmp_path, "images/a.mha", "images/b.nii.gz", "labels/a.nii.gz")
    dataset = find_dataset(tmp_path)
    assert [(case.name, case.label and case.label.name) for case in dataset.cases] == [
        ("a", "a.nii.gz"),
        ("b", None),
    ]


def test_an_empty_folder_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"ACDC .*PROMISE12 .*nnU-Net .*Decathlon .*discoseg\.json, .*images"):
        find_dataset(tmp_path)
    with pytest.raises(UserError, match="nowhere does not exist"):
        find_dataset(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"x\.txt is not a folder"):
        find_dataset(touch(tmp_path, "x.txt") / "x.txt")


def test_labels_by_name_or_value(tmp_path: Path) -> None:
    dataset = find_dataset(make_acdc(tmp_path, {"patient001": (1, 12)}))
    assert [dataset.label_value(label) for label in ("LV", "lv", "3", "RV")] == [3, 3, 3, 1]
    for wrong in ("4", "liver", "0", "background"):
        with pytest.raises(UserError, match=rf"'{wrong}'.*RV \(1\), MYO \(2\), LV \(3\)"):
            dataset.label_value(wrong)


@pytest.fixture
def folder_dataset(tmp_path: Path) -> Dataset:
    return find_dataset(touch(tmp_path / "data", "a.nii.gz", "b.nii.gz", "b_2.nii.gz", "c.nii.gz"))


def test_weak_maps_are_found_below(tmp_path: Path, folder_dataset: Dataset) -> None:
    weak = touch(tmp_path / "weak", "a_scribble.nii.gz", "deep/b.mha", "b_2_weak.nii", "x_seeds.nii.gz", "c_gt.nii.gz")
    assert find_weak_maps(weak, folder_dataset) == {
        "a": weak / "a_scribble.nii.gz",
        "b": weak / "deep" / "b.mha",
        "b_2": weak / "b_2_weak.nii",
    }


def test_weak_maps_that_leave_a_doubt_are_refused(tmp_path: Path, folder_dataset: Dataset) -> None:
    with pytest.raises(UserError, match=r"a_seeds.nii.gz.*a.nii.gz.*keep one|a.nii.gz.*a_seeds.nii.gz.*keep one"):
        find_weak_maps(touch(tmp_path / "two", "a.nii.gz", "a_seeds.nii.gz"), folder_dataset)
    with pytest.raises(UserError, match="none has no weak map of any case"):
        find_weak_maps(touch(tmp_path / "none", "x.nii.gz"), folder_dataset)
    with pytest.raises(UserError, match="nowhere does not exist"):
        find_weak_maps(tmp_path / "nowhere", folder_dataset)


@needs_data
def test_real_datasets() -> None:
    data = Path(os.environ["DISCOSEG_DATA"])
    acdc = find_dataset(data / "acdc")
    assert acdc.layout == "acdc"
    assert len(acdc.cases) == len({case.name for case in acdc.cases}) == 200
    assert len({case.patient for case in acdc.cases}) == 100
    assert Counter(case.group for case in acdc.cases) == {"ED": 100, "ES": 100}
    assert {c.name: c.group for c in acdc.cases if c.patient == "patient090"} == {
        "patient090_frame04": "ED",
        "patient090_frame11": "ES",
    }
    assert all(case.images[0].is_file() and case.label for case in acdc.cases)
    assert len(find_weak_maps(data / "acdc_scribbles", acdc)) == 200
    promise12 = find_dataset(data / "promise12")
    assert promise12.layout == "promise12"
    assert len(promise12.cases) == 50
    assert all(case.label for case in promise12.cases)
