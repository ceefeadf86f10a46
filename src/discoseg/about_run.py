"""What a run folder says of itself: where it stands, and all that is needed to make it again (`discoseg info`)."""

import csv
import io
import math
import shlex
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from discoseg.config import Config
from discoseg.errors import UserError
from discoseg.finished import is_finished
from discoseg.plain import flatten, to_dict
from discoseg.presets import PRESETS, load_run_config
from discoseg.texts import read_bytes, read_json

_LATEST = Path("checkpoints") / "latest.safetensors"
_FACTS = {"training": list, "validation": list, "threads": int} | dict.fromkeys(
    ("sources", "checksums", "hardware", "versions"), dict
)  # what run.json holds that is not text, if it is there


def describe_run(run: Path) -> dict[str, Any]:
    """Return the facts of a run that is finished, under way, interrupted or of an earlier version.

    What run.json does not hold is None or empty. ``state`` is finished, begun, or waiting for its first epoch;
    ``resume`` the command to go on with, where that is known and needed; ``settings`` those that differ from
    ``preset``, their values by dotted names; Dice is 3D.
    """
    if not (run / "config.toml").is_file():
        missing = "does not exist" if not run.exists() else "is not a run folder: it has no config.toml"
        raise UserError(f"{run}: {missing}; give the --out of a training")
    config, facts = load_run_config(run / "config.toml"), _read_facts(run / "run.json")
    metrics = _read_rows(run / "metrics.csv")
    scores = [(row["val_dice"], int(row["epoch"])) for row in metrics if "val_dice" in row]
    best = max(scores, default=None, key=lambda score: score[0])
    finished = is_finished(run, config.epochs) and len(metrics) >= config.epochs
    command = facts.get("command")
    preset = _preset(command)
    return {
        "run": run,
        "state": "finished" if finished else "begun" if metrics else "waiting",
        "epochs_done": len(metrics),
        "epochs": config.epochs,
        "seconds_since_last_write": _age_s(run),
        "resume": None if finished or not command else _to_resume(command),
        "resumes": _count_resumes(run),
        "best_val_dice": None if best is None else best[0],
        "best_epoch": None if best is None else best[1],
        "val_dice": scores[-1][0] if scores else None,
        "made_by": command,
        "seed": config.seed,
        "deterministic": config.deterministic,
        "method": config.method,
        "preset": preset,
        "settings": _differences(config, PRESETS[preset]),
        "sources": facts.get("sources", {}),
        "training_cases": len(facts.get("training", [])),
        "validation_cases": len(facts.get("validation", [])),
        "checksums": facts.get("checksums", {}),
        "device": facts.get("device"),
        "threads": facts.get("threads"),
        "hardware": facts.get("hardware", {}),
        "platform": facts.get("platform"),
        "versions": facts.get("versions", {}),
        "commit": facts.get("commit"),
    }


def say_run(facts: dict[str, Any]) -> list[str]:
    """Return the facts as lines for people, those that are known."""
    done, all_of_them = facts["epochs_done"], facts["epochs"]
    lines = [f"{facts['run']}: {facts['method']}, {facts['state']}, {done} of {all_of_them} epochs"]
    if facts["state"] != "finished" and facts["seconds_since_last_write"] is not None:
        from discoseg.terminal.words import say_seconds

        lines[0] += f"; last written {say_seconds(facts['seconds_since_last_write'])} ago"
    if facts["best_val_dice"] is not None:
        best = f"{facts['best_val_dice']:.4f} (epoch {facts['best_epoch']})"
        lines.append(f"val Dice    best {best}, last {facts['val_dice']:.4f}")
    if facts["resume"]:
        lines.append(f"resume      {facts['resume']}")
    hardware = {name.replace("_", " "): value for name, value in facts["hardware"].items() if value is not None}
    parts = {
        "command": facts["made_by"],
        "seed": f"{facts['seed']}{', deterministic' if facts['deterministic'] else ''}",
        "settings": f"{_join(facts['settings'], ' = ')}; the others are those of the preset {facts['preset']}",
        "data": _join(facts["sources"]),
        "cases": f"{facts['training_cases']} training, {facts['validation_cases']} validation",
        "checksums": _join(facts["checksums"]),
        "device": _join({"": facts["device"], "threads": facts["threads"]}),
        "hardware": _join(hardware),
        "platform": facts["platform"],
        "versions": _join(facts["versions"]),
        "commit": facts["commit"],
    }
    for name, value in parts.items():
        if value:
            lines.append(f"{name:<11} {value}")
    return lines


def _join(values: dict[str, Any], sign: str = " ") -> str:
    return ", ".join(f"{name}{sign if name else ''}{value}" for name, value in values.items() if value is not None)


def _read_facts(path: Path) -> dict[str, Any]:
    try:
        facts = read_json(path)
        if not isinstance(facts, dict):
            raise ValueError
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is missing or broken, so little is known of this run") from error
    known = {name: value for name, value in facts.items() if value is not None}
    for name in ("command", "device", "platform", "commit", *_FACTS):
        if name in known and not isinstance(known[name], _FACTS.get(name, str)):
            raise UserError(f"{path}: broken, {name} is not what a training writes")
    return known


def _read_rows(path: Path) -> list[dict[str, float]]:
    """Return the epoch and the validation Dice, where there is one, of each row."""
    if not path.is_file():
        return []
    try:
        text = io.StringIO(read_bytes(path).decode("utf-8"), newline="")
        rows = [{key: float(row[key]) for key in ("epoch", "val_dice") if row.get(key)} for row in csv.DictReader(text)]
        if not all(math.isfinite(row["epoch"]) for row in rows):
            raise ValueError("an epoch that is no number")
    except (OSError, ValueError, KeyError, csv.Error) as error:
        raise UserError(f"{path}: broken, not a table of epochs") from error
    return rows


def _age_s(run: Path) -> float | None:
    """Return how long ago the training last wrote, in seconds."""
    written = [path.stat().st_mtime for path in (run / "log.txt", run / "metrics.csv", run / _LATEST) if path.is_file()]
    return round(max(0.0, time.time() - max(written)), 1) if written else None


def _count_resumes(run: Path) -> int:
    log = run / "log.txt"
    if not log.is_file():
        return 0
    with log.open(encoding="utf-8", errors="replace") as lines:
        return sum("  resumed after epoch " in line for line in lines)


def _preset(command: str | None) -> str:
    """Return the preset that the command names, as far as it is one of ours; a file's settings all count as its own."""
    for word, following in pairwise([*_words(command), ""]):
        name = following if word == "--preset" else word.removeprefix("--preset=") if "--preset=" in word else ""
        if name in PRESETS:
            return name
    return "default"


def _words(command: str | None) -> list[str]:
    try:
        return shlex.split(command or "")
    except ValueError:  # an edited run.json
        return []


def _to_resume(command: str) -> str:
    """Return the command that goes on: reproduce and demo do so by themselves."""
    words = _words(command)
    goes_on = "--resume" in words or not {"train", "sweep"} & set(words[:3])
    return command if goes_on else f"{command} --resume"


def _differences(config: Config, preset: Config) -> dict[str, Any]:
    ours, theirs = flatten(to_dict(config)), flatten(to_dict(preset))
    names = [*ours, *(name for name in theirs if name not in ours)]
    return {name: ours.get(name) for name in names if ours.get(name) != theirs.get(name)}
