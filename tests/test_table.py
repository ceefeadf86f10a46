"""A table of paths: every path is checked, and every error names the line."""

from pathlib import Path

import pytest

from discoseg.data.layouts import find_dataset
from discoseg.errors import UserError


def make(root: Path, text: str) -> Path:
    for name in ("far/a.nii.gz", "far/a_2.nii.gz", "far/b.mha", "a_seg.nii.gz", "notes.txt"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).touch()
    (root / "data").mkdir()
    (root / "data" / "cases.csv").write_text(text, encoding="utf-8")
    return root / "data"


def test_a_table_of_paths(tmp_path: Path) -> None:
    text = (
        "\ufeffCase, image, Label, patient, group, age\n"
        f"b_frame02,../far/b.mha,{tmp_path}/a_seg.nii.gz,,ES,61\n"
        "\n"
        '"a",../far/a.nii.gz,,p7,ED,\n'
    )
    dataset = find_dataset(make(tmp_path, text))
    assert (dataset.layout, dataset.labels, dataset.ignore) == ("table", {"background": 0, "foreground": 1}, 2)
    first, second = dataset.cases
    assert (first.name, first.patient, first.group, first.label) == ("a", "p7", "ED", None)
    assert (second.name, second.patient, second.group) == ("b_frame02", "b", "ES")
    assert first.images[0].samefile(tmp_path / "far" / "a.nii.gz")
    assert second.label == tmp_path / "a_seg.nii.gz"


def test_channels_have_columns(tmp_path: Path) -> None:
    text = "case,image_2,image,image_10\na,../far/a_2.nii.gz,../far/a.nii.gz,../far/a.nii.gz[3]\n"
    (case,) = find_dataset(make(tmp_path, text)).cases
    assert [path.name for path in case.images] == ["a.nii.gz", "a_2.nii.gz", "a.nii.gz[3]"]


def test_other_tables_of_that_name_are_left_alone(tmp_path: Path) -> None:
    root = make(tmp_path, "epoch,case,dice\n1,a,0.5\n")
    with pytest.raises(UserError, match=r"holds no dataset: .*cases\.csv \(columns case, image, label\)"):
        find_dataset(root)
    (root / "x.nii.gz").touch()
    (root / "cases.csv").write_bytes(b"\xff\xfe\x00case")
    assert find_dataset(root).layout == "folder"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", " names no case: add a line"),
        ("a,../far/c.nii.gz,\n", r" line 2: image .*/far/c\.nii\.gz does not exist; correct .* relative to .*data$"),
        ("a,../far/a.nii.gz,x.nii\n", r" line 2: label .*x\.nii does not exist; correct"),
        ("a,../notes.txt,\n", r" line 2: image \.\./notes\.txt must end in one of \.nii\.gz"),
        ("a,,\n", " line 2: image is empty; every case needs one"),
        ("\na,../far/a.nii.gz\n", " line 3: 2 cells where the header has 3; quote"),
        (",../far/a.nii.gz,\n", " line 2: case '' must be a name of its own"),
        ("a/b,../far/a.nii.gz,\n", " line 2: case 'a/b' must be a name of its own, without '/'"),
        ("a,../far/a.nii.gz,\na,../far/b.mha,\n", " line 3: case 'a' must be a name of its own"),
    ],
)
def test_a_line_that_cannot_work_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    root = make(tmp_path, f"case,image,label\n{text}")
    with pytest.raises(UserError, match=rf"^[^\n]*cases\.csv{complaint}[^\n]*$"):
        find_dataset(root)


def test_a_header_that_cannot_work_is_named(tmp_path: Path) -> None:
    root = make(tmp_path, "case,image,image\na,../far/a.nii.gz,../far/a.nii.gz\n")
    with pytest.raises(UserError, match=r"cases\.csv line 1: the column image occurs twice; remove one"):
        find_dataset(root)
    (root / "discoseg.json").write_text('{"cases": "cases.csv"}')
    (root / "cases.csv").write_text("name;image\n")
    with pytest.raises(UserError, match=r"cases\.csv line 1: the columns must be case, .* not name;image$"):
        find_dataset(root)
    (root / "cases.csv").write_bytes(b"case,image\n\xff\xfe,b\n")
    with pytest.raises(UserError, match=r"cases\.csv is not UTF-8 text: save it as a plain text or CSV file \(UTF-8\)"):
        find_dataset(root)
