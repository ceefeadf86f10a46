"""What a run folder must hold for a page about it: folders come from other people, too."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discoseg.errors import UserError

_MOST_LABELS = 255


def require_facts(path: Path, facts: Mapping[str, Any]) -> None:
    """Refuse a run.json whose lists of cases, or whose model, are something else."""
    lists = [facts.get(split, []) for split in ("training", "validation")]
    model = facts.get("model", {})
    labels = model.get("labels", {}) if isinstance(model, dict) else None
    if (
        not all(isinstance(cases, list) for cases in lists)
        or not isinstance(labels, dict)
        or len(labels) > _MOST_LABELS
    ):
        raise UserError(f"{path}: broken, training and validation must be lists, and model an object with labels")


def require_settings(path: Path, config: Mapping[str, Any]) -> None:
    """Refuse a config.toml in which a part of the settings is a value, or the number of epochs is none."""
    epochs = config.get("epochs", 1)
    parts = [config.get(part, {}) for part in ("grid", "network", "optimiser", "augment", "crf", "admm")]
    if type(epochs) is not int or not 0 < epochs < 2**31 or not all(isinstance(part, dict) for part in parts):
        raise UserError(f"{path}: broken, epochs must be a number, and each part of the settings a table")


def are_epochs(numbers: NDArray[np.float64]) -> bool:
    """Return whether numbers (N,) count epochs: whole, from 1, and rising."""
    return bool(((numbers >= 1) & (numbers < 2**31) & (numbers % 1 == 0)).all() and (np.diff(numbers) > 0).all())


def require_slice(shown: Mapping[str, NDArray[Any]], needed: Collection[str]) -> None:
    """Raise a ValueError unless a slice has the kinds that are needed, of one shape (H, W) and of small integers."""
    if missing := [kind for kind in needed if kind not in shown]:
        raise ValueError(f"a slice without its {missing[0]}")
    shape = shown["image"].shape
    for kind, array in shown.items():
        axes = array.ndim == 3 if kind == "probability" and array.ndim == 3 else array.ndim == 2
        if not axes or array.shape[-2:] != shape or array.size == 0 or array.dtype not in (np.uint8, np.int8, np.bool_):
            raise ValueError(f"a slice whose {kind} is {array.dtype} of {array.shape}")
    if shown["image"].dtype != np.uint8 or shown.get("probability", shown["image"]).dtype != np.uint8:
        raise ValueError("an image that is not of uint8")
