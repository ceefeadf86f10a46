"""The loop: it learns, it is deterministic, a resumed run ends in the same bytes, and folders are never overwritten."""

import csv
import os
import signal
import subprocess
import sys
import threading
import time
import typing
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np
import pytest
import torch

from discoseg import checkpoints, replay
from discoseg.averaging import is_averaged
from discoseg.checkpoint import load_tensors, save_tensors
from discoseg.checkpoint_header import load_meta
from discoseg.config import (
    AdmmConfig,
    AugmentConfig,
    Config,
    CrfConfig,
    GridConfig,
    Method,
    NetworkConfig,
    OptimiserConfig,
)
from discoseg.devices import choose_device
from discoseg.errors import UserError
from discoseg.predict import load_model
from discoseg.prediction_pass import predict_slices
from discoseg.report import write_report
from discoseg.report.runs import read_runs
from discoseg.run import RunFolder
from discoseg.scores import score_epoch
from discoseg.slices import stack_slices
from discoseg.start import start_state
from discoseg.state import Running, State, network_tensors
from discoseg.train import train
from discoseg.training_pass import TrainingPass
from discoseg.weak.examples import Example

MODEL = {"label": "LV", "label_value": 3, "orientation": "LPS", "channels": 1}
SMALL = Config(
    epochs=3,
    grid=GridConfig(shape=(32, 32)),
    network=NetworkConfig(name="unet", width=4),
    optimiser=OptimiserConfig(batch=8, lr=5e-3),
    crf=CrfConfig(strength=0.3, sigma=0.1),
    augment=AugmentConfig(rotate_deg=10, crop_min=0.9, flip=True, gamma=0.1, noise=0.02),
    admm=AdmmConfig(schedule="balance"),
)
METHODS = typing.get_args(Method)


class _Interrupted(Exception):
    pass


def _run(
    examples: list[Example], config: Config, folder: Path, *, resume: bool = False, until: float = np.inf
) -> State:
    """Train on three examples and validate on one; stop as if by Ctrl-C when ``until`` epochs are done."""

    def progress(done: float, message: str) -> None:
        if done > until:
            raise _Interrupted

    if config.method == "full":
        examples = [replace(e, seeds=e.truth.astype(np.int8)) for e in examples if e.truth is not None]
    return train(
        examples[:3], examples[3:], config, folder, model=MODEL, device="cpu", resume=resume, progress=progress
    )


def _files(folder: Path) -> dict[str, bytes]:
    """All that must be the same twice: everything but clock times."""
    kept = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
    with_clocks = ("timing.csv", "log.txt", ".lock", "checkpoints/previous.safetensors")  # which checkpoints were due
    return {name: data for name, data in kept.items() if name not in with_clocks}


@pytest.mark.parametrize("method", METHODS)
def test_resumed_run_ends_in_the_bytes_of_an_uninterrupted_one(
    method: Method, examples: list[Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network: Literal["enet", "unet"] = (
        "enet" if method == "crf+size" else "unet"
    )  # ENet has dropout: its random state must survive too
    config = replace(SMALL, method=method, network=NetworkConfig(name=network, width=4))
    monkeypatch.setattr(checkpoints, "EVERY_S", 0.0)
    _run(examples, config, tmp_path / "whole")
    with pytest.raises(_Interrupted):
        _run(examples, config, tmp_path / "parts", until=1.5)
    torch.manual_seed(123)  # a new process does not start where the old one stopped
    with pytest.raises(_Interrupted):
        _run(examples, config, tmp_path / "parts", resume=True, until=2.1)
    _run(examples, config, tmp_path / "parts", resume=True)
    whole, parts = _files(tmp_path / "whole"), _files(tmp_path / "parts")
    assert whole.keys() == parts.keys()
    assert [name for name in whole if whole[name] != parts[name]] == []


def test_a_warm_up_hears_of_seeds_alone(examples: list[Example], tmp_path: Path) -> None:
    """And then goes on with proposals of what it has learnt, also when it is resumed."""
    config = replace(SMALL, epochs=4, admm=replace(SMALL.admm, warm_up=2))
    _run(examples, config, tmp_path / "run")
    _run(examples, replace(SMALL, method="partial", epochs=4), tmp_path / "partial")
    rows, alone = (list(csv.DictReader((tmp_path / name / "metrics.csv").open())) for name in ("run", "partial"))
    assert [row["loss_seeds"] for row in rows[:2]] == [row["loss_seeds"] for row in alone[:2]]
    assert [float(row["loss_size"]) > 0 for row in rows] == [False, False, True, True]
    assert [row["mu_crf"] != "" for row in rows] == [False, True, True, True]  # proposals for the third epoch
    assert [row["size_dice"] != "" for row in rows] == [False, True, True, True]
    (read,) = read_runs([tmp_path / "run"])
    assert len(read.timing["crf"]) == 4
    assert read.timing["crf"][0] == 0 < read.timing["crf"][3]
    assert "crf" not in read.snapshots[1]["phantom0"]
    assert "crf" in read.snapshots[4]["phantom0"]
    write_report([tmp_path / "run"], tmp_path / "report.html")

    def interrupt(done: float, message: str) -> None:
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(examples[:3], examples[3:], config, tmp_path / "parts", model=MODEL, device="cpu", progress=interrupt)
    _run(examples, config, tmp_path / "parts", resume=True)
    assert _files(tmp_path / "parts") == _files(tmp_path / "run")


def test_an_interruption_after_an_epoch_loses_nothing(examples: list[Example], tmp_path: Path) -> None:
    """However long ago the last checkpoint was written, and however long it took."""

    def interrupt(done: float, message: str) -> None:
        if done == 2:
            raise KeyboardInterrupt

    config = replace(SMALL, method="size", epochs=4)
    with pytest.raises(KeyboardInterrupt):
        train(examples[:3], examples[3:], config, tmp_path / "run", model=MODEL, device="cpu", progress=interrupt)
    _, meta = load_tensors(RunFolder(tmp_path / "run").latest)
    assert meta["epoch"] == 2
    _run(examples, config, tmp_path / "run", resume=True)
    _run(examples, config, tmp_path / "whole")
    assert _files(tmp_path / "run") == _files(tmp_path / "whole")


LATE = replace(SMALL, epochs=5, optimiser=replace(SMALL.optimiser, lr=0.02, lr_every=2))  # of which two are averaged


def _train_four_epochs(examples: list[Example], run: Path) -> None:
    """Leave a training of LATE, without validation, as an interruption after its fourth epoch does."""

    def stop(done: float, message: str) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(examples[:2], [], LATE, run, model=MODEL, device="cpu", progress=stop)


def _forget_bias(*models: dict[str, torch.Tensor]) -> None:
    """Set the bias of the structure's logit to 0: that of a mean is not of weights alone (`size_bias`)."""
    for tensors in models:
        tensors["network.output.bias"][1] = 0


def test_without_validation_the_mean_of_the_last_weights_is_the_model(examples: list[Example], tmp_path: Path) -> None:
    """What an interruption left after the fourth of five epochs is one half of the mean."""
    folder = RunFolder(tmp_path / "run")
    _train_four_epochs(examples, folder.root)
    fourth, _ = load_tensors(folder.latest)
    train(examples[:2], [], LATE, folder.root, model=MODEL, device="cpu", resume=True)
    final, _ = load_tensors(folder.final)
    assert folder.model("best") == folder.model("mean") == folder.mean
    mean, meta = load_tensors(folder.mean)
    assert (meta["epoch"], meta["averaged"], "val_dice" in meta) == (5, 2, False)
    _forget_bias(mean, fourth, final)
    for name, value in mean.items():
        if value.is_floating_point():
            torch.testing.assert_close(value, (fourth[name] + final[name]) / 2)
        else:
            assert torch.equal(value, final[name])
    assert not all(torch.equal(mean[name], final[name]) for name in mean)
    folder.mean.unlink()  # a run of an earlier version
    assert folder.model("best") == folder.final
    with pytest.raises(UserError, match="before there were means"):
        load_model(tmp_path / "run", checkpoint="mean")


@pytest.mark.parametrize(("mean", "chosen"), [(0.9, "mean"), (0.8, "best"), (0.7, "best"), (None, "best")])
def test_the_mean_predicts_where_it_validates_better(mean: float | None, chosen: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for path, dice in ((folder.best, 0.8), (folder.mean, mean)):
        path.parent.mkdir(exist_ok=True)
        save_tensors(path, {}, {} if dice is None else {"val_dice": dice})
    assert folder.model("best") == getattr(folder, chosen)
    if mean is not None:
        save_tensors(folder.mean, {}, {"val_dice": 10**400})
        assert folder.model("best") == folder.best
    folder.mean.write_bytes(b"damaged")
    assert folder.model("best") == folder.best
    save_tensors(folder.mean, {}, {"val_dice": 0.9})
    folder.best.write_bytes(b"damaged")  # which is to be told, not to be passed over
    assert folder.model("best") == folder.best


@pytest.mark.parametrize(("epochs", "averaged"), [(5, 2), (6, 1), (11, 4)])
def test_another_number_of_epochs_begins_another_mean(
    epochs: int, averaged: int, examples: list[Example], tmp_path: Path
) -> None:
    """After five epochs, with a mean of two: that one stays, the sixth alone counts, or the last four of eleven."""
    folder = RunFolder(tmp_path / "run")
    for number in (5, epochs):
        config = replace(LATE, epochs=number)
        train(examples[:2], [], config, folder.root, model=MODEL, device="cpu", resume=folder.root.exists())
    assert load_tensors(folder.mean)[1]["averaged"] == averaged


def test_a_training_that_ends_early_has_a_mean_of_its_last_epoch(examples: list[Example], tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    _train_four_epochs(examples, folder.root)
    train(examples[:2], [], replace(LATE, epochs=4), folder.root, model=MODEL, device="cpu", resume=True)
    (mean, meta), (final, _) = load_tensors(folder.mean), load_tensors(folder.final)
    assert (meta["epoch"], meta["averaged"]) == (4, 1)
    _forget_bias(mean, final)
    assert all(torch.equal(mean[name], final[name]) for name in final)


def _easy(example: Example) -> Example:
    """Return an example whose image shows its mask, so that a few epochs find some of it whatever rounding does."""
    noise = np.random.default_rng(0).normal(0, 0.3, example.seeds.shape)
    assert example.truth is not None
    return replace(example, seeds=example.truth, image=(example.truth + noise).astype(np.float32)[:, None])


def test_the_mean_is_scored_and_leaves_the_network_alone(examples: list[Example], tmp_path: Path) -> None:
    examples = [_easy(example) for example in examples]
    optimiser = replace(LATE.optimiser, lr_every=3)
    config = replace(LATE, method="full", epochs=8, augment=AugmentConfig(), optimiser=optimiser)
    state = train(examples[:3], examples[3:], config, tmp_path / "run", model=MODEL, device="cpu")
    folder, held_out = RunFolder(tmp_path / "run"), stack_slices(examples[3:], torch.device("cpu"))
    final, meta = load_tensors(folder.final)
    assert all(torch.equal(final[f"network.{name}"], value) for name, value in state.network.state_dict().items())
    scores = []
    for weights in (final, load_tensors(folder.mean)[0]):
        state.network.load_state_dict(network_tensors(weights))
        probability = predict_slices(state.network, held_out.image)
        scores.append(score_epoch(probability, held_out, examples[3:], prefix="val")["val_dice"])
    assert scores[0] != scores[1]
    assert [meta["val_dice"], load_meta(folder.mean)["val_dice"]] == scores


@pytest.mark.parametrize(
    ("epochs", "lr_every", "averaged"),
    [(1, 1, [1]), (4, 1, [4]), (5, 1, [4, 5]), (5, 4, [5]), (5, 40, [5]), (11, 2, [8, 9, 10, 11])],
)
def test_the_last_two_fifths_at_a_lower_rate_are_averaged(epochs: int, lr_every: int, averaged: list[int]) -> None:
    config = Config(epochs=epochs, optimiser=OptimiserConfig(lr_every=lr_every))
    assert [epoch for epoch in range(1, epochs + 1) if is_averaged(epoch, config)] == averaged


def test_no_training_begins_while_another_is_recorded(examples: list[Example], tmp_path: Path) -> None:
    """What a network does first may make the whole device wait, which spoils a recording."""
    begun = threading.Event()
    config = replace(SMALL, method="penalty", epochs=1)
    arguments = (examples[:3], examples[3:], config, tmp_path / "run")
    progress = {"progress": lambda done, message: begun.set()}
    thread = threading.Thread(target=train, args=arguments, kwargs={"model": MODEL, "device": "cpu", **progress})
    with replay._gate.record():
        thread.start()
        assert not begun.wait(0.5)
        assert not (tmp_path / "run").exists()
    thread.join(60)
    assert begun.is_set()


def test_each_method_logs_its_terms(examples: list[Example], tmp_path: Path) -> None:
    terms: dict[Method, set[str]] = {
        "full": set(),
        "partial": set(),
        "penalty": {"penalty"},
        "crf+size": {"crf", "size"},
    }
    for method, expected in terms.items():
        _run(examples, replace(SMALL, method=method, epochs=1), tmp_path / method)
        (row,) = csv.DictReader((tmp_path / method / "metrics.csv").open())
        assert {name.removeprefix("loss_") for name in row if name.startswith("loss_")} == expected | {"seeds"}
        for name in expected & {"crf", "size"}:
            assert {f"primal_{name}", f"dual_{name}", f"{name}_dice", f"mu_{name}"} <= row.keys()
        assert {"train_dice", "val_dice", "train_size_ratio", "val_size_ratio_std"} <= row.keys()
        parts = sum(float(value) for name, value in row.items() if name.startswith("loss_"))
        assert float(row["loss"]) == pytest.approx(parts)
        timing = next(csv.DictReader((tmp_path / method / "timing.csv").open()))
        assert {"network", "predict", "score", "save", *(expected - {"penalty"})} < timing.keys()


@pytest.mark.parametrize(
    "changed",
    [
        {"admm": replace(SMALL.admm, coupling="entropy")},
        {"admm": replace(SMALL.admm, margin=0.03)},
        {"crf": replace(SMALL.crf, calibrate=True)},
    ],
    ids=["entropy", "margin", "calibrate"],
)
def test_a_setting_reaches_the_training(changed: dict[str, Any], examples: list[Example], tmp_path: Path) -> None:
    """Each changes what the second epoch learns, and where a method has no use for it, nothing."""
    histories = {
        (name, method): _run(examples, config, tmp_path / name / method).history
        for method in ("crf+size", "partial")
        for name, config in (
            ("plain", replace(SMALL, method=method, epochs=2)),
            ("changed", replace(SMALL, method=method, epochs=2, **changed)),
        )
    }
    assert histories["plain", "partial"] == histories["changed", "partial"]
    assert histories["plain", "crf+size"][-1]["loss"] != histories["changed", "crf+size"][-1]["loss"]


def test_seeds_alone_are_learnt(examples: list[Example], tmp_path: Path) -> None:
    config = replace(SMALL, method="partial", epochs=20, augment=AugmentConfig())
    state = _run(examples, config, tmp_path / "run")
    losses = [row["loss_seeds"] for row in state.history]
    assert losses[-1] < 0.3 * losses[0]


def test_rows_of_the_history_share_the_names_of_their_columns() -> None:
    optimiser, running = torch.optim.SGD([torch.zeros(1)]), Running(torch.zeros(1), torch.zeros(1))
    state = State(torch.nn.Identity(), optimiser, [], torch.Generator(), torch.zeros(1, 1), running)
    for prefix in ("train", "train"):
        state.finish_epoch({f"{prefix}_dice": 0.5})
    assert state.history == [{"epoch": 1, "train_dice": 0.5}, {"epoch": 2, "train_dice": 0.5}]
    assert all(one is other for one, other in zip(*state.history, strict=True))


def test_checkpoint_honours_bounds_and_seeds(examples: list[Example], tmp_path: Path) -> None:
    _run(examples, SMALL, tmp_path / "run")
    tensors, meta = load_tensors(tmp_path / "run/checkpoints/latest.safetensors")
    assert meta["epoch"] == 3
    start = 0
    for example in examples[:3]:
        part = slice(start, start + len(example.seeds))
        for name in ("crf", "size"):
            proposal = tensors[f"{name}.proposal2"][0, part].numpy()
            assert set(np.unique(proposal)) <= {0, 2}
            assert (proposal[example.seeds >= 0] == 2 * example.seeds[example.seeds >= 0]).all()
        assert example.bounds is not None
        chosen = tensors["size.proposal2"][0, part].sum() // 2
        assert example.bounds[0].low_vox <= chosen <= example.bounds[0].high_vox
        start = part.stop


def test_killed_run_resumes_to_the_same_model(examples: list[Example], tmp_path: Path) -> None:
    """A process of its own is killed (SIGKILL) while it writes a checkpoint, and again later in its training."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import torch; torch.set_num_threads(1)\n"
        "from pathlib import Path\n"
        "from dataclasses import replace\n"
        "import test_train as t, conftest\n"
        "t.checkpoints.EVERY_S = 0.0\n"
        "replace_file = t.os.replace\n"
        "def slowly(new, path):\n"
        "    t.time.sleep(0.02)\n"
        "    replace_file(new, path)\n"
        "t.os.replace = slowly  # so that a kill finds files on their way\n"
        "examples = conftest.examples.__wrapped__()\n"
        "t._run(examples, replace(t.SMALL, epochs=5), Path(sys.argv[2]), resume=len(sys.argv) > 3)\n"
    )
    command = [sys.executable, str(script), str(Path(__file__).parent)]
    whole, process = (subprocess.Popen([*command, str(tmp_path / name)]) for name in ("whole", "killed"))
    folder, deadline = tmp_path / "killed/checkpoints", time.monotonic() + 120
    for waited_for in (".*-next.safetensors", "previous.safetensors"):
        while not list(folder.glob(waited_for)) and time.monotonic() < deadline:
            time.sleep(0.002)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert not (folder / "final.safetensors").exists()
        if waited_for == ".*-next.safetensors":
            process = subprocess.Popen([*command, str(tmp_path / "killed"), "resume"])
    subprocess.run([*command, str(tmp_path / "killed"), "resume"], check=True)
    assert whole.wait() == 0
    final = "checkpoints/final.safetensors"
    assert (tmp_path / "killed" / final).read_bytes() == (tmp_path / "whole" / final).read_bytes()
    assert (tmp_path / "killed/metrics.csv").read_bytes() == (tmp_path / "whole/metrics.csv").read_bytes()
    epochs = [int(row["epoch"]) for row in csv.DictReader((tmp_path / "killed/timing.csv").open())]
    assert epochs == sorted(set(epochs))
    assert epochs[-1] == 5


def test_an_error_of_the_writing_thread_ends_the_training(
    examples: list[Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, *content: object) -> None:
        raise UserError(f"cannot write {path}: no space left on device")

    monkeypatch.setattr(checkpoints, "save_tensors", fail)
    with pytest.raises(UserError, match="no space left"):
        _run(examples, SMALL, tmp_path / "run")
    assert not (tmp_path / "run/checkpoints/final.safetensors").exists()


def test_slow_checkpoints_are_fewer(examples: list[Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "EVERY_S", 0.0)
    slices = stack_slices(examples[:3], torch.device("cpu"))
    with checkpoints.Checkpoints(tmp_path / "latest", start_state(slices, SMALL), SMALL, {}) as writer:
        assert writer.due
        writer._writing = Future()
        assert not writer.due  # one is being written
        writer._writing.set_result(1e6)
        assert not writer.due  # that took long
        writer._writing = Future()
        writer._writing.set_result(0.0)
        assert writer.due


def test_folder_in_use_is_refused_and_untouched(examples: list[Example], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="already in use"):
        _run(examples, SMALL, tmp_path / "run")
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["thesis.txt"]
    with pytest.raises(UserError, match="nothing to resume"):
        _run(examples, SMALL, tmp_path / "run", resume=True)


def test_resume_with_another_setting_names_it(examples: list[Example], tmp_path: Path) -> None:
    config = replace(SMALL, epochs=1)
    _run(examples, config, tmp_path / "run")
    before = _files(tmp_path / "run")
    for other in (replace(config, crf=CrfConfig(sigma=0.3)), replace(config, method="size")):
        with pytest.raises(UserError, match=r"another setting: (crf\.|method)"):
            _run(examples, other, tmp_path / "run", resume=True)
    assert _files(tmp_path / "run") == before


def test_exploding_loss_stops_and_keeps_the_last_checkpoint(
    examples: list[Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(SMALL, method="partial")
    _run(examples, replace(config, epochs=1), tmp_path / "run")
    before = (tmp_path / "run/checkpoints/latest.safetensors").read_bytes()
    monkeypatch.setattr("discoseg.losses.partial_cross_entropy", lambda logits, seeds, weight: logits.sum() * np.nan)
    with pytest.raises(UserError, match="the loss became nan in epoch 2"):
        _run(examples, replace(config, epochs=2), tmp_path / "run", resume=True)
    assert (tmp_path / "run/checkpoints/latest.safetensors").read_bytes() == before


def test_resume_with_other_data_names_the_case_and_changes_nothing(examples: list[Example], tmp_path: Path) -> None:
    config = replace(SMALL, epochs=1)
    _run(examples, config, tmp_path / "run")
    before = _files(tmp_path / "run")
    other = [replace(examples[0], seeds=np.full_like(examples[0].seeds, -1)), *examples[1:]]
    swapped = [*examples[1:], examples[0]]
    for data, complaint in ((other, "phantom0 has changed"), (swapped, "training case phantom0 is missing now")):
        with pytest.raises(UserError, match=f"other data: .*{complaint}"):
            _run(data, replace(config, epochs=2), tmp_path / "run", resume=True)
    assert _files(tmp_path / "run") == before


def test_a_start_that_fails_leaves_no_folder(
    examples: list[Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **keywords: object) -> None:
        raise MemoryError

    monkeypatch.setattr("discoseg.start.build_network", fail)
    with pytest.raises(MemoryError):
        _run(examples, SMALL, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("batch", "batches"), [(7, 4), (8, 4), (9, 4), (28, 1), (99, 1)])
def test_batches_are_full_and_hold_every_slice(examples: list[Example], batch: int, batches: int) -> None:
    """28 slices: what the last batch lacks comes from the beginning, and no batch has a slice twice."""
    slices = stack_slices(examples[:3], torch.device("cpu"))
    assert len(slices) == 28
    config = replace(SMALL, method="partial", epochs=1, optimiser=replace(SMALL.optimiser, batch=batch))
    learn = TrainingPass(start_state(slices, config), slices, config)
    with mock.patch.object(learn, "_batch_losses", wraps=learn._batch_losses) as losses:
        learn.run(lambda part: None)
    seen = [call.args[0] for call in losses.call_args_list]
    assert [len(part) for part in seen] == [min(batch, 28)] * batches
    assert all(len(part.unique()) == len(part) for part in seen)
    assert torch.cat(seen).unique().tolist() == list(range(28))
    assert torch.cat(seen)[:28].unique().tolist() == list(range(28))


def test_a_network_too_deep_for_the_slices_is_said(examples: list[Example], tmp_path: Path) -> None:
    config = replace(SMALL, network=NetworkConfig(name="unet", width=1, depth=5), optimiser=OptimiserConfig(batch=1))
    with pytest.raises(UserError, match="depth 5 leaves one pixel of a slice of 32×32"):
        _run(examples, config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_cuda_without_cuda_is_said() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(UserError, match="--device cuda"):
        choose_device("cuda")
