"""Waiting for what threads do for each case, without being deaf meanwhile."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait

from discoseg.errors import UserError

_TICK_S = 0.25


def await_cases(jobs: Iterable[tuple[str, "Future[None]"]], tick: Callable[[], None] = lambda: None) -> None:
    """Wait for the jobs, each with its case's name; ``tick`` is called now and then, and may raise an error.

    A job that failed is a `UserError` that names the case: no more of the training is lost than since its last
    checkpoint.
    """
    for name, job in jobs:
        while not wait([job], timeout=_TICK_S).done:
            tick()
        error = job.exception()
        if isinstance(error, UserError):
            raise UserError(f"{name}: {error}") from error
        if error is not None:
            raise UserError(
                f"{name}: its proposal failed ({type(error).__name__}: {error}); the last checkpoint is kept: go on "
                "from it with --resume"
            ) from error
