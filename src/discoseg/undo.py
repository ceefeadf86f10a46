"""A training step that broke off, as if it had never begun."""

import torch

from discoseg.replay import undisturbing
from discoseg.state import State


class Undo:
    """Remembers what a step changes before its optimiser moves the weights, and puts it back.

    These are the network's batch statistics, the remembered sums of slices, and the random generators; the optimiser
    moves all weights in one go, after everything that needs memory. In its first step that is its own moments, too,
    which it makes weight by weight: those that a step has begun to make are dropped, those that were there, which
    recorded steps read, stay where they are.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._changed = [*state.network.buffers()]
        self._copies = [buffer.clone() for buffer in self._changed]

    def remember(self) -> None:
        """Note what is there before a step; never wait for the device."""
        state = self._state
        if self._copies:
            torch._foreach_copy_(self._copies, self._changed)
        self._sums = state.slice_sums.clone()
        self._moments = set(state.optimiser.state)
        self._random = torch.get_rng_state()
        self._random_cuda: torch.Tensor | None = None
        if state.slice_sums.is_cuda:
            with undisturbing():
                self._random_cuda = torch.cuda.get_rng_state()

    def restore(self) -> None:
        """Put back what `remember` noted last."""
        if self._copies:
            torch._foreach_copy_(self._changed, self._copies)
        self._state.slice_sums.copy_(self._sums)
        optimiser = self._state.optimiser
        for weight in optimiser.state.keys() - self._moments:
            del optimiser.state[weight]
        torch.set_rng_state(self._random)
        if self._random_cuda is not None:
            with undisturbing():
                torch.cuda.set_rng_state(self._random_cuda)
        optimiser.zero_grad(set_to_none=True)
