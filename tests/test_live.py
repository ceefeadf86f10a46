import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from discoseg.config import AdmmConfig, Config, GridConfig, NetworkConfig, OptimiserConfig
from discoseg.report import live
from discoseg.report.events import EventFile
from discoseg.report.live import keep_live
from discoseg.report.runs import read_columns
from discoseg.train import train
from discoseg.weak.examples import Example

CONFIG = Config(
    size_eps=0.1,
    epochs=3,
    grid=GridConfig(shape=(32, 32)),
    network=NetworkConfig(name="unet", width=4, depth=2),
    optimiser=OptimiserConfig(batch=4),
    admm=AdmmConfig(mu_crf=1.0, mu_size=1.0),
)
MODEL = {"labels": {"LV": 3}, "orientation": "LPS", "channels": 1}
BY_THE_CLOCK = {"timing.csv", "log.txt"}  # differ between any two trainings


def records(path: Path) -> Iterator[bytes]:
    """The records of an event file, their checksums checked bit by bit."""
    data = path.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        assert masked_crc(data[:8]) == struct.unpack("<I", data[8:12])[0]
        assert masked_crc(data[12 : 12 + length]) == struct.unpack("<I", data[12 + length : 16 + length])[0]
        yield data[12 : 12 + length]
        data = data[16 + length :]


def masked_crc(data: bytes) -> int:
    """CRC-32C as a division of polynomials over all bits, masked as in TensorFlow's record_writer."""
    remainder = 0xFFFFFFFF
    for bit in (byte >> k & 1 for byte in data for k in range(8)):
        remainder = remainder >> 1 ^ (0x82F63B78 if (remainder ^ bit) & 1 else 0)
    crc = remainder ^ 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message by number."""
    place = 0

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = message[place]
            place += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while place < len(message):
        key = varint()
        number, kind = key >> 3, key & 7
        if kind == 0:
            yield number, varint()
        else:
            size = {1: 8, 5: 4}[kind] if kind != 2 else varint()
            yield number, message[place : place + size]
            place += size


def scalars(path: Path) -> dict[int, dict[str, float]]:
    """Values by step and tag; the first record must say the version."""
    first, *rest = records(path)
    assert dict(fields(first))[3] == b"brain.Event:2"
    steps: dict[int, dict[str, float]] = {}
    for record in rest:
        event = dict(fields(record))
        step, summary, wall_time = event[2], event[5], event[1]
        assert isinstance(step, int) and isinstance(summary, bytes) and isinstance(wall_time, bytes)  # noqa: PT018
        assert abs(struct.unpack("<d", wall_time)[0] - time.time()) < 600
        for _, value in fields(summary):
            assert isinstance(value, bytes)
            parts = dict(fields(value))
            tag, number = parts[1], parts[2]
            assert isinstance(tag, bytes) and isinstance(number, bytes)  # noqa: PT018
            steps.setdefault(step, {})[tag.decode()] = struct.unpack("<f", number)[0]
    return steps


def test_events_read_back(tmp_path: Path) -> None:
    file = EventFile(tmp_path)
    file.add_scalars(1, {"loss": 0.5, "val/dice": 0.25})
    file.add_scalars(300, {"größe": -1e30, "x" * 200: 0.0})
    steps = scalars(file.path)
    assert steps[1] == {"loss": 0.5, "val/dice": 0.25}
    assert steps[300] == pytest.approx({"größe": -1e30, "x" * 200: 0.0})
    again = EventFile(tmp_path)  # a resumed run begins anew
    assert list(tmp_path.iterdir()) == [again.path]


def fit(examples: list[Example], out: Path, config: Config = CONFIG, *, resume: bool = False) -> None:
    train(examples[:3], examples[3:], config, out, model=MODEL, device="cpu", resume=resume)


def test_following_changes_nothing_else(
    examples: list[Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(examples, tmp_path / "alone")
    monkeypatch.setattr(live, "_LOOK_S", 0.001)
    monkeypatch.setattr(live, "_EVERY_S", 0.0)
    with keep_live(tmp_path / "followed", events=True):
        fit(examples, tmp_path / "followed")
    files = {
        root: {path.relative_to(tmp_path / root) for path in (tmp_path / root).rglob("*") if path.is_file()}
        for root in ("alone", "followed")
    }
    (events,) = (tmp_path / "followed/tensorboard").iterdir()
    made = {Path("report.html"), events.relative_to(tmp_path / "followed")}
    assert files["followed"] - files["alone"] == made
    for name in files["alone"]:
        if name.name not in BY_THE_CLOCK:
            assert (tmp_path / "alone" / name).read_bytes() == (tmp_path / "followed" / name).read_bytes(), name
    assert 'http-equiv="refresh"' not in (tmp_path / "followed/report.html").read_text()
    metrics, steps = read_columns(tmp_path / "followed/metrics.csv"), scalars(events)
    assert list(steps) == [1, 2, 3]
    for column, values in metrics.items():
        for epoch, value in zip(metrics["epoch"], values, strict=True):
            if column != "epoch":
                assert steps[int(epoch)][column.replace("_", "/", 1)] == pytest.approx(value, rel=1e-6)
    assert all("seconds/network" in step for step in steps.values())


def test_page_loads_itself_again_until_the_training_ends(examples: list[Example], tmp_path: Path) -> None:
    run = tmp_path / "run"
    with keep_live(run):
        fit(examples, run, replace(CONFIG, epochs=1))
        deadline = time.monotonic() + 60
        while not (run / "report.html").is_file() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert f'http-equiv="refresh" content="{live.REFRESH_S}"' in (run / "report.html").read_text()
    assert 'http-equiv="refresh"' not in (run / "report.html").read_text()
    (run / "report.html").unlink()
    with keep_live(run, events=True):
        pass  # a training that was refused changes nothing
    with keep_live(run, page=False):
        fit(examples, run, replace(CONFIG, epochs=2), resume=True)
    assert not (run / "report.html").exists()
    assert not (run / "tensorboard").exists()


def test_training_outlives_its_report(
    examples: list[Example], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    with keep_live(run):
        fit(examples, run, replace(CONFIG, epochs=1))
        (run / "cases.csv").write_text("nonsense\n")
    assert (run / "checkpoints/final.safetensors").is_file()
    assert "cases.csv: broken CSV" in capsys.readouterr().err
