"""A MONAI bundle of a trained run: TorchScript and configuration that MONAI runs without discoseg.

configs/metadata.json     versions, formats, and what prediction needs      configs/inference.json   files to label maps
models/model.ts           volumes in, class probabilities out               docs/README.md           how to use it
"""

import io
import json
import shutil
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from discoseg.data.files import make_folder_whole
from discoseg.data.orientation import turn_matrix
from discoseg.data.volume import Volume
from discoseg.errors import UserError
from discoseg.export.deployed import describe_model, model_on_cpu, quiet, require_agreement
from discoseg.export.volume_network import script_volume_network
from discoseg.predict import Model

_METADATA = Path("configs/metadata.json")


def export_bundle(model: Model, folder: Path | str, *, overwrite: bool = False) -> float:
    """Write a model as a MONAI bundle; return the largest difference of its probabilities from discoseg's own.

    A bundle that differs by more than `TOLERANCE` is not written.
    """
    folder = Path(folder).resolve()  # "." has no name
    require_bundle_target(folder, overwrite=overwrite)
    model = model_on_cpu(model)
    metadata = describe_bundle(model, folder.name)
    saved = io.BytesIO()
    with quiet():
        scripted = script_volume_network(model.network, model.grid, model.channels)
        torch.jit.save(scripted, saved, _extra_files={"metadata.json": json.dumps(metadata)})
        content = _without_sources(saved)
        difference = _check(folder, torch.jit.load(io.BytesIO(content)), model)
    with make_folder_whole(folder) as partial:
        files: dict[Path, bytes] = {
            _METADATA: _json(metadata),
            Path("configs/inference.json"): _json(inference_config(model)),
            Path("models/model.ts"): content,
            Path("docs/README.md"): _readme(model, folder.name).encode(),
        }
        for name, data in files.items():
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            (partial / name).write_bytes(data)
        replaced = folder.with_name(f"{folder.name}-replaced")
        if folder.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            folder.rename(replaced)
    shutil.rmtree(replaced, ignore_errors=True)
    return difference


def require_bundle_target(folder: Path, *, overwrite: bool) -> None:
    """Raise a :class:`UserError` unless ``folder`` is free, or with ``overwrite`` a bundle; nothing else is removed."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if not overwrite:
            raise UserError(f"{folder}: already in use; choose another folder, or replace a bundle by --overwrite")
        if not (folder / _METADATA).is_file():
            raise UserError(f"{folder}: not a bundle, so --overwrite does not remove it; choose another folder")


def describe_bundle(model: Model, name: str) -> dict[str, Any]:
    """Return metadata.json: what MONAI asks for, and under ``discoseg`` what prediction needs."""
    facts = describe_model(model)
    classes = facts["class_names"]
    volume = {"type": "image", "spatial_shape": ["*", "*", "*"], "dtype": "float32", "is_patch_data": False}
    inputs = {str(number): f"channel {number}" for number in range(model.channels)}
    return {
        "version": "1.0.0",
        "changelog": {"1.0.0": f"exported by discoseg {facts['discoseg_version']}"},
        "monai_version": version("monai"),
        "pytorch_version": version("torch").partition("+")[0],
        "numpy_version": version("numpy"),
        "required_packages_version": {"nibabel": version("nibabel")},
        "name": name,
        "task": f"segmentation of {', '.join(classes[1:])}",
        "description": "A network of 2D slices, trained by discoseg from weak annotations, for whole volumes.",
        "network_data_format": {
            "inputs": {
                "image": volume
                | {"format": "magnitude", "num_channels": model.channels, "value_range": [], "channel_def": inputs}
            },
            "outputs": {
                "pred": volume
                | {
                    "format": "probability",
                    "num_channels": len(classes),
                    "value_range": [0, 1],
                    "channel_def": {str(number): label for number, label in enumerate(classes)},
                }
            },
        },
        "discoseg": facts,
    }


def inference_config(model: Model) -> dict[str, Any]:
    """Return inference.json: image files of ``dataset_dir`` to label maps of the same names in ``output_dir``."""
    values = describe_model(model)["label_values"]
    files = "$sorted(glob.glob(@dataset_dir + '/*.nii.gz'))"
    if model.channels > 1:  # of one case, by nnU-Net's names
        others = f"[path.replace('_0000.', f'_{{n:04d}}.') for n in range({model.channels})]"
        files = f"$[{others} for path in sorted(glob.glob(@dataset_dir + '/*_0000.nii.gz'))]"
    axes = [["L", "R"], ["P", "A"], ["I", "S"]]
    load = {"_target_": "LoadImaged", "keys": "image", "ensure_channel_first": True}
    turn = {"_target_": "Orientationd", "keys": "image", "axcodes": model.grid.orientation, "labels": axes}
    label = {
        "_target_": "MapLabelValued",
        "keys": "pred",
        "orig_labels": list(range(len(values))),
        "target_labels": values,
        "dtype": "$numpy.uint8",
    }
    turn_back = {"_target_": "Invertd", "keys": "pred", "transform": "@preprocessing", "orig_keys": "image"}
    save = {
        "_target_": "SaveImaged",
        "keys": "pred",
        "output_dir": "@output_dir",
        "output_postfix": "",
        "output_dtype": "$numpy.uint8",
        "separate_folder": False,
        "resample": False,
    }
    return {
        "imports": ["$import glob", "$import numpy", "$import torch"],
        "bundle_root": ".",
        "dataset_dir": "$@bundle_root + '/images'",
        "output_dir": "$@bundle_root + '/predictions'",
        "device": "$torch.device('cuda' if torch.cuda.is_available() else 'cpu')",
        "network_def": "$torch.jit.load(@bundle_root + '/models/model.ts', map_location=@device)",
        "network": "$@network_def.eval()",
        "inferer": {"_target_": "SimpleInferer"},
        "preprocessing": {"_target_": "Compose", "transforms": [load, turn]},
        "dataset": {
            "_target_": "Dataset",
            "data": f"$[{{'image': files}} for files in {files.removeprefix('$')}]",
            "transform": "@preprocessing",
        },
        "postprocessing": {
            "_target_": "Compose",
            "transforms": [
                {**turn_back, "nearest_interp": False, "to_tensor": True},
                *_discretise(len(values)),
                label,
                save,
            ],
        },
        "predict": "$lambda item: @postprocessing("
        "{**item, 'pred': @inferer(item['image'][None].to(@device), @network)[0].cpu()})",
        "run": ["$[@predict(item) for item in @dataset]"],
    }


def _discretise(classes: int) -> list[dict[str, Any]]:
    """Return what makes labels of probabilities as discoseg does: one structure wins from one half on."""
    if classes > 2:
        return [{"_target_": "AsDiscreted", "keys": "pred", "argmax": True}]
    return [
        {"_target_": "Lambdad", "keys": "pred", "func": "$lambda probability: probability[1:]"},
        {"_target_": "AsDiscreted", "keys": "pred", "threshold": 0.5},
    ]


def _without_sources(saved: io.BytesIO) -> bytes:
    """Return a TorchScript archive less its debug records: the paths and lines of whoever exported it."""
    lean = io.BytesIO()
    with zipfile.ZipFile(saved) as source, zipfile.ZipFile(lean, "w", zipfile.ZIP_STORED) as target:
        for name in source.namelist():
            if not name.endswith(".debug_pkl"):
                target.writestr(zipfile.ZipInfo(name), source.read(name))
    return lean.getvalue()


def _check(folder: Path, network: torch.nn.Module, model: Model) -> float:
    """Return the largest difference between the TorchScript and :class:`Model`, on volumes of the grid's size."""

    def difference(seed: int) -> float:
        noise = np.random.default_rng(seed).integers(0, 1000, (model.channels, 2, *model.grid.shape), dtype=np.int16)
        affine = turn_matrix("RAS", model.grid.orientation, (1, 1, 1))
        channels = [Volume(array, affine, (1.0, 1.0, 1.0)) for array in noise]
        image = torch.from_numpy(noise.astype(np.float32)).permute(0, 3, 2, 1)  # (C, X, Y, Z)
        with torch.no_grad():
            theirs = network(image[None])[0, 1:].permute(0, 3, 2, 1).numpy()
        ours = np.stack([volume.array for volume in model.predict(*channels).probabilities.values()])
        return float(np.abs(ours - theirs).max())

    return require_agreement(folder, difference)


def _json(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def _readme(model: Model, name: str) -> str:
    facts = describe_model(model)
    names, (low, high), (rows, columns) = facts["class_names"], facts["clip_percent"], facts["grid_shape"]
    labels = ", ".join(f"{label} ({value})" for label, value in zip(names, facts["label_values"], strict=True))
    return f"""# {name}

A network that segments {", ".join(names[1:])}, trained and exported by discoseg {facts["discoseg_version"]}.
Label maps hold {labels}.

All NIfTI files of a folder, with MONAI (`pip install monai nibabel fire`); masks keep name and geometry:

    python -m monai.bundle run --config_file configs/inference.json \\
        --bundle_root . --dataset_dir IMAGES --output_dir OUT

The network alone needs nothing but PyTorch: `torch.jit.load("models/model.ts")` maps volumes
(B, {model.channels}, X, Y, Z) in {model.grid.orientation} orientation, intensities as stored, to probabilities
(B, {len(names)}, X, Y, Z). It scales intensities by itself (percentiles {low:g} and {high:g} of the volume
become 0 and 1), and resizes slices to {rows} × {columns} and back.

Whoever trained the network decides on its licence. It is no medical device.
"""
