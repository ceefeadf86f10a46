"""The demo: the paper's comparison in miniature, on phantoms, in a few minutes on two CPU cores.

    discoseg demo --out demo

One click per training volume and an atlas give seeds, ±10 % of the true size gives bounds; the same small U-Net is
trained with discrete proposals (crf+size) and with the size penalty, and both are scored on volumes neither has seen.
"""

from dataclasses import replace
from pathlib import Path
from statistics import mean, pstdev
from typing import TYPE_CHECKING

from discoseg.config import AdmmConfig, AugmentConfig, CrfConfig, GridConfig, Method, NetworkConfig, OptimiserConfig
from discoseg.data.files import make_folder_whole
from discoseg.data.layouts import find_dataset
from discoseg.data.phantom import write_phantom_dataset
from discoseg.data.splits import split_cases
from discoseg.evaluation import Evaluation, evaluate, write_evaluation
from discoseg.finished import is_finished
from discoseg.predict import load_model, predict_files
from discoseg.presets import PRESETS
from discoseg.report import write_report
from discoseg.sweep import fit_many
from discoseg.terminal import Terminal
from discoseg.weak.examples import chosen_label
from discoseg.weak.seeds import make_seeds
from discoseg.weak.seeds_table import print_seeds

if TYPE_CHECKING:
    from rich.table import Table

METHODS: tuple[Method, ...] = ("crf+size", "penalty")
CONFIG = replace(
    PRESETS["default"],
    label="LV",
    size_eps=0.1,
    epochs=28,
    grid=GridConfig(shape=(64, 64), clip_percent=(0.5, 99.5)),
    network=NetworkConfig(name="unet", width=12),
    augment=AugmentConfig(rotate_deg=15.0, crop_min=0.85, gamma=0.3, noise=0.05),
    crf=CrfConfig(strength=2.0),
    admm=AdmmConfig(mu_crf=2.0, mu_size=2.0, rho=0.3),
    optimiser=OptimiserConfig(batch=4, lr=2e-3, lr_factor=0.3, lr_every=16),
)


def run_demo(out: Path, terminal: Terminal) -> dict[str, Evaluation]:
    """Make the demo in the folder ``out`` and show its results; what an earlier start finished is not made again.

    Returns the evaluation of each method on the held-out volumes.
    """
    phantoms = out / "phantoms"
    if not phantoms.is_dir():
        terminal.say("1. Phantoms: 24 training and 8 held-out volumes")
        with terminal.progress() as progress, make_folder_whole(phantoms) as folder:
            count = progress.counter("drawing", "phantoms")
            write_phantom_dataset(folder, cases=24, test_cases=8, seed=0, progress=count)
    seeds = make_demo_seeds(phantoms, out / "seeds", terminal)
    _train_all(phantoms, seeds, out, terminal)
    terminal.say("4. Held-out volumes")
    evaluations: dict[str, Evaluation] = {}
    with terminal.progress() as progress:
        for method in METHODS:
            progress.wait("predicting", method)
            evaluations[method] = _score(out / method, phantoms, out / f"{method}-predictions")
    terminal.console.print(_compare(evaluations))
    page = out / "report.html"
    page.unlink(missing_ok=True)  # it is made anew of the runs, which stay
    held_out: dict[str, Path] = {str(method): out / method / "held-out.csv" for method in METHODS}
    with terminal.progress() as progress:
        progress.wait("drawing", "the report")
        write_report([out / method for method in METHODS], page, evaluations=held_out)
    return evaluations


def make_demo_seeds(phantoms: Path, out: Path, terminal: Terminal) -> Path:
    """Derive weak label maps from the phantoms' clicks and an atlas of the training masks; return their folder."""
    if out.is_dir():
        return out
    dataset = find_dataset(phantoms)
    training, _ = split_cases(dataset)
    terminal.say("2. Seeds: one click per volume, an atlas around it")
    with terminal.progress() as progress, make_folder_whole(out) as folder:
        seeded = make_seeds(
            dataset,
            training,
            folder,
            label=chosen_label(dataset, CONFIG.label),
            grid=CONFIG.grid,
            clicks=phantoms / "clicks.json",
            prepare_progress=progress.counter("preparing", "volumes"),
            progress=progress.counter("seeding", "volumes"),
        )
    print_seeds(seeded, out, console=terminal.console)
    return out


def _train_all(phantoms: Path, seeds: Path, out: Path, terminal: Terminal) -> None:
    """Train all methods at once and show how far they are."""
    runs = {out / method: replace(CONFIG, method=method) for method in METHODS}
    unfinished = [run.name for run in runs if not is_finished(run, CONFIG.epochs)]
    if not unfinished:
        return
    terminal.say(f"3. Training {' and '.join(unfinished)}: {CONFIG.epochs} epochs each")
    with terminal.progress() as progress:
        fit_many(
            phantoms,
            runs,
            seeds=seeds,
            at_once=len(runs),
            resume=True,
            progress=lambda run, done, message: progress.epoch(run.name, done, CONFIG.epochs, message),
        )


def _score(run: Path, phantoms: Path, predictions: Path) -> Evaluation:
    """Predict the held-out volumes with the mean of the last epochs' weights, and compare them with their masks.

    Single epochs differ much in so short a training; no mask chooses the mean.
    """
    images = sorted((phantoms / "imagesTs").iterdir())
    missing = [image for image in images if not (predictions / image.name).is_file()]
    if missing:
        predict_files(load_model(run, checkpoint="mean"), missing, predictions)
    evaluation = evaluate(predictions, phantoms / "labelsTs", labels=("3",))
    write_evaluation(run / "held-out.csv", evaluation)
    return evaluation


def _compare(evaluations: dict[str, Evaluation]) -> "Table":
    from rich.table import Table

    table = Table("method", title="LV on held-out phantoms, mean ± standard deviation", title_justify="left")
    for column in ("3D Dice", "HD95 mm", "ASD mm", "volume, % of the true"):
        table.add_column(column, justify="right")
    for method, evaluation in evaluations.items():
        ratios = [100 * score.predicted_ml / score.reference_ml for score in evaluation.scores]
        (summary,) = evaluation.summaries()
        table.add_row(
            method,
            f"{summary.dice_mean:.3f} ± {summary.dice_std:.3f}",
            f"{summary.hd95_mm_mean:.1f}",
            f"{summary.asd_mm_mean:.1f}",
            f"{mean(ratios):.0f} ± {pstdev(ratios):.0f}",
        )
    return table
