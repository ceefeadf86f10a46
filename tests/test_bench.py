"""The bench's own code on small instances of all its kinds: every energy equals the other libraries'."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("maxflow")
sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

from discoseg.config import GridConfig, NetworkConfig, OptimiserConfig
from instances import choose_instances, compare
from rivals import RIVALS
from states import CONFIG, Volume, trained_volumes


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory) -> list[Volume]:
    """Volumes of 32×32 slices and states of a training of three epochs."""
    config = replace(
        CONFIG,
        grid=GridConfig(shape=(32, 32), clip_percent=(0.5, 99.5)),
        network=NetworkConfig(name="unet", width=2),
        optimiser=OptimiserConfig(batch=4, lr=1e-2),
    )
    cache = tmp_path_factory.mktemp("bench")
    return list(trained_volumes(None, cache=cache, config=config, stages={"early": 1, "middle": 2, "late": 3}))


def test_energies_equal_pymaxflow(volumes: list[Volume]) -> None:
    assert {volume.seeds is None for volume in volumes} == {True, False}
    rows = [compare(instance, repeats=1) for instance in choose_instances(volumes, each=3)]
    assert len(rows) >= 100
    assert any(row.inside for row in rows)
    for row in rows:
        assert abs(row.difference) < 1e-9, row


@pytest.mark.parametrize("library", ["SciPy", "OR-tools"])
def test_energies_equal_other_libraries(volumes: list[Volume], library: str) -> None:
    if library == "OR-tools":
        pytest.importorskip("ortools")
    for instance in choose_instances(volumes[::3], each=1):
        row = compare(instance, repeats=1, rival=RIVALS[library])
        assert abs(row.difference) < 1e-6, row  # they round to their own integers
