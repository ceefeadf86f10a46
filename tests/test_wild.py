"""Every layout as it is met in the wild: a folder of files, `discoseg check`, voxels on the grid."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import nibabel
import numpy as np
import pytest
import SimpleITK
import torch
from numpy.typing import NDArray

from discoseg.cli import main
from discoseg.config import Config, GridConfig, NetworkConfig, OptimiserConfig
from discoseg.data.check import check_dataset
from discoseg.data.layouts import find_dataset
from discoseg.data.prepare import Grid, prepare_case
from discoseg.data.volume import Volume, read_volume, same_geometry, write_volume
from discoseg.errors import UserError
from discoseg.networks import build_network
from discoseg.predict import Model, load_model, predict_files
from discoseg.prediction_pass import predict_slices
from discoseg.workflow import fit, gather_inputs

SHAPE = (2, 32, 40)  # (z, y, x)
AFFINE = np.diag([-1.5, -1.5, 5.0, 1.0])
LABELS = {"background": 0, "LV": 1, "RV": 2}


def image(seed: int, shape: tuple[int, ...] = SHAPE) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 200, shape).astype(np.uint8)


def label(top: int = 1, shape: tuple[int, ...] = SHAPE) -> NDArray[np.uint8]:
    array = np.zeros(shape, np.uint8)
    array[..., 8:20, 10:25] = top
    return array


def write(path: Path, array: NDArray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_volume(path, Volume(array, AFFINE, (5.0, 1.5, 1.5)))


def write_json(path: Path, about: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(about))


def write_picture(path: Path, array: NDArray) -> None:
    """Write (y, x) grey values or (y, x, 3) colours."""
    path.parent.mkdir(parents=True, exist_ok=True)
    SimpleITK.WriteImage(SimpleITK.GetImageFromArray(array, isVector=array.ndim == 3), str(path))


def make_acdc(root: Path) -> None:
    for patient in ("patient001", "patient002"):
        folder = root / "training" / patient
        for frame in ("01", "09"):
            write(folder / f"{patient}_frame{frame}.nii.gz", image(1))
            write(folder / f"{patient}_frame{frame}_gt.nii.gz", label())
        (folder / "Info.cfg").write_text("ED: 1\nES: 9\n")


def make_promise12(root: Path) -> None:
    for name in ("Case00", "Case01"):
        write(root / f"{name}.mhd", image(1))
        write(root / f"{name}_segmentation.mhd", label())


def make_nnunet(root: Path) -> None:
    for name in ("heart_001", "heart_002"):
        for channel in range(2):
            write(root / "imagesTr" / f"{name}_{channel:04d}.nrrd", image(channel))
        write(root / "labelsTr" / f"{name}.nrrd", label())
    about = {"channel_names": {"0": "T2", "1": "ADC"}, "labels": {**LABELS, "ignore": 7}, "file_ending": ".nrrd"}
    write_json(root / "dataset.json", about)


def make_coloured_nnunet(root: Path) -> None:
    for name in ("road_1", "road_2"):
        write_picture(root / "imagesTr" / f"{name}_0000.png", image(1, (32, 40, 3)))
        write_picture(root / "labelsTr" / f"{name}.png", label(shape=(32, 40)))
    about = {"channel_names": {"0": "R", "1": "G", "2": "B"}, "labels": LABELS, "file_ending": ".png"}
    write_json(root / "dataset.json", about)


def make_decathlon(root: Path) -> None:
    names = ("prostate_00", "prostate_01")
    for name in names:
        for part, array in (("imagesTr", image(1, (2, *SHAPE))), ("labelsTr", label())):
            (root / part).mkdir(parents=True, exist_ok=True)
            nibabel.save(nibabel.Nifti1Image(array.T, AFFINE), root / part / f"{name}.nii.gz")
            (root / part / f"._{name}.nii.gz").write_bytes(b"\0\5\x16\7")
    write_json(
        root / "dataset.json",
        {
            "modality": {"0": "T2", "1": "ADC"},
            "labels": {"0": "background", "1": "PZ", "2": "TZ"},
            "training": [{"image": f"./imagesTr/{n}.nii.gz", "label": f"./labelsTr/{n}.nii.gz"} for n in names],
            "test": [],
        },
    )


def make_pattern(root: Path) -> None:
    for name in ("a", "b"):
        write(root / f"{name}.nii", image(1))
        write(root / f"{name}_seg.nii", label(3))
    write_json(
        root / "discoseg.json", {"images": "{case}.nii", "labels": "{case}_seg.nii", "names": {"LV": 3}, "ignore": 5}
    )


def make_table(root: Path) -> None:
    for name in ("a", "b"):
        write(root.parent / "far" / f"{name}.mha", image(1))
        write(root.parent / "near" / f"{name}.nii.gz", label())
    root.mkdir()
    rows = ["case,image,label", *(f"{n},../far/{n}.mha,../near/{n}.nii.gz" for n in ("a", "b"))]
    (root / "cases.csv").write_text("\n".join(rows))


def make_folder(root: Path) -> None:
    for name in ("a", "b"):
        write(root / "images" / f"{name}.nii.gz", image(1))
        write(root / "labels" / f"{name}.mha", label())


def make_pictures(root: Path) -> None:
    for name in ("a", "b"):
        write_picture(root / "images" / f"{name}.tif", image(1, (32, 40, 3)))
        write_picture(root / "labels" / f"{name}.png", label(shape=(32, 40)))


def make_pattern_of_pictures(root: Path) -> None:
    make_pictures(root)
    names = {"foreground": 1}
    write_json(root / "discoseg.json", {"images": "images/{case}.tif", "labels": "labels/{case}.png", "names": names})


def make_table_of_pictures(root: Path) -> None:
    make_pictures(root)
    rows = ["case,image,label", *(f"{n},images/{n}.tif,labels/{n}.png" for n in ("a", "b"))]
    (root / "cases.csv").write_text("\n".join(rows))


LAYOUTS = [
    (make_acdc, "acdc", 4, 1),
    (make_promise12, "promise12", 2, 1),
    (make_nnunet, "nnunet", 2, 2),
    (make_coloured_nnunet, "nnunet", 2, 3),
    (make_decathlon, "decathlon", 2, 2),
    (make_pattern, "pattern", 2, 1),
    (make_table, "table", 2, 1),
    (make_folder, "folder", 2, 1),
    (make_pictures, "folder", 2, 3),
    (make_pattern_of_pictures, "pattern", 2, 3),
    (make_table_of_pictures, "table", 2, 3),
]


@pytest.mark.parametrize(("make", "layout", "cases", "channels"), LAYOUTS)
def test_from_files_to_voxels(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    make: Callable[[Path], None],
    layout: str,
    cases: int,
    channels: int,
) -> None:
    root = tmp_path / "Dataset001_Heart"
    make(root)
    with pytest.raises(SystemExit) as stop:
        main(["check", str(root)])
    printed = capsys.readouterr().out
    assert stop.value.code == 0, printed
    assert f"{root}: {layout}, {cases} cases" in printed
    assert "no problem found" in printed
    case = find_dataset(root).cases[0]
    assert len(case.images) == channels
    volume = read_volume(case.images[-1])
    prepared = prepare_case(case, Grid((32, 40), orientation="LPS"), tmp_path / "cache")
    assert prepared.image.shape == (volume.shape[0], channels, 32, 40)
    assert prepared.label is not None
    assert np.count_nonzero(prepared.label) == volume.shape[0] * 12 * 15


@pytest.mark.parametrize(
    ("make", "file", "content", "complaint"),
    [
        (make_nnunet, "dataset.json", '{"labels": {"background": 0, "whole": [1, 2]}}', "give it one value"),
        (make_decathlon, "dataset.json", '{"training": [3], "labels": {"0": "background", "1": "PZ"}}', "entry 0"),
        (make_pattern, "discoseg.json", '{"images": "{case}.mha"}', "no file fits 'images'"),
        (make_table, "cases.csv", "case,image\na,x.nii", "line 2: image"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    make: Callable[[Path], None],
    file: str,
    content: str,
    complaint: str,
) -> None:
    root, out = tmp_path / "data", tmp_path / "out"
    make(root)
    (root / file).write_text(content)
    for command in (["check", root], ["seeds", root, "--out", out], ["train", root, "--out", out]):
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in command])
        assert stop.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"discoseg: error: {root / file}")
        assert complaint in line
    assert not out.exists()


def test_seeds_of_a_file_with_several_channels_lie_on_it(tmp_path: Path) -> None:
    make_decathlon(tmp_path / "data")
    with pytest.raises(SystemExit) as stop:
        main(["seeds", str(tmp_path / "data"), "--label", "PZ", "--grid", "32", "40", "--out", str(tmp_path / "seeds")])
    assert stop.value.code == 0
    (seeds,) = (tmp_path / "seeds").glob("*.nii.gz")
    scan = read_volume(tmp_path / "data" / "imagesTr" / f"{seeds.name}[0]")
    assert same_geometry(read_volume(seeds), scan)


def test_training_gets_all_channels_of_a_file(tmp_path: Path) -> None:
    make_decathlon(tmp_path)
    config = replace(Config(), method="full", label="PZ", grid=GridConfig((32, 40)))
    inputs = gather_inputs(tmp_path, config, seeds=None, split=None, validation_fraction=0.5)
    assert inputs.model["channels"] == 2
    assert inputs.training[0].image.shape == (2, 2, 32, 40)


@pytest.mark.parametrize(("axis", "slices", "codes"), [("x", 40, "PSL"), ("y", 32, "LSP"), ("z", 2, "LPS")])
def test_training_takes_slices_across_the_chosen_axis(
    tmp_path: Path, axis: Literal["x", "y", "z"], slices: int, codes: str
) -> None:
    make_folder(tmp_path)
    config = replace(Config(), method="full", grid=GridConfig((16, 16), axis=axis))
    inputs = gather_inputs(tmp_path, config, seeds=None, split=None, validation_fraction=0.5)
    assert inputs.training[0].image.shape == (slices, 1, 16, 16)
    assert inputs.model["orientation"] == codes


def test_nnunets_own_split_counts_by_itself_and_its_folds_have_numbers(tmp_path: Path) -> None:
    make_nnunet(tmp_path)
    folds = [{"train": [f"heart_00{a}"], "val": [f"heart_00{b}"]} for a, b in ((2, 1), (1, 2))]
    write_json(tmp_path / "splits_final.json", folds)
    config = replace(Config(), method="partial", label="LV", grid=GridConfig((32, 40)))
    settings: dict[str, Any] = {"seeds": None, "validation_fraction": 0.5}
    write(tmp_path / "labelsTr" / "heart_002.nrrd", np.where(image(1) < 100, label(), 7).astype(np.uint8))
    inputs = gather_inputs(tmp_path, config, split=None, **settings)
    assert [example.name for example in inputs.training] == ["heart_002"]
    assert [example.name for example in inputs.validation] == ["heart_001"]
    assert inputs.sources["split"] == str(tmp_path / "splits_final.json")
    shutil.copy(tmp_path / "labelsTr" / "heart_002.nrrd", tmp_path / "labelsTr" / "heart_001.nrrd")
    second = Path(f"{tmp_path}/splits_final.json:1")
    inputs = gather_inputs(tmp_path, config, split=second, **settings)
    assert [example.name for example in inputs.training] == ["heart_001"]
    assert inputs.sources["split"] == str(second)


def test_a_check_names_files_whose_channels_are_not_those_of_dataset_json(tmp_path: Path) -> None:
    make_decathlon(tmp_path)
    about = json.loads((tmp_path / "dataset.json").read_text())
    for modality, complaint in (
        ({"0": "T2"}, r"has 2 channels"),
        ({"0": "a", "1": "b", "2": "c"}, r"[2]: channels are counted from 0, and prostate_00.nii.gz has 2"),
    ):
        write_json(tmp_path / "dataset.json", {**about, "modality": modality})
        problems = check_dataset(find_dataset(tmp_path)).problems
        assert complaint in problems[0]
        assert "prostate_00.nii.gz" in problems[0]
    four = nibabel.Nifti1Image(image(1, (4, *SHAPE)).T, AFFINE)
    nibabel.save(four, tmp_path / "imagesTr" / "prostate_01.nii.gz")
    write_json(tmp_path / "dataset.json", about)
    (problem,) = check_dataset(find_dataset(tmp_path)).problems
    assert f"prostate_01.nii.gz has 4 channels, {tmp_path / 'dataset.json'} names 2: correct that" in problem


def test_a_grey_picture_among_coloured_ones_is_named(tmp_path: Path) -> None:
    make_pictures(tmp_path)
    write_picture(tmp_path / "images" / "b.tif", image(1, (32, 40)))
    complaint = f"{tmp_path / 'images' / 'b.tif'}: its channels are 1 instead of the 3 of a; all cases need the same"
    assert check_dataset(find_dataset(tmp_path)).problems == [complaint]
    config = replace(Config(), method="full", grid=GridConfig((32, 40)))
    with pytest.raises(UserError, match=r"its channels are . instead of the . of .; all cases need"):
        gather_inputs(tmp_path, config, seeds=None, split=None, validation_fraction=0.5)


def make_model(channels: int) -> Model:
    torch.manual_seed(0)
    network = build_network("unet", channels=channels, classes=2, width=4, depth=1).eval()
    return Model(network, Grid((32, 48)), channels, {"LV": 3}, 1, torch.device("cpu"))


def test_files_with_all_channels_are_predicted(tmp_path: Path) -> None:
    make_decathlon(tmp_path / "decathlon")
    (out,) = predict_files(make_model(2), [tmp_path / "decathlon" / "imagesTr" / "prostate_00.nii.gz"], tmp_path / "a")
    mask = read_volume(out)
    assert out.name == "prostate_00.nii.gz"
    assert (mask.shape, mask.spacing_mm) == (SHAPE, (5.0, 1.5, 1.5))
    make_pictures(tmp_path / "pictures")
    written = predict_files(make_model(3), [tmp_path / "pictures" / "images"], tmp_path / "b", probabilities=True)
    assert [path.name for path in written] == ["a.tif", "b.tif"]
    assert read_volume(tmp_path / "b" / "b_probability.tif").array.dtype == np.float32
    assert set(np.unique(read_volume(written[0]).array)) <= {0, 3}


def test_a_png_gets_its_mask_as_png_and_its_probability_beside_it(tmp_path: Path) -> None:
    write_picture(tmp_path / "a.png", image(1, (32, 40)))
    (out,) = predict_files(make_model(1), [tmp_path / "a.png"], tmp_path / "out", probabilities=True)
    assert {path.name for path in out.parent.iterdir()} == {"a.png", "a_probability.mha", "volumes.csv"}
    assert read_volume(out).shape == (1, 32, 40)


def test_a_file_of_too_few_channels_costs_no_other_its_mask(tmp_path: Path) -> None:
    make_decathlon(tmp_path)
    write(tmp_path / "imagesTr" / "x.nii.gz", image(1))
    (tmp_path / "imagesTr" / "y.nii.gz").write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"x\.nii\.gz: 1 channels given.*\(1 more images failed\); 2 of 4 masks"):
        predict_files(make_model(2), [tmp_path / "imagesTr"], tmp_path / "out")
    assert len(list((tmp_path / "out").glob("*.nii.gz"))) == 2


def test_slices_of_any_size_and_number_are_trained_on_and_predicted(tmp_path: Path) -> None:
    """In one dataset, with a grid of yet another shape."""
    shapes = {"a": (2, 32, 32), "b": (5, 100, 37), "c": (2, 700, 700), "d": (2, 1024, 1024), "e": (500, 33, 32)}
    for name, shape in shapes.items():
        annotation = np.full(shape, 2, np.uint8)
        annotation[:, : shape[1] // 4], annotation[:, -shape[1] // 4 :] = 0, 1
        scan = image(1, shape) // 2
        scan[:, shape[1] // 2 :] += 100
        write(tmp_path / "data" / "images" / f"{name}.nii", scan)
        write(tmp_path / "data" / "labels" / f"{name}.nii", annotation)
    network = NetworkConfig("unet", width=2, depth=1)
    config = replace(Config(), method="size", size_ml="0:", epochs=2, grid=GridConfig((24, 20)), network=network)
    config = replace(config, optimiser=OptimiserConfig(lr=0.02))
    fit(tmp_path / "data", tmp_path / "run", config, validation_fraction=0.0, device="cpu")
    masks = predict_files(load_model(tmp_path / "run", device="cpu"), [tmp_path / "data" / "images"], tmp_path / "out")
    for mask, shape in zip(masks, shapes.values(), strict=True):
        found = read_volume(mask).array
        assert found.shape == shape
        assert not found[:, : shape[1] // 4].any()
        assert found[:, -shape[1] // 4 :].mean() > 0.95


def test_of_large_slices_few_are_predicted_at_a_time() -> None:
    batches = []

    class Network(torch.nn.Module):
        def forward(self, image: torch.Tensor) -> torch.Tensor:
            batches.append(len(image))
            return torch.zeros(len(image), 2, *image.shape[-2:])

    for side, expected in ((256, [32, 3]), (512, [8, 8, 8, 8, 3]), (1024, [2] * 17 + [1])):
        batches.clear()
        assert predict_slices(Network(), torch.zeros(1).expand(35, 1, side, side)).shape == (1, 35, side, side)
        assert batches == expected
