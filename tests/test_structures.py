"""Several structures at once: one is the binary method to the bit, more share a softmax, proposals and bounds."""

import csv
import typing
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from discoseg import losses
from discoseg.admm import Prior, stack_targets
from discoseg.config import AdmmConfig, Config, Coupling, CrfConfig, GridConfig, Method, NetworkConfig, OptimiserConfig
from discoseg.data.layouts import Dataset
from discoseg.data.phantom import LABELS, write_phantom_dataset
from discoseg.data.volume import read_volume, write_volume
from discoseg.discrete import PottsGrid, assign_by_size, label_by_expansion
from discoseg.errors import UserError
from discoseg.labelling import LabelProposer, assignment, expansion, open_limits
from discoseg.predict import load_model, predict_files
from discoseg.proposals import CrfProposer, SizeProposer
from discoseg.regions import open_regions
from discoseg.scores import label_map, score_cases, score_epoch, score_proposals
from discoseg.slices import stack_slices
from discoseg.train import train
from discoseg.weak.bounds import Bounds, check_feasible_together
from discoseg.weak.examples import Example, chosen_label, chosen_labels
from discoseg.workflow import fit, gather_inputs

CPU = torch.device("cpu")
STRUCTURES = ("RV", "MYO", "LV")
SMALL = Config(
    epochs=3,
    grid=GridConfig(shape=(32, 32)),
    network=NetworkConfig(name="unet", width=4),
    optimiser=OptimiserConfig(batch=8, lr=5e-3),
    crf=CrfConfig(strength=0.3, sigma=0.1),
)
MODEL = {"labels": dict(zip(STRUCTURES, (1, 2, 3), strict=True)), "orientation": "LPS", "channels": 1}


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def _softmax(slices: int, seed: int = 0) -> torch.Tensor:
    """Probabilities of three structures beside the background, (3, N, 32, 32)."""
    return (4 * _random(4, slices, 32, 32, seed=seed)).softmax(dim=0)[1:].contiguous()


def _prior(count: int, structures: int = 3) -> Prior:
    prior = Prior("crf", (structures, count, 32, 32), 2.0, CPU)
    prior.multiplier.copy_(_random(structures, count, 32, 32, seed=5) * 0.4 - 0.2)
    return prior


@pytest.mark.parametrize("valid", [None, _random(2, 5, 6, seed=9) > 0.3])
def test_the_terms_of_one_structure_are_the_papers(valid: torch.Tensor | None) -> None:
    logits, target = 6 * _random(2, 2, 5, 6) - 3, 2 * _random(2, 1, 5, 6, seed=1) - 0.5
    probability = logits.softmax(dim=1)[:, 1:]
    one, several = losses.augmented_term, losses.augmented_terms
    torch.testing.assert_close(
        several(probability, target, 3.0, valid), one(probability[:, 0], target[:, 0], 3.0, valid)
    )
    ours, theirs = (
        losses.entropy_terms(logits, target, 3.0, valid),
        losses.entropy_term(logits, target[:, 0], 3.0, valid),
    )
    torch.testing.assert_close(ours, theirs)


def test_the_term_of_several_structures_counts_the_background_like_the_others() -> None:
    s, y = (5 * _random(4, 2, 5, 6)).softmax(dim=0).double(), torch.zeros(4, 2, 5, 6, dtype=torch.float64)
    y[2] = 1
    u = _random(4, 2, 5, 6, seed=3).double()
    u -= u.mean(dim=0)  # multipliers move by s − y, whose components sum to 0
    expected = 3.0 / 2 * ((s - y + u) ** 2).sum() / 2 / s[0].numel()
    target = (y - u)[1:].transpose(0, 1)
    torch.testing.assert_close(losses.augmented_terms(s[1:].transpose(0, 1), target, 3.0), expected)


@pytest.mark.parametrize("coupling", ["square", "entropy"])
def test_a_network_that_is_its_proposal_has_the_least_loss(coupling: Coupling) -> None:
    labels = torch.randint(0, 4, (2, 5, 6), generator=torch.Generator().manual_seed(0))
    y = torch.nn.functional.one_hot(labels, 4).movedim(-1, 1).float()
    seeds, mu = torch.full((2, 5, 6), -1, dtype=torch.int8), [torch.tensor(2.0)]
    sure = losses.stack_terms(20 * y, seeds, y[:, 1:], mu, None, 1.0, coupling)
    other = losses.stack_terms(20 * y.roll(1, dims=1), seeds, y[:, 1:], mu, None, 1.0, coupling)
    assert float(sure[1]) < 1e-4 < float(other[1])


def test_targets_stand_prior_by_prior(hearts: list[Example]) -> None:
    priors = [_prior(7), _prior(7)]
    priors[1].multiplier.neg_()
    index = torch.tensor([4, 1])
    targets = stack_targets(priors, index)
    assert targets.shape == (2, 6, 32, 32)
    assert torch.equal(targets[:, 4], 0.25 - priors[1].multiplier[1, index])


@pytest.mark.parametrize("honour", [True, False])
def test_proposals_are_each_volumes_own(hearts: list[Example], pool: ThreadPoolExecutor, honour: bool) -> None:
    slices, crf, admm = stack_slices(hearts, CPU), CrfConfig(strength=0.6, sigma=0.1), AdmmConfig(honour_seeds=honour)
    probability, prior = _softmax(len(slices)), _prior(len(slices))
    regions, turns = open_regions(hearts, crf, honour_seeds=honour), [2, 0, 3, 1]
    seeds = slices.seeds if honour else None
    made = {}
    limits = [open_limits(heart, admm) for heart in hearts]
    for name, solve in {"crf": expansion(crf.strength), "size": assignment(limits)}.items():
        proposer = LabelProposer(regions, 3, solve, pool, CPU, turns=turns)
        for _ in range(2):  # an epoch leaves nothing behind
            proposer.start(probability, prior, 5)
            made[name] = proposer.finish(probability, prior, seeds)
    start = 0
    for example in hearts:
        part = slice(start, start + len(example.seeds))
        start = part.stop
        v = (probability + prior.multiplier)[:, part].numpy()
        costs = np.concatenate([np.zeros_like(v[:1]), (1 - v - v.sum(axis=0)) / 2])
        fixed = example.seeds if honour else None
        grid = PottsGrid(example.image[:, 0], spacing_mm=example.spacing_mm, sigma=0.1, neighbours=26)
        cut = label_by_expansion(grid, costs, strength=0.6 / 2.0, seeds=fixed)
        labels = _labels(made["crf"][:, part])
        energy = _energy(labels, costs, grid)
        assert energy == pytest.approx(cut.energy, rel=1e-5)
        assert example.bounds is not None
        low, high = [0, *(b.low_vox for b in example.bounds)], [costs[0].size, *(b.high_vox for b in example.bounds)]
        chosen = _labels(made["size"][:, part])
        best = assign_by_size(-costs, low, high, seeds=fixed)
        assert _value(chosen, costs) == pytest.approx(_value(best, costs), rel=1e-6)
        for value, bounds in enumerate(example.bounds, start=1):
            assert bounds.low_vox <= int((chosen == value).sum()) <= bounds.high_vox
        if honour:
            known = example.seeds >= 0
            assert (labels[known] == example.seeds[known]).all()
            assert (chosen[known] == example.seeds[known]).all()


def _labels(proposal: torch.Tensor) -> NDArray[np.int8]:
    assert int(proposal.sum(dim=0).max()) <= 1
    return np.tensordot(np.arange(1, 4), proposal.numpy().astype(int), axes=1).astype(np.int8)


def _value(labels: NDArray[np.int8], costs: NDArray[np.float32]) -> float:
    return float(np.take_along_axis(costs, labels[None].astype(int), axis=0).sum(dtype=np.float64))


def _energy(labels: NDArray[np.int8], costs: NDArray[np.float32], grid: PottsGrid) -> float:
    """Half the boundaries of all classes, each boundary being that of two."""
    nothing = np.zeros_like(costs[0])
    surfaces = sum(grid.energy(labels == value, nothing, strength=0.3) for value in range(len(costs)))
    return _value(labels, costs) + surfaces / 2


def test_one_structure_has_the_binary_proposals(examples: list[Example], pool: ThreadPoolExecutor) -> None:
    slices, crf, admm = stack_slices(examples, CPU), CrfConfig(strength=0.6, sigma=0.1), AdmmConfig()
    probability, prior = _random(1, len(slices), 32, 32), _prior(len(slices), structures=1)
    regions = open_regions(examples, crf, honour_seeds=True)
    cuts = CrfProposer(regions, crf.strength, pool, CPU).finish(probability, prior, slices.seeds)
    expanded = LabelProposer(regions, 1, expansion(crf.strength), pool, CPU).finish(probability, prior, slices.seeds)
    assert (cuts != expanded).float().mean() < 1e-4  # costs are rounded differently
    chosen = SizeProposer(examples, admm, pool, CPU).finish(probability, prior, slices.seeds)
    limits = [open_limits(example, admm) for example in examples]
    assigned = LabelProposer(regions, 1, assignment(limits), pool, CPU).finish(probability, prior, slices.seeds)
    assert (chosen != assigned).float().mean() < 1e-4


def test_calibrated_cuts_are_of_about_the_known_sizes(hearts: list[Example], pool: ThreadPoolExecutor) -> None:
    """Of probabilities below those of the background throughout, which without calibration have nothing to propose."""
    slices, crf = stack_slices(hearts, CPU), CrfConfig(strength=1e-4, sigma=0.1)
    prior = _prior(len(slices))
    prior.multiplier.zero_()
    truth = torch.nn.functional.one_hot(slices.truth.long(), 4).movedim(-1, 0)[1:]
    probability = 0.02 + 0.2 * truth + 0.01 * _softmax(len(slices))
    limits = [open_limits(heart, AdmmConfig()) for heart in hearts]
    regions = open_regions(hearts, crf, honour_seeds=True)
    found = {
        known is not None: LabelProposer(regions, 3, expansion(crf.strength, None, known), pool, CPU)
        .finish(probability, prior, slices.seeds)
        .clone()
        for known in (None, limits)
    }
    unknown = slices.seeds < 0
    assert not found[False][:, unknown].any()
    assert found[True][:, unknown].logical_not().logical_or(truth[:, unknown].bool()).all()
    sizes = torch.stack([found[True][:, slices.volume == number].sum(dim=(1, 2, 3)) for number in range(len(hearts))])
    assert ((sizes >= slices.low.T - 1) & (sizes <= slices.high.T)).all()  # the last one of a structure is at a tie


def test_scores_of_each_structure_and_their_means(hearts: list[Example]) -> None:
    slices = stack_slices(hearts, CPU)
    truth = torch.nn.functional.one_hot(slices.truth.long(), 4).movedim(-1, 0).float()
    row = score_epoch(truth[1:], slices, hearts, prefix="val")
    assert row["val_dice"] == row["val_dice_MYO"] == row["val_size_ratio_RV"] == row["val_inside_bounds"] == 1
    wrong = truth[1:].clone()
    wrong[0] = 0  # no right ventricle
    cases = score_cases(wrong, slices, hearts)
    assert cases[1]["dice_RV"] == cases[1]["size_vox_RV"] == 0
    assert cases[1]["dice"] == pytest.approx(2 / 3)
    assert cases[1]["true_vox_RV"] == np.count_nonzero(hearts[1].truth == 1)
    prior = _prior(len(slices))
    prior.doubled.copy_(2 * wrong)
    assert score_proposals([prior], slices, hearts)["crf_dice"] == pytest.approx(2 / 3)


def test_the_most_probable_label_wins() -> None:
    probability = torch.tensor([[0.3, 0.5, 0.2], [0.3, 0.4, 0.45]]).view(2, 1, 1, 3)
    assert label_map(probability).flatten().tolist() == [0, 1, 2]
    assert label_map(torch.tensor([0.49, 0.5]).view(1, 1, 1, 2)).flatten().tolist() == [0, 1]


@pytest.mark.parametrize("method", typing.get_args(Method))
def test_training_resumes_to_the_same_bytes(method: Method, hearts: list[Example], tmp_path: Path) -> None:
    config = replace(SMALL, method=method)
    known = [replace(e, seeds=e.truth) for e in hearts if e.truth is not None] if method == "full" else hearts

    def interrupt(done: float, message: str) -> None:
        if done == 2:
            raise KeyboardInterrupt

    arguments = known[:3], known[3:], config
    train(*arguments, tmp_path / "run", model=MODEL, device="cpu")
    with pytest.raises(KeyboardInterrupt):
        train(*arguments, tmp_path / "parts", model=MODEL, device="cpu", progress=interrupt)
    train(*arguments, tmp_path / "parts", model=MODEL, device="cpu", resume=True)
    for name in ("checkpoints/final.safetensors", "metrics.csv", "cases.csv", "snapshots/epoch_0003.npz"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()
    with (tmp_path / "run" / "cases.csv").open() as file:
        cases = list(csv.DictReader(file))
    overlaps = [float(cases[3][f"dice_{name}"]) for name in STRUCTURES]
    assert float(cases[3]["dice"]) == pytest.approx(np.mean(overlaps))


def test_all_structures_are_learnt(hearts: list[Example], tmp_path: Path) -> None:
    config = replace(
        SMALL,
        epochs=10,
        seed=1,
        foreground_weight=20.0,
        network=NetworkConfig(name="unet", width=8),
        optimiser=OptimiserConfig(batch=2, lr=5e-3),
    )
    state = train(hearts[:3], hearts[3:], config, tmp_path / "run", model=MODEL, device="cpu")
    best = max(state.history, key=lambda row: row["val_dice"])
    assert best["val_dice"] > 0.5
    assert min(best[f"val_dice_{name}"] for name in STRUCTURES) > 0.2


def test_annotation_may_be_full_partial_or_missing(tmp_path: Path) -> None:
    """And a structure may be absent from a case."""
    write_phantom_dataset(tmp_path / "data", cases=5, test_cases=0, seed=3, in_plane=(48, 48))
    labels = tmp_path / "data" / "labelsTr"
    scribbled, without, unlabelled = (labels / f"phantom_00{number}.nii.gz" for number in (2, 3, 4))
    partly, lacking = read_volume(scribbled), read_volume(without)
    partly.array[:, ::2] = 4  # the highest label plus one: not annotated
    lacking.array[lacking.array == LABELS["RV"]] = 0
    for path, volume in ((scribbled, partly), (without, lacking)):
        path.unlink()
        write_volume(path, volume)
    unlabelled.unlink()
    (tmp_path / "split.json").write_text('{"val": ["phantom_005"]}')
    config = replace(SMALL, label="all", size_ml="LV=5:300,MYO=10:,RV=:500", epochs=1)
    sources: dict[str, Any] = {"seeds": None, "split": tmp_path / "split.json", "validation_fraction": 0.2}
    inputs = gather_inputs(tmp_path / "data", config, **sources)
    full, some, none_of_rv, bounded = inputs.training
    assert (full.seeds >= 0).all()
    assert 0.2 < (some.seeds < 0).mean() < 0.8
    assert set(np.unique(none_of_rv.seeds)) == {0, 2, 3}
    assert (bounded.seeds == -1).all()
    assert bounded.bounds is not None
    assert bounded.bounds[0].low_vox == 0 < bounded.bounds[1].low_vox
    fit(tmp_path / "data", tmp_path / "run", config, device="cpu", **sources)
    model = load_model(tmp_path / "run", device="cpu")
    assert model.labels == {"RV": 1, "MYO": 2, "LV": 3}
    image = tmp_path / "data/imagesTr/phantom_005_0000.nii.gz"
    predict_files(model, [image], tmp_path / "out", probabilities=True, uncertainty=True)
    names = {path.name.removeprefix("phantom_005_0000").split(".")[0] for path in (tmp_path / "out").iterdir()}
    assert names == {"", "_probability_RV", "_probability_MYO", "_probability_LV", "_uncertainty", "volumes"}
    probabilities = [read_volume(tmp_path / f"out/phantom_005_0000_probability_{n}.nii.gz").array for n in STRUCTURES]
    mask = read_volume(tmp_path / "out/phantom_005_0000.nii.gz").array
    rest = 1 - np.sum(probabilities, axis=0)
    assert np.array_equal(mask, np.stack([rest, *probabilities]).argmax(axis=0))
    rows = (tmp_path / "out/volumes.csv").read_text().splitlines()
    assert [row.split(",")[1] for row in rows] == ["label", *STRUCTURES]
    with pytest.raises(UserError, match="no annotation"):
        gather_inputs(tmp_path / "data", replace(config, method="partial"), **sources)
    calibrated = replace(config, crf=replace(config.crf, calibrate=True))
    fit(tmp_path / "data", tmp_path / "calibrated", calibrated, device="cpu", **sources)
    first, second = ((tmp_path / run / "metrics.csv").read_text().splitlines()[-1] for run in ("run", "calibrated"))
    assert first != second  # its cuts are others


def test_labels_are_chosen_by_name_value_or_all(tmp_path: Path) -> None:
    dataset = Dataset(tmp_path, "folder", (), LABELS, ignore=4)
    assert chosen_labels(dataset, "lv, 1") == {"LV": 3, "RV": 1}
    assert chosen_labels(dataset, "all") == {"RV": 1, "MYO": 2, "LV": 3}
    assert chosen_label(dataset, "MYO") == 2
    with pytest.raises(UserError, match=r"--label is needed: .* has RV, MYO, LV"):
        chosen_labels(dataset, None)
    with pytest.raises(UserError, match="occurs twice"):
        chosen_labels(dataset, "LV,3")
    with pytest.raises(UserError, match="one structure at a time"):
        chosen_label(dataset, "LV,RV")


def test_lower_bounds_must_fit_together() -> None:
    seeds = np.full((1, 2, 5), -1, np.int8)
    seeds[0, 0] = [0, 0, 1, 1, 2]
    check_feasible_together("a", [Bounds(4, 9), Bounds(4, 9)], seeds)
    with pytest.raises(UserError, match="want 6 voxels beyond the seeds, and 5 are not annotated"):
        check_feasible_together("a", [Bounds(5, 9), Bounds(4, 9)], seeds)
