"""The processes of one training, as torchrun starts them, and the little that they tell each other.

    torchrun --nproc-per-node 2 -m discoseg train …

Each process, a *rank*, holds the volumes that are its own (:mod:`discoseg.shards`). Gradients are averaged by torch's
DistributedDataParallel, on CUDA through NCCL, on a CPU through gloo; all else that crosses is here: numbers and rows as
JSON, a few slices for pictures as arrays. Nothing is pickled. With one process every method returns at once what it
was given.
"""

import io
import json
import signal
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from discoseg.errors import UserError
from discoseg.interruption import Interrupted
from discoseg.launch import read_launch
from discoseg.launch_store import meet

# After which a process that does not answer counts as lost. One that ends is noticed at once; this is for a machine
# that vanishes, and must leave time for the cuts of the slowest rank; or else for the preparation of its volumes.
_PATIENCE = timedelta(minutes=30)
_MUCH_PATIENCE = timedelta(hours=24)
_SEED_STRIDE = 1_000_003  # between the seeds of two ranks: larger than seeds that people choose

_T = TypeVar("_T")


@dataclass(frozen=True)
class Ranks:
    """This process among those of its training: ``rank`` of ``size``, on its machine ``local_rank`` of ``local_size``.

    ``backend`` is what the gradients cross by: gloo or nccl, None for a single process. ``group`` is torch's group of
    processes, None for the one of all.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    backend: str | None = None
    group: dist.ProcessGroup | None = None

    @property
    def first(self) -> bool:
        """Whether this is the process that writes the run folder and speaks."""
        return self.rank == 0

    def own_seed(self, seed: int) -> int:
        """Return a seed for what differs between ranks; for the first it is ``seed`` itself."""
        return seed + self.rank * _SEED_STRIDE

    @property
    def several(self) -> bool:
        """Whether there are other processes."""
        return self.size > 1

    def gather(self, value: _T) -> list[_T]:
        """Return the JSON-able ``value`` of every rank, in their order; floats arrive as they are."""
        if not self.several:
            return [value]
        return [json.loads(content) for content in self._gather_bytes(json.dumps(value).encode())]

    def gather_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the arrays of all ranks by their names, which differ."""
        if not self.several:
            return dict(arrays)
        packed = io.BytesIO()
        np.savez(packed, allow_pickle=False, **arrays)
        found: dict[str, NDArray[Any]] = {}
        for content in self._gather_bytes(packed.getvalue()):
            with np.load(io.BytesIO(content), allow_pickle=False) as part:
                found |= dict(part)
        return found

    def collect(self, rows: Sequence[_T], places: Sequence[int]) -> list[_T]:
        """Return the JSON-able rows of all ranks, in the order of their ``places``, which differ."""
        if not self.several:
            return list(rows)
        found = [pair for part in self.gather(list(zip(places, rows, strict=True))) for pair in part]
        return [row for _, row in sorted(found, key=lambda pair: pair[0])]

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of all ranks' ``values``, of any one shape, on their device; the same bytes on each rank."""
        if not self.several:
            return values
        total = values.clone()
        with _noticing_losses():
            dist.all_reduce(total, group=self.group)
        return total

    def most(self, value: int) -> int:
        """Return the largest of all ranks' values."""
        if not self.several:
            return value
        largest = torch.tensor(value)
        with _noticing_losses():
            dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=self.group)
        return int(largest)

    @contextmanager
    def agree(self) -> Iterator[None]:
        """Run a block in which ranks do not speak to each other; if it fails on one of them, it fails on all.

        The first of their errors is raised on all, which is what the user shall read, whoever tells it.
        """
        if not self.several:
            yield
            return
        failure: BaseException | None = None
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:
            failure = error
        try:
            told = self.gather(_describe(failure))
        except PeerLost:
            if failure is None:
                raise
        if failure is not None:
            raise failure
        for signal_number, complaint in filter(None, told):
            raise PeerLost(complaint) if signal_number is None else Interrupted(signal_number)

    def aside(self) -> "Ranks":
        """Return the same ranks for another thread: what they say to each other there does not mix with this."""
        return self._in_new_group(_PATIENCE)

    def patient(self) -> "Ranks":
        """Return the same ranks, who wait for each other for a day: one may have volumes to prepare that others had."""
        return self._in_new_group(_MUCH_PATIENCE)

    def _in_new_group(self, patience: timedelta) -> "Ranks":
        if not self.several:
            return self
        with _noticing_losses():
            return replace(self, group=dist.new_group(backend="gloo", timeout=patience))

    def parallel(self, network: nn.Module) -> nn.Module:
        """Return what to call in place of the network in training, so that all ranks' gradients are averaged.

        Its weights become those of rank 0.
        """
        if not self.several:
            return network
        # The order of a sum over more than two ranks depends on how gradients lie in torch's buckets, which it chooses
        # anew after the first step, also of a resumed training: unless it is to look for unused parameters.
        fixed = self.size > 2 and self.backend == "gloo"
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*broadcast_buffers. is deprecated")  # torch 2.6 has no other
            return nn.parallel.DistributedDataParallel(network, broadcast_buffers=False, find_unused_parameters=fixed)

    def noticing_losses(self) -> AbstractContextManager[None]:
        """Return a context in which the end of another rank raises a :class:`PeerLost`, whatever noticed it."""
        return _noticing_losses() if self.several else nullcontext()

    def average_statistics(self, network: nn.Module, share: float) -> None:
        """Replace the running means and variances of normalisation by those of all ranks, weighted by ``share``.

        The shares, each rank's part of a batch, sum to 1.
        """
        if not self.several:
            return
        buffers = [buffer for buffer in network.buffers() if buffer.is_floating_point()]
        if buffers:
            averaged = self.sum(torch.cat([buffer.flatten() for buffer in buffers]) * share)
            for buffer, values in zip(buffers, averaged.split([b.numel() for b in buffers]), strict=True):
                buffer.copy_(values.view_as(buffer))

    def _gather_bytes(self, content: bytes) -> list[bytes]:
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with _noticing_losses():
            dist.all_gather(sizes, torch.tensor([len(content)]), group=self.group)
            longest = int(max(sizes))
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
            received = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
            dist.all_gather(received, padded, group=self.group)
        return [bytes(part[: int(size)].numpy()) for part, size in zip(received, sizes, strict=True)]


ALONE = Ranks()


class PeerLost(UserError):
    """Another process of this training has failed, ended or stopped answering."""


@contextmanager
def _noticing_losses() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        raise PeerLost(
            "another process of this training ended, or did not answer in time; "
            "the last checkpoint is kept: start the same command with --resume"
        ) from error


def _describe(failure: BaseException | None) -> tuple[int | None, str] | None:
    """Return the signal that a failure comes from, if it does, and what is to be said about it; None of None."""
    if failure is None:
        return None
    if isinstance(failure, KeyboardInterrupt):
        return getattr(failure, "number", int(signal.SIGINT)), ""
    return None, str(failure) or type(failure).__name__


@contextmanager
def open_ranks(device: torch.device) -> Iterator[Ranks]:
    """Join the processes that torchrun started, if it did; ``device`` is the kind that all of them train on.

    Those of a machine share its GPUs, where there are fewer.
    """
    launch = read_launch()
    if not launch.several:
        yield ALONE
        return
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    # NCCL wants a GPU for each; gloo takes the way by the host
    backend = "nccl" if gpus >= launch.local_size else "gloo"
    if gpus:
        torch.cuda.set_device(launch.local_rank % gpus)
    try:
        dist.init_process_group(
            # Numbers of the host cross by gloo in any case: they must not wait for the GPU.
            "cpu:gloo,cuda:nccl" if backend == "nccl" else "gloo",
            timeout=_PATIENCE,
            store=meet(launch, _PATIENCE),
            rank=launch.rank,
            world_size=launch.size,
        )
    except (RuntimeError, TimeoutError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise PeerLost(f"the {launch.size} processes of this training did not find each other: {reason}") from error
    yield Ranks(launch.rank, launch.size, launch.local_rank, launch.local_size, backend)
    dist.destroy_process_group()  # after an error the others notice that this process ends, once it has told why
