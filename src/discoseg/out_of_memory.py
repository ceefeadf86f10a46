"""What to do when memory does not suffice: know it, let go of what the attempt held, and say so to the caller."""

from collections.abc import Callable

from discoseg.errors import UserError

Say = Callable[[str], None]
"""Called with a line about what a pass had to change to go on."""

# What torch says where it raises a plain RuntimeError: of the host's memory, the driver's, cuBLAS's and cuDNN's.
_SAID = ("allocate memory", "out of memory", "ALLOC_FAILED")


class OutOfMemory(UserError, MemoryError):
    """Memory did not suffice, whatever was tried; says what to do about it."""


def is_out_of_memory(error: BaseException | None) -> bool:
    """Say whether an error, or what it came from, is that memory ran out: the host's or a GPU's.

    A recording in a CUDA graph that fails ends with another error than the one that made it fail.
    """
    while error is not None:
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            return True
        if isinstance(error, RuntimeError) and any(said in str(error) for said in _SAID):
            return True
        error = error.__cause__ or error.__context__
    return False


def fits(work: Callable[[], None]) -> bool:
    """Do the work; return False where memory did not suffice, once nothing holds what the attempt had made."""
    try:
        work()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return False
    return True
