"""What to leave out of a page where there is too much: cases between the best and the worst, epochs between peaks."""

import numpy as np
from numpy.typing import NDArray


def pick_cases(count: int, most: int) -> list[int]:
    """Return which of ``count`` cases in order to show: all up to ``most``, else both ends and some evenly between.

    A third are the first, a third the last.

    >>> pick_cases(4, 6), pick_cases(100, 6)
    ([0, 1, 2, 3], [0, 1, 26, 74, 98, 99])
    """
    if count <= most:
        return list(range(count))
    ends = most // 3
    left, shown = count - 2 * ends, most - 2 * ends  # cases between the ends, of which as many are shown
    between = [ends + (2 * place + 1) * left // (2 * shown) for place in range(shown)]  # the middles of equal parts
    return [*range(ends), *between, *range(count - ends, count)]


def describe_pick(count: int, most: int, *, first: str = "best", last: str = "worst") -> str:
    """Return a sentence about what :func:`pick_cases` leaves out; nothing where it leaves out nothing.

    >>> describe_pick(3000, 90)
    'Shown are 90 of 3000 cases: the 30 best, the 30 worst, and 30 evenly between them.'
    """
    if count <= most:
        return ""
    ends = most // 3
    return (
        f"Shown are {most} of {count} cases: the {ends} {first}, the {ends} {last}, "
        f"and {most - 2 * ends} evenly between them."
    )


def pick_peaks(values: NDArray[np.float64], most: int) -> NDArray[np.int_]:
    """Return which points of a curve (N,) draw it: all up to ``most``, else the extremes of ``most``/2 stretches."""
    if len(values) <= most:
        return np.arange(len(values))
    kept = {0, len(values) - 1}
    for stretch in np.array_split(np.arange(len(values)), most // 2):
        known = stretch[np.isfinite(values[stretch])]
        if len(known):
            kept |= {int(known[values[known].argmin()]), int(known[values[known].argmax()])}
    return np.array(sorted(kept))
