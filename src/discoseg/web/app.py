"""The routes: requests of the page to actions on cases, and their answers."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Header, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool

from discoseg.errors import UserError
from discoseg.web.annotator import Annotator
from discoseg.web.drawing import most_packed, pack, unpack
from discoseg.web.events import Hub
from discoseg.web.guard import limit
from discoseg.web.records import Record
from discoseg.web.schema import (
    PROBLEMS,
    BoundsBody,
    CaseView,
    ClickBody,
    DatasetView,
    Listed,
    Problem,
    Revision,
    ShownBody,
    StateBody,
    Structure,
)
from discoseg.web.store import Conflict

OCTETS = "application/octet-stream"
OCTETS_CONTENT: dict[str, Any] = {OCTETS: {"schema": {"type": "string", "format": "binary"}}}
DRAWING_ANSWER: dict[int | str, dict[str, Any]] = {200: {"content": OCTETS_CONTENT, "description": "a drawing"}}


class ImageResponse(FileResponse):
    """A file, whole or the range that is asked for, read piece by piece from the disk."""

    chunk_size = 1 << 20


def create_app(annotator: Annotator, static: Path) -> FastAPI:
    """Return the application on a dataset, with the page's files from the folder ``static``."""
    hub = Hub()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        hub.close()

    app = FastAPI(
        title="discoseg annotate",
        version="1",
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses=PROBLEMS,
    )
    app.state.hub = hub
    _explain_errors(app)
    _serve_page(app, static)
    _serve_cases(app, annotator, hub)

    @app.get("/api/events", response_class=StreamingResponse)
    async def events() -> StreamingResponse:
        """Tell of every change, as it happens (server-sent events)."""
        return StreamingResponse(hub.listen(), media_type="text/event-stream")

    return app


def _explain_errors(app: FastAPI) -> None:
    """Answer what went wrong in one line of JSON."""

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return JSONResponse(Problem(detail=f"{where}: {first['msg']}").model_dump(), 422)

    @app.exception_handler(HTTPException)
    def refused(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse(Problem(detail=str(error.detail)).model_dump(), error.status_code)

    @app.exception_handler(Conflict)
    def conflict(request: Request, error: Conflict) -> JSONResponse:
        return JSONResponse(Problem(detail=str(error), revision=error.revision).model_dump(), 409)

    @app.exception_handler(UserError)
    def mistaken(request: Request, error: UserError) -> JSONResponse:
        return JSONResponse(Problem(detail=str(error)).model_dump(), 507 if "cannot write" in str(error) else 422)


def _serve_page(app: FastAPI, static: Path) -> None:
    """Serve the files of a folder, looked up in a list that is made now."""
    files = {path.relative_to(static).as_posix(): path for path in static.rglob("*") if path.is_file()}

    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(static / "index.html")

    @app.get("/static/{name:path}", include_in_schema=False)
    def file(name: str) -> FileResponse:
        if name not in files:
            raise HTTPException(404, f"no file {name}")
        return FileResponse(files[name])


def _serve_cases(app: FastAPI, annotator: Annotator, hub: Hub) -> None:
    store, images = annotator.store, annotator.images

    def require(case: str) -> str:
        if case not in annotator.cases:
            raise HTTPException(404, f"no case {case!r}")
        return case

    def view(case: str, record: Record) -> CaseView:
        geometry = images.geometry(case)
        z, y, x = geometry.spacing_mm
        depth, rows, columns = geometry.shape
        return CaseView(
            name=case,
            state=record.state,
            revision=record.revision,
            shape=(columns, rows, depth),
            spacing_mm=(x, y, z),
            clicks={name: at for name, at in record.clicks.items() if name in annotator.structures},
            bounds_ml={name: sides for name, sides in record.bounds_ml.items() if name in annotator.structures},
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
        shape = spacing_mm = None
        if geometry is not None:
            depth, rows, columns = geometry.shape
            z, y, x = geometry.spacing_mm
            shape, spacing_mm = (columns, rows, depth), (x, y, z)
        return Listed(
            name=case, group=group, shape=shape, spacing_mm=spacing_mm, state=record.state, revision=record.revision
        )

    @app.get("/api/dataset")
    def dataset() -> DatasetView:
        """List the cases and their state."""
        return DatasetView(
            name=annotator.dataset.root.resolve().name,
            structures=[Structure(name=name, value=value) for name, value in annotator.structures.items()],
            ignore=annotator.dataset.ignore,
            cases=[listed(case.name, case.group) for case in annotator.cases.values()],
            shown=store.shown,
            suggested=[],
            has_atlas=annotator.has_atlas,
            runs=[],
        )

    @app.get("/api/cases/{case}")
    def read_case(case: str) -> CaseView:
        """Say what is annotated of a case."""
        return view(require(case), store.record(case))

    @app.get("/api/cases/{case}/image/{filename}", response_class=ImageResponse)
    def read_image(case: str, filename: str) -> ImageResponse:
        """Send a case's image as a NIfTI file."""
        if images.name(require(case)) != filename:
            raise HTTPException(404, f"the image of {case} is called {images.name(case)}")
        return ImageResponse(images.file(case), media_type=OCTETS)

    @app.get("/api/cases/{case}/labels", response_class=Response, responses=DRAWING_ANSWER)
    def read_labels(case: str) -> Response:
        """Send a case's drawing, gzipped."""
        record, drawing = annotator.drawing(require(case))
        return Response(pack(drawing), media_type=OCTETS, headers={"X-Revision": str(record.revision)})

    @app.put(
        "/api/cases/{case}/labels",
        openapi_extra={"requestBody": {"required": True, "content": OCTETS_CONTENT}},
    )
    async def write_labels(case: str, request: Request, x_revision: Annotated[Revision, Header()]) -> CaseView:
        """Make a gzipped drawing the case's."""
        shape = (await run_in_threadpool(images.geometry, require(case))).shape
        body = await _read_body(request, most_packed(shape))

        def paint() -> Record:
            return annotator.paint(case, x_revision, unpack(body, shape, annotator.palette))

        return await run_in_threadpool(act, case, paint)

    @app.put("/api/cases/{case}/click")
    def write_click(case: str, body: ClickBody) -> CaseView:
        """Put a structure's click on a voxel; the seeds follow."""
        require(case)
        return act(case, lambda: annotator.click(case, body.revision, body.label, body.voxel))

    @app.delete("/api/cases/{case}/click")
    def delete_click(case: str, label: str, revision: Annotated[Revision, Query()]) -> CaseView:
        """Take a structure's click away, and its seeds."""
        require(case)
        return act(case, lambda: annotator.click(case, revision, label, None))

    @app.put("/api/cases/{case}/bounds")
    def write_bounds(case: str, body: BoundsBody) -> CaseView:
        """Set size bounds of the structures named."""
        require(case)
        return act(case, lambda: annotator.bound(case, body.revision, body.bounds_ml))

    @app.put("/api/cases/{case}/state")
    def write_state(case: str, body: StateBody) -> CaseView:
        """Set a case's state."""
        require(case)
        return act(case, lambda: annotator.mark(case, body.revision, body.state))

    @app.post("/api/shown", status_code=204)
    def write_shown(body: ShownBody) -> None:
        """Remember which case is shown."""
        store.show(require(body.case))


async def _read_body(request: Request, most: int) -> bytes:
    """Return the body of a request, of at most so many bytes; what is larger is refused before it is read."""
    if int(request.headers.get("content-length", "0")) > most:
        raise HTTPException(413, f"the body exceeds {most} bytes")
    return await Request(request.scope, limit(request.receive, most)).body()
