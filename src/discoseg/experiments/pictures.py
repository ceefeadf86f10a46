"""The masks of several trainings on the same validation slices."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from discoseg.config import Method
from discoseg.data.layouts import find_dataset
from discoseg.data.prepare import prepare_cases
from discoseg.experiments.tasks import Task
from discoseg.predict import load_model
from discoseg.prediction_pass import predict_slices
from discoseg.report.runs import Slice, read_rows

Shown = tuple[Slice, dict[Method, NDArray[np.bool_]]]
"""A slice with ``image`` uint8 and ``truth`` bool, and each method's mask, all (H, W)."""

_QUARTILES = (0.75, 0.25)  # of the validation cases by the Dice of the first run: neither the best nor the worst


def compare_methods(task: Task, dataset: Path, runs: Mapping[Method, Path]) -> dict[str, Shown]:
    """Return two validation cases by title: the slice with most of the structure, and each method's mask there.

    The cases are those at the quartiles of the first run's Dice after its last epoch; masks are those of the
    models that validate best.
    """
    first = next(iter(runs.values()))
    rows = read_rows(first / "cases.csv", needs=("case", "split", "dice"))
    scored = [(float(row["dice"]), row["case"]) for row in rows if row["split"] == "validation"]
    ranked = [case for _, case in sorted(scored)]
    names = list(dict.fromkeys(ranked[round(q * (len(ranked) - 1))] for q in _QUARTILES))
    models = {method: load_model(run, device="cpu") for method, run in runs.items()}
    found = find_dataset(dataset)
    out: dict[str, Shown] = {}
    for name in names:
        case = next(case for case in found.cases if case.name == name)
        model = next(iter(models.values()))
        (prepared,) = prepare_cases([case], model.grid)
        (value,) = model.labels.values()
        truth = prepared.mask(value, ignore=found.ignore)
        assert truth is not None  # only such cases are scored
        shown = int(truth.sum(axis=(1, 2)).argmax())
        image = torch.from_numpy(prepared.image[shown : shown + 1].copy())  # it may be mapped from the cache
        masks = {m: predict_slices(model.network, image)[0, 0].numpy() >= 0.5 for m, model in models.items()}
        levels = np.round(prepared.image[shown, 0] * 255).astype(np.uint8)
        out[f"{task.title} {name}"] = {"image": levels, "truth": truth[shown]}, masks
    return out
