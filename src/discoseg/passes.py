"""The two passes of an epoch over all slices: one that trains the network, one that asks it.

Both consist of equal steps over tensors that stay in place, so that on CUDA each step is recorded once and replayed
(:class:`discoseg.replay.Replay`): which slices are next, how they are augmented and what the losses sum to are read
from and written to tensors on the device, and the host only says "again".
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

from discoseg import admm, losses
from discoseg.augment import apply_intensities, apply_transforms, pixel_area, sample_intensities, sample_transforms
from discoseg.config import Config
from discoseg.data.memory import BOUNDLESS, Memory
from discoseg.errors import UserError
from discoseg.networks.convolution import WeightGradients
from discoseg.ranks import ALONE, Ranks
from discoseg.replay import Replay
from discoseg.shards import plan_steps
from discoseg.slices import Slices
from discoseg.state import State

_PREDICT_BATCH = {"cuda": 64, "cpu": 32}  # slices of up to 256×256; of larger ones as many as have no more pixels


class TrainingPass:
    """Mini-batches of 2D slices drawn across volumes, on the augmented loss: one pass over all slices a call.

    All batches have the same size: the last is filled up with slices that the pass began with. One or two alone would
    take a step of their own, and decide a good part of the running means that predictions are normalised by.

    With several ranks the steps are plain ones, without recordings and gradients beside each other, which would bypass
    torch's averaging; running means are averaged at the end of a pass, so that all ranks predict alike.
    """

    def __init__(self, state: State, slices: Slices, config: Config, ranks: Ranks = ALONE) -> None:
        """Of several ``ranks`` each takes its share of a batch from its own ``slices``; they call this together."""
        self._state, self._slices, self._config, self._ranks = state, slices, config, ranks
        device = slices.image.device
        steps = plan_steps(config.optimiser.batch, ranks.gather(len(slices)), ranks.rank)
        self._batch, self._count, self._share = steps.own, steps.count, steps.share
        self._order = torch.empty(self._count * self._batch, dtype=torch.int64, device=device)
        self._theta: torch.Tensor | None = None
        self._intensities: torch.Tensor | None = None
        self._next = torch.zeros((), dtype=torch.int64, device=device)
        self._ahead = torch.arange(self._batch, device=device)
        self._sums = torch.zeros(len(self._terms()), device=device)
        self._ones = torch.ones_like(self._sums)
        self._network = ranks.parallel(state.network)
        self._gradients: AbstractContextManager[object] = nullcontext()
        self._step: Callable[[], None] = self._train_next
        if ranks.several:  # torch averages the ranks' gradients, so each loss counts by its share of the mean
            self._ones *= self._share * ranks.size
        else:
            self._gradients = WeightGradients(device, state.network)
            self._step = Replay(self._train_next, device)

    def _terms(self) -> list[str]:
        penalty = ["penalty"] if self._config.method == "penalty" else []
        return ["seeds", *(prior.name for prior in self._state.priors), *penalty]

    def run(self, progress: Callable[[float], None], beside: Callable[[], None] = lambda: None) -> dict[str, float]:
        """Train on every slice, in random order; return the learning rate and the mean of each loss term.

        ``progress`` is told the fraction of the batches done. ``beside`` is called once, early in the pass: on CUDA the
        steps so far keep the device busy meanwhile.
        """
        state, optimiser = self._state, self._config.optimiser
        lr = optimiser.lr * optimiser.lr_factor ** (state.epoch // optimiser.lr_every)
        set_learning_rate(state.optimiser, lr)
        state.network.train()
        self._draw()
        self._next.zero_()
        self._sums.zero_()
        for number in range(self._count):
            with self._ranks.noticing_losses():
                self._step()
            progress((number + 1) / self._count)
            if number == self._count // 8:  # the host is not ahead of the device by a whole pass
                beside()
        self._ranks.average_statistics(state.network, self._share)
        sums = (self._ranks.sum(self._sums * self._share) / self._count).tolist()
        means = {f"loss_{name}": value for name, value in zip(self._terms(), sums, strict=True)}
        total = sum(means.values())
        if not np.isfinite(total):
            raise UserError(
                f"the loss became {total} in epoch {state.epoch + 1}; the models up to then are kept: "
                "start anew with a smaller --optimiser.lr"
            )
        return {"lr": lr, "loss": total, **means}

    def _draw(self) -> None:
        """Draw the order of the slices and their augmentations from the CPU's generator, for the whole epoch."""
        generator, augment, count = self._state.order, self._config.augment, len(self._order)
        order = torch.randperm(len(self._slices), generator=generator)
        self._order.copy_(order[torch.arange(count) % len(order)])
        theta = sample_transforms(
            count,
            generator,
            rotate_deg=augment.rotate_deg,
            crop=(augment.crop_min, augment.crop_max),
            flip=augment.flip,
        )
        intensities = sample_intensities(count, generator, gamma=augment.gamma, noise=augment.noise)
        self._theta = _put(theta, self._theta, self._order.device)
        self._intensities = _put(intensities, self._intensities, self._order.device)

    def _train_next(self) -> None:
        """Take the next batch: gather, augment, forward, loss, backward, optimiser."""
        places = self._next + self._ahead
        theta = None if self._theta is None else self._theta[places]
        intensities = None if self._intensities is None else self._intensities[places]
        self._state.optimiser.zero_grad(set_to_none=True)
        with self._gradients:
            terms = self._batch_losses(self._order[places], theta, intensities)
            terms.backward(self._ones)  # of their sum
        self._state.optimiser.step()
        self._sums.add_(terms.detach())
        self._next.add_(self._batch)

    def _batch_losses(
        self, batch: torch.Tensor, theta: torch.Tensor | None, intensities: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the terms of the augmented loss, (T,), on the slices ``batch`` (B,), moved by ``theta``."""
        state, slices = self._state, self._slices
        shape = (len(batch), 0, *slices.seeds.shape[1:])
        targets = admm.stack_targets(state.priors, batch) if state.priors else slices.image.new_empty(shape)
        image, seeds, targets, valid = apply_transforms(theta, slices.image[batch], slices.seeds[batch], targets)
        with network_precision(self._config, image.device):
            logits = self._network(apply_intensities(intensities, image))  # (B, 2, H, W)
        mus = [prior.mu_on_device for prior in state.priors]  # of which each has a target for every structure
        weight, coupling = self._config.foreground_weight, self._config.admm.coupling
        terms = losses.stack_terms(logits, seeds, targets, mus, valid, weight, coupling)
        if self._config.method == "penalty":
            terms = torch.cat([terms, self._penalty(logits, batch, theta, valid)[None]])
        return terms

    def _penalty(
        self, logits: torch.Tensor, batch: torch.Tensor, theta: torch.Tensor | None, valid: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the size penalty, summed over the structures, and remember the slices' sums."""
        slices, remembered = self._slices, self._state.slice_sums
        area = 1.0 if theta is None else pixel_area(theta)
        penalties = []
        for number, probability in enumerate(losses.structures(logits)):  # (B, H, W)
            sums = (probability if valid is None else probability * valid).sum(dim=(1, 2)) * area
            penalty = losses.size_penalty(
                sums,
                slice_index=batch,
                volume_of_slice=slices.volume,
                remembered_sums=remembered[number],
                low=slices.low[number],
                high=slices.high[number],
                mu=self._config.penalty,
                pixels=probability.numel(),
            )
            penalties.append(penalty)
            losses.remember_sums(remembered[number], batch, sums)
        return torch.stack(penalties).sum()


class PredictionPass:
    """The network's probability of each structure in all slices, batch by batch, in evaluation mode."""

    def __init__(
        self,
        network: torch.nn.Module,
        slices: Slices,
        config: Config,
        order: torch.Tensor | None = None,
        memory: Memory = BOUNDLESS,
    ) -> None:
        """``order`` (N,) is the one in which slices are predicted, by default that of the stack."""
        self._network, self._image, self._config = network, slices.image, config
        device = slices.image.device
        self.probability = memory.tensor((len(slices.structures), *slices.seeds.shape), torch.float32, device)
        self._order = torch.arange(len(slices), device=device) if order is None else order
        self._places = torch.arange(_predicted_at_once(slices.image), device=device)
        self._next = torch.zeros((), dtype=torch.int64, device=device)
        self._step = Replay(self._predict_next, device)

    def run(self) -> Iterator[torch.Tensor]:
        """Fill ``probability`` (K, N, H, W) and yield the slices (B,) that are new after each batch."""
        self._network.eval()
        self._next.zero_()
        count, batch = len(self._image), len(self._places)
        for start in range(0, count, batch):
            self._step()
            yield self._order[start : start + batch]

    def all(self) -> torch.Tensor:
        """Return the probabilities of all slices, (K, N, H, W); the next pass overwrites them."""
        for _ in self.run():
            pass
        return self.probability

    @torch.no_grad()
    def _predict_next(self) -> None:
        places = self._next + self._places
        # A recorded batch has one size: the last slice fills it up.
        places = places.clamp(max=len(self._image) - 1) if places.is_cuda else places[places < len(self._image)]
        places = self._order[places]
        with network_precision(self._config, places.device):
            logits = self._network(self._image[places])
        self.probability[:, places] = losses.structures(logits)
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


def network_precision(config: Config, device: torch.device) -> torch.autocast:
    """Return the context in which the network runs: on CUDA in bfloat16 where the configuration says so."""
    return torch.autocast(
        device.type, dtype=torch.bfloat16, enabled=device.type == "cuda" and config.network.precision == "bfloat16"
    )


def set_learning_rate(optimiser: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate, where recorded steps read it from a tensor, in place."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def _put(new: torch.Tensor | None, old: torch.Tensor | None, device: torch.device) -> torch.Tensor | None:
    """Copy ``new`` to where ``old`` is, or to the device the first time."""
    if new is None or old is None:
        return None if new is None else new.to(device)
    return old.copy_(new)
