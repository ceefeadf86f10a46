"""A check finds what is there, and everything that is wrong with it, in lines that name the culprit."""

import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

from discoseg.data.check import Check, SizeOf, check_dataset
from discoseg.data.check_table import print_check
from discoseg.data.layouts import Case, Dataset, find_dataset
from discoseg.data.volume import Volume, read_volume, write_volume
from discoseg.errors import UserError

needs_data = pytest.mark.skipif("DISCOSEG_DATA" not in os.environ, reason="DISCOSEG_DATA is not set")

SHAPE = (4, 6, 8)
AFFINE = np.diag([-1.5, -1.5, 5.0, 1.0])
SPACING_MM = (5.0, 1.5, 1.5)
VOXEL_ML = 5.0 * 1.5 * 1.5 / 1000
NAMES = ("a", "b", "c")


def write(path: Path, array: NDArray, affine: NDArray[np.float64] = AFFINE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_volume(path, Volume(array, affine, SPACING_MM))


def make_image(seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).uniform(0, 100, SHAPE).astype(np.float32)


def make_label() -> NDArray[np.uint8]:
    """48 voxels of LV, 12 of RV, 132 of background."""
    label = np.zeros(SHAPE, np.uint8)
    label[:, 1:4, 2:6] = 1
    label[:, 5, :3] = 2
    return label


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A healthy dataset of three cases and one that is held out."""
    root = tmp_path / "data"
    for i, name in enumerate(NAMES):
        write(root / "imagesTr" / f"{name}_0000.nii.gz", make_image(i))
        write(root / "labelsTr" / f"{name}.nii.gz", make_label())
    write(root / "imagesTs" / "t_0000.nii.gz", make_image(9))
    about = {
        "channel_names": {"0": "MRI"},
        "labels": {"background": 0, "LV": 1, "RV": 2},
        "file_ending": ".nii.gz",
    }
    (root / "dataset.json").write_text(json.dumps(about))
    return root


@pytest.fixture
def weak(tmp_path: Path) -> Path:
    """Weak label maps of the three cases: 4 seeds of LV, 2 of RV, 8 of background."""
    for name in NAMES:
        array = np.full(SHAPE, 3, np.uint8)
        array[0, 1, 2:6] = 1
        array[0, 5, :2] = 2
        array[0, 0] = 0
        write(tmp_path / "weak" / f"{name}_seeds.nii.gz", array)
    return tmp_path / "weak"


def sizes_of(bounds: dict[str, tuple[float, float]], structure: str = "LV") -> SizeOf:
    """Sizes of one structure by case."""
    return lambda case, name, voxel_ml: bounds.get(case.name) if name == structure else None


def printed(check: Check, *, per_case: bool = False) -> str:
    console = Console(file=io.StringIO(), width=120)
    print_check(check, per_case=per_case, console=console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_healthy_dataset(root: Path) -> None:
    calls: list[tuple[int, int]] = []
    check = check_dataset(find_dataset(root), progress=lambda done, total: calls.append((done, total)))
    assert check.problems == []
    assert check.warnings == []
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]
    row = check.rows[0]
    assert (row.case.name, row.shape, row.spacing_mm, row.orientation) == ("a", SHAPE, SPACING_MM, "LPS")
    assert row.dtype == "float32"
    assert row.intensity == (make_image(0).min(), make_image(0).max())
    assert row.label_vox == {0: 132, 1: 48, 2: 12}
    assert row.weak_vox is None


@pytest.mark.parametrize(("label", "fg", "bg"), [("LV", 4, 10), ("RV", 2, 12), (None, 6, 8)])
def test_seeds_are_counted_for_the_label(root: Path, weak: Path, label: str | None, fg: int, bg: int) -> None:
    check = check_dataset(find_dataset(root), label=label, weak=weak)
    assert check.problems == []
    all_fg = {"LV": 48, "RV": 12, None: 60}[label]
    row = check.rows[1]
    assert row.seed_vox(check.foreground) == (fg, bg)
    assert row.seed_percent(check.foreground) == pytest.approx((100 * fg / all_fg, 100 * bg / (192 - all_fg)))


def test_the_datasets_own_labels_count_as_weak_where_they_carry_ignore(root: Path) -> None:
    label = make_label()
    label[2:] = 3
    write(root / "labelsTr" / "b.nii.gz", label)
    check = check_dataset(find_dataset(root), label="1")
    assert check.problems == []
    assert [row.seed_vox({1}) for row in check.rows[:2]] == [None, (24, 72)]
    assert check.rows[1].seed_percent({1}) is None


def truncate(root: Path) -> None:
    path = root / "imagesTr" / "b_0000.nii.gz"
    path.write_bytes(path.read_bytes()[:200])


def remove_image(root: Path) -> None:
    (root / "imagesTr" / "b_0000.nii.gz").unlink()


def remove_label(root: Path) -> None:
    (root / "labelsTr" / "b.nii.gz").unlink()


def truncate_label(root: Path) -> None:
    (root / "labelsTr" / "b.nii.gz").write_bytes(b"")


def crop_label(root: Path) -> None:
    write(root / "labelsTr" / "b.nii.gz", make_label()[:3])


def shift_label(root: Path) -> None:
    affine = AFFINE.copy()
    affine[2, 3] = 5.0
    write(root / "labelsTr" / "b.nii.gz", make_label(), affine)


def nan_image(root: Path) -> None:
    image = make_image()
    image[0, 0, :3] = np.nan
    write(root / "imagesTr" / "b_0000.nii.gz", image)


def nan_everywhere(root: Path) -> None:
    write(root / "imagesTr" / "b_0000.nii.gz", np.full(SHAPE, np.nan, np.float32))


def infinite_image(root: Path) -> None:
    image = make_image()
    image[0, 0, 0] = np.inf
    write(root / "imagesTr" / "b_0000.nii.gz", image)


def constant_image(root: Path) -> None:
    write(root / "imagesTr" / "b_0000.nii.gz", np.full(SHAPE, 7, np.int16))


def unknown_value(root: Path) -> None:
    label = make_label()
    label[0, 0, 0] = 9
    write(root / "labelsTr" / "b.nii.gz", label)


def probabilities_as_label(root: Path) -> None:
    write(root / "labelsTr" / "b.nii.gz", make_image())


@pytest.mark.parametrize(
    ("damage", "culprit", "complaint"),
    [
        (truncate, "b_0000.nii.gz", "truncated"),
        (remove_image, "b_0000.nii.gz", "does not exist"),
        (remove_label, "of b", "no label map"),
        (truncate_label, "labelsTr/b.nii.gz", "truncated"),
        (crop_label, "labelsTr/b.nii.gz", "shape 8×6×3 instead of 8×6×4"),
        (shift_label, "labelsTr/b.nii.gz", "affine: voxels lie up to 5 mm apart"),
        (nan_image, "b_0000.nii.gz", "3 NaN or infinite voxels"),
        (nan_everywhere, "b_0000.nii.gz", "192 NaN or infinite voxels"),
        (infinite_image, "b_0000.nii.gz", "1 NaN or infinite voxels"),
        (constant_image, "b_0000.nii.gz", "constant"),
        (
            unknown_value,
            "labelsTr/b.nii.gz",
            "unknown label value 9 (known: 0 background, 1 LV, 2 RV, 3 not annotated)",
        ),
        (probabilities_as_label, "labelsTr/b.nii.gz", "more (known"),
    ],
)
def test_each_problem_is_one_line_that_names_the_file(
    root: Path, damage: Callable[[Path], None], culprit: str, complaint: str
) -> None:
    damage(root)
    check = check_dataset(find_dataset(root))
    (problem,) = check.problems
    assert culprit in problem
    assert complaint in problem
    assert "\n" not in problem
    assert f"problem: {problem}" in printed(check).splitlines(), "shown whole, on one line"


def test_all_problems_are_found_at_once(root: Path) -> None:
    truncate(root)
    write(root / "imagesTr" / "a_0000.nii.gz", np.zeros(SHAPE, np.int16))
    write(root / "labelsTr" / "c.nii.gz", make_label()[:2])
    check = check_dataset(find_dataset(root))
    assert len(check.problems) == 3
    assert "3 problems found" in printed(check)


def test_channels_are_checked_too(root: Path) -> None:
    about = json.loads((root / "dataset.json").read_text())
    (root / "dataset.json").write_text(json.dumps({**about, "channel_names": {"0": "T2", "1": "ADC"}}))
    write(root / "imagesTr" / "a_0001.nii.gz", make_image())
    write(root / "imagesTr" / "b_0001.nii.gz", make_image()[:2])
    write(root / "imagesTr" / "c_0001.nii.gz", np.zeros(SHAPE, np.int16))
    problems = check_dataset(find_dataset(root)).problems
    assert [next(n for n in ("a_", "b_", "c_", "t_") if n in p) for p in problems] == ["b_", "c_", "t_"]


def test_weak_maps_are_checked_too(root: Path, weak: Path) -> None:
    (weak / "a_seeds.nii.gz").unlink()
    write(weak / "b_seeds.nii.gz", np.full(SHAPE, 8, np.uint8))
    write(weak / "c_seeds.nii.gz", np.full((2, 2, 2), 3, np.uint8))
    check = check_dataset(find_dataset(root), weak=weak)
    problems = check.problems
    assert [w for w in check.warnings if "no weak label map of 1 cases, such as a" in w]
    assert [p for p in problems if "b_seeds.nii.gz: unknown label value 8" in p]
    assert [p for p in problems if "c_seeds.nii.gz" in p and "shape" in p]


def test_no_foreground_seed_in_any_case(root: Path, weak: Path) -> None:
    for path in weak.iterdir():
        array = read_volume(path).array.copy()
        array[array == 1] = 3
        write(path, array)
    dataset = find_dataset(root)
    assert check_dataset(dataset, label="RV", weak=weak).problems == []
    (problem,) = check_dataset(dataset, label="LV", weak=weak).problems
    assert problem == f"{weak}: no foreground seed of LV in any training case"


def test_no_foreground_in_any_label_map(root: Path) -> None:
    for name in NAMES:
        write(root / "labelsTr" / f"{name}.nii.gz", np.where(make_label() == 2, 0, make_label()))
    dataset = find_dataset(root)
    assert check_dataset(dataset, label="LV").problems == []
    (problem,) = check_dataset(dataset, label="RV").problems
    assert "no voxel of RV" in problem


@pytest.mark.parametrize(
    ("bounds_vox", "complaint"),
    [
        ((4.1, 181.9), None),
        ((0, 3.9), "0.045 ml of foreground seeds exceed the upper size bound of 0.043875 ml"),
        ((182.1, 200), "exceeds the 2.048 ml that are not background"),
    ],
)
def test_bounds_that_no_proposal_can_meet(
    root: Path, weak: Path, bounds_vox: tuple[float, float], complaint: str | None
) -> None:
    low, high = (vox * VOXEL_ML for vox in bounds_vox)
    problems = check_dataset(find_dataset(root), label="LV", weak=weak, sizes=sizes_of({"b": (low, high)})).problems
    assert len(problems) == (complaint is not None)
    assert complaint is None or (problems[0].startswith("b: ") and complaint in problems[0])


def test_bounds_that_contradict_the_mask_are_noted(root: Path) -> None:
    bounds = {"a": (0.5, 0.6), "b": (0.5, 0.53)}  # the masks have 0.54 ml
    check = check_dataset(find_dataset(root), label="LV", sizes=sizes_of(bounds))
    assert check.problems == []
    assert [w for w in check.warnings if "b: its mask has 0.54 ml, outside its size bounds" in w]
    assert [w for w in check.warnings if "2 of 4 cases have no size bounds, such as c" in w]
    assert "at least 0.5 ml, at most 0.53–0.6 ml in 2 cases" in printed(check)


@pytest.mark.parametrize("label", ["LV,RV", "2,lv", "all"])
def test_seeds_of_several_structures(root: Path, weak: Path, label: str) -> None:
    check = check_dataset(find_dataset(root), label=label, weak=weak)
    assert (check.problems, check.warnings) == ([], [])
    text = printed(check, per_case=True)
    assert "4 voxels a case, 0.045 ml, on average 8.3 % of the structure" in text
    assert "2 voxels a case, 0.0225 ml, on average 16.7 % of the structure" in text
    assert "8 voxels a case, on average 6.1 % of the background" in text
    assert text.count("4 (0.045 ml)") == text.count("2 (0.0225 ml)") == 3


@pytest.mark.parametrize(
    ("lv_vox", "rv_vox", "complaint"),
    [
        ((0, 4.1), (2, 100), None),
        ((90, 192), (90, 192), None),
        ((0, 3.9), (0, 100), "b, LV: 4 seeds, 0.045 ml, exceed the upper size bound of 0.043875 ml"),
        ((0, 100), (0, 1.9), "b, RV: 2 seeds, 0.0225 ml, exceed the upper size bound of 0.021375 ml"),
        ((0, 100), (181, 192), "b, RV: the lower size bound of 2.03625 ml exceeds the 2.025 ml that no other seed"),
        ((93, 192), (93, 192), "b: the lower size bounds want 2.025 ml beyond the seeds, and 2.00"),
    ],
)
def test_bounds_of_several_structures_that_no_proposal_can_meet(
    root: Path, weak: Path, lv_vox: tuple[float, float], rv_vox: tuple[float, float], complaint: str | None
) -> None:
    def sizes(case: Case, structure: str, voxel_ml: float) -> tuple[float, float] | None:
        low, high = lv_vox if structure == "LV" else rv_vox
        return (low * voxel_ml, high * voxel_ml) if case.name == "b" else None

    check = check_dataset(find_dataset(root), label="LV,RV", weak=weak, sizes=sizes)
    assert len(check.problems) == (complaint is not None)
    assert complaint is None or check.problems[0].startswith(complaint)
    assert "size bounds of RV" in printed(check)


def test_masks_outside_the_bounds_of_several_structures_are_noted(root: Path) -> None:
    check = check_dataset(find_dataset(root), label="all", sizes=lambda case, name, voxel_ml: (0.2, 1.0))
    assert check.problems == []
    assert [w for w in check.warnings if "LV" in w] == []
    assert "b, RV: its mask has 0.135 ml, outside its size bounds 0.2 to 1 ml" in check.warnings


def test_a_structure_that_a_case_lacks_is_noted(root: Path) -> None:
    write(root / "labelsTr" / "b.nii.gz", np.where(make_label() == 2, 0, make_label()))
    check = check_dataset(find_dataset(root), label="LV,RV")
    assert check.problems == []
    (note,) = check.warnings
    assert note.startswith("RV is in no annotation of 1 of 3 training cases, such as b: that is allowed")
    assert check_dataset(find_dataset(root), label="RV").warnings == []


def test_a_structure_that_every_case_lacks_is_a_problem(root: Path, weak: Path) -> None:
    for path in weak.iterdir():
        array = read_volume(path).array.copy()
        write(path, np.where(array == 2, 3, array))
    check = check_dataset(find_dataset(root), label="LV,RV", weak=weak)
    assert check.problems == [f"{weak}: no foreground seed of RV in any training case"]
    assert check.warnings == []


def test_a_weak_case_without_foreground_beside_complete_masks_is_no_problem(root: Path) -> None:
    label = np.full(SHAPE, 3, np.uint8)
    label[0] = 0
    write(root / "labelsTr" / "b.nii.gz", label)
    for labels in ("LV", "LV,RV", None):
        assert check_dataset(find_dataset(root), label=labels).problems == []


def test_complete_masks_beside_weak_maps_do_not_train(root: Path, weak: Path) -> None:
    for name in ("a", "c"):
        (weak / f"{name}_seeds.nii.gz").unlink()
    array = read_volume(weak / "b_seeds.nii.gz").array.copy()
    write(weak / "b_seeds.nii.gz", np.where(array == 1, 3, array))
    check = check_dataset(find_dataset(root), label="LV", weak=weak)
    assert check.problems == [f"{weak}: no foreground seed of LV in any training case"]


def test_a_case_without_annotation_trains_by_its_bounds(root: Path, weak: Path) -> None:
    remove_label(root)
    dataset, sizes = find_dataset(root), sizes_of(dict.fromkeys(NAMES, (0.1, 2.0)))
    note = "1 of 3 training cases have no annotation, such as b: they train by their size bounds alone"
    check = check_dataset(dataset, label="LV", sizes=sizes)
    assert check.problems == []
    assert note in check.warnings
    (problem,) = check_dataset(dataset, label="LV").problems
    assert "no label map of b; annotate it, or give size bounds" in problem
    (weak / "b_seeds.nii.gz").unlink()
    check = check_dataset(dataset, label="LV", weak=weak, sizes=sizes)
    assert check.problems == []
    assert note in check.warnings
    assert not [w for w in check.warnings if "can validate but not train" in w]
    unbounded = check_dataset(dataset, label="LV", weak=weak)
    assert [w for w in unbounded.warnings if "no weak label map of 1 cases, such as b" in w]


def test_an_unknown_label_is_refused(root: Path) -> None:
    with pytest.raises(UserError, match=r"'liver'.*LV \(1\), RV \(2\)"):
        check_dataset(find_dataset(root), label="liver")


def test_duplicate_names_and_no_case_at_all(root: Path) -> None:
    dataset = find_dataset(root)
    doubled = Dataset(root, "folder", (*dataset.cases, dataset.cases[0]), dataset.labels, dataset.ignore)
    assert check_dataset(doubled).problems == [f"{root}: 2 cases have the name a"]
    nothing = Dataset(root, "folder", (), dataset.labels, dataset.ignore)
    assert check_dataset(nothing).problems == [f"{root}: no case found"]
    assert "no case found" in printed(check_dataset(nothing))


def test_images_alone_are_no_problem(tmp_path: Path) -> None:
    write(tmp_path / "x.nii.gz", make_image())
    check = check_dataset(find_dataset(tmp_path))
    assert check.problems == []
    assert "no training case has a label map" in check.warnings[0]


def test_a_lost_spacing_is_noted_once(tmp_path: Path) -> None:
    cases = []
    for name in NAMES:
        path = tmp_path / f"{name}.mha"
        write_volume(path, Volume(make_image(), np.diag([-1.0, -1.0, 1.0, 1.0]), (1.0, 1.0, 1.0)))
        cases.append(Case(name, (path,), patient=name))
    check = check_dataset(Dataset(tmp_path, "folder", tuple(cases), {"background": 0, "foreground": 1}, 2))
    assert len([w for w in check.warnings if "no millimetre figure from it means anything" in w]) == 1


def test_a_spacing_that_the_affine_contradicts_is_noted_once(root: Path) -> None:
    for name in ("a", "b"):
        for path in (root / "imagesTr" / f"{name}_0000.nii.gz", root / "labelsTr" / f"{name}.nii.gz"):
            write_volume(path, Volume(read_volume(path).array, np.diag([-1.0, -1.0, 1.0, 1.0]), SPACING_MM))
    check = check_dataset(find_dataset(root))
    assert check.problems == []
    (warning,) = check.warnings
    assert warning.startswith("2 of 4 cases")
    assert "a: 1.5×1.5×5 and 1×1×1 mm" in warning


def test_affines_half_a_voxel_apart_are_noted_once(root: Path) -> None:
    for name, shift_mm in (("a", 0.75), ("b", 0.5), ("c", 0.01)):
        affine = AFFINE.copy()
        affine[0, 3] = shift_mm
        write(root / "labelsTr" / f"{name}.nii.gz", make_label(), affine)
    check = check_dataset(find_dataset(root))
    assert check.problems == []
    (warning,) = check.warnings
    assert warning.startswith("2 files lie up to half a voxel beside the image")
    assert f"{root / 'labelsTr' / 'a.nii.gz'}: 0.75 mm" in warning
    assert [row.label_vox for row in check.rows[:3]] == [{0: 132, 1: 48, 2: 12}] * 3


def test_sheared_affines_are_noted_once(root: Path) -> None:
    affine = AFFINE.copy()
    affine[0, 2] = 0.5  # a gantry tilt
    for path in [*(root / "imagesTr").iterdir(), *(root / "labelsTr").iterdir()]:
        write(path, read_volume(path).array, affine)
    check = check_dataset(find_dataset(root))
    assert check.problems == []
    assert [w for w in check.warnings if w.startswith("3 of 4 cases: sheared affine (a: axes 5.7° off")]


def test_a_label_map_in_another_orientation_is_no_problem(root: Path) -> None:
    path = root / "labelsTr" / "a.nii.gz"
    write_volume(path, read_volume(path).reoriented("SAR"))
    check = check_dataset(find_dataset(root))
    assert (check.problems, check.warnings) == ([], [])
    assert check.rows[0].label_vox == {0: 132, 1: 48, 2: 12}


def test_mixed_orientations_are_shown(root: Path) -> None:
    for path in (root / "imagesTr" / "a_0000.nii.gz", root / "labelsTr" / "a.nii.gz"):
        write_volume(path, read_volume(path).reoriented("RAS"))
    check = check_dataset(find_dataset(root))
    assert (check.problems, check.warnings) == ([], [])
    assert "LPS (3), RAS (1)" in printed(check)


def test_the_summary_shows_what_is_there(root: Path, weak: Path) -> None:
    check = check_dataset(find_dataset(root), label="LV", weak=weak)
    text = printed(check)
    for expected in (
        "nnunet, 4 cases, 1 held out",
        "8 × 6 × 4",
        "1.5 × 1.5 × 5",
        "LPS",
        "float32",
        "no problem found",
    ):
        assert expected in text
    assert "4 voxels a case, on average 8.3 % of the structure" in text
    assert len(text.splitlines()) < 20
    assert "8×6×4" not in text
    assert printed(check, per_case=True).count("8×6×4") == 4


@needs_data
def test_real_data_has_no_problem() -> None:
    data = Path(os.environ["DISCOSEG_DATA"])
    acdc = find_dataset(data / "acdc")
    some = Dataset(acdc.root, acdc.layout, acdc.cases[:6], acdc.labels, acdc.ignore)
    check = check_dataset(some, label="LV", weak=data / "acdc_scribbles")
    assert check.problems == []
    assert "6 of 6 cases: header spacing and affine disagree" in check.warnings[0]
    promise12 = find_dataset(data / "promise12")
    some = Dataset(promise12.root, promise12.layout, promise12.cases[:3], promise12.labels, promise12.ignore)
    check = check_dataset(some)
    assert check.problems == []
    assert "no millimetre figure" in check.warnings[0]
