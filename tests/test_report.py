import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from discoseg.errors import UserError
from discoseg.report import write_report
from discoseg.report.figures import COLOURS
from discoseg.report.gallery import Gallery

FEW = {"epoch": [1, 2, 3]}
VOID = {"meta", "br", "link", "img", "input", "hr"}


def write_csv(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def all_metrics(epochs: int, *, proposals: bool, validation: bool, truth: bool) -> dict[str, list[float]]:
    rising = [0.8 * (1 - 0.5**epoch) for epoch in range(1, epochs + 1)]
    columns: dict[str, list[float]] = {"epoch": list(range(1, epochs + 1)), "loss": rising, "loss_seeds": rising}
    splits = ["train", "val"] if validation else ["train"]
    for kind in ("crf", "size") if proposals else ():
        columns |= {f"loss_{kind}": rising, f"primal_{kind}": rising, f"dual_{kind}": [0.0] * epochs}
        if truth:
            columns[f"{kind}_dice"] = rising
    for split in splits if truth else ():
        columns |= {f"{split}_dice": rising, f"{split}_size_ratio": rising, f"{split}_size_ratio_std": rising}
    return columns


def write_snapshot(path: Path, cases: Sequence[str], *, proposals: bool, truth: bool, side: int = 24) -> None:
    arrays: dict[str, NDArray[Any]] = {"names": np.array(cases)}
    mask = np.zeros((side, side), dtype=bool)
    mask[side // 3 : side // 2, side // 3 : side // 2] = True
    for k in range(len(cases)):
        noise = np.random.default_rng(k).integers(0, 256, (side, side), dtype=np.uint8)
        arrays |= {f"{k}.image": noise, f"{k}.probability": np.where(mask, 230, noise // 4).astype(np.uint8)}
        arrays[f"{k}.seeds"] = np.where(mask, 1, -1).astype(np.int8)
        if truth:
            arrays[f"{k}.truth"] = mask
        if proposals:
            arrays |= {f"{k}.crf": np.roll(mask, 1, axis=0), f"{k}.size": np.roll(mask, 1, axis=1)}
    np.savez_compressed(path, allow_pickle=False, **arrays)


def write_run(
    root: Path,
    *,
    method: str = "crf+size",
    epochs: int = 3,
    size_eps: float | None = 0.1,
    validation: bool = True,
    truth: bool = True,
    cases: Sequence[str] = ("a", "b"),
    snapshots: Sequence[int] = (1, 3),
    metrics: Mapping[str, Sequence[Any]] | None = None,
) -> Path:
    """A run folder as a training leaves it, written by hand; fewer ``metrics`` make fewer, and faster, figures."""
    proposals = method == "crf+size"
    (root / "snapshots").mkdir(parents=True)
    bounds = "" if size_eps is None else f"size_eps = {size_eps}\n"
    text = f'method = "{method}"\nepochs = {epochs}\n{bounds}\n[network]\nname = "enet"\n'
    (root / "config.toml").write_text(text, encoding="utf-8")
    facts = {"training": list(cases), "validation": [], "device": "cpu", "versions": {"discoseg": "0.1.0"}}
    facts["command"] = "discoseg train data --out run"
    (root / "run.json").write_text(json.dumps(facts | {"model": {"labels": {"LV": 3}}}))
    columns = all_metrics(epochs, proposals=proposals, validation=validation, truth=truth)
    write_csv(root / "metrics.csv", metrics or columns)
    if metrics is None:
        seconds = {"epoch": range(1, epochs + 1), "network": [2.0] * epochs, "predict": [1.0] * epochs}
        write_csv(root / "timing.csv", seconds)
    table: dict[str, Sequence[Any]] = {"case": cases, "split": ["training"] * len(cases)}
    table["size_vox"] = [12] * len(cases)
    if size_eps is not None:
        table |= {"low_vox": [9] * len(cases), "high_vox": [11] * len(cases)}
    if truth:
        table |= {"dice": np.linspace(0.5, 0.9, len(cases)).round(3).tolist(), "true_vox": [10] * len(cases)}
    write_csv(root / "cases.csv", table)
    for epoch in snapshots:
        path = root / f"snapshots/epoch_{epoch:04d}.npz"
        write_snapshot(path, cases, proposals=proposals, truth=truth)
    return root


class Page(HTMLParser):
    """The elements of a page; complains about tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {key: value or "" for key, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {key: value or "" for key, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] not in (["style"], ["script"]):
            self.text += " ".join(data.split()) + "\n" if data.strip() else ""

    def values(self, attribute: str) -> list[str]:
        return [attributes[attribute] for _, attributes in self.elements if attribute in attributes]


def report(tmp_path: Path, *runs: Path, evaluations: Mapping[str, Path] | None = None) -> str:
    out = tmp_path / "report.html"
    write_report(runs, out, evaluations=evaluations)
    return out.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    return [write_run(root / "one"), write_run(root / "two", method="penalty")]


@pytest.fixture(scope="module")
def page_of_two(two_runs: list[Path]) -> str:
    return report(two_runs[0].parent, *two_runs)


def test_page_needs_nothing_but_itself(page_of_two: str) -> None:
    text, page = page_of_two, Page(page_of_two)
    assert "://" not in text
    assert not re.search(r"@import|<script[^>]|<link|<iframe|xlink|fetch\(|import\(|XMLHttp", text)
    assert all(source.startswith("data:") for source in page.values("src"))
    targets = page.values("href")
    assert all(target.startswith(("#", "data:image/png;base64,")) for target in targets)
    names = page.values("id")
    assert [name for name, times in Counter(names).items() if times > 1] == []
    used = {target[1:] for target in targets if target[0] == "#"} | set(re.findall(r"url\(#([^)]*)\)", text))
    assert re.findall(r"url\((?!#)", text) == []
    assert used <= set(names)


def test_only_the_pages_own_script_may_run(page_of_two: str) -> None:
    (script,) = re.findall(r"<script>(.*?)</script>", page_of_two, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = (
        a["content"] for _, a in Page(page_of_two).elements if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


def test_colours_are_those_of_the_papers_figures(page_of_two: str) -> None:
    for number, colour in enumerate(COLOURS):
        assert f"--c{number}: {colour};" in page_of_two


def test_page_has_every_part(page_of_two: str) -> None:
    page = Page(page_of_two)
    sections = [attributes["id"] for tag, attributes in page.elements if tag == "section"]
    parts = ["progress", "volumes", "bounds", "contours", "evolution", "cases", "proposals", "losses", "time"]
    assert sections == ["summary", *parts, "configuration"]
    for title in ("3D Dice", "Size ratio, training", "Size ratio, validation", "CRF proposal", "network"):
        assert f"{title}\n" in page.text
    assert 'method = "crf+size"' in page.text
    assert '"discoseg": "0.1.0"' in page.text
    assert "discoseg train data --out run\n" in page.text


def test_same_runs_give_same_bytes(two_runs: list[Path], page_of_two: str, tmp_path: Path) -> None:
    assert report(tmp_path, *two_runs) == page_of_two


def test_summary_names_last_and_best_epoch(tmp_path: Path) -> None:
    metrics: dict[str, Sequence[Any]] = {
        "epoch": [1, 2, 3],
        "val_dice": [0.5, 0.8, 0.7],
        "train_inside_bounds": [0, 0, 0.25],
    }
    metrics |= {"val_size_ratio": [1, 1, 1.2], "val_size_ratio_std": [0, 0, 0.3]}
    run = write_run(tmp_path / "run", epochs=5, metrics=metrics)
    write_csv(run / "timing.csv", {"epoch": [1, 2, 3], "network": [10, 20, 30], "crf": [6, 6, 6]})
    text = Page(report(tmp_path, run)).text
    assert "validation 3D Dice, last epoch\n0.700\n" in text
    assert "validation 3D Dice, best epoch\n0.800 (epoch 2)\n" in text
    assert "size ratio, validation\n1.20 ± 0.30\n" in text
    assert "inside bounds, training\n25 %\n" in text
    assert "epochs\n3 of 5\n" in text
    assert "time per epoch\n26.0 s\n" in text
    assert "size bounds\n±10 % of the true size\n" in text
    assert "training 3D Dice" not in text  # no such column


def test_better_run_stands_out(tmp_path: Path) -> None:
    good = write_run(tmp_path / "good", metrics={"epoch": [1], "val_dice": [0.8]})
    bad = write_run(tmp_path / "bad", metrics={"epoch": [1], "val_dice": [0.6]})
    text = report(tmp_path, good, bad)
    assert '<th>validation 3D Dice, last epoch</th><td class="best">0.800</td><td>0.600</td>' in text


@pytest.mark.parametrize(("eps", "lines"), [((None, None), 0), ((0.1, 0.1), 2), ((0.1, None), 2), ((0.1, 0.2), 4)])
def test_bounds_are_drawn_in_both_panels(tmp_path: Path, eps: tuple[float | None, float | None], lines: int) -> None:
    ratios = {"epoch": [1, 2], "train_size_ratio": [2, 1], "val_size_ratio": [2, 1]}
    runs = [write_run(tmp_path / str(k), size_eps=e, snapshots=(), metrics=ratios) for k, e in enumerate(eps)]
    assert report(tmp_path, *runs).count('class="bounds"') == 2 * lines


def test_far_off_size_ratio_is_cut_and_said(tmp_path: Path) -> None:
    ratios: dict[str, Sequence[Any]] = {
        "epoch": [1, 2, 3],
        "train_size_ratio": [40, 2, 1],
        "train_size_ratio_std": [1.0, 0.1, 0.1],
    }
    assert "Values up to 41 are cut off." in report(tmp_path, write_run(tmp_path / "run", metrics=ratios))


@pytest.mark.parametrize(
    "options",
    [
        {"method": "full"},
        {"method": "partial", "validation": False, "size_eps": None},
        {"truth": False, "validation": False},
        {"epochs": 1, "snapshots": ()},
        {"cases": ()},
    ],
)
def test_parts_that_a_run_lacks_are_left_out(tmp_path: Path, options: dict[str, Any]) -> None:
    page = Page(report(tmp_path, write_run(tmp_path / "run", **options)))
    assert ("Proposals" in page.text) == ("method" not in options)
    assert ("Size ratio, validation" in page.text) == options.get("validation", True)
    assert ("3D Dice\n" in page.text) == options.get("truth", True)
    assert ("Bland–Altman" in page.text) == (options.get("truth", True) and options.get("cases") != ())
    assert ("Sizes within their bounds" in page.text) == (
        options.get("size_eps", 0.1) is not None and options.get("cases") != ()
    )
    assert ("Contours by case" in page.text) == bool(options.get("cases", True) and options.get("snapshots", True))


def test_run_just_begun(tmp_path: Path) -> None:
    metrics: dict[str, Sequence[Any]] = {"epoch": [1], "loss": ["nan"], "primal_crf": ["inf"]}
    metrics |= {"train_dice": [""], "train_size_ratio": [""]}
    run = write_run(tmp_path / "run", snapshots=(), metrics=metrics)
    (run / "cases.csv").unlink()
    page = Page(report(tmp_path, run))
    assert "epochs\n1 of 3\n" in page.text
    assert "Cases" not in page.text


def test_names_are_escaped(tmp_path: Path) -> None:
    evil = '<script>"&$x^2$'
    run = write_run(tmp_path / evil, cases=(evil, "b"), metrics=FEW)
    (run / "cases.csv").write_text('case,split,size_vox\n"<script>""&$x^2$",training,3\n')
    (run / "config.toml").write_text('method = "</pre><script>"\n')
    text = report(tmp_path, run, write_run(tmp_path / "other", cases=(evil, "b"), metrics=FEW))
    assert '<script>"' not in text
    assert text.count("<script") == 1
    assert "&lt;/pre&gt;&lt;script&gt;" in text
    assert Page(text).text.count(evil) > 5


def test_cases_are_sorted_by_dice(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", snapshots=(), metrics=FEW)
    columns: dict[str, list[Any]] = {"case": ["mid", "top", "low"], "split": ["validation"] * 3}
    columns |= {"dice": [0.5, 0.9, 0.1], "size_vox": [10, 20, 5], "true_vox": [10] * 3}
    write_csv(run / "cases.csv", columns | {"low_vox": ["", 9, 9], "high_vox": ["", 11, 11]})
    text = Page(report(tmp_path, run)).text
    assert "best top (0.900), worst low (0.100)" in text
    assert "top\n0.900\n2.00 ▲\nmid\n0.500\n1.00\nlow\n0.100\n0.50 ▼\nmean ± standard deviation\n0.500 ± 0.327" in text


def test_slider_goes_through_all_epochs_of_all_runs(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", snapshots=(1, 2, 5), cases=("a",), metrics=FEW)
    two = write_run(tmp_path / "two", snapshots=(1, 2, 3), cases=("a", "b"), metrics=FEW)
    (one / "snapshots/epoch_x.npz").touch()
    page = Page(report(tmp_path, one, two))
    assert page.values("data-epochs") == ["1 2 3 5"]
    assert page.values("data-epoch") == ["1", "2", "5", "1", "2", "3", "1", "2", "3"]  # a of one, a and b of two


def write_contours(run: Path, cases: Mapping[str, str]) -> None:
    """Contours of cases by their split, as a training leaves them."""
    arrays: dict[str, NDArray[Any]] = {"names": np.array(list(cases)), "splits": np.array(list(cases.values()))}
    for k in range(len(cases)):
        mask = np.zeros((24, 24), dtype=np.int8)
        mask[8:12, 8 : 12 + k] = 1
        arrays |= {f"{k}.image": np.full((24, 24), 9 * k, np.uint8), f"{k}.mask": mask, f"{k}.truth": mask}
    np.savez_compressed(run / "contours.npz", allow_pickle=False, **arrays)


def contours_of(text: str) -> str:
    return text[text.index('id="contours"') : text.index('id="evolution"')]


def test_contours_are_sorted_by_dice_of_the_volume(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", cases=("a", "b", "c"), metrics=FEW)  # Dice 0.5, 0.7 and 0.9
    write_contours(run, {"b": "training", "a": "training", "c": "training"})
    shown = contours_of(report(tmp_path, run))
    assert re.findall(r"<small>(\w)</small>", shown) == ["c", "b", "a"]
    assert re.findall(r"<b>([\d.]+)</b>", shown) == ["0.900", "0.700", "0.500"]


def test_contours_without_their_splits_are_broken(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", metrics=FEW)
    write_contours(run, {"a": "training"})
    with np.load(run / "contours.npz") as file:
        np.savez(run / "contours.npz", **{key: file[key] for key in file.files if key != "splits"})
    with pytest.raises(UserError, match=r"contours\.npz: broken"):
        report(tmp_path, run)


def test_runs_that_still_train_have_the_contours_of_their_snapshots(tmp_path: Path) -> None:
    one, two = (
        write_run(tmp_path / "one", cases=("a", "b"), metrics=FEW),
        write_run(tmp_path / "two", cases=("c", "b"), metrics=FEW),
    )
    shown = contours_of(report(tmp_path, one, two))
    assert sorted(re.findall(r"<small>(\w)</small>", shown)) == ["a", "b", "c"]
    assert shown.count('class="outline run0 k1"') == shown.count('class="outline run1 k1"') == 2
    assert shown.count('class="truth k1"') == 4


def test_several_structures_have_their_own_curves_and_tables(tmp_path: Path) -> None:
    both = write_run(tmp_path / "both", metrics={"epoch": [1, 2], "val_dice": [0.3, 0.5]}, snapshots=(), size_eps=None)
    rows = (
        "epoch,val_dice,val_dice_RV,val_dice_LV,train_size_ratio,train_size_ratio_LV\n1,.3,.1,.5,1,1\n2,.5,.3,.7,1,1\n"
    )
    (both / "metrics.csv").write_text(rows)
    facts = json.loads((both / "run.json").read_text()) | {"model": {"labels": {"RV": 1, "LV": 3}}}
    (both / "run.json").write_text(json.dumps(facts))
    table: dict[str, list[Any]] = {"case": ["a", "b"], "split": ["training"] * 2, "dice": [0.4, 0.6]}
    for name in ("RV", "LV"):
        table |= {f"dice_{name}": [0.4, 0.6], f"size_vox_{name}": [10, 30], f"true_vox_{name}": [20, 20]}
        table |= {f"low_vox_{name}": [10, 10], f"high_vox_{name}": [25, 40 if name == "LV" else 25]}
    write_csv(both / "cases.csv", table | {"voxel_ml": [0.1, 0.1]})
    alone = write_run(tmp_path / "alone", metrics={"epoch": [1], "val_dice": [0.8]}, snapshots=(), size_eps=None)
    text = Page(report(tmp_path, both, alone)).text
    for title in ("3D Dice, mean of the structures", "3D Dice, RV", "3D Dice, LV", "Size ratio, LV"):
        assert f"\n{title}\n" in text
    assert "validation 3D Dice of LV, last epoch\n0.700\n0.800\n" in text
    assert "validation 3D Dice of RV, last epoch\n0.300\n–\n" in text
    assert "Training volumes, RV, both\n1 of 2 within their bounds.\n" in text
    assert "Training volumes, LV, both\n2 of 2 within their bounds.\n" in text
    assert "best training case, 3D Dice\n0.600 (b)\n" in text
    assert "worst training case, 3D Dice\n0.400 (a)\n" in text


def test_volumes_have_bias_and_limits_in_millilitres(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, snapshots=(), metrics=FEW) for name in ("run-a", "run-b")]
    for run, shift in zip(runs, (0, 20), strict=True):
        columns: dict[str, list[Any]] = {"case": ["a", "b", "c"], "split": ["validation"] * 3, "dice": [0.5] * 3}
        columns |= {"size_vox": [110 + shift, 190 + shift, 320 + shift], "true_vox": [100, 200, 300]}
        write_csv(run / "cases.csv", columns | {"voxel_ml": [0.5] * 3})
    text = report(tmp_path, *runs)
    for name, shift in (("run-a", 0), ("run-b", 10)):
        differences = np.array([5.0, -5.0, 10.0]) + shift
        bias, spread = differences.mean(), 1.96 * differences.std(ddof=1)
        numbers = f"bias {bias:+.3g} ml, limits {bias - spread:+.3g} to {bias + spread:+.3g} ml."
        assert f"{name}: " + numbers.replace("-", "−") in text
    assert "c: 160 ml predicted, 150 ml true" in text
    assert text.count('class="bias"') == 2
    assert text.count('class="limit"') == 4


def test_sizes_beyond_their_bounds_are_set_off(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", snapshots=(), metrics=FEW, cases=("a", "b", "c"))
    write_csv(
        run / "cases.csv",
        {
            "case": ["a", "b", "c"],
            "split": ["training"] * 3,
            "size_vox": [8, 10, 12],
            "low_vox": [9] * 3,
            "high_vox": [11, 11, 10**6],
        },
    )
    text = report(tmp_path, run)
    assert "2 of 3 within their bounds." in text
    assert text.count('class="dot out"') == 1


def test_images_stand_once_however_often_shown(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", metrics=FEW)
    alone = report(tmp_path, one).count("<image ")
    write_report([one, write_run(tmp_path / "two", metrics=FEW)], tmp_path / "two.html")
    assert (tmp_path / "two.html").read_text().count("<image ") == alone


def test_contour_encloses_the_mask() -> None:
    mask = np.zeros((20, 20), dtype=bool)
    mask[8:12, 7:13] = True
    image = np.zeros((20, 20), dtype=np.uint8)
    tile = Gallery().tile({"image": image, "truth": mask, "seeds": mask.astype(np.int8)}, truth=True)
    start, moves = re.findall(r'd="M([-\d ]*)l([-\d ]*)z"', tile)[0]
    steps = np.array([*start.split(), *moves.split()], dtype=int).reshape(-1, 2)
    x, y = np.cumsum(steps, axis=0).T / 2  # in pixels
    area = abs(np.sum(x * np.roll(y, 1) - y * np.roll(x, 1))) / 2
    assert area == 4 * 6 - 0.5  # the corners are cut, an eighth of a pixel each
    assert (np.ptp(x), np.ptp(y)) == (6, 4)
    assert 'viewBox="0 0 36 36"' in tile  # three times the structure's extent, in half pixels
    assert (x.min() + x.max()) / 2 == 9


def test_evaluations_from_csv_and_json(tmp_path: Path) -> None:
    rows = [
        {"case": "p1", "label": 3, "dice": 0.25, "hd95_mm": None},
        {"case": "p2", "label": 3, "dice": 0.75, "hd95_mm": 4.26},
    ]
    (tmp_path / "e.json").write_text(json.dumps({"cases": rows}))
    table: dict[str, list[Any]] = {key: ["" if row[key] is None else row[key] for row in rows] for key in rows[0]}
    write_csv(tmp_path / "e.csv", table)
    run = write_run(tmp_path / "run", snapshots=(), metrics=FEW)
    text = Page(report(tmp_path, run, evaluations={"run": tmp_path / "e.csv", "other": tmp_path / "e.json"})).text
    assert "LV\n(2 cases)\n" in text
    assert "evaluated 3D Dice, LV\n0.500 ± 0.250\n" in text
    assert "p2\n0.750\n4.3 mm\n0.750\n4.3 mm\np1\n0.250\n–\n0.250\n–\n" in text
    assert "0.500 ± 0.250\n0.500 ± 0.250\n" in text


def test_folders_named_alike_are_told_apart(tmp_path: Path) -> None:
    one, two = write_run(tmp_path / "x/run", metrics=FEW), write_run(tmp_path / "y/run", metrics=FEW)
    assert f"\n{one}\n{two}\n" in Page(report(tmp_path, one, two)).text


def test_two_real_sized_runs_stay_below_two_megabytes(tmp_path: Path) -> None:
    cases = [f"patient{k:03d}" for k in range(200)]
    runs = [
        write_run(tmp_path / name, epochs=250, cases=cases, snapshots=(), method=name)
        for name in ("crf+size", "penalty")
    ]
    for run in runs:
        for epoch in (1, 2, 5, 10, 20, 50, 100, 200, 250):
            path = run / f"snapshots/epoch_{epoch:04d}.npz"
            write_snapshot(path, cases[:4], proposals=run.name == "crf+size", truth=True, side=256)
    assert len(report(tmp_path, *runs).encode()) < 2e6


def test_thousands_of_cases_and_epochs_stay_below_two_megabytes(tmp_path: Path) -> None:
    cases = [f"patient{k:04d}" for k in range(3000)]
    run = write_run(tmp_path / "run", epochs=4000, cases=cases, snapshots=())
    text = report(tmp_path, run)
    assert len(text.encode()) < 2e6
    assert "(3000 cases)" in text
    assert "Shown are 120 of 3000 cases: the 40 best, the 40 worst, and 40 evenly between them." in text
    assert "best patient2999 (0.900), worst patient0000 (0.500)" in text
    assert "<th>patient0000</th>" in text
    assert "<th>patient2999</th>" in text


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("metrics.csv", None, r"metrics\.csv does not exist, no epoch is finished yet"),
        ("metrics.csv", b"", r"metrics\.csv: broken CSV: it has no column epoch"),
        ("metrics.csv", b"epoch,loss\n", r"metrics\.csv: broken, it needs one row an epoch"),
        ("metrics.csv", b"epoch,loss\n1,0.5,7\n", r"metrics\.csv: broken CSV: row 2 "),
        ("metrics.csv", b"epoch,loss\n1,0.5\n2\n", r"metrics\.csv: broken CSV: row 3 "),
        ("metrics.csv", b"epoch,loss\n1,abc\n", r"metrics\.csv: broken, column loss holds 'abc'"),
        ("metrics.csv", b"epoch,loss\n1,\xff\n", r"cannot read .*metrics\.csv"),
        ("metrics.csv", b'epoch,loss\n1,"0.5\n', r"metrics\.csv: broken CSV"),
        ("timing.csv", b"epoch,crf\n1,slow\n", r"timing\.csv: broken, column crf"),
        ("cases.csv", b"name\na\n", r"cases\.csv: broken CSV: it has no column case"),
        ("cases.csv", b"case,split,dice\na,training,x\n", r"cases\.csv: broken, column dice"),
        ("config.toml", None, r"config\.toml does not exist, so this is no run folder"),
        ("config.toml", b"method = ", r"config\.toml: not valid TOML"),
        ("run.json", b"{", r"run\.json: not valid JSON"),
        ("snapshots/epoch_0001.npz", b"PK\x03\x04", r"epoch_0001\.npz: broken snapshot"),
        ("snapshots/epoch_0001.npz", b"nothing", r"epoch_0001\.npz: broken snapshot"),
    ],
)
def test_broken_runs_are_named(tmp_path: Path, name: str, content: bytes | None, complaint: str) -> None:
    run = write_run(tmp_path / "run")
    if content is None:
        (run / name).unlink()
    else:
        (run / name).write_bytes(content)
    with pytest.raises(UserError, match=complaint):
        report(tmp_path, run)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(("name", "content"), [("e.json", "[]"), ("e.json", "{"), ("e.csv", "case\np1\n")])
def test_broken_evaluation_is_named(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=name):
        report(tmp_path, write_run(tmp_path / "run", snapshots=(), metrics=FEW), evaluations={"run": tmp_path / name})


def test_bad_calls(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", snapshots=(), metrics=FEW)
    with pytest.raises(UserError, match="gone: no such run folder"):
        report(tmp_path, run, tmp_path / "gone")
    with pytest.raises(UserError, match="given more than once"):
        report(tmp_path, run, tmp_path / "run/../run")
    with pytest.raises(UserError, match="at least one run folder"):
        report(tmp_path)
    with pytest.raises(UserError, match=r"gone\.csv does not exist"):
        report(tmp_path, run, evaluations={"run": tmp_path / "gone.csv"})
    with pytest.raises(UserError, match=r"cannot write .*config\.toml"):
        write_report([run], run / "config.toml/report.html")


def test_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    out.write_text("mine")
    with pytest.raises(UserError, match=r"report\.html: already exists"):
        write_report([write_run(tmp_path / "run")], out)
    assert out.read_text() == "mine"


def test_folder_of_the_page_is_made(tmp_path: Path) -> None:
    write_report([write_run(tmp_path / "run", snapshots=(), metrics=FEW)], tmp_path / "new/deep/report.html")
    assert [path.name for path in (tmp_path / "new/deep").iterdir()] == ["report.html"]
