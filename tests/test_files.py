"""Names of image files, and writes that either happen whole or not at all."""

import errno
from pathlib import Path

import pytest

from discoseg.data.files import image_suffix, list_images, strip_suffix, write_atomically
from discoseg.errors import UserError


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("a/patient001_frame01.nii.gz", "patient001_frame01"),
        ("Case00.v2.mhd", "Case00.v2"),
        ("B.NII", "B"),
        ("clicks.json", "clicks.json"),
    ],
)
def test_only_image_suffixes_are_stripped(name: str, stem: str) -> None:
    assert strip_suffix(Path(name)) == stem


def test_a_suffix_is_recognised_in_any_case() -> None:
    assert image_suffix(Path("X.NII.GZ")) == ".nii.gz"
    assert image_suffix(Path("x.gz")) == ""


def test_images_are_listed_in_order_without_hidden_files(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("b.nii", "a.mhd", ".x-c.nii", "a.raw", "deep/d.nii.gz"):
        (tmp_path / name).touch()
    assert [p.name for p in list_images(tmp_path)] == ["a.mhd", "b.nii"]
    assert [p.name for p in list_images(tmp_path, recursive=True)] == ["a.mhd", "b.nii", "d.nii.gz"]


def test_a_finished_write_leaves_one_file(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("old")
    with write_atomically(path) as temporary:
        assert temporary.parent == path.parent
        assert temporary.suffix == ".csv"
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failed_write_leaves_the_old_file(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "table.csv"
    path.write_text("old")

    def write_half() -> None:
        with write_atomically(path) as temporary:
            temporary.write_text("ne")
            raise error

    with pytest.raises(error):
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_said_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"

    def fill_disk() -> None:
        with write_atomically(path):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UserError, match=r"cannot write .*table.csv: No space left on device$"):
        fill_disk()


def test_a_missing_folder_is_said_in_one_line(tmp_path: Path) -> None:
    def write() -> None:
        with write_atomically(tmp_path / "nowhere" / "table.csv") as temporary:
            temporary.write_text("new")

    with pytest.raises(UserError, match="nowhere"):
        write()
