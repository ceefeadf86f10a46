"""How much threads that cut slow the main thread, which takes Python's lock again at every call of torch.

    python bench/contention.py                        phantoms
    DISCOSEG_DATA=DIR python bench/contention.py      ACDC
    PYTHONPATH=OTHER/src python bench/contention.py   another version of the package, with the bench of this one

As in a training beside a GPU, a pool cuts the unknown regions of volumes of 256×256 slices over and over, from nothing
or after a guess. The main thread meanwhile adds two tiny tensors as often as it can: each addition gives the lock away
and takes it back. A thread that neither runs nor waits for a core is blocked, and nothing but the lock blocks these:
what the kernel counts (Linux only) tells that apart from the lack of cores. Medians of rounds that take turns.
"""

import argparse
import resource
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage

from discoseg.regions import Region, open_regions
from discoseg.weak.examples import Example
from states import CONFIG, choose_examples, choose_root

Unary = NDArray[np.float32]
STRENGTH = CONFIG.crf.strength / CONFIG.admm.mu_crf


class Measured(NamedTuple):
    """What one round came to."""

    additions_per_s: float
    blocked: float  # part of the main thread's time
    cuts_per_s: float
    blocks_per_cut: float  # how often a cut's thread gave its core away
    blocked_ms_per_cut: float


def make_unary(example: Example, region: Region, rng: np.random.Generator) -> Unary:
    """Costs ½ − s − û that look like those of a training: the true mask, blurred, and multipliers of blurred noise."""
    assert example.truth is not None
    probability = ndimage.gaussian_filter(example.truth.astype(np.float32), (0.5, 6, 6))
    multiplier = 3 * ndimage.gaussian_filter(rng.normal(size=probability.shape).astype(np.float32), (0.5, 4, 4))
    return np.ascontiguousarray((0.5 - probability - multiplier)[region.box], dtype=np.float32)


def measure(work: Sequence[Callable[[], None]], seconds: float) -> Measured:
    """Add on this thread for some seconds while each of the others repeats its work."""
    stop = threading.Event()
    done: list[tuple[float, ...]] = [(0.0, 0.0, 0.0)]

    def repeat(call: Callable[[], None]) -> None:
        cuts, blocks, blocked = 0, _blocks(), _blocked_s()
        while not stop.is_set():
            call()
            cuts += 1
        done.append((cuts, _blocks() - blocks, _blocked_s() - blocked))

    threads = [threading.Thread(target=repeat, args=(call,)) for call in work]
    for thread in threads:
        thread.start()
    one, total = torch.ones(8), torch.zeros(8)
    additions, start, blocked = 0, time.perf_counter(), _blocked_s()
    while time.perf_counter() < start + seconds:
        torch.add(one, one, out=total)
        additions += 1
    blocked, seconds = _blocked_s() - blocked, time.perf_counter() - start
    stop.set()
    for thread in threads:
        thread.join()
    cuts, blocks, pool_blocked = (sum(column) for column in zip(*done, strict=True))
    each = max(cuts, 1)
    return Measured(additions / seconds, blocked / seconds, cuts / seconds, blocks / each, 1e3 * pool_blocked / each)


def _blocks() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def _blocked_s() -> float:
    """A clock that runs while this thread neither runs nor waits for a core."""
    running_ns, waiting_ns, _ = Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()
    return time.perf_counter() - 1e-9 * (int(running_ns) + int(waiting_ns))


def cutting(regions: Sequence[Region], unaries: Sequence[Unary], number: int) -> Callable[[], None]:
    """Return what cuts a region, chosen by the number, from nothing."""
    region, unary = regions[number % len(regions)], unaries[number % len(regions)]
    grid = region.grid()

    def cut() -> None:
        grid.cut(unary, strength=STRENGTH, seeds=region.seeds)

    return cut


def foreseeing(regions: Sequence[Region], unaries: Sequence[Unary], number: int) -> Callable[[], None]:
    """Return what cuts a region, chosen by the number, after a guess."""
    region, unary = regions[number % len(regions)], unaries[number % len(regions)]
    foresight, guess = region.grid().foresee(region.seeds), np.float32(0.9) * unary

    def guess_and_cut() -> None:
        foresight.guess(guess, strength=STRENGTH)
        foresight.cut(unary, strength=STRENGTH)

    return guess_and_cut


def main() -> None:
    parser = argparse.ArgumentParser(description="measure how much threads that cut slow the main thread")
    parser.add_argument("--threads", type=int, default=6, help="threads of the pool")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement in a round")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp())
    examples = choose_examples(choose_root(folder), folder, replace(CONFIG, label="LV"))
    shutil.rmtree(folder)
    regions = open_regions(examples, CONFIG.crf, honour_seeds=True)
    rng = np.random.default_rng(0)
    unaries = [make_unary(example, region, rng) for example, region in zip(examples, regions, strict=True)]
    numbers = range(arguments.threads)
    kinds: dict[str, list[Callable[[], None]]] = {
        "nothing": [],
        "cuts": [cutting(regions, unaries, number) for number in numbers],
        "guesses and cuts": [foreseeing(regions, unaries, number) for number in numbers],
    }
    for work in kinds.values():
        for call in work:
            call()  # builds weights and compiles
    rounds = [{kind: measure(work, arguments.seconds) for kind, work in kinds.items()} for _ in range(arguments.rounds)]
    print(f"{arguments.threads} threads, regions of {np.mean([unary.size for unary in unaries]):.0f} voxels\n")
    print("| beside | additions / s | main thread blocked | cuts / s | blocks / cut | blocked ms / cut |")
    print("|---|---|---|---|---|---|")
    for kind in kinds:
        speed, blocked, cuts, blocks, blocked_ms = np.median([measured[kind] for measured in rounds], axis=0)
        print(f"| {kind} | {speed:.0f} | {100 * blocked:.1f} % | {cuts:.0f} | {blocks:.1f} | {blocked_ms:.2f} |")


if __name__ == "__main__":
    main()
