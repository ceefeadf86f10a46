"""What to annotate next: measures are plain sums, contradictions come first, the command names case and slice."""

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from discoseg import checkpoints
from discoseg.admm import Prior, move_multipliers
from discoseg.cli import main
from discoseg.config import AdmmConfig, Config, GridConfig, Method, NetworkConfig, OptimiserConfig, PriorName
from discoseg.data.volume import Volume, write_volume
from discoseg.disagreement import STABLE_EPOCHS, Disagreement
from discoseg.next_case import rank_cases
from discoseg.slices import stack_slices
from discoseg.state import Running, State
from discoseg.train import train
from discoseg.uncertainty import class_entropy
from discoseg.weak.examples import Example

CPU = torch.device("cpu")
DEPTHS = (3, 2, 4)
SMALL = Config(
    epochs=3,
    grid=GridConfig(shape=(32, 32)),
    network=NetworkConfig(name="unet", width=2),
    optimiser=OptimiserConfig(batch=8, lr=5e-3),
)


def _examples(rng: np.random.Generator, structures: int = 1) -> list[Example]:
    """Volumes of 5×6 slices, about half of their voxels open; the second is annotated throughout."""
    found = []
    for number, depth in enumerate(DEPTHS):
        seeds = rng.integers(-1, 1 + structures, (depth, 5, 6)).astype(np.int8)
        seeds[rng.random(seeds.shape) < 0.3] = -1
        if number == 1:
            seeds = np.abs(seeds)
        image = rng.random((depth, 1, 5, 6), dtype=np.float32)
        names = tuple(f"part{k}" for k in range(structures))
        found.append(Example(f"case{number}", image, seeds, None, (9.0, 1.0, 1.0), structures=names))
    return found


def _state(epochs: int) -> State:
    network = torch.nn.Linear(1, 1)
    running = Running(losses=torch.zeros(1, 1), drawn=torch.empty(0))
    state = State(network, torch.optim.SGD(network.parameters()), [], torch.Generator(), torch.zeros(1, 1), running)
    state.history = [{"epoch": number + 1.0} for number in range(epochs)]
    return state


def _labels(rng: np.random.Generator, structures: int) -> NDArray[np.int64]:
    return rng.integers(0, 1 + structures, (sum(DEPTHS), 5, 6))


def _masks(labels: NDArray[np.int64], structures: int) -> NDArray[np.bool_]:
    return np.stack([labels == number for number in range(1, 1 + structures)])


@pytest.mark.parametrize("structures", [1, 3])
def test_the_measures_are_those_of_numpy(structures: int) -> None:
    rng = np.random.default_rng(structures)
    examples = _examples(rng, structures)
    logits = rng.normal(size=(1 + structures, sum(DEPTHS), 5, 6))
    everything = (np.exp(logits) / np.exp(logits).sum(axis=0)).astype(np.float32)
    probability = torch.from_numpy(everything[1:].copy())
    measured = Disagreement(stack_slices(examples, CPU), examples, probability)
    names: tuple[PriorName, ...] = ("crf", "size")
    priors = {name: Prior(name, (structures, sum(DEPTHS), 5, 6), 1.0, CPU) for name in names}
    watches = {name: measured.watch(prior) for name, prior in priors.items()}
    proposed: dict[PriorName, list[NDArray[np.int64]]] = {name: [] for name in names}
    state, rows = _state(0), []
    for _ in range(STABLE_EPOCHS + 2):
        for name in names:
            proposed[name].append(_labels(rng, structures))
            proposal = torch.from_numpy(_masks(proposed[name][-1], structures))
            watches[name](proposal)
            move_multipliers(priors[name], probability, proposal, AdmmConfig(), torch.zeros(2, dtype=torch.float64))
        state.history.append({"epoch": state.epoch + 1.0})
        rows.append(measured.by_case(state))
    assert not any(key.startswith("unstable") for key in rows[0][0])

    stop = 0
    for example, row in zip(examples, rows[-1], strict=True):
        part = slice(stop, stop := stop + len(example.seeds))
        unknown = example.seeds < 0
        assert row["case"] == example.name
        assert row["open_vox"] == unknown.sum()
        assert row["seeded_percent"] == pytest.approx(100 * (example.seeds >= 0).mean(), abs=1e-5)
        if not unknown.any():
            measures = {key: value for key, value in row.items() if key not in ("case", "seeded_percent", "slices")}
            assert set(measures.values()) == {0}
            continue
        s = everything[1:, part]
        entropy = class_entropy(list(s))[unknown]
        assert row["entropy"] == pytest.approx(entropy.mean(), abs=2e-6)
        assert row["doubt"] == pytest.approx((s * (1 - s) * unknown).sum() / s.sum() / 2, abs=2e-6)
        doubt = np.zeros(len(unknown))
        for name in names:
            labels = [each[part] for each in proposed[name]]
            squares = (s - _masks(labels[-1], structures)) ** 2 * unknown
            doubt += squares.sum(axis=(0, 2, 3))
            sizes = s.sum() + (labels[-1] > 0).sum()
            assert row[f"gap_{name}"] == pytest.approx(squares.sum() / sizes, abs=2e-6)
            assert row[f"primal_{name}"] == pytest.approx(np.sqrt(squares.sum() / unknown.sum() / structures), abs=2e-6)
            differ = labels[-1] != everything[:, part].argmax(axis=0)
            assert row[f"differ_{name}"] == pytest.approx(differ[unknown].mean(), abs=1e-6)
            changes = [(labels[-k] != labels[-k - 1])[unknown].mean() for k in range(1, 1 + STABLE_EPOCHS)]
            assert row[f"unstable_{name}"] == pytest.approx(np.mean(changes), abs=1e-6)
        assert row["slice"] == doubt.argmax()
        assert row["slices"] == len(unknown)


def test_a_case_whose_proposals_contradict_the_network_comes_first(examples: list[Example]) -> None:
    slices = stack_slices(examples, CPU)
    probability = (slices.truth == 1).float()[None].clamp(0.1, 0.9)
    prior = Prior("crf", (1, len(slices), 32, 32), 1.0, CPU)
    measured = Disagreement(slices, examples, probability)
    proposal = (slices.truth == 1)[None]
    contrary = (slices.volume == 2).nonzero().flatten()
    proposal[:, contrary[3:5]] ^= True
    proposal[:, contrary[4]] ^= slices.seeds[contrary[4]] >= 0
    proposal[:, contrary[3], ::2] ^= True
    measured.watch(prior)(proposal)
    rows = measured.by_case(_state(1))
    assert max(rows, key=lambda row: float(row["score"]))["case"] == examples[2].name
    assert rows[2]["slice"] == 4


def test_without_proposals_the_unsure_network_decides(examples: list[Example]) -> None:
    slices = stack_slices(examples, CPU)
    probability = (slices.truth == 1).float()[None].clamp(0.001, 0.999)
    probability[:, (slices.volume == 1).nonzero().flatten()[5]] = 0.4
    rows = Disagreement(slices, examples, probability).by_case(_state(1))
    assert max(rows, key=lambda row: float(row["score"]))["case"] == examples[1].name
    assert rows[1]["slice"] == 5
    assert [row["score"] for row in rows] == [row["doubt"] for row in rows]


@pytest.mark.parametrize("method", ["crf+size", "partial"])
def test_a_resumed_run_has_the_same_table(
    method: Method, examples: list[Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "EVERY_S", 0.0)
    config = replace(SMALL, method=method)

    def run(folder: str, *, until: float = np.inf, resume: bool = False) -> bytes:
        def progress(done: float, message: str) -> None:
            if done > until:
                raise KeyboardInterrupt

        train(examples[:3], [], config, tmp_path / folder, model={}, device="cpu", resume=resume, progress=progress)
        return (tmp_path / folder / "next.csv").read_bytes()

    whole = run("whole")
    with pytest.raises(KeyboardInterrupt):
        run("parts", until=2.1)
    assert (tmp_path / "parts/next.csv").read_bytes() != whole
    assert run("parts", resume=True) == whole
    scores = [float(row["score"]) for row in csv.DictReader(whole.decode().splitlines())]
    assert scores == sorted(scores, reverse=True)
    assert len(rank_cases(tmp_path / "whole")) == len(scores) == 3


HEADER = "case,score,gap_crf,gap_size,primal_crf,primal_size,differ_crf,differ_size,unstable_crf,unstable_size,"
TABLE = f"""{HEADER}doubt,entropy,open_vox,seeded_percent,slice,slices
known,0,0,0,0,0,0,0,0,0,0,0,0,100,0,4
quiet,0.15,0.2,0.1,0.1,0.1,0.01,0.02,0,0,0.2,0.2,40,90,1,4
loud,0.5,0.7,0.3,0.6,0.4,0.12,0.034,0.07,0.1,0.8,0.9,40,90,1,4
"""


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run on four slices: loud's image has its third axis upside down, quiet's slices lie across x."""
    images = tmp_path / "images"
    images.mkdir()
    affines = {"known": np.diag([-1.0, -1, 5, 1]), "loud": np.diag([-1.0, -1, -5, 1])}
    affines["quiet"] = np.array([[0, -1.0, 0, 0], [0, 0, -1, 0], [5, 0, 0, 0], [0, 0, 0, 1]])
    for name, affine in affines.items():
        shape, spacing_mm = ((6, 6, 4), (1.0, 1.0, 5.0)) if name == "quiet" else ((4, 6, 6), (5.0, 1.0, 1.0))
        array = np.arange(144, dtype=np.int16).reshape(shape)
        write_volume(images / f"{name}.nii.gz", Volume(array, affine, spacing_mm))
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text("")
    (run / "next.csv").write_text(TABLE)
    facts = {"model": {"orientation": "LPS"}, "sources": {"dataset": str(images)}}
    (run / "run.json").write_text(json.dumps(facts))
    return run


def _run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


def test_the_command_names_case_slice_and_reason(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("next", run_folder, "--json") == 0
    loud, quiet = json.loads(capsys.readouterr().out)["cases"]
    assert (loud["case"], loud["axis"], loud["slice"], loud["slices"]) == ("loud", "z", 2, 4)
    assert loud["why"] == "network and CRF proposal disagree on 12 % of open voxels, 7.0 % change an epoch"
    assert loud["measures"]["primal_crf"] == 0.6
    assert (quiet["case"], quiet["axis"], quiet["slice"], quiet["in_file"]) == ("quiet", "x", 1, True)
    assert quiet["why"] == "network and size proposal disagree on 2.0 % of open voxels"
    assert _run("next", run_folder, "--top", 1) == 0
    printed = capsys.readouterr().out
    assert "loud" in printed
    assert "quiet" not in printed
    assert "file's own axes" in printed


def test_without_its_images_a_run_still_ranks(run_folder: Path) -> None:
    (run_folder / "run.json").write_text("{}")
    loud, _ = rank_cases(run_folder)
    assert (loud.case, loud.axis, loud.slice, loud.in_file) == ("loud", "z", 1, False)


def test_where_all_is_annotated_nothing_is_next(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run_folder / "next.csv").write_text("\n".join(TABLE.splitlines()[:2]) + "\n")
    assert _run("next", run_folder) == 0
    assert "every voxel of every training case is annotated" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda run: (run / "config.toml").unlink(), "no run folder, it has no config.toml"),
        (lambda run: (run / "next.csv").unlink(), "no next.csv, no epoch is finished yet"),
        (lambda run: (run / "next.csv").write_text("case,score\n"), "line 1: the columns must be"),
        (lambda run: (run / "next.csv").write_text(TABLE.replace("0.6", "much")), "primal_crf must be a number"),
    ],
)
def test_a_mistake_is_said_in_one_line(
    spoil: Callable[[Path], object], complaint: str, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(run_folder)
    assert _run("next", run_folder) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert complaint in line


def test_less_than_one_case_is_refused(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("next", run_folder, "--top", 0) == 2
    assert "--top 0 must be at least 1" in capsys.readouterr().err
