"""From a folder of files to a trained run: find the cases, split, prepare, annotate, train."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from discoseg.config import Config
from discoseg.data.layouts import describe_odd_channels, find_dataset
from discoseg.data.memory import BOUNDLESS, Memory, budget_gib
from discoseg.data.prepare import Grid, common_orientation, prepare_cases, slice_across
from discoseg.data.splits import split_cases
from discoseg.errors import UserError
from discoseg.run import RunFolder
from discoseg.state import State
from discoseg.texts import read_json
from discoseg.train import Progress, train
from discoseg.weak.examples import Example, chosen_labels, training_examples, validation_examples


@dataclass(frozen=True)
class Inputs:
    """What :func:`discoseg.train.train` takes, gathered from files."""

    training: list[Example]
    validation: list[Example]
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
    prepare_progress: Callable[[int, int], None] = lambda done, total: None,
    progress: Progress = lambda done, message: None,
) -> State:
    """Train on the dataset in folder ``dataset`` and write the run folder ``out``.

    ``seeds`` is a folder of weak label maps by case name; without it the dataset's own labels annotate. Validation
    cases are those of the JSON file ``split`` (``splits_final.json:2`` is the third fold of nnU-Net's file; one in the
    dataset's folder counts by itself), or a ``validation_fraction`` of the patients: always the same ones, as far as
    they have complete masks. What grows with the dataset takes up to ``memory_gib`` of memory, by default half of the
    machine's; what is beyond lies in files in the cache while a CPU trains, with the same result.
    """
    RunFolder.require_usable(Path(out), resume=resume)
    memory = Memory(budget_gib(memory_gib))
    inputs = gather_inputs(
        Path(dataset),
        config,
        seeds=None if seeds is None else Path(seeds),
        split=None if split is None else Path(split),
        validation_fraction=validation_fraction,
        memory=memory,
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
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Inputs:
    """Find, split, prepare and annotate the cases of a dataset; see :func:`fit`."""
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
    prepared = prepare_cases([*cases, *held_out], grid, progress=progress)
    to_train, to_score = prepared[: len(cases)], prepared[len(cases) :]
    if split is None and seeds is None:  # nobody chose these: annotated patients that cannot be scored had better train
        weak = {item.case.patient for item in to_score if item.label is not None}
        weak &= {item.case.patient for item in to_score if not item.is_complete(found.ignore)}
        to_train += [item for item in to_score if item.case.patient in weak]
        to_score = [item for item in to_score if item.case.patient not in weak]
    sources = {"dataset": dataset, "seeds": seeds, "split": split, "validation_fraction": validation_fraction}
    return Inputs(
        training=training_examples(
            to_train, found, config, structures=structures, grid=grid, weak=seeds, memory=memory
        ),
        validation=validation_examples(to_score, found, structures, memory),
        config=config,
        model={
            "labels": structures,
            "orientation": grid.orientation,
            "channels": len(cases[0].images),
        },
        sources={name: str(value.resolve()) if isinstance(value, Path) else value for name, value in sources.items()},
    )


def recorded_sources(run: Path) -> dict[str, Any]:
    """Return what :func:`fit` was called with when ``run`` was made: seeds, split, validation_fraction."""
    RunFolder.require_usable(run, resume=True)
    try:
        recorded = read_json(run / "run.json")["sources"]
        sources = {name: recorded[name] for name in ("seeds", "split", "validation_fraction")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{run}: not a run folder that can be resumed: {run / 'run.json'} is missing or broken"
        ) from error
    return sources
