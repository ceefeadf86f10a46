"""Predicted masks that honour size bounds and the boundary prior in the image's own voxels, each with a certificate."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discoseg.config import Config, CrfConfig
from discoseg.data.files import write_atomically
from discoseg.data.prepare import Grid, grid_spacing_mm, probabilities_from_grid
from discoseg.data.volume import Volume
from discoseg.discrete import PottsGrid
from discoseg.enforce import Enforced, energy_of, enforce, restore_sizes
from discoseg.errors import UserError
from discoseg.regions import contrast_grid
from discoseg.weak.bounds import Bounds, IntervalMl, bounds_from_ml
from discoseg.weak.pairs import read_pairs
from discoseg.weak.sizes import SizesMl

Labels = NDArray[np.uint8]  # (z, y, x): 0 background, k the k-th structure

_SHARE = 0.1  # of the training's λ/μ̂: with no multipliers against it, all of it takes too much (docs/prediction.md)


@dataclass(frozen=True)
class Enforcement:
    """What masks have to honour: sizes in millilitres, and a boundary prior.

    The ``strength`` of ``crf`` is λ/μ̂ here, 0 for none; its ``calibrate`` plays no part.
    """

    sizes: SizesMl
    crf: CrfConfig

    @classmethod
    def choose(
        cls,
        config: Config,
        structures: Sequence[str],
        *,
        size_ml: str | None = None,
        size_csv: Path | None = None,
        strength: float | None = None,
    ) -> "Enforcement":
        """Return what is given, and where it is not, what a training's settings say.

        Sizes that a training took from true masks or from a table of its own cases say nothing of other images.
        """
        if size_ml is not None and size_csv is not None:
            raise UserError("give one of --size-ml and --size-csv, not both")
        if size_ml is None and size_csv is None:
            size_ml = config.size_ml
        if size_ml is not None and "@" in size_ml:
            raise UserError(f"--size-ml {size_ml}: the group of a new image is not known; give sizes without @")
        strength = _SHARE * config.crf.strength / config.admm.mu_crf if strength is None else strength
        if not 0 <= strength < math.inf:
            raise UserError(f"--crf-strength {strength} must be 0 or more, and finite")
        if strength == 0 and size_ml is None and size_csv is None:
            raise UserError("nothing to enforce: give --size-ml, --size-csv, or a --crf-strength above 0")
        sizes = SizesMl.read(size_ml, size_csv, structures)
        return cls(sizes, replace(config.crf, strength=strength))


@dataclass(frozen=True)
class Scene:
    """What a network says of an image: on its grid, and in the image's own voxels.

    ``image`` (z, channel, y, x) in [0, 1] and ``probabilities`` (K, z, y, x) on the ``grid``; ``means`` the same
    probabilities in the image's voxels, K volumes.
    """

    structures: Sequence[str]
    image: NDArray[np.float32]
    probabilities: NDArray[np.float32]
    grid: Grid
    means: Sequence[Volume]


def most_probable(probabilities: NDArray[np.floating]) -> Labels:
    """Return the most probable label of each voxel of structures' probabilities (K, z, y, x).

    One structure wins from one half on; of several equal ones the first does, background before all.
    """
    if len(probabilities) == 1:
        return (probabilities[0] >= 0.5).astype(np.uint8)
    rest = 1 - probabilities.sum(axis=0, keepdims=True)
    return np.concatenate([rest, probabilities]).argmax(axis=0).astype(np.uint8)


@dataclass(frozen=True)
class _Problem:
    """Where labels are sought: ``where`` the image's voxels, or the network's grid with its boundary prior."""

    where: str
    probabilities: NDArray[np.float32]  # (K, z, y, x)
    bounds: Sequence[Bounds]
    potts: PottsGrid | None = None


def enforce_in_image(
    scene: Scene, enforcement: Enforcement, treat: Callable[[Labels], Labels], *, case: str
) -> tuple[Labels, dict[str, Any]]:
    """Return labels in the image's voxels, whose sizes are within the bounds, and their certificate.

    A boundary prior is enforced where the training's was, on the network's grid, and the labels return to the image
    like probabilities do; bounds alone are enforced in the image's voxels. ``treat`` is what is done to every label map
    (:class:`discoseg.postprocess.Postprocessing`); what it, or the way back, changes of the sizes is made up for last.
    """
    voxel_ml = scene.means[0].voxel_ml
    intervals = [enforcement.sizes.of(case, name, file_voxel_ml=voxel_ml) for name in scene.structures]
    own = _own_problem(scene, intervals, case)
    crf = enforcement.crf
    problem = own if crf.strength == 0 else _grid_problem(scene, enforcement, intervals, case)
    pairs = read_pairs(crf.pairs, scene.structures)
    found = enforce(problem.probabilities, problem.bounds, grid=problem.potts, strength=crf.strength, pairs=pairs)
    labels = found.labels.astype(np.uint8)
    if problem is not own:
        returned = [
            probabilities_from_grid((labels == number).astype(np.float32), scene.means[0], scene.grid).array
            for number in range(1, 1 + len(scene.structures))
        ]
        labels = most_probable(np.stack(returned))
    treated = treat(labels)
    final = restore_sizes(treated, own.probabilities, own.bounds)
    certificate: dict[str, Any] = {
        "case": case,
        "kind": found.kind,
        "strength": crf.strength,
        "pairs": crf.pairs,
        "sigma": crf.sigma,
        "widen": crf.widen,
        "neighbours": crf.neighbours,
        "solved_on": {"voxels": problem.where, "shape_zyx": list(problem.probabilities.shape[1:])},
        "energy": _energies(problem, found, crf.strength, pairs),
        "changed_by_postprocessing_vox": int(np.count_nonzero(treated != labels)),
        "changed_to_restore_sizes_vox": int(np.count_nonzero(final != treated)),
        "structures": {},
    }
    plain = treat(most_probable(own.probabilities))
    coarse = most_probable(problem.probabilities), found.labels
    for index, name in enumerate(scene.structures):
        entry: dict[str, Any] = {"bounds_ml": [_number(end) for end in intervals[index]], "shift": found.shifts[index]}
        entry["image"] = _sizes(own.bounds[index], plain, final, index, scene.means[0].voxel_ml)
        if problem is not own:
            entry["grid"] = _sizes(problem.bounds[index], *coarse, index)
        certificate["structures"][name] = entry
    return final, certificate


def write_certificate(path: Path, certificate: dict[str, Any]) -> None:
    """Write a certificate as JSON."""
    with write_atomically(path) as temporary:
        temporary.write_text(json.dumps(certificate, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _own_problem(scene: Scene, intervals: Sequence[IntervalMl], case: str) -> _Problem:
    first = scene.means[0]
    bounds = _bounds(scene.structures, intervals, first.array.size, first.voxel_ml, case)
    return _Problem("image", np.stack([volume.array for volume in scene.means]), bounds)


def _grid_problem(scene: Scene, enforcement: Enforcement, intervals: Sequence[IntervalMl], case: str) -> _Problem:
    spacing_mm = grid_spacing_mm(scene.means[0], scene.grid)
    voxels, voxel_ml = scene.probabilities[0].size, float(np.prod(spacing_mm)) / 1000
    potts = contrast_grid(scene.image[:, 0], spacing_mm, enforcement.crf)
    bounds = _bounds(scene.structures, intervals, voxels, voxel_ml, case)
    return _Problem("grid", scene.probabilities, bounds, potts)


def _bounds(
    structures: Sequence[str], intervals: Sequence[IntervalMl], voxels: int, voxel_ml: float, case: str
) -> list[Bounds]:
    """Return intervals in millilitres as numbers of voxels, of which a volume has enough."""
    bounds = [bounds_from_ml(interval, voxel_ml=voxel_ml, voxels=voxels) for interval in intervals]
    if sum(bound.low_vox for bound in bounds) > voxels:
        what = f"bound of {structures[0]} wants" if len(bounds) == 1 else "bounds of all structures want"
        wanted = sum(low for low, _ in intervals)
        raise UserError(f"{case}: the lower size {what} {wanted:g} ml, the whole image has {voxels * voxel_ml:g}")
    return bounds


def _energies(
    problem: _Problem, found: Enforced, strength: float, pairs: NDArray[np.float64] | None
) -> dict[str, float]:
    plain = most_probable(problem.probabilities)
    before = energy_of(plain, problem.probabilities, grid=problem.potts, strength=strength, pairs=pairs)
    return {"before": before, "after": found.energy, "lower_bound": found.bound, "gap": found.gap}


def _sizes(
    bounds: Bounds, before: NDArray, after: NDArray, index: int, voxel_ml: float | None = None
) -> dict[str, Any]:
    counts = [int(np.count_nonzero(labels == index + 1)) for labels in (before, after)]
    found: dict[str, Any] = {
        "bounds_vox": [bounds.low_vox, bounds.high_vox],
        "before_vox": counts[0],
        "after_vox": counts[1],
    }
    if voxel_ml is not None:
        found |= {"before_ml": counts[0] * voxel_ml, "after_ml": counts[1] * voxel_ml}
    return found


def _number(value: float) -> float | None:
    """Return what JSON can hold: nothing where a side is open."""
    return None if math.isinf(value) else value
