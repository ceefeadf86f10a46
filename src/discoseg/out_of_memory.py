"""What to do when memory does not suffice: know it, let go of what the attempt held, and say so to the caller."""

import traceback
from collections.abc import Callable

from discoseg.errors import UserError

Say = Callable[[str], None]
"""Called with a line about what a pass had to change to go on."""

_ADVICE = "lower --optimiser.batch, --grid.shape, --network.width or depth"
"""What helps a training that has too little memory for itself."""

# What torch says where it raises a plain RuntimeError: of the host's memory, the driver's, cuBLAS's and cuDNN's.
_SAID = ("allocate memory", "out of memory", "ALLOC_FAILED")
_MOST_QUOTED = 160  # characters of it that we pass on


class OutOfMemory(UserError, MemoryError):
    """Memory did not suffice: for the least that can be done at a time, or because others have it."""


def is_out_of_memory(error: BaseException | None) -> bool:
    """Say whether an error, or what it came from, is that memory ran out: the host's or a GPU's.

    A recording in a CUDA graph that fails ends with another error than the one that made it fail.
    """
    return _shortage(error) is not None


def describe_shortage(error: BaseException) -> str:
    """Return one line about an error by which memory ran out: what was asked for, in the words of who refused it."""
    shortage = _shortage(error)
    assert shortage is not None
    said = " ".join(str(shortage).split())
    quoted = f" ({said if len(said) <= _MOST_QUOTED else said[: _MOST_QUOTED - 1] + '…'})" if said else ""
    return f"out of memory{quoted}; {_ADVICE}"


def _shortage(error: BaseException | None) -> BaseException | None:
    """Return the error by which memory ran out, of an error and those that it came from; None where none did."""
    while error is not None:
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            return error
        if isinstance(error, RuntimeError) and any(said in str(error) for said in _SAID):
            return error
        error = error.__cause__ or error.__context__
    return None


def released(error: BaseException) -> BaseException:
    """Return an error that says the same and holds nothing: its frames have what the work had made.

    Where memory ran out it is an :class:`OutOfMemory`. The trace of a defect stays as a note.
    """
    if is_out_of_memory(error):
        return OutOfMemory(str(error) if isinstance(error, UserError) else describe_shortage(error))
    if isinstance(error, Exception) and not isinstance(error, UserError):
        error.add_note("".join(traceback.format_exception(error)))
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def fits(work: Callable[[], None]) -> bool:
    """Do the work; return False where memory did not suffice, once nothing holds what the attempt had made."""
    try:
        work()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return False
    return True
