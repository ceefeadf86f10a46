"""Models from the files that a training writes; whatever is no such file is refused before it takes memory."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from discoseg.checkpoint import load_tensors
from discoseg.config import NetworkConfig
from discoseg.data.dataset_json import HIGHEST
from discoseg.data.names import require_name
from discoseg.data.orientation import require_codes
from discoseg.data.prepare import Grid
from discoseg.devices import choose_device
from discoseg.errors import UserError
from discoseg.networks import build_network
from discoseg.predict.model import Model
from discoseg.presets import from_record
from discoseg.run import ModelName, RunFolder
from discoseg.state import network_tensors
from discoseg.texts import read_json

_MOST_CHANNELS = 1000


def load_model(path: Path | str, *, device: str = "auto", checkpoint: ModelName = "best") -> Model:
    """Load a run folder's ``best``, ``mean`` or ``final`` model, or a checkpoint file.

    The ``best`` is the best epoch's by the validation cases; the mean of the last epochs' weights takes that place
    where it validates better, or nothing validates. The ``latest`` checkpoint of a training that still runs needs the
    run.json of its folder.
    """
    file = path = Path(path)
    if path.is_dir():
        run = RunFolder(path)
        file = run.model(checkpoint)
        if not file.is_file() and checkpoint == "mean" and run.final.is_file():
            raise UserError(f"{path}: was trained before there were means of models; use --checkpoint final")
        if not file.is_file():
            raise UserError(f"{path}: no model in it ({file.relative_to(path)}); finish its training first")
    tensors, meta = load_tensors(file)
    target = choose_device(device)
    try:
        config = from_record(meta["config"], where=str(file))
        facts = dict(meta["model"] if "model" in meta else _recorded_model(file))
        labels = facts["labels"] if "labels" in facts else {facts["label"]: facts["label_value"]}
        _require_facts(file, labels, facts["channels"])
        network = _restore(config.network, facts["channels"], 1 + len(labels), network_tensors(tensors))
        require_codes(facts["orientation"])
        grid = Grid(config.grid.shape, config.grid.clip_percent, facts["orientation"])
        epoch = int(meta["epoch"])
    except UserError:
        raise
    except (LookupError, RuntimeError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UserError(f"{file}: not a model of this version of discoseg; train it anew") from error
    network = network.to(target).eval()
    return Model(network, grid, facts["channels"], labels, epoch, target, config.augment, config)


def _require_facts(file: Path, labels: dict[str, int], channels: int) -> None:
    """Refuse names and numbers of structures and channels that no training writes."""
    for name in labels:
        require_name(name, file, "structure")
    values = list(labels.values())
    if not values or any(type(value) is not int or not 0 < value <= HIGHEST for value in values):
        raise ValueError(f"label values {values}")
    if type(channels) is not int or not 0 < channels <= _MOST_CHANNELS:
        raise ValueError(f"{channels} channels")


def _restore(config: NetworkConfig, channels: int, classes: int, weights: dict[str, torch.Tensor]) -> nn.Module:
    """Return a network with its weights; one that does not have just these is refused before it takes memory."""
    build = partial(
        build_network, config.name, channels=channels, classes=classes, width=config.width, depth=config.depth
    )
    with torch.device("meta"):
        outline = {name: (weight.shape, weight.dtype) for name, weight in build().state_dict().items()}
    if outline != {name: (weight.shape, weight.dtype) for name, weight in weights.items()}:
        raise ValueError("other weights than its settings say")
    network = build()
    network.load_state_dict(weights)
    return network


def _recorded_model(file: Path) -> Any:
    """Return what run.json says of the model whose training wrote the checkpoint; a KeyError where it says nothing."""
    try:
        return read_json(file.parent.parent / "run.json")["model"]
    except (OSError, ValueError) as error:
        raise KeyError("model") from error
