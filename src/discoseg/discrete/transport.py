"""Voxels to classes, each class within its bounds, such that the sum of utilities is largest: exact, in integers.

Shortest paths from any prices lead to an optimum (:mod:`discoseg.discrete.balance`); good prices only leave less to do.
They come from the same problem on a sample of the voxels, whose own come from a smaller sample.

Most voxels are background by far. Those of which no class comes near that at the sample's prices are left out, and the
rest is solved with bounds of the background less their number. If at the prices found the background is still strictly
the best class of each one left out, these prices prove the whole optimal, and as all optima keep to the same prices,
every optimum gives those voxels to the background: which of equal optima is taken does not change either. Otherwise
fewer are left out.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from discoseg.discrete.balance import balance, connect_sink, prices_along
from discoseg.discrete.heaps import NEVER
from discoseg.discrete.ties import settle_ties

THINNING = 8  # voxels of which a sample takes one
COARSEST = 300  # voxels of a sample, at least
LEAST_MARGIN = 2.0**45  # units; the largest utility has 2⁵² to 2⁵³
ROUNDING = 64.0  # units, more than the float64 sums of `_find_near` are off


@njit(nogil=True, cache=True)
def largest_of(utility: NDArray, free: NDArray[np.int64]) -> float:
    """Return the largest absolute value of the utilities (C, voxels) of the free voxels, 0 where there are none."""
    largest = 0.0
    for c in range(utility.shape[0]):
        for i in range(free.size):
            largest = max(largest, abs(np.float64(utility[c, free[i]])))
    return largest


@njit(nogil=True, cache=True)
def count_units(utility: NDArray, free: NDArray[np.int64], scale: float) -> NDArray[np.int64]:
    """Return the utilities (C, voxels) of the free voxels in even integers, (free, C), of 1 / scale for 2."""
    units = np.empty((free.size, utility.shape[0]), np.int64)
    for i in range(free.size):
        for c in range(units.shape[1]):
            units[i, c] = 2 * np.int64(np.rint(utility[c, free[i]] * scale))
    return units


def transport(
    utility: NDArray,
    free: NDArray[np.int64],
    scale: float,
    low: NDArray[np.int64],
    high: NDArray[np.int64],
    *,
    wanted: float = 2.0,
    spare: int = 4,
    reach: float = 2.0,
) -> NDArray[np.int8]:
    """Return the class of each free voxel, (free,) int8, for bounds that can be met.

    utility: (C, voxels), times ``scale`` within ±2⁵², then rounded. free: in order. low, high: (C,), 0 ≤ low ≤ high ≤
    free voxels. Of several optima the one with the most voxels of class 0, and of those the one that is last in
    lexicographic order. Scratch memory: 8 C bytes for each voxel that some class comes near, and at most 48 C for each
    one that is moved or near to a change of class.

    None of these changes the result: for each one that is to be moved, ``wanted`` of a class that lose least in another
    are gathered at first, and there is room for ``spare`` per voxel to be moved before they are gathered anew; and
    ``reach`` times the last change of prices is how near is near, inf for all voxels.
    """
    voxels = free.size
    prices, margin = np.zeros(len(utility), np.int64), np.inf
    stride = 1
    while voxels // (stride * THINNING) >= COARSEST:
        stride *= THINNING
    while stride > 1:
        sample = free[_thin_out(voxels, stride)]
        few, many = low * len(sample) // voxels, -(-high * len(sample) // voxels)  # rounded such that they can be met
        found = _solve_near(utility, sample, scale, few, many, prices, margin, wanted, spare)[3]
        margin = max(reach * float(np.abs(found - prices).max()), LEAST_MARGIN)
        prices = found
        stride //= THINNING
    near, chosen, flow, prices, units, least, most = _solve_near(
        utility, free, scale, low, high, prices, margin, wanted, spare
    )
    earned = prices + (np.arange(len(prices)) == 0)  # by handing on a voxel: a class that earns nothing may hand on any
    settle_ties(units, chosen, flow, prices, earned == 0, least, most)
    labels = np.zeros(voxels, np.int8)
    labels[near] = chosen
    return labels


def _solve_near(  # type: ignore[no-untyped-def]
    utility, free, scale, low, high, prices, margin, wanted, spare
):
    """Solve for the free voxels that are near to leaving class 0 at these prices.

    Return their places in ``free``, labels, what each class hands on, prices, units and bounds; all others are of class
    0 in every optimum.
    """
    while True:
        near = _find_near(utility, free, scale, prices.astype(np.float64), margin)
        left_out = free.size - near.size
        least, most = low.copy(), high.copy()
        least[0], most[0] = max(low[0] - left_out, 0), high[0] - left_out
        if most[0] >= 0 and least.sum() <= near.size:
            units = count_units(utility, free[near], scale)
            assert units.size < 2**31
            labels, flow, found = balance(units, least, most, prices, wanted, spare)
            nearer = float((found[0] - prices[0] - (found - prices)).max())  # by which a class came closer to class 0
            # A price below 0 says that its lower bound forces class 0, which `least` does not where it was cut off.
            forced = found[0] < -1 and low[0] < left_out
            if left_out == 0 or (nearer <= margin - ROUNDING and not forced):
                return near, labels, flow, found, units, least, most
        margin = 8 * max(margin, LEAST_MARGIN)


@njit(nogil=True, cache=True)
def _find_near(
    utility: NDArray, free: NDArray[np.int64], scale: float, prices: NDArray[np.float64], margin: float
) -> NDArray[np.int64]:
    """Return places in ``free`` of voxels of which class 0 is ahead of another by no more than the margin, in units."""
    near, found = np.empty(free.size, np.int64), 0
    for i in range(free.size):
        p = free[i]
        best = -np.inf
        for c in range(1, prices.size):
            best = max(best, 2 * (utility[c, p] * scale) - prices[c])
        near[found] = i
        found += not 2 * (utility[0, p] * scale) - prices[0] - best > margin
    return near[:found].copy()


@njit(nogil=True, cache=True)
def certify(  # type: ignore[no-untyped-def]
    units: NDArray[np.int64], labels: NDArray[np.int8], low: NDArray[np.int64], high: NDArray[np.int64]
):
    """Return prices (C,) of the classes, in units, and how far the labels can be from the optimum at most, in units.

    units: (voxels, C). labels: (voxels,). Whatever the prices, no labels within the bounds are worth more than

        Σ_p max_c (units[p, c] - prices[c])  +  Σ_c max(prices[c] · low[c], prices[c] · high[c])

    The sums are over terms that are not negative, so the distance of an optimum is exactly 0.
    """
    voxels, classes = units.shape
    arcs = np.full((classes + 1, classes + 1), NEVER)
    counts = np.zeros(classes, np.int64)
    for p in range(voxels):
        c = labels[p]
        counts[c] += 1
        for d in range(classes):
            if d != c:
                arcs[c, d] = min(arcs[c, d], units[p, c] - units[p, d])
    connect_sink(arcs, counts, low, high, 0)
    prices = prices_along(arcs)
    gap = 0.0
    for c in range(classes):
        spare = high[c] - counts[c] if prices[c] > 0 else low[c] - counts[c]
        gap += np.float64(prices[c]) * np.float64(spare)
    for p in range(voxels):
        own = units[p, labels[p]] - prices[labels[p]]
        best = own
        for c in range(classes):
            best = max(best, units[p, c] - prices[c])
        gap += np.float64(best - own)
    return prices, gap


def _thin_out(voxels: int, stride: int) -> NDArray[np.int64]:
    """Return one of every ``stride`` voxels, at a place in the stretch that looks random, so that no period is met."""
    stretch = np.arange(voxels // stride)
    return stretch * stride + (((stretch * 2654435761) & 0xFFFFFFFF) * stride >> 32)
