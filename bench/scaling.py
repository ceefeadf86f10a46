"""How the cut scales: two threads against one, and time against the number of voxels."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from discoseg.discrete import PottsGrid
from instances import NEIGHBOURS, Instance, best_time
from states import Volume


def measure_threads(volumes: Sequence[Volume], *, rounds: int = 5) -> None:
    """Print wall time of many cuts on one thread and on two, as a training makes them: one volume a task."""
    instances = [
        Instance(volume, stage, 26, 0.05, 1.0)
        for volume in volumes
        if volume.seeds is None
        for stage in ("middle", "late")
    ]
    grids = [instance.grid() for instance in instances]

    def cut(number: int) -> None:
        grids[number].cut(instances[number].unary, strength=1.0)

    tasks = sorted(range(len(instances)), key=lambda number: -_seconds(partial(cut, number)))  # the longest first
    seconds = {}
    for threads in (1, 2):
        with ThreadPoolExecutor(threads) as pool:
            seconds[threads] = min(_seconds(lambda: list(pool.map(cut, tasks))) for _ in range(rounds))
    print(
        f"\nTwo threads: {len(tasks)} full volumes in {seconds[1]:.2f} s on one, {seconds[2]:.2f} s on two:"
        f" {seconds[1] / seconds[2]:.2f}× (bar 1.8×)"
    )


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure_sizes(volumes: Sequence[Volume], largest: float) -> None:
    """Print the time of a cut against the number of voxels, of one state stretched or shrunk along all axes.

    26 neighbours stop at a tenth of the largest: they take four times the memory.
    """
    volume = next(volume for volume in volumes if volume.seeds is None)
    print("\n| neighbours | " + " | ".join(f"{n:.0e}" for n in _sizes(largest)) + " | exponent |")
    print("|---|" + "---|" * (len(_sizes(largest)) + 1))
    for neighbours in NEIGHBOURS:
        voxels, seconds = [], []
        for size in _sizes(largest if neighbours == 6 else largest / 10):
            image, unary, spacing_mm = _resized(volume, size)
            grid = PottsGrid(image, spacing_mm=spacing_mm, sigma=0.05, neighbours=neighbours)
            grid.cut(unary, strength=1.0)  # builds the weights
            seconds.append(best_time(partial(grid.cut, unary, strength=1.0), 3)[0])
            voxels.append(image.size)
        exponent = np.polyfit(np.log(voxels), np.log(seconds), 1)[0]
        cells = [f"{s:.3g} s" for s in seconds] + ["–"] * (len(_sizes(largest)) - len(seconds))
        print(f"| {neighbours} | " + " | ".join(cells) + f" | {exponent:.2f} |", flush=True)


def _sizes(largest: float) -> list[float]:
    return [10.0**e for e in range(4, 9) if 10.0**e <= largest]


def _resized(volume: Volume, size: float) -> tuple[NDArray[np.float32], NDArray[np.float32], tuple[float, ...]]:
    factor = (size / volume.image.size) ** (1 / 3)
    image, unary = (
        ndimage.zoom(array, factor, order=1).astype(np.float32) for array in (volume.image, volume.unaries["late"])
    )
    return image, unary, tuple(s / factor for s in volume.spacing_mm)
