"""The phantom end to end, smaller than the demo: weak training beats seeds alone, by actually training."""

from dataclasses import replace
from pathlib import Path

import pytest

from discoseg.config import GridConfig, Method, NetworkConfig
from discoseg.data.phantom import write_phantom_dataset
from discoseg.evaluation import evaluate
from discoseg.experiments import demo
from discoseg.predict import load_model, predict_files
from discoseg.workflow import fit


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("e2e") / "phantoms"
    write_phantom_dataset(folder, cases=12, test_cases=4, seed=0, in_plane=(64, 64))
    return folder


def _score(method: Method, dataset: Path, seeds: Path | None, folder: Path) -> float:
    config = replace(
        demo.CONFIG,
        method=method,
        epochs=20,
        grid=GridConfig(shape=(40, 40), clip_percent=(0.5, 99.5)),
        network=NetworkConfig(name="unet", width=8),
    )
    fit(dataset, folder / method, config, seeds=seeds, device="cpu")
    predict_files(load_model(folder / method, device="cpu"), [dataset / "imagesTs"], folder / f"{method}-out")
    (summary,) = evaluate(folder / f"{method}-out", dataset, labels=("LV",)).summaries()
    return summary.dice_mean


def test_proposals_beat_penalty_on_unseen_volumes(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "CONFIG", replace(demo.CONFIG, grid=GridConfig((40, 40), (0.5, 99.5))))
    seeds = demo.make_demo_seeds(dataset, tmp_path / "seeds")
    proposals = _score("crf+size", dataset, seeds, tmp_path)
    penalty = _score("penalty", dataset, seeds, tmp_path)
    assert proposals > 0.7
    assert proposals > penalty
