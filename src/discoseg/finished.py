"""Whether a training has ended, asked of its run folder without torch."""

from pathlib import Path

from discoseg.checkpoint_header import load_meta
from discoseg.errors import UserError
from discoseg.presets import load_run_config

FINAL = Path("checkpoints") / "final.safetensors"
"""The model after the last epoch, in a run folder; it is written last of all."""


def is_finished(run: Path, epochs: int | None = None) -> bool:
    """Say whether a training of so many epochs, by default its own, has left all its files in the folder ``run``.

    One that goes on to more epochs has not yet, though what it ended with before is there.
    """
    try:
        last = load_run_config(run / "config.toml").epochs if epochs is None else epochs
        return bool(load_meta(run / FINAL)["epoch"] == last)
    except (UserError, OSError, KeyError):  # no run, none that has ended, or a damaged one
        return False
