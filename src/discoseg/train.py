"""Training, top to bottom: Algorithm 1 of the paper, for every method the same loop.

    discoseg train ACDC --seeds seeds/LV --label LV --size-eps 0.1 --out runs/lv

Per epoch: (1) one pass of mini-batches of 2D slices drawn across volumes, on the augmented loss; (2) the network, in
evaluation mode, predicts every training volume; (3) every 3D volume gets its proposals; (4) the multipliers move;
(5) the learning rate decays. Images, seeds, proposals and multipliers stay on the training device throughout; on a CPU
those that exceed the budget of memory lie in mapped files (:mod:`discoseg.data.memory`).
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch

from discoseg import admm
from discoseg.checkpoints import Checkpoints
from discoseg.clock import Clock
from discoseg.config import Config, PriorName
from discoseg.contours import write_contours
from discoseg.data.memory import BOUNDLESS, Memory, budget_gib
from discoseg.determinism import repeatable
from discoseg.disagreement import Disagreement
from discoseg.errors import UserError
from discoseg.labelling import LabelProposer, assignment, expansion
from discoseg.material import Material, require_room_on_device
from discoseg.multipliers import MultiplierUpdate
from discoseg.networks import build_network
from discoseg.passes import PredictionPass, TrainingPass, predict_slices
from discoseg.proposals import CrfProposer, SizeProposer, sizes_to_choose
from discoseg.replay import undisturbing
from discoseg.run import RunFolder
from discoseg.scores import score_cases, score_epoch, score_proposals
from discoseg.slices import Slices
from discoseg.state import State, restore_state, save_model
from discoseg.weak.examples import Example
from discoseg.weak.pairs import read_pairs

Proposer = CrfProposer | SizeProposer | LabelProposer

_seeding = threading.Lock()  # torch's generator is one for all threads

Progress = Callable[[float, str], None]
"""Called with the epochs done so far (a fraction within an epoch) and a line about what is going on: the phase of the
epoch, and what the last one came to.

It may raise KeyboardInterrupt to end the training; after an epoch, so that a later one goes on from there.
"""


def train(
    training: Sequence[Example],
    validation: Sequence[Example],
    config: Config,
    run: Path,
    *,
    model: dict[str, Any],
    sources: dict[str, Any] | None = None,
    device: str = "auto",
    memory: Memory | None = None,
    resume: bool = False,
    progress: Progress = lambda done, message: None,
) -> State:
    """Train a network and fill the folder ``run``; with ``resume`` go on from its latest checkpoint.

    ``model`` is what prediction must know beyond the configuration (label value, orientation, …); it is stored with
    the weights. ``sources``, where the data came from, stands in run.json. ``memory`` holds what grows with the
    dataset, by default up to half of the machine's. Returns the state after the last epoch.
    """
    target = choose_device(device)
    RunFolder.require_usable(run, resume=resume)
    require_room_on_device(training, validation, config, target)
    with Material(training, validation, target, memory=memory or Memory(budget_gib(None))) as material:
        return train_on(material, config, run, model=model, sources=sources, resume=resume, progress=progress)


def train_on(
    material: Material,
    config: Config,
    run: Path,
    *,
    model: dict[str, Any],
    sources: dict[str, Any] | None = None,
    resume: bool = False,
    progress: Progress = lambda done, message: None,
) -> State:
    """Train like :func:`train` on material that several trainings may share, each in a thread of its own."""
    RunFolder.require_usable(run, resume=resume)
    training, validation = material.training, material.validation
    copied = 5 * len(config.priors) * len(material.slices.structures) * material.slices.seeds.numel()  # bytes
    room = material.device.type == "cuda" or material.memory.reserve(copied)  # a GPU's copy lies on the GPU
    repeating = repeatable(config.deterministic, material.device)
    with repeating, _own_stream(material.device), Checkpoints(beside=room) as checkpoints:
        with _seeding, undisturbing():
            torch.manual_seed(config.seed)
            state = start_state(material.slices, config, material.memory)
        work = _prepare(state, material, config)  # whatever has no room is to be known before anything is written
        folder = RunFolder.open(run, resume=resume)
        if folder.latest.is_file():
            with _seeding, undisturbing():
                restore_state(folder.latest, state, config, material.data)
            folder.rewind(state.epoch)
            folder.write_config(config)  # more epochs may be wanted now
        else:
            if resume:  # stopped before its first checkpoint
                folder.rewind(0)
            folder.write_start(config, model, sources or {}, training, validation, material.device, material.data)
        predict, validate = work.predict, work.validate
        if state.epoch == config.epochs:  # nothing to train, but to score
            predict.all()
            if validate is not None:
                validate.all()
        while state.epoch < config.epochs:
            clock = Clock(material.device)
            row = _run_epoch(state, work, material, config, clock, progress)
            state.history.append({"epoch": state.epoch + 1, **row})
            with clock("save"):
                if row.get("val_dice", -1.0) > state.best_dice:
                    state.best_dice, state.best_epoch = row["val_dice"], state.epoch
                    save_model(folder.best, state, config, model)
                made = state.priors if state.epoch >= config.admm.first_proposals else []
                folder.write_snapshot(state.epoch, config.epochs, training, predict.probability, made)
                folder.write_metrics(state.history)
                folder.write_next(work.disagreement.by_case(state, config.admm.first_proposals))
                if written := state.epoch in (1, config.epochs) or checkpoints.due:
                    checkpoints.write(folder.latest, state, config, material.data)  # last: what it says is there
            folder.write_epoch(state.history[-1], clock.seconds)
            try:
                progress(state.epoch, _summary(state))
            except KeyboardInterrupt:
                if not written:
                    checkpoints.write(folder.latest, state, config, material.data)
                raise
        outputs = {"training": predict.probability}
        scored = {"training": (training, score_cases(predict.probability, material.slices, training))}
        if validate is not None and material.held_out is not None:
            outputs["validation"] = validate.probability
            scored["validation"] = (validation, score_cases(validate.probability, material.held_out, validation))
        folder.write_cases(scored)
        write_contours(folder.contours, scored, outputs)
        save_model(folder.final, state, config, model)  # last: where it is, the run is finished
    return state


class _Work(NamedTuple):
    """What an epoch consists of."""

    learn: TrainingPass
    predict: PredictionPass
    validate: PredictionPass | None
    proposers: dict[PriorName, Proposer]
    updates: dict[PriorName, MultiplierUpdate]
    disagreement: Disagreement


def _prepare(state: State, material: Material, config: Config) -> _Work:
    memory = material.memory
    predict = PredictionPass(state.network, material.slices, config, material.order, memory)
    disagreement = Disagreement(material.slices, material.training, predict.probability)
    return _Work(
        learn=TrainingPass(state, material.slices, config),
        predict=predict,
        validate=PredictionPass(state.network, material.held_out, config, memory=memory) if material.held_out else None,
        proposers=_proposers(material, config),
        updates={
            prior.name: MultiplierUpdate(prior, predict.probability, config.admm, disagreement.watch(prior), memory)
            for prior in state.priors
        },
        disagreement=disagreement,
    )


def _run_epoch(
    state: State, work: _Work, material: Material, config: Config, clock: Clock, progress: Progress
) -> dict[str, float]:
    """Train, predict, propose, move the multipliers; return the epoch's row of metrics."""
    learn, predict, validate, proposers, *_ = work
    proposing = state.epoch + 1 >= config.admm.first_proposals  # what the next epoch is drawn to
    for prior in state.priors:
        clock.seconds[prior.name] += 0.0  # every row of timing.csv has every phase
    settled = None
    if material.device.type == "cuda":
        settled = torch.cuda.Event()
        settled.record()  # what the last epoch left is in place; the steps come after it

    def report(phase: str, part: float) -> None:
        progress(state.epoch + part, _summary(state, phase))

    def foresee() -> None:
        for prior in state.priors if proposing else ():
            proposers[prior.name].foresee(predict.probability, prior, settled)

    with clock("network"):
        row = learn.run(lambda part: report("training", 0.9 * part), foresee)
    report("predicting", 0.9)
    with clock("predict"):
        for prior in state.priors:
            if proposing and prior.mu == 0:  # the warm-up is over
                prior.mu = admm.scheduled_mu(config.admm, prior.name, state.epoch + 1)
        done = 0
        for new in predict.run():
            done += len(new)
            for prior in state.priors if proposing else ():
                proposers[prior.name].start(predict.probability, prior, done)
    if proposing:
        report("fitting sizes" if config.uses_size else "predicting", 0.93)
        row |= _update_prior(state, "size", work, material, config, clock)
    report("scoring", 0.94)
    with clock("score"):  # while cores still cut
        row |= score_epoch(predict.probability, material.slices, material.training, prefix="train")
        if validate is not None and material.held_out is not None:
            row |= score_epoch(validate.all(), material.held_out, material.validation, prefix="val")
    if proposing:
        report("cutting" if config.uses_crf else "scoring", 0.96)
        row |= _update_prior(state, "crf", work, material, config, clock)
        with clock("score"):
            row |= score_proposals(state.priors, material.slices, material.training)
    return row


def choose_device(name: str) -> torch.device:
    """Return the device ``auto``, ``cpu`` or ``cuda`` stands for here."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: this machine has no usable CUDA device; use --device cpu or auto")
    return torch.device(name)


def start_state(slices: Slices, config: Config, memory: Memory = BOUNDLESS) -> State:
    """Return the state before the first epoch, its weights drawn from torch's global generator."""
    device = slices.image.device
    _require_normalisable(slices, config)
    network = build_network(
        config.network.name,
        channels=slices.image.shape[1],
        classes=1 + len(slices.structures),
        width=config.network.width,
        depth=config.network.depth,
    )
    network.to(device)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # a U-Net is a quarter to a third faster so
    on_cuda = device.type == "cuda"  # there a recorded step reads the learning rate from the device
    optimiser = torch.optim.Adam(
        network.parameters(),
        lr=torch.tensor(config.optimiser.lr, device=device) if on_cuda else config.optimiser.lr,
        weight_decay=config.optimiser.weight_decay,
        fused=True,
        capturable=on_cuda,
    )
    count, rows, columns = slices.seeds.shape
    slice_sums = torch.zeros(len(slices.structures), count, device=device)
    if config.method == "penalty":
        parts = slices.image.split(64)  # scratch memory must not grow with the dataset
        slice_sums = torch.cat([predict_slices(network, part).sum(dim=(2, 3)) for part in parts], dim=1)
    shape = (len(slices.structures), count, rows, columns)
    return State(
        network=network,
        optimiser=optimiser,
        priors=[
            admm.Prior(name, shape, admm.scheduled_mu(config.admm, name, 0), device, memory) for name in config.priors
        ],
        order=torch.Generator().manual_seed(config.seed),
        slice_sums=slice_sums,
    )


def _require_normalisable(slices: Slices, config: Config) -> None:
    """Refuse a step of one slice that the network shrinks to one pixel: a batch of one value has no variance."""
    _, rows, columns = slices.seeds.shape
    alone = min(config.optimiser.batch, len(slices)) == 1
    if alone and config.network.name == "unet" and max(rows, columns) <= 2 ** (config.network.depth or 3):
        raise UserError(
            f"--network.depth {config.network.depth or 3} leaves one pixel of a slice of {rows}×{columns}, and a batch "
            "has one slice: lower it, or change --optimiser.batch"
        )


def _own_stream(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which the thread's work on a CUDA device runs beside that of other trainings."""
    return torch.cuda.stream(torch.cuda.Stream(device)) if device.type == "cuda" else nullcontext()


def _proposers(material: Material, config: Config) -> dict[PriorName, Proposer]:
    """Return what makes the proposals of each prior."""
    proposers: dict[PriorName, Proposer] = {}
    honour, structures = config.admm.honour_seeds, len(material.slices.structures)
    if structures > 1:
        regions = material.regions(config.crf, honour_seeds=honour)
        pairs = read_pairs(config.crf.pairs, material.slices.structures)
        solvers = {"crf": expansion(config.crf.strength, pairs)} if config.uses_crf else {}
        solvers |= {"size": assignment(material.training, config.admm)} if config.uses_size else {}
        where = material.pool, material.device
        return {
            name: LabelProposer(
                regions, structures, solvers[name], *where, turns=material.turns, memory=material.memory
            )
            for name in config.priors
        }
    if config.uses_crf:
        regions = material.regions(config.crf, honour_seeds=honour)
        proposers["crf"] = CrfProposer(
            regions,
            config.crf.strength,
            material.pool,
            material.device,
            turns=material.turns,
            foresee=material.idle_cores and not config.deterministic,  # a guess rounds, if it comes in time
            sizes=sizes_to_choose(material.training, config.admm) if config.calibrates else None,
            memory=material.memory,
        )
    if config.uses_size:
        proposers["size"] = SizeProposer(
            material.training, config.admm, material.pool, material.device, material.memory
        )
    return proposers


def _update_prior(
    state: State, name: PriorName, work: _Work, material: Material, config: Config, clock: Clock
) -> dict[str, float]:
    """Make a prior's proposals, if it has any, move its multipliers, adapt its μ; return the residuals."""
    row: dict[str, float] = {}
    seeds = material.slices.seeds if config.admm.honour_seeds else None
    for prior in state.priors:
        if prior.name == name:
            with clock(name):
                row[f"mu_{name}"] = prior.mu
                residuals = work.updates[name](work.proposers[name].finish(work.predict.probability, prior, seeds))
                row[f"primal_{name}"], row[f"dual_{name}"] = residuals.primal, residuals.dual
                admm.adapt_mu(prior, residuals, config.admm, state.epoch)
    return row


def _summary(state: State, phase: str = "") -> str:
    """Say what is going on, and what the last epoch came to; what matters most first, as terminals are narrow."""
    parts = [phase] if phase else []
    if state.history:
        last, names = state.history[-1], {"val_dice": "val Dice", "train_dice": "train Dice"}
        parts += [f"{name} {last[key]:.3f}" for key, name in names.items() if key in last]
        parts.append(f"loss {last['loss']:.4f}")
    return " · ".join(parts)
