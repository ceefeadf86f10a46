"""Does it help to annotate in the order of `discoseg next`? Full masks for its first cases against random ones.

    python bench/next.py                                      phantoms, 32×32
    DISCOSEG_DATA=DIR python bench/next.py --acdc             the left ventricle of some patients of ACDC

For each repetition: train on cases that have a click each (a ball around it, and what is far away), rank them by every
score, give the first k complete masks, train anew from the same weights for as many epochs, and compare with what masks
of k random cases bring, and with none. Two things are compared: the 3D Dice of held-out volumes, a mean over the last
epochs, and that of the dataset itself, where a volume with a mask counts 1. Each repetition has other volumes and
weights.
"""

import argparse
import csv
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from discoseg.config import AdmmConfig, AugmentConfig, Config, CrfConfig, GridConfig, NetworkConfig
from discoseg.config import OptimiserConfig as Optimiser
from discoseg.data.layouts import find_dataset
from discoseg.data.phantom import LABELS, make_phantom
from discoseg.data.prepare import Grid, common_orientation, image_to_grid, labels_to_grid, prepare_cases
from discoseg.material import Material
from discoseg.presets import PRESETS
from discoseg.train import train_on
from discoseg.weak.atlas import centroid
from discoseg.weak.bounds import bounds_from_eps
from discoseg.weak.examples import Example

NEAR_MM, FAR_MM = 10.0, 50.0  # a click means foreground this near, and background beyond
LAST_EPOCHS = 3  # whose Dice is averaged

Ranked = dict[str, float]
SCORES: dict[str, Callable[[Ranked], float]] = {
    "primal": lambda row: (row["primal_crf"] + row["primal_size"]) / 2,
    "sum of squares / upper size bound": lambda row: (
        (row["primal_crf"] ** 2 + row["primal_size"] ** 2) * row["open_vox"] / row["high_vox"]
    ),
    "unstable": lambda row: row["unstable_crf"] + row["unstable_size"],
    "entropy": lambda row: row["entropy"],
    "lowest Dice (needs the masks)": lambda row: -row["dice"],
}


def main() -> None:
    """Print the gain of each score and of random choices over no masks at all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--acdc", action="store_true", help="the LV of ACDC in DISCOSEG_DATA, not phantoms")
    parser.add_argument("--side", type=int, default=32, help="rows and columns of a slice")
    parser.add_argument("--cases", type=int, default=12, help="training volumes")
    parser.add_argument("--held-out", type=int, default=10, help="volumes that are scored")
    parser.add_argument("--masks", type=int, default=3, help="k, the volumes that get complete masks")
    parser.add_argument("--draws", type=int, default=3, help="random choices of k volumes in each repetition")
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="number of the first repetition")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--width", type=int, default=6, help="of the U-Net")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(arguments.device == "cpu")
    device = torch.device(arguments.device)
    config = configuration(arguments)
    scores: dict[str, list[Score]] = {}
    for number in range(arguments.first, arguments.first + arguments.repetitions):
        start = time.perf_counter()
        read = read_acdc if arguments.acdc else draw_phantoms
        examples = read(config, number, arguments.cases + arguments.held_out)
        seeded = [with_click(example) for example in examples[: arguments.cases]]
        setting = Setting(seeded, examples[arguments.cases :], replace(config, seed=number), arguments.masks, device)
        for name, value in compare(setting, arguments.draws).items():
            scores.setdefault(name, []).append(value)
        line = "  ".join(f"{name} {of[-1].held_out:.3f} {of[-1].dataset:.3f}" for name, of in scores.items())
        print(f"{number}: {line}  ({time.perf_counter() - start:.0f} s)", flush=True)
    print_gains("held-out 3D Dice", {name: [one.held_out for one in of] for name, of in scores.items()})
    print_gains("3D Dice of the dataset", {name: [one.dataset for one in of] for name, of in scores.items()})


class Score(NamedTuple):
    """Mean 3D Dice of the held-out volumes, and of the training volumes, of which those with masks count 1."""

    held_out: float
    dataset: float


class Setting(NamedTuple):
    """One repetition: cases with clicks, of which some get masks, held-out ones, and how to train."""

    seeded: list[Example]
    held_out: list[Example]
    config: Config
    masks: int
    device: torch.device


def compare(setting: Setting, draws: int) -> dict[str, Score]:
    """Return what no masks come to, masks of random cases (a mean of ``draws``), and masks by each score."""
    seeded, held_out, config, masks, device = setting
    rows, none = run(seeded, held_out, config, device)
    known: dict[frozenset[int], Score] = {}

    def dice_with(order: Sequence[int]) -> Score:
        chosen = frozenset(order[:masks])
        if chosen not in known:
            mixed = [with_mask(e) if i in chosen else e for i, e in enumerate(seeded)]
            after, dice = run(mixed, held_out, config, device)
            of_all = [1.0 if index in chosen else row["dice"] for index, row in enumerate(after)]
            known[chosen] = Score(dice, float(np.mean(of_all)))
        return known[chosen]

    rng = np.random.default_rng(config.seed)
    random = [dice_with(rng.permutation(len(rows)).tolist()) for _ in range(draws)]
    without = Score(none, float(np.mean([row["dice"] for row in rows])))
    dice = {"no case": without, "random cases": Score(*np.mean(random, axis=0).tolist())}
    for name, score in SCORES.items():
        dice[name] = dice_with(sorted(range(len(rows)), key=lambda index: -score(rows[index])))
    return dice


def configuration(arguments: argparse.Namespace) -> Config:
    """The demo's training, smaller and shorter, with a λ and weight at which clicks alone seldom collapse."""
    return replace(
        PRESETS["default"],
        method="crf+size",
        foreground_weight=5.0,
        epochs=arguments.epochs,
        grid=GridConfig((arguments.side, arguments.side), (0.5, 99.5)),
        network=NetworkConfig(name="unet", width=arguments.width),
        augment=AugmentConfig(rotate_deg=15.0, crop_min=0.85, gamma=0.3, noise=0.05),
        crf=CrfConfig(strength=0.5),
        admm=AdmmConfig(mu_crf=2.0, mu_size=2.0, rho=0.3),
        optimiser=Optimiser(batch=4, lr=4e-3, lr_factor=0.3, lr_every=max(1, 2 * arguments.epochs // 3)),
    )


def draw_phantoms(config: Config, number: int, count: int) -> list[Example]:
    """Return phantoms with their complete masks as seeds, others for each ``number``."""
    grid = Grid(config.grid.shape, config.grid.clip_percent, "LPS")
    examples = []
    for index in range(count):
        phantom = make_phantom(int(np.random.SeedSequence([1601, number, index]).generate_state(1)[0]))
        truth = (labels_to_grid(phantom.label, grid) == LABELS["LV"]).astype(np.int8)
        z, y, x = phantom.image.spacing_mm
        spacing_mm = (z, y * phantom.image.shape[1] / grid.shape[0], x * phantom.image.shape[2] / grid.shape[1])
        image = image_to_grid([phantom.image], grid, name="phantom")
        bounds = (bounds_from_eps(int(truth.sum()), 0.1),)
        examples.append(Example(f"phantom{index:02d}", image, truth, truth, spacing_mm, bounds))
    return examples


def read_acdc(config: Config, number: int, count: int) -> list[Example]:
    """Return both phases of patients drawn anew for each ``number``, so that an even number are of whole patients."""
    dataset = find_dataset(Path(os.environ["DISCOSEG_DATA"]) / "acdc")
    patients = np.random.default_rng(number).permutation(sorted({case.patient for case in dataset.cases}))
    cases = [case for patient in patients for case in dataset.cases if case.patient == patient][:count]
    grid = Grid(config.grid.shape, config.grid.clip_percent, common_orientation(dataset.cases))
    examples = []
    for item in prepare_cases(cases, grid):
        assert item.label is not None
        truth = (item.label == dataset.label_value("LV")).astype(np.int8)
        bounds = (bounds_from_eps(int(truth.sum()), 0.1),)
        examples.append(Example(item.case.name, np.array(item.image), truth, truth, item.spacing_mm, bounds))
    return examples


def with_click(example: Example) -> Example:
    """Return the example with seeds from a click at the structure's centre: a ball around it, and what is far away."""
    assert example.truth is not None
    away_mm = [
        spacing * (np.arange(size) - middle)
        for spacing, size, middle in zip(
            example.spacing_mm, example.truth.shape, centroid(example.truth == 1), strict=True
        )
    ]
    z, y, x = np.meshgrid(*away_mm, indexing="ij")
    seeds = np.full(example.truth.shape, -1, np.int8)
    seeds[np.hypot(y, x) > FAR_MM] = 0
    seeds[z**2 + y**2 + x**2 < NEAR_MM**2] = 1
    return replace(example, seeds=seeds)


def with_mask(example: Example) -> Example:
    """Return the example with its complete mask as seeds."""
    assert example.truth is not None
    return replace(example, seeds=example.truth)


def run(
    training: Sequence[Example], held_out: Sequence[Example], config: Config, device: torch.device
) -> tuple[list[Ranked], float]:
    """Train; return what is known of each training case, and the mean Dice of the held-out ones, last epochs."""
    with tempfile.TemporaryDirectory() as folder, Material(training, held_out, device) as material:
        out = Path(folder) / "run"
        state = train_on(material, config, out, model={})
        with (out / "next.csv").open() as file, (out / "cases.csv").open() as scored:
            dice = {row["case"]: row for row in csv.DictReader(scored) if row["split"] == "training"}
            named = {row["case"]: row | dice[row["case"]] for row in csv.DictReader(file)}
    rows = [{k: float(v) for k, v in named[e.name].items() if k not in ("case", "split")} for e in training]
    return rows, float(np.mean([row["val_dice"] for row in state.history[-LAST_EPOCHS:]]))


def print_gains(what: str, dice: dict[str, list[float]]) -> None:
    """Print a table: mean ± standard deviation of the Dice and of the gain over random, and how often it is one."""
    print(f"\n| full masks go to | {what} | against random | better in |\n|---|---|---|---|")
    for name, values in dice.items():
        gain = np.array(values) - np.array(dice["random cases"])
        print(
            f"| {name} | {np.mean(values):.3f} ± {np.std(values):.3f} | {gain.mean():+.3f} ± {gain.std():.3f} | "
            f"{int((gain > 0).sum())} of {len(gain)} |"
        )


if __name__ == "__main__":
    main()
