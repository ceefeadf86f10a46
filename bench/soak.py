"""Train for many epochs on two tiny phantoms and print what a leak would let grow: memory, open files, threads.

    python bench/soak.py OUT --epochs 2000

Beside them stand what does grow with the history of epochs: metrics.csv, the checkpoint, and the seconds that an epoch
takes to save. "Free" is what of the memory malloc holds for what comes next (glibc 2.33 or later).
"""

import argparse
import csv
import ctypes
import os
import threading
from collections import deque
from dataclasses import replace
from pathlib import Path
from statistics import mean

import torch

from discoseg import checkpoints
from discoseg.config import AugmentConfig, Config, GridConfig, NetworkConfig, OptimiserConfig
from discoseg.data.layouts import find_dataset
from discoseg.data.phantom import write_phantom_dataset
from discoseg.weak.seeds import make_seeds
from discoseg.workflow import fit

CONFIG = Config(
    label="LV",
    method="crf+size",
    size_eps=0.1,
    grid=GridConfig(shape=(24, 24)),
    network=NetworkConfig(name="unet", width=2, depth=1),
    optimiser=OptimiserConfig(batch=16),
    augment=AugmentConfig(rotate_deg=10, noise=0.02),
)
_ROWS = 20
_CHECKPOINT_S = 1.0  # often, as in a training whose epochs are long


def main() -> None:
    """Train, and print a row for every so many epochs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--epochs", type=int, default=2000)
    arguments = parser.parse_args()
    data, run = arguments.out / "phantoms", arguments.out / "run"
    write_phantom_dataset(data, cases=2, test_cases=0, seed=0, in_plane=(24, 24))
    seeds = arguments.out / "seeds"
    _make_seeds(data, seeds)
    every = max(1, arguments.epochs // _ROWS)
    print("epoch   RSS MiB   free   files   threads   metrics.csv KiB   checkpoint KiB   s/epoch   of which saving")

    def progress(done: float, message: str) -> None:
        if done == int(done) and (done % every == 0 or done == 10):
            _print_row(run, int(done), every)

    torch.set_num_threads(1)
    checkpoints.EVERY_S, checkpoints.MOST_SHARE = _CHECKPOINT_S, 1.0
    config = replace(CONFIG, epochs=arguments.epochs)
    fit(data, run, config, seeds=seeds, validation_fraction=0.0, device="cpu", progress=progress)


def _make_seeds(data: Path, out: Path) -> None:
    dataset = find_dataset(data)
    out.mkdir(parents=True)
    make_seeds(dataset, dataset.cases, out, label=3, grid=CONFIG.grid, clicks=data / "clicks.json")


def _print_row(run: Path, epoch: int, every: int) -> None:
    files = len(os.listdir("/proc/self/fd"))
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    with (run / "timing.csv").open() as file:
        rows = deque(csv.DictReader(file), maxlen=every)  # all of them at a time would be a leak of our own
    save = mean(float(row["save"]) for row in rows)
    seconds = mean(sum(float(value) for name, value in row.items() if name != "epoch") for row in rows)
    metrics, latest = (run / name for name in ("metrics.csv", "checkpoints/latest.safetensors"))
    print(
        f"{epoch:5d} {int(status['VmRSS'].split()[0]) / 1024:9.1f} {_free_mib():6.1f} {files:7d} "
        f"{threading.active_count():4d} of {int(status['Threads']):2d} {metrics.stat().st_size / 1024:17.0f} "
        f"{latest.stat().st_size / 1024:16.0f} {seconds:9.3f} {save:17.3f}",
        flush=True,
    )


class _Mallinfo2(ctypes.Structure):
    _names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    _fields_ = tuple((name, ctypes.c_size_t) for name in _names)


def _free_mib() -> float:
    """Return how much of malloc's memory nobody uses, in MiB."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo2
    return float(mallinfo2().fordblks / 2**20)


if __name__ == "__main__":
    main()
