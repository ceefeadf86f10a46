"""Neighbourhoods and contrast weights of a grid: exp(−d²/2σ²) / distance in mm for each pair of neighbours."""

import itertools
import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from discoseg.errors import UserError

# By the number of axes and of neighbours: in how many axes a neighbour may differ, of how many (the last ones).
NEIGHBOURHOODS = {2: {4: (1, 2), 8: (2, 2)}, 3: {6: (1, 3), 8: (2, 2), 18: (2, 3), 26: (3, 3)}}


def forward_offsets(axes: int, neighbours: int) -> NDArray[np.int64]:
    """Offsets of the neighbours that come later in C order, (neighbours / 2, axes), in C order.

    >>> forward_offsets(2, 8).tolist()
    [[0, 1], [1, -1], [1, 0], [1, 1]]
    """
    known = NEIGHBOURHOODS[axes]
    if neighbours not in known:
        choice = " or ".join([", ".join(map(str, list(known)[:-1])), str(list(known)[-1])])
        raise UserError(f"neighbours is {neighbours}: a {axes}D image takes {choice}")
    most, of = known[neighbours]
    cube = itertools.product(*[(0,)] * (axes - of), *[(-1, 0, 1)] * of)
    return np.array([o for o in cube if o > (0,) * axes and sum(map(abs, o)) <= most], dtype=np.int64)


def widen_bright(
    image: NDArray[np.floating], pixels: int, box: tuple[slice, slice, slice] | None = None
) -> NDArray[np.floating]:
    """Return an image (z, y, x) with whatever is bright ``pixels`` wider in its slices; whatever is dark, if negative.

    Each pixel becomes the brightest, or the darkest, of itself and its four neighbours, so many times. Of a ``box`` of
    the image, no more is read than that takes. With 0 pixels it is a view.

    >>> widen_bright(np.array([[[0.0, 0.0, 0.9, 0.5, 0.0, 0.0]]]), 1)
    array([[[0. , 0.9, 0.9, 0.9, 0.5, 0. ]]])
    """
    z, y, x = (slice(0, length) for length in image.shape) if box is None else box
    reach = abs(pixels)
    top, left = max(y.start - reach, 0), max(x.start - reach, 0)
    image = image[z, top : y.stop + reach, left : x.stop + reach]
    take = np.maximum if pixels > 0 else np.minimum
    for _ in range(reach):
        wider = image.copy()
        for into, out_of in ((np.s_[:, 1:], np.s_[:, :-1]), (np.s_[:, :, 1:], np.s_[:, :, :-1])):
            take(wider[into], image[out_of], out=wider[into])
            take(wider[out_of], image[into], out=wider[out_of])
        image = wider
    return image[:, y.start - top : y.stop - top, x.start - left : x.stop - left]


def distances_mm(offsets: NDArray[np.int64], spacing_mm: tuple[float, ...]) -> NDArray[np.float64]:
    """Length of each offset in mm."""
    return np.array([math.hypot(*(o * spacing_mm)) for o in offsets])


def arc_steps(offsets: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Step in the flat array to each neighbour, (neighbours,): the backward ones, then the forward ones.

    The arc in the opposite direction of arc k is arc neighbours-1-k.
    """
    strides = np.cumprod((1, *shape[:0:-1]))[::-1]
    forward = offsets @ strides
    return np.concatenate([-forward[::-1], forward])


@njit(nogil=True, cache=True)
def contrast_weights(
    image: NDArray, offsets: NDArray[np.int64], distances_mm: NDArray[np.float64], sigma: float
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the weights of each voxel with its later neighbours and their sum over all its neighbours.

    image: (z, y, x). Weights: (voxels, neighbours / 2) float32, 0 where the neighbour lies outside the image.
    Sums: (voxels,) float32.
    """
    depth, height, width = image.shape
    half = offsets.shape[0]
    weights = np.zeros((image.size, half), np.float32)
    totals = np.zeros(image.size, np.float32)
    falloff = -0.5 / sigma**2
    p = 0
    for z in range(depth):
        for y in range(height):
            for x in range(width):
                for j in range(half):
                    z2, y2, x2 = z + offsets[j, 0], y + offsets[j, 1], x + offsets[j, 2]
                    if z2 < depth and 0 <= y2 < height and 0 <= x2 < width:
                        difference = np.float64(image[z, y, x]) - image[z2, y2, x2]
                        weight = np.float32(math.exp(falloff * difference * difference) / distances_mm[j])
                        weights[p, j] = weight
                        totals[p] += weight
                        totals[(z2 * height + y2) * width + x2] += weight
                p += 1
    return weights, totals


@njit(nogil=True, cache=True)
def border_weight(
    labels: NDArray[np.int8],
    pairs: NDArray[np.float64],
    image: NDArray,
    offsets: NDArray[np.int64],
    distances_mm: NDArray[np.float64],
    sigma: float,
) -> float:
    """Return the sum of the weights, rounded to float32 as above, times what `pairs` (C, C) has for the labels."""
    depth, height, width = image.shape
    falloff = -0.5 / sigma**2
    total = np.float64(0)
    for z in range(depth):
        for y in range(height):
            for j in range(offsets.shape[0]):
                z2, y2, step = z + offsets[j, 0], y + offsets[j, 1], offsets[j, 2]
                if z2 >= depth or not 0 <= y2 < height:
                    continue
                first, stop = max(0, -step), min(width, width - step)
                row, row2 = labels[z, y, first:stop], labels[z2, y2, first + step : stop + step]
                differing = np.int8(0)
                for i in range(row.size):  # many voxels at a time
                    differing |= row[i] ^ row2[i]
                if differing == 0:
                    continue
                for i in range(row.size):
                    if row[i] != row2[i]:
                        x = first + i
                        difference = np.float64(image[z, y, x]) - image[z2, y2, x + step]
                        weight = np.float32(math.exp(falloff * difference * difference) / distances_mm[j])
                        total += weight * pairs[row[i], row2[i]]
    return total


@njit(nogil=True, cache=True)
def charges_of_seeds(
    seeds: NDArray[np.int8], weights: NDArray[np.float32], steps: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return what its pairs with seeds add to the cost of each unknown voxel, (voxels,), for a strength of 1.

    seeds: (voxels,). weights: (voxels, neighbours / 2). steps: (neighbours,).
    """
    charges = np.zeros(seeds.size)
    half = weights.shape[1]
    for j in range(half):
        step = steps[half + j]
        if step <= 0:  # leaves this narrow grid from everywhere
            continue
        later_seeds, later_charges = seeds[step:], charges[step:]
        for p in range(seeds.size - step):
            # A later neighbour off the grid has the weight 0, whatever voxel is found in its place.
            if (seeds[p] ^ later_seeds[p]) < 0:  # one is -1 and the other not
                if seeds[p] < 0:
                    charges[p] += weights[p, j] * (1 - 2 * later_seeds[p])
                else:
                    later_charges[p] += weights[p, j] * (1 - 2 * seeds[p])
    return charges


def pull_of_neighbours(
    mask: NDArray[np.bool_], weights: NDArray[np.float32], steps: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the sum of the weights of each voxel with those of its neighbours that a mask holds, (voxels,).

    mask: (voxels,). weights: (voxels, neighbours / 2). steps: (neighbours,).
    """
    pull = np.zeros(mask.size)
    half = weights.shape[1]
    for j, step in enumerate(steps[half:].tolist()):
        if 0 < step < mask.size:
            near = weights[:-step, j]  # 0 where the later neighbour is off the grid
            pull[:-step] += near * mask[step:]
            pull[step:] += near * mask[:-step]
    return pull


@njit(nogil=True, cache=True)
def same_seeds(one: NDArray[np.int8], other: NDArray[np.int8]) -> bool:
    """Say whether two arrays (z, y, x) are equal, without Python's lock, which numpy would take several times."""
    if one.shape != other.shape:
        return False
    differing = 0
    for a, b in zip(one.ravel(), other.ravel()):  # noqa: B905
        differing += a != b
    return differing == 0
