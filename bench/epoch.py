"""Time epochs of training on real ACDC: what discrete proposals cost on top of plain supervised training.

    DISCOSEG_DATA=DIR python bench/epoch.py                      phases of full and crf+size epochs, and eight at once
    DISCOSEG_DATA=DIR python bench/epoch.py --whole              a whole crf+size training of 250 epochs as well
    python bench/epoch.py --phantoms --epochs 3 --at-once 2      the same on phantoms, e.g. on a CPU

The left ventricle, seeds from one click a volume, ±10 % size bounds, the paper's ENet in batches of 8, 256×256 slices.
An epoch is all that `discoseg train` does between two rows of its metrics.csv, validation and files included. The
first epochs, in which kernels are compiled and steps recorded, are left out; of the others the median counts.
"""

import argparse
import csv
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray

from discoseg.config import AdmmConfig, Config, CrfConfig, GridConfig
from discoseg.data.layouts import find_dataset
from discoseg.data.phantom import write_phantom_dataset
from discoseg.data.splits import split_cases
from discoseg.devices import choose_device
from discoseg.discrete import Foresight
from discoseg.material import Material
from discoseg.presets import PRESETS
from discoseg.proposals import Costs
from discoseg.regions import Region
from discoseg.train import train_on
from discoseg.weak.examples import chosen_label
from discoseg.weak.seeds import make_seeds
from discoseg.workflow import Inputs, gather_inputs
from floors import print_floors, print_steps_at_once

WARM_UP = 5  # epochs: what runs once in each is recorded in the fourth
PHASES = ("network", "predict", "size", "crf", "score", "save")


def configuration(arguments: argparse.Namespace) -> Config:
    """The paper's ENet training of the left ventricle, with the λ, σ and ρ of our own experiments."""
    preset = PRESETS["paper-acdc-lv" if arguments.network == "enet" else "default"]
    return replace(
        preset,
        method="crf+size",
        label="LV",
        size_eps=0.1,
        epochs=WARM_UP + arguments.epochs,
        grid=GridConfig((arguments.side, arguments.side), (0.5, 99.5)),
        network=replace(preset.network, precision=arguments.precision),
        crf=CrfConfig(strength=1.0, sigma=0.05),
        admm=AdmmConfig(),
    )


def gather(config: Config, folder: Path, *, phantoms: bool, seeds: Path | None) -> tuple[Inputs, Inputs]:
    """Return the inputs of a crf+size and of a full training."""
    if phantoms:
        dataset, split = folder / "phantoms", None
        write_phantom_dataset(dataset, cases=24, test_cases=1, seed=0)
    else:
        dataset = Path(os.environ["DISCOSEG_DATA"]) / "acdc"
        split = Path(os.environ["DISCOSEG_DATA"]) / "splits.json"
    found = find_dataset(dataset)
    training, _ = split_cases(found, split=split)
    if seeds is None:
        seeds = folder / "seeds"
        clicks = dataset / "clicks.json" if phantoms else None
        make_seeds(found, training, seeds, label=chosen_label(found, "LV"), grid=config.grid, clicks=clicks)
    full = replace(config, method="full")
    weak_inputs = gather_inputs(dataset, config, seeds=seeds, split=split, validation_fraction=0.2)
    return weak_inputs, gather_inputs(dataset, full, seeds=None, split=split, validation_fraction=0.2)


class Timed:
    """One training, timed: ``epochs_s`` is the wall time of each epoch, ``phases`` the seconds of their parts."""

    def __init__(
        self, material: Material, inputs: Inputs, config: Config, run: Path, *, warm_up: int = WARM_UP
    ) -> None:
        self._warm_up = warm_up
        ends = [time.perf_counter()]

        def progress(done: float, message: str) -> None:
            if done >= len(ends):
                ends.append(time.perf_counter())

        state = train_on(material, config, run, model=inputs.model, progress=progress)
        self.whole_s = time.perf_counter() - ends[0]
        self.epochs_s = np.diff(ends).tolist()
        self.dice = state.history[-1].get("val_dice", float("nan"))
        with (run / "timing.csv").open() as file:
            self.phases = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]

    def median_s(self, phase: str | None = None) -> float:
        """Median over the epochs after the warm-up, of a phase or of the whole epoch."""
        values = self.epochs_s if phase is None else [row.get(phase, 0.0) for row in self.phases]
        return statistics.median(values[self._warm_up :])


def side_by_side(count: int, material: Material, inputs: Inputs, config: Config, folder: Path) -> list[Timed]:
    """Return ``count`` trainings that ran at once, with the random seeds 0, 1, …"""
    done: list[Timed] = []

    def work(index: int) -> None:
        done.append(Timed(material, inputs, replace(config, seed=index), folder / f"beside-{count}-{index}"))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == count
    return done


@contextmanager
def pymaxflow_cuts(material: Material, config: Config) -> Iterator[None]:
    """Put PyMaxflow in the place of our cut: the same boxes, in the same threads, contrast weights kept as ours are."""
    from rivals import Problem, cut_by_pymaxflow, pose

    regions = material.regions(config.crf, honour_seeds=config.admm.honour_seeds)
    spacing_mm = {id(r): e.spacing_mm for r, e in zip(regions, material.training, strict=True)}
    kept: dict[int, Problem] = {}

    def cut(
        region: Region,
        foresight: Foresight | None,
        guess: Future[None] | None,
        costs: Costs,
        mask: NDArray[np.bool_],
        strength: float,
    ) -> None:
        assert region.box is not None
        if id(region) not in kept:
            image = material.training[regions.index(region)].image[:, 0][region.box]
            problem, _ = pose(
                image,
                np.zeros_like(image),
                None,
                spacing_mm=spacing_mm[id(region)],
                neighbours=config.crf.neighbours,
                sigma=config.crf.sigma,
                strength=strength,
            )
            kept[id(region)] = problem
        cost = costs.take().astype(np.float64)
        if region.seeds is not None:
            cost[region.seeds == 0], cost[region.seeds == 1] = 1e6, -1e6
        mask[:] = cut_by_pymaxflow(kept[id(region)]._replace(cost=cost, strength=strength))

    with mock.patch("discoseg.proposals._cut", cut), mock.patch.object(material, "idle_cores", False):
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15, help=f"timed epochs, after {WARM_UP} that are not")
    parser.add_argument("--at-once", type=int, default=8, help="trainings side by side; 1 leaves that out")
    parser.add_argument("--network", choices=("enet", "unet"), default="enet")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--side", type=int, default=256, help="rows and columns of a slice")
    parser.add_argument("--whole", action="store_true", help="time a whole training of 250 epochs")
    parser.add_argument("--rival", action="store_true", help="time epochs with PyMaxflow in the place of our cut")
    parser.add_argument("--seeds", type=Path, help="weak label maps by `discoseg seeds`; made anew if not given")
    parser.add_argument("--phantoms", action="store_true", help="phantoms instead of ACDC")
    arguments = parser.parse_args()
    config = configuration(arguments)
    device = choose_device("auto")
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        weak, full = gather(config, folder, phantoms=arguments.phantoms, seeds=arguments.seeds)
        with Material(full.training, full.validation, device) as material:
            plain = Timed(material, full, replace(config, method="full"), folder / "full")
        with Material(weak.training, weak.validation, device) as material:
            print(
                f"{name}; {config.network.name} {config.network.precision}, {len(material.training)} volumes, "
                f"{len(material.slices)} training and {len(material.held_out or [])} validation slices",
                flush=True,
            )
            ours = Timed(material, weak, config, folder / "crf+size")
            size = Timed(material, weak, replace(config, method="size"), folder / "size")
            print_phases({"full": plain, "size": size, "crf+size": ours})
            print(f"one crf+size epoch is {ours.median_s() / plain.median_s():.3f} × one full epoch", flush=True)
            if device.type == "cuda":
                print_floors(material, config)
            if arguments.rival:
                with pymaxflow_cuts(material, config):
                    rival = Timed(material, weak, replace(config, epochs=2), folder / "pymaxflow", warm_up=1)
                print(
                    f"with PyMaxflow's cuts: {1e3 * rival.median_s():.0f} ms, "
                    f"{rival.median_s() / plain.median_s():.2f} × full"
                )
            if arguments.at_once > 1:
                if device.type == "cuda":
                    print_steps_at_once(material, config, arguments.at_once)
                material.idle_cores = False
                beside = side_by_side(arguments.at_once, material, weak, config, folder)
                material.idle_cores = device.type == "cuda"
                seconds = statistics.mean(timed.median_s() for timed in beside) / len(beside)
                print_phases({f"1 of {len(beside)}": beside[0], "another": beside[-1]})
                print(
                    f"{arguments.at_once} trainings at once: an epoch of one every {1e3 * seconds:.0f} ms, "
                    f"{ours.median_s() / seconds:.2f} × the throughput of one after the other",
                    flush=True,
                )
            if arguments.whole:
                whole = Timed(material, weak, replace(config, epochs=250), folder / "whole")
                print(f"250 epochs of crf+size: {whole.whole_s:.0f} s, validation Dice {whole.dice:.3f}")


def print_phases(trainings: dict[str, Timed]) -> None:
    """Print the milliseconds of each phase of each training."""
    print("phase, ms   " + "".join(f"{method:>10}" for method in trainings))
    for phase in (*PHASES, None):
        cells = (f"{1e3 * timed.median_s(phase):10.1f}" for timed in trainings.values())
        print(f"{phase or 'epoch':12}" + "".join(cells))


if __name__ == "__main__":
    main()
