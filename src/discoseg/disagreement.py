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
        self._entropy = self._sums(1)
        self._measure_entropy = Replay(self._sum_entropy, probability.device)
        self._compared: dict[PriorName, torch.Tensor] = {}  # (3, N): squares, differing voxels, changed voxels

    def watch(self, prior: Prior) -> Callable[[torch.Tensor], None]:
        """Return what compares a new proposal (K, N, H, W) bool with the network, and with the prior's last one."""
        sums = self._compared[prior.name] = self._sums(3)

        def compare(proposal: torch.Tensor) -> None:
            for part in self._parts:
                probability, new, old = (x[:, part] for x in (self._probability, proposal, prior.doubled))
                unknown = self._slices.seeds[part] < 0  # (B, H, W)
                squares = (probability - new.float()).square().sum(dim=0) * unknown
                differ = (_labels(new) != label_map(probability)) & unknown
                changed = ((new != (old == 2)) & (old != 1)).any(dim=0) & unknown  # 1: there was none before
                for row, values in enumerate((squares, differ, changed)):
                    sums[row, part] = values.sum(dim=(1, 2), dtype=torch.float64)

        return compare

    def by_case(self, state: State, first_proposals: int = 1) -> list[Row]:
        """Return a row for each case after an epoch, and note in ``state`` how much its proposals changed.

        ``primal_*`` is the root mean square of s − y over open voxels and structures, ``differ_*`` the share of open
        voxels where network and proposal have different labels, ``unstable_*`` the share whose proposal has changed
        since the epoch before, a mean over the last epochs, and ``entropy`` the mean over open voxels, 1 where all
        labels are equally probable; before the epoch ``first_proposals`` there is this alone. ``slice`` of ``slices``
        (from 0, on the network's grid) has the most disagreement.
        """
        self._measure_entropy()
        read = torch.cat([self._entropy, *self._compared.values()]).cpu().numpy()  # one wait for the device
        entropy, compared = read[0], dict(zip(self._compared, read[1:].reshape(-1, 3, len(self._open)), strict=True))
        if state.epoch < first_proposals:
            compared = {}
        if state.epoch > first_proposals:
            for name, (_, _, changed) in compared.items():
                latest = (self._by_volume(changed) / self._open_voxels).tolist()
                state.changes[name] = [*state.changes.get(name, []), latest][-STABLE_EPOCHS:]
        found = {name: self._compare_cases(sums, state.changes.get(name)) for name, sums in compared.items()}
        doubt = sum((squares for squares, _, _ in compared.values()), np.zeros(len(entropy))) if compared else entropy
        entropies = self._by_volume(entropy) / self._open_voxels
        rows, stop = [], 0
        for index, example in enumerate(self._examples):
            start, stop = stop, stop + len(example.seeds)
            unknown = int(self._open[start:stop].sum())
            row: Row = {"case": example.name}
            for key in ("primal", "differ", "unstable"):
                row |= {f"{key}_{name}": _rounded(of[key][index]) for name, of in found.items() if key in of}
            row["entropy"] = _rounded(entropies[index])
            row["open_vox"] = unknown
            row["seeded_percent"] = _rounded(100 * (1 - unknown / example.seeds.size))
            row |= {"slice": int(doubt[start:stop].argmax()), "slices": len(example.seeds)}
            rows.append({"case": row.pop("case"), "score": score(row), **row})
        return rows

    def _compare_cases(
        self, sums: NDArray[np.float64], changes: list[list[float]] | None
    ) -> dict[str, NDArray[np.float64]]:
        squares, differ, _ = (self._by_volume(values) / self._open_voxels for values in sums)
        found = {"primal": np.sqrt(squares / len(self._probability)), "differ": differ}
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
    def _sum_entropy(self) -> None:
        most = float(np.log(1 + len(self._probability)))
        for part in self._parts:
            some = self._probability[:, part]
            entropy = (_entropy(some).sum(dim=0) + _entropy(1 - some.sum(dim=0))) / most
            self._entropy[0, part] = (entropy * (self._slices.seeds[part] < 0)).sum(dim=(1, 2), dtype=torch.float64)


def score(row: Mapping[str, str | float]) -> float:
    """Return what cases are ranked by: the mean of the primal residuals, the entropy where there are no priors."""
    primal = [float(row[key]) for key in ("primal_crf", "primal_size") if key in row]
    return _rounded(np.mean(primal)) if primal else float(row["entropy"])


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
