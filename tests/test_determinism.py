"""--deterministic: which switches it sets, and that all trainings of a command get it; GPUs are in test_cuda.py."""

from pathlib import Path
from typing import Any

import pytest
import torch

from discoseg import sweep
from discoseg.cli import main
from discoseg.config import Config
from discoseg.determinism import repeatable
from discoseg.errors import UserError
from discoseg.experiments import reproduce as experiments
from discoseg.kernels import kernels_on
from discoseg.replay import Replay

CUDA = torch.device("cuda")  # nothing here runs on it


def _switches() -> tuple[bool, bool, bool]:
    cudnn = torch.backends.cudnn
    return torch.are_deterministic_algorithms_enabled(), cudnn.deterministic, cudnn.benchmark


def test_switches_are_set_on_a_gpu_alone_and_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    before = _switches()
    for wanted, device in ((True, torch.device("cpu")), (False, CUDA)):
        with repeatable(wanted, device):
            assert _switches() == before
            assert Replay(lambda: None, CUDA)._plain_runs is not None
    with repeatable(True, CUDA):
        assert _switches() == (True, True, False)
        assert Replay(lambda: None, CUDA)._plain_runs is None  # never recorded
    assert _switches() == before
    with kernels_on(), pytest.raises(UserError, match="--deterministic on a GPU needs Triton"), repeatable(True, CUDA):
        pass


def test_every_training_of_a_command_gets_it(phantoms: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one.toml").write_text('label = "LV"\n')
    seen: list[Config] = []

    def fit_many(dataset: Path, runs: dict[Path, Config], **settings: Any) -> None:
        seen.extend(runs.values())
        raise UserError("enough")

    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "acdc").symlink_to(phantoms)
    monkeypatch.setattr(sweep, "fit_many", fit_many)
    monkeypatch.setattr(experiments, "fit_many", fit_many)
    for command in (
        ["sweep", str(phantoms), "--configs", str(tmp_path / "one.toml"), "--out", str(tmp_path / "out")],
        ["reproduce", "table1", "--data", str(tmp_path / "data"), "--out", str(tmp_path / "out"), "--only", "lv-full*"],
    ):
        for option, wanted in (([], False), (["--deterministic"], True)):
            seen.clear()
            with pytest.raises(SystemExit):
                main([*command, *option])
            assert {config.deterministic for config in seen} == {wanted}
