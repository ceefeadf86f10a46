"""From a folder of files to a trained run: find the cases, split, prepare, annotate, train."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from discoseg.config import Config
from discoseg.data.layouts import Case, describe_odd_channels, find_dataset
from discoseg.data.memory import BOUNDLESS, Memory, budget_gib
from discoseg.data.prepare import Grid, common_orientation, prepare_cases, slice_across
from discoseg.data.splits import split_cases
from discoseg.data.volume import read_geometry
from discoseg.epoch import Progress
from discoseg.errors import UserError
from discoseg.not_begun import is_not_begun
from discoseg.ranks import ALONE, Ranks
from discoseg.run import RunFolder
from discoseg.shards import shard_cases
from discoseg.state import State
from discoseg.texts import read_json
from discoseg.train import train
from discoseg.weak.examples import (
    Example,
    annotated_structures,
    chosen_labels,
    require_weak,
    training_examples,
    validation_examples,
)


@dataclass(frozen=True)
class Inputs:
    """What :func:`discoseg.train.train` takes, gathered from files.

    Of several ranks each has its own cases; ``places`` of "training" and "validation" are where they stand among all.
    """

    training: list[Example]
    validation: list[Example]
    places: dict[str, list[int]]
    config: Config  # that was asked for, with paths that stay valid from another folder
    model: dict[str, Any]
    sources: dict[str, Any]


def fit(
    dataset: Path | str,
    out: Path | str,
    config: Config,
    *,
    seeds: Path | str | None = None,
    split: Path | str | None = None,
    validation_fraction: float = 0.2,
    device: str = "auto",
    memory_gib: float | None = None,
    resume: bool = False,
    ranks: Ranks = ALONE,
    prepare_progress: Callable[[int, int], None] = lambda done, total: None,
    progress: Progress = lambda done, message: None,
) -> State:
    """Train on the dataset in folder ``dataset`` and write the run folder ``out``.

    ``seeds`` is a folder of weak label maps by case name; without it the dataset's own labels annotate. Validation
    cases are those of the JSON file ``split`` (``splits_final.json:2`` is the third fold of nnU-Net's file; one in the
    dataset's folder counts by itself), or a ``validation_fraction`` of the patients: always the same ones, as far as
    they have complete masks. What grows with the dataset takes up to ``memory_gib`` of memory, by default half of the
    machine's; what is beyond lies in files in the cache while a CPU trains, with the same result. Of several ``ranks``
    (:func:`discoseg.ranks.open_ranks`) each calls this, reads the cases that are its own, and returns its own state.
    """
    with ranks.agree():
        if ranks.first:
            RunFolder.require_usable(Path(out), resume=resume)
        memory = Memory(budget_gib(memory_gib) / ranks.local_size)
    inputs = gather_inputs(
        Path(dataset),
        config,
        seeds=None if seeds is None else Path(seeds),
        split=None if split is None else Path(split),
        validation_fraction=validation_fraction,
        memory=memory,
        ranks=ranks.patient(),
        progress=prepare_progress,
    )
    return train(
        inputs.training,
        inputs.validation,
        inputs.config,
        Path(out),
        model=inputs.model,
        sources=inputs.sources,
        device=device,
        memory=memory,
        resume=resume,
        ranks=ranks,
        places=inputs.places,
        progress=progress,
    )


def gather_inputs(
    dataset: Path,
    config: Config,
    *,
    seeds: Path | None,
    split: Path | None,
    validation_fraction: float,
    memory: Memory = BOUNDLESS,
    ranks: Ranks = ALONE,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Inputs:
    """Find and split the cases of a dataset; prepare and annotate those that are this rank's; see :func:`fit`."""
    with ranks.agree():
        found = find_dataset(dataset)
        structures = chosen_labels(found, config.label)
        if config.size_csv is not None:  # a run may be resumed from another folder
            config = replace(config, size_csv=config.size_csv.resolve())
        split = split or found.split
        cases, held_out = split_cases(found, split=split, fraction=validation_fraction)
        if odd := describe_odd_channels([*cases, *held_out]):
            raise UserError(odd)
        orientation = slice_across(common_orientation(cases), config.grid.axis)
        grid = Grid(config.grid.shape, config.grid.clip_percent, orientation)
        if len(cases) < ranks.size:
            raise UserError(
                f"{ranks.size} processes, but {len(cases)} training cases, of which each process needs one: "
                f"start torchrun with {len(cases)} processes at most"
            )
        training_places, validation_places = (_own_places(part, grid, ranks) for part in (cases, held_out))
        own = [*(cases[place] for place in training_places), *(held_out[place] for place in validation_places)]
        prepared = prepare_cases(own, grid, progress=progress)
        to_train, to_score = prepared[: len(training_places)], prepared[len(training_places) :]
        weak: set[str] = set()
        if split is None and seeds is None:  # nobody chose these: annotated ones that cannot be scored had better train
            weak |= {item.case.patient for item in to_score if item.label is not None}
            weak &= {item.case.patient for item in to_score if not item.is_complete(found.ignore)}
    if weak := set(chain(*ranks.gather(sorted(weak)))):
        moved = [item.case.patient in weak for item in to_score]
        to_train += [item for item, moves in zip(to_score, moved, strict=True) if moves]
        to_score = [item for item, moves in zip(to_score, moved, strict=True) if not moves]
        training_places += [len(cases) + p for p, moves in zip(validation_places, moved, strict=True) if moves]
        validation_places = [p for p, moves in zip(validation_places, moved, strict=True) if not moves]
    with ranks.agree():
        training = training_examples(
            to_train, found, config, structures=structures, grid=grid, weak=seeds, memory=memory
        )
        scored = validation_examples(to_score, found, structures, memory)
        annotated = annotated_structures(training)
    require_weak(ranks.gather(annotated), list(structures), config)
    known = {example.name for example in scored}
    sources = {"dataset": dataset, "seeds": seeds, "split": split, "validation_fraction": validation_fraction}
    return Inputs(
        training=training,
        validation=scored,
        places={
            "training": training_places,
            "validation": [p for p, i in zip(validation_places, to_score, strict=True) if i.case.name in known],
        },
        config=config,
        model={
            "labels": structures,
            "orientation": grid.orientation,
            "channels": len(cases[0].images),
        },
        sources={name: str(value.resolve()) if isinstance(value, Path) else value for name, value in sources.items()},
    )


def _own_places(cases: Sequence[Case], grid: Grid, ranks: Ranks) -> list[int]:
    """Return which of the cases are this rank's, by how many slices all of them have."""
    if not ranks.several:
        return list(range(len(cases)))
    slices = [read_geometry(case.images[0]).reoriented(grid.orientation).shape[0] for case in cases]
    return shard_cases(slices, ranks.size)[ranks.rank]


def recorded_sources(run: Path) -> dict[str, Any]:
    """Return what :func:`fit` was called with when ``run`` was made: seeds, split, validation_fraction.

    Nothing where its training was killed before it began.
    """
    RunFolder.require_usable(run, resume=True)
    if is_not_begun(run):
        return {}
    try:
        recorded = read_json(run / "run.json")["sources"]
        sources = {name: recorded[name] for name in ("seeds", "split", "validation_fraction")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{run}: not a run folder that can be resumed: {run / 'run.json'} is missing or broken"
        ) from error
    return sources
