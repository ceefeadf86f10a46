"""The checkpoint of several ranks: a file of what they share, and one from each rank of what is its own.

    latest.safetensors                     network, optimiser, history, and the names of the others
    shards/e0012_s00034_0of2.safetensors   rank 0 of 2 after step 34 of the thirteenth epoch: its volumes' proposals and
                                           multipliers, its random numbers, its running means of normalisation

The first file is written when all shards are on the disk, and shards go when no checkpoint names them, so a kill at any
moment leaves a whole set. As many ranks go on from it exactly; others, or a single process, find the slices of their
volumes in whichever files hold them, and so do several ranks in the one file of a single process.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from discoseg.checkpoint import load_slices, load_tensors, previous_of, save_tensors
from discoseg.checkpoint_header import DamagedCheckpoint, load_meta
from discoseg.errors import UserError
from discoseg.ranks import ALONE, Ranks

Tensors = dict[str, torch.Tensor]
Meta = dict[str, Any]

_OF_VOLUMES = ("proposal2", "multiplier", "slice_sums")  # what the names of tensors (K, N, …) end in
_OF_RANKS = ("random.", "running.")  # what the names of tensors of which each rank has its own begin with


@dataclass(frozen=True)
class Cases:
    """The training cases: the names of this rank's ``own`` in their order, and the ``slices`` of all, in theirs."""

    own: list[str]
    slices: dict[str, int]

    def places(self, cases: Sequence[str]) -> Iterator[tuple[str, slice]]:
        """Yield each of the ``cases`` with its slices, where those of all of them stand behind each other."""
        start = 0
        for case in cases:
            yield case, slice(start, start + self.slices[case])
            start += self.slices[case]


NO_CASES = Cases([], {})


class ShardFiles:
    """Reads and writes the checkpoints of a training by all its ranks, which call each method together."""

    def __init__(
        self,
        latest: Path,
        network: torch.nn.Module,
        cases: Cases = NO_CASES,
        ranks: Ranks = ALONE,
        *,
        share: float = 1.0,
        seed: int = 0,
    ) -> None:
        """``latest`` is the file of what they share; ``share`` is this rank's part of a batch.

        ``seed`` begins the random numbers of a rank to which none of the checkpoint's can leave its own.
        """
        self._latest, self._cases, self._ranks, self._share, self._seed = latest, cases, ranks, share, seed
        # Within a pass each rank has its own; the file that all share holds those of the first.
        self._statistics = {f"network.{name}" for name, _ in network.named_buffers()}
        self._aside = ranks.aside()
        self._folder = latest.parent / "shards"

    def load(self, path: Path, into: Mapping[str, torch.Tensor]) -> tuple[Tensors, Meta]:
        """Return what a single process on this rank's cases would have saved; those of ``into`` may be filled.

        A file that is missing, damaged or another checkpoint's is a `DamagedCheckpoint`.
        """
        meta = load_meta(path)
        if "shards" not in meta and not self._ranks.several:
            return load_tensors(path, into)
        try:
            return self._load_shards(path, meta, into)
        except UserError:
            raise
        except (KeyError, IndexError, TypeError, AttributeError, ValueError, RuntimeError) as error:
            raise DamagedCheckpoint(f"{path}: its shards do not fit together") from error

    def _load_shards(self, path: Path, meta: Meta, into: Mapping[str, torch.Tensor]) -> tuple[Tensors, Meta]:
        if "shards" not in meta:
            return self._load_parts(path, meta, [path], into)
        files = [self._folder / Path(name).name for name in meta["shards"]]  # wherever it says that they are
        for file in files:
            if not file.is_file() or load_meta(file)["place"] != [meta["epoch"], meta["steps"]]:
                raise DamagedCheckpoint(f"{path}: {file} is missing, or another checkpoint's")
        if len(files) != self._ranks.size or load_meta(files[self._ranks.rank])["cases"] != self._cases.own:
            return self._load_parts(path, meta, files, into)
        shared, _ = load_tensors(path)
        own, own_meta = load_tensors(files[self._ranks.rank], into)
        return {**shared, **own}, {**meta, "changes": own_meta["changes"]}

    def _load_parts(
        self, path: Path, meta: Meta, files: Sequence[Path], into: Mapping[str, torch.Tensor]
    ) -> tuple[Tensors, Meta]:
        """Return this rank's part of a checkpoint of other ranks, or of a single process: then ``files`` is it."""
        tensors, _ = load_tensors(path, wanted=lambda name: not name.endswith(_OF_VOLUMES))
        parts = [load_tensors(file, wanted=lambda name: not name.endswith(_OF_VOLUMES)) for file in files]
        if "shards" in meta:
            shares = [part_meta["share"] for _, part_meta in parts]
            for name, tensor in parts[0][0].items():
                if not name.startswith("random.") and tensor.is_floating_point():  # means over the ranks' slices
                    several = zip(shares, (part[name] for part, _ in parts), strict=True)
                    tensors[name] = torch.stack([share * value for share, value in several]).sum(dim=0)
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("random.")}
        tensors |= self._random_numbers([part for part, _ in parts], meta)
        cases = [part_meta.get("cases", list(meta["data"]["training"])) for _, part_meta in parts]
        held = {
            case: (file, at) for file, some in zip(files, cases, strict=True) for case, at in self._cases.places(some)
        }

        def slices_of(case: str, name: str) -> torch.Tensor:
            file, at = held[case]
            return load_slices(file, name, at.start, at.stop)[0]

        for name, target in into.items():
            for case, own in self._cases.places(self._cases.own):
                target[:, own] = slices_of(case, name).to(target.device)
            tensors[name] = target
        tensors["slice_sums"] = torch.cat([slices_of(case, "slice_sums") for case in self._cases.own], dim=1)
        changes = _by_case(zip(cases, (part_meta.get("changes", {}) for _, part_meta in parts), strict=True))
        own_changes = {
            name: [[epoch[case] for case in self._cases.own] for epoch in epochs] for name, epochs in changes.items()
        }
        return tensors, {**meta, "changes": own_changes, "parts": 1}

    def _random_numbers(self, parts: Sequence[Tensors], meta: Meta) -> Tensors:
        """Return the state of the random numbers: that of the same rank, or if there was none a new one.

        What is left of a pass is drawn anew.
        """
        if self._ranks.rank < len(parts):
            own = {name: value for name, value in parts[self._ranks.rank].items() if name.startswith("random.")}
        else:
            place = (
                1 + meta["epoch"] * 100_003 + meta.get("steps", 0)
            )  # not what this rank began with in an earlier start
            new = torch.Generator().manual_seed(self._ranks.own_seed(self._seed) + place).get_state()
            own = {"random.order": new, "random.torch": new}
        return {**own, "running.drawn": own["random.order"]}

    def write(self, tensors: Tensors, meta: Meta, commit: Callable[[Tensors, Meta], None]) -> None:
        """Write this rank's shard and then, on the first, the file that all share, by ``commit``.

        It may be called in a thread of its own, if all ranks do so.
        """
        ranks = self._aside
        if not ranks.several:
            commit(tensors, meta)
            self._sweep()
            return
        place = [meta["epoch"], meta["steps"]]
        start = "shards/e{:04d}_s{:05d}".format(*place)
        names = [f"{start}_{rank}of{ranks.size}{self._latest.suffix}" for rank in range(ranks.size)]
        own = {name: value for name, value in tensors.items() if self._is_own(name)}
        shared = {name: value for name, value in tensors.items() if not self._is_own(name) or name in self._statistics}
        own_meta = {"place": place, "cases": self._cases.own, "share": self._share, "changes": meta["changes"]}
        with ranks.agree():
            self._folder.mkdir(exist_ok=True)
            save_tensors(self._latest.parent / names[ranks.rank], own, own_meta)
        with ranks.agree():
            if ranks.first:
                commit(shared, {**meta, "changes": {}, "shards": names})
                self._sweep()

    def _is_own(self, name: str) -> bool:
        return name.endswith(_OF_VOLUMES) or name.startswith(_OF_RANKS) or name in self._statistics

    def _sweep(self) -> None:
        """Remove the shards that no checkpoint names; while this happens, no rank writes one."""
        if not self._folder.is_dir():
            return
        named: set[str] = set()
        for path in filter(Path.is_file, (self._latest, previous_of(self._latest))):
            try:
                named |= set(load_meta(path).get("shards", []))
            except DamagedCheckpoint:  # nobody knows which it names; it is the one before, which the next one replaces
                return
        for file in self._folder.iterdir():
            if f"{self._folder.name}/{file.name}" not in named:
                file.unlink(missing_ok=True)
        if not named:
            with suppress(OSError):
                self._folder.rmdir()


def _by_case(parts: Iterable[tuple[Sequence[str], dict[str, list[list[float]]]]]) -> dict[str, list[dict[str, float]]]:
    """Return the changes of proposals by prior, epoch and case, of several lists of cases."""
    found: dict[str, list[dict[str, float]]] = {}
    for cases, changes in parts:
        for name, epochs in changes.items():
            together = found.setdefault(name, [{} for _ in epochs])
            for epoch, values in zip(together, epochs, strict=True):
                epoch |= dict(zip(cases, values, strict=True))
    return found
