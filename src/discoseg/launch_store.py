"""What processes that torchrun started leave for each other, and for those that it starts in their place."""

import os
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from discoseg.launch import Launch

_SOON = timedelta(seconds=10)


def meet(launch: Launch, timeout: timedelta) -> Store:
    """Return a store of those who were started together, in which nothing is yet; all of them call this.

    torchrun's own also has the addresses of dead ones, and those of several machines may count restarts differently. So
    rank 0 calls a meeting by a new name; each other rank answers with a new name of its own, until that is seen.
    """
    store, name = _open_store(timeout), uuid4().hex
    end_s = time.monotonic() + timeout.total_seconds()
    if launch.rank == 0:
        meeting = name
        store.set("discoseg/meeting", meeting)
        for rank in range(1, launch.size):
            answer = ""
            while not answer.startswith(meeting):
                _wait(end_s)
                if store.check([f"discoseg/answer{rank}"]):
                    answer = store.get(f"discoseg/answer{rank}").decode()
            store.set(f"discoseg/seen/{answer}", "yes")
    else:
        seen = False
        while not seen:
            meeting = store.get("discoseg/meeting").decode()
            store.set(f"discoseg/answer{launch.rank}", meeting + name)
            _wait(end_s)
            seen = store.check([f"discoseg/seen/{meeting}{name}"])
    return PrefixStore(f"discoseg/{meeting}", store)


def _wait(end_s: float) -> None:
    if time.monotonic() > end_s:
        raise TimeoutError("no answer in time")
    time.sleep(0.02)


def first_to_tell(launch: Launch) -> bool:
    """Say whether no other process of this training has told the user yet why it ends; at most one hears True."""
    try:
        return bool(_open_store(_SOON).add(f"discoseg/told{launch.restarts}", 1) == 1)
    except (RuntimeError, ValueError):  # torchrun itself is gone: better told twice than never
        return True


def note_begun(run: Path) -> None:
    """Note for those that torchrun may start in place of these processes that the folder ``run`` is their own."""
    if _outlives():
        with suppress(RuntimeError, ValueError):  # torchrun is gone, and will not start anything
            _open_store(_SOON).set(_begun(run), "yes")


def forget_begun(run: Path) -> None:
    """Take back :func:`note_begun`, if it was called: the folder ``run`` goes."""
    if _outlives():
        with suppress(RuntimeError, ValueError):
            _open_store(_SOON).delete_key(_begun(run))


def has_begun(run: Path) -> bool:
    """Say whether processes that this torchrun started before made the folder ``run`` (:func:`note_begun`)."""
    try:
        return _outlives() and bool(_open_store(_SOON).check([_begun(run)]))
    except (RuntimeError, ValueError):
        return False


def _begun(run: Path) -> str:
    """Return the key of a folder, by the name that all ranks were given."""
    return f"discoseg/begun/{run}"


def _outlives() -> bool:
    """Say whether torchrun itself holds what processes tell each other, for as long as it lives."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _open_store(timeout: timedelta) -> Store:
    """Return the store of this launch, which torchrun keeps while it starts processes again."""
    store: Store
    store, _, _ = next(rendezvous("env://", timeout=timeout))
    while isinstance(store, PrefixStore):  # torch 2.6 has one for each attempt
        store = store.underlying_store
    return store
