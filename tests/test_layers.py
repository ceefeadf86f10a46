"""The house: dependencies point downwards only, and importing discoseg is cheap."""

import ast
import subprocess
import sys
import types
from pathlib import Path

import pytest

import discoseg

ROOT = Path(discoseg.__file__).parent
LAYERS = [
    {"__main__"},
    {"cli"},
    {"commands"},
    {"experiments", "web"},
    {"report", "sweep", "export"},
    {"engines"},
    {"workflow", "evaluation", "predict", "next_case", "about_run"},
    {"train", "uncertainty"},
    {"rounds", "size_bias"},
    {"epoch"},
    {"start", "proposers"},
    {"material", "training_pass", "prediction_pass", "checkpoints", "labelling", "disagreement", "contours"},
    {"run", "scores", "proposals", "multipliers", "undo", "snapshots"},
    {"state", "shard_files", "devices"},
    {"admm", "losses", "augment", "networks", "metrics", "checkpoint", "slices", "selection", "replay", "clock"},
    {"ranks", "certified"},
    {"regions", "determinism", "launch_store", "averaging", "finished"},
    {"kernels", "postprocess", "images", "volumes", "enforce", "surroundings", "checkpoint_header"},
    {"weak", "not_begun"},
    {"discrete", "data", "thinning", "shards"},
    {"presets"},
    {"config", "plain", "terminal", "waiting", "out_of_memory", "interruption", "launch"},
    {"texts"},
    {"errors"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def _part(path: Path) -> str:
    relative = path.relative_to(ROOT)
    return relative.parts[0].removesuffix(".py")


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "discoseg":
            parts = node.module.split(".")[1:2]
            found |= set(parts) if parts else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("discoseg.")}
    return found & LEVEL.keys()


FILES = [path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_downwards(path: Path) -> None:
    part = _part(path)
    assert part in LEVEL, f"{part} has no place in the house yet"
    upwards = {name for name in _imports(path) if name != part and LEVEL[name] <= LEVEL[part]}
    assert upwards == set()


@pytest.mark.parametrize("module", ["discoseg", "discoseg.cli", "discoseg.config"])
def test_import_is_cheap(module: str) -> None:
    heavy = ("torch", "monai", "scipy", "numba", "nibabel", "SimpleITK", "matplotlib", "numpy")
    script = f"import sys, {module}; print([m for m in {heavy!r} if m in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


def test_discrete_solvers_need_no_torch() -> None:
    script = "import sys, discoseg.discrete; print('torch' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "False"


def test_every_public_name_works() -> None:
    for name in discoseg.__all__:
        value = getattr(discoseg, name)
        assert value.__doc__
        assert not isinstance(value, types.ModuleType)
        assert getattr(discoseg, name) is value
