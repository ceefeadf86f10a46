"""Checkpoints keep every bit, notice damage, and never run what they contain."""

import json
import pickle
from pathlib import Path

import pytest
import torch

from discoseg.checkpoint import load_tensors, save_tensors
from discoseg.checkpoint_header import DamagedCheckpoint
from discoseg.errors import UserError


def _tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "weights": torch.randn(3, 4, 5),
        "step": torch.tensor(7.0),
        "counts": torch.arange(6).reshape(2, 3),
        "mask": torch.rand(9) > 0.5,
        "half": torch.randn(5).half(),
        "seeds": torch.tensor([-1, 0, 1], dtype=torch.int8),
        "none": torch.empty(0, 4),
        "strided": torch.randn(6, 4).T,
    }


def test_round_trip_is_exact(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    meta = {"epoch": 3, "history": [{"loss": 0.1 + 0.2}], "name": "ä"}
    save_tensors(path, _tensors(), meta)
    tensors, found = load_tensors(path)
    assert found == meta
    assert tensors.keys() == _tensors().keys()
    for name, value in _tensors().items():
        assert tensors[name].dtype == value.dtype
        assert torch.equal(tensors[name], value)


def test_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    save_tensors(tmp_path / "a", _tensors(), {"x": 1})
    save_tensors(tmp_path / "b", dict(reversed(_tensors().items())), {"x": 1})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("keep", [0, 4, 8, 100, 400, -1])
def test_truncated_file_is_refused(keep: int, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_tensors(path, _tensors(), {})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"a\.safetensors: not a complete discoseg checkpoint"):
        load_tensors(path)


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_tensors(path, {"w": torch.randn(7)}, {"epoch": 1})
    good = path.read_bytes()
    for index in range(len(good)):
        for bit in (0x01, 0x10, 0x20):  # the last turns capitals into small letters
            path.write_bytes(good[:index] + bytes([good[index] ^ bit]) + good[index + 1 :])
            with pytest.raises(DamagedCheckpoint):
                load_tensors(path)
    path.write_bytes(good)
    assert load_tensors(path)[1] == {"epoch": 1}


def test_files_without_a_checksum_of_the_header_are_read(tmp_path: Path) -> None:
    """Older ones have none."""
    path = tmp_path / "a.safetensors"
    save_tensors(path, {"w": torch.arange(3)}, {"epoch": 1})
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    del header["__metadata__"]["header_crc32"]
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    tensors, meta = load_tensors(path)
    assert (tensors["w"].tolist(), meta) == ([0, 1, 2], {"epoch": 1})


class _Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (pytest.fail, ("a pickle was run",))


def test_a_pickle_is_never_run(tmp_path: Path) -> None:
    path = tmp_path / "evil.safetensors"
    path.write_bytes(pickle.dumps(_Bomb()))
    with pytest.raises(UserError, match="not a complete discoseg checkpoint"):
        load_tensors(path)
    torch.save({"network.x": torch.zeros(1)}, path)
    with pytest.raises(UserError, match="not a complete discoseg checkpoint"):
        load_tensors(path)


def test_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.safetensors"
    save_tensors(path, {"w": torch.ones(2)}, {})

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UserError, match="No space left on device"):
        save_tensors(path, {"w": torch.zeros(2)}, {})
    assert torch.equal(load_tensors(path)[0]["w"], torch.ones(2))
    assert [file.name for file in tmp_path.iterdir()] == ["a.safetensors"]
