"""The pass of an epoch that trains the network: every slice once, in mini-batches.

It consists of equal steps over tensors that stay in place, so that on CUDA each step is recorded once and replayed
(:class:`discoseg.replay.Replay`): which slices are next, how they are augmented and what the losses come to are read
from and written to tensors on the device, and the host only says "again".
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from discoseg import admm, losses
from discoseg.augment import apply_intensities, apply_transforms, pixel_area, sample_intensities, sample_transforms
from discoseg.config import Config
from discoseg.errors import UserError
from discoseg.networks.convolution import WeightGradients
from discoseg.networks.precision import network_precision
from discoseg.out_of_memory import OutOfMemory, Say, fits
from discoseg.ranks import ALONE, Ranks
from discoseg.replay import Replay, let_go
from discoseg.shards import Steps, plan_steps
from discoseg.slices import Slices
from discoseg.state import State, require_finite_weights
from discoseg.undo import Undo


class TrainingPass:
    """Mini-batches of 2D slices drawn across volumes, on the augmented loss: one pass over all slices a call.

    All batches have the same size: the last is filled up with slices that the pass began with. One or two alone would
    take a step of their own, and decide a good part of the running means that predictions are normalised by.

    Where memory does not suffice for a batch, its gradient is added up from parts of it, twice as many each time, and
    the step is taken again as if nothing had happened.

    With several ranks the steps are plain ones, without recordings and gradients beside each other, which would bypass
    torch's averaging, and batches are not divided further. Running means are averaged at the end of a pass, so that all
    ranks predict alike.
    """

    def __init__(
        self,
        state: State,
        slices: Slices,
        config: Config,
        say: Say = lambda line: None,
        ranks: Ranks = ALONE,
        others: Callable[[], bool] = lambda: False,
    ) -> None:
        """Of several ``ranks`` each takes its share of a batch from its own ``slices``; they call this together.

        ``others`` says whether other trainings share the device just now. ``steps`` are those of a pass.
        """
        self._others = others
        self._state, self._slices, self._config, self._say, self._ranks = state, slices, config, say, ranks
        device = slices.image.device
        self.steps = plan_batches(slices, config, ranks)
        self._batch, self._count = self.steps.own, self.steps.count
        self._order = torch.empty(self._count * self._batch, dtype=torch.int64, device=device)
        self._theta: torch.Tensor | None = None
        self._intensities: torch.Tensor | None = None
        self._next = torch.zeros((), dtype=torch.int64, device=device)  # step
        self._ahead = torch.arange(self._batch, device=device)
        self._ones = torch.ones(len(loss_terms(config)), device=device)
        self._network = ranks.parallel(state.network)
        self._gradients: AbstractContextManager[object] = WeightGradients(device, state.network)
        if ranks.several:  # torch averages the ranks' gradients, so each loss counts by its share of the mean
            self._ones *= self.steps.share * ranks.size
            self._gradients = nullcontext()
        self._undo = Undo(state)
        self._step = Replay(self._train_next, device)

    def run(self, progress: Callable[[float], None], beside: Callable[[], None] = lambda: None) -> dict[str, float]:
        """Train on every slice, in random order; return the learning rate and the mean of each loss term.

        A pass of which some steps are done already goes on after them. ``progress`` is told the fraction of the batches
        done, after each. ``beside`` is called once, early in the pass: on CUDA the steps so far keep the device busy
        meanwhile.
        """
        running = self._state.running
        set_learning_rate(self._state.optimiser, self.lr)
        self._state.network.train()
        self._draw()
        self._next.fill_(running.steps)
        while running.steps < self._count:
            self._take_step()
            running.steps += 1
            if running.steps == self._count:
                self._ranks.average_statistics(self._state.network, self.steps.share)
            progress(running.steps / self._count)
            if running.steps == self._count // 8 + 1:  # the host is not ahead of the device by a whole pass
                beside()
        self.require_finite()
        means = self._ranks.sum(running.losses.double().mean(dim=0) * self.steps.share).tolist()
        terms = {f"loss_{name}": value for name, value in zip(loss_terms(self._config), means, strict=True)}
        return {"lr": self.lr, "loss": sum(means), **terms}

    @property
    def lr(self) -> float:
        """The learning rate of the running epoch."""
        optimiser = self._config.optimiser
        return optimiser.lr * optimiser.lr_factor ** ((self._state.epoch - self._state.began) // optimiser.lr_every)

    def record_anew(self) -> None:
        """Forget the recorded step: another round draws the network to its targets in another way."""
        self._step = Replay(self._train_next, self._order.device)

    def require_finite(self) -> None:
        """Raise a `UserError` with a diagnosis if a loss or weight of the running epoch is not finite; waits for it.

        All ranks call it together.
        """
        with self._ranks.agree():
            self._require_finite_losses()
        require_finite_weights(self._state)

    def _require_finite_losses(self) -> None:
        epoch, running = self._state.epoch + 1, self._state.running
        finite = running.losses[: running.steps].isfinite().cpu()  # (steps, terms)
        if not finite.all():
            step = int((~finite.all(dim=1)).nonzero()[0])
            losses = dict(zip(loss_terms(self._config), running.losses[step].tolist(), strict=True))
            bad = ", ".join(f"{name} {losses[name]}" for name, ok in zip(losses, finite[step], strict=True) if not ok)
            raise UserError(
                f"the loss became {sum(losses.values())} in epoch {epoch}, step {step + 1} of {self._count}: of its "
                f"terms {bad}; learning rate {self.lr:g}; the batch was of {self._describe_batch(step)}; the last "
                "checkpoint is kept: start anew with a smaller --optimiser.lr"
            )

    def _describe_batch(self, step: int) -> str:
        """Return the names of the cases in a step's batch."""
        volumes = self._slices.volume[self._order[step * self._batch : (step + 1) * self._batch]]
        return ", ".join(self._slices.names[index] for index in volumes.unique().tolist())

    def _draw(self) -> None:
        """Draw the order of the slices and their augmentations from the CPU's generator, for the whole epoch."""
        generator, augment, count = self._state.order, self._config.augment, len(self._order)
        running = self._state.running
        if running.steps:
            generator.set_state(running.drawn)
        else:
            running.drawn = generator.get_state()
        order = torch.randperm(len(self._slices), generator=generator)
        self._order.copy_(order[torch.arange(count) % len(order)])
        theta = sample_transforms(
            count,
            generator,
            rotate_deg=augment.rotate_deg,
            crop=(augment.crop_min, augment.crop_max),
            flip=augment.flips,
        )
        intensities = sample_intensities(count, generator, gamma=augment.gamma, noise=augment.noise)
        self._theta = _put(theta, self._theta, self._order.device)
        self._intensities = _put(intensities, self._intensities, self._order.device)

    def _take_step(self) -> None:
        """Take the next step, of smaller and smaller parts of its batch until there is memory for them."""
        if self._ranks.several:
            self._take_step_together()
            return
        while True:
            if not self._step.recorded:  # a recorded step has all the memory that it needs
                self._undo.remember()
            if fits(self._step):
                return
            self._undo.restore()
            self._split_further()

    def _take_step_together(self) -> None:
        """Take the next step with the other ranks, which wait for this one's gradients and could not take it again."""
        with self._ranks.noticing_losses():
            if not fits(self._train_next):
                raise UserError(
                    f"out of memory in epoch {self._state.epoch + 1}, with {self._batch} slices at a time; the last "
                    "checkpoint is kept: free memory, or start more processes with fewer slices each, and resume"
                )

    def _split_further(self) -> None:
        """Take batches in twice as many parts from now on; a part of one pixel a feature would have no variance.

        Not where other trainings have the memory: this one can go on, with whole batches, when one of them has ended.
        """
        running, (rows, columns) = self._state.running, self._slices.seeds.shape[1:]
        if self._others():
            raise OutOfMemory(f"out of memory in epoch {self._state.epoch + 1}, beside other trainings")
        most = self._batch // (2 if is_one_pixel(rows, columns, self._config) else 1)
        if running.parts >= most:
            raise OutOfMemory(
                f"out of memory in epoch {self._state.epoch + 1}, with {self._batch // running.parts} slices at a "
                "time; the last checkpoint is kept: free memory and resume, or train anew with a smaller --grid.shape, "
                "--network.width or depth"
            )
        running.parts = min(2 * running.parts, most)
        self._step = Replay(self._train_next, self._order.device)
        let_go(self._order.device)
        self._say(
            f"out of memory in epoch {self._state.epoch + 1}: from step {running.steps + 1} on a batch of "
            f"{self._batch} slices is taken in {running.parts} parts; their gradients add up to the batch's, but batch "
            "normalisation sees a part at a time"
        )

    def _train_next(self) -> None:
        """Take the next batch: gather, augment, forward, loss, backward, optimiser."""
        places = torch.add(self._ahead, self._next, alpha=self._batch)
        self._state.optimiser.zero_grad(set_to_none=True)
        parts = places.tensor_split(self._state.running.parts)
        terms = self._find_gradient(places) if len(parts) == 1 else self._add_gradients(parts)
        self._state.optimiser.step()
        self._state.running.losses.index_copy_(0, self._next.view(1), terms[None])
        self._next.add_(1)

    def _add_gradients(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Leave the gradient of a batch in the weights, part by part, as of its mean; return its loss terms (T,)."""
        weights = list(self._state.network.parameters())
        terms, total = torch.zeros_like(self._ones), [torch.zeros_like(weight) for weight in weights]
        for part in parts:
            share = len(part) / self._batch
            terms += share * self._find_gradient(part, share)
            torch._foreach_add_(total, [weight.grad for weight in weights if weight.grad is not None])
            self._state.optimiser.zero_grad(set_to_none=True)
        for weight, gradient in zip(weights, total, strict=True):
            weight.grad = gradient
        return terms

    def _find_gradient(self, places: torch.Tensor, share: float = 1.0) -> torch.Tensor:
        """Put a gradient, ``share`` times, into the weights' empty ones; return the loss terms (T,) of these places."""
        theta = None if self._theta is None else self._theta[places]
        intensities = None if self._intensities is None else self._intensities[places]
        with self._gradients:
            terms = self._batch_losses(self._order[places], theta, intensities)
            terms.backward(self._ones if share == 1 else self._ones * share)  # of their sum
        return terms.detach()

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
        weight = self._config.foreground_weight
        coupling = "entropy" if state.round else self._config.admm.coupling  # masks that stay have no multipliers
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


def plan_batches(slices: Slices, config: Config, ranks: Ranks = ALONE) -> Steps:
    """Return the steps of a training pass over the slices of all ranks, which call this together."""
    return plan_steps(config.optimiser.batch, ranks.gather(len(slices)), ranks.rank)


def loss_terms(config: Config) -> list[str]:
    """Return the names of the terms that the loss is the sum of."""
    return ["seeds", *config.priors, *(["penalty"] if config.method == "penalty" else [])]


def is_one_pixel(rows: int, columns: int, config: Config) -> bool:
    """Say whether the network shrinks a slice to one pixel, so that a batch of one slice has no variance."""
    return config.network.name == "unet" and max(rows, columns) <= 2 ** (config.network.depth or 3)


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
