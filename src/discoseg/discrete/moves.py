"""Expansion moves: which voxels should take one class instead of the one they have, by a minimum cut.

Let x_p = 1 where voxel p takes the class α, and let the neighbours p and q have the labels a and b, neither of them α.
Their pair costs w·V(a, b) if both stay, w·V(α, b) if p alone moves, w·V(a, α) if q alone does, and nothing if both do:

    w·V(a, b)  +  w·m |x_p − x_q|  +  w·u(a, b) x_p  +  w·u(b, a) x_q
    m = ½ (V(a, α) + V(α, b) − V(a, b)),     u(a, b) = ½ (V(α, b) − V(a, α) − V(a, b))

for all four choices. V is a metric, so m ≥ 0, and a move is a Potts energy of two classes: the cut of `mincut`, given
the contrast weights scaled by m. A neighbour that cannot move adds w·(V(α, b) − V(a, b)) x_p.

A whole expansion is one compiled call without Python's lock, like a cut.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from discoseg.discrete.mincut import Guess, Pairs, Part, cut
from discoseg.discrete.preflow import Flow, Room, inner

SLACK = 1e-5  # relative; sums of weights are in single precision


class Model(NamedTuple):
    """An energy of labellings of the part of an image that seeds leave open."""

    costs: NDArray[np.float64]  # (C, voxels) of the box
    strength: float
    pairs: NDArray[np.float64]  # (C, C), V
    part: Part


class Posed(NamedTuple):
    """Memory for one move's problem; arrays are (voxels,) of the box unless said otherwise."""

    movable: NDArray[np.bool_]  # the nodes of the cut
    cost: NDArray[np.float64]  # of taking α, of no meaning where not movable
    weights: NDArray[np.float32]  # (voxels, K / 2) of a voxel with its later neighbours, 0 unless both are movable
    totals: NDArray[np.float32]  # over all neighbours
    mask: NDArray[np.bool_]  # voxels that take α
    labels: NDArray[np.int8]  # after the move


@njit(nogil=True, cache=True)
def expand_in_turn(
    model: Model, labels: NDArray[np.int8], flow: Flow, room: Room, posed: Posed
) -> tuple[list[float], int]:
    """Improve the box's labels (voxels,) in place by moves to all classes in turn until a round changes nothing.

    Return the energies in the box, before the first move and after each that was accepted, and the number of rounds.
    """
    energies = [energy_in_box(model, labels)]
    classes = model.costs.shape[0]
    tried = np.zeros(classes, np.int64)  # how many energies there were after a class's last move
    rounds = 0
    while True:
        rounds += 1
        before = len(energies)
        for alpha in range(classes):
            # After a move to α no other one to α gains anything, until another class has moved.
            if tried[alpha] < len(energies):
                if propose_move(model, labels, alpha, flow, room, posed):
                    energy = energy_in_box(model, posed.labels)
                    if energy < energies[-1]:
                        energies.append(energy)
                        for p in range(labels.size):
                            labels[p] = posed.labels[p]
                tried[alpha] = len(energies)
        if len(energies) == before:
            return energies, rounds


@njit(nogil=True, cache=True)
def propose_move(model: Model, labels: NDArray[np.int8], alpha: int, flow: Flow, room: Room, posed: Posed) -> bool:
    """Write `posed.labels`, the best that become of labels (voxels,) where any free voxels take α.

    Of several best moves the smallest is proposed. Return whether it changes a label.
    """
    part = model.part
    if not _find_movable(model, labels, alpha, posed):
        return False
    heaviest = _weigh(model, labels, alpha, posed)
    problem = Part(
        seeds=np.empty((0, 0, 0), np.int8),
        corner=(0, 0, 0),
        shape=part.shape,
        free=posed.movable,
        charged=np.empty(0, np.int64),
        charges=np.empty(0, np.float64),
        pairs=Pairs(part.pairs.steps, posed.weights, posed.totals, heaviest),
    )
    guess = Guess(np.empty(0, np.int64), 0.0, 0.0, False)
    mask = posed.mask
    unary = posed.cost.reshape(part.shape)
    finite, _ = cut(unary, model.strength, problem, flow, guess, room, mask.reshape(part.shape))
    assert finite
    moved = posed.labels
    changed = 0
    for p in range(labels.size):
        moved[p] = alpha if mask[p] else labels[p]
        changed += mask[p]
    return changed > 0


@inner
def _find_movable(model: Model, labels: NDArray[np.int8], alpha: int, posed: Posed) -> bool:
    """Find the free voxels that might take α, with what that costs apart from pairs; say whether one might gain by it.

    Pairs of a voxel with the label a gain at most V(a, α) times their weights: if its neighbours take α as well.
    """
    costs, free, totals = model.costs, model.part.free, model.part.pairs.totals
    movable, cost, move_totals = posed.movable, posed.cost, posed.totals
    reach = model.strength * (1 + SLACK) * model.pairs[alpha]
    any_movable = False
    for p in range(labels.size):
        a = labels[p]
        moves = False
        cost[p], move_totals[p] = 0, 0
        if free[p] and a != alpha:
            difference = costs[alpha, p] - costs[a, p]
            moves = difference < reach[a] * totals[p]
            if moves:
                cost[p] = difference
        movable[p] = moves
        any_movable |= moves
    return any_movable


@inner
def _weigh(model: Model, labels: NDArray[np.int8], alpha: int, posed: Posed) -> float:
    """Scale the weights of pairs that may move, add all pairs' part to the costs; return the heaviest weight."""
    pairs, strength = model.pairs, model.strength
    steps, weights = model.part.pairs.steps, model.part.pairs.weights
    movable, cost, move_weights, totals = posed.movable, posed.cost, posed.weights, posed.totals
    half = weights.shape[1]
    both, alone, beside = (
        np.empty_like(pairs),
        np.empty_like(pairs),
        np.empty_like(pairs),
    )  # m, u and of those that stay
    for a in range(pairs.shape[0]):
        for b in range(pairs.shape[0]):
            both[a, b] = max(0.0, 0.5 * (pairs[a, alpha] + pairs[alpha, b] - pairs[a, b]))
            alone[a, b] = 0.5 * strength * (pairs[alpha, b] - pairs[a, alpha] - pairs[a, b])
            beside[a, b] = strength * (pairs[alpha, b] - pairs[a, b])
    heaviest = np.float32(0)
    for p in range(labels.size):
        a, moves = labels[p], movable[p]
        for j in range(half):
            weight = weights[p, j]
            scaled = np.float32(0)
            if weight > 0:  # else the neighbour is off the grid, or as good as that
                q = p + steps[half + j]
                b = labels[q]
                if moves and movable[q]:
                    scaled = np.float32(weight * both[a, b])
                    totals[p] += scaled
                    totals[q] += scaled
                    heaviest = max(heaviest, scaled)
                    if a != b:
                        cost[p] += weight * alone[a, b]
                        cost[q] += weight * alone[b, a]
                elif moves:
                    cost[p] += weight * beside[a, b]
                elif movable[q]:
                    cost[q] += weight * beside[b, a]
            move_weights[p, j] = scaled
    return np.float64(heaviest)


@njit(nogil=True, cache=True)
def energy_in_box(model: Model, labels: NDArray[np.int8]) -> float:
    """Return the energy of the box's labels (voxels,), of its voxels and the pairs within it."""
    costs, pairs = model.costs, model.pairs
    steps, weights = model.part.pairs.steps, model.part.pairs.weights
    total = 0.0
    for p in range(labels.size):
        total += costs[labels[p], p]
    half = weights.shape[1]
    border = 0.0
    for p in range(labels.size):
        a = labels[p]
        for j in range(half):
            q = p + steps[half + j]
            if 0 <= q < labels.size and labels[q] != a:
                border += weights[p, j] * pairs[a, labels[q]]  # a neighbour off the grid has the weight 0
    return total + model.strength * border
