"""Routes of cases: what is annotated, images and drawings out, actions in."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Header, HTTPException, Query, Request, Response
from fastapi.responses import FileResponse
from starlette.concurrency import run_in_threadpool

from discoseg.web.annotator import Annotator
from discoseg.web.drawing import most_packed, pack, unpack
from discoseg.web.events import Hub
from discoseg.web.guard import announced, limit
from discoseg.web.records import Record
from discoseg.web.runs import Runs
from discoseg.web.schema import (
    BoundsBody,
    CaseView,
    ClickBody,
    DatasetView,
    Listed,
    Revision,
    Run,
    ShownBody,
    StateBody,
    Structure,
)

OCTETS = "application/octet-stream"
OCTETS_CONTENT: dict[str, Any] = {OCTETS: {"schema": {"type": "string", "format": "binary"}}}
DRAWING_ANSWER: dict[int | str, dict[str, Any]] = {200: {"content": OCTETS_CONTENT, "description": "a drawing"}}


class ImageResponse(FileResponse):
    """A file, whole or the range that is asked for, read piece by piece from the disk."""

    chunk_size = 1 << 20


def case_routes(annotator: Annotator, runs: Runs, hub: Hub) -> APIRouter:
    """Return the routes of a dataset's cases; every change is told to the ``hub``."""
    routes = APIRouter(prefix="/api")
    store, images = annotator.store, annotator.images

    def require(case: str) -> str:
        if case not in annotator.cases:
            raise HTTPException(404, f"no case {case!r}")
        return case

    def view(case: str, record: Record) -> CaseView:
        geometry = images.geometry(case)
        return CaseView(
            name=case,
            state=record.state,
            revision=record.revision,
            shape=list(geometry.shape[::-1]),
            spacing_mm=list(geometry.spacing_mm[::-1]),
            clicks={name: list(at) for name, at in record.clicks.items() if name in annotator.structures},
            bounds_ml={name: list(sides) for name, sides in record.bounds_ml.items() if name in annotator.structures},
            sizes_ml={name: record.sizes_vox.get(name, 0) * geometry.voxel_ml for name in annotator.structures},
            image=images.name(case),
        )

    def act(case: str, action: Callable[[], Record]) -> CaseView:
        """Do something to a case, and tell all windows."""
        record = action()
        hub.tell({"case": case, "revision": record.revision, "state": record.state})
        return view(case, record)

    def listed(case: str, group: str) -> Listed:
        record, geometry = store.record(case), images.known(case)
        return Listed(
            name=case,
            group=group,
            shape=None if geometry is None else list(geometry.shape[::-1]),
            spacing_mm=None if geometry is None else list(geometry.spacing_mm[::-1]),
            state=record.state,
            revision=record.revision,
        )

    @routes.get("/dataset")
    def dataset() -> DatasetView:
        """List the cases and their state."""
        return DatasetView(
            name=annotator.dataset.root.resolve().name,
            structures=[Structure(name=name, value=value) for name, value in annotator.structures.items()],
            ignore=annotator.dataset.ignore,
            cases=[listed(case.name, case.group) for case in annotator.cases.values()],
            shown=store.shown,
            suggested=runs.suggested(annotator.cases),
            has_atlas=annotator.has_atlas,
            runs=[Run(name=name, title=title) for name, title in runs.titles().items()],
        )

    @routes.get("/cases/{case}")
    def read_case(case: str) -> CaseView:
        """Say what is annotated of a case."""
        return view(require(case), store.record(case))

    @routes.get("/cases/{case}/image/{filename}", response_class=ImageResponse)
    def read_image(case: str, filename: str) -> ImageResponse:
        """Send a case's image as a NIfTI file."""
        if images.name(require(case)) != filename:
            raise HTTPException(404, f"the image of {case} is called {images.name(case)}")
        return ImageResponse(images.file(case), media_type=OCTETS)

    @routes.get("/cases/{case}/labels", response_class=Response, responses=DRAWING_ANSWER)
    def read_labels(case: str) -> Response:
        """Send a case's drawing, gzipped."""
        record, drawing = annotator.drawing(require(case))
        return Response(pack(drawing), media_type=OCTETS, headers={"X-Revision": str(record.revision)})

    @routes.put(
        "/cases/{case}/labels",
        openapi_extra={"requestBody": {"required": True, "content": OCTETS_CONTENT}},
    )
    async def write_labels(
        case: str,
        request: Request,
        x_revision: Annotated[Revision, Header()],
        x_structures: Annotated[str | None, Header()] = None,
    ) -> CaseView:
        """Make a gzipped drawing the case's; X-Structures are the values its numbers stand for, joined by commas."""
        require(case)
        if x_structures not in (None, ",".join(map(str, annotator.palette.values))):
            raise HTTPException(412, "the server annotates other structures now: reload this page")
        shape = (await run_in_threadpool(images.geometry, case)).shape
        body = await _read_body(request, most_packed(shape))

        def paint() -> Record:
            return annotator.paint(case, x_revision, unpack(body, shape, annotator.palette))

        return await run_in_threadpool(act, case, paint)

    @routes.put("/cases/{case}/click")
    def write_click(case: str, body: ClickBody) -> CaseView:
        """Put a structure's click on a voxel; the seeds follow."""
        require(case)
        x, y, z = body.voxel
        return act(case, lambda: annotator.click(case, body.revision, body.label, (x, y, z)))

    @routes.delete("/cases/{case}/click")
    def delete_click(case: str, label: str, revision: Annotated[Revision, Query()]) -> CaseView:
        """Take a structure's click away, and its seeds."""
        require(case)
        return act(case, lambda: annotator.click(case, revision, label, None))

    @routes.put("/cases/{case}/bounds")
    def write_bounds(case: str, body: BoundsBody) -> CaseView:
        """Set size bounds of the structures named."""
        require(case)
        bounds_ml = {name: (low, high) for name, (low, high) in body.bounds_ml.items()}
        return act(case, lambda: annotator.bound(case, body.revision, bounds_ml))

    @routes.put("/cases/{case}/state")
    def write_state(case: str, body: StateBody) -> CaseView:
        """Set a case's state."""
        require(case)
        return act(case, lambda: annotator.mark(case, body.revision, body.state))

    @routes.post("/shown", status_code=204)
    def write_shown(body: ShownBody) -> None:
        """Remember which case is shown."""
        store.show(require(body.case))

    return routes


async def _read_body(request: Request, most: int) -> bytes:
    """Return the body of a request, of at most so many bytes; what is larger is refused before it is read."""
    if announced(request.headers) > most:
        raise HTTPException(413, f"the body exceeds {most} bytes")
    return await Request(request.scope, limit(request.receive, most)).body()
