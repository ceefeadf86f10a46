"""The server of ``discoseg annotate``, asked as a page asks it, and as others should not."""

import gzip
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra web is not installed")

import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from discoseg.cli import main
from discoseg.commands import annotation
from discoseg.data.layouts import find_dataset
from discoseg.data.phantom import make_phantom
from discoseg.data.volume import read_label_map, read_volume, same_geometry, write_volume
from discoseg.errors import UserError
from discoseg.weak.atlas import load_atlas, save_atlas
from discoseg.web.annotator import Annotator
from discoseg.web.app import create_app
from discoseg.web.drawing import Palette, unpack
from discoseg.web.guard import MOST_JSON_BYTES, Guard
from discoseg.web.serve import serve

TOKEN = "a-token-of-more-than-thirty-two-characters"
HOST = {"host": "127.0.0.1:8000"}
ALLOWED = {**HOST, "X-Token": TOKEN}
OCTETS = {"Content-Type": "application/octet-stream"}


def guarded(annotator: Annotator, static: Path, **settings: Any) -> Guard:
    return Guard(create_app(annotator, static, **settings), token=TOKEN, host="127.0.0.1", port=8000)


def page(folder: Path) -> Path:
    """Write what stands for the page's files."""
    (folder / "vendor").mkdir(parents=True)
    (folder / "index.html").write_text("<title>page</title>")
    (folder / "vendor" / "niivue.umd.js").write_text("")
    return folder


@pytest.fixture
def client(phantoms: Path, tmp_path: Path) -> Iterator[TestClient]:
    """A browser that has the token, on six phantoms without an atlas; what is written lies in tmp_path/out."""
    annotator = Annotator(find_dataset(phantoms), tmp_path / "out", structures={"RV": 1, "LV": 3})
    with TestClient(guarded(annotator, page(tmp_path / "static")), base_url="http://127.0.0.1:8000") as client:
        client.headers.update(ALLOWED)
        yield client


def drawing_of(client: TestClient, case: str) -> tuple[np.ndarray, str]:
    answer = client.get(f"/api/cases/{case}/labels")
    x, y, z = client.get(f"/api/cases/{case}").json()["shape"]
    return np.frombuffer(gzip.decompress(answer.content), np.uint8).reshape(z, y, x), answer.headers["x-revision"]


def put_drawing(client: TestClient, case: str, revision: int, body: Any) -> Any:
    return client.put(f"/api/cases/{case}/labels", content=body, headers={**OCTETS, "X-Revision": str(revision)})


def test_only_who_has_the_token_is_answered(client: TestClient) -> None:
    client.headers.pop("X-Token")
    for path in ("/", "/api/dataset", "/api/openapi.json", "/static/index.html", "/api/events", "/?token=", "/nothing"):
        answer = client.get(path)
        assert answer.status_code == 403, path
        assert "default-src 'self'" in answer.headers["content-security-policy"]
    for wrong in ("x", TOKEN + "x", TOKEN[:-1], "é" * 40):
        assert client.get("/", params={"token": wrong}).status_code == 403
        assert client.get("/api/dataset", headers={b"X-Token": wrong.encode()}).status_code == 403
    assert client.get("/api/dataset", params={"token": TOKEN}).status_code == 403
    answer = client.get("/", params={"token": TOKEN}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "page" in client.get("/").text  # by the cookie
    assert client.get("/api/dataset").status_code == 200
    client.cookies.clear()
    for others in ('a="b; c={"d": 1}', "a b=c", "=; é"):  # of other servers of this machine
        mixed = f"{others}; discoseg-8000={TOKEN}; e=f".encode()
        assert client.get("/api/dataset", headers={b"Cookie": mixed}).status_code == 200, others
    assert client.get("/api/dataset", headers={"Cookie": f"x-discoseg-8000={TOKEN}"}).status_code == 403


def test_other_addresses_and_other_pages_are_refused(client: TestClient) -> None:
    for host in ("evil.example:8000", "127.0.0.1", "127.0.0.1:80", "", "127.0.0.1:8000.evil.example", "10.0.0.1:8000"):
        assert client.get("/api/dataset", headers={"host": host}).status_code == 403, host
    assert client.get("/api/dataset", headers={"host": "localhost:8000"}).status_code == 200
    for origin in ("http://evil.example", "http://127.0.0.1:9999", "null"):
        answer = client.put("/api/shown", headers={"origin": origin}, json={"case": "phantom_001"})
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers
    answer = client.get("/api/dataset", headers={"origin": "http://127.0.0.1:8000"})
    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers


def test_no_path_from_the_browser_reaches_the_files(client: TestClient, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    for path in ("/static/../secret", "/static/%2e%2e/secret", "/static//etc/passwd", f"/static/{tmp_path}/secret"):
        assert client.get(path).status_code == 404
    for name in ("..", "../secret", "%2e%2e%2fsecret", "phantom_001%2f..%2fphantom_002", "phantom_001%00", "labels"):
        for ending in ("", "/labels", "/image/image.nii.gz"):
            assert client.get(f"/api/cases/{name}{ending}").status_code == 404
    assert client.get("/api/cases/phantom_001/image/..%2fimage.nii.gz").status_code == 404
    assert client.get("/api/cases/phantom_001/image/phantom_001_0000.nii.gz").status_code == 404
    assert client.get("/api/runs/..%2f/cases/phantom_001/crf").status_code == 404
    assert client.post("/api/shown", json={"case": "../secret"}).status_code == 404
    answer = client.post("/api/training", json={"name": "../outside"})
    assert answer.status_code == 422


def test_a_case_from_click_to_files(client: TestClient, phantoms: Path, tmp_path: Path) -> None:
    case = client.get("/api/cases/phantom_001").json()
    assert (case["state"], case["revision"], case["clicks"]) == ("new", 0, {})
    click = {"label": "LV", "voxel": [20, 25, 3], "revision": 0}
    case = client.put("/api/cases/phantom_001/click", json=click).json()
    assert (case["state"], case["revision"], case["clicks"]) == ("begun", 1, {"LV": [20, 25, 3]})
    drawing, revision = drawing_of(client, "phantom_001")
    assert revision == "1"
    assert drawing[3, 25, 20] == 2
    image = read_volume(phantoms / "imagesTr/phantom_001_0000.nii.gz")
    assert case["sizes_ml"] == {"RV": 0.0, "LV": pytest.approx(np.count_nonzero(drawing == 2) * image.voxel_ml)}
    painted = drawing.copy()
    painted[5] = 3
    assert put_drawing(client, "phantom_001", 1, gzip.compress(painted.tobytes())).json()["revision"] == 2
    bounds = {"bounds_ml": {"LV": [60, None]}, "revision": 2}
    assert client.put("/api/cases/phantom_001/bounds", json=bounds).json()["bounds_ml"] == {"LV": [60.0, None]}
    state = {"state": "done", "revision": 3}
    assert client.put("/api/cases/phantom_001/state", json=state).json()["state"] == "done"
    assert client.post("/api/shown", json={"case": "phantom_002"}).status_code == 204
    listed = client.get("/api/dataset").json()
    assert listed["shown"] == "phantom_002"
    assert [(c["state"], c["revision"]) for c in listed["cases"]] == [("done", 4)] + [("new", 0)] * 5
    assert listed["cases"][0]["shape"] == list(image.shape[::-1])
    stored = read_label_map(tmp_path / "out/labels/phantom_001.nii.gz")
    assert same_geometry(stored, image)
    assert np.array_equal(stored.array, np.array([4, 1, 3, 0])[painted])
    with pytest.raises(SystemExit) as done:
        main(["check", str(phantoms), "--label", "LV", "--seeds", str(tmp_path / "out/labels")])
    assert done.value.code == 0
    gone = client.delete("/api/cases/phantom_001/click", params={"label": "LV", "revision": 4}).json()
    assert (gone["clicks"], gone["sizes_ml"]["LV"]) == ({}, 0)


def test_what_makes_no_sense_is_refused_and_changes_nothing(client: TestClient, tmp_path: Path) -> None:
    case = "/api/cases/phantom_001"
    drawing, _ = drawing_of(client, "phantom_001")
    before = (tmp_path / "out/state.json").read_bytes()
    bad_clicks = [
        {"label": "LV", "voxel": [48, 0, 0], "revision": 0},
        {"label": "LV", "voxel": [-1, 0, 0], "revision": 0},
        {"label": "LV", "voxel": [1.5, 0, 0], "revision": 0},
        {"label": "MYO", "voxel": [1, 0, 0], "revision": 0},
        {"label": "LV", "voxel": [1, 0], "revision": 0},
        {"label": "LV", "voxel": [1, 0, 0]},
    ]
    for body in bad_clicks:
        assert client.put(f"{case}/click", json=body).status_code == 422
    for sides in ([5, 4], [-1, 4], ["a", 4], [1], [1e300, None]):
        body = {"bounds_ml": {"LV": sides}, "revision": 0}
        assert client.put(f"{case}/bounds", json=body).status_code == 422
    nan = client.put(f"{case}/bounds", content='{"bounds_ml": {"LV": [NaN, null]}, "revision": 0}')
    assert nan.status_code == 422
    assert client.put(f"{case}/state", json={"state": "old", "revision": 0}).status_code == 422
    whole = gzip.compress(drawing.tobytes())
    high = drawing.copy()
    high[0, 0, 0] = 4
    bodies = [b"", b"not gzip", drawing.tobytes(), whole[:-9], whole + whole, gzip.compress(high.tobytes())]
    bodies += [gzip.compress(drawing.tobytes()[:-1]), gzip.compress(drawing.tobytes() + b"\0")]
    for content in bodies:
        assert put_drawing(client, "phantom_001", 0, content).status_code == 422
    order = {**OCTETS, "X-Revision": "0", "X-Structures": "3,1"}
    swapped = client.put(f"{case}/labels", content=whole, headers=order)
    assert (swapped.status_code, "reload" in swapped.json()["detail"]) == (412, True)
    late = put_drawing(client, "phantom_001", 7, whole)
    assert (late.status_code, late.json()["revision"]) == (409, 0)
    assert client.put("/api/cases/nobody/state", json={"state": "done", "revision": 0}).status_code == 404
    assert (tmp_path / "out/state.json").read_bytes() == before
    same = client.put(f"{case}/labels", content=whole, headers={**order, "X-Structures": "1,3"})
    assert same.json()["revision"] == 1


def test_bodies_are_limited_before_they_are_unpacked(client: TestClient) -> None:
    def pieces(count: int) -> Iterator[bytes]:  # without a length in the header
        for _ in range(count):
            yield bytes(1 << 16)

    case = "/api/cases/phantom_001"
    for content in (bytes(MOST_JSON_BYTES + 1), pieces(3)):
        answer = client.put(f"{case}/click", content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code == 413
    for body in (bytes(1 << 20), pieces(16)):
        assert put_drawing(client, "phantom_001", 0, body).status_code == 413
    bomb = gzip.compress(bytes(1 << 24), compresslevel=9)
    assert len(bomb) < 20_000
    assert put_drawing(client, "phantom_001", 0, bomb).status_code == 422
    tracemalloc.start()
    with pytest.raises(UserError, match="another number of voxels"):
        unpack(bomb, (2, 50, 50), Palette((1,), ignore=2))
    assert tracemalloc.get_traced_memory()[1] < 1 << 18
    tracemalloc.stop()


def test_images_come_as_they_lie_on_the_disk_or_as_nifti(tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    volume = make_phantom(0, in_plane=(24, 30)).image
    for name in ("a.nii.gz", "b.mha", "c.nii"):
        write_volume(root / name, volume)
    annotator = Annotator(find_dataset(root), tmp_path / "out", structures={"foreground": 1})
    with TestClient(guarded(annotator, page(tmp_path / "static")), base_url="http://127.0.0.1:8000") as client:
        client.headers.update(ALLOWED)
        assert [client.get(f"/api/cases/{n}").json()["image"] for n in "abc"] == ["image.nii.gz"] * 2 + ["image.nii"]
        stored = (root / "a.nii.gz").read_bytes()
        url = "/api/cases/a/image/image.nii.gz"
        assert client.get(url).content == stored
        part = client.get(url, headers={"Range": "bytes=10-19"})
        assert (part.status_code, part.content) == (206, stored[10:20])
        assert part.headers["content-range"] == f"bytes 10-19/{len(stored)}"
        assert client.get(url, headers={"Range": f"bytes={len(stored)}-"}).status_code == 416
        (tmp_path / "b.nii.gz").write_bytes(client.get("/api/cases/b/image/image.nii.gz").content)
        converted = read_volume(tmp_path / "b.nii.gz")
        assert np.array_equal(converted.array, volume.array)
        assert np.allclose(converted.affine, volume.affine)
        assert client.get("/api/cases/c/image/image.nii").content == (root / "c.nii").read_bytes()


def test_pictures_are_annotated_as_pictures(tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    volume = make_phantom(0, in_plane=(24, 30)).image
    picture = replace(volume, array=np.clip(volume.array[4:5], 0, 255).astype(np.uint8), header=None)
    write_volume(root / "p.png", picture)
    annotator = Annotator(find_dataset(root), tmp_path / "out", structures={"foreground": 1})
    with TestClient(guarded(annotator, page(tmp_path / "static")), base_url="http://127.0.0.1:8000") as client:
        client.headers.update(ALLOWED)
        click = {"label": "foreground", "voxel": [3, 5, 0], "revision": 0}
        assert client.put("/api/cases/p/click", json=click).status_code == 200
        assert client.get("/api/cases/p/image/image.nii.gz").status_code == 200
    assert read_label_map(tmp_path / "out/labels/p.png").array[0, 5, 3] == 1


def test_500_cases_are_listed_at_once_and_unopened(tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    for number in range(500):
        (root / f"case{number:03d}.nii.gz").write_text("whoever opened this would fail")
    annotator = Annotator(find_dataset(root), tmp_path / "out", structures={"foreground": 1})
    with TestClient(guarded(annotator, page(tmp_path / "static")), base_url="http://127.0.0.1:8000") as client:
        client.headers.update(ALLOWED)
        start = time.monotonic()
        answer = client.get("/api/dataset").json()
        assert time.monotonic() - start < 1
        assert len(answer["cases"]) == 500
        assert answer["cases"][7]["shape"] is None
        failed = client.get("/api/cases/case007")
        assert failed.status_code == 422
        assert "case007.nii.gz" in failed.json()["detail"]


def test_answers_are_as_the_schema_says(client: TestClient) -> None:
    schema: Any = schemathesis.openapi.from_asgi("/api/openapi.json", client.app, headers=ALLOWED)
    schema = schema.exclude(path="/api/events").exclude(path="/api/training", method="POST")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) == 13
    too_strict = [positive_data_acceptance]  # a schema does not say which bytes are a drawing, nor how large a case is
    for operation in operations:

        @settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(operation.as_strategy())
        def check(case: Any) -> None:
            if "case" in (case.path_parameters or {}) and len(case.path_parameters["case"]) % 2:
                case.path_parameters["case"] = "phantom_001"  # or hardly any would be one
            case.call_and_validate(headers=ALLOWED, excluded_checks=too_strict)

        check()


def test_the_command_says_what_is_missing(
    phantoms: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*options: str) -> str:
        with pytest.raises(SystemExit) as stop:
            main(["annotate", str(phantoms), "--out", str(tmp_path / "out"), "--no-browser", *options])
        assert stop.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("discoseg: error: ")
        assert not (tmp_path / "out").exists()
        return line

    with monkeypatch.context() as patch:
        patch.setattr(annotation, "find_spec", lambda name: None)
        assert 'pip install "discoseg[web]"' in fail()
    with monkeypatch.context() as patch:
        patch.setattr("discoseg.web.serve.STATIC", tmp_path / "nothing")
        assert "make web" in fail()
    monkeypatch.setattr("discoseg.web.serve.STATIC", page(tmp_path / "static"))
    assert "--label" in fail("--label", "LV,LV")
    assert "--run" in fail("--run", str(tmp_path))
    assert "nothing.npz" in fail("--atlas", str(tmp_path / "nothing.npz"))
    assert "not both" in fail("--atlas", str(tmp_path / "nothing.npz"), "--build-atlas")
    assert "nothing.toml" in fail("--preset", str(tmp_path / "nothing.toml"))


def test_a_kept_atlas_loses_no_structure(
    phantoms: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("discoseg.web.serve.STATIC", page(tmp_path / "static"))
    monkeypatch.setattr("discoseg.web.serve.serve", lambda annotator, **settings: annotator.store.close())

    def annotate(dataset: Path, *options: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as done:
            main(["annotate", str(dataset), "--out", str(tmp_path / "out"), *options])
        return int(done.value.code or 0), capsys.readouterr().err

    (tmp_path / "images").mkdir()
    write_volume(tmp_path / "images" / "a.nii.gz", make_phantom(0, in_plane=(24, 30)).image)
    status, line = annotate(tmp_path / "images", "--build-atlas")
    assert (status, len(line.splitlines())) == (2, 1)
    assert "no training case has a complete mask" in line

    kept = tmp_path / "out" / "atlas.npz"
    assert annotate(phantoms, "--label", "RV,LV", "--build-atlas")[0] == 0
    before = kept.read_bytes()
    assert annotate(phantoms, "--label", "LV")[0] == 0
    assert annotate(phantoms, "--label", "LV", "--atlas", str(tmp_path / "static" / ".." / "out" / "atlas.npz"))[0] == 0
    assert kept.read_bytes() == before
    assert annotate(phantoms, "--label", "LV", "--build-atlas")[0] == 0
    atlases, meta = load_atlas(kept)
    assert sorted(atlases) == [1, 3]
    save_atlas(tmp_path / "coarse.npz", {3: atlases[3]}, meta=meta | {"grid": [32, 32]})
    before = kept.read_bytes()
    status, line = annotate(phantoms, "--label", "LV", "--atlas", str(tmp_path / "coarse.npz"))
    assert (status, len(line.splitlines())) == (2, 1)
    assert "labels 1 on another grid" in line
    assert kept.read_bytes() == before


def test_any_host_but_this_machine_is_warned_of(
    phantoms: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("discoseg.web.serve._Server.run", lambda self, sockets: [s.close() for s in sockets])
    static = page(tmp_path / "static")
    for host, warned in (("127.0.0.1", 0), ("localhost", 0), ("0.0.0.0", 1)):
        annotator = Annotator(find_dataset(phantoms), tmp_path / host, structures={"LV": 3})
        serve(annotator, host=host, browser=False, static=static)
        printed = capsys.readouterr()
        assert len(printed.err.splitlines()) == warned
        assert printed.out.startswith(f"http://{host}:")
        assert (tmp_path / host / ".token").stat().st_mode & 0o777 == 0o600
