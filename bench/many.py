"""Ten thousand small volumes on one machine: what a volume costs must not grow with their number, nor memory beyond it.

    python bench/many.py                        # 100, 1,000 and 10,000 volumes; a few minutes, half a GB of disk
    python bench/many.py --counts 100 1000 --memory-gib 0.05

Every number of volumes is trained in a process of its own, with the budget of memory given: slices, proposals and
weights beyond it lie in files. Measured are the processor's seconds per volume of each part (the phases of an epoch: by
the clock), the peak of resident memory (anonymous, and with mapped files, which the system drops when it needs the
room), and the most open files and mappings. Linux only.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np

from discoseg.config import AugmentConfig, Config, GridConfig, NetworkConfig, OptimiserConfig

SHAPE = (32, 32, 4)  # (x, y, z) of a volume
CONFIG = Config(
    method="crf+size",
    epochs=2,
    size_eps=0.1,
    grid=GridConfig(shape=(32, 32)),
    network=NetworkConfig(name="unet", width=2, depth=2),
    optimiser=OptimiserConfig(batch=64),
    augment=AugmentConfig(rotate_deg=15.0),
)


def write_volumes(folder: Path, count: int) -> None:
    """Write ``count`` noisy balls, their masks, and seeds in their middle and far outside (2: not annotated)."""
    for part in ("images", "labels", "seeds"):
        (folder / part).mkdir(parents=True)
    x, y, z = np.meshgrid(*(np.arange(n, dtype=np.float32) for n in SHAPE), indexing="ij")
    affine = np.diag([-2.0, -2.0, 8.0, 1.0])
    rng = np.random.default_rng(0)
    for number in range(count):
        centre, radius = rng.uniform(11, 21, 2), rng.uniform(5, 9)
        distance = np.hypot(x - centre[0], y - centre[1]) + 2 * np.abs(z - 1.5)
        mask = distance < radius
        image = (400 * mask + rng.normal(200, 60, SHAPE)).astype(np.int16)
        seeds = np.where(distance < radius / 2, 1, np.where(distance > radius + 4, 0, 2)).astype(np.uint8)
        for part, array in (("images", image), ("labels", mask.astype(np.uint8)), ("seeds", seeds)):
            nib.save(nib.Nifti1Image(array, affine), folder / part / f"ball_{number:06d}.nii")


def main() -> None:
    """Measure all numbers of volumes, or with ``--train`` one of them, in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--memory-gib", type=float, default=0.1)
    parser.add_argument("--train", type=Path, help="a folder that was written before: measure this one alone")
    options = parser.parse_args()
    if options.train is not None:
        print(json.dumps(measure(options.train, options.memory_gib)))
        return
    found = []
    for count in options.counts:
        with tempfile.TemporaryDirectory() as folder:
            write_volumes(Path(folder) / "data", count)
            command = [sys.executable, __file__, "--train", folder, "--memory-gib", str(options.memory_gib)]
            environment = os.environ | {"DISCOSEG_CACHE": f"{folder}/cache", "OMP_WAIT_POLICY": "passive"}
            result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
            found.append({"volumes": count, **json.loads(result.stdout)})
            print(found[-1], file=sys.stderr, flush=True)
    print_table(found)


def measure(folder: Path, memory_gib: float) -> dict[str, Any]:
    """Find, check, prepare twice and train; return seconds of each, and the most that was in use."""
    from discoseg.data.check import check_dataset
    from discoseg.data.layouts import find_dataset
    from discoseg.run import RunFolder
    from discoseg.workflow import fit, gather_inputs

    data, seconds = folder / "data", {}
    sources: dict[str, Any] = {"seeds": data / "seeds", "split": None, "validation_fraction": 0.1}
    peaks = Peaks()
    with peaks:
        start = time.process_time()

        def lap(name: str) -> None:
            nonlocal start
            seconds[name] = time.process_time() - start
            start = time.process_time()

        dataset = find_dataset(data)
        lap("find")
        check_dataset(dataset, weak=data / "seeds")
        lap("check")
        for name in ("prepare", "prepare again"):
            gather_inputs(data, CONFIG, **sources)
            lap(name)
        run = folder / "run"
        epochs: list[float] = []

        def progress(done: float, message: str) -> None:
            if done == int(done):
                epochs.append(time.process_time())

        fit(data, run, CONFIG, **sources, device="cpu", memory_gib=memory_gib, progress=progress)
        lap("fit")
        seconds["an epoch"] = epochs[-1] - epochs[-2]
        with (run / "timing.csv").open(newline="") as file:
            last = list(csv.DictReader(file))[-1]  # the first epoch waits for compilers
        seconds |= {f"epoch by the clock: {name}": float(value) for name, value in last.items() if name != "epoch"}
        from discoseg.report import write_report

        start = time.process_time()
        write_report([run], folder / "report.html")
        lap("report")
    files = {path.name: path.stat().st_size for path in (run, run / "checkpoints") for path in path.iterdir()}
    latest = RunFolder(run).latest.name
    return {
        "seconds": seconds,
        "peaks": peaks.most,
        "bytes": {name: files.get(name, 0) for name in ("run.json", "next.csv", "cases.csv", "contours.npz", latest)}
        | {"report.html": (folder / "report.html").stat().st_size},
    }


class Peaks:
    """The most memory (MiB), open files and mappings of this process while the context lasts."""

    def __init__(self) -> None:
        self.most = {"anonymous MiB": 0, "resident MiB": 0, "open files": 0, "mappings": 0, "threads": 0}
        self._stop = threading.Event()

    def _look(self) -> None:
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
        now = {
            "anonymous MiB": int(status["RssAnon"].split()[0]) // 1024,
            "resident MiB": int(status["VmRSS"].split()[0]) // 1024,
            "threads": int(status["Threads"]),
            "open files": len(os.listdir("/proc/self/fd")),
        }
        for name, value in now.items():
            self.most[name] = max(self.most[name], value)

    def _watch(self) -> None:
        while not self._stop.wait(0.2):
            self._look()
            with open("/proc/self/maps", "rb") as file:
                self.most["mappings"] = max(self.most["mappings"], sum(1 for _ in file))

    def __enter__(self) -> "Peaks":
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def print_table(found: list[dict[str, Any]]) -> None:
    """Print milliseconds per volume of each part, by number of volumes, and what the last is of the first but one."""
    print("| ms per volume | " + " | ".join(f"{each['volumes']:,}" for each in found) + " | last / before |")
    print("|---|" + "---|" * (len(found) + 1))
    for name in found[0]["seconds"]:
        row = [1000 * each["seconds"][name] / each["volumes"] for each in found]
        ratio = f"{row[-1] / row[-2]:.2f}" if len(row) > 1 and row[-2] else "–"
        print(f"| {name} | " + " | ".join(f"{value:.3g}" for value in row) + f" | {ratio} |")
    for part in ("peaks", "bytes"):
        for name in found[0][part]:
            print(f"| {name} | " + " | ".join(f"{each[part][name]:,}" for each in found) + " | |")


if __name__ == "__main__":
    main()
