"""A running mean of a network's weights: it predicts more steadily than the network itself."""

import copy

import torch
from torch import nn


class WeightAverage:
    """An exponential running mean of a network's weights and statistics, as a network of its own.

    ``network`` is the mean, without gradients. ``steps`` () float32 counts the updates. Nothing here waits for the
    device, so an update may be part of a recorded step.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        """``decay`` of the mean at each update; in the beginning it is less, so that the start is soon forgotten."""
        self.network = copy.deepcopy(network).requires_grad_(False)
        self._decay = decay
        self._means, self._values = (
            [tensor for tensor in module.state_dict(keep_vars=True).values() if tensor.is_floating_point()]
            for module in (self.network, network)
        )
        self.steps = torch.zeros((), device=self._means[0].device)

    @torch.no_grad()
    def update(self) -> None:
        """Take the network's present weights in: mean ← d · mean + (1 − d) · weights, d = min(decay, t / (t + 9))."""
        decay = (self.steps / (self.steps + 9)).clamp(max=self._decay)
        torch._foreach_mul_(self._means, decay)
        torch._foreach_add_(self._means, torch._foreach_mul(self._values, 1 - decay))
        self.steps.add_(1)
