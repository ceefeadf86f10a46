"""Masks within size bounds and a boundary prior: against all masks there are, and in the files that users receive."""

import csv
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from discoseg.config import Config, CrfConfig
from discoseg.data.phantom import make_phantom
from discoseg.data.prepare import Grid
from discoseg.data.volume import Volume, read_volume
from discoseg.discrete import PottsGrid
from discoseg.enforce import Enforced, energy_of, enforce, restore_sizes
from discoseg.errors import UserError
from discoseg.postprocess import Postprocessing
from discoseg.predict import Model
from discoseg.weak.bounds import Bounds
from test_cli import run

SHAPE = (2, 2, 3)
MASKS = np.array(list(itertools.product([False, True], repeat=12))).reshape(-1, *SHAPE)
SIZES = MASKS.sum(axis=(1, 2, 3))


def tiny(seed: int) -> tuple[PottsGrid, NDArray[np.float64]]:
    """A grid and a probability (1, 2, 2, 3)."""
    rng = np.random.default_rng(seed)
    grid = PottsGrid(rng.random(SHAPE), spacing_mm=(2.0, 1.0, 1.5), sigma=0.4, neighbours=(6, 18, 26)[seed % 3])
    return grid, rng.random((1, *SHAPE))


def energies_of_all(grid: PottsGrid, probability: NDArray[np.float64], strength: float) -> NDArray[np.float64]:
    return np.array([grid.energy(mask, 0.5 - probability[0], strength=strength) for mask in MASKS])


def require_claims(found: Enforced, energies: NDArray[np.float64], bounds: Bounds) -> None:
    """Check what a certificate says against the energies of all masks."""
    size = int(np.count_nonzero(found.labels))
    inside = (bounds.low_vox <= SIZES) & (bounds.high_vox >= SIZES)
    best = energies[inside].min()
    assert bounds.low_vox <= size <= bounds.high_vox
    assert found.bound <= best + 1e-6
    assert found.energy <= best + found.gap + 1e-6
    if found.kind == "optimal":
        assert found.energy == pytest.approx(best, abs=1e-6)
    if found.kind == "lagrangian":
        assert found.energy == pytest.approx(energies[size == SIZES].min(), abs=1e-6)
    if found.kind in ("optimal", "lagrangian") and found.gap < 1e-6:
        assert found.energy == pytest.approx(best, abs=1e-5)


def test_certificates_hold_against_all_masks() -> None:
    kinds = []
    for seed, strength in itertools.product(range(3), (0.0, 0.1, 1.0)):
        grid, probability = tiny(seed)
        energies = energies_of_all(grid, probability, strength)
        for low, high in ((0, 12), (0, 2), (9, 12), (4, 5), (7, 7), (0, 0), (12, 12), (1, 1)):
            found = enforce(probability, [Bounds(low, high)], grid=grid, strength=strength)
            require_claims(found, energies, Bounds(low, high))
            assert found.energy == pytest.approx(energy_of(found.labels, probability, grid=grid, strength=strength))
            kinds.append(found.kind)
    assert {"optimal", "lagrangian", "completed"} <= set(kinds)


def test_a_jump_of_sizes_is_completed() -> None:
    image = np.zeros((1, 1, 8))
    grid = PottsGrid(image, spacing_mm=(1, 1, 1), sigma=1.0, neighbours=6)
    probability = np.full((1, *image.shape), 0.4)
    probability[..., 3] = 0.45
    found = enforce(probability, [Bounds(4, 4)], grid=grid, strength=1.0)
    assert found.kind == "completed"  # a uniform bar is cut whole or not at all
    assert np.count_nonzero(found.labels) == 4
    assert found.energy == pytest.approx(0.35 + 1.0)  # one end of it
    assert 0 < found.gap <= 1.0


FAR = np.array([[0, 1.5, 0.7], [1.5, 0, 0.9], [0.7, 0.9, 0]])  # a metric


@pytest.mark.parametrize(("strength", "pairs"), [(0.0, None), (0.1, None), (0.6, None), (0.1, FAR), (0.6, FAR)])
def test_several_structures_meet_their_bounds(strength: float, pairs: NDArray[np.float64] | None) -> None:
    shape = (1, 2, 3)
    every = np.array(list(itertools.product(range(3), repeat=6))).reshape(-1, *shape)
    counts = np.stack([(every == value).sum(axis=(1, 2, 3)) for value in (1, 2)], axis=1)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        grid = PottsGrid(rng.random(shape), spacing_mm=(2.0, 1.0, 1.0), sigma=0.4)
        s = rng.dirichlet(np.ones(3), shape).transpose(3, 0, 1, 2)[1:]
        energies = np.array([energy_of(labels, s, grid=grid, strength=strength, pairs=pairs) for labels in every])
        for low, high in (([3, 0], [4, 6]), ([1, 5], [1, 5]), ([0, 0], [6, 6]), ([0, 0], [0, 1])):
            bounds = [Bounds(*pair) for pair in zip(low, high, strict=True)]
            found = enforce(s, bounds, grid=grid, strength=strength, pairs=pairs)
            best = energies[((counts >= low) & (counts <= high)).all(axis=1)].min()
            for value, bound in enumerate(bounds, start=1):
                assert bound.low_vox <= np.count_nonzero(found.labels == value) <= bound.high_vox
            assert found.kind == ("optimal" if strength == 0 else "approximate")
            assert found.bound - 1e-6 <= best <= found.energy + 1e-6
            own = energy_of(found.labels, s, grid=grid, strength=strength, pairs=pairs)
            assert found.energy == pytest.approx(own)
            if strength == 0:
                assert found.energy == pytest.approx(best)


def test_sizes_are_restored_shell_by_shell() -> None:
    labels = np.zeros((1, 5, 9), np.uint8)
    labels[0, 2, 2:4] = 1
    probability = np.zeros((1, 1, 5, 9))
    probability[0, 0, 2] = [0.1, 0.3, 0.9, 0.8, 0.2, 0.1, 0.1, 0.9, 0.9]  # far away there is another one
    grown = restore_sizes(labels, probability, [Bounds(3, 9)])
    assert np.flatnonzero(grown).tolist() == [19, 20, 21]
    assert np.flatnonzero(restore_sizes(labels, probability, [Bounds(0, 1)])).tolist() == [20]
    assert np.array_equal(restore_sizes(labels, probability, [Bounds(1, 2)]), labels)
    nothing = np.zeros_like(labels)
    assert np.flatnonzero(restore_sizes(nothing, probability, [Bounds(2, 9)])).tolist() == [20, 25]


# Images


class Bright(torch.nn.Module):
    """A network that takes bright pixels for the structures, the brightest for the last."""

    def __init__(self, structures: int) -> None:
        super().__init__()
        self.structures = structures

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Map (B, C, H, W) to logits (B, 1 + K, H, W)."""
        return torch.cat([-((image - k / self.structures) ** 2) * 8 for k in range(1 + self.structures)], dim=1)


def model(*structures: str) -> Model:
    labels = {name: 2 * number for number, name in enumerate(structures, start=1)}
    config = Config(size_ml=",".join(f"{name}=20:200" for name in structures), crf=CrfConfig(strength=0.2, sigma=0.1))
    grid = Grid((24, 32), (1.0, 99.0), "LPS")
    return Model(Bright(len(structures)), grid, 1, labels, 1, torch.device("cpu"), config=config)


@pytest.fixture(scope="module")
def scan() -> Volume:
    return make_phantom(3, in_plane=(40, 36)).image.reoriented("SLA")


@pytest.mark.parametrize("crf_strength", [0.0, None])
@pytest.mark.parametrize("size_ml", [":30", "400:", "99.9:100.1", "0.001:0.002", "0:"])
def test_the_volume_of_the_mask_is_within_its_bounds(scan: Volume, size_ml: str, crf_strength: float | None) -> None:
    lv = model("LV")
    enforcement = lv.enforcement(size_ml=size_ml, crf_strength=crf_strength)
    found = lv.predict(scan, enforcement=enforcement, augmentations=1, postprocessing=Postprocessing(True, True))
    certificate = found.certificate
    assert certificate is not None
    sizes = certificate["structures"]["LV"]["image"]
    assert sizes["after_vox"] == found.sizes["LV"].voxels == np.count_nonzero(found.mask.array == 2)
    assert sizes["bounds_vox"][0] <= sizes["after_vox"] <= sizes["bounds_vox"][1]
    low, high = certificate["structures"]["LV"]["bounds_ml"]
    if size_ml != "0.001:0.002":  # less than a voxel: one it is
        assert low <= found.sizes["LV"].ml <= (high or np.inf)
    assert certificate["energy"]["lower_bound"] <= certificate["energy"]["after"] + 1e-6
    assert certificate["strength"] == (pytest.approx(0.02) if crf_strength is None else 0)
    assert certificate["solved_on"]["voxels"] == ("grid" if crf_strength is None else "image")
    assert json.loads(json.dumps(certificate, allow_nan=False)) == certificate
    again = lv.predict(scan, enforcement=enforcement, augmentations=1, postprocessing=Postprocessing(True, True))
    assert again.certificate == certificate
    assert np.array_equal(again.mask.array, found.mask.array)


@pytest.mark.parametrize("crf_strength", [0.0, None])
def test_masks_of_several_structures_are_within_their_bounds(scan: Volume, crf_strength: float | None) -> None:
    both = model("RV", "LV")
    found = both.predict(scan, enforcement=both.enforcement(size_ml="RV=80:150,LV=100:120", crf_strength=crf_strength))
    assert found.certificate is not None
    assert found.certificate["kind"] == ("approximate" if crf_strength is None else "optimal")
    assert 80 <= found.sizes["RV"].ml <= 150
    assert 100 <= found.sizes["LV"].ml <= 120
    assert set(np.unique(found.mask.array)) == {0, 2, 4}


def test_bounds_that_are_met_change_nothing_without_a_boundary_prior(scan: Volume) -> None:
    lv = model("LV")
    plain = lv.predict(scan)
    sure = lv.predict(scan, enforcement=lv.enforcement(size_ml="1:5000", crf_strength=0))
    assert np.array_equal(plain.mask.array, sure.mask.array)
    assert sure.certificate is not None
    assert sure.certificate["structures"]["LV"]["shift"] == 0
    energy = sure.certificate["energy"]
    assert energy["before"] == pytest.approx(energy["after"])


def test_the_boundary_prior_sees_bright_structures_as_wide_as_the_trainings_did(scan: Volume) -> None:
    plain = model("LV")
    wide = replace(plain, config=replace(plain.config, crf=replace(plain.config.crf, widen=1)))
    found = [lv.predict(scan, enforcement=lv.enforcement(crf_strength=0.5)).certificate for lv in (plain, wide)]
    assert [certificate and certificate["widen"] for certificate in found] == [0, 1]
    narrow, widened = (certificate["energy"]["before"] for certificate in found if certificate)
    assert narrow != widened  # the same mask's border


def test_what_is_not_given_is_the_trainings(scan: Volume, tmp_path: Path) -> None:
    lv = model("LV")
    enforcement = lv.enforcement()
    assert enforcement.sizes.of("any", "LV") == (20, 200)
    assert enforcement.crf.strength == pytest.approx(0.02)  # a tenth
    assert replace(enforcement.crf, strength=0.2) == lv.config.crf
    (tmp_path / "sizes.csv").write_text("case,low_ml,high_ml\na,10,20\n")
    with pytest.raises(UserError, match="no bounds for case b"):
        lv.predict(scan, enforcement=lv.enforcement(size_csv=tmp_path / "sizes.csv"), case="b")
    with pytest.raises(UserError, match="b: the lower size bound of LV wants 1e\\+06 ml, the whole image has"):
        lv.predict(scan, enforcement=lv.enforcement(size_ml="1e6:"), case="b")
    both = model("RV", "LV")
    with pytest.raises(UserError, match="bounds of all structures want"):
        both.predict(scan, enforcement=both.enforcement(size_ml="RV=1500:,LV=1500:"))


# The command


@pytest.fixture(scope="module")
def trained(phantoms: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one epoch with bounds of 40 to 60 ml; read only."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    small = ["--epochs", 1, "--grid.shape", 32, 32, "--network.width", 4, "--device", "cpu"]
    settings = ["--label", "LV", "--method", "full", "--size-ml", "40:60", "--crf.strength", 0.1]
    assert run("train", phantoms, *settings, "--out", folder, *small) == 0
    return folder


def certificates(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*_certificate.json"))]


def test_files_are_within_the_bounds(
    trained: Path, phantoms: Path, tmp_path: Path, complaint: Callable[..., str]
) -> None:
    table = tmp_path / "sizes.csv"
    table.write_text("case,low_ml,high_ml\nphantom_007_0000,10,20\nphantom_008_0000,,30\n")
    predict = ["predict", trained, phantoms / "imagesTs", "--device", "cpu", "--enforce"]
    wanted: dict[str, tuple[list[object], tuple[float, float]]] = {
        "own": ([], (40, 60)),
        "given": (["--size-ml", "90:95", "--largest-component", "--fill-holes", "--augmentations", 1], (90, 95)),
        "table": (["--size-csv", table, "--crf-strength", 0], (0, 30)),
    }
    for name, (options, (low, high)) in wanted.items():
        assert run(*predict, "--out", tmp_path / name, *options) == 0
        with (tmp_path / name / "volumes.csv").open() as file:
            rows = {row["case"]: row for row in csv.DictReader(file)}
        found = certificates(tmp_path / name)
        assert [certificate["case"] for certificate in found] == list(rows) == ["phantom_007_0000", "phantom_008_0000"]
        for case, row in rows.items():
            mask = read_volume(tmp_path / name / f"{case}.nii.gz")
            assert low <= np.count_nonzero(mask.array) * mask.voxel_ml <= high
            assert int(row["voxels"]) == np.count_nonzero(mask.array == 3)
    assert "phantom_007_0000.nii.gz: already exists" in complaint(*predict, "--out", tmp_path / "own")
    (tmp_path / "new").mkdir()
    (tmp_path / "new/phantom_008_0000_certificate.json").write_text("mine")
    assert "certificate.json: already exists" in complaint(*predict, "--out", tmp_path / "new")


@pytest.mark.parametrize(
    ("options", "culprit"),
    [
        (["--enforce", "--size-ml", "60:40"], "exceeds the upper one"),
        (["--enforce", "--size-ml", "RV=1:2"], "RV is not trained"),
        (["--enforce", "--size-ml", "LV@ED=1:2"], "without @"),
        (["--enforce", "--size-ml", "1:2", "--size-csv", "x.csv"], "not both"),
        (["--enforce", "--size-csv", "x.csv"], "x.csv"),
        (["--enforce", "--crf-strength", "-1"], "--crf-strength -1"),
        (["--enforce", "--size-ml", "99999:"], "the whole image has"),
        (["--size-ml", "1:2"], "add --enforce"),
        (["--crf-strength", "1"], "add --enforce"),
    ],
)
def test_a_mistake_is_one_line(
    trained: Path, phantoms: Path, tmp_path: Path, complaint: Callable[..., str], options: list[str], culprit: str
) -> None:
    predict = ["predict", trained, phantoms / "imagesTs/phantom_007_0000.nii.gz", "--device", "cpu"]
    assert culprit in complaint(*predict, "--out", tmp_path / "out", *options)
    assert not list(tmp_path.rglob("*.nii.gz"))


def test_there_must_be_something_to_enforce() -> None:
    with pytest.raises(UserError, match="nothing to enforce"):
        Model(Bright(1), Grid(), 1, {"LV": 1}, 1, torch.device("cpu")).enforcement(crf_strength=0)
