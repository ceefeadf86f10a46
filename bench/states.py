"""States of real trainings as cut instances: what `discoseg.proposals` cut after 2, 10 and 25 epochs.

    DISCOSEG_DATA=DIR python bench/states.py     train (minutes), unless that was done before

A small U-Net is trained by the public API on a few volumes of 256×256 slices, once with proposals that honour the
seeds and once without: phantoms always, ACDC where DISCOSEG_DATA holds it. The unaries ½ − s − û of each volume are
kept in the package's cache folder, so that a second start is immediate.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from discoseg.config import AdmmConfig, AugmentConfig, Config, CrfConfig, NetworkConfig, OptimiserConfig
from discoseg.data.layouts import find_dataset
from discoseg.data.phantom import write_phantom_dataset
from discoseg.data.prepare import Grid, common_orientation, default_cache, prepare_cases
from discoseg.data.splits import split_cases
from discoseg.prediction_pass import predict_slices
from discoseg.presets import PRESETS
from discoseg.state import State
from discoseg.train import train
from discoseg.weak.examples import Example, chosen_labels, training_examples
from discoseg.weak.seeds import make_seeds

STAGES = {"early": 2, "middle": 10, "late": 25}  # finished epochs
ACDC_PATIENTS = ("patient001", "patient050")  # both frames of each
CONFIG = replace(
    PRESETS["default"],
    label="LV",
    size_eps=0.1,
    network=NetworkConfig(name="unet", width=6),
    augment=AugmentConfig(rotate_deg=15.0, crop_min=0.85, gamma=0.3, noise=0.05),
    optimiser=OptimiserConfig(batch=4, lr=2e-3),
    crf=CrfConfig(strength=1.0, sigma=0.05, neighbours=26),
    admm=AdmmConfig(mu_crf=1.0, mu_size=1.0, rho=0.3),
)


class Volume(NamedTuple):
    """A volume and the unary costs that a training gave it; arrays are (z, y, x)."""

    name: str
    image: NDArray[np.float32]
    spacing_mm: tuple[float, float, float]
    seeds: NDArray[np.int8] | None  # None: the proposals of that training did not honour them
    unaries: dict[str, NDArray[np.float32]]  # by stage


def trained_volumes(
    data: Path | None, *, cache: Path | None = None, config: Config = CONFIG, stages: dict[str, int] = STAGES
) -> Iterator[Volume]:
    """Yield the volumes of all trainings; `data` is the folder that holds ACDC, if any."""
    cache = default_cache() / "bench" if cache is None else cache
    phantoms = cache / "phantoms"
    if not phantoms.is_dir():
        write_phantom_dataset(phantoms, cases=5, test_cases=0, seed=11, in_plane=config.grid.shape)
    roots = {"phantom": phantoms} | ({} if data is None else {"acdc": data / "acdc"})
    for source, root in roots.items():
        for honour_seeds in (True, False):
            folder = cache / f"{source}-{'seeds' if honour_seeds else 'free'}"
            if not folder.is_dir():
                admm = replace(config.admm, honour_seeds=honour_seeds)
                _train(folder, root, replace(config, admm=admm), stages)
            for file in sorted(folder.glob("*.npz")):
                yield _read(file, honour_seeds=honour_seeds)


def _train(out: Path, root: Path, config: Config, stages: dict[str, int]) -> None:
    """Train on a few cases of a dataset, and write one file for each volume into the folder `out`."""
    examples = choose_examples(root, out.parent, config)
    run = out.with_name(f"{out.name}-run")
    shutil.rmtree(run, ignore_errors=True)
    unaries: dict[str, NDArray[np.float32]] = {}
    for stage, epochs in stages.items():
        print(f"training {out.name} to epoch {epochs}", flush=True)
        state = train(examples, [], replace(config, epochs=epochs), run, model={}, device="cpu", resume=bool(unaries))
        unaries[stage] = _last_unaries(state, examples, config)
    partial = out.with_name(f"{out.name}-unfinished")
    partial.mkdir(parents=True, exist_ok=True)
    start = 0
    for example in examples:
        here = slice(start, start + len(example.seeds))
        start = here.stop
        np.savez(
            partial / example.name,
            image=example.image[:, 0],
            spacing_mm=example.spacing_mm,
            seeds=example.seeds,
            unaries=np.stack([unary[here] for unary in unaries.values()]),
            stages=list(unaries),
        )
    partial.rename(out)
    shutil.rmtree(run)


def choose_root(folder: Path) -> Path:
    """Return the folder of ACDC, or that of phantoms that are made in ``folder`` where DISCOSEG_DATA names no data."""
    if data := os.environ.get("DISCOSEG_DATA"):
        return Path(data) / "acdc"
    write_phantom_dataset(folder / "phantoms", cases=5, test_cases=0, seed=11, in_plane=CONFIG.grid.shape)
    return folder / "phantoms"


def choose_examples(root: Path, cache: Path, config: Config) -> list[Example]:
    """The cases to train on, with seeds from an atlas of all masks outside the validation split."""
    found = find_dataset(root)
    structures = chosen_labels(found, config.label)
    known, _ = split_cases(found)
    seeds = cache / f"{root.name}-atlas"
    if not seeds.is_dir():
        make_seeds(found, known, seeds, label=structures["LV"], grid=config.grid)
    cases = [case for case in known if case.patient in ACDC_PATIENTS] or known
    grid = Grid(config.grid.shape, config.grid.clip_percent, common_orientation(known))
    return training_examples(prepare_cases(cases, grid), found, config, structures=structures, grid=grid, weak=seeds)


def _last_unaries(state: State, examples: Sequence[Example], config: Config) -> NDArray[np.float32]:
    """The costs ½ − s − û of the last epoch's cuts, all slices behind each other."""
    images = torch.from_numpy(np.concatenate([example.image for example in examples]))
    probability = predict_slices(state.network, images)[0]
    (crf,) = (prior for prior in state.priors if prior.name == "crf")
    # The multipliers have moved since that cut: take the step û += ρ(s − ŷ) back.
    before = crf.multiplier[0] - config.admm.rho * (probability - crf.proposal[0].float())
    return np.asarray((0.5 - probability - before).numpy())


def _read(file: Path, *, honour_seeds: bool) -> Volume:
    with np.load(file) as stored:
        z, y, x = stored["spacing_mm"].tolist()
        return Volume(
            name=f"{file.stem} seeds" if honour_seeds else file.stem,
            image=stored["image"],
            spacing_mm=(z, y, x),
            seeds=stored["seeds"] if honour_seeds else None,
            unaries=dict(zip(stored["stages"].tolist(), stored["unaries"], strict=True)),
        )


if __name__ == "__main__":
    folder = os.environ.get("DISCOSEG_DATA")
    for volume in trained_volumes(Path(folder) if folder else None):
        unknown = 1.0 if volume.seeds is None else float((volume.seeds < 0).mean())
        print(f"{volume.name:32} {volume.image.shape}, unknown {unknown:.3f}")
