"""How long the rest will take, by what the last steps took."""

import time
from collections.abc import Callable

_STEPS = 10  # of which the mean is taken: epochs slow down when proposals begin


class Pace:
    """The time left of work in equal steps, such as epochs or cases.

    It knows nothing until a second step has ended: the first one waits for compilers, caches and files.

    >>> seconds = iter([60.0, 62.0, 64.0, 65.0])
    >>> pace = Pace(clock=lambda: next(seconds))
    >>> for done in (0.0, 0.5, 1.0):  # the first step ends after a minute
    ...     pace.note(done)
    >>> pace.left_s(10) is None
    True
    >>> pace.note(2.0)
    >>> pace.note(3.0)
    >>> pace.left_s(10)  # seven steps of two seconds; one second of them is over
    13.0
    """

    def __init__(self, clock: Callable[[], float] = lambda: time.monotonic()) -> None:
        self._clock = clock
        # When, and how many steps were done then; never changed but replaced, as another thread draws by it.
        self._ends: tuple[tuple[float, float], ...] = ()

    def note(self, done: float) -> None:
        """Take notice of the steps done so far, a fraction within a step; fewer than before begin anew."""
        if self._ends and done < self._ends[-1][1]:
            self._ends = ()
        if done > 0 and done == int(done) and not (self._ends and done == self._ends[-1][1]):
            self._ends = (*self._ends, (self._clock(), done))[-1 - _STEPS :]

    def left_s(self, total: float) -> float | None:
        """Return the seconds until ``total`` steps are done; None while nobody can know."""
        ends = self._ends
        if len(ends) < 2:
            return None
        (first, from_step), (last, to_step) = ends[0], ends[-1]
        step_s = (last - first) / (to_step - from_step)
        return max(step_s * (total - to_step) - min(self._clock() - last, step_s), 0.0)
