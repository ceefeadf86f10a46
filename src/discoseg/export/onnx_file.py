"""One ONNX file of a trained network: slices scaled to [0, 1] in, class probabilities out.

The metadata of the file (``metadata_props``) say how slices are made of a volume: turn it to ``orientation``, scale
each channel so that its ``clip_percent`` percentiles become 0 and 1, clip, resize the slices to ``grid_shape``.
"""

import importlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from discoseg.data.files import write_atomically
from discoseg.errors import UserError
from discoseg.export.deployed import Probabilities, describe_model, model_on_cpu, quiet, require_agreement
from discoseg.predict import Model

INPUT = "float32 (slices, channels, rows, columns) in [0, 1]; any number of slices, rows and columns"
OUTPUT = "float32 (slices, classes, rows, columns) in [0, 1], which sum to one over the classes"


def export_onnx(model: Model, path: Path | str, *, overwrite: bool = False) -> float:
    """Write a model's network as an ONNX file; return its largest difference from torch, as ONNX Runtime computes it.

    Slices may have any size, as the network pads by itself; ``grid_shape`` is the size it was trained with. A file that
    differs by more than `TOLERANCE` is not written.
    """
    path = Path(path)
    require_onnx_target(path, overwrite=overwrite)
    model = model_on_cpu(model)
    network = Probabilities(model.network)
    proto = _to_onnx(network, model.channels)
    facts = describe_model(model) | {"input": INPUT, "output": OUTPUT}
    for key, value in facts.items():
        proto.metadata_props.add(key=key, value=value if isinstance(value, str) else json.dumps(value))
    content = proto.SerializeToString()
    difference = _check(path, content, network, model)
    with write_atomically(path) as temporary:
        temporary.write_bytes(content)
    return difference


def require_onnx_target(path: Path, *, overwrite: bool) -> None:
    """Raise a :class:`UserError` unless ONNX is installed and a file can be written to ``path``."""
    try:
        for package in ("onnx", "onnxscript", "onnxruntime"):
            importlib.import_module(package)
    except ImportError as error:
        raise UserError(f"--onnx needs {error.name}, which is not installed: pip install discoseg[export]") from error
    if path.suffix.lower() != ".onnx":
        raise UserError(f"{path}: the name of an ONNX file ends in .onnx")
    if path.is_dir() or (path.exists() and not overwrite):
        raise UserError(f"{path}: already exists; choose another name, or give --overwrite to replace a file")
    if not path.parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.parent}")


def _to_onnx(network: torch.nn.Module, channels: int) -> Any:
    """Return onnx's ModelProto of a network that maps (N, C, H, W) to (N, classes, H, W), for any N, H and W."""
    any_size = torch.export.Dim.DYNAMIC
    example = torch.zeros(2, channels, 36, 44)  # multiples of no network's stride
    with quiet():
        program = torch.export.export(
            network,
            (example,),
            dynamic_shapes=({0: any_size, 2: any_size, 3: any_size},),
            prefer_deferred_runtime_asserts_over_guards=True,  # nothing is assumed of the sizes
        )
        exported = torch.onnx.export(
            program,
            dynamo=True,
            dynamic_shapes=({0: "slices", 2: "rows", 3: "columns"},),
            input_names=["image"],
            output_names=["probability"],
            verbose=False,
        )
    assert exported is not None
    proto = exported.model_proto
    proto.producer_name = "discoseg"
    graph = proto.graph
    for part in (graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        del part.metadata_props[:]  # where in whose files torch met each operation
    return proto


def _check(path: Path, content: bytes, network: torch.nn.Module, model: Model) -> float:
    """Return the largest difference between torch and ONNX Runtime on slices of the grid's size and of an odd one."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors alone
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def difference(size: tuple[int, int, int], seed: int) -> float:
        slices, rows, columns = size
        generator = torch.Generator().manual_seed(seed)
        image = torch.rand(slices, model.channels, rows, columns, generator=generator)
        (theirs,) = session.run(["probability"], {"image": image.numpy()})
        with torch.no_grad():
            return float(np.abs(network(image).numpy() - theirs).max())

    sizes = (2, *model.grid.shape), (1, 37, 51)
    return max(require_agreement(path, partial(difference, size)) for size in sizes)
