"""Time a cut that was begun with the last epoch's probabilities against one from nothing, on a real training.

    DISCOSEG_DATA=DIR python bench/foresight.py

A small U-Net is trained on four ACDC volumes (phantoms without DISCOSEG_DATA), seeds honoured. The guess is
½ − s − û with the probabilities of one epoch and the multipliers it led to, the cut ½ − s' − û with the next epoch's.
So few volumes change far more from epoch to epoch than a large training's: rows with a part of the change stand for
those. Processor time, best of four, in turn.
"""

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from discoseg.discrete import PottsGrid
from discoseg.discrete.potts import box_around
from discoseg.prediction_pass import predict_slices
from discoseg.train import train
from discoseg.weak.examples import Example
from states import CONFIG, choose_examples, choose_root

EPOCHS = ((9, 10), (10, 11), (19, 20))
CHANGES = (1.0, 0.25, 0.05)

Stack = NDArray[np.floating]
T = TypeVar("T")


def train_states(examples: list[Example], folder: Path) -> dict[int, tuple[Stack, Stack]]:
    """Return, by the number of finished epochs, the probabilities and the multipliers that they led to, (N, H, W)."""
    config = replace(CONFIG, admm=replace(CONFIG.admm, rho=1.0))
    images = torch.from_numpy(np.concatenate([example.image for example in examples]))
    states: dict[int, tuple[Stack, Stack]] = {}
    for epochs in sorted({epoch for pair in EPOCHS for epoch in pair}):
        print(f"training to epoch {epochs}", flush=True)
        run = replace(config, epochs=epochs)
        state = train(examples, [], run, folder / "run", model={}, device="cpu", resume=bool(states))
        (crf,) = (prior for prior in state.priors if prior.name == "crf")
        states[epochs] = predict_slices(state.network, images)[0].numpy(), crf.multiplier[0].numpy().copy()
    return states


def compare(example: Example, guess: Stack, unary: Stack) -> list[float]:
    """Return the seconds of a cut from nothing, of the guess, and of the cut after it; the masks must be equal."""
    box = box_around(example.seeds < 0)
    seeds = np.ascontiguousarray(example.seeds[box])
    guess, unary = np.ascontiguousarray(guess[box]), np.ascontiguousarray(unary[box])
    crf = CONFIG.crf
    grid = PottsGrid(example.image[:, 0][box], spacing_mm=example.spacing_mm, sigma=crf.sigma, neighbours=26)
    foresight = grid.foresee(seeds)
    strength = crf.strength / CONFIG.admm.mu_crf
    best = [np.inf] * 3
    for _ in range(5):  # the first builds weights and compiles
        plain_s, plain = _timed(lambda: grid.cut(unary, strength=strength, seeds=seeds))
        guess_s, _ = _timed(lambda: foresight.guess(guess, strength=strength))
        foreseen_s, mask = _timed(lambda: foresight.cut(unary, strength=strength))
        assert np.array_equal(plain, mask), f"{example.name}: the masks differ"
        best = [min(pair) for pair in zip(best, (plain_s, guess_s, foreseen_s), strict=True)]
    return best


def _timed(call: Callable[[], T]) -> tuple[float, T]:
    start = time.thread_time()
    result = call()
    return time.thread_time() - start, result


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp())
    examples = choose_examples(choose_root(folder), folder, CONFIG)
    states = train_states(examples, folder)
    print("\n| epochs | part of the change | from nothing ms | guess ms | after the guess ms | ratio |")
    print("|---|---|---|---|---|---|")
    for before, after in EPOCHS:
        (s, u), (s_next, _) = states[before], states[after]
        for part in CHANGES:
            totals, start = np.zeros(3), 0
            for example in examples:
                here = slice(start, start + len(example.seeds))
                start = here.stop
                changed = s[here] + np.float32(part) * (s_next[here] - s[here])
                totals += compare(example, 0.5 - s[here] - u[here], 0.5 - changed - u[here])
            plain, guess, foreseen = 1e3 * totals / len(examples)
            times = f"{plain:.1f} | {guess:.1f} | {foreseen:.1f} | {plain / foreseen:.2f}×"
            print(f"| {before} → {after} | {part} | {times} |", flush=True)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
