"""Time PottsGrid.cut against PyMaxflow (build and solve) on the same instances, one thread, and compare energies.

    python bench/cut.py                     phantoms, a minute or two
    DISCOSEG_DATA=DIR python bench/cut.py   the same and two real ACDC volumes

The instances are states of a training: a foreground probability that sharpens from "early" to "late", and
multipliers from as many rounds of cuts as the state is old. Processor time is
measured, the best of --repeats runs of either solver; the weights are given to both and not timed.
"""

import argparse
import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import maxflow
import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from discoseg.discrete import PottsGrid
from discoseg.discrete.contrast import distances_mm, forward_offsets

SPACING_MM = (10.0, 1.4, 1.4)
STATES = {"early": (1.0, 0), "middle": (4.0, 3), "late": (10.0, 10)}  # sharpness, rounds of multipliers


class Scene(NamedTuple):
    name: str
    image: NDArray[np.float32]
    truth: NDArray[np.bool_]
    spacing_mm: tuple[float, float, float]
    seeds: NDArray[np.int8] | None


def phantom_scene(shape: tuple[int, int, int] = (10, 256, 256), *, seed: int = 0) -> Scene:
    """A bright cavity in a dark ring that tapers to the apex, in a smooth background with noise."""
    rng = np.random.default_rng(seed)
    z, y, x = np.meshgrid(np.linspace(0, 1, shape[0]), *(np.arange(n) * 1.4 for n in shape[1:]), indexing="ij")
    centre = rng.uniform(0.45, 0.55, 2) * 1.4 * shape[1]
    radius = 28 * (1 - 0.5 * z)
    distance = np.hypot(y - centre[0], x - centre[1])
    image = 0.4 + 3 * ndimage.gaussian_filter(rng.normal(size=shape), (1, 12, 12))
    image[distance < 1.5 * radius] = 0.2
    image[distance < radius] = 0.8
    image = ndimage.gaussian_filter(image, (0, 1, 1)) + 0.03 * rng.normal(size=shape)
    return Scene(f"phantom {seed}", np.clip(image, 0, 1).astype(np.float32), distance < radius, SPACING_MM, None)


def acdc_scenes(root: Path, cases: tuple[str, ...] = ("patient001_frame01", "patient050_frame01")) -> Iterator[Scene]:
    """Real volumes, cropped or padded to 256×256, with the left ventricle as the truth."""
    import nibabel

    for case in cases:
        folder = root / "acdc" / "training" / case.split("_")[0]
        image: Any = nibabel.load(folder / f"{case}.nii.gz")
        label: Any = nibabel.load(folder / f"{case}_gt.nii.gz")
        arrays = [np.asarray(f.dataobj).T for f in (image, label)]
        grown = [np.pad(a, ((0, 0), *((0, max(0, 256 - n)) for n in a.shape[1:])))[:, :256, :256] for a in arrays]
        z, y, x = (float(s) for s in image.header.get_zooms()[2::-1])
        scaled = (grown[0] / grown[0].max()).astype(np.float32)
        yield Scene(case.replace("_frame", " "), scaled, grown[1] == 3, (z, y, x), None)


def with_seeds(scene: Scene, side: int = 96) -> Scene:
    """Everything outside a square around the object is background, its core is foreground."""
    cy, cx = (int(c) for c in ndimage.center_of_mass(scene.truth)[1:])
    seeds = np.zeros(scene.image.shape, np.int8)
    seeds[:, max(0, cy - side // 2) : cy + side // 2, max(0, cx - side // 2) : cx + side // 2] = -1
    seeds[ndimage.binary_erosion(scene.truth, np.ones((1, 9, 9)))] = 1
    return scene._replace(name=f"{scene.name}, seeds", seeds=seeds)


def training_state(scene: Scene, state: str, solve: Callable[[NDArray], NDArray[np.bool_]]) -> NDArray[np.float64]:
    """The unary ½ − s − û after some rounds of s, cut and û += s − ŷ."""
    sharpness, rounds = STATES[state]
    rng = np.random.default_rng(1)
    near = ndimage.gaussian_filter(scene.truth.astype(float), (0.5, 4, 4)) - 0.5
    multiplier = np.zeros(scene.image.shape)
    for number in range(rounds + 1):
        doubt = 4 * ndimage.gaussian_filter(rng.normal(size=scene.image.shape), (0.5, 2, 2))
        brightness = scene.image - np.median(scene.image)
        s = 1 / (1 + np.exp(-(sharpness * near + doubt + 2 * brightness)))
        unary = 0.5 - s - multiplier
        if number < rounds:
            multiplier += s - solve(unary)
    return unary


def pymaxflow_cut(
    unary: NDArray[np.float64],
    weights: list[NDArray[np.float64]],
    offsets: NDArray[np.int64],
    strength: float,
) -> NDArray[np.bool_]:
    graph = maxflow.Graph[float](unary.size, unary.size * len(offsets))
    nodes = graph.add_grid_nodes(unary.shape)
    for weight, offset in zip(weights, offsets, strict=True):
        structure = np.zeros((3, 3, 3))
        structure[tuple(offset + 1)] = 1
        graph.add_grid_edges(nodes, weights=strength * weight, structure=structure, symmetric=True)
    graph.add_grid_tedges(nodes, np.maximum(unary, 0), np.maximum(-unary, 0))
    graph.maxflow()
    return graph.get_grid_segments(nodes)


def pair_weights(
    image: NDArray, spacing_mm: tuple[float, ...], sigma: float, offsets: NDArray[np.int64]
) -> list[NDArray[np.float64]]:
    """The contrast weights in plain numpy, one array for each offset."""
    weights = []
    for offset, distance in zip(offsets, distances_mm(offsets, spacing_mm), strict=True):
        other = np.roll(image.astype(np.float64), tuple(-offset), axis=(0, 1, 2))
        weights.append(np.exp(-((image - other) ** 2) / (2 * sigma**2)) / distance)
    return weights


def best_of(times: int, call: Callable[[], NDArray[np.bool_]]) -> tuple[float, NDArray[np.bool_]]:
    seconds = []
    for _ in range(times):
        start = time.thread_time()
        result = call()
        seconds.append(time.thread_time() - start)
    return min(seconds), result


def compare(
    scene: Scene, state: str, neighbours: int, sigma: float, strength: float, repeats: int
) -> tuple[float, float]:
    """Print one row and return the seconds of PyMaxflow and ours."""
    grid = PottsGrid(scene.image, spacing_mm=scene.spacing_mm, sigma=sigma, neighbours=neighbours)
    seeds = scene.seeds
    unary = training_state(scene, state, lambda u: grid.cut(u, strength=strength, seeds=seeds))
    grid.cut(unary, strength=strength, seeds=seeds)  # the weights of a volume are built once and are not timed
    ours_s, ours = best_of(repeats, lambda: grid.cut(unary, strength=strength, seeds=seeds))
    # PyMaxflow gets the box around the unknown voxels only, with seeds as costs that cannot be paid.
    box = tuple(slice(0, n) for n in unary.shape) if seeds is None else ndimage.find_objects((seeds < 0).astype(int))[0]
    box = tuple(slice(max(0, b.start - 1), b.stop + 1) for b in box)
    cost = unary[box].copy()
    if seeds is not None:
        cost[seeds[box] == 0], cost[seeds[box] == 1] = 1e6, -1e6
    offsets = forward_offsets(3, neighbours)
    weights = pair_weights(scene.image[box], scene.spacing_mm, sigma, offsets)
    theirs_s, inner = best_of(repeats, lambda: pymaxflow_cut(cost, weights, offsets, strength))
    theirs = np.zeros(unary.shape, bool)
    theirs[box] = inner
    energies = [grid.energy(m, unary, strength=strength) for m in (ours, theirs)]
    difference = (energies[0] - energies[1]) / np.abs(unary).sum()
    assert abs(difference) < 1e-6, f"energies differ: {energies}"
    print(
        f"{scene.name:26} {state:6} {neighbours:3} {sigma:6} {strength:6} {ours.mean():7.3f}"
        f" {1e3 * theirs_s:9.1f} {1e3 * ours_s:9.1f} {theirs_s / ours_s:7.1f}× {difference:9.1e}",
        flush=True,
    )
    return theirs_s, ours_s


def main() -> None:
    parser = argparse.ArgumentParser(description="time PottsGrid.cut against PyMaxflow")
    parser.add_argument("--quick", action="store_true", help="one sigma and two strengths only")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each solver, of which the best counts")
    arguments = parser.parse_args()
    scenes = [phantom_scene(seed=0)]
    if data := os.environ.get("DISCOSEG_DATA"):
        scenes += acdc_scenes(Path(data))
    scenes += [with_seeds(scene) for scene in scenes]
    sigmas = (0.05,) if arguments.quick else (0.005, 0.02, 0.1)
    strengths = (0.3, 10.0) if arguments.quick else (0.3, 3.0, 100.0)
    print("instance                   state    K  sigma strength  inside   PyMaxflow ms  ours ms   ratio  difference")
    for neighbours in (6, 26):
        rows = [
            compare(scene, state, neighbours, sigma, strength, arguments.repeats)
            for scene, state, sigma, strength in itertools.product(scenes, STATES, sigmas, strengths)
        ]
        theirs, ours = np.array(rows).T
        ratios = theirs / ours
        print(
            f"{neighbours} neighbours, {len(rows)} instances: total {theirs.sum() / ours.sum():.1f}×,"
            f" mean ratio {ratios.mean():.1f}×, median {np.median(ratios):.1f}×, least {ratios.min():.1f}×\n"
        )


if __name__ == "__main__":
    main()
