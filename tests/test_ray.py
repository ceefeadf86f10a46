"""Sweeps on Ray: what cannot be is one line; on a real cluster a killed node costs nothing.

The cluster is two `ray start` on loopback. It takes most of a minute, and Ray is large: `make cluster` runs it.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from discoseg.cli import main
from discoseg.config import Config
from discoseg.engines import Job
from discoseg.engines.on_ray import RayEngine, _absolute, _to_go_on
from discoseg.errors import UserError
from discoseg.plain import to_toml
from discoseg.presets import load_config
from discoseg.workflow import fit
from test_train import SMALL

TINY = replace(SMALL, label="LV", method="full", epochs=100)
FINAL = "checkpoints/final.safetensors"
NODE = {"Alive": True, "Resources": {"CPU": 8.0}}
GPU_NODE = {"Alive": True, "Resources": {"CPU": 4.0, "GPU": 1.0}}


def _write_configs(folder: Path, **configs: Config) -> list[str]:
    for name, config in configs.items():
        (folder / f"{name}.toml").write_text(to_toml(config))
    return [str(folder / f"{name}.toml") for name in configs]


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--engine", "ray"], "pip install 'discoseg[cluster]'"),
        (["--engine", "ray", "--cpus-per-training", "0"], "--cpus-per-training 0"),
        (["--engine", "ray", "--gpus-per-training", "1.5"], "--gpus-per-training 1.5"),
        (["--engine", "ray", "--gpus-per-training", "0.5", "--device", "cpu"], "contradicts --device cpu"),
        (["--address", "head:6379"], "add that"),
    ],
)
def test_what_cannot_be_is_one_line(
    phantoms: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    said: str,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    with pytest.raises(SystemExit) as stop:
        main(["sweep", str(phantoms), "--configs", "default", "--out", str(tmp_path / "out"), *options])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("discoseg: error: ")
    assert error.count("\n") == 1
    assert said in error
    assert not (tmp_path / "out").exists()


def test_gpus_are_shared_where_there_are_any_and_impossible_wishes_do_not_wait_forever() -> None:
    assert RayEngine()._choose_gpus([NODE]) == 0
    assert RayEngine()._choose_gpus([NODE, GPU_NODE]) == 0.5
    assert RayEngine(device="cpu")._choose_gpus([NODE, GPU_NODE]) == 0
    assert RayEngine(gpus=1)._choose_gpus([NODE, GPU_NODE]) == 1
    with pytest.raises(UserError, match="has no GPU"):
        RayEngine(device="cuda")._choose_gpus([NODE])
    with pytest.raises(UserError, match=r"no node .* has 9 CPUs"):
        RayEngine(cpus=9)._choose_gpus([NODE])
    with pytest.raises(UserError, match=r"no node .* has 8 CPUs and 0\.5 GPUs"):
        RayEngine(cpus=8)._choose_gpus([NODE, GPU_NODE])
    with pytest.raises(UserError, match="no node"):
        RayEngine()._choose_gpus([{**NODE, "Alive": False}])


def test_a_lost_job_goes_on_from_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sources = {"seeds": Path("seeds"), "split": None, "validation_fraction": 0.2}
    job = _absolute(Job(Path("data"), Path("run"), TINY, False, sources, None))
    assert job.dataset == tmp_path.resolve() / "data"
    assert job.sources == {**sources, "seeds": tmp_path.resolve() / "seeds"}
    (job.run / "checkpoints").mkdir(parents=True)  # killed before it was a run
    assert not _to_go_on(job).resume
    assert not job.run.exists()
    job.run.mkdir()
    (job.run / "config.toml").write_text("")
    assert _to_go_on(job).resume
    assert job.run.exists()


needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: make cluster")


@needs_ray
@pytest.mark.parametrize("address", ["127.0.0.1", "ray://127.0.0.1:10001", "127.0.0.1:port", "closed", "silent"])
def test_an_address_without_a_cluster_is_one_line_within_seconds(
    address: str, phantoms: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("discoseg.engines.on_ray._ANSWER_S", 5.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, never answers
        ports = {"silent": silent.getsockname()[1], "closed": _free_port()}
        address = f"127.0.0.1:{ports[address]}" if address in ports else address
        arguments = ["sweep", str(phantoms), "--configs", "default", "--out", str(tmp_path / "out")]
        start = time.monotonic()
        with pytest.raises(SystemExit) as stop:
            main([*arguments, "--engine", "ray", "--address", address])
    assert stop.value.code == 2
    assert time.monotonic() - start < 20
    error = capsys.readouterr().err
    assert error.startswith(f"discoseg: error: --address {address}: ")
    assert error.count("\n") == 1


class Cluster:
    """Two nodes of one core each: `ray start --head` and `ray start`, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.address = f"127.0.0.1:{_free_port()}"
        self.environment = os.environ | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": "a-token-of-this-test-alone-0123456789",
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_WAIT_POLICY": "passive",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        loopback = ["--node-ip-address", "127.0.0.1", "--num-cpus", "1", "--object-store-memory", str(2**27)]
        port = self.address.rpartition(":")[2]
        self._ray("--head", "--port", port, "--include-dashboard", "false", "--temp-dir", str(folder), *loopback)
        head = self._raylets()
        self._ray("--address", self.address, *loopback)
        (self._second,) = self._raylets() - head

    def _ray(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--disable-usage-stats", *arguments]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run(command, check=True, env=self.environment, timeout=300, **quiet)  # type: ignore[call-overload]

    def _processes(self) -> dict[int, str]:
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(self._folder) in command:
                found[int(folder.name)] = command
        return found

    def _raylets(self) -> set[int]:
        return {pid for pid, command in self._processes().items() if command.split()[0].endswith("/raylet")}

    def children_of_second(self) -> list[int]:
        """The processes of the second node, its workers among them."""
        text = Path(f"/proc/{self._second}/task/{self._second}/children").read_text()
        return [int(pid) for pid in text.split()]

    def kill_second(self) -> None:
        """Kill (SIGKILL) the second node and all that runs on it."""
        for pid in [self._second, *self.children_of_second()]:
            os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill what is left of the cluster."""
        for pid in self._processes():
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:  # sockets' paths must be short
        nodes = Cluster(Path(folder))
        yield nodes
        nodes.end()
        time.sleep(1)


def _wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 600
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _epochs(run: Path) -> int:
    log = run / "timing.csv"
    return log.read_text().count("\n") - 1 if log.is_file() else 0


@needs_ray
def test_interrupted_resumed_and_with_a_node_killed_it_ends_in_the_same_bytes(
    phantoms: Path, tmp_path: Path, cluster: Cluster
) -> None:
    names = ["a", "b"]
    good = {name: replace(TINY, seed=seed) for seed, name in enumerate(names)}
    configs = _write_configs(tmp_path, **good, bad=replace(TINY, method="partial"))
    out = tmp_path / "runs"
    command = [sys.executable, "-m", "discoseg", "sweep", str(phantoms), "--out", "runs", "--engine", "ray"]
    command += ["--address", cluster.address, "--configs", *configs]

    def start(*options: str) -> "subprocess.Popen[str]":
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([*command, *options], cwd=tmp_path, env=cluster.environment, **pipes)  # type: ignore[call-overload]

    with start() as process:
        _wait_for(lambda: all(_epochs(out / name) >= 3 for name in names), process)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=300)
    assert process.returncode == 130
    assert said.splitlines()[-1].startswith("discoseg: interrupted; go on with: discoseg sweep ")
    assert not any((out / name / FINAL).exists() for name in names)
    reached = {name: _epochs(out / name) for name in names}

    with start("--resume") as process:
        _wait_for(lambda: all(_epochs(out / name) >= reached[name] + 3 for name in names), process)
        cluster.kill_second()
        _, said = process.communicate(timeout=600)
    assert process.returncode == 2
    error = said.splitlines()[-1]
    assert error.startswith("discoseg: error: runs/bad: --method partial: every voxel is annotated already")
    assert "a: " not in error
    assert not (out / "bad").exists()
    logs = {name: (out / name / "log.txt").read_text().count("resumed after epoch") for name in names}
    assert sorted(logs.values()) == [1, 2]  # both after the interruption, one after the loss of its node
    for name, file in zip(names, configs, strict=False):
        fit(phantoms, tmp_path / "alone" / name, load_config(file), device="cpu")
        for kept in (FINAL, "metrics.csv", "cases.csv", "next.csv"):
            assert (out / name / kept).read_bytes() == (tmp_path / "alone" / name / kept).read_bytes()
