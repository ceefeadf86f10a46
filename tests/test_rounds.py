"""Rounds: a new network learns masks that stay; they honour seeds and bounds; resumed rounds end in the same bytes."""

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
from discoseg.checkpoint import load_meta, load_tensors
from discoseg.config import Config, Method, OptimiserConfig, RoundsConfig
from discoseg.errors import UserError
from discoseg.run import RunFolder
from discoseg.state import State
from discoseg.train import train
from discoseg.weak.examples import Example
from test_train import MODEL, SMALL, _files, _Interrupted, _run

ROUNDS = replace(
    SMALL,
    epochs=4,
    optimiser=replace(SMALL.optimiser, lr_factor=0.5, lr_every=1),
    rounds=RoundsConfig(every=2, strength=0.1, margin=0.0),
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


@pytest.mark.parametrize("method", ["crf+size", "size", "crf"])
def test_a_second_network_learns_masks_that_stay(method: Method, examples: list[Example], tmp_path: Path) -> None:
    config = replace(ROUNDS, method=method)
    state = _run(examples, config, tmp_path / "run")
    kept = _kept_after(3, examples, config, tmp_path / "third")
    for prior in state.priors:
        assert torch.equal(kept[f"{prior.name}.proposal2"], prior.doubled)  # those of the fourth epoch
        assert not prior.multiplier.any()
        assert torch.equal(prior.doubled, state.priors[0].doubled)
    _require_known(state, examples, bounded=method != "crf")
    rows = _rows(tmp_path / "run")
    assert [float(row["lr"]) for row in rows] == [5e-3, 2.5e-3, 5e-3, 2.5e-3]
    assert [row["mu_" + state.priors[0].name] != "" for row in rows] == [True, True, False, False]
    assert float(rows[2]["loss_seeds"]) > float(rows[1]["loss_seeds"])  # it knows nothing yet


def _require_known(state: State, examples: list[Example], *, bounded: bool) -> None:
    """Masks contradict no seed, and have their sizes."""
    masks, stop = state.priors[0].proposal[0].numpy(), 0
    for example in examples[:3]:
        start, stop = stop, stop + len(example.seeds)
        mask, (bounds,) = masks[start:stop], example.bounds or ()
        assert mask[example.seeds == 1].all()
        assert not mask[example.seeds == 0].any()
        if bounded:
            assert bounds.low_vox <= mask.sum() <= bounds.high_vox


def test_structures_share_a_round(hearts: list[Example], tmp_path: Path) -> None:
    model = {**MODEL, "labels": {"RV": 1, "MYO": 2, "LV": 3}}
    state = train(hearts[:3], hearts[3:], ROUNDS, tmp_path / "run", model=model, device="cpu")
    masks = state.priors[0].proposal
    assert (masks.sum(dim=0) <= 1).all()
    seeds = torch.from_numpy(np.concatenate([heart.seeds for heart in hearts[:3]]))
    for number, mask in enumerate(masks, start=1):
        assert mask[seeds == number].all()


@pytest.mark.parametrize("method", ["full", "partial", "penalty"])
def test_methods_without_proposals_have_one_round(method: Method, examples: list[Example], tmp_path: Path) -> None:
    for name, every in (("rounds", 2), ("one", 0)):
        _run(examples, replace(ROUNDS, method=method, rounds=RoundsConfig(every=every)), tmp_path / name)
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


def test_more_epochs_may_make_another_round(examples: list[Example], tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    _run(examples, replace(ROUNDS, epochs=2), folder.root)
    assert load_meta(folder.latest)["round"] == 0
    state = _run(examples, replace(ROUNDS, epochs=5), folder.root, resume=True)
    assert (state.round, state.epoch) == (2, 5)


def test_a_warm_up_needs_room_in_the_first_round() -> None:
    with pytest.raises(UserError, match=r"--admm.warm-up 2 leaves no epoch of the first round"):
        replace(ROUNDS, admm=replace(ROUNDS.admm, warm_up=2))


@given(epochs=st.integers(1, 300), every=st.integers(0, 120), lr_every=st.integers(1, 60))
def test_rounds_share_the_epochs(epochs: int, every: int, lr_every: int) -> None:
    config = Config(epochs=epochs, optimiser=OptimiserConfig(lr_every=lr_every), rounds=RoundsConfig(every=every))
    spans = [config.span_of_round(number) for number in range(config.round_count)]
    assert [epoch for first, end in spans for epoch in range(first, end)] == list(range(epochs))
    for number, (first, end) in enumerate(spans):
        assert {config.round_of(epoch) for epoch in range(first, end)} == {number}
        assert is_averaged(end, config)  # else the round would leave nothing
        assert not every or epochs < every or 2 * (end - first) >= every
