"""What commands show: live lines on a terminal, plain text in a pipe, nothing if quiet, one document with --json."""

import json
import math
import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.progress import Progress

from discoseg.cli import main, parse
from discoseg.evaluation import Evaluation, Score
from discoseg.experiments.plan import Cell
from discoseg.experiments.reproduce import Reproduction
from discoseg.experiments.results import Result
from discoseg.terminal import Terminal, display
from discoseg.terminal.pace import Pace

TINY = ["--label", "LV", "--grid.shape", "32", "32", "--network.width", "4", "--device", "cpu"]
SMALL = [*TINY, "--epochs", "2"]
ESCAPE = "\x1b"


def _run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


def _only_number(text: str) -> Any:
    raise AssertionError(f"{text} is no JSON")


@pytest.fixture
def document(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Run a command with --json and return what it writes: one document, and nothing on standard error."""

    def read(*arguments: object, status: int = 0) -> dict[str, Any]:
        capsys.readouterr()
        assert _run(*arguments, "--json") == status
        out, err = capsys.readouterr()
        assert err == ""
        found: dict[str, Any] = json.loads(out, parse_constant=_only_number)
        assert found["command"] == str(arguments[0])
        assert found["seconds"] >= 0
        assert isinstance(found["warnings"], list)
        return found

    return read


@pytest.fixture(scope="module")
def trained(phantoms: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two epochs; read only."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert _run("train", phantoms, "--method", "full", "--out", folder, *SMALL, "--quiet") == 0
    return folder


def _in_terminal(*arguments: object) -> tuple[int, str]:
    """Run the real command in a pseudo-terminal; return its status and everything it writes there."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    settings = {"TERM": "xterm-256color", "COLUMNS": "110", "LINES": "40", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "discoseg", *map(str, arguments)]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | settings) as process:
        os.close(theirs)
        written = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # Linux says so when the other end is closed
                break
            if not part:
                break
            written += part
    os.close(ours)
    return process.returncode, written.decode()


def test_a_terminal_shows_phase_epoch_and_a_summary(phantoms: Path, tmp_path: Path) -> None:
    """Of twenty epochs some last longer than the display takes to show the next moment."""
    options = ["--method", "full", "--epochs", 20, "--out", tmp_path / "run", *TINY]
    status, shown = _in_terminal("train", phantoms, *options)
    assert status == 0
    assert ESCAPE in shown
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    for words in ("preparing", "6 of 6 cases", r"epoch \d+ of 20, [a-z ]+ · val Dice", "left"):
        assert re.search(words, plain)
    *_, summary, score, after = plain.strip().splitlines()
    assert re.search(r"run: 20 epochs of full in .* s$", summary)
    assert re.search(r"3D Dice on 1 validation case: best 0\.\d{3} \(epoch \d+\)", score)
    assert f"next: discoseg predict {tmp_path / 'run'} IMAGE... --out FOLDER" in after


def test_a_pipe_gets_plain_text(phantoms: Path, tmp_path: Path) -> None:
    options = [str(phantoms), "--label", "LV", "--out", str(tmp_path / "seeds"), "--grid", "32", "32"]
    command = [sys.executable, "-m", "discoseg", "seeds", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", done.stdout)
    assert done.stdout.splitlines()[-1].startswith("next: discoseg train ")


def test_quiet_is_silent_in_a_terminal(tmp_path: Path) -> None:
    arguments = ["phantom", "--out", tmp_path / "phantoms", "--cases", 1, "--test-cases", 0, "--quiet"]
    assert _in_terminal(*arguments) == (0, "")
    status, shown = _in_terminal(*arguments)
    assert status == 2
    assert re.fullmatch(r"discoseg: error: .* already in use; .*\r\n", shown)


def test_a_mistyped_command_is_one_plain_line_in_a_terminal() -> None:
    status, shown = _in_terminal("phantom")
    assert status == 2
    assert re.fullmatch(r"discoseg: error: Missing from discoseg phantom: --out [ -~]+; see --help\r\n", shown)


def test_quiet_says_what_was_asked_for_and_what_is_wrong(
    phantoms: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    compare = ["evaluate", phantoms / "labelsTr", phantoms, "--label", "LV", "--quiet"]
    assert _run(*compare, "--out", tmp_path / "scores.csv") == 0
    assert _run("check", phantoms, "--label", "LV", "--quiet") == 0
    assert _run("report", trained, "--out", tmp_path / "page.html", "--quiet") == 0
    assert capsys.readouterr() == ("", "")
    assert _run(*compare) == 0
    assert "mean of 6" in capsys.readouterr().out
    assert _run("check", phantoms, "--label", "LV", "--size-ml", "9999:", "--quiet") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert {line.split(":")[0] for line in err.splitlines()} == {"problem"}


def test_data_as_json(phantoms: Path, tmp_path: Path, document: Callable[..., dict[str, Any]]) -> None:
    made = document("phantom", "--out", tmp_path / "made", "--cases", 1, "--test-cases", 0)
    assert (made["training_cases"], made["test_cases"]) == (1, 0)
    assert Path(made["clicks"]).is_file()

    checked = document("check", phantoms, "--label", "LV", "--size-ml", "1:")
    assert (checked["layout"], checked["labels"]["LV"], checked["problems"]) == ("nnunet", 3, [])
    first = checked["cases"][0]
    assert first["shape"][:2] == [48, 48]
    assert first["bounds_ml"] == {"LV": [1.0, None]}
    assert first["label_vox"]["LV"] > 0
    wrong = document("check", phantoms, "--label", "LV", "--size-ml", "9999:", status=2)
    assert "9999" in wrong["problems"][0]

    seeded = document("seeds", phantoms, "--label", "LV", "--out", tmp_path / "seeds", "--grid", 32, 32)
    assert Path(seeded["atlas"]).is_file()
    assert len(seeded["cases"]) == len(list((tmp_path / "seeds").glob("*.nii.gz"))) == 5
    assert seeded["cases"][0]["seeds"]["LV"]["background_vox"] > 0


def test_trainings_as_json(phantoms: Path, tmp_path: Path, document: Callable[..., dict[str, Any]]) -> None:
    run = tmp_path / "runs/a"
    trained = document("train", phantoms, "--method", "full", "--out", run, *SMALL)
    assert (trained["run"], trained["method"], trained["epochs"]) == (str(run), "full", 2)
    assert (trained["training_cases"], trained["validation_cases"]) == (5, 1)
    assert Path(trained["model"]).is_file()
    rows = (run / "metrics.csv").read_text().splitlines()
    columns = rows[0].split(",")
    dice = [float(row.split(",")[columns.index("val_dice")]) for row in rows[1:]]
    assert trained["best_val_dice"] == max(dice) == dice[trained["best_epoch"] - 1]
    (tmp_path / "a.toml").write_bytes((run / "config.toml").read_bytes())
    options = ["--configs", tmp_path / "a.toml", "--out", run.parent, "--resume", "--device", "cpu"]
    swept = document("sweep", phantoms, *options)  # it is finished already
    assert swept["runs"] == [{key: trained[key] for key in swept["runs"][0]}]


def test_results_as_json(
    phantoms: Path, trained: Path, tmp_path: Path, document: Callable[..., dict[str, Any]]
) -> None:
    image, out = phantoms / "imagesTs/phantom_007_0000.nii.gz", tmp_path / "out"
    predicted = document("predict", trained, image, "--out", out, "--device", "cpu")
    assert predicted["maps"] == [str(out / image.name)]
    assert [(row["case"], row["label"]) for row in predicted["sizes"]] == [("phantom_007_0000", "LV")]

    scored = document("evaluate", out, phantoms, "--label", "LV")
    assert [case["case"] for case in scored["cases"]] == ["phantom_007"]
    assert scored["summary"][0]["dice_mean"] == scored["cases"][0]["dice"]
    assert "phantom_008" in scored["missing_predictions"]
    assert scored["names"]["3"] == "LV"

    page = document("report", trained, "--out", tmp_path / "page.html")
    assert page["runs"] == [str(trained)]
    assert Path(page["out"]).is_file()
    exported = document("export", trained, "--monai-bundle", tmp_path / "bundle")
    assert exported["written"][0]["format"] == "monai-bundle"
    assert 0 <= exported["written"][0]["largest_difference"] < 1e-3
    assert document("next", trained)["cases"] == []


def test_experiments_as_json(
    tmp_path: Path, document: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take minutes to hours, so that only what the commands make of them is looked at."""
    scores = (Score("a", 3, 0.8, math.nan, math.nan, 0.0, 1.0),)
    monkeypatch.setattr("discoseg.experiments.demo.run_demo", lambda out, terminal: {"crf+size": Evaluation(scores)})
    shown = document("demo", "--out", tmp_path)
    assert shown["methods"]["crf+size"]["dice_mean"] == 0.8
    assert shown["methods"]["crf+size"]["hd95_mm_mean"] is None
    assert shown["report"] == str(tmp_path / "report.html")

    result = Result(Cell("lv", "full"), {}, {"val_dice": [0.5, 0.7, 0.6]}, 12.0, {}, {})
    made = Reproduction([tmp_path / "table1.md"], ["one is left out"], [result])

    def reproduce(*arguments: object, finished: Callable[[Result], None], **options: object) -> Reproduction:
        finished(result)
        return made

    monkeypatch.setattr("discoseg.experiments.reproduce.reproduce", reproduce)
    told = document("reproduce", "table1", "--data", tmp_path, "--out", tmp_path)
    assert told["files"] == [str(tmp_path / "table1.md")]
    assert told["warnings"] == ["one is left out"]
    (training,) = told["trainings"]
    assert (training["name"], training["best_val_dice"], training["best_epoch"]) == ("lv-full-seed0", 0.7, 2)


def test_errors_and_interruptions_as_json(
    phantoms: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(status: int, *arguments: object) -> str:
        assert _run(*arguments) == status
        out, err = capsys.readouterr()
        said = json.loads(out)
        assert said.keys() == {"error"}
        assert err.count("\n") == 1
        assert err.removeprefix("discoseg: ").removeprefix("error: ") == f"{said['error']}\n"
        return str(said["error"])

    def interrupt(*arguments: object, **keywords: object) -> None:
        raise KeyboardInterrupt

    assert "nowhere" in fails(2, "--json", "check", "nowhere")
    assert "--magic" in fails(2, "train", phantoms, "--json", "--magic")
    monkeypatch.setattr("discoseg.workflow.fit", interrupt)
    assert "go on with: discoseg train" in fails(
        130, "train", phantoms, "--label", "LV", "--out", tmp_path / "run", "--json"
    )


def test_the_options_may_stand_before_the_command() -> None:
    for arguments in (["--json", "--quiet", "next", "run"], ["next", "run", "--quiet", "--json"]):
        command = parse(arguments)
        assert (command.json, command.quiet) == (True, True)


def test_a_log_has_few_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A line when an epoch has ended and the last one is long enough ago."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with Terminal().progress() as progress:
        for step in range(1, 41):  # ten epochs of twenty seconds, with four reports each
            now = 5.0 * step
            progress.epoch("run", step / 4, 10, "loss 0.1")
    with Terminal(json=True).progress() as progress:
        progress.epoch("run", 1, 1, "")
        now += 1000
        progress.epoch("run", 2, 2, "")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "run: epoch 2 of 10, loss 0.1, about 2 min 40 s left",
        "run: epoch 4 of 10, loss 0.1, about 2 min 0 s left",
        "run: epoch 6 of 10, loss 0.1, about 1 min 20 s left",
        "run: epoch 8 of 10, loss 0.1, about 40 s left",
        "run: epoch 10 of 10, loss 0.1",
    ]


def test_a_log_is_not_silent_through_long_epochs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with Terminal().progress() as progress:
        for step in range(1, 17):  # two epochs of four minutes
            now = 30.0 * step
            progress.epoch("run", step / 8, 2, "training")
    assert capsys.readouterr().err.splitlines() == [
        "run: epoch 1 of 2, training, 50 % of this epoch",
        "run: epoch 1 of 2, training",
        "run: epoch 2 of 2, training, 50 % of this epoch",
        "run: epoch 2 of 2, training",
    ]


def test_the_time_left_is_that_of_the_last_epochs() -> None:
    now = 0.0
    pace = Pace(clock=lambda: now)
    for done in range(1, 31):  # ten slow epochs, then twenty quick ones
        now += 60 if done <= 10 else 2
        pace.note(done)
    assert pace.left_s(40) == pytest.approx(20)
    now += 1
    assert pace.left_s(40) == pytest.approx(19)
    now += 1000  # an epoch that takes longer than expected is expected to end at any time
    assert pace.left_s(40) == pytest.approx(18)
    pace.note(1)
    assert pace.left_s(40) is None


def test_finished_lines_make_room() -> None:
    progress = Progress(disable=True)
    lines, pace = display._Lines(progress), Pace()
    for number in range(30):
        lines(f"run{number}", 5, 5, "", pace)
    lines("running", 1, 5, "", pace)
    shown = [task.description for task in progress.tasks if task.visible]
    assert len(shown) <= display._LINES
    assert shown[-1] == "running"


def test_warnings_are_lines_and_part_of_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    for options in ({}, {"quiet": True}, {"json": True}):
        terminal = Terminal("train", **options)
        with terminal.listening():
            warnings.warn("no C\n  compiler", stacklevel=1)
            print("a library says something")
            terminal.finish({"run": "x"}, notes=["a note"])
        out, err = capsys.readouterr()
        assert err.startswith("discoseg: warning: no C compiler\n") is ("quiet" not in options)
        if "json" in options:
            assert json.loads(out)["warnings"] == ["a note", "no C compiler"]
        else:
            assert ("note: a note" in out) is not bool(options)
