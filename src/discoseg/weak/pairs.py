"""How much a border costs between each two of several structures, as people write it: "RV-MYO 0.5, MYO-LV 1.5"."""

import re
from collections.abc import Sequence
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from discoseg.discrete import PottsGrid, label_by_expansion
from discoseg.errors import UserError

BACKGROUND = "background"


def read_pairs(text: str | None, structures: Sequence[str]) -> NDArray[np.float64] | None:
    """Read ``--crf.pairs``: factors of the boundary prior between classes, (1 + K, 1 + K), background first.

    Pairs that are left out have 1, as all have without a text, which is None. A `UserError` says what is no metric:
    then expansion moves would not be exact.

    >>> read_pairs("RV-LV 2, background-LV 1.5", ["RV", "LV"])
    array([[0. , 1. , 1.5],
           [1. , 0. , 2. ],
           [1.5, 2. , 0. ]])
    """
    if text is None:
        return None
    classes = [BACKGROUND, *structures]
    try:
        if len(structures) == 1:
            raise UserError(f"it is for several structures, not for {structures[0]} alone; leave it out")
        pairs = _parse(text, classes)
        _require_metric(pairs, classes)
    except UserError as error:
        raise UserError(f"--crf.pairs {text}: {error}") from error
    return pairs


def _parse(text: str, classes: Sequence[str]) -> NDArray[np.float64]:
    known = {_plain(f"{classes[a]}-{classes[b]}"): (a, b) for a, b in permutations(range(len(classes)), 2)}
    pairs, seen = 1 - np.eye(len(classes)), set[frozenset[int]]()
    for part in text.split(","):
        name, _, number = part.strip().rpartition(" ")
        try:
            factor = float(number)
        except ValueError:
            name = ""
        if not name:
            raise UserError(
                f"{part.strip()!r} must be two structures and a number, such as {'-'.join(classes[:2])} 0.5"
            )
        if _plain(name) not in known:
            raise UserError(f"{name.strip()} is no pair of {', '.join(classes)}, joined by '-'")
        a, b = known[_plain(name)]
        if frozenset((a, b)) in seen:
            raise UserError(f"{name.strip()} is there twice")
        seen.add(frozenset((a, b)))
        pairs[a, b] = pairs[b, a] = factor
    return pairs


def _plain(name: str) -> str:
    return re.sub(r"\s*-\s*", "-", name.strip()).casefold()


def _require_metric(pairs: NDArray[np.float64], classes: Sequence[str]) -> None:
    """Ask the solver, about one voxel: it checks what it is given."""
    grid = PottsGrid(np.zeros((1, 1)), spacing_mm=(1, 1), sigma=1)
    try:
        label_by_expansion(grid, np.zeros((len(classes), 1, 1)), strength=0, pairs=pairs)
    except UserError as error:
        named = ", ".join(f"{number} {name}" for number, name in enumerate(classes))
        raise UserError(f"{error} ({named})") from error
