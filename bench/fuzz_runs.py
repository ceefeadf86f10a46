"""What there is to fuzz of discoseg's own files (runs, models, results, annotations), and requests to its server."""

import asyncio
import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

import mutations
from discoseg.data.layouts import find_dataset
from discoseg.errors import UserError
from discoseg.plain import to_dict
from discoseg.presets import load_run_config
from fuzz_targets import CONFIG, SHAPE, Target, Workshop

TOKEN = "t" * 40
# files that a whole page is made from
_PAGES = ("config.toml", "run.json", "metrics.csv", "timing.csv", "scores of cases", "contours.npz")
REQUESTS: tuple[dict[str, Any], ...] = (
    {"method": "GET", "path": "/api/dataset", "body": ""},
    {"method": "GET", "path": "/api/cases/heart_1", "body": ""},
    {"method": "GET", "path": "/api/cases/heart_1/labels", "body": ""},
    {"method": "GET", "path": "/api/cases/heart_1/image/image.nii", "body": ""},
    {"method": "GET", "path": "/api/runs/run/cases/heart_1/size", "body": ""},
    {"method": "GET", "path": "/api/training", "body": ""},
    {"method": "GET", "path": "/static/index.html", "body": ""},
    {"method": "PUT", "path": "/api/cases/heart_1/click", "body": {"label": "LV", "voxel": [5, 6, 1], "revision": 0}},
    {"method": "DELETE", "path": "/api/cases/heart_1/click", "query": "label=LV&revision=0", "body": ""},
    {"method": "PUT", "path": "/api/cases/heart_1/bounds", "body": {"bounds_ml": {"LV": [1, 2.5]}, "revision": 0}},
    {"method": "PUT", "path": "/api/cases/heart_1/state", "body": {"state": "done", "revision": 0}},
    {"method": "POST", "path": "/api/shown", "body": {"case": "heart_2"}},
    {"method": "PUT", "path": "/api/cases/heart_1/labels", "headers": {"x-revision": "0"}, "body": "\x1f\x8b\x08\x00"},
    {"method": "GET", "path": "/", "query": f"token={TOKEN}", "headers": {"cookie": "a=b; c"}, "body": ""},
)


def run_targets(shop: Workshop) -> dict[str, Target]:
    """Train a tiny network and return targets of its files, and of what other commands write."""
    from discoseg.about_run import describe_run, say_run
    from discoseg.checkpoint import load_slices
    from discoseg.evaluation import evaluate, write_evaluation
    from discoseg.experiments.plan import Cell
    from discoseg.experiments.results import Result, read_results
    from discoseg.next_case import rank_cases
    from discoseg.predict import load_model
    from discoseg.report.evaluations import read_evaluations
    from discoseg.report.page import render
    from discoseg.report.runs import read_runs
    from discoseg.volumes import read_volumes
    from discoseg.workflow import fit

    folder, make = shop.folder, shop.file_target
    dataset, run, results = folder / "dataset.json", folder / "run", folder / "results"
    fit(dataset, run, replace(CONFIG, label="LV"), split=folder / "splits.json", device="cpu")
    volumes, page = folder / "volumes.csv", folder / "page.html"
    volumes.write_text("case,label,voxels,ml\na,LV,12,1.5\n")
    scores = evaluate(dataset / "labelsTr", dataset)
    for suffix in (".csv", ".json"):
        write_evaluation(folder / f"scores{suffix}", scores)
    results.mkdir()
    cell = Cell("lv", "crf")
    kept = Result(cell, to_dict(CONFIG), {"val_dice": [0.5]}, 1.0, {"training": ["a"]}, {"device": "cpu"})
    result = results / f"{cell.name}.json"
    result.write_text(json.dumps(asdict(kept)))

    def report(path: Path) -> None:
        page.unlink(missing_ok=True)
        text = render(read_runs([run]), {})
        assert "<script>alert" not in text, "a script from a file"

    def configured(path: Path) -> None:
        report(path)
        load_run_config(path)

    def inform(path: Path) -> None:
        say_run(describe_run(run))

    def score(path: Path) -> None:
        read_evaluations({"run": path}, [])

    model, latest = run / "checkpoints" / "final.safetensors", run / "checkpoints" / "latest.safetensors"
    predict = ["predict", None, dataset / "imagesTr" / "nothing.nii", "--out", folder / "never", "--device", "cpu"]
    write_page = ["report", run, "--out", page]
    targets = {
        "model": make(model, mutations.mutate_checkpoint, lambda p: load_model(p, device="cpu"), predict),
        "checkpoint": make(latest, mutations.mutate_checkpoint, lambda p: load_slices(p, "size.proposal2", 0, 3)),
        "config.toml": make(run / "config.toml", mutations.mutate_header, configured),
        "next.csv": make(run / "next.csv", mutations.mutate_header, lambda p: rank_cases(run), ["next", run]),
        "run.json": make(run / "run.json", mutations.mutate_json, report, write_page),
        "run.json for info": make(run / "run.json", mutations.mutate_json, inform, ["info", run]),
        "metrics.csv for info": make(run / "metrics.csv", mutations.mutate_header, inform, ["info", run]),
        "metrics.csv": make(run / "metrics.csv", mutations.mutate_header, report, write_page),
        "timing.csv": make(run / "timing.csv", mutations.mutate_header, report, write_page),
        "scores of cases": make(run / "cases.csv", mutations.mutate_header, report, write_page),
        "contours.npz": make(run / "contours.npz", mutations.mutate_archive, report, write_page),
        "volumes.csv": make(volumes, mutations.mutate_header, read_volumes),
        "evaluation.csv": make(folder / "scores.csv", mutations.mutate_header, score),
        "evaluation.json": make(folder / "scores.json", mutations.mutate_json, score),
        "result.json": make(result, mutations.mutate_json, lambda p: read_results(results)),
    }
    return {name: replace(target, share=0.25 if name in _PAGES else 1.0) for name, target in targets.items()}


def server_targets(shop: Workshop) -> dict[str, Target]:
    """Return targets of an annotation's files, and of requests to the server; ``run`` is there already."""
    from discoseg.web.annotator import Annotator
    from discoseg.web.app import create_app
    from discoseg.web.guard import Guard
    from discoseg.web.records import read_layers

    out, static = shop.folder / "out", shop.folder / "static"
    static.mkdir()
    (static / "index.html").write_text("page")
    dataset = find_dataset(shop.folder / "dataset.json")
    annotator = Annotator(dataset, out, structures={"LV": 1})
    annotator.click("heart_1", 0, "LV", (5, 6, 1))
    guard = Guard(create_app(annotator, static, run=shop.folder / "run"), token=TOKEN, host="127.0.0.1", port=80)
    other = shop.folder / "other"
    second = Annotator(dataset, other, structures={"LV": 1})
    second.click("heart_1", 0, "LV", (5, 6, 1))
    second.store.close()

    def ask(data: bytes) -> None:
        try:
            request = json.loads(data)
        except (ValueError, RecursionError):
            request = {"method": "PUT", "path": "/api/cases/heart_1/click", "body": data.decode("latin-1")}
        if not isinstance(request, dict) or request.get("path") in ("/api/events", "/api/training"):
            return
        if isinstance(body := request.get("body"), dict) and body.get("revision") == 0:
            body["revision"] = annotator.store.record("heart_1").revision
        asyncio.run(_ask(guard, request))

    def open_annotations(path: Path) -> None:
        copy = shop.folder / "copy"  # whose layers it may take for left over
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(other, copy)
        Annotator(dataset, copy, structures={"LV": 1}).store.close()

    layers = next((other / "layers").iterdir())
    return {
        "request": Target([json.dumps(request).encode() for request in REQUESTS], _mutate_request, ask),
        "state.json": shop.file_target(other / "state.json", mutations.mutate_json, open_annotations),
        "layers": shop.file_target(layers, mutations.mutate_archive, lambda p: read_layers(p, SHAPE)),
    }


def _mutate_request(data: bytes, rng: Random) -> bytes:
    """Mutate a request's parts, mostly its body."""
    request = json.loads(data)
    if isinstance(request["body"], dict) and rng.random() < 0.7:
        request["body"] = mutations.mutate_tree(request["body"], rng)
        return json.dumps(request).encode()
    return mutations.mutate_json(data, rng)


async def _ask(guard: Any, request: dict[str, Any]) -> None:
    """Send a request; it must be answered, errors in one line of JSON. A refusal is a :class:`UserError`."""
    body = request.get("body", "")
    content = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else json.dumps(body).encode()
    given = request.get("headers")
    headers = {
        "host": "127.0.0.1:80",
        "x-token": TOKEN,
        "content-type": "application/json",
        "content-length": str(len(content)),
    }
    headers |= given if isinstance(given, dict) else {}
    path, query = str(request.get("path")), str(request.get("query", ""))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": str(request.get("method")),
        "scheme": "http",
        "path": path,
        "raw_path": path.encode("utf-8", "surrogatepass"),
        "query_string": query.encode("utf-8", "surrogatepass"),
        "root_path": "",
        "headers": [
            (str(n).lower().encode("utf-8", "surrogatepass"), str(v).encode("utf-8", "surrogatepass"))
            for n, v in headers.items()
        ],
        "client": ("127.0.0.1", 5),
        "server": ("127.0.0.1", 80),
    }
    sent: list[dict[str, Any]] = []
    waiting = [{"type": "http.request", "body": content, "more_body": False}]

    async def receive() -> dict[str, Any]:
        return waiting.pop() if waiting else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await guard(scope, receive, send)
    status = sent[0]["status"]
    answer = b"".join(message.get("body", b"") for message in sent[1:])
    assert status < 500, f"status {status}: {answer!r}"
    if status >= 400:
        detail = json.loads(answer)["detail"] if answer else ""
        assert "\n" not in detail, f"several lines: {detail!r}"
        raise UserError(f"{status}: {detail}")
