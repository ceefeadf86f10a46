"""A labelling in pieces: voxels that no chain of neighbours connects are labelled apart, each piece in a small box.

A move looks at every voxel of its box several times, and what is contested of a volume is often an organ and some
islands far from it.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from discoseg.discrete.mincut import Pairs, Part
from discoseg.discrete.moves import Model, Posed, expand_in_turn
from discoseg.discrete.preflow import Flow, Room, inner
from discoseg.discrete.scratch import borrow


class Bench(NamedTuple):
    """Memory for one piece of at most so many voxels, contents undefined, each array flat."""

    costs: NDArray[np.float64]  # C for each voxel
    labels: NDArray[np.int8]
    free: NDArray[np.bool_]
    weights: NDArray[np.float32]  # K / 2 for each voxel
    totals: NDArray[np.float32]
    residual: NDArray[np.int32]  # K for each voxel
    excess: NDArray[np.int64]
    outgoing: NDArray[np.uint32]
    filled: NDArray[np.int32]  # 2 for each voxel
    lists: NDArray[np.int32]  # 4 for each voxel, and 4 more
    flags: NDArray[np.bool_]  # 4 for each voxel
    move_cost: NDArray[np.float64]
    move_weights: NDArray[np.float32]  # K / 2 for each voxel
    move_totals: NDArray[np.float32]
    moved: NDArray[np.int8]


def borrow_bench(voxels: int, classes: int, arcs: int) -> Bench:
    """Return memory that is valid until the same thread borrows the next."""
    return Bench(
        costs=borrow("piece_costs", classes * voxels, np.float64),
        labels=borrow("piece_labels", voxels, np.int8),
        free=borrow("piece_free", voxels, np.bool_),
        weights=borrow("piece_weights", voxels * arcs // 2, np.float32),
        totals=borrow("piece_totals", voxels, np.float32),
        residual=borrow("residual", voxels * arcs, np.int32),
        excess=borrow("excess", voxels, np.int64),
        outgoing=borrow("outgoing", voxels, np.uint32),
        filled=borrow("filled", 2 * voxels, np.int32),
        lists=borrow("piece_lists", 4 * voxels + 4, np.int32),
        flags=borrow("piece_flags", 4 * voxels, np.bool_),
        move_cost=borrow("move_cost", voxels, np.float64),
        move_weights=borrow("move_weights", voxels * arcs // 2, np.float32),
        move_totals=borrow("move_totals", voxels, np.float32),
        moved=borrow("moved_labels", voxels, np.int8),
    )


@njit(nogil=True, cache=True)
def find_pieces(
    contested: NDArray[np.bool_], part: Part, number: NDArray[np.int32], queue: NDArray[np.int32]
) -> NDArray[np.int64]:
    """Number the pieces of the contested free voxels of a part's box; return boxes around each and its neighbours.

    contested: (z, y, x) of the image. number: (voxels,) of the part's box, written: a voxel's piece from 0 up, or -1.
    queue: (voxels,), memory. Boxes: (pieces, 6), first z, y, x and the ends, within the part's box.
    """
    (z0, y0, x0), (depth, height, width) = part.corner, part.shape
    for line in range(depth * height):
        read = contested[z0 + line // height, y0 + line % height, x0 : x0 + width]
        free, written = part.free[line * width : (line + 1) * width], number[line * width : (line + 1) * width]
        for x in range(width):
            written[x] = -1 if free[x] and read[x] else -2
    boxes = np.empty((16, 6), np.int64)
    count = 0
    for start in range(number.size):
        if number[start] == -1:
            if count == len(boxes):
                boxes = np.concatenate((boxes, np.empty_like(boxes)))
            _flood(start, count, part, number, queue, boxes[count])
            count += 1
    return boxes[:count]


@inner
def _flood(
    start: int, piece: int, part: Part, number: NDArray[np.int32], queue: NDArray[np.int32], box: NDArray[np.int64]
) -> None:
    """Number all voxels that can be reached, and set the box around them."""
    _, height, width = part.shape
    steps, weights = part.pairs.steps, part.pairs.weights
    half = weights.shape[1]
    box[:3], box[3:] = number.size, 0
    queue[0], number[start] = start, piece
    done, known = 0, 1
    while done < known:
        p = np.int64(queue[done])
        done += 1
        place = (p // (height * width), p // width % height, p % width)
        for axis in range(3):
            box[axis] = min(box[axis], max(place[axis] - 1, 0))
            box[3 + axis] = max(box[3 + axis], min(place[axis] + 2, part.shape[axis]))
        for j in range(half):
            later, earlier = p + steps[half + j], p - steps[half + j]
            if weights[p, j] > 0 and number[later] == -1:  # else it is off the grid, or as good as that
                queue[known], number[later] = later, piece
                known += 1
            if 0 <= earlier < number.size and weights[earlier, j] > 0 and number[earlier] == -1:
                queue[known], number[earlier] = earlier, piece
                known += 1


@njit(nogil=True, cache=True)
def expand_pieces(
    costs: NDArray[np.floating],
    strength: float,
    metric: NDArray[np.float64],
    part: Part,
    offsets: NDArray[np.int64],
    number: NDArray[np.int32],
    boxes: NDArray[np.int64],
    bench: Bench,
    labels: NDArray[np.int8],
) -> tuple[list[float], int]:
    """Improve labels (z, y, x) in place, piece by piece, by moves until none gains.

    costs: (C, z, y, x). offsets: (K / 2, 3). Return what each accepted move gained, and the most rounds of a piece.
    """
    gains = [0.0]
    most_rounds = 1
    for piece in range(len(boxes)):
        box = boxes[piece]
        model = _cut_out(costs, strength, metric, part, offsets, number, piece, box, bench, labels)
        n = model.part.free.size
        own = bench.labels[:n]
        energies, rounds = expand_in_turn(model, own, *_memory(bench, n, part.pairs.steps.size))
        for i in range(1, len(energies)):
            gains.append(energies[i - 1] - energies[i])
        most_rounds = max(most_rounds, rounds)
        _put_back(own, part.corner, box, labels)
    return gains[1:], most_rounds


@inner
def _cut_out(costs, strength, metric, part, offsets, number, piece, box, bench, labels):  # type: ignore[no-untyped-def]
    """Copy one piece; of all other voxels in its box the labels stay as they are."""
    (z0, y0, x0), (_, height, width) = part.corner, part.shape
    low_z, low_y, low_x, end_z, end_y, end_x = box
    shape = (end_z - low_z, end_y - low_y, end_x - low_x)
    n, half, classes = shape[0] * shape[1] * shape[2], offsets.shape[0], costs.shape[0]
    own_costs, weights = bench.costs[: classes * n].reshape(classes, n), bench.weights[: n * half].reshape(n, half)
    steps = np.empty(2 * half, np.int64)
    for j in range(half):
        step = (offsets[j, 0] * shape[1] + offsets[j, 1]) * shape[2] + offsets[j, 2]
        steps[half + j], steps[half - 1 - j] = step, -step
    i = 0
    for z in range(low_z, end_z):
        for y in range(low_y, end_y):
            for x in range(low_x, end_x):
                p = (z * height + y) * width + x
                bench.labels[i] = labels[z0 + z, y0 + y, x0 + x]
                bench.free[i] = number[p] == piece
                bench.totals[i] = part.pairs.totals[p]
                for c in range(classes):
                    own_costs[c, i] = costs[c, z0 + z, y0 + y, x0 + x]
                for j in range(half):
                    z2, y2, x2 = z + offsets[j, 0], y + offsets[j, 1], x + offsets[j, 2]
                    inside = z2 < end_z and low_y <= y2 < end_y and low_x <= x2 < end_x
                    weights[i, j] = part.pairs.weights[p, j] if inside else np.float32(0)
                i += 1
    piece_part = Part(
        seeds=np.empty((0, 0, 0), np.int8),
        corner=(0, 0, 0),
        shape=shape,
        free=bench.free[:n],
        charged=np.empty(0, np.int64),
        charges=np.empty(0, np.float64),
        pairs=Pairs(steps, weights, bench.totals[:n], part.pairs.heaviest),
    )
    return Model(own_costs, strength, metric, piece_part)


@inner
def _memory(bench, n, arcs):  # type: ignore[no-untyped-def]
    """Return memory for the moves of n voxels."""
    lists, flags, filled = bench.lists, bench.flags, bench.filled[: 2 * n]
    flow = Flow(bench.excess[:n], bench.residual[: n * arcs].reshape(n, arcs), bench.outgoing[:n])
    room = Room(
        cost=filled.view(np.float64),
        filled=filled.reshape(2, n),
        live=lists[:n],
        queue=lists[n : 2 * n],
        first=lists[2 * n : 3 * n + 2],
        level_size=lists[3 * n + 2 : 4 * n + 4],
        undecided=flags[:n],
        inside=flags[n : 2 * n],
    )
    posed = Posed(
        movable=flags[2 * n : 3 * n],
        cost=bench.move_cost[:n],
        weights=bench.move_weights[: n * (arcs // 2)].reshape(n, arcs // 2),
        totals=bench.move_totals[:n],
        mask=flags[3 * n : 4 * n],
        labels=bench.moved[:n],
    )
    return flow, room, posed


@inner
def _put_back(own, corner, box, labels):  # type: ignore[no-untyped-def]
    """Write the labels of a piece's box, of which only the piece itself has changed."""
    z0, y0, x0 = corner
    i = 0
    for z in range(box[0], box[3]):
        for y in range(box[1], box[4]):
            for x in range(box[2], box[5]):
                labels[z0 + z, y0 + y, x0 + x] = own[i]
                i += 1
