"""Training, top to bottom: Algorithm 1 of the paper, for every method the same loop.

    discoseg train ACDC --seeds seeds/LV --label LV --size-eps 0.1 --out runs/lv

Begin (:mod:`discoseg.start`) or resume, run epoch after epoch (:mod:`discoseg.epoch`), and write what each came to.
Images, seeds, proposals and multipliers stay on the training device throughout; on a CPU those that exceed the budget
of memory lie in mapped files (:mod:`discoseg.data.memory`).
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from discoseg.checkpoints import Checkpoints, restore_latest
from discoseg.clock import Clock
from discoseg.config import Config
from discoseg.contours import Scored, contour_slices, write_contours
from discoseg.data.memory import Memory, budget_gib
from discoseg.determinism import repeatable
from discoseg.devices import choose_device, own_stream
from discoseg.epoch import Progress, Work, prepare_work, require_finite, run_epoch, score_split, summarise
from discoseg.material import Material, require_room_on_device
from discoseg.ranks import ALONE, Ranks
from discoseg.replay import undisturbing
from discoseg.rounds import begin_round, is_due
from discoseg.run import RunFolder
from discoseg.scores import case_rows, summarise_cases
from discoseg.shard_files import ShardFiles
from discoseg.size_bias import find_biases
from discoseg.snapshots import MOST_CASES, snapshot_due, snapshot_slices
from discoseg.start import drawing, start_state
from discoseg.state import State, recall_best, save_mean, save_model
from discoseg.weak.examples import Example


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
        stack.enter_context(own_stream(material.device))
        with drawing, undisturbing():
            torch.manual_seed(config.seed)
            state = start_state(material.slices, config, material.memory, ranks)
        # Whatever has no room is to be known before anything is written.
        work = prepare_work(state, material, config, folder.warn)
        with ranks.agree():
            if ranks.first:
                stack.enter_context(folder.open(resume=resume))
        share = work.learn.steps.share
        shards = ShardFiles(folder.latest, state.network, material.cases, ranks, share=share, seed=config.seed)
        if ranks.gather(folder.has_checkpoint)[0]:
            _go_on(folder, state, material, config, shards)
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
            if not state.mean.epochs:  # it was begun with more epochs, or before there were means
                state.mean.take_in(state.network)
            work.predict.all()
            if work.validate is not None:
                work.validate.all()
            require_finite(state.epoch, work, material)
        while state.epoch < config.epochs:
            clock = Clock(material.device)
            if is_due(state, config):
                doing = summarise(state, "labelling")
                progress(state.epoch, doing)
                with clock("crf"):
                    begin_round(state, work, material, config, partial(listen, state.epoch, doing))
            run_epoch(state, work, material, config, clock, progress, listen)
            with clock("save"):
                _write_epoch(folder, state, work, material, config, model)
                if state.epoch in (1, config.epochs) or checkpoints.due:
                    checkpoints.save()  # last: what it says is there
            if ranks.first:
                folder.write_epoch(state.history[-1], clock.seconds)
            progress(state.epoch, summarise(state))
        _write_end(folder, state, work, material, config, model)
    return state


def _go_on(folder: RunFolder, state: State, material: Material, config: Config, shards: ShardFiles) -> None:
    """Bring a fresh state to the folder's latest checkpoint, and the folder's tables to where that is."""
    ranks = material.ranks
    with drawing, undisturbing():
        warning = restore_latest(folder.latest, state, config, material.data, material.files, shards, ranks)
    if ranks.first:
        folder.rewind(*state.place)
        if warning is not None:
            folder.warn(warning)
        folder.write_config(config)  # more epochs may be wanted now


def _write_epoch(
    folder: RunFolder, state: State, work: Work, material: Material, config: Config, model: dict[str, Any]
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
        if shown is not None:
            folder.write_snapshot(state.epoch, list(material.data["training"])[:MOST_CASES], shown)
        folder.write_metrics(state.history)
        folder.write_next(doubts)


def _write_end(
    folder: RunFolder, state: State, work: Work, material: Material, config: Config, model: dict[str, Any]
) -> None:
    """Write the scores of all cases, slices of some, and the models; of several ranks the first does, for all."""
    ranks, numbers = material.ranks, material.numbers
    rows: list[dict[str, Any]] = []
    splits: dict[str, Scored] = {}
    for split, examples in (("training", material.training), ("validation", material.validation)):
        made = work.predict if split == "training" else work.validate
        own = case_rows(split, examples, score_split(split, work, material))
        rows += ranks.collect(own, numbers[split])
        splits[split] = Scored(examples, numbers[split], None if made is None else made.probability)
    chosen, own_slices = contour_slices(rows, splits)
    slices = ranks.gather_arrays(own_slices)
    scores = _finish_mean(state, work, material, config)
    if ranks.first:
        folder.write_cases(rows)
        write_contours(folder.contours, chosen, slices)
        save_mean(folder.mean, state, config, model, scores)
        save_model(folder.final, state, config, model)  # last: where it is of the last epoch, the run is finished


def _finish_mean(state: State, work: Work, material: Material, config: Config) -> dict[str, float]:
    """Let the mean of the last epochs' weights make masks of the known sizes; return how well it then does."""
    ranks, row = material.ranks, dict[str, float]()
    if config.needs_bounds:
        with state.mean.in_place_of(state.network):
            probability = work.predict.all()
        with undisturbing():
            state.mean.shift(find_biases(probability, material))
    with state.mean.in_place_of(state.network):
        work.predict.all()
        if work.validate is not None:
            work.validate.all()
    for split, prefix in (("training", "train"), ("validation", "val")):
        cases = ranks.collect(score_split(split, work, material), material.numbers[split])
        row |= summarise_cases(cases, material.slices.structures, prefix=prefix)
    return row
