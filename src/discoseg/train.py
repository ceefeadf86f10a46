"""Training, top to bottom: Algorithm 1 of the paper, for every method the same loop.

    discoseg train ACDC --seeds seeds/LV --label LV --size-eps 0.1 --out runs/lv

Per epoch: (1) one pass of mini-batches of 2D slices drawn across volumes, on the augmented loss; (2) the network, in
evaluation mode, predicts every training volume; (3) every 3D volume gets its proposals; (4) the multipliers move;
(5) the learning rate decays. Images, seeds, proposals and multipliers stay on the training device throughout.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from discoseg import admm, losses
from discoseg.augment import apply_intensities, apply_transforms, pixel_area, sample_intensities, sample_transforms
from discoseg.config import Config
from discoseg.data.files import usable_cores
from discoseg.discrete import PottsGrid
from discoseg.errors import UserError
from discoseg.networks import build_network
from discoseg.run import RunFolder
from discoseg.scores import score_cases, score_epoch
from discoseg.slices import Slices, fingerprint, stack_slices
from discoseg.state import State, restore_state, save_model, save_state
from discoseg.weak.examples import Example

_CHECKPOINT_EVERY_S = 60.0  # a kill costs at most this much work, and an epoch
_PREDICT_BATCH = 32

Progress = Callable[[float, str], None]
"""Called with the epochs done so far (a fraction within an epoch) and a line about what is going on."""


def train(
    training: Sequence[Example],
    validation: Sequence[Example],
    config: Config,
    run: Path,
    *,
    model: dict[str, Any],
    sources: dict[str, Any] | None = None,
    device: str = "auto",
    resume: bool = False,
    progress: Progress = lambda done, message: None,
) -> State:
    """Train a network and fill the folder ``run``; with ``resume`` go on from its latest checkpoint.

    ``model`` is what prediction must know beyond the configuration (label value, orientation, …); it is stored with
    the weights. ``sources``, where the data came from, stands in run.json. Returns the state after the last epoch.
    """
    target = choose_device(device)
    RunFolder.require_usable(run, resume=resume)
    torch.manual_seed(config.seed)
    slices = stack_slices(training, target)
    state = start_state(slices, config, target)
    data = {"training": fingerprint(training), "validation": fingerprint(validation)}
    folder = RunFolder.open(run, resume=resume)
    if folder.latest.is_file():
        restore_state(folder.latest, state, config, data)
        folder.rewind(state.epoch)
        folder.write_config(config)  # more epochs may be wanted now
    else:
        folder.write_start(config, model, sources or {}, training, validation, target)
    held_out = stack_slices(validation, target) if validation else None
    last_save = time.monotonic()
    with ThreadPoolExecutor(usable_cores()) as pool:
        grids = admm.build_grids(training, config.crf) if config.uses_crf else []
        while state.epoch < config.epochs:
            clock = Clock()
            row = _train_epoch(state, slices, config, clock, progress)
            with clock("predict"):
                probability = predict_slices(state.network, slices.image)
            row |= _update_priors(state, probability, training, grids, config, clock, pool)
            with clock("score"):
                row |= score_epoch(probability, slices, training, state.priors, prefix="train")
                if held_out is not None:
                    row |= score_epoch(
                        predict_slices(state.network, held_out.image), held_out, validation, [], prefix="val"
                    )
            state.history.append({"epoch": state.epoch + 1, **row})
            with clock("save"):
                if row.get("val_dice", -1.0) > state.best_dice:
                    state.best_dice, state.best_epoch = row["val_dice"], state.epoch
                    save_model(folder.best, state, config, model)
                folder.write_snapshot(state.epoch, config.epochs, training, probability, state.priors)
                folder.write_metrics(state.history)
                if state.epoch in (1, config.epochs) or time.monotonic() - last_save > _CHECKPOINT_EVERY_S:
                    save_state(folder.latest, state, config, data)  # last: what it says is done is there
                    last_save = time.monotonic()
            folder.write_epoch(state.history[-1], clock.seconds)
            progress(state.epoch, _summary(state))
    save_model(folder.final, state, config, model)
    scored = {"training": (training, score_cases(predict_slices(state.network, slices.image), slices, training))}
    if held_out is not None:
        scored["validation"] = (
            validation,
            score_cases(predict_slices(state.network, held_out.image), held_out, validation),
        )
    folder.write_cases(scored)
    return state


def choose_device(name: str) -> torch.device:
    """Return the device ``auto``, ``cpu`` or ``cuda`` stands for here."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: this machine has no usable CUDA device; use --device cpu or auto")
    return torch.device(name)


def start_state(slices: Slices, config: Config, device: torch.device) -> State:
    """Return the state before the first epoch, its weights drawn from torch's global generator."""
    network = build_network(
        config.network.name, channels=slices.image.shape[1], classes=2, width=config.network.width or None
    )
    network.to(device)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # a U-Net is a quarter to a third faster so
    optimiser = torch.optim.Adam(
        network.parameters(), lr=config.optimiser.lr, weight_decay=config.optimiser.weight_decay
    )
    count, rows, columns = slices.seeds.shape
    slice_sums = torch.zeros(count, device=device)
    if config.method == "penalty":
        slice_sums = predict_slices(network, slices.image).sum(dim=(1, 2))
    return State(
        network=network,
        optimiser=optimiser,
        priors=[
            admm.start_prior(name, (count, rows, columns), admm.scheduled_mu(config.admm, name, 0), device)
            for name in config.priors
        ],
        order=torch.Generator().manual_seed(config.seed),
        average=torch.empty(0, device=device),
        slice_sums=slice_sums,
    )


def _train_epoch(state: State, slices: Slices, config: Config, clock: "Clock", progress: Progress) -> dict[str, float]:
    """Pass once over all slices in random order; return the mean of each loss term."""
    lr = config.optimiser.lr * config.optimiser.lr_factor ** (state.epoch // config.optimiser.lr_every)
    for group in state.optimiser.param_groups:
        group["lr"] = lr
    state.network.train()
    order = torch.randperm(len(slices), generator=state.order)
    batches = order.split(config.optimiser.batch)
    sums: dict[str, torch.Tensor] = defaultdict(lambda: torch.zeros((), device=slices.image.device))
    with clock("network"):
        for number, batch in enumerate(batches):
            terms = _batch_losses(state, slices, batch.to(slices.image.device), config)
            loss = torch.stack(list(terms.values())).sum()
            state.optimiser.zero_grad(set_to_none=True)
            loss.backward()
            state.optimiser.step()
            for name, value in terms.items():
                sums[name] += value.detach() * len(batch)
            progress(state.epoch + 0.9 * (number + 1) / len(batches), _summary(state))
        means = {f"loss_{name}": float(value) / len(slices) for name, value in sums.items()}
    total = sum(means.values())
    if not np.isfinite(total):
        raise UserError(
            f"the loss became {total} in epoch {state.epoch + 1}; the models up to then are kept: "
            "start anew with a smaller --optimiser.lr"
        )
    return {"lr": lr, "loss": total, **means}


def _batch_losses(state: State, slices: Slices, batch: torch.Tensor, config: Config) -> dict[str, torch.Tensor]:
    """Return the terms of the augmented loss on the slices ``batch`` (B,), transformed at random."""
    augment = config.augment
    theta = sample_transforms(
        len(batch), state.order, rotate_deg=augment.rotate_deg, crop_min=augment.crop_min, flip=augment.flip
    )
    intensities = sample_intensities(len(batch), state.order, gamma=augment.gamma, noise=augment.noise)
    targets = [prior.target(batch) for prior in state.priors]
    stacked = torch.stack(targets, dim=1) if targets else slices.image.new_empty(len(batch), 0, *slices.seeds.shape[1:])
    image, seeds, stacked, valid = apply_transforms(theta, slices.image[batch], slices.seeds[batch], stacked)
    logits = state.network(apply_intensities(intensities, image))  # (B, 2, H, W)
    probability = logits.float().softmax(dim=1)[:, 1]
    terms = {"seeds": losses.partial_cross_entropy(logits, seeds)}
    for prior, target in zip(state.priors, stacked.unbind(dim=1), strict=True):
        terms[prior.name] = losses.augmented_term(probability, target, prior.mu, valid)
    if config.method == "penalty":
        area = 1.0 if theta is None else pixel_area(theta).to(probability.device)
        sums = (probability if valid is None else probability * valid).sum(dim=(1, 2)) * area
        terms["penalty"] = losses.size_penalty(
            sums,
            slice_index=batch,
            volume_of_slice=slices.volume,
            remembered_sums=state.slice_sums,
            low=slices.low,
            high=slices.high,
            mu=config.penalty,
            pixels=probability.numel(),
        )
        losses.remember_sums(state.slice_sums, batch, sums)
    return terms


@torch.no_grad()
def predict_slices(network: torch.nn.Module, image: torch.Tensor) -> torch.Tensor:
    """Return the foreground probability (N, H, W) of slices (N, C, H, W), in evaluation mode."""
    network.eval()
    batches = [network(part).float().softmax(dim=1)[:, 1] for part in image.split(_PREDICT_BATCH)]
    return torch.cat(batches)


def _update_priors(
    state: State,
    probability: torch.Tensor,
    training: Sequence[Example],
    grids: Sequence[PottsGrid],
    config: Config,
    clock: "Clock",
    pool: Executor,
) -> dict[str, float]:
    """Make new proposals from the probabilities, move the multipliers, adapt μ; return the residuals."""
    if not state.priors:
        return {}
    if config.admm.average > 0:
        decay = config.admm.average if len(state.average) else 0.0
        state.average = probability if decay == 0 else decay * state.average + (1 - decay) * probability
        probability = state.average
    row: dict[str, float] = {}
    seeds = [example.seeds if config.admm.honour_seeds else None for example in training]
    for prior in state.priors:
        with clock(prior.name):
            if prior.name == "crf":
                strength = config.crf.strength
                proposal = admm.propose_crf(probability, prior, grids, seeds, strength=strength, pool=pool)
            else:
                bounds = [example.bounds for example in training if example.bounds is not None]
                depths = [len(example.seeds) for example in training]
                proposal = admm.propose_size(probability, prior, bounds, seeds, depths, pool=pool)
        row[f"mu_{prior.name}"] = prior.mu
        residuals = admm.update_multipliers(prior, probability, proposal, config.admm.rho)
        row[f"primal_{prior.name}"], row[f"dual_{prior.name}"] = residuals.primal, residuals.dual
        admm.adapt_mu(prior, residuals, config.admm, state.epoch)
    return row


class Clock:
    """Seconds spent in each named phase of an epoch, the device's work included."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds[phase] += time.perf_counter() - start


def _summary(state: State) -> str:
    if not state.history:
        return "first epoch"
    last = state.history[-1]
    parts = [f"loss {last['loss']:.4f}"]
    parts += [
        f"{name} Dice {last[key]:.3f}" for name, key in (("train", "train_dice"), ("val", "val_dice")) if key in last
    ]
    return " · ".join(parts)
