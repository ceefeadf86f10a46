"""Several ranks: they do what one process does, stop and fail together, and go on in any number."""

import csv
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.rendezvous import rendezvous

from discoseg.checkpoint_header import load_meta
from discoseg.cli import _again, main
from discoseg.commands.options import same_again
from discoseg.config import (
    AdmmConfig,
    AugmentConfig,
    Config,
    CrfConfig,
    GridConfig,
    NetworkConfig,
    OptimiserConfig,
    RoundsConfig,
)
from discoseg.errors import UserError
from discoseg.launch import Launch, read_launch, without_launch
from discoseg.launch_store import first_to_tell, note_begun
from discoseg.not_begun import is_not_begun
from discoseg.ranks import PeerLost, open_ranks
from discoseg.run import RunFolder
from discoseg.shards import shard_cases, share_batch
from discoseg.weak.examples import Example
from rank_work import Training, disagree, together

SMALL = Config(
    epochs=2,
    grid=GridConfig(shape=(32, 32)),
    network=NetworkConfig(name="unet", width=4),
    optimiser=OptimiserConfig(batch=8, lr=5e-3),
    crf=CrfConfig(strength=0.3, sigma=0.1),
    augment=AugmentConfig(rotate_deg=10, noise=0.02),
    admm=AdmmConfig(schedule="balance"),
)


def _train(
    examples: Sequence[Example], config: Config, run: Path, *, size: int, **how: Any
) -> dict[int, tuple[str, str]]:
    """Train on three examples and validate on one, which the last rank has; return what ranks failed with."""
    shards = []
    for rank, own in enumerate(shard_cases([len(example.seeds) for example in examples[:3]], size)):
        held_out = list(examples[3:]) if rank == size - 1 else []
        places = {"training": own, "validation": list(range(len(held_out)))}
        shards.append(([examples[index] for index in own], held_out, places))
    return together(size, Training(shards, config, run, **how))


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _assert_close(one: Path, other: Path) -> None:
    """Compare the tables of two runs: the same cases in the same order, and numbers up to rounding."""
    for name in ("metrics.csv", "cases.csv", "next.csv"):
        rows, others = _rows(one / name), _rows(other / name)
        assert len(rows) == len(others)
        for row, like in zip(rows, others, strict=True):
            assert row.keys() == like.keys()
            for key, text in row.items():
                if key in ("case", "split") or not text:
                    assert text == like[key]
                else:
                    assert float(text) == pytest.approx(float(like[key]), rel=2e-3, abs=2e-3), (name, key)


def test_ranks_do_what_one_process_does_and_others_go_on(examples: list[Example], tmp_path: Path) -> None:
    """With uneven shards, and in turn from checkpoints of 1, 2, 3 and 2 ranks.

    Where all slices are in each batch, nothing is augmented, and no batch is normalised, it makes no difference but of
    rounding who computes what.
    """
    optimiser, rounds = OptimiserConfig(batch=28, lr=2e-2), RoundsConfig(first=2)
    config = replace(SMALL, epochs=5, augment=AugmentConfig(), optimiser=optimiser, rounds=rounds)
    assert _train(examples, config, tmp_path / "one", size=1, plain=True) == {}
    assert _train(examples, config, tmp_path / "two", size=2, plain=True) == {}
    _assert_close(tmp_path / "one", tmp_path / "two")
    assert float(_rows(tmp_path / "one" / "metrics.csv")[-1]["crf_dice"]) > 0  # there was something to get wrong
    for epochs, size in enumerate((1, 2, 3, 2, 1), start=1):
        some, resume = replace(config, epochs=epochs), epochs > 1
        assert _train(examples, some, tmp_path / "any", size=size, plain=True, resume=resume) == {}
    _assert_close(tmp_path / "one", tmp_path / "any")
    shards = (tmp_path / "any" / "checkpoints" / "shards").iterdir()
    assert sorted(path.name[:5] for path in shards) == ["e0004", "e0004"]  # those that previous.safetensors names


def _files(folder: Path) -> dict[str, bytes]:
    """Return what a training of SMALL left, but for clocks and the checkpoint before the last, which they decide."""
    last = f"e{SMALL.epochs:04d}_s00000_"
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    paths = [path for path in paths if path.parent.name != "shards" or path.name.startswith(last)]
    files = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    for name in ("timing.csv", "log.txt", ".lock", "checkpoints/previous.safetensors"):
        del files[name]
    return files


@pytest.mark.parametrize("size", [3])
def test_a_stop_of_one_stops_all_and_a_resumed_run_ends_in_the_same_bytes(
    size: int, examples: list[Example], tmp_path: Path
) -> None:
    assert _train(examples, SMALL, tmp_path / "whole", size=size, often=True) == {}
    stopped = _train(examples, SMALL, tmp_path / "parts", size=size, often=True, fault=KeyboardInterrupt)
    assert [kind for kind, _ in stopped.values()] == ["KeyboardInterrupt"] * size
    assert _train(examples, SMALL, tmp_path / "parts", size=size, often=True, resume=True) == {}
    assert "resumed after epoch 0, step 2" in (tmp_path / "parts" / "log.txt").read_text()
    whole, parts = _files(tmp_path / "whole"), _files(tmp_path / "parts")
    assert whole.keys() == parts.keys()
    assert [name for name in whole if whole[name] != parts[name]] == []


def test_a_damaged_shard_sends_all_ranks_back(examples: list[Example], tmp_path: Path) -> None:
    assert _train(examples, SMALL, tmp_path / "run", size=2) == {}
    other, shard = sorted((tmp_path / "run" / "checkpoints" / "shards").glob("e0002_s00000_*of2.safetensors"))
    held = [load_meta(path)["cases"] for path in (other, shard)]  # what each rank had to itself
    assert sorted(chain(*held)) == ["phantom0", "phantom1", "phantom2"]
    assert sorted(map(len, held)) == [1, 2]
    content = bytearray(shard.read_bytes())
    content[-5] ^= 1
    shard.write_bytes(content)
    assert _train(examples, replace(SMALL, epochs=3), tmp_path / "run", size=2, resume=True) == {}
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "is damaged: going on from the checkpoint before it, after epoch 1" in log
    assert [row["epoch"] for row in _rows(tmp_path / "run" / "metrics.csv")] == ["1", "2", "3"]


def test_an_error_on_one_rank_ends_all(examples: list[Example], tmp_path: Path) -> None:
    failed = _train(examples, SMALL, tmp_path / "run", size=2, fault=UserError)
    assert failed[1] == ("UserError", "a fault")
    assert failed[0][0] == "PeerLost"
    assert "another process of this training ended" in failed[0][1]


def test_agreement_tells_all_what_went_wrong_on_one() -> None:
    assert together(2, disagree) == {
        0: ("PeerLost", "case 7 cannot be read"),
        1: ("UserError", "case 7 cannot be read"),
    }


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_shards_hold_every_case_once_and_are_balanced(ranks: int) -> None:
    slices = np.random.default_rng(0).integers(1, 30, 40).tolist()
    shards = shard_cases(slices, ranks)
    assert sorted(chain(*shards)) == list(range(40))
    loads = [sum(slices[case] for case in shard) for shard in shards]
    assert max(loads) - min(loads) <= max(slices)


@pytest.mark.parametrize("seed", range(20))
def test_shares_sum_to_the_batch_and_no_rank_takes_more_than_it_has(seed: int) -> None:
    random = np.random.default_rng(seed)
    slices = random.integers(1, 50, random.integers(1, 9)).tolist()
    batch = int(random.integers(len(slices), sum(slices) + 1))
    shares = share_batch(batch, slices)
    assert sum(shares) == batch
    assert all(1 <= share <= own for share, own in zip(shares, slices, strict=True))
    with pytest.raises(UserError, match=r"--optimiser.batch 2 is less than the 3 processes"):
        share_batch(2, [5, 5, 5])


def test_torchrun_says_a_fault_in_one_line_and_goes_on_with_what_it_began(phantoms: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "2"]
    options = "--label LV --method full --epochs 2 --grid.shape 32 32 --network.name unet --network.width 4 "
    options += "--optimiser.batch 4 --device cpu --quiet --no-live-report"
    command = [str(Path(__file__).with_name("rank_restarts.py")), "train", str(phantoms), "--out", str(run)]
    ended = subprocess.run([*launcher, *command, *options.split()], capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    *killed, failed = (line for line in ended.stderr.splitlines() if line.startswith("discoseg:"))
    for line in killed:  # one, unless torchrun ends that process before it can tell; or it tells that it was ended
        assert line.startswith(
            ("discoseg: error: another process of this training ended", "discoseg: interrupted; go on with: torchrun ")
        )
    assert len(killed) <= 1
    assert failed == "discoseg: error: a fault of one rank"
    log = (run / "log.txt").read_text()
    assert log.index("resumed after epoch 0") < log.index("resumed after epoch 1")
    assert [row["epoch"] for row in _rows(run / "metrics.csv")] == ["1", "2"]


@pytest.fixture
def started_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[Launch]:
    """Be a process that torchrun has started for the second time."""
    store, _, _ = next(rendezvous("tcp://127.0.0.1:0?rank=0&world_size=1"))  # what torchrun has
    numbers = {"WORLD_SIZE": 2, "RANK": 0, "MASTER_PORT": store.port, "TORCHELASTIC_RESTART_COUNT": 1}
    for name, value in {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": True, **numbers}.items():
        monkeypatch.setenv(name, str(value))
    yield read_launch()
    del store


def test_torchrun_resumes_no_run_that_was_there_before(started_again: Launch) -> None:
    arguments = ["train", "data", "--out", "run"]
    assert _again(arguments) == arguments
    note_begun(Path("run"))
    assert _again(arguments) == [*arguments, "--resume"]
    assert _again([*arguments, "--resume"]) == [*arguments, "--resume"]
    assert _again(["train", "data", "--out=run"]) == ["train", "data", "--out=run", "--resume"]
    assert _again(["train", "data", "--out", "another"]) == ["train", "data", "--out", "another"]
    assert [first_to_tell(started_again), first_to_tell(started_again)] == [True, False]
    assert first_to_tell(replace(started_again, restarts=2))


def test_torchrun_can_go_on_wherever_a_start_was_killed(
    started_again: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it starts again takes --resume before the folder counts as a run, and no more when the folder is gone."""
    run, folder = tmp_path / "run", RunFolder(tmp_path / "run")
    arguments = ["train", "data", "--out", str(run)]

    def write_start() -> None:
        folder.write_start(SMALL, {}, {}, torch.device("cpu"), {"training": {}, "validation": {}})

    def fail(self: RunFolder, config: Config) -> None:
        assert _again(arguments) == [*arguments, "--resume"]
        assert is_not_begun(run)
        raise UserError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_config", fail)
        with pytest.raises(UserError, match="no room"), folder.open(resume=False):
            write_start()
    assert not run.exists()
    assert _again(arguments) == arguments
    with folder.open(resume=False):
        assert _again(arguments) == arguments
        write_start()
    assert _again(arguments) == [*arguments, "--resume"]


def test_ranks_that_do_not_find_each_other_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        numbers = {"WORLD_SIZE": 2, "RANK": 1, "MASTER_PORT": closed.getsockname()[1]}
        for name, value in {"MASTER_ADDR": "127.0.0.1", **numbers}.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setattr("discoseg.ranks._PATIENCE", timedelta(seconds=1))
        with pytest.raises(PeerLost, match="the 2 processes of this training did not find each other"):
            open_ranks(torch.device("cpu")).__enter__()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"WORLD_SIZE": "abc"}, "WORLD_SIZE is 'abc' in the environment"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK is '2' in the environment"),
        ({"TORCHELASTIC_RESTART_COUNT": "-1"}, "TORCHELASTIC_RESTART_COUNT is '-1' in the environment"),
        ({"WORLD_SIZE": "2", "MASTER_PORT": "x"}, "MASTER_PORT is 'x' in the environment"),
        ({"WORLD_SIZE": "2"}, "RANK is not set"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "check is for one process"),
    ],
)
def test_an_odd_environment_is_said_in_one_line(
    changed: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"} if "RANK" in changed or "MASTER_PORT" in changed else {}
    for name, value in {**address, **({"RANK": "0"} if address else {}), **changed}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("discoseg.launch_store.first_to_tell", lambda launch: True)
    with pytest.raises(SystemExit) as ended:
        main(["check", "nowhere"])
    assert ended.value.code == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("discoseg: error: ")
    assert said in complaint
    assert complaint.count("\n") == 1


def test_a_process_of_its_own_knows_nothing_of_torchrun() -> None:
    torchruns = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT", "TORCHELASTIC_RUN_ID")
    assert without_launch({"PATH": "/bin", **dict.fromkeys(torchruns, "2")}) == {"PATH": "/bin"}


def test_an_interrupted_training_says_how_torchrun_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert same_again(["train", "data"]) == "torchrun --nproc-per-node 4 -m discoseg train data"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert same_again(["train", "data"]) == "torchrun ... --nproc-per-node 2 -m discoseg train data"
