"""Options that several commands have."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import FlagCreatePairsOff, Positional, arg

DatasetArgument = Positional[Annotated[Path, arg(metavar="DATASET")]]
Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class Voice:
    """How a command speaks: options that all commands have."""

    quiet: FlagCreatePairsOff[bool] = False
    """Print nothing but errors and what was asked for; no progress."""
    json: FlagCreatePairsOff[bool] = False
    """Print one JSON document in the end, and nothing else on standard output (see docs/scripts.md)."""

    def goes_on(self, arguments: Sequence[str]) -> str:
        """Return the command line that goes on after an interruption of the one with these arguments, if any does."""
        return ""


def same_again(arguments: Sequence[str], *, resume: bool = False) -> str:
    """Return a command line for a shell, with ``--resume`` if that is to be added."""
    more = ["--resume"] if resume and "--resume" not in arguments else []
    return shlex.join([*_launcher(), *arguments, *more])


def _launcher() -> list[str]:
    """Return the words that this program was started by: torchrun's on one machine are known."""
    processes = os.environ.get("WORLD_SIZE", "1")
    if processes == "1":
        return ["discoseg"]
    here = os.environ.get("LOCAL_WORLD_SIZE", processes)
    machines = [] if here == processes else ["..."]
    return ["torchrun", *machines, "--nproc-per-node", here, "-m", "discoseg"]
