"""Compare predicted label maps with references: ``discoseg evaluate PREDICTIONS REFERENCES``."""

import csv
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from discoseg.data.files import IMAGE_SUFFIXES, list_images, strip_suffix, write_atomically
from discoseg.data.layouts import Dataset, find_dataset
from discoseg.data.names import require_name
from discoseg.data.volume import Volume, describe_mismatch, read_label_map
from discoseg.errors import UserError
from discoseg.metrics import dice, surface_distances
from discoseg.texts import read_json

if TYPE_CHECKING:
    from rich.console import Console

Part = Literal["training", "validation"]
REFERENCE_ENDINGS = ("_gt", "_segmentation")  # what challenges append to a case's name for its reference
_BESIDE = re.compile(r"_(uncertainty|probability(_[A-Za-z0-9.-]+)?)$")  # maps that predictions have beside them
CHANNEL_ENDING = "_0000"  # of nnU-Net's images, and so of predictions named after them


@dataclass(frozen=True)
class Score:
    """One structure of one case; the surface distances are nan when either mask is empty.

    ``part`` is what the case was to the training, None where it was nothing, or the training is not known.
    """

    case: str
    label: int
    dice: float
    hd95_mm: float
    asd_mm: float
    predicted_ml: float
    reference_ml: float
    part: Part | None = None


@dataclass(frozen=True)
class Summary:
    """One structure: mean and population standard deviation over the cases of a part (distances: with both masks)."""

    label: int
    cases: int
    surfaces: int
    dice_mean: float
    dice_std: float
    hd95_mm_mean: float
    hd95_mm_std: float
    asd_mm_mean: float
    asd_mm_std: float
    part: Part | None = None


@dataclass(frozen=True)
class Evaluation:
    """The scores by case and label, and the cases that only one side has."""

    scores: tuple[Score, ...]
    missing_predictions: tuple[str, ...] = ()
    missing_references: tuple[str, ...] = ()
    names: dict[int, str] | None = None  # of the labels, where a dataset gives them
    never_predicted: tuple[
        int, ...
    ] = ()  # labels of the references that no prediction has, and that were not asked for

    def summaries(self) -> list[Summary]:
        """Summarise each label, in ascending order, training and held-out cases apart where they are known."""
        keys = sorted({(score.label, score.part or "") for score in self.scores})
        groups = [[s for s in self.scores if (s.label, s.part or "") == key] for key in keys]
        return [_summarise(scores) for scores in groups]

    def record(self) -> dict[str, Any]:
        """Return everything for JSON, the fields of :class:`Summary` and :class:`Score` by name; None where nan."""
        return {
            "summary": [_without_nan(asdict(summary)) for summary in self.summaries()],
            "cases": [_without_nan(asdict(score)) for score in self.scores],
            "missing_predictions": list(self.missing_predictions),
            "missing_references": list(self.missing_references),
        }


def evaluate(
    predictions: Path | str,
    references: Path | str,
    *,
    labels: Sequence[str] = (),
    run: Path | str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:
    """Score every prediction whose case has a reference.

    ``predictions`` is a folder of label maps, or one; ``references`` likewise, or the root of a dataset.
    ``labels`` are values ("3") or, with a dataset, names ("LV"); none means every label that is predicted, or where
    all predictions are empty, every label of the references. ``run`` is the folder of the run that predicted: scores
    then say which cases it was trained on, and which it chose its best model by. ``progress`` is called with the number
    of cases compared and of all.
    """
    predictions, references = Path(predictions), Path(references)
    predicted = _label_maps(predictions)
    dataset, known = _references(references)
    cases = sorted(predicted.keys() & known.keys())
    if not cases:
        ours, theirs = _examples(predicted), _examples(known)
        raise UserError(f"no case of {predictions} ({ours}) has a reference in {references} ({theirs})")
    ignore = dataset.ignore if dataset else None
    wanted = _label_values(labels, dataset)
    never: list[int] = []
    if not wanted:
        referred = _labels_present([known[case] for case in cases], ignore)
        wanted = _labels_present([predicted[case] for case in cases], ignore) or referred
        never = [label for label in referred if label not in wanted]
    if not wanted:
        raise UserError(f"{references}: only background in the references; name the labels")
    parts = {} if run is None else _read_parts(Path(run))
    scores: list[Score] = []
    for done, case in enumerate(cases, start=1):
        of_case = _score_case(case, predicted[case], known[case], wanted, ignore)
        scores += [replace(score, part=parts.get(case)) for score in of_case]
        progress(done, len(cases))
    return Evaluation(
        tuple(scores),
        missing_predictions=tuple(sorted(known.keys() - predicted.keys())),
        missing_references=tuple(sorted(predicted.keys() - known.keys())),
        names={value: name for name, value in dataset.labels.items()} if dataset else None,
        never_predicted=tuple(never),
    )


def require_new_table(path: Path) -> None:
    """Raise a :class:`UserError` unless an evaluation can be written to ``path``."""
    _require_table_suffix(path)
    if path.exists():
        raise UserError(f"{path}: already exists; choose another name, or remove it")


def _require_table_suffix(path: Path) -> None:
    if path.suffix not in (".csv", ".json"):
        raise UserError(f"{path}: the name of an evaluation ends in .csv or .json")


def write_evaluation(path: Path, evaluation: Evaluation) -> None:
    """Write the scores as CSV (one row for each case and label) or JSON (with summary and missing cases)."""
    _require_table_suffix(path)
    if path.suffix == ".csv":
        with write_atomically(path) as temporary, temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(Score)])
            writer.writeheader()
            writer.writerows(asdict(score) for score in evaluation.scores)
    else:
        document = evaluation.record()
        with write_atomically(path) as temporary:
            temporary.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n")


def print_evaluation(evaluation: Evaluation, *, console: "Console | None" = None) -> None:
    """Print a table of the cases with mean and deviation of each label below, and what one side misses."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    from discoseg.terminal.console import Console

    names = evaluation.names or {}
    parted = any(score.part for score in evaluation.scores)
    table = Table(box=SIMPLE_HEAD)
    for heading in ("case", *["part"] * parted, "label"):
        table.add_column(heading, no_wrap=True)
    for heading in ("Dice", "HD95 mm", "ASD mm", "pred. ml", "ref. ml"):
        table.add_column(heading, justify="right")
    for s in evaluation.scores:
        name = names.get(s.label, str(s.label))
        sizes = (f"{s.predicted_ml:.1f}", f"{s.reference_ml:.1f}")
        table.add_row(escape(s.case), *[s.part or "–"] * parted, name, *_numbers(s.dice, s.hd95_mm, s.asd_mm), *sizes)
    for m in evaluation.summaries():
        name = names.get(m.label, str(m.label))
        table.add_section()
        means = _numbers(m.dice_mean, m.hd95_mm_mean, m.asd_mm_mean)
        table.add_row(f"mean of {m.cases}", *[m.part or "–"] * parted, name, *means, style="bold")
        table.add_row("±", *[m.part or "–"] * parted, name, *_numbers(m.dice_std, m.hd95_mm_std, m.asd_mm_std))
    console = console or Console()
    console.print(table)
    if evaluation.never_predicted:
        labels = ", ".join(names.get(label, str(label)) for label in evaluation.never_predicted)
        console.print(
            f"not compared, as no prediction has it: {labels}; --label asks for it", highlight=False, markup=False
        )
    missing = {"prediction": evaluation.missing_predictions, "reference": evaluation.missing_references}
    for what, cases in missing.items():
        if cases:
            listed = ", ".join(cases[:10]) + (", …" if len(cases) > 10 else "")
            console.print(f"{len(cases)} without {what}: {listed}", highlight=False, markup=False)


def _numbers(overlap: float, *distances_mm: float) -> list[str]:
    return [f"{overlap:.3f}", *("–" if math.isnan(d) else f"{d:.2f}" for d in distances_mm)]


def _read_parts(run: Path) -> dict[str, Part]:
    """Return what each case was to a run, by its run.json."""
    try:
        facts = read_json(run / "run.json")
        parts: dict[str, Part] = dict.fromkeys(facts["training"], "training")
        return parts | dict.fromkeys(facts["validation"], "validation")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{run}: not a run folder: {run / 'run.json'} is missing or broken") from error


def _references(path: Path) -> tuple[Dataset | None, dict[str, Path]]:
    """Find the references of a dataset, and it, or else the label maps that lie at ``path``."""
    if path.is_dir():
        dataset = find_dataset(path)
        known = {case.name: case.label for case in dataset.cases if case.label is not None}
        if known:
            return dataset, known
    return None, _label_maps(path)


def _label_maps(path: Path) -> dict[str, Path]:
    """Find label maps by case; where some have a reference's ending, those without are their images."""
    if not path.exists():
        raise UserError(f"{path} does not exist")
    files = list_images(path) if path.is_dir() else [path]
    files = [file for file in files if not _BESIDE.search(strip_suffix(file))]
    marked = [file for file in files if strip_suffix(file).endswith(REFERENCE_ENDINGS)]
    found: dict[str, Path] = {}
    for file in marked or files:
        case = strip_suffix(file)
        for ending in (*REFERENCE_ENDINGS, CHANNEL_ENDING):
            case = case.removesuffix(ending)
        require_name(case, file)
        if case in found:
            raise UserError(f"{found[case]} and {file} are the same case; remove one of them")
        found[case] = file
    if not found:
        raise UserError(f"{path} holds no label map ({', '.join(IMAGE_SUFFIXES)})")
    return found


def _examples(cases: dict[str, Path]) -> str:
    first = sorted(cases)[:2]
    return ", ".join(first) + (", …" if len(cases) > len(first) else "")


def _label_values(labels: Sequence[str], dataset: Dataset | None) -> list[int]:
    if dataset:
        return [dataset.label_value(label) for label in labels]
    unknown = [label for label in labels if not label.isdecimal()]
    if unknown:
        raise UserError(f"label {unknown[0]!r}: no dataset names its labels here; give the value, such as 1")
    return [int(label) for label in labels]


def _labels_present(maps: list[Path], ignore: int | None) -> list[int]:
    present = {int(value) for path in maps for value in np.unique(_read_labels(path).array)}
    return sorted(present - {0, ignore})


def _read_labels(path: Path) -> Volume:
    volume = read_label_map(path)
    if volume.array.dtype.kind == "f" and not np.array_equal(volume.array, np.rint(volume.array)):
        raise UserError(f"{path} holds fractions, so it is no label map; give masks, not probabilities")
    return volume


def _score_case(case: str, predicted: Path, known: Path, labels: list[int], ignore: int | None) -> list[Score]:
    reference = _read_labels(known)
    prediction = _read_labels(predicted).reoriented(reference.orientation)
    mismatch = describe_mismatch(reference, prediction)
    if mismatch:
        raise UserError(f"{predicted} does not lie on its reference {known}: {mismatch}")
    annotated = True if ignore is None else reference.array != ignore
    scores = []
    for label in labels:
        mask, truth = prediction.array == label, reference.array == label
        counted: NDArray[np.bool_] = mask & annotated
        hd95_mm, asd_mm = surface_distances(counted, truth, reference.spacing_mm)
        predicted_ml, reference_ml = (int(m.sum()) * reference.voxel_ml for m in (mask, truth))
        scores.append(Score(case, label, dice(counted, truth), hd95_mm, asd_mm, predicted_ml, reference_ml))
    return scores


def _summarise(scores: list[Score]) -> Summary:
    """Summarise the scores of one label and part."""
    overlaps = [s.dice for s in scores]
    measured = [s for s in scores if not math.isnan(s.hd95_mm)]
    hd95_mm, asd_mm = (_mean_and_std([getattr(s, name) for s in measured]) for name in ("hd95_mm", "asd_mm"))
    first = scores[0]
    return Summary(
        first.label, len(scores), len(measured), *_mean_and_std(overlaps), *hd95_mm, *asd_mm, part=first.part
    )


def _mean_and_std(values: list[float]) -> tuple[float, float]:
    return (float(np.mean(values)), float(np.std(values))) if values else (math.nan, math.nan)


def _without_nan(row: dict[str, float | int | str | None]) -> dict[str, float | int | str | None]:
    return {key: None if isinstance(v, float) and math.isnan(v) else v for key, v in row.items()}
