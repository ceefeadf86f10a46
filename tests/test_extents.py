"""Known first and last slices: read, written, and honoured by the masks of a second round alone."""

import csv
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from discoseg.config import Config, GridConfig, RoundsConfig
from discoseg.data.layouts import Dataset, find_dataset
from discoseg.data.volume import Volume, read_volume, write_volume
from discoseg.engines.local import _data_settings, _without_constraints
from discoseg.errors import UserError
from discoseg.weak.bounds import Bounds
from discoseg.weak.examples import Example
from discoseg.weak.extents import extent_of, limit_to, read_extents, write_extents
from discoseg.weak.seeds import make_seeds
from test_cli import SMALL, run
from test_rounds import ROUNDS
from test_train import _run

GRID = ["--grid", 48, 48]


def _dataset(folder: Path, codes: str) -> Dataset:
    """One case of 6 slices, (x, y, z) 4 × 5 × 6 in LPS, whose file has other axes."""
    volume = Volume(np.zeros((6, 5, 4), np.float32), np.diag([-1.0, -1.0, 10.0, 1.0]), (10.0, 1.0, 1.0))
    folder.mkdir()
    write_volume(folder / "a.nii.gz", volume.reoriented(codes))
    return find_dataset(folder)


@pytest.mark.parametrize("codes", ["LPS", "LPI", "SRA", "LIP"])
@pytest.mark.parametrize("extent", [(1, 4), (0, 2), (5, 5)])
def test_slices_are_counted_in_the_files_order(codes: str, extent: tuple[int, int], tmp_path: Path) -> None:
    dataset = _dataset(tmp_path / "data", codes)
    write_extents(tmp_path / "slices.csv", [(dataset.cases[0], "liver", extent)], "LPS")
    ((row),) = csv.DictReader((tmp_path / "slices.csv").open())
    expected = extent if "S" in codes else (5 - extent[1], 5 - extent[0])
    assert (int(row["first"]), int(row["last"])) == expected
    assert _read(tmp_path, dataset) == {"a": extent}


def _read(folder: Path, dataset: Dataset, structures: Sequence[str] = ("liver",)) -> dict[str, tuple[int, int]]:
    named = replace(dataset, labels={"background": 0, "liver": 1, "spleen": 2})
    values = {name: named.label_value(name) for name in structures}
    return read_extents(folder, named, named.cases, values, "LPS")


def test_what_a_table_of_slices_may_say(tmp_path: Path) -> None:
    dataset = _dataset(tmp_path / "data", "LPS")
    (tmp_path / "slices.csv").write_text("case,first,last\na,2,3\n")
    assert _read(tmp_path, dataset) == {"a": (2, 3)}
    (tmp_path / "slices.csv").write_text("case,label,first,last\na,spleen,0,5\na,Liver,2,2\n")
    assert _read(tmp_path, dataset) == {"a": (2, 2)}
    complaints = {
        "a,liver,3,2": "slices 3 to 2 of a, which has 0 to 5",
        "a,liver,0,6": "line 2: slices 0 to 6 of a, which has 0 to 5",
        "a,liver,-1,2": "slices -1 to 2",
        "a,liver,0.5,2": "slices 0.5 to 2",
        "a,liver,x,2": "first must be a number",
        "a,spleen,0,5": "has no slices of liver",
        "b,liver,0,5": "case b is not in",
        "a,kidney,0,5": "line 2: label 'kidney' is not in",
        "a,,0,5": "line 2: label '' is not in",
        "a,liver,0,5\na,liver,0,5": "line 3: case a liver stands in line 2 already",
        "a,liver,0,5\na,Liver,1,5": "line 3: case a stands in line 2 already",
    }
    for line, complaint in complaints.items():
        (tmp_path / "slices.csv").write_text(f"case,label,first,last\n{line}\n")
        with pytest.raises(UserError, match=complaint):
            _read(tmp_path, dataset)
    with pytest.raises(UserError, match="works for one structure, not for liver, spleen"):
        _read(tmp_path, dataset, ("liver", "spleen"))


def test_only_what_is_unknown_becomes_background() -> None:
    seeds = np.array([-1, 0, 1], np.int8)[:, None, None] * np.ones((3, 4, 5), np.int8)
    for first in range(3):
        for last in range(first, 3):
            limited = limit_to((first + 7, last + 7), seeds, start=7)
            inside = np.isin(np.arange(3), range(first, last + 1))
            assert np.array_equal(limited[inside], seeds[inside])
            assert np.array_equal(limited[~inside], np.maximum(seeds, 0)[~inside])
    mask = np.zeros((6, 2, 2), bool)
    mask[[1, 4], 0, 1] = True
    assert extent_of(mask) == (1, 4)


@pytest.mark.parametrize("soft", [None, 0.01])
def test_masks_in_a_single_slice(soft: float | None, examples: list[Example], tmp_path: Path) -> None:
    """Which has no room for their size, or their size with its margin; soft bounds do not count."""
    config = replace(ROUNDS, admm=replace(ROUNDS.admm, soft_bounds=soft))
    known = []
    for example in examples[:3]:
        z = len(example.seeds) // 2
        room = int(np.count_nonzero(example.seeds == 1) + np.count_nonzero(example.seeds[z] < 0))
        known.append(replace(example, slices=(z, z), bounds=(Bounds(room + 5, room + 9),)))
    masks, stop = _run([*known, examples[3]], config, tmp_path / "run").priors[0].proposal[0].numpy(), 0
    for example in known:
        start, stop = stop, stop + len(example.seeds)
        mask, seeded, z = masks[start:stop], example.seeds == 1, len(example.seeds) // 2
        assert np.array_equal(np.delete(mask, z, axis=0), np.delete(seeded, z, axis=0))
        if soft is None:
            assert np.array_equal(mask[z], example.seeds[z] != 0)  # all that is free


@pytest.mark.parametrize("honour", [True, False])
def test_masks_stay_within_the_slices_that_are_known(honour: bool, examples: list[Example], tmp_path: Path) -> None:
    """But for foreground seeds, which are known better; and they have their sizes. What comes before stays as it is."""
    config = replace(ROUNDS, admm=replace(ROUNDS.admm, honour_seeds=honour))
    plain = _run(examples, config, tmp_path / "plain").priors[0].proposal[0].numpy()
    there = [extent_of(example.truth == 1) for example in examples[:3] if example.truth is not None]
    shorter = [(first + 1, last - 1) for first, last in there]
    known = [replace(e, slices=slices) for e, slices in zip(examples, shorter, strict=False)]
    state = _run([*known, examples[3]], config, tmp_path / "run")
    masks, stop, beyond_before = state.priors[0].proposal[0].numpy(), 0, 0
    for example, (first, last) in zip(known, shorter, strict=True):
        start, stop = stop, stop + len(example.seeds)
        mask, (bounds,) = masks[start:stop], example.bounds or ()
        beyond = np.ones(mask.shape, bool)
        beyond[first : last + 1] = False
        assert np.array_equal(mask[beyond], (example.seeds[beyond] == 1) & honour)
        assert bounds.low_vox <= mask.sum() <= bounds.high_vox
        beyond_before += int((plain[start:stop][beyond] & (example.seeds[beyond] != 1)).sum())
    assert beyond_before > 0  # else this shows nothing
    first_rounds = [(tmp_path / name / "metrics.csv").read_text().splitlines()[:3] for name in ("plain", "run")]
    assert first_rounds[0] == first_rounds[1]
    with pytest.raises(UserError, match=r"training case phantom0 has changed \(annotation\)"):
        _run(examples, replace(config, epochs=6), tmp_path / "run", resume=True)


def test_examples_have_their_slices_whatever_the_epochs() -> None:
    """So that a run of one round can go on to a second one."""
    config = Config(rounds=RoundsConfig(first=60, slices=True), epochs=80)
    assert not config.has_second_round
    assert config.uses_slices
    assert not replace(config, method="size").uses_slices


def test_trainings_that_differ_in_slices_share_volumes() -> None:
    plain = Config(rounds=RoundsConfig(first=60))
    sliced = replace(plain, rounds=replace(plain.rounds, slices=True))
    assert _data_settings(plain) != _data_settings(sliced)
    assert _without_constraints(_data_settings(plain)) == _without_constraints(_data_settings(sliced))
    assert _data_settings(replace(sliced, rounds=replace(sliced.rounds, strength=1.0))) == _data_settings(sliced)


def test_an_atlas_across_other_slices_writes_none(tmp_path: Path) -> None:
    """Its grid is not the one that the network's slices will have."""
    label = np.zeros((6, 5, 4), np.uint8)
    label[1:4, 1:4, 1:3] = 1
    for codes in ("LPS", "RAI", "PSL"):
        for folder, array in (("imagesTr", label.astype(np.float32)), ("labelsTr", label)):
            (tmp_path / codes / folder).mkdir(parents=True)
            volume = Volume(array, np.diag([-1.0, -1.0, 10.0, 1.0]), (10.0, 1.0, 1.0)).reoriented(codes)
            suffix = "_0000.nii.gz" if folder == "imagesTr" else ".nii.gz"
            write_volume(tmp_path / codes / folder / f"a{suffix}", volume)
        names = {"channel_names": {"0": "CT"}, "labels": {"background": 0, "liver": 1}, "file_ending": ".nii.gz"}
        (tmp_path / codes / "dataset.json").write_text(json.dumps(names | {"numTraining": 1}))
        dataset = find_dataset(tmp_path / codes)
        atlas = None if codes == "LPS" else tmp_path / "LPS-seeds" / "atlas.npz"
        make_seeds(dataset, dataset.cases, tmp_path / f"{codes}-seeds", label=1, grid=GridConfig((16, 16)), atlas=atlas)
    tables = {codes: tmp_path / f"{codes}-seeds" / "slices.csv" for codes in ("LPS", "RAI", "PSL")}
    assert tables["LPS"].read_text() == "case,label,first,last\na,liver,1,3\n"
    assert tables["RAI"].read_text() == "case,label,first,last\na,liver,2,4\n"
    assert not tables["PSL"].exists()


def test_seeds_and_training_from_the_command_line(
    phantoms: Path, tmp_path: Path, complaint: Callable[..., str]
) -> None:
    weak, run_folder = tmp_path / "seeds", tmp_path / "run"
    assert run("seeds", phantoms, "--label", "LV", *GRID, "--out", weak) == 0
    with (weak / "slices.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5
    for row in rows:
        lv = read_volume(phantoms / "labelsTr" / f"{row['case']}.nii.gz").array == 3
        assert (row["label"], int(row["first"]), int(row["last"])) == ("LV", *extent_of(lv))
    clicked = ["--clicks", phantoms / "clicks.json", "--out", tmp_path / "clicked"]
    assert run("seeds", phantoms, "--label", "LV", *GRID, *clicked) == 0
    assert not (tmp_path / "clicked" / "slices.csv").exists()  # a click says nothing of them
    train = ["train", phantoms, *SMALL, "--size-eps", 0.1, "--rounds.first", 1, "--rounds.slices"]
    own = [*train, "--label", "LV", "--seeds", weak]
    assert run(*own, "--out", run_folder) == 0
    other = tmp_path / "other"
    content = (weak / "slices.csv").read_text()
    case, first, last = (rows[0][key] for key in ("case", "first", "last"))
    (weak / "slices.csv").write_text(content.replace(f"{case},LV,{first},{last}", f"{case},LV,{last},{last}"))
    line = complaint(*own, "--out", other)
    assert f"{case}, in its slices in {weak}/slices.csv: the lower size bound of" in line
    (weak / "slices.csv").write_text(content.replace(f"{case},LV,{first},{last}", f"{case},LV,0,{last}"))
    line = complaint(*own, "--out", run_folder, "--resume")
    assert f"{case}.nii.gz or {weak}/slices.csv has changed" in line
    (weak / "slices.csv").write_text(content.replace(f"{case},LV,{first},{last}\n", ""))
    assert f"{case}.nii.gz or {weak}/slices.csv has changed" in complaint(*own, "--out", run_folder, "--resume")
    shutil.copytree(weak, tmp_path / "none")
    (tmp_path / "none" / "slices.csv").unlink()
    line = complaint(*train, "--label", "LV", "--seeds", tmp_path / "none", "--out", other)
    assert "none: has no slices.csv (case,first,last), which --rounds.slices needs" in line
    assert "--seeds: is not given" in complaint(*train, "--label", "LV", "--out", other)
    line = complaint(*train, "--label", "RV,MYO,LV", "--seeds", weak, "--out", other)
    assert "--rounds.slices works for one structure" in line
    line = complaint(*own, "--rounds.first", 0, "--out", other)
    assert "--rounds.slices is about a second round, and --rounds.first is 0" in line
    assert "not with --grid.axis x" in complaint(*own, "--grid.axis", "x", "--out", other)
    assert not other.exists()
