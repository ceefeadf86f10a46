"""Everything a training must remember between two steps, and its way into a checkpoint and back."""

import math
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from discoseg.admm import Prior
from discoseg.averaging import MeanWeights
from discoseg.checkpoint import load_tensors, save_tensors
from discoseg.checkpoint_header import load_meta
from discoseg.config import Config, PriorName
from discoseg.errors import UserError
from discoseg.plain import flatten, to_dict
from discoseg.presets import from_record
from discoseg.slices import what_changed
from discoseg.weak.examples import ExamplePart

Files = Mapping[str, Mapping[ExamplePart, str]]
"""By a case's name the files that its parts come from."""

Load = Callable[[Path, Mapping[str, torch.Tensor]], tuple[dict[str, torch.Tensor], dict[str, Any]]]
"""Returns the tensors and the metadata of a checkpoint; tensors that are given by name may be filled."""


@dataclass
class Running:
    """How far the running epoch's training pass is.

    ``losses`` (steps of a pass, terms) float32 on the device are those of each step, of which ``steps`` are done, or on
    their way to the device; ``drawn`` is the state of the order's generator before the pass's draws. Each batch is
    taken in ``parts``, more than one where memory was too little for all of it at a time.
    """

    losses: torch.Tensor
    drawn: torch.Tensor
    steps: int = 0
    parts: int = 1


@dataclass
class State:
    """The network and its optimiser, the priors, and where the training stands.

    ``order`` draws batches and augmentations; ``slice_sums`` are the latest summed probabilities of each slice,
    (K, N), for the size penalty; ``running`` is the epoch under way; ``history`` holds one row of metrics per finished
    epoch; ``changes`` by prior and epoch, the latest few, the share of each case's open voxels whose proposal changed;
    ``mean`` is over the weights after the last epochs; ``round`` (0 or 1) is that of the network, which ``began`` after
    so many epochs (:mod:`discoseg.rounds`).
    """

    network: torch.nn.Module
    optimiser: torch.optim.Optimizer
    priors: list[Prior]
    order: torch.Generator
    slice_sums: torch.Tensor
    running: Running
    history: list[dict[str, float]] = field(default_factory=list)
    changes: dict[str, list[list[float]]] = field(default_factory=dict)
    best_dice: float = -1.0
    best_epoch: int = 0
    mean: MeanWeights = field(default_factory=MeanWeights)
    round: int = 0
    began: int = 0

    @property
    def epoch(self) -> int:
        """How many epochs are finished."""
        return len(self.history)

    @property
    def place(self) -> tuple[int, int]:
        """How many epochs are finished, and how many steps of the next one's training pass."""
        return self.epoch, self.running.steps

    def prior(self, name: PriorName) -> Prior:
        """Return the prior of this name."""
        return next(prior for prior in self.priors if prior.name == name)

    def finish_epoch(self, row: dict[str, float]) -> None:
        """Note the metrics of the running epoch, which is done."""
        names = map(sys.intern, row)  # or each row would have names of its own, which are half of it
        self.history.append({"epoch": self.epoch + 1, **dict(zip(names, row.values(), strict=True))})
        self.running.steps = 0


def save_model(path: Path, state: State, config: Config, model: dict[str, Any]) -> None:
    """Write what prediction needs: the network's weights, the configuration, and what the model's data looked like.

    Beside these the epoch and, where cases validate, their Dice then.
    """
    require_finite_weights(state)
    meta = {"config": to_dict(config), "model": model, "epoch": state.epoch}
    if "val_dice" in state.history[-1]:
        meta["val_dice"] = state.history[-1]["val_dice"]
    save_tensors(path, _network_tensors(state.network.state_dict()), meta)


def save_mean(path: Path, state: State, config: Config, model: dict[str, Any], scores: Mapping[str, float]) -> None:
    """Write the mean of the last epochs' weights like `save_model`, with its ``scores``."""
    meta = {"config": to_dict(config), "model": model, "epoch": state.epoch, "averaged": state.mean.epochs, **scores}
    save_tensors(path, _network_tensors(state.mean.weights), meta)


def recall_best(best: Path, state: State) -> None:
    """Let no worse model take the place of the ``best`` one, if it is of an epoch that a kill has undone since.

    Such an epoch may come out otherwise when it is made again, and the model before it is gone.
    """
    if best.is_file():
        with suppress(UserError):  # damaged: the next better one than any known takes its place
            meta = load_meta(best)
            if meta.get("epoch", 0) > state.epoch and meta.get("val_dice", -1.0) > state.best_dice:
                just_below = math.nextafter(meta["val_dice"], -1.0)  # so that the same epoch, made again, counts
                state.best_dice, state.best_epoch = just_below, meta["epoch"]


def snapshot_state(
    state: State, config: Config, data: dict[str, dict[str, str]], *, copy: bool = True
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return all that a resumed training needs to go on to the identical result, as tensors and JSON.

    ``data`` are the cases' checksums. The training may go on while they are written, if they are a ``copy``.
    """
    tensors = _network_tensors(state.network.state_dict())
    tensors |= {f"mean.{name}": value for name, value in state.mean.weights.items()}
    for prior in state.priors:
        tensors[f"{prior.name}.proposal2"] = prior.doubled
        tensors[f"{prior.name}.multiplier"] = prior.multiplier
    for index, values in state.optimiser.state_dict()["state"].items():
        for name, value in values.items():
            tensors[f"optimiser.{index}.{name}"] = value
    tensors["slice_sums"] = state.slice_sums
    tensors["random.order"] = state.order.get_state()
    if state.running.steps:
        tensors["running.losses"], tensors["running.drawn"] = state.running.losses, state.running.drawn
    tensors["random.torch"] = torch.get_rng_state()
    if state.slice_sums.is_cuda:
        tensors["random.cuda"] = torch.cuda.get_rng_state()
    meta = {
        "config": to_dict(config),
        "data": data,
        "epoch": state.epoch,
        "steps": state.running.steps,
        "parts": state.running.parts,
        "history": list(state.history),
        "changes": dict(state.changes),
        "best_dice": state.best_dice,
        "best_epoch": state.best_epoch,
        "averaged": state.mean.epochs,
        "round": state.round,
        "began": state.began,
        "mu": {prior.name: prior.mu for prior in state.priors},
    }
    if copy:
        tensors = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    if state.slice_sums.is_cuda:
        torch.cuda.current_stream().synchronize()  # the tensors are read on another stream
    return tensors, meta


def require_finite_weights(state: State) -> None:
    """Refuse a network in which a number is not finite: none must take the place of a good one on the disk."""
    numbers = [value for value in state.network.state_dict().values() if value.is_floating_point()]
    if not torch.stack([value.isfinite().all() for value in numbers]).all():
        raise UserError(
            f"weights are not finite in epoch {state.epoch + 1}, after step {state.running.steps}; "
            "the last checkpoint is kept: start anew with a smaller --optimiser.lr"
        )


def _network_tensors(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"network.{name}": value for name, value in weights.items()}


def network_tensors(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the network's part of a checkpoint's tensors, under the names its ``state_dict`` uses."""
    return {name.removeprefix("network."): value for name, value in tensors.items() if name.startswith("network.")}


def restore_state(
    path: Path,
    state: State,
    config: Config,
    data: dict[str, dict[str, str]],
    files: Files = MappingProxyType({}),
    load: Load = load_tensors,
) -> None:
    """Bring a freshly made ``state`` to where the checkpoint at ``path`` left off; settings and data must agree.

    ``data`` are the cases' checksums, ``files`` what they are of; ``load`` returns the checkpoint's content.
    """
    large = {f"{prior.name}.proposal2": prior.doubled for prior in state.priors}
    large |= {f"{prior.name}.multiplier": prior.multiplier for prior in state.priors}
    meta = load_meta(path)
    if not {"config", "data", "history", "mu"} <= meta.keys():
        raise UserError(f"{path}: a model, not the state of a training, so nothing can go on from it; train anew")
    _require_same_settings(path, meta["config"], to_dict(config))
    _require_same_data(path, meta["data"], data, files)
    if meta["epoch"] > config.epochs:
        raise UserError(f"{path}: {meta['epoch']} epochs are done already; --epochs {config.epochs} cannot undo them")
    if meta["epoch"] == config.epochs and meta.get("steps"):
        raise UserError(f"{path}: epoch {meta['epoch'] + 1} is under way; --epochs {config.epochs} cannot undo it")
    tensors, meta = load(path, large)
    device = state.slice_sums.device
    state.network.load_state_dict(network_tensors(tensors))
    for name, tensor in large.items():
        tensor.copy_(tensors[name])
    for prior in state.priors:
        prior.mu = meta["mu"][prior.name]
    moments: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimiser."):
            _, index, moment = name.split(".")
            moments.setdefault(int(index), {})[moment] = value
    for number, parameter in enumerate(state.network.parameters()):  # in the memory layout of the weights
        for moment, value in moments.get(number, {}).items():
            if value.shape == parameter.shape:
                moments[number][moment] = torch.empty_like(parameter).copy_(value)
    state.optimiser.load_state_dict({**state.optimiser.state_dict(), "state": moments})
    state.slice_sums = tensors["slice_sums"].to(device).view_as(state.slice_sums)
    state.order.set_state(tensors["random.order"])
    torch.set_rng_state(tensors["random.torch"])
    if "random.cuda" in tensors and device.type == "cuda":
        torch.cuda.set_rng_state(tensors["random.cuda"])
    state.running.steps, state.running.parts = meta.get("steps", 0), meta.get("parts", 1)  # older ones have neither
    if state.running.steps:
        state.running.losses.copy_(tensors["running.losses"])
        state.running.drawn = tensors["running.drawn"]
    state.history = meta["history"]
    state.changes = meta.get("changes", {})  # older checkpoints have none
    state.best_dice, state.best_epoch = meta["best_dice"], meta["best_epoch"]
    state.round, state.began = meta.get("round", 0), meta.get("began", 0)
    state.mean = MeanWeights()
    before = from_record(meta["config"], where=str(path))
    same_end = before.end_of_round(state.round) == config.end_of_round(state.round)
    is_over = config.round_of(state.epoch) > state.round  # its mean is what the next round begins with
    if meta.get("averaged") and (same_end or is_over):  # else other epochs are the last ones now
        state.mean.epochs = meta["averaged"]
        for name, value in state.network.state_dict().items():
            state.mean.weights[name] = torch.empty_like(value).copy_(tensors[f"mean.{name}"])


def _require_same_settings(path: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """A run goes on only with the settings it was started with; just the number of epochs may differ."""
    new, old = flatten(now), flatten(to_dict(from_record(before, where=str(path))))
    for key in sorted(old.keys() | new.keys()):
        if key != "epochs" and old.get(key) != new.get(key):
            raise UserError(
                f"{path}: was made with another setting: {key} = {old.get(key)!r}, now {new.get(key)!r}; "
                "resume with the same, or train into another folder"
            )


def _require_same_data(
    path: Path, before: dict[str, dict[str, str]], now: dict[str, dict[str, str]], files: Files
) -> None:
    """A run goes on only with the very cases, images, annotations and bounds it was started with."""
    for part in ("training", "validation"):
        old, new = before[part], now[part]
        for case in sorted(old.keys() | new.keys()):
            if case not in old or case not in new:
                what = f"{part} case {case} {'was not there' if case not in old else 'is missing now'}"
            elif changed := what_changed(old[case], new[case]):
                what = f"{part} case {case} has changed ({changed})"
                if changed != "image, annotation or bounds" and (file := files.get(case, {}).get(changed)):
                    what = f"{file} has changed ({changed} of {part} case {case})"
            else:
                continue
            raise UserError(
                f"{path}: was made with other data: {what}; resume with the same, or train into another folder"
            )
