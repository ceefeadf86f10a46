"""What people know of sizes becomes millilitres; a mistake is named with its option, file or line."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from discoseg.config import AdmmConfig, Config
from discoseg.data.layouts import Case, Dataset
from discoseg.data.prepare import Grid, prepare_case
from discoseg.data.volume import Volume, write_volume
from discoseg.errors import UserError
from discoseg.weak.bounds import Bounds
from discoseg.weak.examples import training_examples
from discoseg.weak.organs import ORGAN_SIZES, find_organ_size
from discoseg.weak.sizes import Size, SizesMl, parse_size, parse_sizes

STRUCTURES = ("RV", "MYO", "LV")


@pytest.mark.parametrize(
    ("text", "interval"),
    [("60:180", (60, 180)), ("60:", (60, math.inf)), (":180 ml", (0, 180)), ("1.5:1.5", (1.5, 1.5))],
)
def test_millilitres(text: str, interval: tuple[float, float]) -> None:
    assert parse_size(text, "LV").in_ml(None) == interval


def test_diameters_are_those_of_a_ball() -> None:
    assert parse_size("20:40mm", "LV").in_ml(None) == pytest.approx((4 / 3 * math.pi, 4 / 3 * math.pi * 8))
    assert parse_size(":20 mm", "LV").in_ml(None) == pytest.approx((0, 4 / 3 * math.pi))
    assert parse_size("20:mm", "LV").in_ml(None)[1] == math.inf


def test_voxels_are_those_of_the_file() -> None:
    assert parse_size("1000:3000vox", "LV").in_ml(0.5) == (500, 1500)
    assert parse_size("10:vox", "LV").in_ml(0.5) == (5, math.inf)
    sizes = SizesMl.read("1000:3000vox", None, ["LV"])
    assert sizes.of("a", "LV", file_voxel_ml=0.01) == (10, 30)


def _example_bounds(tmp_path: Path, config: Config, shape: tuple[int, int]) -> tuple[Bounds, ...] | None:
    """Train a file of 4×20×20 voxels of 0.01 ml with a few seeds on a grid; return its bounds there."""
    affine, spacing_mm = np.diag([-1.0, -1.0, 10.0, 1.0]), (10.0, 1.0, 1.0)
    label = np.full((4, 20, 20), 3, np.uint8)
    label[:2, 8:12, 8:12], label[2:, 8:12, 8:12] = 1, 2
    image = np.random.default_rng(0).random(label.shape).astype(np.float32)
    write_volume(tmp_path / "image.nii", Volume(image, affine, spacing_mm))
    write_volume(tmp_path / "label.nii", Volume(label, affine, spacing_mm))
    case = Case("a", (tmp_path / "image.nii",), tmp_path / "label.nii", patient="a")
    dataset = Dataset(tmp_path, "folder", (case,), {"background": 0, "LV": 1, "RV": 2}, ignore=3)
    grid = Grid(shape, orientation="LPS")
    names = {"LV": 1} if config.label == "LV" else {"LV": 1, "RV": 2}
    prepared = prepare_case(case, grid, tmp_path / "cache")
    (example,) = training_examples([prepared], dataset, config, structures=names, grid=grid, weak=None)
    return example.bounds


@pytest.mark.parametrize(("shape", "factor"), [((20, 20), 1), ((40, 40), 4), ((20, 40), 2)])
def test_bounds_in_voxels_do_not_depend_on_the_grid(tmp_path: Path, shape: tuple[int, int], factor: int) -> None:
    config = Config(method="size", label="LV", size_ml="100:300vox")
    assert _example_bounds(tmp_path, config, shape) == (Bounds(100 * factor, 300 * factor),)
    table = tmp_path / "sizes.csv"
    table.write_text("case,label,low_vox,high_vox\na,RV,100,300\na,LV,50,\n")
    both = Config(method="size", label="LV,RV", size_csv=table)
    assert _example_bounds(tmp_path, both, shape) == (
        Bounds(50 * factor, 1600 * factor),
        Bounds(100 * factor, 300 * factor),
    )


def test_training_names_a_group_that_no_case_has_and_bounds_that_cannot_be_soft(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--size-ml LV@ED=1:2: no case is of the group 'ED'"):
        _example_bounds(tmp_path, Config(label="LV", size_ml="LV@ED=1:2"), (20, 20))
    soft = AdmmConfig(soft_bounds=0.1)
    with pytest.raises(UserError, match="soft-bounds works for one structure, not for LV, RV: leave it out"):
        _example_bounds(tmp_path, Config(size_ml="LV=1:2", admm=soft), (20, 20))


@pytest.mark.parametrize("text", ["", ":", "60", "60-180", "a:b", "nan:3", "1:2:3", "1:2cm", ":vox"])
def test_what_is_no_size_is_shown_the_forms(text: str) -> None:
    with pytest.raises(UserError, match=r"--size-ml .*looks like 60:180, .* 20:40mm, .* 1000:3000vox"):
        parse_sizes(text, ["LV"])


@pytest.mark.parametrize("text", ["180:60", "-1:5", ":0", "inf:", ":-3", "40:20mm", "3000:1000vox"])
def test_impossible_intervals(text: str) -> None:
    with pytest.raises(UserError, match=f"{text}'"):
        parse_size(text, "LV")


def test_published_sizes_have_names() -> None:
    found = parse_size("adult-ed", "LV")
    assert found.in_ml(None) == (83, 218)
    assert found.organ is not None
    assert "Hudsmith et al. 2005" in found.organ.about
    assert parse_size("Adult", "Spleen").in_ml(None) == (22, 374)
    assert parse_size("right ventricle adult-es", "foreground") == parse_size("adult-es", "right_ventricle")
    everywhere = SizesMl.read("LV@ED=adult-ed, LV@ES=adult-es, RV=70:", None, STRUCTURES)
    first, second = everywhere.describe_published()
    assert first.startswith("size of LV in ED cases: 83 to 218 ml, end-diastolic, women's mean")
    assert second.startswith("size of LV in ES cases: 18 to 82 ml")
    assert SizesMl.read("60:180", None, ["LV"]).describe_published() == []


def test_every_published_size_is_an_interval_with_a_source() -> None:
    for size in ORGAN_SIZES:
        assert 0 < size.low_ml < size.high_ml
        assert re.search(r"\b(19|20)\d\d\b", size.source)  # the year it appeared in
        for organ in size.organs:
            assert find_organ_size(organ.upper(), size.name) is size


@pytest.mark.parametrize(("text", "structure"), [("adult", "LV"), ("adult-ed", "MYO"), ("child", "spleen")])
def test_an_unknown_name_is_answered_with_the_known_ones(text: str, structure: str) -> None:
    known = r"LV adult-ed, LV adult-es, RV adult-ed, .*, spleen adult, liver adult"
    with pytest.raises(UserError, match=f"--size-ml {structure}={text}: no size '{text}' of {structure} .*{known}"):
        parse_sizes(f"{structure}={text}", [structure])


def test_sizes_of_several_structures(tmp_path: Path) -> None:
    path = tmp_path / "sizes.csv"
    path.write_text("case,label,low_ml,high_ml\na,LV,60,180\na,RV,,200\nb,LV,50,\n")
    sizes = SizesMl.read(None, path, STRUCTURES)
    assert sizes.of("a", "LV") == (60, 180)
    assert sizes.of("a", "RV") == (0, 200)
    assert sizes.of("b", "RV") == sizes.of("a", "MYO") == (0, math.inf)
    with pytest.raises(UserError, match="no bounds for case c"):
        sizes.of("c", "LV")
    everywhere = SizesMl.read("LV=60:180,RV=:200", None, STRUCTURES)
    assert everywhere.of("anything", "RV") == (0, 200)
    assert SizesMl.read("60:180", None, ["LV"]).of("a", "LV", "ED") == (60, 180)
    grouped = SizesMl.read("@ED=60:180,@ES=20:", None, ["LV"])
    assert [grouped.of("a", "LV", group) for group in ("ED", "ES", "")] == [(60, 180), (20, math.inf), (0, math.inf)]
    by_diameter = SizesMl.read("MYO=20:40mm", None, STRUCTURES).of("a", "MYO")
    assert by_diameter == pytest.approx((4 / 3 * math.pi, 4 / 3 * math.pi * 8))


def test_what_is_not_said_of_a_case_is_not_found(tmp_path: Path) -> None:
    path, case = tmp_path / "sizes.csv", Case("a", (), patient="a", group="ED")
    path.write_text("case,label,low_vox,high_vox\na,LV,60,180\n")
    sizes = SizesMl.read(None, path, STRUCTURES)
    assert sizes.find(case, "LV", 0.5) == (30, 90)
    assert sizes.find(case, "RV", 0.5) is None
    assert sizes.find(replace(case, name="b"), "LV", 0.5) is None
    grouped = SizesMl.read("LV@ED=1:2,RV@ES=1:2", None, STRUCTURES, groups={"ED", "ES"})
    assert [grouped.find(case, name, 0.5) for name in STRUCTURES] == [None, None, (1, 2)]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("60:180", "say of which structure, such as RV=60:180"),
        ("LV=60:180,LA=1:2", "LA is not trained; these are: RV, MYO, LV"),
        ("LV=60:180,LV=1:2", "LV is there twice"),
        ("LV@ED=60:180,LV@ED=1:2", "LV@ED is there twice"),
        ("LV=60", "looks like 60:180"),
        ("LV@DE=60:180", "no case is of the group 'DE'; there are ED, ES"),
    ],
)
def test_sizes_that_say_too_little(text: str, complaint: str) -> None:
    with pytest.raises(UserError, match=f"--size-ml {text}: .*{complaint}"):
        parse_sizes(text, STRUCTURES, {"ED", "ES"})
    with pytest.raises(UserError, match="none has one"):
        parse_sizes("LV@ED=1:2", STRUCTURES, {""})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("case,low_ml,high_ml\na,60,180\n", "line 1: a column label must say which of RV, MYO, LV"),
        ("case,label,low_ml,high_ml\na,LV,60,180\na,LV,1,2\n", "line 3: case a LV stands in line 2 already"),
        ("case,label,low_ml,high_ml\na,,60,180\n", "line 2: the label has no name"),
        ("case,label,low_ml,high_ml\na,LA,60,180\n", "holds no bounds of RV, MYO, LV"),
        ("case,label,low_ml,high_ml\n", "holds no bounds"),
    ],
)
def test_a_table_of_several_structures_names_its_line(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "sizes.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=complaint):
        SizesMl.read(None, path, STRUCTURES)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\ufeffcase, low_ml, high_ml\n\na,60,180\nb,,90\nc,50,\n", [Size(60, 180), Size(0, 90), Size(50)]),
        ("eps,case,size_ml\n0.1,a,100\n0,b,70\n2,c,10\n", [Size(90, 110), Size(70, 70), Size(0, 30)]),
        ("case,low_vox,high_vox\na,9,20\nb,9,\nc,,3\n", [Size(9, 20, "vox"), Size(9, unit="vox"), Size(0, 3, "vox")]),
        ("case,low_mm,high_mm\na,9,20\nb,9,\nc,,3\n", [Size(9, 20, "mm"), Size(9, unit="mm"), Size(0, 3, "mm")]),
    ],
)
def test_tables_have_four_forms(text: str, expected: list[Size], tmp_path: Path) -> None:
    path = tmp_path / "sizes.csv"
    path.write_text(text, encoding="utf-8")
    assert SizesMl.read(None, path, ["LV"]).cases == {
        name: {"LV": size} for name, size in zip("abc", expected, strict=True)
    }


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "line 1: the columns must be case,low_ml,high_ml or case,size_ml,eps or case,low_vox,high_vox or"),
        ("case,low_vox,high_ml\na,1,2\n", "line 1: the columns"),
        ("case,low_ml,high_ml\n", "no bounds"),
        ("case,low_ml,high_ml\na,1,2\nb,one,2\n", "line 3: low_ml must be a number, not 'one'"),
        ("case,low_ml,high_ml\na,1,nan\n", "line 2: high_ml"),
        ("case,low_ml,high_ml\na,1,2\na,1,2\n", "line 3: case a stands in line 2"),
        ("case,low_ml,high_ml\na,1\n", "line 2: 2 cells"),
        ("case,low_ml,high_ml\n,1,2\n", "line 2: the case has no name"),
        ("case,low_ml,high_ml\na,9,2\n", "line 2: the lower size bound, 9 ml, exceeds"),
        ("case,low_vox,high_vox\na,9,2\n", "line 2: the lower size bound, 9 vox, exceeds"),
        ("case,low_mm,high_mm\na,-1,2\n", "line 2: a size in mm cannot be -1"),
        ("case,low_mm,high_mm,low_ml,high_ml\na,1,2,1,2\n", "line 1: low_ml,high_ml and low_mm,high_mm say"),
        ("case,size_ml,eps\na,9,-1\n", "line 2: eps must be 0 or more"),
        ("case,size_ml,eps\na,,0.1\n", "line 2: size_ml"),
    ],
)
def test_a_table_names_its_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "bounds.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=complaint) as caught:
        SizesMl.read(None, path, ["LV"])
    assert str(path) in str(caught.value)


def test_an_unreadable_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.csv"):
        SizesMl.read(None, tmp_path / "none.csv", ["LV"])
