"""From a folder of files to a trained run: find the cases, split, prepare, annotate, train."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from discoseg.config import Config
from discoseg.data.layouts import find_dataset
from discoseg.data.prepare import Grid, common_orientation, prepare_cases
from discoseg.data.splits import split_cases
from discoseg.errors import UserError
from discoseg.run import RunFolder
from discoseg.state import State
from discoseg.train import Progress, train
from discoseg.weak.examples import chosen_label, training_examples, validation_examples


def fit(
    dataset: Path,
    out: Path,
    config: Config,
    *,
    seeds: Path | None = None,
    split: Path | None = None,
    validation_fraction: float = 0.2,
    device: str = "auto",
    resume: bool = False,
    prepare_progress: Callable[[int, int], None] = lambda done, total: None,
    progress: Progress = lambda done, message: None,
) -> State:
    """Train on the dataset in folder ``dataset`` and write the run folder ``out``.

    ``seeds`` is a folder of weak label maps by case name; without it the dataset's own labels annotate. Validation
    cases are those of the JSON file ``split``, or a ``validation_fraction`` of the patients: always the same ones, as
    far as they have complete masks.
    """
    RunFolder.require_usable(out, resume=resume)
    found = find_dataset(dataset)
    label = chosen_label(found, config.label)
    if config.size_csv is not None:  # a run may be resumed from another folder
        config = replace(config, size_csv=config.size_csv.resolve())
    cases, held_out = split_cases(found, split=split, fraction=validation_fraction)
    grid = Grid(config.grid.shape, config.grid.clip_percent, common_orientation(cases))
    prepared = prepare_cases([*cases, *held_out], grid, progress=prepare_progress)
    scored = {case.patient for case in held_out}
    if split is None:  # nobody chose these: patients that cannot be scored had better train
        scored -= {item.case.patient for item in prepared if item.mask(label, ignore=found.ignore) is None}
    to_train = [item for item in prepared if item.case in cases or item.case.patient not in scored]
    to_score = [item for item in prepared if item.case in held_out and item.case.patient in scored]
    training = training_examples(to_train, found, config, label=label, grid=grid, weak=seeds)
    validation = validation_examples(to_score, found, label)
    model: dict[str, Any] = {
        "label": next(name for name, value in found.labels.items() if value == label),
        "label_value": label,
        "orientation": grid.orientation,
        "channels": len(cases[0].images),
    }
    sources = {"dataset": dataset, "seeds": seeds, "split": split, "validation_fraction": validation_fraction}
    return train(
        training,
        validation,
        config,
        out,
        model=model,
        sources={name: str(value.resolve()) if isinstance(value, Path) else value for name, value in sources.items()},
        device=device,
        resume=resume,
        progress=progress,
    )


def recorded_sources(run: Path) -> dict[str, Any]:
    """Return what :func:`fit` was called with when ``run`` was made: dataset, seeds, split, validation_fraction."""
    try:
        sources: dict[str, Any] = json.loads((run / "run.json").read_text(encoding="utf-8"))["sources"]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{run}: not a run folder that can be resumed: {run / 'run.json'} is missing or broken"
        ) from error
    return sources
