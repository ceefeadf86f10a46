"""What clusters do to trainings: nothing is lost, and one line says what happened (docs/faults.md)."""

import os
import shutil
import signal
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch

from discoseg import checkpoints, interruption, losses
from discoseg.checkpoint import load_tensors, previous_of
from discoseg.cli import main
from discoseg.config import OptimiserConfig
from discoseg.data.locks import alone_in
from discoseg.discrete import PottsGrid
from discoseg.errors import UserError
from discoseg.interruption import Interruption
from discoseg.out_of_memory import describe_shortage, is_out_of_memory, released
from discoseg.prediction_pass import PredictionPass
from discoseg.run import RunFolder
from discoseg.slices import stack_slices
from discoseg.start import start_state
from discoseg.state import Running
from discoseg.train import train
from discoseg.training_pass import TrainingPass
from discoseg.waiting import await_cases
from discoseg.weak.examples import Example
from discoseg.workflow import fit
from test_train import MODEL, SMALL, _files, _run

CPU = torch.device("cpu")
TINY = replace(SMALL, epochs=2)


@pytest.fixture(scope="module")
def whole(examples: list[Example], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of an uninterrupted training."""
    run = tmp_path_factory.mktemp("whole") / "run"
    _run(examples, TINY, run)
    return _files(run)


def test_an_interruption_between_any_two_steps_loses_nothing(
    examples: list[Example], whole: dict[str, bytes], tmp_path: Path
) -> None:
    """Four steps an epoch, then predictions, sizes, scores and cuts: each time the training gets a little further."""
    run, places = tmp_path / "run", list[tuple[int, int]]()
    for calls in (1, 2, 1, 3, 6, 2, 9, 1):
        left = calls

        def interrupt(done: float, message: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

        settings: dict[str, Any] = {"model": MODEL, "device": "cpu", "resume": bool(places)}
        with pytest.raises(KeyboardInterrupt):
            train(examples[:3], examples[3:], TINY, run, **settings, progress=interrupt)
        _, meta = load_tensors(RunFolder(run).latest)
        places.append((meta["epoch"], meta["steps"]))
    assert places[:4] == [(0, 1), (0, 3), (0, 4), (0, 4)]
    assert places == sorted(places)
    _run(examples, TINY, run, resume=True)
    assert _files(run) == whole


def test_sigterm_ends_a_command_with_the_one_that_goes_on(
    phantoms: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Show:
        def __call__(self, title: str, done: float, *more: object) -> None:
            if title == "training" and 0 < done < 1:
                os.kill(os.getpid(), signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGTERM)  # launchers and schedulers may both send one

    run = tmp_path / "run"
    options = ["--method", "full", "--label", "LV", "--epochs", "1", "--grid.shape", "32", "32", "--network.width", "2"]
    command = ["train", str(phantoms), *options, "--device", "cpu", "--no-live-report", "--out", str(run)]
    with monkeypatch.context() as patch:
        patch.setattr("discoseg.terminal.display._nothing", Show())
        with pytest.raises(SystemExit) as ended:
            main([*command, "--quiet"])
    assert ended.value.code == 143
    again = f"discoseg {' '.join(command)} --quiet --resume"
    assert capsys.readouterr().err == f"discoseg: interrupted; go on with: {again}\n"
    assert load_tensors(RunFolder(run).latest)[1]["steps"] == 1
    with pytest.raises(SystemExit) as ended:
        main(again.split()[1:])
    assert ended.value.code == 0
    assert "resumed after epoch 0, step 1" in (run / "log.txt").read_text()


def test_a_second_ctrl_c_ends_at_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ended: list[int] = []
    monkeypatch.setattr("os._exit", ended.append)
    now = 10.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    asked = Interruption()
    report = asked.guard(lambda: None)
    report()
    asked.handle(signal.SIGINT, None)
    asked.handle(signal.SIGINT, None)  # the same, passed on by a launcher
    now += 2 * interruption._AGAIN_S
    asked.handle(signal.SIGTERM, None)
    assert ended == []
    asked.handle(signal.SIGINT, None)
    assert ended == [130]
    assert "the last checkpoint is whole" in capsys.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        report()


def test_one_process_per_run_folder(examples: list[Example], tmp_path: Path) -> None:
    run = tmp_path / "run"
    _run(examples, replace(TINY, epochs=1), run)
    before = _files(run)
    said = rf"run: in use by another training, process {os.getpid()} on \S+; wait for it"
    with alone_in(run), pytest.raises(UserError, match=said):
        _run(examples, TINY, run, resume=True)
    assert _files(run) == before
    _run(examples, TINY, run, resume=True)  # the file is there still, but nobody holds it


def test_a_folder_that_cannot_be_locked_is_used_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: object, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.warns(UserWarning, match="cannot be locked"), alone_in(tmp_path):
        pass


def _flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", ["flipped", "truncated", "missing"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    damage: str, examples: list[Example], whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, latest = tmp_path / "run", RunFolder(tmp_path / "run").latest
    monkeypatch.setattr(checkpoints, "EVERY_S", 0.0)
    _run(examples, replace(TINY, epochs=1), run)
    if damage == "missing":
        latest.unlink()
    elif damage == "truncated":
        os.truncate(latest, latest.stat().st_size // 2)
    else:
        _flip(latest, 100)  # in the header
    with pytest.warns(UserWarning, match=r"latest\.safetensors is .*: going on from the checkpoint before it"):
        _run(examples, TINY, run, resume=True)
    assert "going on from the checkpoint before it" in (run / "log.txt").read_text()
    assert _files(run) == whole
    for path in (latest, previous_of(latest)):
        _flip(path, -1)
    with pytest.raises(UserError, match=r"latest\.safetensors: damaged, and so is previous\.safetensors"):
        _run(examples, TINY, run, resume=True)


def test_a_full_disk_costs_no_checkpoint(
    examples: list[Example], whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes fail one after the other, each of another file; every time there is room again later.

    Or the folder was read-only for a while.
    """
    monkeypatch.setattr(checkpoints, "EVERY_S", 0.0)
    run, flush = tmp_path / "run", os.fsync
    for number in (0, 1, 2, 3, 5, 8):
        left = number

        def full(descriptor: int, number: int = number) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(30, "Read-only file system") if number % 2 else OSError(28, "No space left on device")
            flush(descriptor)

        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", full)
            with pytest.raises(UserError, match=r"cannot write \S+: (No space left|Read-only)"):
                _run(examples, TINY, run, resume=run.exists())
        assert run.exists() == (number > 1)  # run.json and config.toml make it a run
        assert not [path for path in tmp_path.rglob(".*") if path.name != ".lock"]
        if RunFolder(run).latest.exists():
            load_tensors(RunFolder(run).latest)
    _run(examples, TINY, run, resume=True)
    assert _files(run) == whole


def test_what_a_kill_leaves_of_a_writing_is_removed(examples: list[Example], tmp_path: Path) -> None:
    _run(examples, replace(TINY, epochs=1), tmp_path / "run")
    rest = tmp_path / "run/checkpoints/.0123abcd-latest.safetensors"
    rest.write_text("a part of it")
    _run(examples, TINY, tmp_path / "run", resume=True)
    assert not rest.exists()


def test_a_kill_before_there_is_a_run_keeps_nobody_out(phantoms: Path, examples: list[Example], tmp_path: Path) -> None:
    """A new start takes the folder, and so does one that would resume; but not one with somebody's files in it."""
    run, config = tmp_path / "run", replace(TINY, method="full", epochs=1)

    def leave(*names: str) -> None:
        shutil.rmtree(run, ignore_errors=True)
        for folder in ("checkpoints", "snapshots"):
            (run / folder).mkdir(parents=True)
        for name in names:
            (run / name).write_text("{")

    rest = (".lock", "log.txt", "run.json", ".0123abcd-config.toml")
    for name in ("checkpoints/latest.safetensors", "metrics.csv", ".hidden"):
        leave(*rest, name)
        for resume, said in ((False, "already in use"), (True, "nothing to resume")):
            with pytest.raises(UserError, match=said):
                _run(examples, config, run, resume=resume)
    leave(".lock")
    _run(examples, config, run)
    leave(*rest)
    options = ["--method", "full", "--label", "LV", "--epochs", "1", "--grid.shape", "32", "32", "--network.width", "2"]
    with pytest.raises(SystemExit) as ended:
        main(["train", str(phantoms), *options, "--device", "cpu", "--quiet", "--out", str(run), "--resume"])
    assert ended.value.code == 0
    assert "nothing was trained there yet" in (run / "log.txt").read_text()


def test_broken_rows_of_timings_are_forgotten(tmp_path: Path) -> None:
    folder, timing = RunFolder(tmp_path), tmp_path / "timing.csv"
    for text, kept in (
        ("epoch,network\n1,0.5\nx1,2\n2,0.5\n3,0.5\n", "epoch,network\n1,0.5\n2,0.5\n"),
        ("epoch,network\n1,0.5\n2,\n2,\xff\n2,0.5,1\n2\n2,0.5", "epoch,network\n1,0.5\n"),
    ):
        timing.write_bytes(text.encode("latin-1"))
        folder.rewind(2)
        assert timing.read_text() == kept
    for header in ("", "epoch,net", "\n1,0.5\n", "xepoch,network\n1,0.5\n"):
        timing.write_text(header)
        folder.rewind(2)
        assert not timing.exists()


def test_the_best_model_of_a_lost_epoch_gives_way_to_no_worse_one(
    examples: list[Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill comes after the model of epoch 2 was written; made again, epoch 2 turns out worse, and epoch 3 better."""
    run, config = tmp_path / "run", replace(TINY, method="full")
    dice = iter([0.5])

    def score(*arguments: Any, prefix: str) -> dict[str, float]:
        return {"val_dice": next(dice)} if prefix == "val" else {}

    monkeypatch.setattr("discoseg.epoch.summarise_cases", score)
    _run(examples, replace(config, epochs=1), run)
    latest, best = RunFolder(run).latest, RunFolder(run).best
    kept, seen = latest.read_bytes(), []
    for values, epochs in (([0.8], 2), ([0.7], 2), ([0.9], 3)):
        dice = iter(values)
        _run(examples, replace(config, epochs=epochs), run, resume=True)
        meta = load_tensors(best)[1]
        seen.append((meta["epoch"], meta["val_dice"]))
        if values == [0.8]:
            latest.write_bytes(kept)
    assert seen == [(2, 0.8), (2, 0.8), (3, 0.9)]


def test_a_changed_file_is_named_and_nothing_is_touched(phantoms: Path, tmp_path: Path) -> None:
    dataset, run = Path(shutil.copytree(phantoms, tmp_path / "data")), tmp_path / "run"
    config = replace(TINY, label="LV", method="full", epochs=1)
    fit(dataset, run, config, device="cpu")
    before = _files(run)
    for folder, what in (("imagesTr", "image"), ("labelsTr", "annotation")):
        file = next(path for path in sorted((dataset / folder).iterdir()) if "phantom_001" in path.name)
        kept = file.read_bytes()
        image: Any = nib.load(file)
        values = np.asarray(image.dataobj).copy()
        values[:9, :9, 3] = values.max()
        nib.save(nib.Nifti1Image(values, image.affine, image.header), file)
        with pytest.raises(UserError, match=rf"{file} has changed \({what} of training case phantom_001\)"):
            fit(dataset, run, replace(config, epochs=2), device="cpu", resume=True)
        file.write_bytes(kept)
    assert _files(run) == before
    fit(dataset, run, replace(config, epochs=2), device="cpu", resume=True)


def test_a_cut_that_fails_names_its_case(
    examples: list[Example], whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **keywords: object) -> None:
        raise FloatingPointError("overflow")

    with monkeypatch.context() as patch:
        patch.setattr(PottsGrid, "cut", fail)
        with pytest.raises(UserError, match=r"^phantom\d: .*FloatingPointError: overflow"):
            _run(examples, TINY, tmp_path / "run")
    _run(examples, TINY, tmp_path / "run", resume=True)
    assert _files(tmp_path / "run") == whole


def test_waiting_hears_and_names() -> None:
    ticks: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(lambda: _until(lambda: len(ticks) >= 2))
        await_cases([("slow", slow)], lambda: ticks.append(1))
    assert len(ticks) >= 2


def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        pass


def _scarce(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Let batches of more than so many slices end in an out-of-memory error, after their forward pass."""
    take = TrainingPass._batch_losses

    def fail(self: TrainingPass, batch: torch.Tensor, *rest: Any) -> torch.Tensor:
        terms = take(self, batch, *rest)
        if len(batch) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return terms

    monkeypatch.setattr(TrainingPass, "_batch_losses", fail)


def test_out_of_memory_halves_the_batch_and_loses_nothing(
    examples: list[Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same as a training in parts from the beginning: batch statistics, random numbers and sums are as before."""
    config = replace(TINY, method="penalty")
    with monkeypatch.context() as patch:
        _scarce(patch, 2)
        with pytest.warns(UserWarning, match="batch of 8 slices is taken in 4 parts"):
            _run(examples, config, tmp_path / "scarce")
    assert "taken in 2 parts" in (tmp_path / "scarce/log.txt").read_text()
    with monkeypatch.context() as patch:
        patch.setattr("discoseg.start.Running", lambda **fields: Running(**fields, parts=4))
        _run(examples, config, tmp_path / "parts")
    assert _files(tmp_path / "scarce") == _files(tmp_path / "parts")
    more = replace(config, epochs=3)
    with warnings.catch_warnings(), monkeypatch.context() as patch:
        warnings.simplefilter("error")  # a resumed training knows already
        _scarce(patch, 2)
        _run(examples, more, tmp_path / "scarce", resume=True)


def test_out_of_memory_in_the_first_step_of_the_optimiser(
    examples: list[Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its moments come about weight by weight then."""
    config = replace(TINY, method="full", epochs=1)
    make, made = torch.zeros_like, 0

    def scarce(like: torch.Tensor, **options: Any) -> torch.Tensor:
        nonlocal made
        made += "memory_format" in options  # a moment
        if made == 6:
            made += 1
            raise RuntimeError("CUDA error: out of memory")
        return make(like, **options)

    with monkeypatch.context() as patch:
        patch.setattr("torch.zeros_like", scarce)
        with pytest.warns(UserWarning, match="from step 1 on a batch of 8 slices is taken in 2 parts"):
            _run(examples, config, tmp_path / "scarce")
    with monkeypatch.context() as patch:
        patch.setattr("discoseg.start.Running", lambda **fields: Running(**fields, parts=2))
        _run(examples, config, tmp_path / "parts")
    assert _files(tmp_path / "scarce") == _files(tmp_path / "parts")


@pytest.mark.parametrize(
    ("said", "known"),
    [
        ("CUDA error: out of memory\nCUDA kernel errors might be reported later", True),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", True),
        ("[enforce fail at alloc_cpu.cpp:119] . DefaultCPUAllocator: can't allocate memory: you tried", True),
        ("CUDA error: an illegal memory access was encountered", False),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`", False),
    ],
)
def test_out_of_memory_is_known_by_what_torch_says(said: str, known: bool) -> None:
    assert is_out_of_memory(RuntimeError(said)) == known
    assert not is_out_of_memory(ValueError(said))


def test_who_refused_memory_is_quoted() -> None:
    """In one line, and not at any length: it may be another process that has the memory, or a driver that is broken."""
    refused = RuntimeError("CUDA error: out of memory\n  on this device")
    told = UserError("a recording failed")
    told.__cause__ = refused
    assert describe_shortage(told).startswith("out of memory (CUDA error: out of memory on this device); lower ")
    assert str(released(refused)) == describe_shortage(refused)
    assert str(released(told)) == "a recording failed"
    assert describe_shortage(MemoryError()).startswith("out of memory; lower ")
    assert len(describe_shortage(RuntimeError("out of memory " * 100))) < 300


def test_out_of_memory_with_one_slice_is_said(
    examples: list[Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _scarce(monkeypatch, 0)
    with (
        pytest.raises(UserError, match="out of memory in epoch 1, with 1 slices at a time"),
        pytest.warns(UserWarning, match="8 parts"),
    ):
        _run(examples, TINY, tmp_path / "run")


def test_parts_add_up_to_the_gradient_of_the_batch(examples: list[Example]) -> None:
    """Where the batch statistics are given; 28 slices in three parts are not equal parts."""
    slices = stack_slices(examples[:3], CPU)
    config = replace(
        TINY, method="partial", augment=replace(TINY.augment, noise=0), optimiser=OptimiserConfig(batch=28)
    )
    gradients, found = [], []
    for parts in (1, 3):
        torch.manual_seed(0)
        state = start_state(slices, config)
        state.running.parts = parts
        learn = TrainingPass(state, slices, config)
        learn._draw()
        state.network.eval()
        learn._train_next()
        gradients.append(torch.cat([p.grad.flatten() for p in state.network.parameters() if p.grad is not None]))
        found.append(state.running.losses)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(found[0], found[1])


def test_predictions_without_memory_take_fewer_slices(examples: list[Example], monkeypatch: pytest.MonkeyPatch) -> None:
    slices = stack_slices(examples[:3], CPU)
    torch.manual_seed(0)
    network = start_state(slices, TINY).network
    expected = PredictionPass(network, slices, TINY).all()
    structures = losses.structures

    def scarce(logits: torch.Tensor) -> torch.Tensor:
        if len(logits) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return structures(logits)

    monkeypatch.setattr("discoseg.losses.structures", scarce)
    said: list[str] = []
    predict = PredictionPass(network, slices, TINY, say=said.append)
    seen = torch.cat(list(predict.run()))
    assert seen.tolist() == list(range(28))
    torch.testing.assert_close(predict.probability, expected)
    assert said[-1] == "out of memory in a prediction: 4 slices at a time from now on, not 8"
    monkeypatch.setattr("discoseg.losses.structures", lambda logits: scarce(logits.repeat(5, 1, 1, 1)))
    with pytest.raises(UserError, match="while one slice is predicted"):
        predict.all()


def test_a_loss_that_is_not_finite_is_diagnosed(
    examples: list[Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    _run(examples, replace(TINY, epochs=1), run)
    before = _files(run)
    steps, take = 0, TrainingPass._batch_losses

    def explode(self: TrainingPass, *batch: Any) -> torch.Tensor:
        nonlocal steps
        steps += 1
        return take(self, *batch) * (torch.tensor([1.0, np.nan, 1.0]) if steps == 2 else 1.0)

    monkeypatch.setattr(TrainingPass, "_batch_losses", explode)
    monkeypatch.setattr(checkpoints, "EVERY_S", 0.0)
    where, why = r"nan in epoch 2, step 2 of 4: of its terms crf nan", r"learning rate 0\.005"
    said = rf"{where}; {why}; the batch was of phantom0, phantom"
    with pytest.raises(UserError, match=said):
        _run(examples, TINY, run, resume=True)
    meta = load_tensors(RunFolder(run).latest)[1]
    assert (meta["epoch"], meta["steps"]) <= (1, 1)
    for name in ("checkpoints/best.safetensors", "metrics.csv"):
        assert _files(run)[name] == before[name]


def test_weights_that_are_not_finite_are_never_written(
    examples: list[Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss may be finite still when the weights are no more."""
    step = torch.optim.Adam.step

    def explode(self: torch.optim.Adam, *arguments: Any) -> Any:
        made = step(self, *arguments)
        with torch.no_grad():
            self.param_groups[0]["params"][0].view(-1)[0] = torch.inf
        return made

    config = replace(TINY, optimiser=replace(TINY.optimiser, batch=28))
    monkeypatch.setattr(torch.optim.Adam, "step", explode)
    with pytest.raises(UserError, match="weights are not finite in epoch 1, after step 1"):
        _run(examples, config, tmp_path / "run")
    assert list((tmp_path / "run/checkpoints").iterdir()) == []


@pytest.mark.parametrize("split", ["training", "validation"])
def test_probabilities_that_are_not_finite_name_their_case(
    split: str, examples: list[Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the method, and though weights and losses are finite; nothing but the start is written."""
    predict = PredictionPass._predict_next
    validates = list[bool]()

    def explode(self: PredictionPass) -> None:
        image = self._image
        validates.append(len(self._slices.names) == 1)
        if validates[-1] == (split == "validation"):
            self._image = image.clone()
            self._image[-1, 0, 3, 3] = torch.inf
        predict(self)
        self._image = image

    monkeypatch.setattr(PredictionPass, "_predict_next", explode)
    case = examples[2 if split == "training" else 3].name
    with pytest.raises(UserError, match=rf"^{case}: its probabilities are not finite in epoch 1"):
        _run(examples, replace(TINY, method="full", epochs=1), tmp_path / "run")
    assert set(validates) == {False, True}
    assert list((tmp_path / "run/checkpoints").iterdir()) == []
