"""What a finished training came to, for summaries."""

import csv
from pathlib import Path
from typing import Any


def summarise_run(run: Path) -> dict[str, Any]:
    """Return the facts of a finished run by its files; the Dice is 3D, None without validation cases."""
    from discoseg.checkpoint_header import load_meta
    from discoseg.presets import load_run_config
    from discoseg.run import RunFolder
    from discoseg.texts import read_json

    folder = RunFolder(run)
    metrics, timing = _read_numbers(run / "metrics.csv"), _read_numbers(run / "timing.csv")
    cases, last = read_json(run / "run.json"), metrics[-1]
    best = max((row for row in metrics if "val_dice" in row), key=lambda row: row["val_dice"], default=None)
    mean = load_meta(folder.mean) if folder.mean.is_file() else {}
    return {
        "run": run,
        "model": folder.model("best"),
        "method": load_run_config(run / "config.toml").method,
        "epochs": len(metrics),
        "training_cases": len(cases["training"]),
        "validation_cases": len(cases["validation"]),
        "loss": last["loss"],
        "train_dice": last.get("train_dice"),
        "val_dice": last.get("val_dice"),
        "best_val_dice": None if best is None else best["val_dice"],
        "best_epoch": None if best is None else int(best["epoch"]),
        "mean_val_dice": mean.get("val_dice"),
        "mean_epochs": mean.get("averaged"),
        "epochs_seconds": round(sum(sum(row.values()) - row["epoch"] for row in timing), 2),
    }


def _read_numbers(path: Path) -> list[dict[str, float]]:
    """Read a table of numbers, without its empty cells."""
    with path.open(newline="", encoding="utf-8") as file:
        return [{key: float(text) for key, text in row.items() if text} for row in csv.DictReader(file)]


def say_scores(facts: dict[str, Any]) -> str:
    """Return the score that matters of a run's facts, in words."""
    if facts["best_val_dice"] is None:
        return f"loss {facts['loss']:.4f}, no validation cases"
    cases = "1 validation case" if facts["validation_cases"] == 1 else f"{facts['validation_cases']} validation cases"
    best = f"{facts['best_val_dice']:.3f} (epoch {facts['best_epoch']})"
    said = f"3D Dice on {cases}: best {best}, last epoch {facts['val_dice']:.3f}"
    if facts["mean_val_dice"] in (None, facts["val_dice"]):  # the last epoch's again
        return said
    count = "epoch's" if facts["mean_epochs"] == 1 else f"{facts['mean_epochs']} epochs'"
    return f"{said}, mean of the last {count} weights {facts['mean_val_dice']:.3f}"
