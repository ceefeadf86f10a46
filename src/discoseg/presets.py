"""Configurations by where they come from: presets by name, TOML files, and the records of runs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from discoseg.config import (
    AdmmConfig,
    AugmentConfig,
    Config,
    CrfConfig,
    GridConfig,
    NetworkConfig,
    OptimiserConfig,
    RoundsConfig,
)
from discoseg.errors import UserError
from discoseg.plain import from_dict
from discoseg.texts import read_toml

# The paper's networks, schedules and parameters, with σ in true units: the authors divided d² by their σ (see the
# method notes), so their 1e-4, 1e-5, 1e-6 are √(σ/2) here. μ = 10 is the best of the paper's second table.
_PAPER_ACDC = Config(
    network=NetworkConfig(name="enet"),
    optimiser=OptimiserConfig(batch=8, lr=5e-4, lr_factor=0.25, lr_every=50),
    admm=AdmmConfig(mu_crf=10.0, mu_size=10.0, rho=1.0),
)
_DEFAULT = Config(
    grid=GridConfig(clip_percent=(0.5, 99.5)),
    network=NetworkConfig(name="unet", width=32, depth=4, precision="bfloat16"),
    augment=AugmentConfig(rotate_deg=30.0, crop_min=0.7, crop_max=1.6, gamma=0.3, noise=0.05),
    optimiser=OptimiserConfig(lr=1e-3, lr_factor=0.3, lr_every=24),
    rounds=RoundsConfig(first=60),
    epochs=120,
)
PRESETS: dict[str, Config] = {
    "default": _DEFAULT,
    # From scribbles a second round gained nothing, and proposals without a warm-up harmed (docs/results.md).
    "scribbles": replace(
        _DEFAULT,
        optimiser=replace(_DEFAULT.optimiser, lr_every=40),
        admm=AdmmConfig(warm_up=10),
        rounds=RoundsConfig(),
        epochs=100,
    ),
    "paper-acdc-lv": replace(_PAPER_ACDC, label="LV", crf=CrfConfig(strength=100.0, sigma=0.0071)),
    "paper-acdc-rv": replace(_PAPER_ACDC, label="RV", crf=CrfConfig(strength=100.0, sigma=0.0022)),
    "paper-promise12": Config(
        label="prostate",
        network=NetworkConfig(name="unet", width=64, depth=3),
        optimiser=OptimiserConfig(batch=4, lr=1e-4, lr_factor=0.2, lr_every=50, weight_decay=1e-4),
        # "Random rotation, random crop, and random flip", but not how far: 45° and slices upside down did harm.
        augment=AugmentConfig(rotate_deg=15.0, crop_min=0.85, mirror=True),
        crf=CrfConfig(strength=1000.0, sigma=0.0007),
        admm=AdmmConfig(mu_crf=10.0, mu_size=10.0, rho=1.0),
    ),
}


def load_config(source: str) -> Config:
    """Return a preset by name, or a TOML file's settings over the preset that its key ``preset`` names.

    A file may hold any part of a configuration; what it leaves out comes from its preset, or from ``default``.
    """
    if source in PRESETS:
        return PRESETS[source]
    path = Path(source)
    if not path.is_file():
        raise UserError(f"--preset {source}: no such preset ({', '.join(PRESETS)}) nor file")
    values = read_toml(path)
    preset = values.pop("preset", "default")
    if preset not in PRESETS:
        raise UserError(f"{path}: preset {preset!r} is unknown; known are {', '.join(PRESETS)}")
    return from_dict(values, base=PRESETS[preset], where=str(path))


def load_run_config(path: Path) -> Config:
    """Return the settings that a run's config.toml holds."""
    return from_record(read_toml(path), where=str(path))


_GONE = {
    "optimiser.average": 0.0,
    "crf.decay": 1.0,
    "admm.limit": 0.0,
    "admm.average": 0.0,
}  # what each was without use


def from_record(values: dict[str, Any], *, where: str) -> Config:
    """Return the configuration that a run, a model or a result was made with, perhaps by an earlier version.

    Settings that came later are as they were before them; those that are gone must not have been in use.
    """
    kept = {part: dict(value) if isinstance(value, dict) else value for part, value in values.items()}
    for name, unused in _GONE.items():
        part, key = name.split(".")
        if isinstance(kept.get(part), dict) and kept[part].get(key) == unused:
            del kept[part][key]
    return from_dict(kept, base=Config(), where=where)
