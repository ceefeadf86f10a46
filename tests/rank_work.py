"""What the processes of tests/test_ranks.py do: imported once, in a server of which each is a fork.

Torch's automatic differentiation does not work in a fork of a process that has used it, as pytest's own may have.
"""

import multiprocessing
import os
import socket
import sys
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from discoseg import checkpoints
from discoseg.config import Config
from discoseg.discrete import PottsGrid, select_by_size
from discoseg.errors import UserError
from discoseg.networks import build_network
from discoseg.ranks import Ranks, open_ranks
from discoseg.train import train
from discoseg.weak.examples import Example

CPU = torch.device("cpu")

torch.set_num_threads(1)
# Compiled code and slow imports that all forks have then.
torch.optim.Adam([torch.zeros(1, requires_grad=True)])
_image = np.random.default_rng(0).random((3, 8, 8)).astype(np.float32)
_seeds = np.full(_image.shape, -1, np.int8)
PottsGrid(_image, spacing_mm=(1, 1, 1), sigma=0.1).cut(_image - 0.5, strength=0.3, seeds=_seeds)
select_by_size(_image - 0.5, 10, 20)


@dataclass(frozen=True)
class Training:
    """A training of which each rank has a shard; ``fault`` happens on rank 1 after 0.4 epochs.

    With ``often`` there is a checkpoint after every step; ``plain`` makes a network without batch normalisation.
    """

    shards: list[tuple[list[Example], list[Example], dict[str, list[int]]]]
    config: Config
    run: Path
    resume: bool = False
    fault: type[BaseException] | None = None
    often: bool = False
    plain: bool = False

    def __call__(self, ranks: Ranks) -> None:
        """Train."""
        examples, held_out, places = self.shards[ranks.rank]

        def progress(done: float, message: str) -> None:
            if self.fault is not None and ranks.rank == 1 and done > 0.4:
                raise self.fault("a fault")

        build = _build_plain if self.plain else build_network
        every_s, most = (0.0, np.inf) if self.often else (checkpoints.EVERY_S, checkpoints.MOST_SHARE)
        with (
            mock.patch.multiple(checkpoints, EVERY_S=every_s, MOST_SHARE=most),
            mock.patch("discoseg.start.build_network", build),
        ):
            train(
                examples,
                held_out,
                self.config,
                self.run,
                model={"label": "LV", "label_value": 3, "orientation": "LPS", "channels": 1},
                device="cpu",
                resume=self.resume,
                ranks=ranks,
                places=places,
                progress=progress,
            )


def _build_plain(*_: Any, channels: int, classes: int, **__: Any) -> torch.nn.Module:
    layers: dict[str, torch.nn.Module] = {
        "input": torch.nn.Conv2d(channels, 6, 5, padding=2),
        "activation": torch.nn.ReLU(),
        "output": torch.nn.Conv2d(6, classes, 5, padding=2),
    }
    return torch.nn.Sequential(OrderedDict(layers))


def disagree(ranks: Ranks) -> None:
    """Fail on rank 1, where all are to agree."""
    with ranks.agree():
        if ranks.rank == 1:
            raise UserError("case 7 cannot be read")
    raise AssertionError("nobody may go on")


def together(size: int, work: Any) -> dict[int, tuple[str, str]]:
    """Do ``work`` on each of several ranks; return by rank the name and the text of what it failed with."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["rank_work"])
    failures = server.Queue()
    processes = [server.Process(target=_start, args=(rank, size, port, failures, work)) for rank in range(size)]
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])  # Python 3.11's server has another one
    with mock.patch.dict(os.environ, PYTHONPATH=path):
        for process in processes:
            process.start()
    failed = [failures.get(timeout=100) for _ in processes]  # a rank that hangs is an error here
    for process in processes:
        process.join(20)
    return {rank: (kind, text) for rank, kind, text in failed if kind}


def _start(rank: int, size: int, port: int, failures: Any, work: Any) -> None:
    numbers = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", **{name: str(number) for name, number in numbers.items()}}
    kind = text = ""
    try:
        with open_ranks(CPU) as ranks:
            work(ranks)
    except BaseException as error:
        kind, text = type(error).__name__, str(error)
    failures.put((rank, kind, text))
