"""Which rank holds which volumes, and how many slices of a batch it takes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from discoseg.errors import UserError


@dataclass(frozen=True)
class Steps:
    """The steps of an epoch: ``count`` of them, each on a batch of ``batch`` slices, of which ``own`` are this rank's.

    They are as many, and as large, as those of a single process.
    """

    count: int
    batch: int
    own: int

    @property
    def share(self) -> float:
        """This rank's part of a batch: what its mean over its slices weighs."""
        return self.own / self.batch


def plan_steps(batch: int, slices: Sequence[int], rank: int = 0) -> Steps:
    """Return the steps of an epoch over all slices, of which each rank holds some, ``batch`` at a time at most."""
    total = sum(slices)
    batch = min(batch, total)
    return Steps(math.ceil(total / batch), batch, share_batch(batch, slices)[rank])


def shard_cases(slices: Sequence[int], ranks: int) -> list[list[int]]:
    """Return the cases of each rank, ascending: each case, the largest first, goes where the fewest slices are so far.

    ``slices`` is how many each case has. Neighbours in a dataset, which are often alike, so come to different ranks.

    >>> shard_cases([10, 10, 10, 30], 2)
    [[3], [0, 1, 2]]
    """
    shards: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for case in sorted(range(len(slices)), key=lambda case: -slices[case]):
        rank = loads.index(min(loads))
        shards[rank].append(case)
        loads[rank] += slices[case]
    return [sorted(shard) for shard in shards]


def share_batch(batch: int, slices: Sequence[int]) -> list[int]:
    """Return how many slices of a batch each rank takes: in proportion to the ``slices`` that it holds, 1 at least.

    So each slice is drawn about as often as any other. ``batch`` is at most the sum of the slices, and no share exceeds
    a rank's own.

    >>> share_batch(8, [60, 30, 30]), share_batch(4, [10, 10, 10]), share_batch(3, [100, 1])
    ([4, 2, 2], [2, 1, 1], [2, 1])
    """
    if batch < len(slices):
        raise UserError(
            f"--optimiser.batch {batch} is less than the {len(slices)} processes, each of which needs a slice of it: "
            f"raise it, or start torchrun with {batch} at most"
        )
    total = sum(slices)
    shares = [max(1, batch * own // total) for own in slices]
    while sum(shares) != batch:  # to whom most is missing, or from whom too much was given
        missing = [batch * own / total - share for own, share in zip(slices, shares, strict=True)]
        if sum(shares) < batch:
            shares[missing.index(max(missing))] += 1
        else:
            spare = [m if share > 1 else float("inf") for m, share in zip(missing, shares, strict=True)]
            shares[spare.index(min(spare))] -= 1
    return shares
