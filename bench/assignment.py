"""Time the size proposal of four classes against the number of voxels, and against OR-tools and SciPy.

    python bench/assignment.py

Utilities are probabilities of smooth structures plus multipliers; each structure is to have 20 % more or fewer voxels
than its probabilities say, ±5 %. Processor time, ours the best of three; values are compared with the rivals'.
"""

import numpy as np
from numpy.typing import NDArray
from ortools.graph.python.min_cost_flow import SimpleMinCostFlow
from scipy import ndimage, sparse
from scipy.optimize import linprog

from discoseg.discrete import assign_by_size, assign_with_prices
from instances import best_time

CLASSES = 4
RESOLUTION = 2**24  # of OR-tools, which takes integers: units of a utility of 1

Bounds = NDArray[np.int64]


def make_utility(voxels: int) -> NDArray[np.float32]:
    """Softmax probabilities of smooth fields, background ahead, and noise for the multipliers: (C, z, y, x)."""
    rng = np.random.default_rng(voxels)
    side = round((8 * voxels) ** (1 / 3))
    shape = (CLASSES, max(1, round(voxels / side**2)), side, side)
    fields = ndimage.gaussian_filter(rng.normal(size=shape).astype(np.float32), (0, 0.5, 4, 4), mode="wrap")
    fields *= 4 / fields.std()
    fields[0] += 3
    odds = np.exp(fields - fields.max(0))
    return odds / odds.sum(0) + rng.normal(scale=0.1, size=shape).astype(np.float32)


def make_bounds(utility: NDArray[np.float32]) -> tuple[Bounds, Bounds]:
    """Sizes in turn 20 % larger and smaller than each voxel's best class makes them, ±5 %; any background: (C,)."""
    sizes = np.bincount(utility.argmax(0).ravel(), minlength=CLASSES)
    wanted = sizes * np.where(np.arange(CLASSES) % 2, 1.2, 0.8)
    low, high = (0.95 * wanted).astype(np.int64), (1.05 * wanted).astype(np.int64)
    low[0], high[0] = 0, sizes.sum()
    return low, high


def solve_by_ortools(utility: NDArray[np.float32], low: Bounds, high: Bounds) -> float:
    """Return the value that SimpleMinCostFlow finds: one arc a voxel and class, and one from each class to a sink."""
    flat = utility.reshape(CLASSES, -1).astype(np.float64)
    voxels = flat.shape[1]
    classes, sink = voxels + np.arange(CLASSES), voxels + CLASSES
    solver = SimpleMinCostFlow()
    arcs = solver.add_arcs_with_capacity_and_unit_cost(
        np.tile(np.arange(voxels), CLASSES),
        np.repeat(classes, voxels),
        np.ones(flat.size, np.int64),
        -np.rint(flat.ravel() * RESOLUTION).astype(np.int64),
    )
    solver.add_arcs_with_capacity_and_unit_cost(
        classes, np.full(CLASSES, sink), high - low, np.zeros(CLASSES, np.int64)
    )
    supplies = np.concatenate([np.ones(voxels, np.int64), -low, [low.sum() - voxels]])
    solver.set_nodes_supplies(np.arange(sink + 1), supplies)
    status = solver.solve()
    assert status == solver.OPTIMAL
    return float(flat.ravel() @ solver.flows(arcs))


def solve_by_scipy(utility: NDArray[np.float32], low: Bounds, high: Bounds) -> float:
    """Return the value that linprog (HiGHS) finds."""
    flat = utility.reshape(CLASSES, -1).astype(np.float64)
    one_each = sparse.hstack([sparse.eye_array(flat.shape[1])] * CLASSES)
    sizes = sparse.kron(sparse.eye_array(CLASSES), np.ones(flat.shape[1]))
    found = linprog(
        -flat.ravel(),
        A_eq=one_each,
        b_eq=np.ones(flat.shape[1]),
        A_ub=sparse.vstack([sizes, -sizes]),
        b_ub=np.concatenate([high, -low]),
        bounds=(0, 1),
    )
    return -float(found.fun)


def measure_sizes() -> None:
    """Print the time of an assignment, and with its certificate, against the number of voxels."""
    print("| voxels | seconds | with prices | bound − value |")
    print("|---|---|---|---|")
    voxels, seconds = [], []
    for size in (10**4, 10**5, 10**6, 5 * 10**6):
        utility = make_utility(size)
        low, high = (bounds.tolist() for bounds in make_bounds(utility))
        seconds.append(best_time(lambda: assign_by_size(utility, low, high), 3)[0])  # noqa: B023
        certified, found = best_time(lambda: assign_with_prices(utility, low, high), 3)  # noqa: B023
        voxels.append(utility[0].size)
        print(f"| {voxels[-1]} | {seconds[-1]:.4f} | {certified:.4f} | {found.bound - found.value:.3g} |", flush=True)
    print(f"exponent {np.polyfit(np.log(voxels), np.log(seconds), 1)[0]:.2f}")


def measure_rivals() -> None:
    """Print the time of the rivals, as a multiple of ours on the same problem."""
    print("\n| rival | voxels | ours | rival | ratio | value less ours |")
    print("|---|---|---|---|---|---|")
    for name, solve, size in (
        ("OR-tools", solve_by_ortools, 10**4),
        ("OR-tools", solve_by_ortools, 10**5),
        ("OR-tools", solve_by_ortools, 10**6),
        ("SciPy", solve_by_scipy, 10**4),
    ):
        utility = make_utility(size)
        low, high = make_bounds(utility)
        lows, highs = low.tolist(), high.tolist()
        ours, found = best_time(lambda: assign_with_prices(utility, lows, highs), 3)  # noqa: B023
        theirs, value = best_time(lambda: solve(utility, low, high), 1)  # noqa: B023
        cells = f"{utility[0].size} | {ours:.4f} s | {theirs:.3g} s | {theirs / ours:.0f}× | {value - found.value:.1e}"
        print(f"| {name} | {cells} |", flush=True)


if __name__ == "__main__":
    assign_with_prices(make_utility(10**4), [0] * CLASSES, [None] * CLASSES)  # compiles
    measure_sizes()
    measure_rivals()
