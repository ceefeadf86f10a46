"""What several test files share: a cache of their own, and a small dataset of phantoms."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discoseg.data.phantom import make_phantom, write_phantom_dataset
from discoseg.data.prepare import Grid, image_to_grid, labels_to_grid
from discoseg.weak.bounds import bounds_from_eps
from discoseg.weak.examples import Example

if not Path("/dev/nvidiactl").exists():  # no GPU: Triton, which reads this when imported, interprets its kernels
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True, scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep prepared volumes away from the user's own cache."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISCOSEG_CACHE", str(folder))
        yield folder


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Networks this small are quicker on one thread."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put tensors where the Triton kernels run: on a GPU, or on the CPU by an interpreter with two shortcomings."""
    import torch
    from triton import language
    from triton.runtime import interpreter

    from discoseg.kernels import kernels_on

    patch_tensor, dot = interpreter._patch_lang_tensor, interpreter.InterpreterBuilder.create_dot

    def patch(tensor: Any, scope: Any) -> None:
        """Let numpy 2.4 read an array of one value as a number, which Triton 3.6 expects it to."""
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def widen(handle: Any) -> Any:
        """Return bfloat16, which the interpreter holds as integers and multiplies as such, as float32."""
        if handle.dtype.scalar != language.bfloat16:
            return handle
        return interpreter.TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), language.float32)

    def dot_of_any(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return dot(self, widen(a), widen(b), *rest)

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch)
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot_of_any)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device), kernels_on(device):
        yield


@pytest.fixture
def complaint(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must fail, check that it does so properly, and return the one line it says."""
    from test_cli import run

    def check(*arguments: object) -> str:
        capsys.readouterr()
        assert run(*arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("discoseg: error: ")
        return line

    return check


@pytest.fixture(scope="session")
def phantoms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of six training and two test phantoms, 48×48 in plane; read only."""
    folder = tmp_path_factory.mktemp("data") / "phantoms"
    write_phantom_dataset(folder, cases=6, test_cases=2, seed=1, in_plane=(48, 48))
    return folder


@pytest.fixture(scope="session")
def examples() -> list[Example]:
    """Four phantoms as training sees them: 32×32, seeds well inside and far outside the LV, bounds of ±10 %."""
    grid = Grid((32, 32), (0.5, 99.5), "LPS")
    found = []
    for seed in range(4):
        phantom = make_phantom(seed, in_plane=(48, 48))
        truth = labels_to_grid(phantom.label, grid) == 3
        found.append(_example(f"phantom{seed}", image_to_grid([phantom.image], grid, name="phantom"), truth))
    return found


def _example(name: str, image: np.ndarray, truth: np.ndarray) -> Example:
    from scipy.ndimage import binary_dilation, binary_erosion

    disc = np.ones((1, 3, 3), bool)
    seeds = np.full(truth.shape, -1, np.int8)
    seeds[binary_erosion(truth, disc, iterations=2)] = 1
    seeds[~binary_dilation(truth, disc, iterations=4)] = 0
    bounds = (bounds_from_eps(int(truth.sum()), 0.1),)
    return Example(name, image, seeds, truth.astype(np.int8), (9.0, 4.0, 4.0), bounds)


@pytest.fixture(scope="session")
def hearts() -> list[Example]:
    """Four phantoms with all their structures: scribbles inside each and outside all, bounds of ±10 %."""
    from scipy.ndimage import binary_dilation, binary_erosion

    grid, disc = Grid((32, 32), (0.5, 99.5), "LPS"), np.ones((1, 3, 3), bool)
    found = []
    for seed in range(4):
        phantom = make_phantom(seed, in_plane=(48, 48))
        truth = labels_to_grid(phantom.label, grid).astype(np.int8)
        seeds = np.full(truth.shape, -1, np.int8)
        seeds[~binary_dilation(truth > 0, disc, iterations=3)] = 0
        for value in (1, 2, 3):
            seeds[binary_erosion(truth == value, disc[:, 1:])] = value
        bounds = tuple(bounds_from_eps(int((truth == value).sum()), 0.1) for value in (1, 2, 3))
        image = image_to_grid([phantom.image], grid, name="phantom")
        found.append(Example(f"heart{seed}", image, seeds, truth, (9.0, 4.0, 4.0), bounds, ("RV", "MYO", "LV")))
    return found
