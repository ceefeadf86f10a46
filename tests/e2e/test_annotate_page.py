"""The page of `discoseg annotate` as people use it: a real browser, a real server, and the files it leaves.

Needs Chromium or Chrome, and NiiVue (`make web`); without them these tests skip and say so.
"""

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from discoseg.data.phantom import LABELS, write_phantom_dataset
from discoseg.data.volume import read_volume

for needed in ("fastapi", "uvicorn", "playwright.sync_api"):
    pytest.importorskip(needed)

from playwright.sync_api import Browser, BrowserContext, Page, Route, expect, sync_playwright  # noqa: E402

VIEWER = Path(__file__).parents[2] / "src/discoseg/web/static/vendor/niivue.umd.js"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ("--headless=new", "--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader")
PATIENCE_S = 40.0
IGNORE = max(LABELS.values()) + 1
PRESET = """
epochs = 3
[grid]
shape = [32, 32]
[network]
name = "unet"
width = 4
depth = 2
precision = "float32"
"""

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium or Chrome on this machine"),
    pytest.mark.skipif(not VIEWER.is_file(), reason="no viewer: run make web"),
]


@dataclass
class Server:
    """`discoseg annotate` on a folder, at one port, to be killed and started again."""

    dataset: Path
    options: tuple[str, ...] = ()
    port: int = 0
    url: str = ""
    process: subprocess.Popen[str] | None = field(default=None, repr=False)

    @property
    def out(self) -> Path:
        return self.dataset.with_name(f"{self.dataset.name}-annotations")

    def start(self) -> None:
        if not self.port:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.port = probe.getsockname()[1]
        command = [sys.executable, "-m", "discoseg", "annotate", str(self.dataset), "--no-browser"]
        self.process = subprocess.Popen(
            [*command, "--port", str(self.port), *self.options], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.url = next((line.strip() for line in self.process.stdout if line.startswith("http")), "")
        assert self.url, "the server ended without an address"

    def stop(self, sign: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(sign)
        self.process.wait(timeout=PATIENCE_S)

    def label(self, case: str) -> NDArray[np.uint8]:
        """Return the case's weak label map, (x, y, z)."""
        return read_volume(self.out / f"labels/{case}.nii.gz").array.T.astype(np.uint8)

    def truth(self, case: str) -> NDArray[np.uint8]:
        """Return the phantom's complete mask, (x, y, z)."""
        return read_volume(self.dataset / f"labelsTr/{case}.nii.gz").array.T.astype(np.uint8)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("annotate")
    write_phantom_dataset(root / "phantoms", cases=6, test_cases=0, seed=3, in_plane=(48, 48))
    (root / "quick.toml").write_text(PRESET)
    server = Server(root / "phantoms", ("--build-atlas", "--preset", str(root / "quick.toml")))
    server.start()
    yield server
    server.stop(signal.SIGINT)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS])
        yield browser
        browser.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 720})
    context.set_default_timeout(PATIENCE_S * 1000)
    yield context
    context.close()


def state(page: Page) -> dict[str, Any]:
    """Return what the page says it shows; empty while it loads."""
    return page.evaluate("window.discoseg ? discoseg.state() : {}")


def wait_for(page: Page, condition: str) -> None:
    """Wait until a condition on `s`, the page's state, holds. (The page's CSP forbids Playwright's own way.)"""
    end = time.monotonic() + PATIENCE_S
    while not page.evaluate(f"(() => {{ const s = window.discoseg?.state(); return Boolean(s && ({condition})); }})()"):
        assert time.monotonic() < end, f"{condition} did not come true: {state(page)}"
        page.wait_for_timeout(50)


def open_case(context: BrowserContext, server: Server, case: str) -> Page:
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{server.url}#{case}")
    wait_for(page, f"s.case === '{case}' && !s.loading")
    assert not errors
    return page


def centre(server: Server, case: str, structure: str) -> list[int]:
    """Return the voxel (x, y, z) in the middle of a structure."""
    voxels = np.argwhere(server.truth(case) == LABELS[structure])
    return [int(v) for v in voxels[np.abs(voxels - voxels.mean(axis=0)).sum(axis=1).argmin()]]


def click(page: Page, voxel: list[int], *, through: list[int] | None = None) -> None:
    """Press the pointer on a voxel of the slice that is shown; drag it to another one."""
    page.mouse.move(*page.evaluate(f"discoseg.pixelOf({voxel})"))
    page.mouse.down()
    if through is not None:
        page.mouse.move(*page.evaluate(f"discoseg.pixelOf({through})"), steps=5)
    page.mouse.up()


def go_to_slice(page: Page, z: int) -> None:
    while (now := state(page)["position"][2]) != z:
        page.keyboard.press("PageUp" if z > now else "PageDown")


def test_one_click_some_strokes_and_all_is_saved(context: BrowserContext, server: Server) -> None:
    case = "phantom_002"
    page = open_case(context, server, case)
    page.keyboard.press("a")
    page.keyboard.press("x")
    bare = page.locator("#stage").screenshot()
    for key, structure in enumerate(["RV", "MYO", "LV"], start=1):
        voxel = centre(server, case, structure)
        page.keyboard.press(str(key))
        go_to_slice(page, voxel[2])
        click(page, voxel)
        wait_for(page, f"s.counts[{key}] > 0 || '{structure}' === 'MYO'")
    wait_for(page, "s.counts[4] > 0 && s.saved === 'saved'")  # background seeds once all three are there
    assert state(page)["info"]["clicks"]["LV"] == centre(server, case, "LV")
    assert page.locator("#stage").screenshot() != bare
    seeds = server.label(case)
    assert (server.truth(case)[seeds == LABELS["LV"]] == LABELS["LV"]).mean() > 0.7

    x, y, z = centre(server, case, "LV")
    page.keyboard.press("ArrowRight")  # to the patient's left, where x of these files grows
    page.keyboard.press("ArrowDown")
    wait_for(page, f"s.info.clicks.LV.join() === '{x + 1},{y + 1},{z}' && s.saved === 'saved'")
    page.keyboard.press("z")
    page.keyboard.press("z")
    wait_for(page, f"s.info.clicks.LV.join() === '{x},{y},{z}' && s.saved === 'saved'")
    assert np.array_equal(server.label(case), seeds)

    page.keyboard.press("1")
    page.keyboard.press("b")
    click(page, [3, 5, z], through=[3, 15, z])
    wait_for(page, "s.saved === 'saved' && s.undo === 4")
    painted = server.label(case)
    assert (painted[3, 5:16, z] == LABELS["RV"]).all()
    assert np.array_equal(
        painted[:, :, np.arange(painted.shape[2]) != z], seeds[:, :, np.arange(painted.shape[2]) != z]
    )
    page.keyboard.press("e")
    click(page, [3, 10, z])
    wait_for(page, "s.saved === 'saved' && s.undo === 5")
    assert server.label(case)[3, 10, z] == IGNORE
    page.keyboard.press("z")
    wait_for(page, "s.saved === 'saved' && s.undo === 4")
    assert np.array_equal(server.label(case), painted)
    page.keyboard.press("z")
    page.keyboard.press("y")
    wait_for(page, "s.saved === 'saved' && s.undo === 4")

    page.get_by_label("LV: most ml").fill("0.5")
    page.get_by_label("LV: most ml").press("Enter")
    expect(page.locator(".structure.warned")).to_contain_text("more is marked than 0.5 ml")
    page.get_by_label("LV: most ml").fill("180")
    page.get_by_label("LV: least ml").fill("60")
    page.get_by_label("LV: least ml").press("Enter")
    expect(page.locator(".structure.warned")).to_have_count(0)
    before = state(page)
    page.keyboard.press("Enter")  # accepted: done, and on to the next one
    wait_for(page, f"s.case !== '{case}' && !s.loading && s.saved === 'saved'")

    page.get_by_role("button", name=f"{case}, done").click()
    wait_for(page, f"s.case === '{case}' && !s.loading")
    page.reload()
    wait_for(page, f"s.case === '{case}' && !s.loading")
    after = state(page)
    assert after["counts"] == before["counts"]
    assert after["info"]["clicks"] == before["info"]["clicks"]
    assert after["info"]["bounds_ml"]["LV"] == [60, 180]
    assert np.array_equal(server.label(case), painted)
    assert json.loads((server.out / "clicks.json").read_text())[case]["LV"] == {"voxel": [x, y, z]}
    assert [line for line in (server.out / "sizes.csv").read_text().splitlines() if case in line and "180" in line]


def test_two_tabs_do_not_overwrite_each_other(context: BrowserContext, server: Server) -> None:
    case = "phantom_003"
    first = open_case(context, server, case)
    second = open_case(context, server, case)
    voxel = centre(server, case, "LV")
    first.bring_to_front()
    first.keyboard.press("3")
    go_to_slice(first, voxel[2])
    click(first, voxel)
    wait_for(second, "s.info.clicks.LV && s.counts[3] > 0")  # told by the server
    seeds = server.label(case)

    deaf = context.new_page()  # hears of no one: it finds out only when it saves
    deaf.route("**/api/events", lambda route: route.abort())
    deaf.goto(f"{server.url.split('?')[0]}#{case}")
    wait_for(deaf, f"s.case === '{case}' && !s.loading")
    for page, row in ((first, 4), (deaf, 40)):
        page.bring_to_front()
        page.keyboard.press("1")
        page.keyboard.press("b")
        go_to_slice(page, voxel[2])
        click(page, [4, row, voxel[2]])
        wait_for(page, "s.unsaved === 0 && s.counts[1] > 0")
    expect(deaf.get_by_role("alert")).to_contain_text("Another window changed this case")
    expect(deaf.get_by_role("alert")).to_contain_text("The server does not answer")  # neither hides the other
    both = server.label(case)
    assert both[4, 4, voxel[2]] == both[4, 40, voxel[2]] == LABELS["RV"]
    deaf.keyboard.press("z")
    wait_for(deaf, "s.unsaved === 0 && s.undo === 0")
    assert server.label(case)[4, 40, voxel[2]] == seeds[4, 40, voxel[2]]
    assert server.label(case)[4, 4, voxel[2]] == LABELS["RV"]


def test_nothing_is_lost_when_the_server_is_killed(context: BrowserContext, server: Server) -> None:
    case = "phantom_004"
    page = open_case(context, server, case)
    z = state(page)["position"][2]
    server.stop(signal.SIGKILL)
    expect(page.locator("#save")).to_contain_text("Offline")
    page.keyboard.press("3")
    page.keyboard.press("b")
    click(page, [20, 20, z], through=[26, 20, z])
    page.keyboard.press("2")
    click(page, [20, 30, z])
    page.keyboard.press("x")
    page.keyboard.press("3")
    click(page, [24, 24, z])
    page.wait_for_timeout(500)
    assert state(page)["saved"] == "offline"
    server.start()
    wait_for(page, "s.saved === 'saved' && s.unsaved === 0")
    label = server.label(case)
    assert (label[20:27, 20, z] == LABELS["LV"]).all()
    assert label[20, 30, z] == LABELS["MYO"]
    assert json.loads((server.out / "clicks.json").read_text())[case]["LV"] == {"voxel": [24, 24, z]}
    expect(page.locator("#save")).to_contain_text("Saved")


def test_strokes_survive_reopening_broken_answers_and_undo_midway(context: BrowserContext, server: Server) -> None:
    case = "phantom_001"
    page = open_case(context, server, case)
    held: list[Route] = []
    page.route("**/labels", lambda route: held.append(route) if route.request.method == "PUT" else route.continue_())
    z = state(page)["position"][2]
    page.keyboard.press("1")
    page.keyboard.press("b")
    click(page, [4, 4, z])
    wait_for(page, "s.unsaved === 1 && s.counts[1] > 0")
    while not held:
        page.wait_for_timeout(20)
    page.keyboard.press("n")
    wait_for(page, f"s.case !== null && s.case !== '{case}' && !s.loading")
    page.keyboard.press("p")
    wait_for(page, f"s.case === '{case}' && !s.loading")
    assert state(page)["counts"][1] > 0  # though the server does not have it yet
    assert held[0].request.headers["x-structures"] == "1,2,3"
    held[0].continue_()
    wait_for(page, "s.saved === 'saved' && s.unsaved === 0")
    page.unroute("**/labels")

    broken: list[Route] = []

    def break_off(route: Route) -> None:
        broken.append(route)
        if len(broken) > 1:
            route.continue_()
        else:
            route.fulfill(body="{", content_type="application/json")

    page.route("**/labels", break_off)
    go_to_slice(page, z)
    click(page, [4, 40, z])
    wait_for(page, "s.saved === 'saved' && s.unsaved === 0 && s.undo === 2")
    assert len(broken) > 1
    label = server.label(case)
    assert label[4, 4, z] == label[4, 40, z] == LABELS["RV"]

    page.mouse.move(*page.evaluate(f"discoseg.pixelOf({[20, 20, z]})"))
    page.mouse.down()
    page.keyboard.press("z")
    page.mouse.up()
    wait_for(page, "s.saved === 'saved' && s.undo === 2")
    assert np.array_equal(server.label(case), label)


def test_a_training_is_started_watched_and_its_result_shown(context: BrowserContext, server: Server) -> None:
    page = open_case(context, server, "phantom_005")
    page.keyboard.press("x")
    for case in ("phantom_005", "phantom_006"):
        wait_for(page, f"s.case === '{case}' && !s.loading")
        voxel = centre(server, case, "LV")
        page.keyboard.press("3")
        go_to_slice(page, voxel[2])
        click(page, voxel)
        wait_for(page, "s.counts[3] > 0 && s.saved === 'saved'")
        page.keyboard.press("n")  # the last case has no next one
    page.get_by_label("Method").select_option("partial")
    page.get_by_label("Name", exact=True).fill("from-page")
    page.get_by_role("button", name="Train", exact=True).click()
    wait_for(page, "['running', 'finished'].includes(s.training?.state)")
    wait_for(page, "s.training.state === 'finished' && s.training.epoch === 3")
    expect(page.get_by_role("img", name="Loss by epoch")).to_be_visible()
    assert (server.out / "runs/from-page/metrics.csv").read_text().count("\n") == 4
    page.locator("#run").select_option("from-page")
    wait_for(page, "s.overlay !== null")
    voxel_ml = np.prod(read_volume(server.dataset / f"imagesTr/{case}_0000.nii.gz").spacing_mm) / 1000
    assert sum(state(page)["overlay"]) == pytest.approx(sum(state(page)["counts"]) * voxel_ml)


def test_the_page_fits_windows_and_names_its_controls(context: BrowserContext, server: Server) -> None:
    page = open_case(context, server, "phantom_001")
    page.keyboard.press("m")
    for width, height in ((1280, 720), (1920, 1080), (800, 1000)):
        page.set_viewport_size({"width": width, "height": height})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        stage = page.locator("#stage").bounding_box()
        assert stage is not None
        assert stage["width"] * stage["height"] > 0.4 * width * height  # the image is what one looks at
        expect(page.locator("#save")).to_be_in_viewport(ratio=1)
        expect(page.locator("#accept")).to_be_in_viewport(ratio=1)
    nameless = page.evaluate(
        "[...document.querySelectorAll('button, input, select')].filter((e) => !(e.getAttribute('aria-label')"
        " || e.textContent.trim() || e.labels?.length)).map((e) => e.outerHTML)"
    )
    assert nameless == []
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("undo")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_voxels_of_any_orientation_are_where_the_picture_shows_them(context: BrowserContext, tmp_path: Path) -> None:
    """A file whose axes are z, -x, y of the patient: a bright block is under its own pixel in each plane."""
    image = np.zeros((14, 20, 26), np.int16)
    block = [3, 15, 8]
    image[2:5, 14:17, 7:10] = 1000
    (tmp_path / "turned").mkdir()
    affine = np.array([[0, -2, 0, 0], [0, 0, 1.5, 0], [4, 0, 0, 0], [0, 0, 0, 1.0]])
    nib.save(nib.Nifti1Image(image, affine), tmp_path / "turned/a.nii.gz")
    for name, affine_mm, pixdim_mm in (("b", 1, 4), ("c", 4, 1)):  # as in ACDC's files, and the other way round
        flat = nib.Nifti1Image(image, np.diag([1.0, 1, affine_mm, 1]))
        flat.header["pixdim"][3] = pixdim_mm
        nib.save(flat, tmp_path / f"turned/{name}.nii.gz")
    server = Server(tmp_path / "turned")
    server.start()
    try:
        page = open_case(context, server, "a")
        for plane, axis in (("a", 0), ("c", 2), ("s", 1)):
            page.keyboard.press(plane)
            number = block[axis] if plane != "s" else 19 - block[axis]  # slices count towards the patient's right
            page.get_by_role("slider", name="Slice", exact=True).fill(str(number))
            assert state(page)["position"][axis] == block[axis]
            assert brightness(page, block) > 200
            assert brightness(page, [v if a == axis else v - 5 if v > 7 else v + 6 for a, v in enumerate(block)]) < 60
        page.keyboard.press("x")
        click(page, block)
        wait_for(page, "s.counts[1] > 0 && s.saved === 'saved'")
        assert state(page)["info"]["clicks"]["foreground"] == block
        assert server.label("a")[tuple(block)] == 1
        for plane in "acs":
            page.keyboard.press(plane)
            assert [nudge(page, key) for key in ("ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp")] == [
                [1, 0],
                [0, 1],
                [-1, 0],
                [0, -1],
            ]
        wait_for(page, "s.saved === 'saved'")
        zoom_move_and_window(page, block)
        page.keyboard.press("c")
        for case in "bc":
            page.keyboard.press("n")
            wait_for(page, f"s.case === '{case}' && !s.loading")
            here, right, up = (page.evaluate(f"discoseg.pixelOf([{v}])") for v in ("5, 9, 9", "6, 9, 9", "5, 9, 10"))
            assert abs(up[1] - here[1]) == pytest.approx(4 * abs(right[0] - here[0]), rel=1e-3)
    finally:
        server.stop(signal.SIGINT)


def nudge(page: Page, key: str) -> list[int]:
    """Press an arrow; return where the click went on the screen, right and down: -1, 0 or 1 each."""
    before = state(page)["info"]["clicks"]["foreground"]
    page.keyboard.press(key)
    after = state(page)["info"]["clicks"]["foreground"]
    moved = np.subtract(*(page.evaluate(f"discoseg.pixelOf({voxel})") for voxel in (after, before)))
    return [int(np.sign(pixels)) if abs(pixels) > 1 else 0 for pixels in moved]


def zoom_move_and_window(page: Page, voxel: list[int]) -> None:
    x, y = page.evaluate(f"discoseg.pixelOf({voxel})")
    page.mouse.move(x, y)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    page.wait_for_timeout(100)
    assert page.evaluate(f"discoseg.pixelOf({voxel})") == pytest.approx([x, y], abs=1)  # zoomed where the pointer is
    page.mouse.down(button="middle")
    page.mouse.move(x + 40, y - 30)
    page.mouse.up(button="middle")
    assert page.evaluate(f"discoseg.pixelOf({voxel})") == pytest.approx([x + 40, y - 30], abs=1)
    window = state(page)["window"]
    page.mouse.down(button="right")
    page.mouse.move(x + 90, y - 30)
    page.mouse.up(button="right")
    assert np.diff(state(page)["window"]) > 1.1 * np.diff(window)  # sideways: less contrast
    page.keyboard.press("w")
    assert state(page)["window"] == window


def brightness(page: Page, voxel: list[int]) -> float:
    """Return the grey value, 0 to 255, in the middle of a voxel."""
    x, y = page.evaluate(f"discoseg.pixelOf({voxel})")
    page.mouse.move(2, 2)
    picture = page.screenshot(clip={"x": x - 1, "y": y - 1, "width": 3, "height": 3})
    return float(np.asarray(Image.open(BytesIO(picture)).convert("L")).mean())
