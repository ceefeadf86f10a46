"""An epoch of training.

(1) One pass of mini-batches of 2D slices drawn across volumes, on the augmented loss; (2) the network, in evaluation
mode, predicts every training volume; (3) every 3D volume gets its proposals; (4) the multipliers move; (5) the learning
rate decays. Of the last epochs the weights go into a mean. In a second round (3) and (4) are left out: its masks stay.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from discoseg import admm
from discoseg.averaging import is_averaged
from discoseg.clock import Clock
from discoseg.config import Config, PriorName
from discoseg.disagreement import Disagreement
from discoseg.errors import UserError
from discoseg.material import Material
from discoseg.multipliers import MultiplierUpdate
from discoseg.out_of_memory import Say
from discoseg.prediction_pass import PredictionPass
from discoseg.proposers import Proposer, make_proposers
from discoseg.scores import score_cases, score_proposals, summarise_cases
from discoseg.state import State
from discoseg.training_pass import TrainingPass

Progress = Callable[[float, str], None]
"""Called with the epochs done so far (a fraction within an epoch) and a line about what is going on: the phase of the
epoch, and what the last one came to.

It may raise KeyboardInterrupt to end the training, which saves its state first: a later one goes on from there.
"""


class Work(NamedTuple):
    """What an epoch consists of."""

    learn: TrainingPass
    predict: PredictionPass
    validate: PredictionPass | None
    proposers: dict[PriorName, Proposer]
    updates: dict[PriorName, MultiplierUpdate]
    disagreement: Disagreement


def prepare_work(state: State, material: Material, config: Config, say: Say) -> Work:
    """Return the passes, proposers and updates that all epochs of a training use."""
    memory, held_out = material.memory, material.held_out
    predict = PredictionPass(state.network, material.slices, config, material.order, memory, say)
    disagreement = Disagreement(material.slices, material.training, predict.probability)
    return Work(
        learn=TrainingPass(state, material.slices, config, say, material.ranks, material.others),
        predict=predict,
        validate=PredictionPass(state.network, held_out, config, memory=memory, say=say) if held_out else None,
        proposers=make_proposers(material, config),
        updates={
            prior.name: MultiplierUpdate(
                prior, predict.probability, config.admm, disagreement.watch(prior), memory, material.ranks
            )
            for prior in state.priors
        },
        disagreement=disagreement,
    )


def run_epoch(
    state: State, work: Work, material: Material, config: Config, clock: Clock, progress: Progress, listen: Progress
) -> None:
    """Train, predict, propose, move the multipliers; note the epoch's row of metrics.

    ``progress`` is called where the state is one that a training can go on from: after each step, and from then on
    until the multipliers move, as the last step left it. In between ``listen`` is, as often as a rank has occasion to.
    """
    learn, predict, validate, proposers, *_ = work
    # What the next epoch is drawn to; in a second round that stays.
    proposing = state.round == 0 and state.epoch + 1 >= config.admm.first_proposals
    for prior in state.priors:
        clock.seconds[prior.name] += 0.0  # every row of timing.csv has every phase
    settled = None
    if material.device.type == "cuda":
        settled = torch.cuda.Event()
        settled.record()  # what the last epoch left is in place; the steps come after it

    def report(phase: str, part: float) -> None:
        progress(state.epoch + part, summarise(state, phase))

    def tick(phase: str, part: float) -> None:
        listen(state.epoch + part, summarise(state, phase))

    def foresee() -> None:
        for prior in state.priors if proposing else ():
            proposers[prior.name].foresee(predict.probability, prior, settled)

    with clock("network"):
        row = learn.run(lambda part: report("training", 0.9 * part), foresee)
    report("predicting", 0.9)
    with clock("predict"):
        for prior in state.priors:
            if proposing and prior.mu == 0:  # the warm-up is over
                prior.mu = admm.scheduled_mu(config.admm, prior.name, state.epoch + 1)
        done = 0
        for new in predict.run():
            done += len(new)
            for prior in state.priors if proposing else ():
                proposers[prior.name].start(predict.probability, prior, done)
            tick("predicting", 0.9 + 0.03 * done / len(material.slices))
    proposals: dict[PriorName, torch.Tensor] = {}
    if proposing and config.uses_size:
        report("fitting sizes", 0.93)
        ticks = partial(tick, "fitting sizes", 0.93)
        proposals["size"] = _propose("size", state, work, material, config, clock, ticks)
    report("scoring", 0.94)
    with clock("score"):  # while cores still cut
        for _ in validate.run() if validate is not None else ():
            tick("scoring", 0.95)
        for split, prefix in (("training", "train"), ("validation", "val")):
            cases = material.ranks.collect(score_split(split, work, material), material.numbers[split])
            row |= summarise_cases(cases, material.slices.structures, prefix=prefix)
        require_finite(state.epoch + 1, work, material)
    if proposing and config.uses_crf:
        report("cutting", 0.96)
        ticks = partial(tick, "cutting", 0.96)
        proposals["crf"] = _propose("crf", state, work, material, config, clock, ticks)
        report("cutting", 0.99)
    for name, proposal in proposals.items():  # no way back from here to the end of the epoch
        row |= _move_multipliers(name, proposal, state, work, config, clock)
    if state.round:
        work.disagreement.compare_kept(state.priors)
    if proposing or state.round:
        with clock("score"):
            numbers = material.numbers["training"]
            row |= score_proposals(state.priors, material.slices, material.training, material.ranks, numbers)
    if config.rounds.first and config.method == "crf+size":
        row["round"] = state.round + 1
    state.finish_epoch(row)
    if is_averaged(state.epoch, config, state.round, state.began):
        state.mean.take_in(state.network)


def _propose(
    name: PriorName,
    state: State,
    work: Work,
    material: Material,
    config: Config,
    clock: Clock,
    tick: Callable[[], None],
) -> torch.Tensor:
    """Return a prior's proposals (K, N, H, W) bool; ``tick`` is called now and then while cores still solve them."""
    seeds = material.slices.seeds if config.admm.honour_seeds else None
    with clock(name):
        return work.proposers[name].finish(work.predict.probability, state.prior(name), seeds, tick)


def _move_multipliers(
    name: PriorName, proposal: torch.Tensor, state: State, work: Work, config: Config, clock: Clock
) -> dict[str, float]:
    """Take over a prior's proposals (K, N, H, W), move its multipliers, adapt its μ; return the residuals."""
    prior = state.prior(name)
    with clock(name):
        residuals = work.updates[name](proposal)
        row = {f"mu_{name}": prior.mu, f"primal_{name}": residuals.primal, f"dual_{name}": residuals.dual}
        admm.adapt_mu(prior, residuals, config.admm, state.epoch)
    return row


def score_split(split: str, work: Work, material: Material) -> list[dict[str, float]]:
    """Return the scores of this rank's volumes of "training" or "validation", by the last predictions."""
    if split == "training":
        return score_cases(work.predict.probability, material.slices, material.training)
    if work.validate is None or material.held_out is None:
        return []
    return score_cases(work.validate.probability, material.held_out, material.validation)


def require_finite(epoch: int, work: Work, material: Material) -> None:
    """Refuse predictions that are not finite; once they are scored, this does not wait for the device."""
    with material.ranks.agree():
        for made in (work.predict, work.validate):
            if made is not None and (case := made.find_broken()) is not None:
                raise UserError(
                    f"{case}: its probabilities are not finite in epoch {epoch}, though all losses were; the "
                    "last checkpoint is kept: start anew with a smaller --optimiser.lr"
                )


def summarise(state: State, phase: str = "") -> str:
    """Say what is going on, and what the last epoch came to; what matters most first, as terminals are narrow."""
    parts = [phase] if phase else []
    if state.history:
        last, names = state.history[-1], {"val_dice": "val Dice", "train_dice": "train Dice"}
        parts += [f"{name} {last[key]:.3f}" for key, name in names.items() if key in last]
        parts.append(f"loss {last['loss']:.4f}")
    return " · ".join(parts)
