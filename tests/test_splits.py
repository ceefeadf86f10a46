"""Splits by patient, from a file in any of its forms or drawn by a seed."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discoseg.data.layouts import Case, Dataset, find_dataset
from discoseg.data.splits import split_cases
from discoseg.errors import UserError

needs_data = pytest.mark.skipif("DISCOSEG_DATA" not in os.environ, reason="DISCOSEG_DATA is not set")


def make_dataset(patients: int, *, frames: int = 2, layout: str = "acdc") -> Dataset:
    cases = tuple(
        Case(f"p{p}_frame{f}", (Path(f"p{p}_{f}.nii"),), patient=f"p{p}")
        for p in range(patients)
        for f in range(frames)
    )
    test = Case("t0", (Path("t0.nii"),), patient="t0", test=True)
    return Dataset(Path("data"), layout, (*cases, test), {"background": 0, "LV": 1}, 2)


def names(cases: list[Case]) -> list[str]:
    return [case.name for case in cases]


@given(
    patients=st.integers(1, 30),
    frames=st.integers(1, 3),
    fraction=st.floats(0, 0.99),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_drawn_split_keeps_patients_together(patients: int, frames: int, fraction: float, seed: int) -> None:
    dataset = make_dataset(patients, frames=frames)
    training, validation = split_cases(dataset, fraction=fraction, seed=seed)
    assert not {case.patient for case in training} & {case.patient for case in validation}
    assert sorted(names(training) + names(validation)) == sorted(c.name for c in dataset.cases if not c.test)
    assert training
    count = len({case.patient for case in validation})
    if patients < 2 or fraction == 0:
        assert count == 0
    else:
        assert count == min(max(round(fraction * patients), 1), patients - 1)
    assert (training, validation) == split_cases(dataset, fraction=fraction, seed=seed)


def test_the_seed_matters_and_the_order_of_cases_does_not() -> None:
    dataset = make_dataset(20)
    turned = Dataset(dataset.root, "acdc", dataset.cases[::-1], dataset.labels, dataset.ignore)
    drawn = [names(split_cases(dataset, seed=seed)[1]) for seed in range(5)]
    assert len({tuple(d) for d in drawn}) > 1
    assert sorted(names(split_cases(turned, seed=3)[1])) == sorted(drawn[3])


@pytest.mark.parametrize("fraction", [-0.1, 1.0, 2.0, float("nan")])
def test_a_fraction_must_be_one(fraction: float) -> None:
    with pytest.raises(UserError, match="fraction"):
        split_cases(make_dataset(4), fraction=fraction)


@pytest.mark.parametrize(
    "content",
    [
        {"train": ["p0", "p2"], "val": ["p1"]},
        {"train": ["p0", "p2"], "validation": ["p1_frame0", "p1_frame1"]},
        [{"train": ["p0", "p2"], "val": ["p1"]}, {"train": ["p1"], "val": ["p0", "p2"]}],
        {"acdc": {"validation_patients": ["p1"]}, "promise12": {"validation_cases": ["Case02"]}},
        {"acdc": {"validation_cases": ["p1"]}},
        {"val": ["p1"]},
    ],
)
def test_every_form_of_a_split_file(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "split.json"
    path.write_text(json.dumps(content))
    training, validation = split_cases(make_dataset(3), split=path)
    assert names(training) == ["p0_frame0", "p0_frame1", "p2_frame0", "p2_frame1"]
    assert names(validation) == ["p1_frame0", "p1_frame1"]


def test_cases_that_a_file_with_both_lists_leaves_out_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    path.write_text(json.dumps({"train": ["p0_frame1"], "val": []}))
    training, validation = split_cases(make_dataset(3), split=path)
    assert names(training) == ["p0_frame1"]
    assert validation == []


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "JSON"),
        ("3", "lists of names"),
        ("[]", "lists of names"),
        ('{"promise12": {"validation_cases": []}}', "layout acdc"),
        ('{"train": "p0", "val": ["p1"]}', "'p0' must be a list"),
        ('{"train": ["p0"], "val": ["p9"]}', "'p9' is no patient or case"),
        ('{"train": ["p0"], "val": ["t0"]}', "'t0' is no patient or case"),
        ('{"train": ["p0_frame0"], "val": ["p0_frame1"]}', "p0 into both"),
        ('{"val": ["p0_frame1"]}', "p0 into both"),
        ('{"val": ["p0", "p1"]}', "no case of data for training"),
        ('{"train": [["p0"]], "val": []}', "must be a list"),
    ],
)
def test_a_split_file_that_cannot_work_is_named(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "split.json"
    path.write_text(content)
    with pytest.raises(UserError, match=rf"split\.json.*{complaint}"):
        split_cases(make_dataset(2), split=path)


FOLDS = [{"train": ["p0", "p2"], "val": ["p1"]}, {"train": ["p1", "p2"], "val": ["p0"]}]


@pytest.mark.parametrize(("suffix", "validating"), [("", "p1"), (":0", "p1"), (":1", "p0")])
def test_a_fold_is_chosen_by_its_number(tmp_path: Path, suffix: str, validating: str) -> None:
    (tmp_path / "splits_final.json").write_text(json.dumps(FOLDS))
    _, validation = split_cases(make_dataset(3), split=tmp_path / f"splits_final.json{suffix}")
    assert {case.patient for case in validation} == {validating}


def test_a_fold_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "folds.json").write_text(json.dumps(FOLDS))
    with pytest.raises(UserError, match=r"folds\.json:2: folds\.json has the folds 0 to 1; choose one of them$"):
        split_cases(make_dataset(3), split=tmp_path / "folds.json:2")
    (tmp_path / "one.json").write_text(json.dumps(FOLDS[0]))
    with pytest.raises(UserError, match=r"one\.json:0: one\.json has no folds; leave out ':0'$"):
        split_cases(make_dataset(3), split=tmp_path / "one.json:0")
    with pytest.raises(UserError, match=r"none\.json does not exist$"):
        split_cases(make_dataset(3), split=tmp_path / "none.json:0")


def test_the_datasets_own_split_counts_where_none_is_given(tmp_path: Path) -> None:
    for name, folds in (("own.json", FOLDS), ("given.json", FOLDS[1:])):
        (tmp_path / name).write_text(json.dumps(folds))
    dataset = replace(make_dataset(3), split=tmp_path / "own.json")
    assert names(split_cases(dataset)[1]) == ["p1_frame0", "p1_frame1"]
    assert names(split_cases(dataset, split=tmp_path / "given.json")[1]) == ["p0_frame0", "p0_frame1"]


def test_a_missing_split_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"split\.json does not exist"):
        split_cases(make_dataset(2), split=tmp_path / "split.json")


@needs_data
def test_the_papers_splits() -> None:
    data = Path(os.environ["DISCOSEG_DATA"])
    for name, train, val in (("acdc", 160, 40), ("promise12", 40, 10)):
        training, validation = split_cases(find_dataset(data / name), split=data / "splits.json")
        assert (len(training), len(validation)) == (train, val)
