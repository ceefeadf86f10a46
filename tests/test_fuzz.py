"""A few hundred mutated files and requests: each is read, or refused in one printable line. bench/fuzz.py has more."""

import random
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra web is not installed")
sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from discoseg.errors import UserError
from fuzz_runs import run_targets, server_targets
from fuzz_targets import Target, Workshop

FAMILIES = (
    *("nii", "nii.gz", "mhd", "mha", "nrrd", "png", "tif", "mhd data"),
    *("dataset.json", "decathlon", "discoseg.json", "splits.json", "cases.csv", "Info.cfg"),
    *("clicks.json", "clicks.csv", "sizes.csv", "toml", "atlas.npz"),
    *("model", "checkpoint", "next.csv", "run.json", "metrics.csv", "contours.npz", "volumes.csv", "result.json"),
    *("request", "state.json", "layers"),
)


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    shop = Workshop(tmp_path_factory.mktemp("fuzz") / "shop")
    return {**shop.targets, **run_targets(shop), **server_targets(shop)}


@pytest.mark.parametrize("family", FAMILIES)
def test_whatever_is_read_is_refused_in_one_line_at_most(family: str, targets: dict[str, Target]) -> None:
    target = targets[family]

    @settings(max_examples=12, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(seed=st.integers(0, 2**32 - 1))
    def read(seed: int) -> None:
        data, start, said = target.make(random.Random(seed)), time.monotonic(), ""
        try:
            target.read(data)
        except UserError as error:
            said = str(error)
        assert said.isprintable()
        assert time.monotonic() - start < 10

    read()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_examples_themselves_are_read(family: str, targets: dict[str, Target]) -> None:
    if family != "request":
        for data in targets[family].valid:
            targets[family].read(data)
