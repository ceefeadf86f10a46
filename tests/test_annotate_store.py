"""Annotations on disk: any actions of two windows, and any moment of a kill, leave files that say the same."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from discoseg.config import GridConfig
from discoseg.data.layouts import find_dataset
from discoseg.data.volume import Volume, read_label_map, read_volume, same_geometry, write_volume
from discoseg.errors import UserError
from discoseg.weak.clicks import read_clicks
from discoseg.weak.seeds import build_book, make_seeds
from discoseg.weak.sizes import SizesMl
from discoseg.web.annotator import Annotator
from discoseg.web.seeder import BALL_MM
from discoseg.web.store import Conflict

SHAPE = (3, 4, 5)  # (z, y, x)
SPACING_MM = (3.0, 1.5, 2.0)
IGNORE = 4
STRUCTURES = {"RV": 1, "LV": 3}
MEANINGS = [IGNORE, 1, 3, 0]  # of 0 nothing, the structures in order, background
FILES = {"a": "a.nii.gz", "b": "b.mha", "c": "c.mhd", "d": "d.nrrd", "e.1": "e.1.nii"}


def write_dataset(root: Path) -> None:
    """Write volumes of several formats, of a geometry with turned axes."""
    root.mkdir(parents=True)
    affine = np.array([[0, -1.5, 0, 7], [2.0, 0, 0, -3], [0, 0, 3.0, 1], [0, 0, 0, 1]])
    rng = np.random.default_rng(0)
    for file in FILES.values():
        write_volume(root / file, Volume(rng.integers(0, 99, SHAPE, np.int16), affine, SPACING_MM))
    rows = [f"{name},{file}" for name, file in FILES.items()]
    (root / "cases.csv").write_text("\n".join(["case,image", *rows]) + "\n")
    names = {"RV": 1, "MYO": 2, "LV": 3}
    (root / "discoseg.json").write_text(json.dumps({"cases": "cases.csv", "names": names, "ignore": IGNORE}))


def open_annotator(root: Path, out: Path) -> Annotator:
    return Annotator(find_dataset(root), out, structures=STRUCTURES)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("annotate") / "data"
    write_dataset(root)
    return root


class Model:
    """One case as plain dictionaries: what the files must say after the same actions."""

    def __init__(self) -> None:
        self.revision, self.state = 0, "new"
        self.clicks: dict[str, tuple[int, int, int]] = {}
        self.painted: dict[tuple[int, ...], int] = {}
        self.bounds: dict[str, tuple[float | None, float | None]] = {}

    def seed(self, voxel: tuple[int, ...]) -> int:
        """The label that the clicks alone give a voxel (z, y, x)."""
        near = set()
        for name, click in self.clicks.items():
            steps = [(a - b) * mm for a, b, mm in zip(voxel, click[::-1], SPACING_MM, strict=True)]
            if sum(step * step for step in steps) <= BALL_MM**2:
                near.add(STRUCTURES[name])
        return near.pop() if len(near) == 1 else IGNORE

    def labels(self) -> np.ndarray:
        labels = np.zeros(SHAPE, int)
        for voxel in product(*map(range, SHAPE)):
            labels[voxel] = self.painted.get(voxel, self.seed(voxel))
        return labels

    def paint(self, drawing: np.ndarray) -> None:
        before = self.labels()
        for voxel in product(*map(range, SHAPE)):
            wanted = MEANINGS[drawing[voxel]]
            if wanted == self.seed(voxel) != before[voxel]:
                self.painted.pop(voxel)
            elif wanted != before[voxel]:
                self.painted[voxel] = wanted

    def act(self, action: tuple[Any, ...]) -> None:
        kind, *what = action
        if kind == "click":
            self.clicks = {name: at for name, at in self.clicks.items() if name != what[0]} | {what[0]: what[1]}
        elif kind == "unclick":
            self.clicks.pop(what[0], None)
        elif kind == "paint":
            self.paint(stroke(self.labels(), *what))
        elif kind == "bound":
            self.bounds[what[0]] = what[1]
        self.revision += 1
        self.state = what[0] if kind == "mark" else "begun" if self.state == "new" else self.state


def stroke(labels: np.ndarray, corner: tuple[int, int, int], value: int) -> np.ndarray:
    """The drawing of a case, with ``value`` in the box from the first voxel to ``corner`` (z, y, x)."""
    drawing = np.array([MEANINGS.index(label) for label in labels.ravel()], np.uint8).reshape(SHAPE)
    drawing[tuple(slice(0, n + 1) for n in corner)] = value
    return drawing


def act(annotator: Annotator, case: str, revision: int, action: tuple[Any, ...]) -> None:
    kind, *what = action
    if kind == "click":
        annotator.click(case, revision, what[0], what[1])
    elif kind == "unclick":
        annotator.click(case, revision, what[0], None)
    elif kind == "paint":
        labels = np.array(MEANINGS)[annotator.drawing(case)[1]]
        annotator.paint(case, revision, stroke(labels, *what))
    elif kind == "bound":
        annotator.bound(case, revision, {what[0]: what[1]})
    else:
        annotator.mark(case, revision, what[0])


def require_equal(root: Path, out: Path, models: dict[str, Model]) -> None:
    """Compare what the files say with the models: the server's own, and those that others read."""
    annotator = open_annotator(root, out)
    cases = {case.name: case for case in find_dataset(root).cases}
    for name, model in models.items():
        record, layers = annotator.store.read(name)
        labels = model.labels()
        assert (record.revision, record.state) == (model.revision, model.state)
        assert dict(record.clicks) == model.clicks
        assert np.array_equal(layers.labels, labels)
        path = out / "labels" / FILES[name]
        assert path.is_file() == bool((labels != IGNORE).any())
        if path.is_file():
            stored, image = read_label_map(path), read_volume(cases[name].images[0])
            assert same_geometry(stored, image)
            assert np.array_equal(stored.array, labels)
            assert record.sizes_vox["LV"] == np.count_nonzero(labels == 3)
    annotator.store.close()
    clicks = {(name, label): at for name, model in models.items() for label, at in model.clicks.items()}
    path = out / "clicks.json"
    found = {key: click.position for key, click in read_clicks(path).items()} if path.is_file() else {}
    assert found == clicks
    begun = {name for name, model in models.items() if model.revision}
    assert (out / "sizes.csv").is_file() == bool(begun)
    sizes = SizesMl.read(None, out / "sizes.csv" if begun else None, ["RV", "LV"])
    for name in begun:
        low, high = models[name].bounds.get("LV", (None, None))
        assert sizes.of(name, "LV") == (low or 0.0, np.inf if high is None else high)
    left = {path.name for path in (out / "layers").iterdir()}
    assert len(left) <= len(begun)  # nothing is left of earlier revisions
    assert not [path for path in out.rglob(".*") if path.name not in (".lock", ".token")]


voxels = st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 2))  # (x, y, z)
sides = st.none() | st.sampled_from([1.5, 20.0])
actions = st.one_of(
    st.tuples(st.just("click"), st.sampled_from(["RV", "LV"]), voxels),
    st.tuples(st.just("unclick"), st.sampled_from(["RV", "LV"])),
    st.tuples(st.just("paint"), voxels.map(lambda v: v[::-1]), st.integers(0, 3)),
    st.tuples(st.just("bound"), st.sampled_from(["RV", "LV"]), st.tuples(st.just(1.0) | st.none(), sides)),
    st.tuples(st.just("mark"), st.sampled_from(["new", "begun", "done"])),
    st.tuples(st.just("look")),
    st.tuples(st.just("restart")),
)
steps = st.lists(st.tuples(st.integers(0, 1), st.sampled_from(["a", "c"]), actions), max_size=12)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps)
def test_any_actions_of_two_windows_are_as_in_a_plain_model(dataset: Path, script: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        annotator = open_annotator(dataset, out)
        models = {"a": Model(), "c": Model()}
        seen = [dict.fromkeys(models, 0), dict.fromkeys(models, 0)]  # the revisions that each window knows
        for window, case, action in script:
            model = models[case]
            if action[0] == "restart":
                annotator.store.close()
                annotator = open_annotator(dataset, out)
            elif action[0] == "look":
                seen[window][case] = model.revision
            elif seen[window][case] != model.revision:
                with pytest.raises(Conflict) as refused:
                    act(annotator, case, seen[window][case], action)
                assert refused.value.revision == model.revision
            else:
                act(annotator, case, model.revision, action)
                model.act(action)
                seen[window][case] = model.revision
        annotator.store.close()
        require_equal(dataset, out, models)


def test_painted_voxels_survive_a_nudged_click_and_an_undone_stroke_leaves_no_trace(
    dataset: Path, tmp_path: Path
) -> None:
    annotator = open_annotator(dataset, tmp_path / "out")
    annotator.click("a", 0, "LV", (1, 1, 1))
    _, before = annotator.drawing("a")
    painted = before.copy()
    painted[2] = 1  # RV on a slice, over what the click made
    painted[0, 0, 0] = 0  # erased
    annotator.paint("a", 1, painted)
    annotator.click("a", 2, "LV", (2, 1, 1))
    _, nudged = annotator.drawing("a")
    assert (nudged[2] == 1).all()
    assert nudged[0, 0, 0] == 0
    assert (nudged[1] != painted[1]).any()  # the rest went with the click
    annotator.click("a", 3, "LV", (1, 1, 1))
    assert np.array_equal(annotator.drawing("a")[1], painted)
    annotator.paint("a", 4, before)  # undo of the stroke
    annotator.click("a", 5, "LV", None)
    assert not annotator.drawing("a")[1].any()
    assert not (tmp_path / "out/labels/a.nii.gz").exists()


def test_one_of_many_requests_at_once_wins(dataset: Path, tmp_path: Path) -> None:
    annotator = open_annotator(dataset, tmp_path / "out")
    outcomes: list[int | None] = []
    barrier = threading.Barrier(8)

    def click(x: int) -> None:
        barrier.wait()
        try:
            annotator.click("a", 0, "LV", (x % 5, 0, 0))
            outcomes.append(x % 5)
        except Conflict:
            outcomes.append(None)

    threads = [threading.Thread(target=click, args=[x]) for x in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [x for x in outcomes if x is not None]
    annotator.store.close()
    model = Model()
    model.act(("click", "LV", (winner, 0, 0)))
    require_equal(dataset, tmp_path / "out", {"a": model})


KILLED: list[tuple[str, tuple[Any, ...]]] = [
    ("a", ("click", "LV", (2, 2, 1))),
    ("c", ("paint", (1, 1, 1), 1)),
    ("c", ("paint", (2, 3, 4), 0)),
]


def kill_at_every_step(root: Path, folder: Path) -> None:
    """Fork a process for each change of a file that the actions make, and let it kill itself just before that one.

    ``folder/N`` is what is left of the N-th, ``folder/N.done`` has a byte for each action that was acknowledged.
    """
    step = 0
    for case in ("a", "c"):  # so that no child has to import what reads and writes them
        warm = open_annotator(root, folder / f"warm-{case}")
        act(warm, case, 0, KILLED[0][1])
        warm.store.close()
    while True:
        step += 1
        child = os.fork()
        if child == 0:
            left = step

            def count(event: str, arguments: Any) -> None:
                nonlocal left
                changes = event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree")
                if changes or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
                    left -= 1
                    if left == 0:
                        os.kill(os.getpid(), signal.SIGKILL)

            done = os.open(folder / f"{step}.done", os.O_WRONLY | os.O_CREAT)
            sys.addaudithook(count)
            annotator = open_annotator(root, folder / str(step))
            for case, action in KILLED:
                act(annotator, case, annotator.store.record(case).revision, action)
                os.write(done, b".")
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:  # it came through
            return


def test_a_kill_between_any_two_steps_loses_nothing(dataset: Path, tmp_path: Path) -> None:
    script = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    script += "from pathlib import Path; from test_annotate_store import kill_at_every_step\n"
    script += "kill_at_every_step(Path(sys.argv[1]), Path(sys.argv[2]))"
    subprocess.run([sys.executable, "-c", script, str(dataset), str(tmp_path)], check=True)
    steps = sorted(int(path.stem) for path in tmp_path.glob("*.done"))
    assert len(steps) > 30
    for step in steps:
        out, done = tmp_path / str(step), (tmp_path / f"{step}.done").stat().st_size
        if not (out / "state.json").is_file():
            assert done == 0
            continue
        records = json.loads((out / "state.json").read_text())["cases"]
        count = sum(record["revision"] for record in records.values())
        assert count in (done, done + 1)  # the one that was under way counts wholly or not at all
        models = {"a": Model(), "c": Model()}
        for case, action in KILLED[:count]:
            models[case].act(action)
        require_equal(dataset, out, models)


def test_a_folder_is_open_once_and_only_if_it_is_ours(dataset: Path, tmp_path: Path) -> None:
    first = open_annotator(dataset, tmp_path / "out")
    with pytest.raises(UserError, match="another 'discoseg annotate' has it open"):
        open_annotator(dataset, tmp_path / "out")
    first.store.close()
    open_annotator(dataset, tmp_path / "out").store.close()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "clicks.json").write_text("{}")
    with pytest.raises(UserError, match="holds no annotations"):
        open_annotator(dataset, tmp_path / "full")
    (tmp_path / "out" / "state.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        open_annotator(dataset, tmp_path / "out")


def test_other_structures_stay_as_they_were(dataset: Path, tmp_path: Path) -> None:
    annotator = open_annotator(dataset, tmp_path / "out")
    annotator.click("a", 0, "RV", (1, 1, 1))
    drawing = annotator.drawing("a")[1].copy()
    drawing[0] = 1
    annotator.paint("a", 1, drawing)
    annotator.store.close()
    only_lv = Annotator(find_dataset(dataset), tmp_path / "out", structures={"LV": 3})
    assert not only_lv.drawing("a")[1].any()
    only_lv.click("a", 2, "LV", (4, 3, 2))
    drawing = only_lv.drawing("a")[1].copy()
    drawing[0, 0] = 2  # background over some of the other's voxels
    only_lv.paint("a", 3, drawing)
    labels = only_lv.store.read("a")[1].labels
    assert (labels[0, 0] == 0).all()
    assert (labels[0, 1:] == 1).all()
    assert (labels == 3).any()
    assert set(read_clicks(tmp_path / "out/clicks.json")) == {("a", "RV"), ("a", "LV")}


def test_seeds_of_clicks_are_those_of_discoseg_seeds(phantoms: Path, tmp_path: Path) -> None:
    dataset = find_dataset(phantoms)
    training = [case for case in dataset.cases if not case.test]
    grid = GridConfig((64, 64))
    make_seeds(dataset, training, tmp_path / "seeds", label=3, grid=grid, clicks=phantoms / "clicks.json")
    book = build_book(dataset, training, [3], grid)
    annotator = Annotator(dataset, tmp_path / "out", structures={"LV": 3}, book=book)
    for (case, _), click in read_clicks(phantoms / "clicks.json").items():
        x, y, z = map(int, click.position)
        annotator.click(case, 0, "LV", (x, y, z))
        made = read_label_map(tmp_path / f"out/labels/{case}.nii.gz")
        assert np.array_equal(made.array, read_label_map(tmp_path / f"seeds/{case}.nii.gz").array)


def test_background_waits_for_the_click_on_every_structure(phantoms: Path, tmp_path: Path) -> None:
    dataset = find_dataset(phantoms)
    training = [case for case in dataset.cases if not case.test]
    book = build_book(dataset, training, [1, 3], GridConfig((64, 64)))
    annotator = Annotator(dataset, tmp_path / "out", structures={"RV": 1, "LV": 3}, book=book)
    annotator.click("phantom_001", 0, "LV", (24, 24, 4))
    assert set(np.unique(annotator.drawing("phantom_001")[1])) == {0, 2}
    annotator.click("phantom_001", 1, "RV", (12, 24, 4))
    assert 3 in annotator.drawing("phantom_001")[1]


def test_seeds_of_structures_that_are_not_annotated_now_stay(phantoms: Path, tmp_path: Path) -> None:
    dataset = find_dataset(phantoms)
    training = [case for case in dataset.cases if not case.test]
    grid = GridConfig((64, 64))
    both = build_book(dataset, training, [1, 3], grid)
    annotator = Annotator(dataset, tmp_path / "out", structures={"RV": 1, "LV": 3}, book=both)
    annotator.click("phantom_001", 0, "LV", (24, 24, 4))
    annotator.click("phantom_001", 1, "RV", (12, 24, 4))
    before = annotator.store.read("phantom_001")[1].labels
    annotator.store.close()
    book = build_book(dataset, training, [3], grid)
    only_lv = Annotator(dataset, tmp_path / "out", structures={"LV": 3}, book=book)
    only_lv.click("phantom_001", 2, "LV", (26, 24, 4))
    after = only_lv.store.read("phantom_001")[1].labels
    assert np.array_equal(after == 1, before == 1)
    assert ((after == 3) != (before == 3)).any()  # the click's own went with it
    assert (after == 0).any()
    assert (before[after == 0] == 0).all()
    only_lv.click("phantom_001", 3, "LV", None)
    assert set(np.unique(only_lv.store.read("phantom_001")[1].labels)) == {1, IGNORE}
    only_lv.store.close()
    again = Annotator(dataset, tmp_path / "out", structures={"RV": 1, "LV": 3}, book=both)
    again.click("phantom_001", 4, "LV", (24, 24, 4))
    assert np.array_equal(again.store.read("phantom_001")[1].labels, before)


def test_a_map_that_could_not_be_written_is_written_later(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, volume: Volume) -> None:
        raise UserError(f"cannot write {path}: no space left on device")

    annotator = open_annotator(dataset, tmp_path / "out")
    models = {"a": Model(), "c": Model()}
    for case, later in (("a", "change"), ("c", "training")):
        action = ("click", "LV", (2, 2, 1))
        with monkeypatch.context() as patch:
            patch.setattr("discoseg.web.store.write_volume", fail)
            with pytest.raises(UserError, match="cannot write"):
                act(annotator, case, models[case].revision, action)
            models[case].act(action)  # it counts
            with pytest.raises(UserError, match="cannot write"), annotator.store.still():
                raise AssertionError("a training would miss the map")
        assert not (tmp_path / "out/labels" / FILES[case]).exists()
        if later == "change":
            act(annotator, "c", 0, ("mark", "begun"))
            models["c"].act(("mark", "begun"))
        else:
            with annotator.store.still():
                pass
        assert (tmp_path / "out/labels" / FILES[case]).is_file()
    annotator.store.close()
    require_equal(dataset, tmp_path / "out", models)
