"""A second round: a new network learns masks that stay, honour seeds and bounds; resumed it ends in the same bytes."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from discoseg import checkpoints
from discoseg.averaging import is_averaged
from discoseg.checkpoint import load_tensors
from discoseg.checkpoint_header import load_meta
from discoseg.config import Config, Method, OptimiserConfig, RoundsConfig
from discoseg.epoch import prepare_work
from discoseg.errors import UserError
from discoseg.material import Material
from discoseg.report import write_report
from discoseg.rounds import propose_masks
from discoseg.run import RunFolder
from discoseg.start import start_state
from discoseg.state import network_tensors
from discoseg.train import train
from discoseg.weak.bounds import Bounds
from discoseg.weak.examples import Example
from test_train import MODEL, SMALL, _files, _Interrupted, _run

ROUNDS = replace(
    SMALL,
    epochs=4,
    optimiser=replace(SMALL.optimiser, lr_factor=0.5, lr_every=1),
    rounds=RoundsConfig(first=2, strength=0.1, margin=0.05),
)


def _rows(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def _kept_after(epoch: int, examples: list[Example], config: Config, run: Path) -> dict[str, torch.Tensor]:
    """Return the checkpoint of a training that is interrupted after an epoch."""

    def stop(done: float, message: str) -> None:
        if done == epoch:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(examples[:3], examples[3:], config, run, model=MODEL, device="cpu", progress=stop)
    return load_tensors(RunFolder(run).latest)[0]


def test_a_second_network_learns_masks_that_stay(examples: list[Example], tmp_path: Path) -> None:
    state = _run(examples, ROUNDS, tmp_path / "run")
    before, kept = (_kept_after(epoch, examples, ROUNDS, tmp_path / str(epoch)) for epoch in (2, 3))
    learnt = torch.cat([(kept[name] - before[name]).flatten() for name in before if name.startswith("network.decoder")])
    assert learnt.float().norm() > 1  # far from where the first network was
    for prior in state.priors:
        assert torch.equal(kept[f"{prior.name}.proposal2"], prior.doubled)  # those of the fourth epoch
        assert not prior.multiplier.any()
        assert torch.equal(prior.doubled, state.priors[0].doubled)
    masks, stop = state.priors[0].proposal[0].numpy(), 0
    for example in examples[:3]:
        start, stop = stop, stop + len(example.seeds)
        mask, (bounds,) = masks[start:stop], example.bounds or ()
        assert mask[example.seeds == 1].all()
        assert not mask[example.seeds == 0].any()
        assert 1.05 * bounds.low_vox <= mask.sum() <= 0.95 * bounds.high_vox
    rows = _rows(tmp_path / "run")
    assert [float(row["lr"]) for row in rows] == [5e-3, 2.5e-3, 5e-3, 2.5e-3]
    assert [row["round"] for row in rows] == ["1", "1", "2", "2"]
    assert [row["mu_crf"] != "" for row in rows] == [True, True, False, False]
    write_report([tmp_path / "run"], tmp_path / "report.html")
    assert "validation 3D Dice, mean of weights" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_masks_are_those_of_the_mean_weights(examples: list[Example], tmp_path: Path) -> None:
    """Of two epochs here, in which the weights differ."""
    config = replace(ROUNDS, epochs=8, rounds=replace(ROUNDS.rounds, first=5))
    state = _run(examples, config, tmp_path / "run")
    _run(examples, replace(config, epochs=5), tmp_path / "first")
    mean, _ = load_tensors(RunFolder(tmp_path / "first").mean)
    mean["network.output.bias"] = load_tensors(RunFolder(tmp_path / "first").final)[0]["network.output.bias"]
    masks = {}
    for name, weights in (("mean", mean), ("last", load_tensors(RunFolder(tmp_path / "first").final)[0])):
        with Material(examples[:3], [], torch.device("cpu")) as material:
            other = start_state(material.slices, config)
            other.network.load_state_dict(network_tensors(weights))
            masks[name] = propose_masks(other, prepare_work(other, material, config, print), material, config).clone()
    assert not torch.equal(masks["mean"], masks["last"])
    # The bias of the mean was not kept: its masks may differ from these by it, those of the last weights by more.
    apart = {name: int((mask != state.priors[0].proposal).sum()) for name, mask in masks.items()}
    assert apart["mean"] < apart["last"]


def test_masks_have_a_boundary_prior_of_their_own(examples: list[Example], tmp_path: Path) -> None:
    """Another σ, strength or neighbourhood than the proposals', as far as they are given."""
    plain, rounds = _run(examples, ROUNDS, tmp_path / "plain").priors[0].proposal, ROUNDS.rounds
    same = replace(rounds, sigma=ROUNDS.crf.sigma, neighbours=ROUNDS.crf.neighbours)
    others = replace(rounds, strength=2.0), replace(rounds, sigma=0.01), replace(rounds, neighbours=8)
    for number, own in enumerate((same, *others)):
        masks = _run(examples, replace(ROUNDS, rounds=own), tmp_path / str(number)).priors[0].proposal
        assert torch.equal(masks, plain) == (own is same)


def test_soft_bounds_are_left_out(examples: list[Example], tmp_path: Path) -> None:
    """A size that may be wrong is not forced on a mask."""
    tight = [replace(e, bounds=(Bounds(e.bounds[0].low_vox, e.bounds[0].low_vox),)) for e in examples if e.bounds]
    soft = replace(ROUNDS, admm=replace(ROUNDS.admm, soft_bounds=0.01))
    sizes = []
    for name, config in (("hard", ROUNDS), ("soft", soft)):
        masks = _run(tight, config, tmp_path / name).priors[0].proposal[0]
        sizes.append([int(part.sum()) for part in masks.split([len(e.seeds) for e in tight[:3]])])
    assert sizes[0] == [e.bounds[0].low_vox for e in tight[:3] if e.bounds]
    assert all(soft != hard for hard, soft in zip(*sizes, strict=True))


def test_structures_share_a_round(hearts: list[Example], tmp_path: Path) -> None:
    model = {**MODEL, "labels": {"RV": 1, "MYO": 2, "LV": 3}}
    state = train(hearts[:3], hearts[3:], ROUNDS, tmp_path / "run", model=model, device="cpu")
    masks = state.priors[0].proposal
    assert (masks.sum(dim=0) <= 1).all()
    seeds = torch.from_numpy(np.concatenate([heart.seeds for heart in hearts[:3]]))
    for number, mask in enumerate(masks, start=1):
        assert mask[seeds == number].all()


@pytest.mark.parametrize("method", ["full", "partial", "penalty", "size", "crf"])
def test_other_methods_have_one_round(method: Method, examples: list[Example], tmp_path: Path) -> None:
    for name, first in (("rounds", 2), ("one", 0)):
        _run(examples, replace(ROUNDS, method=method, rounds=RoundsConfig(first=first)), tmp_path / name)
    assert _rows(tmp_path / "rounds") == _rows(tmp_path / "one")


@pytest.mark.parametrize("until", [1.5, 1.99, 2.0, 2.05, 3.5])
def test_a_resumed_round_ends_in_the_same_bytes(
    until: float, examples: list[Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "EVERY_S", 0.0)
    _run(examples, ROUNDS, tmp_path / "whole")
    with pytest.raises(_Interrupted):
        _run(examples, ROUNDS, tmp_path / "parts", until=until)
    torch.manual_seed(123)
    _run(examples, ROUNDS, tmp_path / "parts", resume=True)
    whole, parts = _files(tmp_path / "whole"), _files(tmp_path / "parts")
    assert [name for name in whole if whole[name] != parts.get(name)] == []


@pytest.mark.parametrize("messages", [1, 2])
def test_an_interruption_between_rounds_loses_nothing(messages: int, examples: list[Example], tmp_path: Path) -> None:
    """After the last epoch of a round, and when the next one's network has not taken a step yet."""
    seen: list[str] = []

    def stop(done: float, message: str) -> None:
        if done == 2:
            seen.append(message)
        if len(seen) == messages:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(examples[:3], examples[3:], ROUNDS, tmp_path / "parts", model=MODEL, device="cpu", progress=stop)
    assert [message.startswith("labelling") for message in seen] == [False, True][:messages]
    _run(examples, ROUNDS, tmp_path / "parts", resume=True)
    _run(examples, ROUNDS, tmp_path / "whole")
    assert _files(tmp_path / "parts") == _files(tmp_path / "whole")


def test_more_epochs_add_a_second_round_to_the_first(examples: list[Example], tmp_path: Path) -> None:
    """Whose mean of weights it begins with, as if it had been planned."""
    config = replace(ROUNDS, epochs=8, rounds=replace(ROUNDS.rounds, first=5))
    _run(examples, replace(config, epochs=5), tmp_path / "run")
    assert load_meta(RunFolder(tmp_path / "run").latest)["round"] == 0
    _run(examples, config, tmp_path / "run", resume=True)
    _run(examples, config, tmp_path / "whole")
    assert _rows(tmp_path / "run") == _rows(tmp_path / "whole")


def test_a_second_round_begins_late_where_it_was_not_planned(examples: list[Example], tmp_path: Path) -> None:
    """After six epochs in one round, of which the first should have had five; and then ends early."""
    config = replace(ROUNDS, epochs=6, rounds=replace(ROUNDS.rounds, first=5))
    _run(examples, config, tmp_path / "run")
    state = _run(examples, replace(config, epochs=9), tmp_path / "run", resume=True)
    assert (state.round, state.began) == (1, 6)
    assert float(_rows(tmp_path / "run")[6]["lr"]) == 5e-3

    def stop(done: float, message: str) -> None:
        if done == 6:
            raise KeyboardInterrupt

    long = replace(config, epochs=9)
    with pytest.raises(KeyboardInterrupt):
        train(examples[:3], examples[3:], long, tmp_path / "early", model=MODEL, device="cpu", progress=stop)
    state = _run(examples, replace(config, epochs=7), tmp_path / "early", resume=True)
    assert (state.round, state.began, state.mean.epochs) == (1, 5, 1)


def test_a_warm_up_needs_room_in_the_first_round() -> None:
    with pytest.raises(UserError, match=r"--admm.warm-up 2 leaves none of --rounds.first 2 for proposals"):
        replace(ROUNDS, admm=replace(ROUNDS.admm, warm_up=2))


@given(epochs=st.integers(1, 300), first=st.integers(0, 120), lr_every=st.integers(1, 60))
def test_rounds_share_the_epochs(epochs: int, first: int, lr_every: int) -> None:
    config = Config(epochs=epochs, optimiser=OptimiserConfig(lr_every=lr_every), rounds=RoundsConfig(first=first))
    rounds = [config.round_of(epoch) for epoch in range(epochs)]
    assert rounds == sorted(rounds)
    assert is_averaged(config.end_of_round(0), config)  # else the round would leave nothing
    if rounds[-1]:
        assert rounds.count(0) == first == config.end_of_round(0)
        assert 2 * rounds.count(1) >= first
        assert is_averaged(epochs, config, 1, first)
    else:
        assert config.end_of_round(0) == epochs
        assert not first or 2 * (epochs - first) < first
