"""A dataset larger than its budget of memory: the same bytes, little memory, and nothing left on the disk."""

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from discoseg.cli import main
from discoseg.config import Config
from discoseg.data import memory
from discoseg.data.memory import GIB, Memory, usable_memory_bytes
from discoseg.errors import UserError
from discoseg.material import require_room_on_device
from discoseg.train import train
from discoseg.weak.examples import Example
from test_structures import MODEL as HEARTS_MODEL
from test_structures import SMALL as HEARTS
from test_train import MODEL, SMALL, _files

CPU = torch.device("cpu")


def _train(examples: list[Example], config: Config, run: Path, room: Memory | None = None, **settings: Any) -> None:
    model = MODEL if len(examples[0].structures) == 1 else HEARTS_MODEL
    train(examples[:3], examples[3:], config, run, model=model, device="cpu", memory=room, **settings)


def test_a_budget_is_given_out_once_and_the_rest_lies_in_nameless_files(tmp_path: Path) -> None:
    room, array = Memory(2000 / GIB, tmp_path), np.arange(250)
    assert room.keep(array) is array
    kept = room.keep(array[::-1])
    assert kept.base is not None
    assert kept.tolist() == array[::-1].tolist()
    tensor = room.tensor((3, 4), torch.float32, CPU).fill_(1.5)
    assert tensor.sum() == 18
    assert list(tmp_path.iterdir()) == []


def test_small_arrays_share_files(tmp_path: Path) -> None:
    """A file stays open as long as it is mapped, and a process may have a few thousand open."""
    room = Memory(0.0, tmp_path)
    kept = [room.keep(np.full(number + 1, number, np.int16)) for number in range(500)]
    tensor = room.tensor((3, 5), torch.float32, CPU).fill_(2.5)
    links = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    assert sum(link.startswith(str(tmp_path)) for link in links) == 1  # other threads open files, too
    assert all((array == number).all() and len(array) == number + 1 for number, array in enumerate(kept))
    assert tensor.sum() == 37.5


def test_training_ends_in_the_same_bytes_wherever_its_arrays_lie(
    examples: list[Example], hearts: list[Example], tmp_path: Path
) -> None:
    for cases, config, budgets in ((examples, SMALL, (1.0, 0.002, 0.0)), (hearts, HEARTS, (1.0, 0.0))):
        runs = {tmp_path / f"{len(budgets)}-{gib}": Memory(gib, tmp_path / "scratch") for gib in budgets}
        for run, room in runs.items():
            _train(cases, replace(config, epochs=2), run, room)
        resident, *others = map(_files, runs)
        assert all(files == resident for files in others)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_run_that_was_stopped_goes_on_with_another_budget(examples: list[Example], tmp_path: Path) -> None:
    config = replace(SMALL, epochs=2)

    def interrupt(done: float, message: str) -> None:
        if done == 1:
            raise KeyboardInterrupt

    for before, after in ((1.0, 0.0), (0.0, 1.0)):
        run = tmp_path / str(before)
        with pytest.raises(KeyboardInterrupt):
            _train(examples, config, run, Memory(before, tmp_path / "scratch"), progress=interrupt)
        _train(examples, config, run, Memory(after, tmp_path / "scratch"), resume=True)
    assert _files(tmp_path / "0.0") == _files(tmp_path / "1.0")


def test_the_command_trains_from_files(phantoms: Path, tmp_path: Path, cache: Path) -> None:
    (tmp_path / "small.toml").write_text(
        'label = "LV"\nepochs = 2\nsize_eps = 0.1\n[network]\nwidth = 2\ndepth = 2\n[grid]\nshape = [32, 32]\n'
    )
    with pytest.raises(SystemExit) as stop:
        main(["seeds", str(phantoms), "--label", "LV", "--grid", "32", "32", "--out", str(tmp_path / "seeds")])
    assert stop.value.code == 0
    for gib in ("0", "1"):
        command = ["train", str(phantoms), "--preset", str(tmp_path / "small.toml"), "--device", "cpu"]
        command += ["--seeds", str(tmp_path / "seeds"), "--memory-gib", gib, "--out", str(tmp_path / gib)]
        command += ["--no-live-report"]
        with pytest.raises(SystemExit) as stop:
            main(command)
        assert stop.value.code == 0
    assert _files(tmp_path / "0") == _files(tmp_path / "1")
    assert all((entry / "array.npy").is_file() for entry in cache.iterdir() if entry.is_dir())
    assert [entry for entry in cache.iterdir() if entry.is_file()] == []


def test_a_full_disk_is_known_before_a_run_begins(
    examples: list[Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    room = Memory(0.001, tmp_path / "scratch")
    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(UserError, match=r"scratch: cannot hold 0\.06 GiB that --memory-gib .* No space left"):
        _train(examples, SMALL, tmp_path / "run", room)
    assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match=r"--memory-gib -1 must be 0 or more"):
        Memory(-1)


def test_a_container_or_a_job_may_use_less_memory_than_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_LIMITS", dict.fromkeys(memory._LIMITS, (tmp_path, "memory.max")))
    there = usable_memory_bytes()
    for text, expected in (("max\n", there), ("4096\n", 4096)):
        (tmp_path / "memory.max").write_text(text)
        assert usable_memory_bytes() == expected


def test_what_no_gpu_can_hold_is_refused_with_numbers(examples: list[Example], monkeypatch: pytest.MonkeyPatch) -> None:
    voxels, cuda = sum(example.seeds.size for example in examples[:3]), torch.device("cuda")
    needed = (4 + 2 + 4 + 2 * 11) * voxels + (4 + 2 + 4) * examples[3].seeds.size
    for there in (needed, needed - 1):
        properties = SimpleNamespace(total_memory=there)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device, found=properties: found)
        if there == needed:
            require_room_on_device(examples[:3], examples[3:], SMALL, cuda)
        else:
            with pytest.raises(UserError, match=r"3 training and 1 validation cases need at least .* --device cpu"):
                require_room_on_device(examples[:3], examples[3:], SMALL, cuda)
    require_room_on_device(examples[:3], examples[3:], replace(SMALL, method="partial"), cuda)


# Prints by how many MiB a training raises the memory that no file stands behind, with a budget and without.
_MEASURE = """
import sys, threading
from pathlib import Path
import numpy as np, torch
from discoseg.config import Config, CrfConfig, GridConfig, NetworkConfig, RoundsConfig
from discoseg.data.memory import BOUNDLESS, Memory
from discoseg.train import train
from discoseg.weak.bounds import Bounds
from discoseg.weak.examples import Example
torch.set_num_threads(1)
folder, shape = Path(sys.argv[1]), (10, 64, 64)
config = Config(epochs=2, grid=GridConfig(shape[1:]), network=NetworkConfig("unet", width=1, depth=1),
                rounds=RoundsConfig(first=1), crf=CrfConfig(strength=0.1, sigma=0.1))
def anonymous_mib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) / 1024
def example(number, memory):
    rng, file = np.random.default_rng(number), folder / f"{number}.npy"
    np.save(file, rng.random((shape[0], 1, *shape[1:]), dtype=np.float32))
    seeds = np.full(shape, -1, np.int8)
    seeds[:, :8], seeds[:, -8:] = 0, 1
    bounds = (Bounds(20000, 30000),)
    return Example(f"case{number}", np.load(file, mmap_mode="r"), memory.keep(seeds), None, (1, 1, 1), bounds)
def measure(name, count, memory):
    before, peak, done = anonymous_mib(), 0.0, threading.Event()
    def watch():
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, anonymous_mib())
    watching = threading.Thread(target=watch)
    watching.start()
    examples = [example(number, memory) for number in range(count)]
    train(examples, [], config, folder / name, model={}, device="cpu", memory=memory)
    done.set()
    watching.join()
    return peak - before
measure("compiled", 2, BOUNDLESS)
print(measure("files", 48, Memory(0.01, folder)), measure("resident", 48, BOUNDLESS))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is counted as Linux does")
def test_memory_stays_bounded_where_a_dataset_is_several_times_its_budget(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _MEASURE, str(tmp_path)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    files_mib, resident_mib = map(float, printed.split())
    assert files_mib < resident_mib / 2, (files_mib, resident_mib)
