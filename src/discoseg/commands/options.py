"""Options that several commands have."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import FlagCreatePairsOff, Positional, arg

from discoseg.errors import UserError

if TYPE_CHECKING:
    from discoseg.engines import Engine

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


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Where several trainings run: options of sweep and reproduce."""

    engine: Literal["local", "ray"] = "local"
    """On this machine, or on a Ray cluster (docs/cluster.md), where lost trainings go on from their checkpoints."""
    address: str | None = None
    """With --engine ray: HOST:PORT of the cluster's head, or auto for the cluster that runs here. By default that of
    RAY_ADDRESS, else one is started on this machine for the while."""
    cpus_per_training: int = 1
    """With --engine ray: cores of a node that a training gets."""
    gpus_per_training: float | None = None
    """With --engine ray: GPUs that a training gets; 0.5 lets two share one, which is the default where there are
    GPUs."""

    def make_engine(self, device: str, at_once: int | None) -> "Engine":
        """Return the engine that is asked for."""
        if self.engine == "ray":
            from discoseg.engines.on_ray import RayEngine

            return RayEngine(self.address, self.cpus_per_training, self.gpus_per_training, device, at_once)
        from discoseg.engines.local import LocalEngine

        if self.address is not None or self.gpus_per_training is not None or self.cpus_per_training != 1:
            raise UserError("--address, --cpus-per-training and --gpus-per-training are for --engine ray: add that")
        return LocalEngine(device, at_once)
