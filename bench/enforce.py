"""Dice and sizes of held-out volumes, predicted as they are and with --enforce and bounds around the true sizes.

    python bench/enforce.py --epochs 12                               phantoms
    python bench/enforce.py --run RUN --dataset ACDC                  the validation cases of a run

For the phantoms a small U-Net is trained with the demo's settings, of the LV from clicks, of several structures from
masks, and shortly: what is enforced matters where the network errs. Bounds are ±10 % of each volume's true size. The
boundary prior has the training's strength, a tenth of it, and none; beside it stand what costs no bounds.
"""

import argparse
import csv
import json
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from discoseg.certified import Enforcement
from discoseg.data.files import strip_suffix
from discoseg.data.layouts import find_dataset
from discoseg.data.phantom import LABELS, write_phantom_dataset
from discoseg.data.volume import read_volume
from discoseg.evaluation import evaluate
from discoseg.experiments.demo import CONFIG, make_demo_seeds
from discoseg.postprocess import NO_POSTPROCESSING, Postprocessing
from discoseg.predict import Model, load_model, predict_files
from discoseg.terminal import Terminal
from discoseg.workflow import fit

EPS = 0.1


@dataclass(frozen=True)
class Held:
    """Volumes that are predicted: images, their label maps by the name of the prediction, and labels' values."""

    images: list[Path]
    references: dict[str, Path]
    values: dict[str, int]


class Remembering(torch.nn.Module):
    """A network that computes the same slices once: they are predicted in several ways, and only these differ."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network.eval()
        self.known: dict[bytes, torch.Tensor] = {}

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        key = image.cpu().numpy().tobytes()
        if key not in self.known:
            self.known[key] = self.network(image)
        return self.known[key]


def write_bounds(path: Path, held: Held) -> None:
    """Write each image's true sizes ±10 %, by the name of its label map."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["case", "label", "size_ml", "eps"])
        for case, reference in held.references.items():
            mask = read_volume(reference)
            for name, value in held.values.items():
                size_ml = np.count_nonzero(mask.array == value) * mask.voxel_ml
                table.writerow([case, name, repr(float(size_ml)), EPS])


def train_on_phantoms(work: Path, structures: list[str], epochs: int, test_cases: int) -> tuple[Path, Held]:
    """Return a run on phantoms, made now if there is none, and other phantoms."""
    phantoms, run = work / "phantoms", work / f"run-{'-'.join(structures)}-{epochs}"
    if not phantoms.is_dir():
        write_phantom_dataset(phantoms, cases=24, test_cases=test_cases, seed=0)
    config = replace(CONFIG, label=",".join(structures), epochs=epochs)
    if not (run / "checkpoints/final.safetensors").is_file():
        if structures == ["LV"]:
            fit(phantoms, run, config, seeds=make_demo_seeds(phantoms, work / "seeds", Terminal()))
        else:  # clicks are of the LV alone
            fit(phantoms, run, replace(config, method="full", size_eps=None))
    images = sorted((phantoms / "imagesTs").iterdir())
    references = {strip_suffix(i): phantoms / "labelsTs" / i.name.replace("_0000", "") for i in images}
    return run, Held(images, references, {name: LABELS[name] for name in structures})


def validation_of(run: Path, folder: Path, structures: list[str], most: int) -> Held:
    """Return the cases of a dataset that a run validates on, every n-th where that is more than ``most``."""
    dataset = find_dataset(folder)
    names = json.loads((run / "run.json").read_text(encoding="utf-8"))["validation"]
    names = names[:: -(-len(names) // most)]
    cases = [case for case in dataset.cases if case.name in names and case.label is not None]
    references = {strip_suffix(case.images[0]): case.label for case in cases if case.label is not None}
    values = {name: dataset.label_value(name) for name in structures}
    return Held([case.images[0] for case in cases], references, values)


def main() -> None:
    """Predict with and without bounds, and print a row for each way."""
    parser = argparse.ArgumentParser(description="compare plain and enforced predictions")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--test-cases", type=int, default=16, help="at most, where a run validates on more")
    parser.add_argument("--structures", nargs="+", default=["LV"], choices=list(LABELS)[1:])
    parser.add_argument("--work", type=Path, default=None, help="folder to keep; by default a temporary one")
    parser.add_argument("--run", type=Path, default=None, help="a finished run whose validation cases are predicted")
    parser.add_argument("--dataset", type=Path, default=None, help="where these lie")
    arguments = parser.parse_args()
    work = arguments.work or Path(tempfile.mkdtemp())
    if arguments.run is None:
        run, held = train_on_phantoms(work, arguments.structures, arguments.epochs, arguments.test_cases)
    else:
        run = arguments.run
        held = validation_of(run, arguments.dataset, arguments.structures, arguments.test_cases)
    model = load_model(run, checkpoint="final")
    model = replace(model, network=Remembering(model.network))
    write_bounds(work / "sizes.csv", held)
    strength = model.config.crf.strength / model.config.admm.mu_crf
    largest = Postprocessing(largest_component=True)
    anything = ",".join(f"{name}=0:" for name in held.values)
    predictions: dict[str, tuple[Enforcement | None, Postprocessing]] = {
        "plain": (None, NO_POSTPROCESSING),
        "--largest-component": (None, largest),
    }
    for value in (0.0, strength / 10, strength):
        enforcement = model.enforcement(size_csv=work / "sizes.csv", crf_strength=value)
        predictions[f"--enforce, --crf-strength {value:g}"] = enforcement, NO_POSTPROCESSING
    predictions["the same, --largest-component"] = enforcement, largest
    any_size = model.enforcement(size_ml=anything, crf_strength=strength)
    predictions["--enforce, any size"] = any_size, NO_POSTPROCESSING
    print(f"{list(held.values)}, {len(held.images)} volumes, bounds ±{EPS:.0%}")
    print("| prediction | 3D Dice | HD95 mm | sizes outside their bounds | certificates | s a volume |")
    print("|---|---|---|---|---|---|")
    for name, (enforced, postprocessing) in predictions.items():
        print_row(name, model, held, work, enforced, postprocessing)


def print_row(
    name: str, model: Model, held: Held, work: Path, enforced: Enforcement | None, postprocessing: Postprocessing
) -> None:
    """Predict all volumes in one way, and print what it comes to."""
    out, references = (Path(tempfile.mkdtemp(dir=work)) for _ in range(2))
    begun = time.perf_counter()
    predict_files(model, held.images, out, enforcement=enforced, postprocessing=postprocessing)
    seconds = (time.perf_counter() - begun) / len(held.images)
    for case, path in held.references.items():
        (references / f"{case}.nii.gz").symlink_to(path.resolve())
    evaluation = evaluate(out, references, labels=tuple(str(value) for value in held.values.values()))
    outside = [abs(score.predicted_ml / score.reference_ml - 1) > EPS + 1e-9 for score in evaluation.scores]
    kinds = [json.loads(path.read_text(encoding="utf-8"))["kind"] for path in sorted(out.glob("*.json"))]
    said = ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds)))
    dice = np.array([score.dice for score in evaluation.scores])
    hd95_mm = np.nanmean([score.hd95_mm for score in evaluation.scores])
    print(
        f"| {name} | {dice.mean():.3f} ± {dice.std():.3f} | {hd95_mm:.1f} | {sum(outside)} of {len(outside)} "
        f"| {said} | {seconds:.2f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
