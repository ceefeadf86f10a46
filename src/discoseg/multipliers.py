"""What follows a prior's new proposals: its multipliers move."""

from collections.abc import Callable

import torch

from discoseg.admm import Prior, Residuals, move_multipliers, residuals_of
from discoseg.config import AdmmConfig
from discoseg.data.memory import BOUNDLESS, Memory
from discoseg.ranks import ALONE, Ranks
from discoseg.replay import Replay


class MultiplierUpdate:
    """Takes a prior's new proposals over and moves its multipliers; on CUDA recorded once and then replayed.

    The tensors given at the start are read and written each time, where they are.
    """

    def __init__(
        self,
        prior: Prior,
        probability: torch.Tensor,
        admm: AdmmConfig,
        watch: Callable[[torch.Tensor], None] = lambda proposal: None,
        memory: Memory = BOUNDLESS,
        ranks: Ranks = ALONE,
    ) -> None:
        """``probability`` (K, N, H, W); ``admm`` has the multipliers' step; ``watch`` sees proposals beforehand.

        Residuals are over the volumes of all ``ranks``, which call this together.
        """
        self._prior, self._ranks = prior, ranks
        self._values = sum(ranks.gather(probability.numel()))
        self._proposal = memory.tensor(tuple(probability.shape), torch.bool, probability.device)
        self._squares = torch.zeros(2, dtype=torch.float64, device=probability.device)

        def move() -> None:
            watch(self._proposal)
            move_multipliers(prior, probability, self._proposal, admm, self._squares)

        self._move = Replay(move, probability.device)

    def __call__(self, proposal: torch.Tensor) -> Residuals:
        """Take over the proposal (K, N, H, W) bool and return the residuals."""
        self._proposal.copy_(proposal)
        self._move()
        return residuals_of(self._prior, self._ranks.sum(self._squares), self._values)
