"""Discretely constrained segmentation: train a network from one click per volume and a rough organ size.

>>> import numpy as np
>>> from discoseg import PottsGrid, select_by_size
>>> image = np.array([[0.1, 0.1, 0.1, 0.9, 0.9, 0.9]])
>>> unary = 0.5 - np.array([[0.2, 0.6, 0.3, 0.4, 0.9, 0.7]])  # ½ − the network's probability
>>> PottsGrid(image, spacing_mm=(1, 1), sigma=0.1).cut(unary, strength=0.2).astype(int)
array([[0, 0, 0, 1, 1, 1]])
>>> select_by_size(-unary, 4, 5).astype(int)
array([[0, 1, 0, 1, 1, 1]])

A whole training is :func:`fit`, a trained model :func:`load_model`; the command ``discoseg`` calls the same functions.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from discoseg.config import Config
    from discoseg.data.layouts import Case, Dataset, find_dataset
    from discoseg.data.volume import Volume, read_volume, write_volume
    from discoseg.discrete import PottsGrid, assign_by_size, cut_at_size, label_by_expansion, select_by_size
    from discoseg.errors import UserError
    from discoseg.evaluation import evaluate
    from discoseg.export import export_bundle, export_onnx
    from discoseg.postprocess import Postprocessing
    from discoseg.predict import Model, Prediction, load_model, predict_files
    from discoseg.presets import PRESETS, load_config
    from discoseg.report import write_report
    from discoseg.sweep import fit_many
    from discoseg.weak.examples import Example
    from discoseg.workflow import fit

__version__ = "0.1.0"
_HOMES = {
    "Case": "data.layouts",
    "Config": "config",
    "Dataset": "data.layouts",
    "Example": "weak.examples",
    "Model": "predict",
    "PRESETS": "presets",
    "Postprocessing": "postprocess",
    "PottsGrid": "discrete",
    "Prediction": "predict",
    "UserError": "errors",
    "Volume": "data.volume",
    "assign_by_size": "discrete",
    "cut_at_size": "discrete",
    "evaluate": "evaluation",
    "export_bundle": "export",
    "export_onnx": "export",
    "find_dataset": "data.layouts",
    "fit": "workflow",
    "fit_many": "sweep",
    "label_by_expansion": "discrete",
    "load_config": "presets",
    "load_model": "predict",
    "predict_files": "predict",
    "read_volume": "data.volume",
    "select_by_size": "discrete",
    "write_report": "report",
    "write_volume": "data.volume",
}
__all__ = [
    "PRESETS",
    "Case",
    "Config",
    "Dataset",
    "Example",
    "Model",
    "Postprocessing",
    "PottsGrid",
    "Prediction",
    "UserError",
    "Volume",
    "assign_by_size",
    "cut_at_size",
    "evaluate",
    "export_bundle",
    "export_onnx",
    "find_dataset",
    "fit",
    "fit_many",
    "label_by_expansion",
    "load_config",
    "load_model",
    "predict_files",
    "read_volume",
    "select_by_size",
    "write_report",
    "write_volume",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: torch and its like cost seconds."""
    if name not in _HOMES:
        raise AttributeError(f"module 'discoseg' has no attribute {name!r}")
    return getattr(importlib.import_module(f"discoseg.{_HOMES[name]}"), name)
