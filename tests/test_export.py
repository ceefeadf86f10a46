"""Exported models predict what discoseg predicts: ONNX in ONNX Runtime, bundles in MONAI."""

import json
import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

import discoseg
from discoseg.checkpoint import save_tensors
from discoseg.cli import main
from discoseg.config import Config, GridConfig, NetworkConfig
from discoseg.data.phantom import make_phantom
from discoseg.data.prepare import Grid
from discoseg.data.volume import Volume, read_volume, write_volume
from discoseg.export.bundle import export_bundle
from discoseg.export.deployed import Probabilities, quiet
from discoseg.export.onnx_file import export_onnx
from discoseg.export.volume_network import script_volume_network
from discoseg.networks import ENet, UNet
from discoseg.networks.windows import pool_with_corners, unpool
from discoseg.plain import to_dict
from discoseg.predict import Model, load_model
from discoseg.run import RunFolder

needs_onnx = pytest.mark.skipif(
    any(find_spec(package) is None for package in ("onnx", "onnxscript", "onnxruntime")),
    reason="onnx, onnxscript or onnxruntime is not installed: pip install discoseg[export]",
)
SHAPE = (30, 44)


def decided(network: torch.nn.Module, channels: int = 1) -> torch.nn.Module:
    """Give a network weights and statistics by which it takes some of a picture for the structure, surely."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(3)
        for module in network.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                torch.nn.init.normal_(module.bias)
                torch.nn.init.uniform_(module.running_var, 0.1, 0.5)  # type: ignore[arg-type]
        picture = make_phantom(5, in_plane=SHAPE).image.array
        image = torch.from_numpy(picture / picture.max()).float().unsqueeze(1).expand(-1, channels, -1, -1)
        logits = network.eval()(image)
        output: Any = network.output
        output.weight *= 8 / (logits[:, 1] - logits[:, 0]).std()
        logits = network(image)
        output.bias[1] -= (logits[:, 1] - logits[:, 0]).quantile(0.7) + 0.01  # no pixel at one half
    return network


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with a best and another final model of a small U-Net, as if trained; read only."""
    run = RunFolder(tmp_path_factory.mktemp("runs") / "run")
    run.best.parent.mkdir(parents=True)
    config = Config(grid=GridConfig(SHAPE, (1.0, 99.0)), network=NetworkConfig("unet", width=4, depth=1))
    facts = {"channels": 1, "label": "LV", "label_value": 3, "orientation": "LPS"}
    for epoch, path in enumerate((run.best, run.final), start=1):
        torch.manual_seed(epoch)
        weights = decided(UNet(1, 2, width=4, depth=1)).state_dict()
        tensors = {f"network.{name}": value for name, value in weights.items()}
        save_tensors(path, tensors, {"config": to_dict(config), "model": facts, "epoch": epoch})
    return run.root


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run the command in this process; return its status and what it printed, an error being one line."""

    def run(*arguments: object) -> tuple[int, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        status = int(stop.value.code or 0)
        assert len(printed.err.splitlines()) == (status == 2)
        return status, printed.out + printed.err

    return run


# ONNX


@pytest.fixture(scope="module")
def onnx_file(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run's best model; read only."""
    path = tmp_path_factory.mktemp("onnx") / "lv.onnx"
    assert export_onnx(load_model(trained, device="cpu"), path) < 1e-5
    return path


def session(path: Path) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


@needs_onnx
@pytest.mark.parametrize("shape", [(1, *SHAPE), (5, 32, 32), (2, 7, 61), (1, 1, 1)])
def test_onnx_says_what_torch_says_at_any_size(onnx_file: Path, trained: Path, shape: tuple[int, int, int]) -> None:
    slices, rows, columns = shape
    image = torch.rand(slices, 1, rows, columns)
    (probability,) = session(onnx_file).run(None, {"image": image.numpy()})
    with torch.no_grad():
        expected = load_model(trained, device="cpu").network(image).softmax(dim=1).numpy()
    assert probability.dtype == np.float32
    assert probability.shape == (slices, 2, rows, columns)
    assert np.abs(probability - expected).max() < 1e-5
    if rows > 1:
        assert probability.min() < 0.2 < 0.8 < probability.max()


@needs_onnx
def test_onnx_file_knows_what_prediction_needs(onnx_file: Path) -> None:
    found = session(onnx_file)
    facts = found.get_modelmeta().custom_metadata_map
    assert json.loads(facts["class_names"]) == ["background", "LV"]
    assert json.loads(facts["label_values"]) == [0, 3]
    assert facts["orientation"] == "LPS"
    assert json.loads(facts["grid_shape"]) == list(SHAPE)
    assert json.loads(facts["clip_percent"]) == [1.0, 99.0]
    assert json.loads(facts["channels"]) == 1
    assert facts["discoseg_version"]
    assert found.get_inputs()[0].shape == ["slices", 1, "rows", "columns"]
    assert found.get_outputs()[0].shape == ["slices", 2, "rows", "columns"]
    assert str(Path(discoseg.__file__).parent).encode() not in onnx_file.read_bytes()


class Unpooling(torch.nn.Module):
    """What ENet has and U-Net has not."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Map (B, 2, H, W) to logits (B, 2, H, W) for even sides."""
        return unpool(*pool_with_corners(image))


@needs_onnx
def test_unpooling_is_exported_too(tmp_path: Path) -> None:
    model = Model(Unpooling(), Grid((16, 24)), 2, {"LV": 1}, 1, torch.device("cpu"))
    assert export_onnx(model, tmp_path / "unpooling.onnx") < 1e-5


@needs_onnx
def test_onnx_file_that_differs_is_not_written(
    trained: Path, onnx_file: Path, tmp_path: Path, command: Callable[..., tuple[int, str]], monkeypatch: Any
) -> None:
    import onnx

    monkeypatch.setattr("discoseg.export.onnx_file._to_onnx", lambda network, channels: onnx.load(onnx_file))
    status, said = command("export", trained, "--checkpoint", "final", "--onnx", tmp_path / "x.onnx")
    assert status == 2
    assert "x.onnx: not written: its probabilities would differ from torch's by" in said
    assert list(tmp_path.iterdir()) == []
    status, said = command("export", trained, "--onnx", tmp_path / "x.onnx")
    assert status == 0
    assert "LV (value 3), epoch 1; largest difference from torch" in said


@needs_onnx
def test_onnx_files_are_overwritten_only_when_told(
    trained: Path, onnx_file: Path, tmp_path: Path, command: Callable[..., tuple[int, str]], monkeypatch: Any
) -> None:
    import onnx

    monkeypatch.setattr("discoseg.export.onnx_file._to_onnx", lambda network, channels: onnx.load(onnx_file))
    path = tmp_path / "lv.onnx"
    path.write_text("mine")
    assert "already exists" in command("export", trained, "--onnx", path)[1]
    assert path.read_text() == "mine"
    assert command("export", trained, "--onnx", path, "--overwrite")[0] == 0
    assert session(path)
    assert "ends in .onnx" in command("export", trained, "--onnx", tmp_path / "lv.pb")[1]
    assert "no folder" in command("export", trained, "--onnx", tmp_path / "nowhere/lv.onnx")[1]
    assert [path.name for path in tmp_path.iterdir()] == ["lv.onnx"]


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_onnx_without_the_extra(
    package: str, trained: Path, tmp_path: Path, command: Callable[..., tuple[int, str]], monkeypatch: Any
) -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        monkeypatch.setitem(sys.modules, name, None if name == package else json)
    status, said = command("export", trained, "--onnx", tmp_path / "lv.onnx")
    assert status == 2
    assert f"needs {package}, which is not installed: pip install discoseg[export]" in said


# MONAI bundles


@pytest.fixture(scope="module")
def bundle(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run's best model; read only."""
    folder = tmp_path_factory.mktemp("bundles") / "lv"
    assert export_bundle(load_model(trained, device="cpu"), folder) < 1e-5
    return folder


def predict_by_monai(bundle: Path, images: Path, out: Path) -> None:
    from monai.bundle.config_parser import ConfigParser

    parser = ConfigParser()
    parser.read_config(bundle / "configs/inference.json")
    parser.read_meta(bundle / "configs/metadata.json")
    parser.update({"bundle_root": str(bundle), "dataset_dir": str(images), "output_dir": str(out), "device": "cpu"})
    parser.get_parsed_content("run")


def test_bundle_predicts_the_masks_of_discoseg(trained: Path, bundle: Path, phantoms: Path, tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    image = read_volume(phantoms / "imagesTs/phantom_007_0000.nii.gz")
    for codes in ("LPS", "RAS", "SLA"):
        write_volume(images / f"{codes}.nii.gz", image.reoriented(codes))
    predict_by_monai(bundle, images, tmp_path / "theirs")
    model = load_model(trained, device="cpu")
    for path in sorted(images.iterdir()):
        ours, theirs = model.segment(read_volume(path)), read_volume(tmp_path / "theirs" / path.name)
        assert np.array_equal(ours.array, theirs.array)
        assert theirs.array.dtype == np.uint8
        assert np.allclose(ours.affine, theirs.affine, atol=1e-4)
        assert 0 < np.count_nonzero(ours.array) < ours.array.size
        assert set(np.unique(ours.array)) == {0, 3}


def test_several_channels_are_found_by_their_names(phantoms: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = decided(UNet(2, 2, width=4, depth=1), channels=2)
    model = Model(network, Grid((32, 32), (0.0, 100.0), "RAI"), 2, {"LV": 3}, 1, torch.device("cpu"))
    export_bundle(model, tmp_path / "bundle")
    first, second = (read_volume(phantoms / f"imagesTs/phantom_00{n}_0000.nii.gz") for n in (7, 8))
    second = first.like(second.array[np.arange(len(first.array)) % len(second.array)])
    (tmp_path / "images").mkdir()
    for number, channel in enumerate((first, second)):
        write_volume(tmp_path / f"images/a_{number:04d}.nii.gz", channel)
    predict_by_monai(tmp_path / "bundle", tmp_path / "images", tmp_path / "out")
    (mask,) = (tmp_path / "out").iterdir()
    assert np.array_equal(read_volume(mask).array, model.segment(first, second).array)


def test_bundle_loads_by_its_name(trained: Path, bundle: Path, phantoms: Path, tmp_path: Path) -> None:
    from monai.bundle.scripts import load

    network, metadata, _ = cast(Any, load)("lv", bundle_dir=str(bundle.parent), load_ts_module=True, device="cpu")
    assert metadata == json.loads((bundle / "configs/metadata.json").read_text())
    assert metadata["network_data_format"]["outputs"]["pred"]["channel_def"] == {"0": "background", "1": "LV"}
    assert metadata["discoseg"]["label_values"] == [0, 3]
    assert str(Path(discoseg.__file__).parent).encode() not in (bundle / "models/model.ts").read_bytes()
    volume = read_volume(phantoms / "imagesTs/phantom_007_0000.nii.gz").reoriented("LPS")
    image = torch.from_numpy(volume.array.T.astype(np.float32))[None, None]
    probability = network(image.expand(2, -1, -1, -1, -1))
    assert probability.shape == (2, 2, *volume.array.T.shape)
    expected = load_model(trained, device="cpu").probability(volume).array
    assert np.abs(probability[1, 1].detach().numpy().T - expected).max() < 1e-5


@pytest.mark.parametrize("network", [UNet(1, 2, width=2, depth=2), ENet(1, 2, width=4)])
def test_torchscript_leaves_its_device_open(network: torch.nn.Module) -> None:
    if isinstance(network, ENet):
        network.stage1 = network.stage2 = network.stage3 = torch.nn.Sequential()  # the other stages have it all
    with quiet():
        scripted = script_volume_network(network.eval(), Grid((22, 30)), 1)
    slices: Any = scripted.network.to("meta")  # where a tensor of another device would be an error
    assert slices(torch.rand(3, 1, 22, 30, device="meta")).shape == (3, 2, 22, 30)


def test_torchscript_scales_as_discoseg_does() -> None:
    """The image is squeezed between percentiles, constant but for few voxels, or no image at all."""
    torch.manual_seed(0)
    network = Probabilities(decided(UNet(1, 2, width=2, depth=1)))
    for clip, dtype in (((0.0, 100.0), np.float32), ((2.0, 97.5), np.int16), ((40.0, 60.0), np.float32)):
        grid = Grid((16, 12), clip, "LPS")
        model = Model(network.network, grid, 1, {"LV": 1}, 1, torch.device("cpu"))
        with quiet():
            scripted = script_volume_network(network.network, grid, 1)
        array = np.zeros((3, 20, 9), dtype)
        array[1, 4:8, 2:6] = 70
        array[0, 2, 3] = 900
        volume = Volume(array, np.diag([-1.0, -1.0, 1.0, 1.0]), (1.0, 1.0, 1.0))
        theirs = scripted(torch.from_numpy(array.T.astype(np.float32))[None, None])[0, 1].detach().numpy().T
        assert np.abs(model.probability(volume).array - theirs).max() < 1e-5
    for useless in (torch.ones(1, 1, 8, 8, 2), torch.full((1, 1, 8, 8, 2), torch.nan)):
        with pytest.raises(torch.jit.Error, match="constant, or has NaN"):
            scripted(useless)


def test_bundles_are_overwritten_only_when_told(
    trained: Path, bundle: Path, tmp_path: Path, command: Callable[..., tuple[int, str]]
) -> None:
    folder = Path(shutil.copytree(bundle, tmp_path / "lv"))
    (folder / "models/model.ts").write_text("mine")
    assert "already in use" in command("export", trained, "--monai-bundle", folder)[1]
    assert (folder / "models/model.ts").read_text() == "mine"
    status, said = command("export", trained, "--monai-bundle", folder, "--overwrite", "--checkpoint", "final")
    assert status == 0
    assert "LV (value 3), epoch 2; largest difference from torch" in said
    assert torch.jit.load(folder / "models/model.ts")
    assert [path.name for path in tmp_path.iterdir()] == ["lv"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other/notes.txt").write_text("mine")
    said = command("export", trained, "--monai-bundle", tmp_path / "other", "--overwrite")[1]
    assert "not a bundle, so --overwrite does not remove it" in said
    assert (tmp_path / "other/notes.txt").read_text() == "mine"


def test_bundle_that_differs_is_not_written(
    trained: Path, tmp_path: Path, command: Callable[..., tuple[int, str]], monkeypatch: Any
) -> None:
    monkeypatch.setattr("discoseg.export.deployed.TOLERANCE", -1.0)
    status, said = command("export", trained, "--monai-bundle", tmp_path / "lv")
    assert status == 2
    assert "lv: not written" in said
    assert list(tmp_path.iterdir()) == []


def test_wrong_words(trained: Path, tmp_path: Path, command: Callable[..., tuple[int, str]]) -> None:
    assert "--onnx FILE, --monai-bundle FOLDER, or both" in command("export", trained)[1]
    assert "nowhere" in command("export", tmp_path / "nowhere", "--monai-bundle", tmp_path / "lv")[1]
    assert list(tmp_path.iterdir()) == []
