"""Borders that cost more between some structures than between others: read, trained with, enforced."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from discoseg.config import CrfConfig
from discoseg.data.phantom import make_phantom
from discoseg.data.volume import write_volume
from discoseg.discrete import label_by_expansion
from discoseg.errors import UserError
from discoseg.labelling import LabelProposer, expansion
from discoseg.predict import load_model
from discoseg.presets import load_run_config
from discoseg.regions import open_regions
from discoseg.slices import stack_slices
from discoseg.train import train
from discoseg.weak.examples import Example
from discoseg.weak.pairs import read_pairs
from test_cli import run
from test_structures import CPU, MODEL, SMALL, STRUCTURES, _prior, _softmax

PAIRS = "RV-MYO 0.5, MYO-LV 1.5"


def test_pairs_are_named_in_any_order_and_case() -> None:
    expected = [[0, 1, 1, 1], [1, 0, 0.5, 1], [1, 0.5, 0, 1.5], [1, 1, 1.5, 0]]
    for text in (PAIRS, "myo-rv .5,LV - MYO 1.5", "RV-LV 1, MYO-LV 1.5, RV-MYO 5e-1, Background-RV 1"):
        found = read_pairs(text, STRUCTURES)
        assert found is not None
        assert found.tolist() == expected
    assert read_pairs(None, ["LV"]) is None
    odd = read_pairs("left-atrium-left ventricle 2, background-left-atrium 1.5", ["left-atrium", "left ventricle"])
    assert odd is not None
    assert (odd[1, 2], odd[0, 1], odd[0, 2]) == (2, 1.5, 1)


@pytest.mark.parametrize(
    ("text", "structures", "complaint"),
    [
        ("RV-LV 2", ["LV"], "it is for several structures, not for LV alone; leave it out"),
        ("RV-aorta 2", STRUCTURES, "RV-aorta is no pair of background, RV, MYO, LV, joined by '-'"),
        ("RV-RV 2", STRUCTURES, "RV-RV is no pair of"),
        ("RV-LV", STRUCTURES, "'RV-LV' must be two structures and a number, such as background-RV 0.5"),
        ("RV-LV much", STRUCTURES, "'RV-LV much' must be two structures and a number"),
        ("", STRUCTURES, "'' must be two structures and a number"),
        ("RV-LV 1, LV-RV 1.2", STRUCTURES, "LV-RV is there twice"),
        ("RV-LV -1", STRUCTURES, "negative, NaN or infinite (0 background, 1 RV, 2 MYO, 3 LV)"),
        (
            "RV-MYO 0.5, MYO-LV 2",
            STRUCTURES,
            "no metric: 2 between classes 2 and 3, but 1.5 by way of class 1 (0 background, 1 RV, 2 MYO, 3 LV)",
        ),
    ],
)
def test_pairs_that_cannot_be(text: str, structures: list[str], complaint: str) -> None:
    with pytest.raises(UserError) as caught:
        read_pairs(text, structures)
    assert str(caught.value).startswith(f"--crf.pairs {text}: ")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def _borders(labels: NDArray[np.int8]) -> int:
    """How many neighbours within a slice are MYO and LV."""
    steps = [(labels[:, 1:], labels[:, :-1]), (labels[..., 1:], labels[..., :-1])]
    return sum(int(((a != b) & (np.minimum(a, b) == 2)).sum()) for a, b in steps)


def test_proposals_shun_borders_that_cost_more(hearts: list[Example]) -> None:
    slices, crf = stack_slices(hearts, CPU), CrfConfig(strength=0.6, sigma=0.1)
    probability, prior = _softmax(len(slices)), _prior(len(slices))
    regions = open_regions(hearts, crf, honour_seeds=False)
    made = {}
    with ThreadPoolExecutor(2) as pool:
        for text in (None, "MYO-LV 1", "MYO-LV 2"):
            solve = expansion(crf.strength, read_pairs(text, STRUCTURES))
            proposal = LabelProposer(regions, 3, solve, pool, CPU).finish(probability, prior, None)
            made[text] = np.tensordot(np.arange(1, 4), proposal.numpy().astype(int), axes=1).astype(np.int8)
    assert np.array_equal(made[None], made["MYO-LV 1"])
    assert _borders(made["MYO-LV 2"]) < 0.8 * _borders(made[None])
    costs = torch.cat([torch.zeros_like(probability[:1]), (1 - (v := probability + prior.multiplier) - v.sum(0)) / 2])
    part, grid = slice(0, len(hearts[0].seeds)), regions[0].grid()
    best = label_by_expansion(
        grid, costs[:, part].numpy(), strength=0.6 / prior.mu, pairs=read_pairs("MYO-LV 2", STRUCTURES)
    )
    assert np.array_equal(made["MYO-LV 2"][part], best.labels)


def test_a_training_keeps_its_pairs(hearts: list[Example], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = replace(SMALL, method="crf", crf=replace(SMALL.crf, pairs=PAIRS))

    def interrupt(done: float, message: str) -> None:
        if done == 2:
            raise KeyboardInterrupt

    arguments = hearts[:3], hearts[3:]
    for name, settings in (("run", config), ("plain", replace(config, crf=SMALL.crf))):
        train(*arguments, settings, tmp_path / name, model=MODEL, device="cpu")
    with pytest.raises(KeyboardInterrupt):
        train(*arguments, config, tmp_path / "parts", model=MODEL, device="cpu", progress=interrupt)
    other = replace(config, crf=replace(config.crf, pairs="MYO-LV 2"))
    with pytest.raises(UserError, match=r"another setting: crf\.pairs = 'RV-MYO 0\.5, MYO-LV 1\.5', now 'MYO-LV 2'"):
        train(*arguments, other, tmp_path / "parts", model=MODEL, device="cpu", resume=True)
    assert load_run_config(tmp_path / "parts" / "config.toml") == config
    train(*arguments, config, tmp_path / "parts", model=MODEL, device="cpu", resume=True)
    final = [(tmp_path / name / "checkpoints/final.safetensors").read_bytes() for name in ("run", "parts", "plain")]
    assert final[0] == final[1]
    assert final[0] != final[2]
    assert load_model(tmp_path / "run", device="cpu").config.crf.pairs == PAIRS

    image = tmp_path / "heart.nii.gz"
    write_volume(image, make_phantom(7, in_plane=(48, 48)).image)
    certificates = {}
    for name in ("run", "plain"):
        bounds = ["--enforce", "--size-ml", "RV=20:250,LV=10:250", "--device", "cpu"]
        assert run("predict", tmp_path / name, image, "--out", tmp_path / f"{name}-masks", *bounds) == 0
        certificates[name] = json.loads((tmp_path / f"{name}-masks" / "heart_certificate.json").read_text())
    assert (certificates["run"]["pairs"], certificates["plain"]["pairs"]) == (PAIRS, None)
    energy = certificates["run"]["energy"]
    assert energy["lower_bound"] <= energy["after"]


def test_pairs_on_the_command_line(phantoms: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def complaint(*arguments: object) -> str:
        capsys.readouterr()
        assert run("train", phantoms, "--out", tmp_path / "run", *arguments) == 2
        return capsys.readouterr().err

    shape = ["--grid.shape", 32, 32]
    line = complaint("--label", "all", *shape, "--crf.pairs", "MYO-LV 3")
    assert line.startswith("discoseg: error: --crf.pairs MYO-LV 3: pairs is no metric: 3 between classes 2 and 3")
    assert "--crf.pairs MYO-LV 1.5: it is for several structures" in complaint(
        "--label", "LV", *shape, "--crf.pairs", "MYO-LV 1.5"
    )
    assert not (tmp_path / "run").exists()
