"""Settings that ablations and searches try, by name."""

from dataclasses import replace
from typing import Any

from discoseg.config import Config
from discoseg.errors import UserError
from discoseg.plain import flatten, from_dict

VARIANTS: dict[str, dict[str, Any]] = {
    "lambda0.1": {"crf": {"strength": 0.1}},
    "lambda0.3": {"crf": {"strength": 0.3}},
    "lambda1": {"crf": {"strength": 1.0}},
    "lambda3": {"crf": {"strength": 3.0}},
    "lambda10": {"crf": {"strength": 10.0}},
    "lambda100": {"crf": {"strength": 100.0}},
    "lambda1000": {"crf": {"strength": 1000.0}},
    "sigma0.0007": {"crf": {"sigma": 0.0007}},
    "sigma0.0022": {"crf": {"sigma": 0.0022}},
    "sigma0.0071": {"crf": {"sigma": 0.0071}},
    "sigma0.02": {"crf": {"sigma": 0.02}},
    "sigma0.05": {"crf": {"sigma": 0.05}},
    "sigma0.1": {"crf": {"sigma": 0.1}},
    "widen0": {"crf": {"widen": 0}},
    "widen1": {"crf": {"widen": 1}},
    "neighbours6": {"crf": {"neighbours": 6}},
    "neighbours8": {"crf": {"neighbours": 8}},
    "mu0.1": {"admm": {"mu_crf": 0.1, "mu_size": 0.1}},
    "mu1": {"admm": {"mu_crf": 1.0, "mu_size": 1.0}},
    "mu10": {"admm": {"mu_crf": 10.0, "mu_size": 10.0}},
    "rho0": {"admm": {"rho": 0.0}},
    "rho0.1": {"admm": {"rho": 0.1}},
    "rho0.3": {"admm": {"rho": 0.3}},
    "whole-range": {"grid": {"clip_percent": (0.0, 100.0)}},
    "calibrate": {"crf": {"calibrate": True}},
    "entropy": {"admm": {"coupling": "entropy"}},
    "margin0.05": {"admm": {"margin": 0.05}},
    "lr0.0003": {"optimiser": {"lr": 3e-4}},
    "steady": {"optimiser": {"lr_factor": 1.0}},
    "once": {"optimiser": {"lr_every": 50}},
    "weight20": {"foreground_weight": 20.0},
    "one-round": {"rounds": {"first": 0}},
    "slices": {"rounds": {"slices": True}},
    "sharp-masks": {"rounds": {"strength": 1.0, "sigma": 0.03}},
    "slice-masks": {"rounds": {"strength": 8.0, "sigma": 0.02, "neighbours": 8}},
    "fine-slice-masks": {"rounds": {"strength": 8.0, "sigma": 0.01, "neighbours": 8}},
    "width32": {"network": {"width": 32}},
    "width64": {"network": {"width": 64}},
    "deep5": {"network": {"depth": 5}},
    "shallow": {"network": {"depth": 3}},
    "mild": {"augment": {"rotate_deg": 15.0, "crop_min": 0.85, "crop_max": 1.0}},
    "zoom": {"augment": {"rotate_deg": 30.0, "crop_min": 0.7, "crop_max": 1.6}},
    "turn": {"augment": {"rotate_deg": 180.0, "flip": True, "mirror": False}},
    "swing": {"augment": {"rotate_deg": 45.0, "crop_min": 0.8}},
    "flip": {"augment": {"flip": True, "mirror": False}},
    "mirror": {"augment": {"flip": False, "mirror": True}},
    "unflipped": {"augment": {"flip": False, "mirror": False}},
    "free-seeds": {"admm": {"honour_seeds": False}},
    "constant": {"admm": {"schedule": "constant"}},
    "ramp": {"admm": {"schedule": "ramp"}},
    "warm0": {"admm": {"warm_up": 0}},
    "warm1": {"admm": {"warm_up": 1}},
    "warm10": {"admm": {"warm_up": 10}},
    "balance": {"admm": {"schedule": "balance"}},
}
"""Settings that differ from a task's own in one point, by name; ``a+b`` stands for both."""

OF_A_CLICK = tuple(name for name in VARIANTS if name != "slices")
"""Those that need no more annotation than the others: they are compared where none is named."""


def is_variant(name: str) -> bool:
    """Say whether settings have this name: one of :data:`VARIANTS`, or several joined by ``+``."""
    return all(part in VARIANTS for part in name.split("+"))


def canonical(variant: str) -> str:
    """Return the one name of a variant, whatever the order of its parts; refuse what has none."""
    parts = variant.split("+")
    if not is_variant(variant):
        raise UserError(f"--variants {variant}: known are {', '.join(VARIANTS)}, and several joined by +")
    keys = [key for part in parts for key in flatten(VARIANTS[part])]
    if len(keys) != len(set(keys)):
        raise UserError(f"--variants {variant}: two of its parts set the same")
    return "+".join(part for part in VARIANTS if part in parts)


def vary(config: Config, variant: str) -> Config:
    """Return a configuration with the settings of a variant, or of several joined by ``+``."""
    for name in canonical(variant).split("+") if variant else ():
        config = from_dict(VARIANTS[name], base=config, where=name)
    if config.network.name == "enet":  # whose depth is fixed
        config = replace(config, network=replace(config.network, depth=0))
    return config
