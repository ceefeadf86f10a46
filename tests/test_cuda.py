"""What only a GPU can show: recorded steps equal plain ones, selections equal the CPU's, trainings share the device."""

import copy
import csv
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np
import pytest
import torch

from discoseg import losses as plain_losses
from discoseg import replay
from discoseg.checkpoint import load_tensors
from discoseg.config import Config, Coupling, Method, NetworkConfig, RoundsConfig
from discoseg.kernels import kernels_on
from discoseg.material import Material
from discoseg.networks import build_network
from discoseg.networks.convolution import WeightGradients
from discoseg.prediction_pass import PredictionPass, predict_slices
from discoseg.rounds import APART
from discoseg.run import RunFolder
from discoseg.scores import score_epoch
from discoseg.selection import SizeSelector
from discoseg.slices import stack_slices
from discoseg.start import start_state
from discoseg.state import State, network_tensors
from discoseg.train import train_on
from discoseg.training_pass import TrainingPass
from discoseg.weak.examples import Example
from test_structures import MODEL as HEARTS_MODEL
from test_structures import SMALL as HEARTS
from test_train import LATE, MODEL, SMALL

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CUDA = torch.device("cuda")


def _train(examples: list[Example], config: Config, run: Path, model: dict[str, Any] = MODEL) -> State:
    with Material(examples[:3], examples[3:], CUDA) as material:
        return train_on(material, config, run, model=model)


def _apart(
    examples: list[Example],
    config: Config,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: dict[str, Any] = MODEL,
    seed: int = 0,
) -> float:
    """Train with recorded steps and with plain ones; return how far apart the weights end, in shares of their way."""
    weights = []
    for plain_runs in (1, 10**9):
        monkeypatch.setattr(replay, "_EAGER_RUNS", plain_runs)
        network = _train(examples, config, folder / str(plain_runs), model).network
        weights.append(torch.cat([p.detach().flatten() for p in network.parameters()]))
    torch.manual_seed(seed)  # that the network began with
    classes, width = 1 + len(examples[0].structures), config.network.width
    start = build_network(config.network.name, channels=1, classes=classes, width=width).to(CUDA)
    way = weights[1] - torch.cat([p.detach().flatten() for p in start.parameters()])
    return float((weights[0] - weights[1]).norm() / way.norm())


@pytest.fixture
def no_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks without dropout: a recorded step draws other random numbers than a plain one."""

    def build(*arguments: Any, **options: Any) -> torch.nn.Module:
        network = build_network(*arguments, **options)
        for module in network.modules():
            if isinstance(module, torch.nn.Dropout2d):
                module.p = 0.0
        return network

    monkeypatch.setattr("discoseg.start.build_network", build)


@pytest.mark.usefixtures("no_dropout")
@pytest.mark.parametrize("name", ["unet", "enet"])
@pytest.mark.parametrize("method", ["crf+size", "penalty", "full"])
def test_recorded_steps_equal_plain_ones(
    examples: list[Example],
    tmp_path: Path,
    name: Literal["unet", "enet"],
    method: Method,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The weights of both move to the same place, up to rounding: its share of the way they went is small."""
    config = replace(
        SMALL,
        method=method,
        epochs=3,
        foreground_weight=3.0,
        network=NetworkConfig(name=name, width=8),
        augment=replace(SMALL.augment, noise=0.0, crop_max=1.2),
        crf=replace(SMALL.crf, calibrate=name == "enet"),
        admm=replace(SMALL.admm, coupling="entropy" if name == "enet" else "square"),
        optimiser=replace(SMALL.optimiser, lr=1e-3),
    )
    assert _apart(examples, config, tmp_path, monkeypatch) < 0.1


@pytest.mark.usefixtures("no_dropout")
@pytest.mark.parametrize("coupling", ["square", "entropy"])
@pytest.mark.parametrize("method", ["crf+size", "partial"])
def test_recorded_steps_of_several_structures_equal_plain_ones(
    hearts: list[Example], tmp_path: Path, method: Method, coupling: Coupling, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(
        HEARTS,
        method=method,
        epochs=4,
        augment=replace(HEARTS.augment, noise=0.0),
        admm=replace(HEARTS.admm, coupling=coupling, warm_up=2),
        optimiser=replace(HEARTS.optimiser, lr=1e-3),
    )
    assert _apart(hearts, config, tmp_path, monkeypatch, HEARTS_MODEL) < 0.1


@pytest.mark.usefixtures("no_dropout")
@pytest.mark.parametrize("network", ["unet", "enet"])
def test_recorded_steps_of_a_further_round_equal_plain_ones(
    examples: list[Example], tmp_path: Path, network: Literal["unet", "enet"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was recorded in the first round draws the network to its targets in another way."""
    config = replace(
        SMALL,
        epochs=4,
        network=NetworkConfig(name=network, width=8),
        augment=replace(SMALL.augment, noise=0.0),
        optimiser=replace(SMALL.optimiser, lr=1e-3),
        rounds=RoundsConfig(first=2),
    )
    assert _apart(examples, config, tmp_path, monkeypatch, seed=APART) < 0.1


def test_recorded_predictions_score_the_mean_of_weights(examples: list[Example], tmp_path: Path) -> None:
    state = _train(examples, replace(LATE, epochs=10), tmp_path / "run")  # of which four are averaged
    mean, about = load_tensors(RunFolder(tmp_path / "run").mean)
    state.network.load_state_dict(network_tensors(mean))
    held_out = stack_slices(examples[3:], CUDA)
    probability = predict_slices(state.network, held_out.image)
    expected = score_epoch(probability, held_out, examples[3:], prefix="val")["val_dice"]
    assert about["val_dice"] == pytest.approx(expected, abs=1e-3)
    assert about["val_dice"] != state.history[-1]["val_dice"]


def test_selection_equals_the_cpus() -> None:
    rng = np.random.default_rng(0)
    shapes = [(int(rng.integers(3, 12)), 64, 64) for _ in range(7)]
    seeds = [rng.choice([-1, -1, 0, 1], size=s, p=[0.45, 0.45, 0.09, 0.01]).astype(np.int8) for s in shapes]
    bounds = [(int(0.3 * np.prod(s)), int(0.4 * np.prod(s))) for s in shapes]
    utility = torch.from_numpy(np.concatenate([rng.normal(size=s).round(2).astype(np.float32) for s in shapes]))
    known = torch.from_numpy(np.concatenate(seeds))
    for honoured, price in ((True, None), (False, None), (True, 0.3), (False, 1.0)):
        chosen = []
        for device in (CUDA, torch.device("cpu")):
            selector = SizeSelector(shapes, bounds, seeds if honoured else [None] * len(seeds), device)
            soft = None if price is None else torch.tensor(price, device=device)
            chosen.append(selector.select(utility.to(device), known.to(device) if honoured else None, soft).cpu())
        assert torch.equal(chosen[0], chosen[1])


@pytest.mark.parametrize("name", ["enet", "unet"])
@pytest.mark.parametrize("autocast", [False, True])
def test_gradients_are_as_exact_as_torchs(name: Literal["enet", "unet"], autocast: bool) -> None:
    """Our kernels with the weights' gradients on a stream beside, and torch's operations, both against float64."""
    torch.manual_seed(0)
    network = build_network(name, channels=1, classes=2, width=16).to(CUDA, memory_format=torch.channels_last)  # type: ignore[call-overload]
    for module in network.modules():
        if isinstance(module, torch.nn.Dropout2d):
            module.p = 0.0  # its random numbers are drawn in another way
    image, target = torch.rand(4, 1, 64, 96, device=CUDA), torch.rand(4, 2, 64, 96, device=CUDA)

    def gradients(network: torch.nn.Module, dtype: torch.dtype, autocast: bool) -> torch.Tensor:
        with WeightGradients(CUDA, network), torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            (network(image.to(dtype)) - target.to(dtype)).square().mean().backward()
        return torch.cat([p.grad.flatten().double() for p in network.parameters() if p.grad is not None])

    ours = gradients(copy.deepcopy(network), torch.float32, autocast)
    with kernels_on(), mock.patch("discoseg.networks.convolution._beside", return_value=None):
        plain = gradients(copy.deepcopy(network), torch.float32, autocast)
        exact = gradients(copy.deepcopy(network).double(), torch.float64, False)
    error, plain_error = (float((g - exact).norm() / exact.norm()) for g in (ours, plain))
    assert error < 1.5 * plain_error + 1e-4


def test_trainings_share_the_device(examples: list[Example], tmp_path: Path) -> None:
    states: list[State] = []
    with Material(examples[:3], examples[3:], CUDA) as material:

        def work(seed: int) -> None:
            states.append(train_on(material, replace(SMALL, seed=seed, epochs=6), tmp_path / str(seed), model=MODEL))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [state.epoch for state in states] == [6, 6, 6]
    assert all(np.isfinite(row["loss"]) for state in states for row in state.history)


def test_data_may_arrive_while_another_training_records(examples: list[Example]) -> None:
    """A sweep whose trainings differ in their bounds puts data on the device while the first of them are under way."""
    recording, done = threading.Event(), threading.Event()
    x = torch.zeros(8, device=CUDA)
    torch.cuda.synchronize()  # it is made on another stream than it is read on

    def work() -> None:
        x.add_(1)
        if torch.cuda.is_current_stream_capturing():
            recording.set()
            assert done.wait(30)

    def record() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            repeated = replay.Replay(work, CUDA)
            for _ in range(5):
                repeated()
            torch.cuda.current_stream().synchronize()

    with ThreadPoolExecutor(1) as pool:
        recorded = pool.submit(record)
        assert recording.wait(30)
        with Material(examples[:3], examples[3:], CUDA) as material:
            assert len(material.slices) > 0
        done.set()
        recorded.result()
    assert x.tolist() == [5.0] * 8


def test_a_resumed_training_goes_on_like_an_uninterrupted_one(examples: list[Example], tmp_path: Path) -> None:
    with Material(examples[:3], examples[3:], CUDA) as material:
        whole = train_on(material, replace(SMALL, epochs=8), tmp_path / "whole", model=MODEL)
        train_on(material, replace(SMALL, epochs=5), tmp_path / "run", model=MODEL)
        resumed = train_on(material, replace(SMALL, epochs=8), tmp_path / "run", model=MODEL, resume=True)
    losses = [[row["loss"] for row in state.history] for state in (whole, resumed)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=5e-2)


@pytest.mark.parametrize("method", ["crf+size", "penalty"])
@pytest.mark.parametrize("name", ["unet", "enet"])
def test_deterministic_trainings_repeat_to_the_byte(
    examples: list[Example], tmp_path: Path, name: Literal["unet", "enet"], method: Method
) -> None:
    """Also one that was stopped midway; torch's switches are as before afterwards."""
    network = NetworkConfig(name=name, width=8, precision="bfloat16")
    config = replace(SMALL, method=method, epochs=4, network=network, deterministic=True)
    config = replace(config, augment=replace(SMALL.augment, noise=0.05), rounds=RoundsConfig(first=2))
    for run in ("once", "again"):
        _train(examples, config, tmp_path / run)
    with Material(examples[:3], examples[3:], CUDA) as material:
        train_on(material, replace(config, epochs=2), tmp_path / "resumed", model=MODEL)
        train_on(material, config, tmp_path / "resumed", model=MODEL, resume=True)
    for file in ("metrics.csv", "cases.csv", "checkpoints/final.safetensors"):
        once, *others = ((tmp_path / run / file).read_bytes() for run in ("once", "again", "resumed"))
        assert all(other == once for other in others), file
    assert not torch.are_deterministic_algorithms_enabled()


def test_deterministic_trainings_of_several_structures_repeat_to_the_byte(
    hearts: list[Example], tmp_path: Path
) -> None:
    config = replace(HEARTS, epochs=3, deterministic=True, rounds=RoundsConfig(first=2))
    for run in ("once", "again"):
        _train(hearts, config, tmp_path / run, HEARTS_MODEL)
    once, again = ((tmp_path / run / "metrics.csv").read_bytes() for run in ("once", "again"))
    assert once == again


@pytest.mark.parametrize("network", ["unet", "enet"])
def test_ranks_train_on_gpus_and_one_process_goes_on(network: str, phantoms: Path, tmp_path: Path) -> None:
    """Two ranks, which share a GPU by gloo if there is one alone, and have one each by NCCL if there are more."""
    run = tmp_path / "run"
    options = f"--label LV --method full --grid.shape 32 32 --network.name {network} --optimiser.batch 8 --device cuda"
    command = ["-m", "discoseg", "train", str(phantoms), *options.split(), "--out", str(run)]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    subprocess.run([*launcher, *command, "--epochs", "3"], check=True, timeout=300)
    subprocess.run([sys.executable, *command, "--epochs", "4", "--resume"], check=True, timeout=300)
    with (run / "metrics.csv").open(newline="") as file:
        losses = [float(row["loss"]) for row in csv.DictReader(file)]
    assert len(losses) == 4
    assert losses[3] < losses[0]
    ranks = json.loads((run / "run.json").read_text())["ranks"]
    assert ranks["size"] == 2
    assert ranks["backend"] == ("nccl" if torch.cuda.device_count() > 1 else "gloo")


def test_a_training_interrupted_inside_an_epoch_goes_on_like_an_uninterrupted_one(
    examples: list[Example], tmp_path: Path
) -> None:
    """Interrupted before, at and after the recording of a step, and while volumes are predicted."""
    config, run = replace(SMALL, epochs=4), tmp_path / "run"
    with Material(examples[:3], examples[3:], CUDA) as material:
        whole = train_on(material, config, tmp_path / "whole", model=MODEL)
        for number, until in enumerate((0.3, 1.2, 1.7, 2.92)):

            def interrupt(done: float, message: str, until: float = until) -> None:
                if done >= until:
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                train_on(material, config, run, model=MODEL, resume=number > 0, progress=interrupt)
        _, meta = load_tensors(RunFolder(run).latest)
        assert (meta["epoch"], meta["steps"]) == (2, 4)
        resumed = train_on(material, config, run, model=MODEL, resume=True)
    losses = [[row["loss"] for row in state.history] for state in (whole, resumed)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=5e-2)


@pytest.mark.parametrize("recording", [False, True])
def test_out_of_memory_splits_batches_and_records_them_anew(
    recording: bool, examples: list[Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of a plain step or of the recording: no step is lost, and the parts are recorded in their turn."""
    take = TrainingPass._batch_losses
    sizes: list[tuple[int, bool]] = []

    def losses(self: TrainingPass, batch: torch.Tensor, *rest: Any) -> torch.Tensor:
        terms = take(self, batch, *rest)
        captured = torch.cuda.is_current_stream_capturing()
        if len(batch) == 8 and captured == recording:
            raise torch.OutOfMemoryError("CUDA out of memory")
        sizes.append((len(batch), captured))
        return terms

    monkeypatch.setattr(TrainingPass, "_batch_losses", losses)
    with pytest.warns(UserWarning, match="a batch of 8 slices is taken in 2 parts"):
        state = _train(examples, replace(SMALL, epochs=4), tmp_path / "run")
    assert (4, True) in sizes
    assert state.running.parts == 2
    steps = {int(values["step"]) for values in state.optimiser.state_dict()["state"].values()}
    assert steps == {16}  # four in each epoch
    assert all(np.isfinite(row["loss"]) for row in state.history)


def test_gradients_of_parts_add_up_on_the_device(examples: list[Example]) -> None:
    """The weights' gradients, which go to a second stream, are those of the whole batch; statistics are given."""
    slices = stack_slices(examples[:3], CUDA)
    config = replace(SMALL, method="crf+size", augment=replace(SMALL.augment, noise=0.0))
    gradients = []
    for parts in (1, 3):
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.manual_seed(0)
            state = start_state(slices, config)
            state.running.parts = parts
            learn = TrainingPass(state, slices, config)
            learn._draw()
            for module in state.network.modules():
                if isinstance(module, torch.nn.BatchNorm2d):
                    module.eval()
            learn._train_next()
            torch.cuda.synchronize()
        gradients.append(torch.cat([p.grad.flatten() for p in state.network.parameters() if p.grad is not None]))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-2, atol=1e-4)


def test_predictions_without_memory_are_halved_and_recorded_anew(
    examples: list[Example], monkeypatch: pytest.MonkeyPatch
) -> None:
    slices = stack_slices(examples, CUDA)
    with torch.cuda.stream(torch.cuda.Stream()):
        network = start_state(slices, SMALL).network
        expected = PredictionPass(network, slices, SMALL).all().clone()
        structures = plain_losses.structures

        def scarce(logits: torch.Tensor) -> torch.Tensor:
            if len(logits) > 5:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return structures(logits)

        monkeypatch.setattr("discoseg.losses.structures", scarce)
        said: list[str] = []
        predict = PredictionPass(network, slices, SMALL, say=said.append)
        for _ in range(2):
            assert torch.cat(list(predict.run())).tolist() == list(range(len(slices)))
            torch.testing.assert_close(predict.probability, expected, rtol=1e-3, atol=1e-4)
    assert said[-1].startswith("out of memory in a prediction: 4 slices at a time")
