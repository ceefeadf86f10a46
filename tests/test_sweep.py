"""Several trainings at once give the bytes of one after the other, and a failure stops nobody else."""

from dataclasses import replace
from pathlib import Path

import pytest

from discoseg.config import Config, OptimiserConfig
from discoseg.errors import UserError
from discoseg.sweep import _data_settings, fit_many
from discoseg.workflow import fit
from test_train import SMALL

TINY = replace(SMALL, label="LV", method="full", epochs=2)


def test_equals_one_after_the_other_and_resumes(phantoms: Path, tmp_path: Path) -> None:
    runs = {tmp_path / name: replace(TINY, seed=seed) for seed, name in enumerate(("a", "b"))}
    seen: dict[str, float] = {}
    fit_many(phantoms, runs, device="cpu", at_once=2, progress=lambda run, done, _: seen.update({run.name: done}))
    assert seen == {"a": 2, "b": 2}
    fit(phantoms, tmp_path / "alone", replace(TINY, seed=1), device="cpu")
    final = "checkpoints/final.safetensors"
    assert (tmp_path / "b" / final).read_bytes() == (tmp_path / "alone" / final).read_bytes()
    with pytest.raises(UserError, match="already in use"):
        fit_many(phantoms, runs, device="cpu")
    before = (tmp_path / "a" / final).stat().st_mtime_ns
    (tmp_path / "b" / final).unlink()
    fit_many(phantoms, runs, device="cpu", resume=True)
    assert (tmp_path / "a" / final).stat().st_mtime_ns == before
    assert (tmp_path / "b" / final).read_bytes() == (tmp_path / "alone" / final).read_bytes()


def test_a_failure_is_named_and_stops_nobody_else(phantoms: Path, tmp_path: Path) -> None:
    runs = {
        tmp_path / "bad": replace(TINY, optimiser=OptimiserConfig(lr=1e30)),
        tmp_path / "good": TINY,
    }
    with pytest.raises(UserError, match=r"bad: the loss became"):
        fit_many(phantoms, runs, device="cpu")
    assert (tmp_path / "good/checkpoints/final.safetensors").is_file()


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (replace(SMALL, seed=5, epochs=9, method="size"), True),
        (replace(SMALL, method="penalty"), True),
        (replace(SMALL, method="full"), False),
        (replace(SMALL, method="partial"), False),
        (replace(SMALL, label="RV"), False),
        (replace(SMALL, size_eps=0.2), False),
        (replace(SMALL, admm=replace(SMALL.admm, honour_seeds=False)), False),
    ],
)
def test_shares_examples_only_where_they_are_equal(other: Config, same: bool) -> None:
    assert (_data_settings(other) == _data_settings(SMALL)) is same
