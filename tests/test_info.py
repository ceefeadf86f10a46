"""`discoseg info`: a run that is finished, interrupted, hardly begun or old says of itself what it knows."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from discoseg.cli import main
from discoseg.plain import to_toml
from discoseg.train import train
from discoseg.weak.examples import Example
from test_train import MODEL, SMALL


def _info(run: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["info", str(run), *options])
    assert stop.value.code == 0
    return capsys.readouterr().out


def _facts(run: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(_info(run, capsys, "--json"))
    return facts


def test_finished_and_interrupted_runs(
    examples: list[Example], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["discoseg", "train", "DATA", "--preset", "paper-acdc-lv", "--out", "runs/my lv"])
    run, config = tmp_path / "run", replace(SMALL, epochs=2, seed=7)

    def interrupt(done: float, message: str) -> None:
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(examples[:3], examples[3:], config, run, model=MODEL, device="cpu", progress=interrupt)
    facts = _facts(run, capsys)
    assert (facts["command"], facts["state"], facts["epochs_done"], facts["epochs"]) == ("info", "begun", 1, 2)
    assert facts["resume"] == "discoseg train DATA --preset paper-acdc-lv --out 'runs/my lv' --resume"
    assert facts["seconds_since_last_write"] >= 0

    train(examples[:3], examples[3:], config, run, model=MODEL, device="cpu", resume=True)
    facts = _facts(run, capsys)
    assert (facts["state"], facts["epochs_done"], facts["resume"], facts["resumes"]) == ("finished", 2, None, 1)
    assert (facts["seed"], facts["deterministic"], facts["preset"]) == (7, False, "paper-acdc-lv")
    assert facts["settings"]["seed"] == 7
    assert "label" in facts["settings"]  # which the preset has, and this run has not
    assert "optimiser.lr_every" not in facts["settings"]
    assert {"torch", "numpy", "numba", "scipy", "python", "discoseg"} <= facts["versions"].keys()
    assert {"cpu", "cores", "memory_gib"} == facts["hardware"].keys()
    assert facts["checksums"].keys() == {"training", "validation"}
    dice = [float(line.split(",")[_column(run, "val_dice")]) for line in _rows(run)]
    assert (facts["best_val_dice"], facts["val_dice"]) == (max(dice), dice[-1])
    said = _info(run, capsys)
    assert said.startswith(f"{run}: crf+size, finished, 2 of 2 epochs\n")
    assert f"last {dice[-1]:.4f}" in said
    assert facts["checksums"]["training"] in said


def _rows(run: Path) -> list[str]:
    return (run / "metrics.csv").read_text().splitlines()[1:]


def _column(run: Path, name: str) -> int:
    return (run / "metrics.csv").read_text().splitlines()[0].split(",").index(name)


def test_a_run_that_knows_little_of_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.toml").write_text(to_toml(SMALL))
    (tmp_path / "run.json").write_text('{"versions": {"torch": "2.6"}}')
    facts = _facts(tmp_path, capsys)
    assert (facts["state"], facts["resume"], facts["made_by"], facts["hardware"]) == ("waiting", None, None, {})
    assert "torch 2.6" in _info(tmp_path, capsys)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "it has no config.toml"),
        ({"config.toml": "epochs = 1"}, "run.json is missing or broken"),
        ({"config.toml": "epochs = 1", "run.json": "[]"}, "run.json is missing or broken"),
        ({"config.toml": "epochs =", "run.json": "{}"}, "not valid TOML"),
        *(
            ({"config.toml": "epochs = 1", "run.json": facts}, "run.json: broken")
            for facts in ('{"sources": [1]}', '{"training": 5}', '{"command": 5}', '{"hardware": "x"}')
        ),
        ({"config.toml": "epochs = 1", "run.json": "[" * 200_000}, "run.json is missing or broken"),
        *(
            ({"config.toml": "epochs = 1", "run.json": "{}", "metrics.csv": table}, "metrics.csv: broken")
            for table in ("epoch,val_dice\n1,abc\n", "epoch\nx\n", "epoch\nnan\n", "a,b\n1,2\n")
        ),
    ],
)
def test_what_is_no_run_is_one_line(
    files: dict[str, str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(SystemExit) as stop:
        main(["info", str(tmp_path)])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("discoseg: error: ")
    assert error.count("\n") == 1
    assert said in error
