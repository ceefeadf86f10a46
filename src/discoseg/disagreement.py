"""Where network and proposals disagree: what `discoseg next` ranks training cases by.

Everything is counted over the voxels that seeds leave open, slice by slice on the device, once an epoch. The host
reads a few numbers a slice, in one go.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from discoseg.admm import Prior
from discoseg.config import PriorName
from discoseg.replay import Replay
from discoseg.scores import label_map
from discoseg.slices import Slices
from discoseg.state import State
from discoseg.weak.examples import Example

STABLE_EPOCHS = 3  # over which changes of proposals are averaged
_SLICES_AT_ONCE = {"cuda": 256, "cpu": 16}  # scratch memory does not grow with the dataset, and fits a core's cache

Row = dict[str, str | float]


class Disagreement:
    """What an epoch's probabilities and proposals say about each training case.

    The tensors given at the start are read each time, where they are.
    """

    def __init__(self, slices: Slices, examples: Sequence[Example], probability: torch.Tensor) -> None:
        """``probability`` (K, N, H, W) of the ``slices`` of all ``examples``."""
        self._slices, self._examples, self._probability = slices, examples, probability
        self._open = np.concatenate([(example.seeds < 0).sum(axis=(1, 2)) for example in examples])  # (N,) voxels
        at_once = _SLICES_AT_ONCE[probability.device.type]
        self._parts = [slice(start, start + at_once) for start in range(0, len(slices), at_once)]
        self._network = self._sums(3)  # (3, N): Σ entropy and Σ s(1 − s) of open voxels, Σ s of all
        self._measure_network = Replay(self._sum_network, probability.device)
        self._compared: dict[PriorName, torch.Tensor] = {}  # (4, N): squares, differing and changed voxels, both sizes

    def watch(self, prior: Prior) -> Callable[[torch.Tensor], None]:
        """Return what compares a new proposal (K, N, H, W) bool with the network, and with the prior's last one."""
        sums = self._compared[prior.name] = self._sums(4)

        def compare(proposal: torch.Tensor) -> None:
            for part in self._parts:
                self._compare(sums, part, proposal[:, part], prior.doubled[:, part])

        return compare

    def compare_kept(self, priors: Sequence[Prior]) -> None:
        """Compare proposals that stay with the network."""
        for prior in priors:
            for part in self._parts:
                kept = prior.doubled[:, part]
                self._compare(self._compared[prior.name], part, kept == 2, kept)

    def _compare(self, sums: torch.Tensor, part: slice, new: torch.Tensor, old: torch.Tensor) -> None:
        """Note in ``sums`` how the slices ``part`` of a proposal compare with the network and with the last ones."""
        probability, unknown = self._probability[:, part], self._slices.seeds[part] < 0  # (K, B, H, W), (B, H, W)
        squares = (probability - new.float()).square().sum(dim=0) * unknown
        differ = (_labels(new) != label_map(probability)) & unknown
        changed = ((new != (old == 2)) & (old != 1)).any(dim=0) & unknown  # 1: there was none before
        sizes = probability.sum(dim=0) + new.sum(dim=0)
        for row, values in enumerate((squares, differ, changed, sizes)):
            sums[row, part] = values.sum(dim=(1, 2), dtype=torch.float64)

    def by_case(self, state: State, first_proposals: int = 1) -> list[Row]:
        """Return a row for each case after an epoch, and note in ``state`` how much its proposals changed.

        ``gap_*`` is Σ (s − y)² over open voxels by Σ (s + y) over all, which is 1 − Dice where s is 0 or 1;
        ``primal_*`` is the root mean square of s − y over open voxels and structures, ``differ_*`` the share of open
        voxels where network and proposal have different labels, ``unstable_*`` the share whose proposal has changed
        since the epoch before, a mean over the last epochs, ``entropy`` the mean over open voxels, 1 where all labels
        are equally probable, and ``doubt`` what the gap to labels drawn by the network's own probabilities would be,
        Σ s(1 − s) / 2 Σ s. Before the epoch ``first_proposals`` there are these two alone. ``slice`` of ``slices``
        (from 0, on the network's grid) has the most disagreement.
        """
        self._measure_network()
        read = torch.cat([self._network, *self._compared.values()]).cpu().numpy()  # one wait for the device
        entropy, variance, size = read[:3]
        compared = dict(zip(self._compared, read[3:].reshape(-1, 4, len(self._open)), strict=True))
        if state.epoch < first_proposals:
            compared = {}
        if state.epoch > first_proposals:
            for name, (_, _, changed, _) in compared.items():
                latest = (self._by_volume(changed) / self._open_voxels).tolist()
                state.changes[name] = [*state.changes.get(name, []), latest][-STABLE_EPOCHS:]
        found = {name: self._compare_cases(sums, state.changes.get(name)) for name, sums in compared.items()}
        doubt = sum((squares for squares, *_ in compared.values()), np.zeros(len(entropy))) if compared else entropy
        entropies = self._by_volume(entropy) / self._open_voxels
        doubts = self._by_volume(variance) / np.maximum(2 * self._by_volume(size), 1)
        rows, stop = [], 0
        for index, example in enumerate(self._examples):
            start, stop = stop, stop + len(example.seeds)
            unknown = int(self._open[start:stop].sum())
            row: Row = {"case": example.name}
            for key in ("gap", "primal", "differ", "unstable"):
                row |= {f"{key}_{name}": _rounded(of[key][index]) for name, of in found.items() if key in of}
            row |= {"doubt": _rounded(doubts[index]), "entropy": _rounded(entropies[index])}
            row["open_vox"] = unknown
            row["seeded_percent"] = _rounded(100 * (1 - unknown / example.seeds.size))
            row |= {"slice": int(doubt[start:stop].argmax()), "slices": len(example.seeds)}
            rows.append({"case": row.pop("case"), "score": score(row), **row})
        return rows

    def _compare_cases(
        self, sums: NDArray[np.float64], changes: list[list[float]] | None
    ) -> dict[str, NDArray[np.float64]]:
        squares, differ, _, sizes = (self._by_volume(values) for values in sums)
        found = {
            "gap": squares / np.maximum(sizes, 1),
            "primal": np.sqrt(squares / self._open_voxels / len(self._probability)),
            "differ": differ / self._open_voxels,
        }
        return found | ({"unstable": np.mean(changes, axis=0)} if changes else {})

    @property
    def _open_voxels(self) -> NDArray[np.float64]:
        """Open voxels of each case (V,); 1 where there are none, as sums over them are 0."""
        return np.maximum(self._by_volume(self._open), 1)

    def _by_volume(self, values: NDArray[np.generic]) -> NDArray[np.float64]:
        starts = np.cumsum([0, *(len(example.seeds) for example in self._examples[:-1])])
        return np.add.reduceat(values.astype(np.float64), starts)

    def _sums(self, rows: int) -> torch.Tensor:
        return torch.zeros(rows, len(self._slices), dtype=torch.float64, device=self._probability.device)

    @torch.no_grad()
    def _sum_network(self) -> None:
        most = float(np.log(1 + len(self._probability)))
        for part in self._parts:
            some = self._probability[:, part]
            entropy = (_entropy(some).sum(dim=0) + _entropy(1 - some.sum(dim=0))) / most
            unknown = self._slices.seeds[part] < 0  # (B, H, W)
            variance = (some * (1 - some)).sum(dim=0)
            for row, values in enumerate((entropy * unknown, variance * unknown, some.sum(dim=0))):
                self._network[row, part] = values.sum(dim=(1, 2), dtype=torch.float64)


def score(row: Mapping[str, str | float]) -> float:
    """Return what cases are ranked by: the mean gap between network and proposals, its doubt where there are none."""
    gaps = [float(row[key]) for key in ("gap_crf", "gap_size") if key in row]
    return _rounded(np.mean(gaps)) if gaps else float(row["doubt"])


def _labels(masks: torch.Tensor) -> torch.Tensor:
    """Return the labels (B, H, W) uint8 of masks (K, B, H, W) bool that do not overlap: 0, or k in the k-th."""
    labels = masks[0].to(torch.uint8)
    for number in range(1, len(masks)):
        labels += masks[number].to(torch.uint8) * (number + 1)
    return labels


def _entropy(share: torch.Tensor) -> torch.Tensor:
    """Return −p ln p of shares in [0, 1]; faster on a CPU than torch's own."""
    share = share.clamp(min=torch.finfo(share.dtype).tiny)
    return share.log().mul_(share).neg_()


def _rounded(value: float | np.floating) -> float:
    return round(float(value), 6)
