"""The mean of the weights after the last epochs: the model that predicts where nothing validates better.

Late epochs swing, as sizes are drawn into their bounds and beyond (docs/experiments.md). At a low learning rate their
weights are close enough for the mean of them to be a network, too, and a steadier one than any of them (Izmailov et
al., Averaging weights leads to wider optima and better generalization, UAI 2018).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from discoseg.config import Config


def is_averaged(epoch: int, config: Config, number: int = 0, began: int = 0) -> bool:
    """Say whether an epoch (from 1) of a round, which ``began`` after so many epochs, is one that the mean is over.

    These are the last two fifths of its round, as far as the learning rate has decayed by then, and in any case its
    last one.
    """
    end = config.end_of_round(number)
    late = epoch > end - 2 * (end - began) // 5 and epoch - began > config.optimiser.lr_every
    return late or epoch == end


@dataclass
class MeanWeights:
    """The mean of a network's ``state_dict`` over some ``epochs``, whole numbers in it those of the last."""

    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    epochs: int = 0

    @torch.no_grad()
    def take_in(self, network: torch.nn.Module) -> None:
        """Count one more epoch, after which the network is what it is now."""
        now = network.state_dict()
        self.epochs += 1
        if self.epochs == 1:
            self.weights = {name: value.clone() for name, value in now.items()}
            return
        for name, mean in self.weights.items():
            if mean.is_floating_point():
                mean.lerp_(now[name], 1 / self.epochs)
            else:
                mean.copy_(now[name])

    def shift(self, biases: torch.Tensor) -> None:
        """Add ``biases`` (K,) to the logits of the structures (:mod:`discoseg.size_bias`)."""
        bias = self.weights["output.bias"]
        self.weights["output.bias"] = bias + torch.cat([biases.new_zeros(1), biases]).to(bias)

    @contextmanager
    def in_place_of(self, network: torch.nn.Module) -> Iterator[None]:
        """Let the network have the mean of its weights for a while; recorded steps read them where they are."""
        own = {name: value.clone() for name, value in network.state_dict().items()}
        network.load_state_dict(self.weights)
        try:
            yield
        finally:
            network.load_state_dict(own)
