"""Arrays that a thread keeps from cut to cut: the kernel takes longer to hand out fresh memory than some cuts last."""

import threading
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

KEPT_BYTES = 2**27  # an array larger than this is given back after the cut

_T = TypeVar("_T", bound=np.generic)
_kept = threading.local()


def borrow(name: str, size: int, dtype: type[_T]) -> NDArray[_T]:
    """Return this thread's array of that name, (size,), contents undefined, valid until it is borrowed again."""
    needed = size * np.dtype(dtype).itemsize
    buffer: NDArray[np.uint8] | None = getattr(_kept, name, None)
    if buffer is None or buffer.size < needed:
        buffer = np.empty(needed, np.uint8)
        setattr(_kept, name, buffer if needed <= KEPT_BYTES else None)
    return buffer[:needed].view(dtype)
