"""One process and several on the same phantoms: Dice, memory, and what crosses the network.

    python bench/ranks.py --seeds 3 --out OUT
    python bench/ranks.py --seeds 1 --cases 24 --epochs 1 --shape 256 --width 2 --out OUT    # memory

Each training is a command of its own: `discoseg train`, or torchrun on this machine. Dice on phantoms that validate is
the mean of the last three epochs; memory is the largest that a process had; traffic is what the loopback device
received, of other programs too, unless this runs in a network of its own (`unshare -n`, and the device up).
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from discoseg.data.phantom import write_phantom_dataset

SETTINGS = {
    "label": "LV",
    "size-eps": "0.1",
    "grid.clip-percent": "0.5 99.5",
    "network.name": "unet",
    "augment.rotate-deg": "15",
    "augment.crop-min": "0.85",
    "augment.gamma": "0.3",
    "augment.noise": "0.05",
    "crf.strength": "2",
    "admm.mu-crf": "2",
    "admm.mu-size": "2",
    "admm.rho": "0.3",
    "optimiser.batch": "4",
    "optimiser.lr": "5e-3",
    "device": "cpu",
}
# Notes the largest memory and the shape of what a rank holds when it ends.
PROBE = """
import json, os, sys
from discoseg import material
from discoseg.cli import main
stacked = []
stack = material.stack_slices
def noting(*arguments):
    stacked.append(stack(*arguments))
    return stacked[-1]
material.stack_slices = noting
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
try:
    main(sys.argv[2:])
finally:
    held = sum(t.nbytes for s in stacked for t in (s.image, s.seeds, s.truth)) / 2**20
    rank = os.environ.get("RANK", "0")
    with open(f"{sys.argv[1]}_{rank}.json", "w") as file:
        json.dump({"peak_mib": peak(), "slices_mib": held}, file)
"""


def train(ranks: int, probe: Path, dataset: Path, seeds: Path, out: Path, *more: str) -> dict[str, float]:
    """Train with this many processes; return Dice, seconds, memory and traffic."""
    launcher = [sys.executable]
    if ranks > 1:
        launcher += ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    notes = out.with_name(f"{out.name}_memory")
    command = [
        *launcher,
        str(probe),
        str(notes),
        "train",
        str(dataset),
        "--seeds",
        str(seeds),
        "--no-live-report",
        "--quiet",
    ]
    for name, values in SETTINGS.items():
        command += [f"--{name}", *values.split()]
    before, start = _loopback_bytes(), time.monotonic()
    subprocess.run([*command, *more, "--out", str(out)], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    seconds, carried = time.monotonic() - start, _loopback_bytes() - before
    with (out / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    memory = [json.loads(notes.with_name(f"{notes.name}_{rank}.json").read_text()) for rank in range(ranks)]
    return {
        "dice": float(np.mean([float(row["val_dice"]) for row in rows[-3:]])),
        "train_dice": float(rows[-1]["train_dice"]),
        "seconds": seconds,
        "peak_mib": max(rank["peak_mib"] for rank in memory),
        "slices_mib": max(rank["slices_mib"] for rank in memory),
        "carried_mib": carried / 2**20,
    }


def _loopback_bytes() -> int:
    """Return what the loopback device has received so far."""
    lines = Path("/proc/net/dev").read_text(encoding="utf-8").splitlines()
    return next(int(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith("lo:"))


def main() -> None:
    """Train with each number of ranks and seed; print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cases", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--shape", type=int, default=32, help="side of the grid, in pixels")
    parser.add_argument("--width", type=int, default=8, help="of the U-Net")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    dataset, seeds, probe = options.out / "phantoms", options.out / "seeds", options.out / "probe.py"
    write_phantom_dataset(dataset, cases=options.cases, test_cases=1, seed=0)
    probe.write_text(PROBE, encoding="utf-8")
    clicks = ["--clicks", str(dataset / "clicks.json"), "--label", "LV", "--quiet", "--out", str(seeds)]
    subprocess.run([sys.executable, "-m", "discoseg", "seeds", str(dataset), *clicks], check=True)
    print("| ranks | seed | val Dice | train Dice | s | peak MiB of a rank | its slices MiB | loopback MiB |")
    print("|---|---|---|---|---|---|---|---|")
    for seed in range(options.seeds):
        for ranks in options.ranks:
            out = options.out / f"{ranks}_{seed}"
            more = ["--epochs", options.epochs, "--seed", seed, "--network.width", options.width]
            more += ["--grid.shape", options.shape, options.shape]
            found = train(ranks, probe, dataset, seeds, out, *map(str, more))
            print(
                f"| {ranks} | {seed} | {found['dice']:.3f} | {found['train_dice']:.3f} | {found['seconds']:.0f} | "
                f"{found['peak_mib']:.0f} | {found['slices_mib']:.1f} | {found['carried_mib']:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
