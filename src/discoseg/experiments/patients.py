"""Who trains and who validates in an experiment, and the annotations of those who train."""

import json
from collections.abc import Sequence
from pathlib import Path

from discoseg.data.files import make_folder_whole, write_atomically
from discoseg.data.layouts import Case, Dataset, find_dataset
from discoseg.data.splits import split_cases
from discoseg.errors import UserError
from discoseg.experiments.plan import FOLDS, Cell
from discoseg.experiments.tasks import Task
from discoseg.weak.examples import chosen_label
from discoseg.weak.seeds import make_seeds

_TUNING_EVERY = 8  # of the training patients, in the order of their names, one in so many is set aside for the search


def choose_patients(task: Task, cell: Cell, data: Path, out: Path) -> tuple[Path | None, Path]:
    """Return the split of a training and the folder of its weak label maps, which are made where they are missing.

    The split is that of ``data``, with patients set aside for a search, or a fold; None where nothing decides it.
    """
    dataset = data / task.dataset
    split = data / "splits.json" if (data / "splits.json").is_file() else None
    folder = out / "seeds" / task.name
    if cell.tuning:
        split = _tuning_split(task, dataset, split, out)
        folder = out / "seeds" / f"search-{task.name}"
    elif cell.fold is not None:
        split = _fold_split(task, dataset, cell.fold, out)
        folder = out / "seeds" / split.stem
    if task.seeds is None:
        _require_seeds(task, dataset, split, folder)
    else:
        folder = data / task.seeds
        _require_validation(dataset, split)
    return split, folder


def _require_validation(dataset: Path, split: Path | None) -> tuple[Dataset, list[Case]]:
    """Return a dataset and its training cases; some other case must validate."""
    found = find_dataset(dataset)
    training, validation = split_cases(found, split=split)
    if not validation:
        raise UserError(f"{split or dataset}: no case of {dataset} validates, so there is nothing to compare")
    return found, training


def _require_seeds(task: Task, dataset: Path, split: Path | None, folder: Path) -> None:
    """Make a task's weak label maps, or make sure that those which are there are of the same training cases."""
    found, training = _require_validation(dataset, split)
    text, beside = json.dumps([case.name for case in training], indent=1) + "\n", folder.with_suffix(".json")
    if not folder.is_dir():
        clicks = dataset / "clicks.json" if (dataset / "clicks.json").is_file() else None
        with make_folder_whole(folder) as partial:
            label = chosen_label(found, task.config.label)
            make_seeds(found, training, partial, label=label, grid=task.config.grid, clicks=clicks)
            with write_atomically(beside) as path:
                path.write_text(text, encoding="utf-8")
    elif not beside.is_file() or beside.read_text(encoding="utf-8") != text:
        raise UserError(f"{folder}: was made for other training cases; choose another --out")


def _tuning_split(task: Task, dataset: Path, split: Path | None, out: Path) -> Path:
    """Write which training patients train and which are set aside in a search; the validation patients do neither."""
    training, _ = split_cases(find_dataset(dataset), split=split)
    patients = sorted({case.patient for case in training})
    aside = patients[_TUNING_EVERY // 2 :: _TUNING_EVERY] or patients[-1:]
    return _write_split(out / f"search-{task.name}.json", patients, aside)


def _fold_split(task: Task, dataset: Path, fold: int, out: Path) -> Path:
    """Write which patients of a fold train and which validate: in the order of their names, every fifth."""
    patients = sorted({case.patient for case in find_dataset(dataset).cases if not case.test})
    if len(patients) < FOLDS:
        raise UserError(f"{dataset}: {FOLDS} folds need as many patients, there are {len(patients)}")
    return _write_split(out / f"{task.name}-fold{fold}.json", patients, patients[fold::FOLDS])


def _write_split(path: Path, patients: Sequence[str], aside: Sequence[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_atomically(path) as temporary:
        names = {"train": [patient for patient in patients if patient not in aside], "val": list(aside)}
        temporary.write_text(json.dumps(names, indent=1) + "\n", encoding="utf-8")
    return path
