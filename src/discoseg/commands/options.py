"""Options that several commands have."""

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
