"""Dice and sizes of held-out phantoms, predicted as they are and with --enforce and bounds around the true sizes.

    python bench/enforce.py --epochs 12

A small U-Net is trained with the demo's settings, of the LV from clicks, of several structures from masks, and shortly:
what is enforced matters where the network errs. Bounds are ±10 % of each volume's true size. The boundary prior has the
training's strength, a tenth of it, and none; beside it stand what costs no bounds.
"""

import argparse
import csv
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from discoseg.certified import Enforcement
from discoseg.data.phantom import LABELS, write_phantom_dataset
from discoseg.data.volume import read_volume
from discoseg.evaluation import evaluate
from discoseg.experiments.demo import CONFIG, make_demo_seeds
from discoseg.postprocess import NO_POSTPROCESSING, Postprocessing
from discoseg.predict import load_model, predict_files
from discoseg.terminal import Terminal
from discoseg.workflow import fit

EPS = 0.1


def write_bounds(path: Path, masks: Path, images: Sequence[Path], structures: Sequence[str]) -> None:
    """Write each image's true sizes ±10 %, by the name of its label map."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["case", "label", "size_ml", "eps"])
        for image in images:
            mask = read_volume(masks / image.name.replace("_0000", ""))
            for name in structures:
                size_ml = np.count_nonzero(mask.array == LABELS[name]) * mask.voxel_ml
                table.writerow([image.name.removesuffix(".nii.gz"), name, repr(float(size_ml)), EPS])


def main() -> None:
    parser = argparse.ArgumentParser(description="compare plain and enforced predictions of phantoms")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--test-cases", type=int, default=16)
    parser.add_argument("--structures", nargs="+", default=["LV"], choices=list(LABELS)[1:])
    parser.add_argument("--work", type=Path, default=None, help="folder to keep; by default a temporary one")
    arguments = parser.parse_args()
    work = arguments.work or Path(tempfile.mkdtemp())
    phantoms, run = work / "phantoms", work / f"run-{'-'.join(arguments.structures)}-{arguments.epochs}"
    if not phantoms.is_dir():
        write_phantom_dataset(phantoms, cases=24, test_cases=arguments.test_cases, seed=0)
    config = replace(CONFIG, label=",".join(arguments.structures), epochs=arguments.epochs)
    if not (run / "checkpoints/final.safetensors").is_file():
        if arguments.structures == ["LV"]:
            fit(phantoms, run, config, seeds=make_demo_seeds(phantoms, work / "seeds", Terminal()))
        else:  # clicks are of the LV alone
            fit(phantoms, run, replace(config, method="full", size_eps=None))
    model = load_model(run, checkpoint="final")
    images = sorted((phantoms / "imagesTs").iterdir())
    write_bounds(work / "sizes.csv", phantoms / "labelsTs", images, arguments.structures)
    strength = config.crf.strength / config.admm.mu_crf
    largest = Postprocessing(largest_component=True)
    anything = ",".join(f"{name}=0:" for name in arguments.structures)
    predictions: dict[str, tuple[Enforcement | None, Postprocessing]] = {
        "plain": (None, NO_POSTPROCESSING),
        "--largest-component": (None, largest),
        "--enforce, any size": (model.enforcement(size_ml=anything, crf_strength=strength), NO_POSTPROCESSING),
    }
    for value in (0.0, strength / 10, strength):
        enforcement = model.enforcement(size_csv=work / "sizes.csv", crf_strength=value)
        predictions[f"--enforce, --crf-strength {value:g}"] = enforcement, NO_POSTPROCESSING
    predictions["the same, --largest-component"] = enforcement, largest
    values = [str(LABELS[name]) for name in arguments.structures]
    print(f"{arguments.structures}, {arguments.epochs} epochs, {len(images)} volumes, bounds ±{EPS:.0%}")
    print("| prediction | 3D Dice | HD95 mm | sizes outside their bounds | certificates | s a volume |")
    print("|---|---|---|---|---|---|")
    for name, (enforced, postprocessing) in predictions.items():
        out = Path(tempfile.mkdtemp(dir=work))
        begun = time.perf_counter()
        predict_files(model, images, out, enforcement=enforced, postprocessing=postprocessing)
        seconds = (time.perf_counter() - begun) / len(images)
        evaluation = evaluate(out, phantoms / "labelsTs", labels=tuple(values))
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
