"""Ask the network: its probabilities in all slices, in evaluation mode.

A pass consists of equal steps over tensors that stay in place, so that on CUDA each step is recorded once and replayed
(:class:`discoseg.replay.Replay`): which slices are next is read from a tensor on the device, what the network says of
them is written to one, and the host only says "again".
"""

import math
from collections.abc import Iterator

import torch

from discoseg import losses
from discoseg.config import Config
from discoseg.data.memory import BOUNDLESS, Memory
from discoseg.networks.precision import network_precision
from discoseg.out_of_memory import OutOfMemory, Say, fits
from discoseg.replay import Replay, let_go
from discoseg.slices import Slices

_PREDICT_BATCH = {"cuda": 64, "cpu": 32}  # slices of up to 256×256; of larger ones as many as have no more pixels


class PredictionPass:
    """The network's probability of each structure in all slices, batch by batch, in evaluation mode."""

    def __init__(
        self,
        network: torch.nn.Module,
        slices: Slices,
        config: Config,
        order: torch.Tensor | None = None,
        memory: Memory = BOUNDLESS,
        say: Say = lambda line: None,
    ) -> None:
        """``order`` (N,) is the one in which slices are predicted, by default that of the stack."""
        self._network, self._image, self._config, self._say = network, slices.image, config, say
        self._slices, device = slices, slices.image.device
        self._sum = torch.zeros((), device=device)  # of all probabilities of a pass, finite if they are
        self.probability = memory.tensor((len(slices.structures), *slices.seeds.shape), torch.float32, device)
        self._order = torch.arange(len(slices), device=device) if order is None else order
        self._places = torch.arange(_predicted_at_once(slices.image), device=device)
        self._next = torch.zeros((), dtype=torch.int64, device=device)
        self._step = Replay(self._predict_next, device)

    def run(self) -> Iterator[torch.Tensor]:
        """Fill ``probability`` (K, N, H, W) and yield the slices (B,) that are new after each batch.

        Where memory does not suffice, batches are halved.
        """
        self._network.eval()
        self._next.zero_()
        self._sum.zero_()
        done = 0
        while done < len(self._image):
            while not fits(self._step):
                self._halve()
            new = self._order[done : done + len(self._places)]
            done += len(new)
            yield new

    def _halve(self) -> None:
        """Predict half as many slices at a time from now on."""
        before = len(self._places)
        if before == 1:
            raise OutOfMemory(
                "out of memory while one slice is predicted; the last checkpoint is kept: free memory and resume, or "
                "train anew with a smaller --grid.shape, --network.width or depth"
            )
        self._places = self._places[: math.ceil(before / 2)].clone()
        self._step = Replay(self._predict_next, self._order.device)
        let_go(self._order.device)
        self._say(f"out of memory in a prediction: {len(self._places)} slices at a time from now on, not {before}")

    def all(self) -> torch.Tensor:
        """Return the probabilities of all slices, (K, N, H, W); the next pass overwrites them."""
        for _ in self.run():
            pass
        return self.probability

    def find_broken(self) -> str | None:
        """Return the name of a volume whose probabilities are not finite after a pass; waits for the device."""
        if math.isfinite(self._sum.item()):
            return None
        broken = next(n for n in range(len(self._slices)) if not self.probability[:, n].isfinite().all())
        return self._slices.names[int(self._slices.volume[broken])]

    @torch.no_grad()
    def _predict_next(self) -> None:
        places = self._next + self._places
        # A recorded batch has one size: the last slice fills it up.
        places = places.clamp(max=len(self._image) - 1) if places.is_cuda else places[places < len(self._image)]
        places = self._order[places]
        with network_precision(self._config, places.device):
            logits = self._network(self._image[places])
        made = losses.structures(logits)
        self.probability[:, places] = made
        self._sum.add_(made.sum())
        self._next.add_(len(self._places))


@torch.no_grad()
def predict_slices(network: torch.nn.Module, image: torch.Tensor) -> torch.Tensor:
    """Return the probability of each structure, (K, N, H, W) float32, in slices (N, C, H, W), in evaluation mode."""
    network.eval()
    parts = image.split(_predicted_at_once(image))
    return torch.cat([losses.structures(network(part)) for part in parts], dim=1)


def _predicted_at_once(image: torch.Tensor) -> int:
    """Return how many of the slices (N, C, H, W) are predicted at a time: a network's memory grows with their size."""
    most = _PREDICT_BATCH[image.device.type]
    return max(1, min(most, most * 256**2 // image[0, 0].numel()))
