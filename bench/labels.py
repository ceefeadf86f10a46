"""Time the proposals of several structures on states of a real training: α-expansion and assignment by size.

    DISCOSEG_DATA=DIR python bench/labels.py                          train (minutes), unless that was done before
    DISCOSEG_DATA=DIR PYTHONPATH=OTHER/src python bench/labels.py     the same states by another version

RV, MYO and LV of six ACDC volumes with expert scribbles (DIR/acdc, DIR/acdc_scribbles). A small U-Net learns too little
from six volumes' scribbles to be like one that has seen 160, so it is first trained with the masks. Then proposals are
made as in any training, and their costs are kept after 1, 4 and 8 epochs, in the package's cache folder. Processor time
of one thread, best of --repeats; the checksum is that of all labels, so that versions can be compared.
"""

import argparse
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from discoseg.config import AdmmConfig, Config, CrfConfig, GridConfig, NetworkConfig, OptimiserConfig
from discoseg.data.layouts import find_dataset
from discoseg.data.prepare import Grid, common_orientation, default_cache, prepare_cases
from discoseg.labelling import Solve, assignment, expansion, open_limits
from discoseg.presets import PRESETS
from discoseg.regions import Region, open_regions
from discoseg.start import start_state
from discoseg.state import State
from discoseg.train import train
from discoseg.weak.examples import Example, chosen_labels, training_examples

STAGES = (1, 4, 8)  # finished epochs with proposals or, the first, without
PATIENTS = ("patient001", "patient023", "patient050")  # both frames of each


def make_config(side: int) -> Config:
    return replace(
        PRESETS["default"],
        label="RV,MYO,LV",
        size_eps=0.1,
        epochs=STAGES[-1] + 1,
        grid=GridConfig(shape=(side, side), clip_percent=(0.5, 99.5)),
        network=NetworkConfig(name="unet", width=8, depth=4),
        optimiser=OptimiserConfig(batch=4, lr=2e-3),
        crf=CrfConfig(strength=1.0, sigma=0.05, neighbours=26),
        admm=AdmmConfig(warm_up=1),
    )


def read_examples(data: Path, config: Config) -> tuple[list[Example], list[Example]]:
    """Return the volumes with scribbles, and with masks."""
    found = find_dataset(data / "acdc")
    cases = [case for case in found.cases if case.patient in PATIENTS]
    grid = Grid(config.grid.shape, config.grid.clip_percent, common_orientation(found.cases))
    prepared, structures = prepare_cases(cases, grid), chosen_labels(found, config.label)
    scribbles = data / "acdc_scribbles"
    weak = training_examples(prepared, found, config, structures=structures, grid=grid, weak=scribbles)
    full = replace(config, method="full", size_eps=None)
    return weak, training_examples(prepared, found, full, structures=structures, grid=grid, weak=None)


def train_states(folder: Path, weak: list[Example], full: list[Example], config: Config, warm_up: int) -> None:
    """Write the costs (1 + K, z, y, x) of each volume, prior and stage into the folder."""
    unfinished, run = folder.with_name(f"{folder.name}-unfinished"), folder.with_name(f"{folder.name}-run")
    for path in (unfinished, run):
        shutil.rmtree(path, ignore_errors=True)
    unfinished.mkdir(parents=True)
    learn = replace(config, method="full", size_eps=None, epochs=warm_up, admm=AdmmConfig())
    weights = train(full, [], learn, run, model={}, device="cpu").network.state_dict()
    shutil.rmtree(run)

    def start_warm(*arguments: Any) -> State:
        state = start_state(*arguments)
        state.network.load_state_dict(weights)
        return state

    def recorded(name: str, make: Callable[..., Solve]) -> Callable[..., Solve]:
        def made(*arguments: Any) -> Solve:
            solve, calls = make(*arguments), [0] * len(weak)

            def solve_and_keep(index: int, region: Region, costs: NDArray[np.float32], mu: float) -> NDArray[np.int8]:
                calls[index] += 1
                if calls[index] in STAGES:
                    np.save(unfinished / f"{name}-{index}-{calls[index]}.npy", costs)
                return solve(index, region, costs, mu)

            return solve_and_keep

        return made

    with (
        patch("discoseg.train.start_state", start_warm),
        patch("discoseg.proposers.expansion", recorded("crf", expansion)),
        patch("discoseg.proposers.assignment", recorded("size", assignment)),
    ):
        train(weak, [], config, run, model={}, device="cpu")
    shutil.rmtree(run)
    unfinished.rename(folder)


def time_stage(solve: Solve, regions: Sequence[Region], files: Sequence[Path], repeats: int) -> tuple[float, str]:
    """Return the mean seconds of a volume and the checksum of all labels."""
    seconds, checksum = 0.0, hashlib.sha256()
    for index, (region, file) in enumerate(zip(regions, files, strict=True)):
        costs, best = np.load(file), np.inf
        for _ in range(1 + repeats):  # the first builds weights, or compiles
            begun = time.thread_time()
            labels = solve(index, region, costs, 1.0)
            best = min(best, time.thread_time() - begun)
        seconds += best / len(files)
        checksum.update(labels.tobytes())
    return seconds, checksum.hexdigest()[:12]


def main() -> None:
    parser = argparse.ArgumentParser(description="time the proposals of several structures")
    parser.add_argument("--repeats", type=int, default=3, help="runs of which the best counts")
    parser.add_argument("--side", type=int, default=256, help="of a slice, in pixels")
    parser.add_argument("--warm-up", type=int, default=24, help="epochs with masks")
    arguments = parser.parse_args()
    data = Path(os.environ["DISCOSEG_DATA"])
    config = make_config(arguments.side)
    weak, full = read_examples(data, config)
    folder = default_cache() / "bench" / f"labels-{arguments.side}-{arguments.warm_up}"
    if not folder.is_dir():
        train_states(folder, weak, full, config, arguments.warm_up)
    regions = open_regions(weak, config.crf, honour_seeds=True)
    limits = [open_limits(example, config.admm) for example in weak]
    solvers = {"crf": expansion(config.crf.strength), "size": assignment(limits)}
    print("| epochs | α-expansion ms | assignment ms | checksums |")
    print("|---|---|---|---|")
    for stage in STAGES:
        files = {name: [folder / f"{name}-{index}-{stage}.npy" for index in range(len(weak))] for name in solvers}
        rows = [time_stage(solve, regions, files[name], arguments.repeats) for name, solve in solvers.items()]
        print(f"| {stage} | {1e3 * rows[0][0]:.0f} | {1e3 * rows[1][0]:.1f} | {rows[0][1]} {rows[1][1]} |", flush=True)


if __name__ == "__main__":
    main()
