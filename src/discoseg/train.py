"""Training, top to bottom: Algorithm 1 of the paper, for every method the same loop.

    discoseg train ACDC --seeds seeds/LV --label LV --size-eps 0.1 --out runs/lv

Per epoch: (1) one pass of mini-batches of 2D slices drawn across volumes, on the augmented loss; (2) the network, in
evaluation mode, predicts every training volume; (3) every 3D volume gets its proposals; (4) the multipliers move;
(5) the learning rate decays. Images, seeds, proposals and multipliers stay on the training device throughout; on a CPU
those that exceed the budget of memory lie in mapped files (:mod:`discoseg.data.memory`).
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray

from discoseg import admm
from discoseg.checkpoints import Checkpoints, restore_latest
from discoseg.clock import Clock
from discoseg.config import Config, PriorName
from discoseg.contours import Scored, contour_slices, write_contours
from discoseg.data.memory import BOUNDLESS, Memory, budget_gib
from discoseg.determinism import repeatable
from discoseg.disagreement import Disagreement
from discoseg.errors import UserError
from discoseg.labelling import LabelProposer, assignment, expansion
from discoseg.material import Material, require_room_on_device
from discoseg.multipliers import MultiplierUpdate
from discoseg.networks import build_network
from discoseg.passes import (
    PredictionPass,
    Say,
    TrainingPass,
    is_one_pixel,
    loss_terms,
    plan_batches,
    predict_slices,
)
from discoseg.proposals import CrfProposer, SizeProposer, sizes_to_choose
from discoseg.ranks import ALONE, Ranks
from discoseg.replay import undisturbing
from discoseg.run import RunFolder, case_rows, snapshot_due, snapshot_slices
from discoseg.scores import score_cases, score_proposals, summarise_cases
from discoseg.shard_files import ShardFiles
from discoseg.slices import Slices
from discoseg.state import Running, State, recall_best, save_model
from discoseg.weak.examples import Example
from discoseg.weak.pairs import read_pairs

Proposer = CrfProposer | SizeProposer | LabelProposer

_seeding = threading.Lock()  # torch's generator is one for all threads

Progress = Callable[[float, str], None]
"""Called with the epochs done so far (a fraction within an epoch) and a line about what is going on: the phase of the
epoch, and what the last one came to.

It may raise KeyboardInterrupt to end the training, which saves its state first: a later one goes on from there.
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
    ranks: Ranks = ALONE,
    places: Mapping[str, Sequence[int]] | None = None,
    progress: Progress = lambda done, message: None,
) -> State:
    """Train a network and fill the folder ``run``; with ``resume`` go on from its latest checkpoint.

    ``model`` is what prediction must know beyond the configuration (label value, orientation, …); it is stored with
    the weights. ``sources``, where the data came from, stands in run.json. ``memory`` holds what grows with the
    dataset, by default up to half of the machine's. Of several ``ranks`` each brings examples of its own, which have
    ``places`` among all (:class:`Material`). Returns the state after the last epoch.
    """
    with ranks.agree():
        target = choose_device(device, ranks)
        if ranks.first:
            RunFolder.require_usable(run, resume=resume)
        require_room_on_device(training, validation, config, target)
        memory = memory or Memory(budget_gib(None) / ranks.local_size)
    with Material(training, validation, target, memory=memory, ranks=ranks, places=places) as material:
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
    ranks, folder = material.ranks, RunFolder(run)
    with ranks.agree():
        if ranks.first:
            RunFolder.require_usable(run, resume=resume)
    copied = 5 * len(config.priors) * len(material.slices.structures) * material.slices.seeds.numel()  # bytes
    room = material.device.type == "cuda" or material.memory.reserve(copied)  # a GPU's copy lies on the GPU
    with ExitStack() as stack:
        stack.enter_context(repeatable(config.deterministic, material.device))
        stack.enter_context(_own_stream(material.device))
        with _seeding, undisturbing():
            torch.manual_seed(config.seed)
            state = start_state(material.slices, config, material.memory, ranks)
        # Whatever has no room is to be known before anything is written.
        work = _prepare(state, material, config, folder.warn)
        with ranks.agree():
            if ranks.first:
                stack.enter_context(folder.open(resume=resume))
        share = work.learn.steps.share
        shards = ShardFiles(folder.latest, state.network, material.cases, ranks, share=share, seed=config.seed)
        if ranks.gather(folder.has_checkpoint)[0]:
            with _seeding, undisturbing():
                warning = restore_latest(folder.latest, state, config, material.data, material.files, shards, ranks)
            if ranks.first:
                folder.rewind(*state.place)
                if warning is not None:
                    folder.warn(warning)
                folder.write_config(config)  # more epochs may be wanted now
        elif ranks.first:
            if resume:  # stopped before its first checkpoint
                folder.rewind(0)
            folder.write_start(config, model, sources or {}, material.device, material.data, ranks)
        recall_best(folder.best, state)
        checkpoints = stack.enter_context(
            Checkpoints(
                folder.latest,
                state,
                config,
                material.data,
                shards=shards,
                ranks=ranks,
                check=work.learn.require_finite,
                beside=room,
            )
        )
        listen, progress = checkpoints.listen(progress), checkpoints.guard(progress)
        if state.epoch == config.epochs:  # nothing to train, but to score
            work.predict.all()
            if work.validate is not None:
                work.validate.all()
            _require_finite(state.epoch, work, material)
        while state.epoch < config.epochs:
            clock = Clock(material.device)
            _run_epoch(state, work, material, config, clock, progress, listen)
            with clock("save"):
                _write_epoch(folder, state, work, material, config, model)
                if state.epoch in (1, config.epochs) or checkpoints.due:
                    checkpoints.save()  # last: what it says is there
            if ranks.first:
                folder.write_epoch(state.history[-1], clock.seconds)
            progress(state.epoch, _summary(state))
        _write_end(folder, state, work, material, config, model)
    return state


def _write_epoch(
    folder: RunFolder, state: State, work: "_Work", material: Material, config: Config, model: dict[str, Any]
) -> None:
    """Write what an epoch came to; of several ranks the first does, for all."""
    ranks, numbers = material.ranks, material.numbers["training"]
    doubts = ranks.collect(work.disagreement.by_case(state, config.admm.first_proposals), numbers)
    shown: dict[str, NDArray[Any]] | None = None
    if snapshot_due(state.epoch, config.epochs):
        made = state.priors if state.epoch >= config.admm.first_proposals else []
        shown = ranks.gather_arrays(snapshot_slices(material.training, numbers, work.predict.probability, made))
    row = state.history[-1]
    is_best = row.get("val_dice", -1.0) > state.best_dice
    if is_best:
        state.best_dice, state.best_epoch = row["val_dice"], state.epoch
    if ranks.first:
        if is_best:
            save_model(folder.best, state, config, model)
        if _keeps_bounds_best(state, config):
            save_model(folder.bounds, state, config, model)
        if shown is not None:
            folder.write_snapshot(state.epoch, list(material.data["training"]), shown)
        folder.write_metrics(state.history)
        folder.write_next(doubts)


def _keeps_bounds_best(state: State, config: Config) -> bool:
    """Say whether no epoch of the second half so far had more training structures within their bounds.

    Where that share falls, the Dice of other volumes does, too (docs/results.md), and it needs no masks.
    """
    shares = [row.get("train_inside_bounds") for row in state.history[config.epochs // 2 :]]
    known = [share for share in shares if share is not None]
    return bool(known) and known[-1] == max(known)


def _write_end(
    folder: RunFolder, state: State, work: "_Work", material: Material, config: Config, model: dict[str, Any]
) -> None:
    """Write the scores of all cases, slices of some, and the model; of several ranks the first does, for all."""
    ranks, numbers = material.ranks, material.numbers
    rows: list[dict[str, Any]] = []
    splits: dict[str, Scored] = {}
    for split, examples in (("training", material.training), ("validation", material.validation)):
        made = work.predict if split == "training" else work.validate
        own = case_rows(split, examples, _score_cases(split, work, material))
        rows += ranks.collect(own, numbers[split])
        splits[split] = Scored(examples, numbers[split], None if made is None else made.probability)
    chosen, own_slices = contour_slices(rows, splits)
    slices = ranks.gather_arrays(own_slices)
    if ranks.first:
        folder.write_cases(rows)
        write_contours(folder.contours, chosen, slices)
        save_model(folder.final, state, config, model)  # last: where it is, the run is finished


class _Work(NamedTuple):
    """What an epoch consists of."""

    learn: TrainingPass
    predict: PredictionPass
    validate: PredictionPass | None
    proposers: dict[PriorName, Proposer]
    updates: dict[PriorName, MultiplierUpdate]
    disagreement: Disagreement


def _prepare(state: State, material: Material, config: Config, say: Say) -> _Work:
    memory, held_out = material.memory, material.held_out
    predict = PredictionPass(state.network, material.slices, config, material.order, memory, say)
    disagreement = Disagreement(material.slices, material.training, predict.probability)
    return _Work(
        learn=TrainingPass(state, material.slices, config, say, material.ranks),
        predict=predict,
        validate=PredictionPass(state.network, held_out, config, memory=memory, say=say) if held_out else None,
        proposers=_proposers(material, config),
        updates={
            prior.name: MultiplierUpdate(
                prior, predict.probability, config.admm, disagreement.watch(prior), memory, material.ranks
            )
            for prior in state.priors
        },
        disagreement=disagreement,
    )


def _run_epoch(
    state: State, work: _Work, material: Material, config: Config, clock: Clock, progress: Progress, listen: Progress
) -> None:
    """Train, predict, propose, move the multipliers; note the epoch's row of metrics.

    ``progress`` is called where the state is one that a training can go on from: after each step, and from then on
    until the multipliers move, as the last step left it. In between ``listen`` is, as often as a rank has occasion to.
    """
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

    def tick(phase: str, part: float) -> None:
        listen(state.epoch + part, _summary(state, phase))

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
            tick("predicting", 0.9 + 0.03 * done / len(material.slices))
    proposals: dict[PriorName, torch.Tensor] = {}
    if proposing and config.uses_size:
        report("fitting sizes", 0.93)
        ticks = partial(tick, "fitting sizes", 0.93)
        proposals["size"] = _propose("size", state, work, material, config, clock, ticks)
    report("scoring", 0.94)
    with clock("score"):  # while cores still cut
        for _ in validate.run() if validate is not None else ():
            tick("scoring", 0.95)
        for split, prefix in (("training", "train"), ("validation", "val")):
            cases = material.ranks.collect(_score_cases(split, work, material), material.numbers[split])
            row |= summarise_cases(cases, material.slices.structures, prefix=prefix)
        _require_finite(state.epoch + 1, work, material)
    if proposing and config.uses_crf:
        report("cutting", 0.96)
        ticks = partial(tick, "cutting", 0.96)
        proposals["crf"] = _propose("crf", state, work, material, config, clock, ticks)
        report("cutting", 0.99)
    for name, proposal in proposals.items():  # no way back from here to the end of the epoch
        row |= _move_multipliers(name, proposal, state, work, config, clock)
    if proposing:
        with clock("score"):
            numbers = material.numbers["training"]
            row |= score_proposals(state.priors, material.slices, material.training, material.ranks, numbers)
    state.finish_epoch(row)


def choose_device(name: str, ranks: Ranks = ALONE) -> torch.device:
    """Return the device ``auto``, ``cpu`` or ``cuda`` stands for here, for one of several ``ranks`` its own GPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: this machine has no usable CUDA device; use --device cpu or auto")
    if name == "cuda" and ranks.several:
        return torch.device(name, ranks.local_rank % torch.cuda.device_count())
    return torch.device(name)


def start_state(slices: Slices, config: Config, memory: Memory = BOUNDLESS, ranks: Ranks = ALONE) -> State:
    """Return the state before the first epoch, its weights drawn from torch's global generator.

    All ranks draw the same weights; what they draw later differs.
    """
    device = slices.image.device
    _require_normalisable(slices, config, ranks)
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
    own_seed = ranks.own_seed(config.seed)
    if ranks.rank > 0:
        torch.manual_seed(own_seed)
    return State(
        network=network,
        optimiser=optimiser,
        priors=[
            admm.Prior(name, shape, admm.scheduled_mu(config.admm, name, 0), device, memory) for name in config.priors
        ],
        order=torch.Generator().manual_seed(own_seed),
        slice_sums=slice_sums,
        running=Running(
            losses=torch.zeros(plan_batches(slices, config, ranks).count, len(loss_terms(config)), device=device),
            drawn=torch.empty(0, dtype=torch.uint8),
        ),
    )


def _require_normalisable(slices: Slices, config: Config, ranks: Ranks) -> None:
    """Refuse a step of one slice that the network shrinks to one pixel: a batch of one value has no variance."""
    _, rows, columns = slices.seeds.shape
    if plan_batches(slices, config, ranks).own == 1 and is_one_pixel(rows, columns, config):
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


def _score_cases(split: str, work: _Work, material: Material) -> list[dict[str, float]]:
    """Return the scores of this rank's volumes of "training" or "validation", by the last predictions."""
    if split == "training":
        return score_cases(work.predict.probability, material.slices, material.training)
    if work.validate is None or material.held_out is None:
        return []
    return score_cases(work.validate.probability, material.held_out, material.validation)


def _require_finite(epoch: int, work: _Work, material: Material) -> None:
    """Refuse predictions that are not finite; once they are scored, this does not wait for the device."""
    with material.ranks.agree():
        for made in (work.predict, work.validate):
            if made is not None and (case := made.find_broken()) is not None:
                raise UserError(
                    f"{case}: its probabilities are not finite in epoch {epoch}, though all losses were; the "
                    "last checkpoint is kept: start anew with a smaller --optimiser.lr"
                )


def _propose(
    name: PriorName,
    state: State,
    work: _Work,
    material: Material,
    config: Config,
    clock: Clock,
    tick: Callable[[], None],
) -> torch.Tensor:
    """Return a prior's proposals (K, N, H, W) bool; ``tick`` is called now and then while cores still solve them."""
    seeds = material.slices.seeds if config.admm.honour_seeds else None
    with clock(name):
        return work.proposers[name].finish(work.predict.probability, state.prior(name), seeds, tick)


def _move_multipliers(
    name: PriorName, proposal: torch.Tensor, state: State, work: _Work, config: Config, clock: Clock
) -> dict[str, float]:
    """Take over a prior's proposals (K, N, H, W), move its multipliers, adapt its μ; return the residuals."""
    prior = state.prior(name)
    with clock(name):
        residuals = work.updates[name](proposal)
        row = {f"mu_{name}": prior.mu, f"primal_{name}": residuals.primal, f"dual_{name}": residuals.dual}
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
