"""How the cut scales: two threads against one, and time against the number of voxels."""

import itertools
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
    """Print the time of a cut against the number of voxels.

    One state is either stretched along all axes, so that flow has further to go, or repeated, mirrored at the seams.
    26 neighbours and stretched states stop at a tenth of the largest: they take more memory, or time.
    """
    volume = next(volume for volume in volumes if volume.seeds is None)
    print("\n| neighbours | state | " + " | ".join(f"{n:.0e}" for n in _sizes(largest)) + " | exponent |")
    print("|---|---|" + "---|" * (len(_sizes(largest)) + 1))
    for resize, neighbours in itertools.product((_repeated, _stretched), NEIGHBOURS):
        voxels, seconds = [], []
        for size in _sizes(largest if neighbours == 6 and resize is _repeated else largest / 10):
            factor = (size / volume.image.size) ** (1 / 3)
            image, unary = (resize(array, factor) for array in (volume.image, volume.unaries["late"]))
            grid = PottsGrid(image, spacing_mm=volume.spacing_mm, sigma=0.05, neighbours=neighbours)
            grid.cut(unary, strength=1.0)  # builds the weights
            repeats = 3 if size <= 1e6 else 1
            seconds.append(best_time(partial(grid.cut, unary, strength=1.0), repeats)[0])
            voxels.append(image.size)
        exponent = np.polyfit(np.log(voxels), np.log(seconds), 1)[0]
        cells = [f"{s:.3g} s" for s in seconds] + ["–"] * (len(_sizes(largest)) - len(seconds))
        name = resize.__name__.strip("_")
        print(f"| {neighbours} | {name} | " + " | ".join(cells) + f" | {exponent:.2f} |", flush=True)


def _sizes(largest: float) -> list[float]:
    return [10.0**e for e in range(4, 9) if 10.0**e <= largest]


def _stretched(array: NDArray[np.float32], factor: float) -> NDArray[np.float32]:
    return np.asarray(ndimage.zoom(array, factor, order=1), dtype=np.float32)


def _repeated(array: NDArray[np.float32], factor: float) -> NDArray[np.float32]:
    """The middle of the array where it is to shrink, copies mirrored at the seams where it is to grow."""
    shape = [max(1, round(factor * n)) for n in array.shape]
    starts = [max(0, n - wanted) // 2 for n, wanted in zip(array.shape, shape, strict=True)]
    middle = array[tuple(slice(s, s + wanted) for s, wanted in zip(starts, shape, strict=True))]
    missing = [(0, wanted - n) for n, wanted in zip(middle.shape, shape, strict=True)]
    return np.ascontiguousarray(np.pad(middle, missing, mode="symmetric"))
