"""A minimum cut whose costs are guessed before they are known, so that most of the flow is there when they come.

After a flow, what is left of the costs and arcs is a problem of its own with the same minimisers. When some costs
change, only the change has to flow on: exact, whatever the guess was, and the sooner done the better it was.
"""

import numpy as np
from numpy.typing import NDArray

from discoseg.discrete.maxflow import maximise
from discoseg.discrete.mincut import (
    RESOLUTION,
    Pairs,
    cost_bound,
    separates_clamped,
    smallest_cut,
    smallest_side,
    survey,
    to_units,
)
from discoseg.discrete.preflow import MAX_CAPACITY, new_preflow
from discoseg.discrete.scratch import borrow

_COARSENING = 16  # how much coarser the guess's unit may be than the one the costs themselves would get


class ForeseenCut:
    """One graph's flow, kept from a guess to the cut that follows it: 4 bytes an arc and 20 a voxel.

    free: (voxels,), as for :func:`discoseg.discrete.mincut.smallest_cut`.
    """

    def __init__(self, free: NDArray[np.bool_], pairs: Pairs) -> None:
        self._free, self._pairs = free, pairs
        voxels, arcs = free.size, pairs.steps.size
        self._residual = np.empty((voxels, arcs), np.int32)
        self._outgoing = np.empty(voxels, np.uint32)
        self._units = np.empty(voxels, np.int64)  # of the guess
        self._excess = np.empty(voxels, np.int64)
        self._unit = 0.0  # 0: no flow is kept
        self._strength = 0.0
        self._inside_pushes = False

    def guess(self, cost: NDArray[np.floating], strength: float) -> None:
        """Solve for costs (voxels,) that are near those of the next cut."""
        self._unit = 0.0
        number, number_inside, total, _ = survey(cost, self._free)
        if strength * self._pairs.heaviest / MAX_CAPACITY == 0 or number_inside in (0, number):
            return  # nothing flows
        exact_unit = strength * self._pairs.heaviest / MAX_CAPACITY
        self._inside_pushes = 2 * number_inside <= number
        self._strength = strength
        self._unit = min(exact_unit, total / number / RESOLUTION)
        self._to_units(cost, self._units)
        self._excess[:] = self._units
        self._outgoing.fill(0)
        self._flow_on()

    def cut(self, cost: NDArray[np.floating], strength: float) -> NDArray[np.bool_]:
        """Return the smallest mask (voxels,) of least energy; the guess is used up."""
        unit, self._unit = self._unit, 0.0
        number, number_inside, total, _ = survey(cost, self._free)
        usable = unit > 0 and strength == self._strength and unit <= _COARSENING * total / max(number, 1) / RESOLUTION
        if not usable or number_inside in (0, number):
            return smallest_cut(cost, self._free, self._pairs, strength)[0]
        self._unit = unit
        units = borrow("units", cost.size, np.int64)
        self._to_units(cost, units)
        np.subtract(units, self._units, out=units)
        np.add(self._excess, units, out=self._excess)
        mask = self._flow_on()
        self._unit = 0.0
        # Where capacities were clamped the mask must not separate them: see smallest_cut.
        clamped = unit < strength * self._pairs.heaviest / MAX_CAPACITY
        if clamped and separates_clamped(mask, self._free, self._pairs, strength / unit):
            return smallest_cut(cost, self._free, self._pairs, strength)[0]
        return mask

    def _to_units(self, cost: NDArray[np.floating], units: NDArray[np.int64]) -> None:
        unit = -self._unit if self._inside_pushes else self._unit
        to_units(cost, self._free, unit, cost_bound(self._pairs), units)

    def _flow_on(self) -> NDArray[np.bool_]:
        arcs = self._residual, self._outgoing
        scale = self._strength / self._unit
        preflow = new_preflow(self._excess, self._free, self._pairs.weights, self._pairs.steps, scale, arcs=arcs)
        maximise(preflow)
        return smallest_side(preflow, self._inside_pushes)
