"""``discoseg annotate`` as processes: a server that is killed, streams events, ends; trainings beside it."""

import fcntl
import gzip
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra web is not installed")

import httpx2
from fastapi.testclient import TestClient

from discoseg.checkpoint import save_tensors
from discoseg.data.layouts import find_dataset
from discoseg.web.annotator import Annotator
from discoseg.web.app import create_app
from discoseg.web.training import Busy, Status, Training

SCRIPT = """
import sys
from pathlib import Path
from discoseg.web import serve
serve.STATIC = Path(sys.argv.pop(1))
from discoseg.cli import main
main(["annotate", *sys.argv[1:]])
"""
PRESET = "[grid]\nshape = [48, 48]\n[network]\nname = 'unet'\nwidth = 2\ndepth = 1\nprecision = 'float32'\n"


@pytest.fixture
def static(tmp_path: Path) -> Path:
    folder = tmp_path / "static"
    (folder / "vendor").mkdir(parents=True)
    (folder / "index.html").write_text("page")
    (folder / "vendor" / "niivue.umd.js").write_text("")
    return folder


@pytest.fixture
def start(phantoms: Path, static: Path, tmp_path: Path) -> Iterator[Callable[..., tuple[Any, httpx2.Client]]]:
    """Start the command in a process of its own; return it, and a client that has its token."""
    started: list[subprocess.Popen[str]] = []

    def start_server(*options: str) -> tuple[subprocess.Popen[str], httpx2.Client]:
        command = [sys.executable, "-c", SCRIPT, str(static), str(phantoms), "--out", str(tmp_path / "out")]
        command += ["--label", "LV", "--no-browser", *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        base, token = process.stdout.readline().strip().split("/?token=")
        return process, httpx2.Client(base_url=base, headers={"X-Token": token})

    yield start_server
    for process in started:
        process.kill()
        process.wait()


def test_a_killed_server_loses_nothing_it_has_answered(
    start: Callable[..., tuple[Any, httpx2.Client]], tmp_path: Path
) -> None:
    process, client = start()
    port = client.base_url.port
    acknowledged = {f"phantom_00{number}": 0 for number in range(1, 5)}

    def annotate(case: str) -> None:
        x = 0
        while True:
            body = {"label": "LV", "voxel": [x % 48, 20, 3], "revision": acknowledged[case]}
            try:
                answer = client.put(f"/api/cases/{case}/click", json=body)
            except httpx2.TransportError:  # killed
                return
            assert answer.status_code == 200
            acknowledged[case] = answer.json()["revision"]
            x += 1

    threads = [threading.Thread(target=annotate, args=[case]) for case in acknowledged]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 30
    while min(acknowledged.values()) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    for thread in threads:
        thread.join()
    again, same = start("--port", str(port))
    assert same.headers["X-Token"] == client.headers["X-Token"]  # the page that is open goes on
    clicks = json.loads((tmp_path / "out/clicks.json").read_text())
    for case, revision in acknowledged.items():
        found = same.get(f"/api/cases/{case}").json()
        assert found["revision"] in (revision, revision + 1)
        assert found["clicks"]["LV"] == [(found["revision"] - 1) % 48, 20, 3] == clicks[case]["LV"]["voxel"]

    with same.stream("GET", "/api/events", timeout=10) as events:
        lines = events.iter_lines()
        assert next(lines) == ": connected"
        case, revision = "phantom_001", same.get("/api/cases/phantom_001").json()["revision"]
        same.put(f"/api/cases/{case}/state", json={"state": "done", "revision": revision})
        told = next(line for line in lines if line.startswith("data: "))
        assert json.loads(told.removeprefix("data: ")) == {"case": case, "revision": revision + 1, "state": "done"}
        again.send_signal(signal.SIGINT)  # with a stream still open
        assert again.wait(timeout=10) == 0


def wait_for(training: Training, *states: str, epoch: int = 0) -> Status:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        status = training.status()
        if status.state in states and status.epoch >= epoch:
            return status
        assert status.state in ("running", "stopping"), status
        time.sleep(0.1)
    raise AssertionError(f"still {status.state} after {status.epoch} epochs")


def test_trainings_run_beside_the_server(
    phantoms: Path, static: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preset = tmp_path / "small.toml"
    preset.write_text(PRESET)
    clicks = json.loads((phantoms / "clicks.json").read_text())
    out = tmp_path / "out"
    annotator = Annotator(find_dataset(phantoms), out, structures={"RV": 1, "LV": 3})
    for case in ("phantom_002", "phantom_004"):
        x, y, z = clicks[case]["voxel"]
        annotator.click(case, 0, "LV", (x, y, z))
    annotator.bound("phantom_002", 1, {"LV": (1.0, 500.0)})
    told: list[Status] = []
    training = Training(annotator, preset=str(preset), tell=told.append)
    assert training.status() == Status()
    monkeypatch.setenv("WORLD_SIZE", "several")  # torchrun's, which is none of a training's here
    first = training.start(epochs=100_000)
    assert (first.name, first.state) == ("run-1", "running")
    with pytest.raises(Busy):
        training.start()
    annotator.click("phantom_002", 2, "LV", (3, 3, 3))  # annotation goes on; the training has what there was
    wait_for(training, "running", epoch=1)
    adopted = Training(annotator, preset=str(preset), tell=told.append)  # as in the server after a killed one
    assert adopted.status().name == "run-1"
    adopted.close()
    stopped = adopted.status()
    assert stopped.state == "idle"
    assert "can go on" in stopped.message

    with TestClient(create_app(annotator, static, preset=str(preset))) as client:
        listed = client.get("/api/dataset").json()
        assert [run["name"] for run in listed["runs"]] == ["run-1"]
        assert listed["suggested"] == []  # it has not finished
        shape = annotator.images.geometry("phantom_004").shape
        for kind in ("prediction", "crf", "size"):
            answer = client.get(f"/api/runs/run-1/cases/phantom_004/{kind}")
            overlay = np.frombuffer(gzip.decompress(answer.content), np.uint8).reshape(shape)
            assert set(np.unique(overlay)) <= {0, 2}
            if kind != "prediction":  # proposals honour the seeds
                x, y, z = clicks["phantom_004"]["voxel"]
                assert overlay[z, y, x] == 2
        for path, why in (("run-1/cases/phantom_001/crf", "no training case"), ("2/cases/phantom_002/crf", "no run")):
            refused = client.get(f"/api/runs/{path}")
            assert refused.status_code == 404
            assert why in refused.json()["detail"]

        assert client.post("/api/training", json={"name": "run-1", "method": "crf"}).status_code == 422
        finish = tmp_path / "finish"  # in the place of python: notes what it is asked to do, and ends like a training
        save_tensors(tmp_path / "final.safetensors", {}, {"epoch": 50_000})
        lines = f"""#!/bin/sh
            echo "$@" > {tmp_path}/asked
            cd {out}/runs/run-1
            sed -i "s/^epochs = .*/epochs = 50000/" config.toml
            cp {tmp_path}/final.safetensors checkpoints/
        """
        finish.write_text("\n".join(line.strip() for line in lines.splitlines()) + "\n")
        finish.chmod(0o755)
        monkeypatch.setattr("discoseg.web.training.sys.executable", str(finish))
        goes_on = client.post("/api/training", json={"name": "run-1", "epochs": 50_000})
        assert goes_on.status_code == 200
        assert wait_for(training, "finished").epochs == 50_000
        asked = (tmp_path / "asked").read_text()
        run = out / "runs" / "run-1"
        assert asked == f"-m discoseg train {phantoms.resolve()} --out {run} --quiet --resume --epochs 50000\n"
        assert sorted(client.get("/api/dataset").json()["suggested"]) == ["phantom_002", "phantom_004"]
        again = client.post("/api/training", json={"name": "run-1"})
        assert again.status_code == 422
        assert "finished" in again.json()["detail"]
    assert json.loads((out / "runs/run-1/run.json").read_text())["training"] == ["phantom_002", "phantom_004"]
    assert {status.state for status in told} >= {"running", "stopping"}


def test_stop_asks_first_and_then_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training that saves after its step may take a while; pressed again, Stop does not wait for it."""
    sent: list[tuple[int, int]] = []
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/run-1.lock").write_text("123")
    (tmp_path / "runs/current.json").write_text('{"name": "run-1", "epochs": 3, "started": 0, "stopped": false}')
    annotator = SimpleNamespace(out=tmp_path)
    monkeypatch.setattr("os.kill", lambda pid, number: sent.append((pid, number)))
    with (tmp_path / "runs/run-1.lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # as the training does for as long as it lives
        training = Training(cast(Annotator, annotator), preset="default", tell=lambda status: None)
        assert training.stop().state == "stopping"
        training.stop()
        training._closed.set()
    assert sent == [(123, signal.SIGTERM), (123, signal.SIGKILL)]
