"""The paper's experiments in miniature: planned, trained, skipped, resumed, merged and drawn."""

import csv
import json
import math
import shutil
import typing
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from discoseg.cli import main
from discoseg.config import AdmmConfig, Config, Method
from discoseg.data.layouts import find_dataset
from discoseg.data.volume import read_label_map, write_volume
from discoseg.errors import UserError
from discoseg.experiments import paper
from discoseg.experiments.pictures import compare_methods
from discoseg.experiments.plan import Cell, Length, What, plan
from discoseg.experiments.reproduce import Reproduction, reproduce
from discoseg.experiments.results import keep_result, read_results
from discoseg.experiments.tables import collect_rows, write_csv, write_markdown
from discoseg.experiments.tasks import ALL_TASKS, OURS, TASKS, Task
from discoseg.experiments.variants import OF_A_CLICK, VARIANTS
from discoseg.plain import flatten, to_dict
from discoseg.presets import PRESETS
from discoseg.workflow import fit
from test_train import SMALL

MU = {"crf": 1.0, "size": 1.0, "crf+size": 1.0}
TINY = (Task("lv", "phantom LV", "hearts", replace(SMALL, label="LV", epochs=2), MU),)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def data(phantoms: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    shutil.copytree(phantoms, folder / "hearts")
    return folder


@pytest.fixture(scope="module")
def made(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the trainings with ε = 10 % and CRF alone are made."""
    out = tmp_path_factory.mktemp("reproduced")
    reproduce("comparison", data, out, jobs=2, device="cpu", tasks=TINY)
    return out


def test_the_plan_is_the_papers() -> None:
    cells = plan("table1")
    assert len(cells) == len(paper.TABLE1) == 42
    assert Counter(cell.task for cell in cells) == {"lv": 14, "rv": 14, "prostate": 14}
    assert {cell.eps for cell in cells[: 3 * 8]} == {None, 0.0, 0.1}  # the headline first
    assert len(plan("table2")) == len(paper.TABLE2) == 36
    for what in typing.get_args(What):
        planned = plan(what, seeds=2)
        assert len({cell.name for cell in planned}) == len(planned)
        for cell in planned:
            config = cell.config()
            assert (config.method, config.size_eps, config.seed) == (cell.method, cell.eps, cell.seed)
            preset = {"ours": "default", "scribbles": "scribbles"}.get(cell.task.split("-")[0])
            assert config.epochs == (250 if preset is None else PRESETS[preset].epochs)


@pytest.mark.parametrize("what", typing.get_args(What))
def test_deterministic_trainings_are_planned_like_others(what: What) -> None:
    tasks = [replace(task, config=replace(task.config, deterministic=True)) for task in ALL_TASKS]
    assert [cell.name for cell in plan(what, tasks=tasks)] == [cell.name for cell in plan(what)] != []


def test_tables_share_trainings() -> None:
    """The second table's trainings at a task's own μ are those of the first; so it is in the paper at its best μ."""
    first, second = ({cell.name for cell in plan(what)} for what in ("table1", "table2"))
    assert len(first & second) == 9
    for name, method in {key[:2] for key in paper.TABLE2}:
        best = max(paper.MUS, key=lambda mu: paper.TABLE2[name, method, mu])  # of the paper
        assert paper.TABLE2[name, method, best] == paper.TABLE1[name, method, None if method == "crf" else 0.0]
        own = next(task for task in TASKS if task.name == name).mu[method]
        assert own == (1.0 if (name, method) == ("prostate", "crf+size") else best)  # ours is better there


def test_a_cell_changes_what_it_names() -> None:
    config = Cell("lv", "crf+size", 0.1, mu=0.01, variant="rho0.1", seed=3).config(length=Length(epochs=50))
    assert (config.admm.mu_crf, config.admm.mu_size, config.admm.rho, config.seed) == (0.01, 0.01, 0.1, 3)
    assert (config.epochs, config.optimiser.lr_every, config.admm.ramp_epochs) == (50, 10, 4)
    assert Cell("prostate", "full").config(length=Length(epochs=50)).admm.ramp_epochs == 20  # which has no ramp
    stopped = Cell("lv", "full").config(length=Length(until=60))  # in the middle of its schedule
    assert stopped == replace(Cell("lv", "full").config(), epochs=60)
    assert Cell("lv", "full").config(length=Length(epochs=50, until=60)).epochs == 50
    planned = [cell for cell in plan("search") if cell.variant]
    assert {cell.variant for cell in planned} == set(OF_A_CLICK)
    assert {cell.task for cell in plan("search", variants=["slices"]) if cell.variant} == {t.name for t in OURS}
    for cell in planned:
        assert len(_different_parts(cell.config(), replace(cell, variant="").config())) == 1
    for eps in (0.0, 0.4, None):
        other = [cell for cell in plan("search") if cell.eps == eps and cell.method != "full"]
        assert {cell.task for cell in other} == {task.name for task in TASKS}  # others have bounds of ±10 % alone
        assert {cell.method for cell in other} == {"crf" if eps is None else "crf+size"}
    narrow, wide = ({cell.task for cell in planned if cell.variant == name} for name in ("widen0", "widen1"))
    assert narrow == {"lv"}  # what is a task's own anyway is no variant of it
    assert wide == {task.name for task in ALL_TASKS} - narrow
    for useless in ("margin0.05", "calibrate"):  # without sizes
        assert {cell.method for cell in planned if cell.variant == useless} == {"crf+size"}
    with_masks = {cell.variant for cell in planned if cell.method == "full"}
    assert {"whole-range", "zoom", "lr0.0003", "weight20"} <= with_masks
    assert not {"lambda0.1", "sigma0.02", "mu1", "rho0", "sharp-masks", "one-round", "ramp"} & with_masks
    assert {cell.task for cell in planned if cell.variant == "sharp-masks"} == {"ours-lv", "ours-rv", "ours-prostate"}
    both = Cell("ours-rv", "crf+size", 0.1, variant="rho0.1+lambda0.3").config()
    assert (both.admm.rho, both.crf.strength) == (0.1, 0.3)
    varied = Cell("lv", "crf+size", 0.1, variant="mu1").config()
    assert (varied.admm.mu_crf, varied.admm.mu_size) == (1.0, 1.0)  # not the task's own
    for variants in (["rho0.1+lambda0.3", "lambda0.3+rho0.1"], ["lambda0.3+rho0.1"]):
        assert {cell.variant for cell in plan("ablations", variants=variants)} == {"", "lambda0.3+rho0.1"}
    assert not [cell for cell in plan("search", variants=["deep5"]) if cell.variant and cell.task == "lv"]  # ENet
    with pytest.raises(UserError, match="two of its parts set the same"):
        plan("search", variants=["rho0.1+rho0.3"])
    with pytest.raises(UserError, match="--variants: table1 has none"):
        plan("table1", variants=["zoom"])
    with pytest.raises(UserError, match="--variants unheard-of: known are lambda"):
        Cell("lv", "crf+size", 0.1, variant="unheard-of").config()


def _different_parts(one: Config, other: Config) -> set[str]:
    a, b = flatten(to_dict(one)), flatten(to_dict(other))
    return {key.split(".")[0] for key in a if a[key] != b[key]}


def test_finished_trainings_are_kept_and_shown(data: Path, made: Path) -> None:
    assert set(read_results(made / "results")) == {
        f"lv-{name}-seed0" for name in ("crf", "crf+size-eps10", "size-eps10", "penalty-eps10")
    }
    models = sorted(made.glob("runs/*/checkpoints/final.safetensors"))
    before = [model.stat().st_mtime_ns for model in models]
    outcome = reproduce("table1", data, made, only="lv-crf-*", device="cpu", tasks=TINY)
    assert {result.cell.name for result in outcome.results} == set(read_results(made / "results"))
    assert [model.stat().st_mtime_ns for model in models] == before
    assert [path.name for path in outcome.files] == ["table1.md", "table1.csv"]
    with (made / "table1.csv").open(encoding="utf-8") as file:
        rows = {(row["method"], row["eps"]): row for row in csv.DictReader(file)}
    assert len(rows) == 14
    run = made / "runs" / "lv-crf+size-eps10-seed0"
    with (run / "metrics.csv").open(encoding="utf-8") as file:
        dice = [float(row["val_dice"]) for row in csv.DictReader(file)]
    row = rows["crf+size", "0.1"]
    assert float(row["best_mean"]) == pytest.approx(max(dice), abs=1e-4)
    assert float(row["last_mean"]) == pytest.approx(dice[-1], abs=1e-4)
    assert float(row["paper"]) == 0.884
    assert rows["full", ""]["best_mean"] == ""  # not trained: it is not among those asked for
    assert "| CRF + size | 10 % | 0.884 |" in (made / "table1.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("what", ["curves", "sizes", "comparison"])
def test_figures_are_drawn(data: Path, made: Path, what: str) -> None:
    (path,) = reproduce(what, data, made, only="*-crf-*", device="cpu", tasks=TINY).files  # type: ignore[arg-type]
    picture = np.asarray(Image.open(path).convert("L"))
    assert picture.std() > 5


def _reddish(path: Path) -> int:
    """Return how many pixels of a picture have the colour of masks, on whatever is below it."""
    red, green, blue = np.asarray(Image.open(path).convert("RGB")).astype(int).transpose(2, 0, 1)
    return int(((red - green > 40) & (abs(green - blue) < 30)).sum())


def test_the_comparison_shows_each_methods_masks(data: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: dict[Method, Path] = {m: made / "runs" / f"lv-{m}-eps10-seed0" for m in ("size", "crf+size")}
    for shown, masks in compare_methods(TINY[0], data / "hearts", runs).values():
        assert list(masks) == ["size", "crf+size"]
        assert {mask.shape for mask in masks.values()} == {shown["image"].shape, shown["truth"].shape}

    def everything(network: torch.nn.Module, image: torch.Tensor) -> torch.Tensor:
        probability = torch.zeros(1, *image.shape[:1], *image.shape[2:])
        probability[..., 8:-8, 8:-8] = 1
        return probability

    monkeypatch.setattr("discoseg.experiments.pictures.predict_slices", everything)
    (path,) = reproduce("comparison", data, made, only="*-crf-*", device="cpu", tasks=TINY).files
    assert _reddish(path) > 100


@pytest.fixture
def _one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train here, one after the other: processes take seconds to begin."""

    def fit_all(dataset: Path, runs: dict[Path, Config], **options: Any) -> None:
        for run, config in runs.items():
            sources = {"seeds": options["seeds"], "split": options["split"]}
            fit(dataset, run, config, **sources, device="cpu", resume=(run / "config.toml").is_file())

    monkeypatch.setattr("discoseg.experiments.reproduce.fit_many", fit_all)


@pytest.mark.usefixtures("_one_process")
def test_evolution_shows_every_kept_epoch(data: Path, tmp_path: Path) -> None:
    outcome = reproduce("evolution", data, tmp_path, device="cpu", tasks=TINY)
    assert [path.name for path in outcome.files] == ["evolution-lv.png"]
    assert _reddish(outcome.files[0]) > 1000  # its proposals honour seeds, so none is empty


def test_results_merge_and_pictures_need_the_runs(data: Path, made: Path, tmp_path: Path) -> None:
    """Files carried from another machine stand for trainings, but nothing can be seen of those."""
    shutil.copytree(made / "results", tmp_path / "results")
    assert reproduce("curves", data / "nowhere", tmp_path, only="*-crf-*", tasks=TINY).files
    outcome = reproduce("comparison", data / "nowhere", tmp_path, tasks=TINY)
    assert outcome.files == []
    assert len(outcome.notes) == 4
    assert not (tmp_path / "runs").exists()


def test_results_of_an_older_version_still_count(data: Path, made: Path, tmp_path: Path) -> None:
    """Settings that it did not have yet had their defaults; those that are gone were not in use."""
    shutil.copytree(made / "results", tmp_path / "results")
    path = tmp_path / "results" / "lv-crf-seed0.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    del values["config"]["admm"]["margin"], values["config"]["penalty"]
    values["config"]["admm"]["limit"] = 0.0  # which it had, but not in use
    path.write_text(json.dumps(values), encoding="utf-8")
    assert reproduce("curves", data, tmp_path, only="*-crf-*", tasks=TINY).files
    values["config"]["admm"]["rho"] = 0.5
    path.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(UserError, match=r"another admm.rho: 0.5, now 1.0"):
        reproduce("curves", data, tmp_path, only="*-crf-*", tasks=TINY)


@pytest.mark.usefixtures("_one_process")
def test_results_outlive_settings_that_do_not_concern_them(data: Path, tmp_path: Path) -> None:
    """Full supervision knows no λ, nor do sizes; both know the grid."""
    for only in ("lv-full-*", "lv-size-eps10-*"):
        reproduce("table1", data, tmp_path, only=only, device="cpu", tasks=TINY)
    (task,) = TINY
    stronger = replace(task, config=replace(task.config, crf=replace(task.config.crf, strength=7.0)))
    reproduce("table1", data, tmp_path, only="lv-full-*", device="cpu", tasks=[stronger])
    damped = replace(task, config=replace(task.config, admm=replace(task.config.admm, rho=0.5)))
    with pytest.raises(UserError, match=r"lv-size-eps10-seed0.json: was made with another admm.rho"):
        reproduce("table1", data, tmp_path, only="lv-full-*", device="cpu", tasks=[damped])
    clipped = replace(task, config=replace(task.config, grid=replace(task.config.grid, clip_percent=(1.0, 99.0))))
    with pytest.raises(UserError, match=r"lv-full-seed0.json: was made with another grid.clip_percent"):
        reproduce("table1", data, tmp_path, only="lv-full-*", device="cpu", tasks=[clipped])
    path = tmp_path / "results" / "lv-full-seed0.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    del record["config"]["augment"]["mirror"]  # made before there was such a setting, so without it
    path.write_text(json.dumps(record), encoding="utf-8")
    mirrored = replace(task, config=replace(task.config, augment=replace(task.config.augment, mirror=True)))
    with pytest.raises(UserError, match=r"another augment.mirror: False, now True"):
        reproduce("table1", data, tmp_path, only="lv-full-*", device="cpu", tasks=[mirrored])


@pytest.mark.usefixtures("_one_process")
def test_results_of_different_splits_are_not_mixed(data: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "data", tmp_path / "out"
    shutil.copytree(data, folder)
    reproduce("table1", folder, out, only="lv-full-*", tasks=TINY)
    cases = json.loads((out / "results" / "lv-full-seed0.json").read_text(encoding="utf-8"))["cases"]
    train, val = cases["training"][1:], cases["training"][:1]
    (folder / "splits.json").write_text(json.dumps({"train": train, "val": val}), encoding="utf-8")
    with pytest.raises(UserError, match="other training cases"):
        reproduce("table1", folder, out, only="lv-crf-*", tasks=TINY)
    shutil.rmtree(out / "seeds")
    with pytest.raises(UserError, match="different cases"):
        reproduce("table1", folder, out, only="lv-crf-*", tasks=TINY)
    (folder / "splits.json").write_text(json.dumps({"train": train}), encoding="utf-8")
    with pytest.raises(UserError, match=r"no case of .* validates"):
        reproduce("table1", folder, tmp_path / "other", only="lv-crf-*", tasks=TINY)


@pytest.mark.usefixtures("_one_process")
def test_a_failure_stops_nobody_else(data: Path, tmp_path: Path) -> None:
    bad = replace(TINY[0], name="rv", config=replace(TINY[0].config, label="spleen"))
    with pytest.raises(UserError, match="spleen"):
        reproduce("table1", data, tmp_path, only="*-full-*", tasks=(bad, *TINY))
    assert set(read_results(tmp_path / "results")) == {"lv-full-seed0"}
    assert "| full supervision |" in (tmp_path / "table1.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("_one_process")
def test_a_training_that_stopped_early_goes_on(data: Path, tmp_path: Path) -> None:
    def make(**options: Any) -> Reproduction:
        return reproduce("table1", data, tmp_path, only="lv-full-*", device="cpu", tasks=TINY, jobs=1, **options)

    make(until=1)
    (short,) = read_results(tmp_path / "results").values()
    outcome = make()
    (whole,) = read_results(tmp_path / "results").values()
    assert [len(result.history["val_dice"]) for result in (short, whole)] == [1, 2]
    assert whole.history["val_dice"][:1] == short.history["val_dice"]
    assert "counts as begun" in outcome.notes[0]
    before = next(tmp_path.glob("results/*")).read_bytes()
    assert make(until=1).notes == ["results of another length than asked for are shown, too: 1 of 2 epochs"]
    assert next(tmp_path.glob("results/*")).read_bytes() == before


@pytest.mark.usefixtures("_one_process")
def test_results_of_other_lengths_are_shown_and_not_touched(data: Path, tmp_path: Path) -> None:
    """Some trainings go on, those that were not asked for stay as they are, and one table has all of them."""
    options: dict[str, Any] = {"device": "cpu", "tasks": TINY, "jobs": 1}
    reproduce("table1", data, tmp_path, only=["lv-full-*", "lv-penalty-eps[01]-*"], until=1, **options)
    assert set(read_results(tmp_path / "results")) == {"lv-full-seed0", "lv-penalty-eps0-seed0"}
    outcome = reproduce("table1", data, tmp_path, only="lv-full-*", **options)
    epochs = {name: len(r.history["val_dice"]) for name, r in read_results(tmp_path / "results").items()}
    assert epochs == {"lv-full-seed0": 2, "lv-penalty-eps0-seed0": 1}
    assert outcome.notes[1:] == ["results of another length than asked for are shown, too: 1 of 1 epochs"]
    text = (tmp_path / "table1.md").read_text(encoding="utf-8")
    assert "| lv-full-seed0 | 2 |" in text
    assert "| lv-penalty-eps0-seed0 | 1 |" in text
    with pytest.raises(UserError, match="--only nothing: no training of table1"):
        reproduce("table1", data, tmp_path, only=["lv-full-*", "nothing"], **options)
    stronger = replace(TINY[0], config=replace(TINY[0].config, crf=replace(TINY[0].config.crf, strength=9.0)))
    options["tasks"] = [stronger]  # of which a penalty does not know, but a training that went on would
    with pytest.raises(UserError, match=r"another crf.strength: 0.3, now 9.0"):
        reproduce("table1", data, tmp_path, only="lv-penalty-eps0-*", **options)


@pytest.mark.usefixtures("_one_process")
def test_a_length_that_one_training_cannot_have_stops_no_other(data: Path, tmp_path: Path) -> None:
    """Neither one that is planned, nor one that has a result; where it is missing, it is said at once."""
    slow = replace(TINY[0], name="rv", config=replace(TINY[0].config, epochs=4, admm=AdmmConfig(warm_up=2)))
    options: dict[str, Any] = {"device": "cpu", "tasks": (slow, *TINY), "jobs": 1}
    reproduce("table1", data, tmp_path, only="lv-full-*", until=1, **options)
    reproduce("table1", data, tmp_path, only="rv-crf-*", epochs=2, **options)
    outcome = reproduce("table1", data, tmp_path, only=["lv-crf-*", "rv-crf-*"], epochs=2, until=1, **options)
    assert {result.cell.name for result in outcome.results} == {"lv-full-seed0", "lv-crf-seed0", "rv-crf-seed0"}
    before = {path.name for path in tmp_path.glob("*/*")}
    with pytest.raises(UserError, match=r"^rv-crf\+size-eps0-seed0 \(and 3 more\): --admm.warm-up .*--only\)$"):
        reproduce("table1", data, tmp_path, only=["lv-size-*", "rv-crf+*"], epochs=2, until=1, **options)
    assert {path.name for path in tmp_path.glob("*/*")} == before


def test_the_command_looks_at_the_lengths_of_what_it_makes(tmp_path: Path, complaint: Callable[..., str]) -> None:
    arguments = ["reproduce", "ablations", "--data", str(tmp_path), "--out", str(tmp_path), "--until", "5"]
    assert "acdc does not exist" in complaint(*arguments, "--only", "lv-full-*", "scribbles-full-*")
    for folder in ("acdc", "acdc_scribbles"):
        (tmp_path / folder).mkdir()
    name = "scribbles-crf+size-eps10-seed0"
    assert f"{name}: --admm.warm-up 10" in complaint(*arguments, "--only", name)


def test_a_training_that_goes_on_is_kept_when_it_has_ended(data: Path, tmp_path: Path) -> None:
    """Not as soon as its last epoch is over: the models are still those of the last time then."""
    cell, run = Cell("lv", "full"), tmp_path / "run"
    config, early = cell.config(TINY), []

    def look(done: float, message: str) -> None:
        if done == config.epochs:
            early.append(keep_result(cell, config, run, tmp_path / "results"))

    fit(data / "hearts", run, replace(config, epochs=1), device="cpu")
    fit(data / "hearts", run, config, device="cpu", resume=True, progress=look)
    assert early == [None]
    assert keep_result(cell, config, run, tmp_path / "results") is not None


@pytest.mark.usefixtures("_one_process")
def test_a_run_of_other_settings_is_no_result(data: Path, tmp_path: Path) -> None:
    """Two epochs were made and three are wanted: those of a finished run are not taken for them."""
    options = {"only": "lv-full-*", "device": "cpu", "tasks": TINY, "jobs": 1}
    reproduce("table1", data, tmp_path, **options)  # type: ignore[arg-type]
    shutil.rmtree(tmp_path / "results")
    with pytest.raises(UserError, match="lr_every"):
        reproduce("table1", data, tmp_path, epochs=3, **options)  # type: ignore[arg-type]
    assert read_results(tmp_path / "results") == {}


@pytest.mark.parametrize(
    ("part", "value"),
    [
        (("cell", "seed"), "0"),
        (("cell", "eps"), "x"),
        (("facts",), None),
        (("config",), []),
        (("seconds",), "a"),
        (("history", "train_dice"), None),
        (("history", "train_dice"), [0.5]),
        (("history", "val_dice"), []),
    ],
)
def test_broken_results_are_named(made: Path, tmp_path: Path, part: tuple[str, ...], value: object) -> None:
    values = json.loads((made / "results" / "lv-crf-seed0.json").read_text(encoding="utf-8"))
    inner = values if len(part) == 1 else values[part[0]]
    inner[part[-1]] = value
    (tmp_path / "lv-crf-seed0.json").write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(UserError, match=r"lv-crf-seed0.json: not a result"):
        read_results(tmp_path)
    (tmp_path / "lv-crf-seed0.json").rename(tmp_path / ".a1b2-lv-crf-seed0.json")
    assert read_results(tmp_path) == {}  # a file that was never finished


@pytest.mark.parametrize("what", ["curves", "sizes"])
def test_figures_need_no_first_seed(data: Path, made: Path, tmp_path: Path, what: str) -> None:
    (tmp_path / "results").mkdir()
    for path in (made / "results").glob("*.json"):
        values = json.loads(path.read_text(encoding="utf-8"))
        values["cell"]["seed"] = values["config"]["seed"] = 1
        other = tmp_path / "results" / path.name.replace("seed0", "seed1")
        other.write_text(json.dumps(values), encoding="utf-8")
    assert reproduce(what, data, tmp_path, seeds=2, only="*-crf-seed1", tasks=TINY).files  # type: ignore[arg-type]


def test_an_interruption_loses_no_finished_training(data: Path, tmp_path: Path) -> None:
    """The first training ends, the second is stopped after an epoch; the next start makes only what is missing."""
    tasks = [replace(TINY[0], config=replace(TINY[0].config, epochs=10))]  # of two it has ended before it hears
    seen: list[str] = []

    def stop(run: Path, done: float, message: str) -> None:
        if "size" in run.name and done > 1:
            assert seen == ["lv-penalty-eps10-seed0"]  # kept as soon as the next one trains
            raise KeyboardInterrupt

    options = {"only": "lv-*-eps10-*", "device": "cpu", "tasks": tasks, "jobs": 1}
    with pytest.raises(KeyboardInterrupt):
        reproduce("table1", data, tmp_path, progress=stop, finished=lambda r: seen.append(r.cell.name), **options)  # type: ignore[arg-type]
    kept = set(read_results(tmp_path / "results"))
    assert kept == {"lv-penalty-eps10-seed0"}
    new: list[str] = []
    reproduce("table1", data, tmp_path, finished=lambda result: new.append(result.cell.name), **options)  # type: ignore[arg-type]
    assert sorted(new) == ["lv-crf+size-eps10-seed0", "lv-size-eps10-seed0"]


@pytest.mark.usefixtures("_one_process")
def test_the_search_never_sees_validation_cases(data: Path, tmp_path: Path) -> None:
    reproduce("search", data, tmp_path, only="*-eps10-rho0.1-*", device="cpu", tasks=TINY)
    reproduce("table1", data, tmp_path, only="lv-full-*", device="cpu", tasks=TINY)
    searched, real = (
        json.loads((tmp_path / "runs" / name / "run.json").read_text(encoding="utf-8"))
        for name in ("search-lv-crf+size-eps10-rho0.1-seed0", "lv-full-seed0")
    )
    used = {*searched["training"], *searched["validation"]}
    assert used == set(real["training"])
    assert searched["validation"]
    assert not used & set(real["validation"])
    shown = (tmp_path / "search.md").read_text(encoding="utf-8")
    assert all(f"| CRF + size | rho0.1, ε = {eps} % |" in shown for eps in (0, 10, 40))


@pytest.mark.usefixtures("_one_process")
def test_a_search_compares_intensities(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Volumes that came onto the grid in another way are the same cases; those of another split are not."""
    monkeypatch.setitem(VARIANTS, "clip", {"grid": {"clip_percent": (1.0, 99.0)}})
    options = {"only": "*-full-*", "variants": ["clip"], "device": "cpu", "tasks": TINY}
    reproduce("search", data, tmp_path, **options)  # type: ignore[arg-type]
    assert "| full supervision | clip | – | 0" in (tmp_path / "search.md").read_text(encoding="utf-8")
    path = tmp_path / "results" / "search-lv-full-clip-seed0.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    record["cases"]["validation"].append("another")
    path.write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(UserError, match=r"search-lv-full-\S+ and search-lv-full-\S+ were trained or scored"):
        reproduce("search", data, tmp_path, **options)  # type: ignore[arg-type]


@pytest.mark.usefixtures("_one_process")
def test_results_of_different_files_are_not_mixed(data: Path, tmp_path: Path) -> None:
    """Of the same names and grid: a checksum tells."""
    reproduce("table1", data, tmp_path, only="lv-penalty-eps10-*", device="cpu", tasks=TINY)
    reproduce("table1", data, tmp_path, only="lv-full-*", device="cpu", tasks=TINY)
    path = tmp_path / "results" / "lv-full-seed0.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    record["cases"]["checksum"] = dict.fromkeys(record["cases"]["validation"], "0" * 8)
    path.write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(UserError, match="different cases"):
        reproduce("table1", data, tmp_path, only="lv-full-*", device="cpu", tasks=TINY)


@pytest.mark.usefixtures("_one_process")
def test_results_whose_variant_is_gone_are_named(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VARIANTS, "passing", {"admm": {"rho": 0.2}})
    options = {"device": "cpu", "tasks": TINY}
    outcome = reproduce("search", data, tmp_path, only="*-eps10-passing-*", variants=["passing"], **options)  # type: ignore[arg-type]
    assert not outcome.notes
    monkeypatch.delitem(VARIANTS, "passing")
    outcome = reproduce("search", data, tmp_path, only="*-full-*", **options)  # type: ignore[arg-type]
    (note,) = outcome.notes
    assert note.startswith("search-lv-crf+size-eps10-passing-seed0: not shown")


def test_a_length_scales_rounds_along() -> None:
    ours = replace(PRESETS["default"], label="LV")
    half = Length(epochs=ours.epochs // 2).of(ours)
    assert (half.rounds.first, half.has_second_round) == (ours.rounds.first // 2, True)
    scribbles = replace(ours, admm=replace(ours.admm, warm_up=10))
    short = Length(epochs=4).of(scribbles)
    assert (short.rounds.first, short.admm.warm_up) == (2, 1)


def test_a_training_that_stops_early_has_the_rounds_of_the_whole_one() -> None:
    ours = replace(PRESETS["default"], label="LV")
    first = ours.rounds.first
    for until in (first, first + first // 2, ours.epochs):
        begun = Length(until=until).of(ours)
        assert [begun.round_of(epoch) for epoch in range(until)] == [ours.round_of(epoch) for epoch in range(until)]
    with pytest.raises(UserError, match=f"can stop after {first} epochs at most, or after {3 * first // 2} at least"):
        Length(until=first + 1).of(ours)


def test_several_seeds_give_mean_and_spread(data: Path, made: Path) -> None:
    results = read_results(made / "results")
    one = results["lv-crf-seed0"]
    kept, none = ({**one.facts, "mean": {"epochs": 1, "val_dice": 0.84}}, {"device": "cpu"})  # as of an older version
    better = replace(one, history={**one.history, "val_dice": [0.5, 0.9]}, facts=kept)
    history = {**one.history, "val_dice": [0.8, 0.7]}
    other = replace(one, cell=replace(one.cell, seed=1), history=history, facts=none)
    found = {"lv-crf-seed0": better, "lv-crf-seed1": other}
    rows = collect_rows(plan("table1", seeds=2, tasks=TINY), found, TINY, by="eps")
    text = write_markdown(rows, by="eps")
    spread = 0.1 / math.sqrt(2)
    assert f"| CRF only |  | 0.862 | 0.850 ± {spread:.3f} | 0.800 ± {2 * spread:.3f} | 0.840 |" in text
    unkept = collect_rows(plan("table1", seeds=2, tasks=TINY), {"lv-crf-seed1": other}, TINY, by="eps")
    assert "| CRF only |  | 0.862 | 0.800 | 0.700 | – |" in write_markdown(unkept, by="eps")
    assert "0.8400,,," in write_csv(rows)  # of one result, so without a deviation
    assert "**0.900**" in write_markdown(collect_rows(plan("table1", tasks=TINY), found, TINY, by="eps"), by="eps")


def test_bad_input_ends_in_one_line(data: Path, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="another epochs: 2, now 3"):
        reproduce("table1", data, made, epochs=3, tasks=TINY)
    broken = tmp_path / "results" / "lv-full-seed0.json"
    broken.parent.mkdir()
    broken.write_text("{}", encoding="utf-8")
    for arguments, complaint in (
        (["table1", "--only", "lv-*", "xyz*"], "--only xyz*: no training of table1"),
        (["table1", "--seeds", "0"], "--seeds 0"),
        (["table1", "--jobs", "0"], "--jobs 0"),
        (["table1", "--until", "0"], "--until 0"),
        (["table1"], "lv-full-seed0.json: not a result"),
        (["table3"], "table3"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["reproduce", *arguments, "--data", str(tmp_path), "--out", str(tmp_path)])
        error = capsys.readouterr().err
        assert stop.value.code == 2
        assert error.startswith("discoseg: error: ")
        assert error.count("\n") == 1
        assert complaint in error
    broken.unlink()
    with pytest.raises(UserError, match="acdc does not exist"):
        reproduce("table1", tmp_path, tmp_path)


def test_folds_by_patient(data: Path, tmp_path: Path) -> None:
    """Each patient validates in one fold, and the table has the mean over folds, of each structure too."""
    found = find_dataset(data / "hearts")
    (tmp_path / "data" / "hearts_scribbles").mkdir(parents=True)
    for case in found.cases:
        if case.label is not None and not case.test:
            volume = read_label_map(case.label)
            kept = np.random.default_rng(0).random(volume.array.shape) < 0.1
            labels = np.where(kept, volume.array, found.ignore).astype(np.uint8)
            write_volume(tmp_path / "data" / "hearts_scribbles" / f"{case.name}.nii.gz", replace(volume, array=labels))
    shutil.copytree(data / "hearts", tmp_path / "data" / "hearts")
    config = replace(SMALL, label="RV,LV", epochs=1)
    tasks = (Task("marks", "phantoms", "hearts", config, {}, seeds="hearts_scribbles"),)
    out = tmp_path / "out"
    reproduce("folds", tmp_path / "data", out, only="*-full-fold[01]-*", jobs=1, device="cpu", tasks=tasks)
    results = read_results(out / "results")
    assert set(results) == {f"marks-full-fold{fold}-seed0" for fold in range(2)}
    validated = [set(results[f"marks-full-fold{fold}-seed0"].cases["validation"]) for fold in range(2)]
    patients = {case.name for case in found.cases if not case.test}
    assert all(part and part < patients for part in validated)
    assert not validated[0] & validated[1]
    lines = (out / "folds.md").read_text(encoding="utf-8").splitlines()
    dice = [results[f"marks-full-fold{fold}-seed0"].last("val_dice_LV") for fold in range(2)]
    assert "| method | RV | LV |" in lines
    row = next(line for line in lines[lines.index("| method | RV | LV |") :] if line.startswith("| full"))
    assert f"{np.mean(dice):.3f} ± {np.std(dice, ddof=1):.3f}" in row
