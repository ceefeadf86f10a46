"""What processes that torchrun started leave for each other, and for those that it starts in their place."""

import os
from contextlib import suppress
from datetime import timedelta

from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from discoseg.launch import Launch

_SOON = timedelta(seconds=10)
_TOLD = "told"
_BEGUN = "discoseg/begun"


def store_of_attempt(launch: Launch, timeout: timedelta) -> Store:
    """Return what those share who were started together: torchrun's store also has the addresses of dead ones."""
    return PrefixStore(f"discoseg/attempt{launch.restarts}", _open_store(timeout))


def first_to_tell(launch: Launch) -> bool:
    """Say whether no other process of this training has told the user yet why it ends; at most one hears True."""
    try:
        return bool(store_of_attempt(launch, _SOON).add(_TOLD, 1) == 1)
    except (RuntimeError, ValueError):  # torchrun itself is gone: better told twice than never
        return True


def note_begun() -> None:
    """Note for those that torchrun may start in place of these processes that the run in --out is their own."""
    if _outlives():
        with suppress(RuntimeError):  # torchrun is gone, and will not start anything
            _open_store(_SOON).set(_BEGUN, "yes")


def has_begun() -> bool:
    """Say whether processes that this torchrun started before have begun the run in --out (:func:`note_begun`)."""
    try:
        return _outlives() and bool(_open_store(_SOON).check([_BEGUN]))
    except RuntimeError:
        return False


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
