"""What torchrun tells the processes that it starts, in their environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from discoseg.errors import UserError

_NAMES = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_PREFIXES = ("MASTER_", "TORCHELASTIC_")


@dataclass(frozen=True)
class Launch:
    """This process is ``rank`` of ``size``, on its machine ``local_rank`` of ``local_size``.

    ``restarts`` is how often torchrun has started all of them again.
    """

    size: int = 1
    rank: int = 0
    local_size: int = 1
    local_rank: int = 0
    restarts: int = 0

    @property
    def several(self) -> bool:
        """Whether there are other processes."""
        return self.size > 1


def read_launch() -> Launch:
    """Return what the environment says; without torchrun, that this process is alone."""
    size = _number("WORLD_SIZE", 1, least=1)
    restarts = _number("TORCHELASTIC_RESTART_COUNT", 0)
    if size == 1:
        return Launch(restarts=restarts)
    if missing := [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
        raise UserError(f"WORLD_SIZE is {size}, but {missing[0]} is not set: start by torchrun, or unset WORLD_SIZE")
    _number("MASTER_PORT", 0, most=65535)
    rank = _number("RANK", 0, most=size - 1)
    local_size = _number("LOCAL_WORLD_SIZE", size, least=1, most=size)
    return Launch(size, rank, local_size, _number("LOCAL_RANK", rank, most=size - 1), restarts)


def _number(name: str, default: int, *, least: int = 0, most: int | None = None) -> int:
    text = os.environ.get(name, str(default))
    is_number = text.isascii() and text.isdigit() and len(text) < 10
    if is_number and int(text) >= least and (most is None or int(text) <= most):
        return int(text)
    bounds = f"at least {least}" if most is None else f"from {least} to {most}"
    raise UserError(f"{name} is {text!r} in the environment, but must be a number, {bounds}: unset it, or use torchrun")


def without_launch(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for a process that has nothing to do with those that torchrun started."""
    return {name: text for name, text in environment.items() if name not in _NAMES and not name.startswith(_PREFIXES)}
