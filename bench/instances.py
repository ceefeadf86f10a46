"""The instances of the bench: states of trainings, cut with many strengths and sigmas, ours and PyMaxflow's time."""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from discoseg.discrete import PottsGrid
from rivals import Problem, cut_by_pymaxflow, pose
from states import Volume

SIGMAS = (0.005, 0.02, 0.05, 0.1)
STRENGTHS = (0.3, 1.0, 10.0, 100.0)
NEIGHBOURS = (6, 26)
ENOUGH_S = 1.0  # a cut of this length is timed once, a shorter one up to `repeats` times

_T = TypeVar("_T")


class Instance(NamedTuple):
    """One cut: an image, a unary that a training made of it, and the Potts model's parameters."""

    volume: Volume
    stage: str
    neighbours: int
    sigma: float
    strength: float

    @property
    def unary(self) -> NDArray[np.float32]:
        return self.volume.unaries[self.stage]

    def grid(self) -> PottsGrid:
        return PottsGrid(
            self.volume.image, spacing_mm=self.volume.spacing_mm, sigma=self.sigma, neighbours=self.neighbours
        )

    def problem(self) -> tuple[Problem, tuple[slice, ...]]:
        return pose(
            self.volume.image,
            self.unary,
            self.volume.seeds,
            spacing_mm=self.volume.spacing_mm,
            neighbours=self.neighbours,
            sigma=self.sigma,
            strength=self.strength,
        )


class Row(NamedTuple):
    """What came out of one instance."""

    name: str
    stage: str
    neighbours: int
    sigma: float
    strength: float
    free: int  # unknown voxels
    one_sign: bool  # no cost is negative, or all are, and no seeds: nothing to solve
    inside: int  # voxels of our mask
    differing: int  # voxels where the masks differ: several may be optimal
    difference: float  # our energy less the rival's, relative to the sum of all costs' sizes
    theirs_s: float
    ours_s: float

    @property
    def ratio(self) -> float:
        return self.theirs_s / self.ours_s


def choose_instances(volumes: Iterable[Volume], each: int) -> Iterator[Instance]:
    """Yield `each` pairs of a sigma and a strength for every state and neighbourhood, all pairs in turn."""
    pairs = [(sigma, strength) for strength in STRENGTHS for sigma in SIGMAS]
    turn = 0
    for volume in volumes:
        for stage, neighbours in itertools.product(volume.unaries, NEIGHBOURS):
            for _ in range(each):
                sigma, strength = pairs[5 * turn % len(pairs)]  # 5: neighbours in turn differ in both
                yield Instance(volume, stage, neighbours, sigma, strength)
                turn += 1


def best_time(call: Callable[[], _T], repeats: int) -> tuple[float, _T]:
    """Least processor time of this thread in `repeats` calls, and what the call returned."""
    best = np.inf
    for _ in range(repeats):
        start = time.thread_time()
        result = call()
        best = min(best, time.thread_time() - start)
        if best > ENOUGH_S:
            break
    return best, result


def compare(instance: Instance, repeats: int, rival: Callable[[Problem], NDArray[np.bool_]] = cut_by_pymaxflow) -> Row:
    """Cut an instance by us and by a rival; both are given the weights, which a training builds once."""
    volume, unary, seeds = instance.volume, instance.unary, instance.volume.seeds
    grid = instance.grid()
    problem, box = instance.problem()

    def cut() -> NDArray[np.bool_]:
        return grid.cut(unary, strength=instance.strength, seeds=seeds)

    cut()  # builds the weights
    ours_s, theirs_s = np.inf, np.inf
    for _ in range(repeats):  # in turn, so that a busy machine slows both
        seconds, ours = best_time(cut, 1 if ours_s > ENOUGH_S else 2)
        ours_s = min(ours_s, seconds)
        if theirs_s < ENOUGH_S or theirs_s == np.inf:
            seconds, inner = best_time(lambda: rival(problem), 1)
            theirs_s = min(theirs_s, seconds)
    theirs = np.zeros(unary.shape, bool) if seeds is None else seeds == 1
    theirs[box] = inner
    energies = [grid.energy(mask, unary, strength=instance.strength) for mask in (ours, theirs)]
    return Row(
        name=volume.name,
        stage=instance.stage,
        neighbours=instance.neighbours,
        sigma=instance.sigma,
        strength=instance.strength,
        free=unary.size if seeds is None else int((seeds < 0).sum()),
        one_sign=seeds is None and bool((unary >= 0).all() or (unary < 0).all()),
        inside=int(ours.sum()),
        differing=int((ours != theirs).sum()),
        difference=(energies[0] - energies[1]) / max(float(np.abs(unary).sum(dtype=np.float64)), 1e-300),
        theirs_s=theirs_s,
        ours_s=ours_s,
    )
