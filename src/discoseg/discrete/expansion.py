"""The CRF proposal in many classes: a Potts energy, or one of a metric between classes, lowered by expansion moves."""

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discoseg.discrete.contrast import border_weight
from discoseg.discrete.glance import cheapest_class, commonest_class, cost_beyond, cost_of_labels
from discoseg.discrete.pieces import borrow_bench, expand_pieces, find_pieces
from discoseg.discrete.potts import PottsGrid
from discoseg.discrete.scratch import borrow
from discoseg.errors import UserError

MOST_CLASSES = 127  # labels are int8


@dataclass(frozen=True)
class Expansion:
    """A labelling that no expansion move improves."""

    labels: NDArray[np.int8]  # of the image's shape
    energies: tuple[float, ...]  # before the first move, after each accepted one; of two classes the last alone
    cycles: int  # rounds over all classes in the piece that took most; the last of them changed nothing

    @property
    def energy(self) -> float:
        """The energy of the labels, in double precision."""
        return self.energies[-1]


def label_by_expansion(
    grid: PottsGrid,
    costs: ArrayLike,
    *,
    strength: float,
    seeds: NDArray[np.integer] | None = None,
    pairs: ArrayLike | None = None,
    start: NDArray[np.integer] | None = None,
) -> Expansion:
    """Lower the energy of a labelling in C classes until giving one class to any set of voxels does not lower it.

    costs: (C, z, y, x) or (C, y, x), of a voxel in each class, finite. strength: factor of the weights, at least 0.
    seeds: the image's shape, -1 unknown, else a class; the labels honour them exactly. pairs: (C, C), V below, a
    metric: symmetric, zeros on the diagonal, no detour shorter; by default 1 between any two classes (Potts). start:
    labels of the image's shape to begin with; by default the cheapest class of each voxel, of several the lowest.

        Σ_p costs[y_p, p]  +  strength · Σ_pq w_pq V(y_p, y_q)     (each pair of neighbours once)

    A move gives one class to those voxels that lower the energy most by it, found by an exact minimum cut. Classes take
    turns from 0 up, round after round, until a whole round changes nothing. A move is accepted only if it lowers the
    energy strictly, in double precision, so rounds come to an end. With the default V and no negative costs the energy
    is at most twice the least. Two classes are one :meth:`PottsGrid.cut`, the global optimum from any start.

    Of a Potts energy one cut first settles where the commonest class stays (see `_settle`), and the moves are made in
    each piece of the rest by itself. The grid's weights are built once and kept. In the box around the unknown voxels a
    thread uses at most 8 bytes an arc and 8 C + 81 a voxel more. Several threads may label at once, on one grid or on
    many.

    >>> grid = PottsGrid(np.array([[0.1, 0.1, 0.5, 0.9]]), spacing_mm=(1, 1), sigma=0.1)
    >>> costs = np.array([[[0, 2.0, 3, 3]], [[3, 2.5, 1, 3]], [[3, 1.5, 3, 0]]])
    >>> label_by_expansion(grid, costs, strength=1).labels
    array([[0, 0, 1, 2]], dtype=int8)
    """
    volumes = _as_volumes(grid, costs, strength)
    classes = volumes.shape[0]
    metric = _checked_metric(pairs, classes)
    known = None if seeds is None else _checked_labels(grid, seeds, "seeds", -1, classes)
    begun = None if start is None else _checked_labels(grid, start, "start", 0, classes)
    if classes == 2:
        return _cut_once(grid, volumes, strength, known, metric)
    labels = cheapest_class(volumes) if begun is None else begun.copy()
    if known is not None:
        np.copyto(labels, known, where=known >= 0)
    return _expand(grid, volumes, strength, known, metric, labels)


def _is_potts(metric: NDArray[np.float64]) -> bool:
    """Say whether there are two classes or more, any two of them equally far apart."""
    return len(metric) > 1 and bool((metric == metric[0, 1] * (1 - np.eye(len(metric)))).all())


def energy_of_labels(
    grid: PottsGrid,
    labels: NDArray[np.integer],
    costs: ArrayLike,
    *,
    strength: float,
    pairs: ArrayLike | None = None,
) -> float:
    """Return the energy of labels of the image's shape (see `label_by_expansion`), in double precision."""
    volumes = _as_volumes(grid, costs, strength)
    classes = volumes.shape[0]
    checked = _checked_labels(grid, labels, "labels", 0, classes)
    return _energy(grid, checked, volumes, strength, _checked_metric(pairs, classes))


def _cut_once(
    grid: PottsGrid,
    costs: NDArray[np.floating],
    strength: float,
    seeds: NDArray[np.int8] | None,
    metric: NDArray[np.float64],
) -> Expansion:
    """Label two classes; arrays are volumes here and below."""
    known = None if seeds is None else seeds.reshape(grid.shape)
    unary = (costs[1] - costs[0]).reshape(grid.shape)
    labels = grid.cut(unary, strength=strength * float(metric[0, 1]), seeds=known).astype(np.int8)
    return Expansion(labels, (_energy(grid, labels.reshape(costs.shape[1:]), costs, strength, metric),), 1)


def _expand(
    grid: PottsGrid,
    costs: NDArray[np.floating],
    strength: float,
    seeds: NDArray[np.int8] | None,
    metric: NDArray[np.float64],
    labels: NDArray[np.int8],
) -> Expansion:
    """Improve labels, which honour the seeds, in place."""
    contested = np.ones(labels.shape, np.bool_)
    if _is_potts(metric):
        contested, seeds = _settle(grid, costs, strength * float(metric[0, 1]), seeds, labels)
    energy = _energy(grid, labels, costs, strength, metric)
    part = grid._open(seeds)  # of whose seeds it does not matter here which class they have
    voxels = part.free.size
    number = borrow("piece", voxels, np.int32)
    boxes = find_pieces(contested, part, number, borrow("queue", voxels, np.int32))
    largest = int((boxes[:, 3:] - boxes[:, :3]).prod(axis=1).max(initial=1))
    memory = borrow_bench(largest, len(costs), grid.neighbours)
    gains, rounds = expand_pieces(costs, float(strength), metric, part, grid._offsets, number, boxes, memory, labels)
    energies = energy - np.cumsum([0.0, *gains])
    return Expansion(labels.reshape(grid.shape), tuple(energies.tolist()), rounds)


def _settle(
    grid: PottsGrid,
    costs: NDArray[np.floating],
    strength: float,
    seeds: NDArray[np.int8] | None,
    labels: NDArray[np.int8],
) -> tuple[NDArray[np.bool_], NDArray[np.int8] | None]:
    """Give the commonest class to the voxels that one cut leaves to it.

    Return the others and the seeds for the two sides of that cut, (z, y, x).

    The cut decides between that class and the cheapest other one of each voxel, as if the others had no borders between
    them. Borders only add to a labelling's energy, so giving the class to what the cut leaves to it raises that of no
    labelling, whether it is before a move or after: what no move of the others improves, no move improves.
    (I. Kovtun, Partial optimal labeling search for a NP-hard subclass of (max,+) problems, DAGM 2003.)
    """
    common = commonest_class(labels, len(costs))
    others = cost_beyond(costs, common)
    sides = None if seeds is None else np.where(seeds < 0, seeds, seeds != common).astype(np.int8)
    known = None if sides is None else sides.reshape(grid.shape)
    contested = grid.cut(others.reshape(grid.shape), strength=strength, seeds=known).reshape(labels.shape)
    labels[~contested] = common
    return contested, sides


def _energy(
    grid: PottsGrid,
    labels: NDArray[np.int8],
    costs: NDArray[np.floating],
    strength: float,
    metric: NDArray[np.float64],
) -> float:
    border = border_weight(labels, metric, grid._image, grid._offsets, grid._distances_mm, grid._sigma)
    return cost_of_labels(costs, labels) + strength * border


def _as_volumes(grid: PottsGrid, costs: ArrayLike, strength: float) -> NDArray[np.floating]:
    """Return costs as compiled code takes them, (C, z, y, x)."""
    if not 0 <= strength < np.inf:
        raise UserError(f"strength is {strength}: it must not be negative")
    array = np.asarray(costs)
    if array.ndim < 1 or array.shape[1:] != grid.shape:
        raise UserError(f"costs have the shape {array.shape}: expected one array of {grid.shape} for each class")
    if not 1 <= len(array) <= MOST_CLASSES:
        raise UserError(f"costs are of {len(array)} classes: expected 1 to {MOST_CLASSES}")
    array = np.ascontiguousarray(array, dtype=np.float32 if array.dtype == np.float32 else np.float64)
    if not np.isfinite(array).all():
        raise UserError("costs have NaN or infinite values")
    return array.reshape(len(array), *grid._image.shape)


def _checked_labels(
    grid: PottsGrid, labels: NDArray[np.integer], name: str, lowest: int, classes: int
) -> NDArray[np.int8]:
    """Return labels (z, y, x) that are classes, or `lowest`, as compiled code takes them."""
    volume = grid._shaped(labels, name)
    if not np.issubdtype(volume.dtype, np.integer):
        raise UserError(f"{name} must be integers, not {volume.dtype}")
    low, high = int(volume.min()), int(volume.max())
    if low < lowest or high >= classes:
        wrong = low if low < lowest else high
        raise UserError(f"{name}: {wrong} is no label, expected {lowest} to {classes - 1} for {classes} classes")
    return np.ascontiguousarray(volume, dtype=np.int8)


def _checked_metric(pairs: ArrayLike | None, classes: int) -> NDArray[np.float64]:
    """Return what `pairs` says of any two classes, (C, C); a cut finds the best move only if it is a metric."""
    if pairs is None:
        return 1 - np.eye(classes)
    metric = np.array(pairs, dtype=np.float64)
    if metric.shape != (classes, classes):
        raise UserError(f"pairs has the shape {metric.shape}: expected {(classes, classes)}")
    if not ((metric >= 0) & (metric < np.inf)).all():
        raise UserError("pairs has values that are negative, NaN or infinite")
    if (metric != metric.T).any() or metric.diagonal().any():
        raise UserError("pairs must be symmetric with zeros on the diagonal")
    for a, b, c in itertools.product(range(classes), repeat=3):
        detour = metric[a, c] + metric[c, b]
        if metric[a, b] > detour * (1 + 1e-12):
            raise UserError(
                f"pairs is no metric: {metric[a, b]:g} between classes {a} and {b}, but {detour:g} by way of class {c}"
            )
    return metric
