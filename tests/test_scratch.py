"""Borrowed arrays: kept by a thread, apart between threads, given back when large."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np

from discoseg.discrete import scratch
from discoseg.discrete.scratch import borrow


def test_is_kept_and_grows() -> None:
    first = borrow("test", 100, np.int32)
    first.fill(7)
    assert np.shares_memory(first, borrow("test", 50, np.int64))
    assert not np.shares_memory(first, borrow("other", 100, np.int32))
    assert borrow("test", 1000, np.float32).shape == (1000,)


def test_threads_have_their_own() -> None:
    both = Barrier(2)

    def address(_: int) -> int:
        array = borrow("test", 100, np.int32)
        both.wait(timeout=10)  # so that each call runs on a thread of its own
        return array.ctypes.data

    with ThreadPoolExecutor(2) as pool:
        assert len(set(pool.map(address, range(2)))) == 2


def test_large_arrays_are_not_kept() -> None:
    large = borrow("test", scratch.KEPT_BYTES // 4 + 1, np.int32)
    assert not np.shares_memory(large, borrow("test", 10, np.int32))
