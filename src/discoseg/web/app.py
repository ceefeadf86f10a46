"""The application: the page, its routes, what goes wrong, and what happens at its end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException as StarletteError

from discoseg.errors import UserError, one_line
from discoseg.web.annotator import Annotator
from discoseg.web.case_routes import case_routes
from discoseg.web.events import Hub
from discoseg.web.run_routes import run_routes
from discoseg.web.runs import Runs
from discoseg.web.schema import PROBLEMS, Problem
from discoseg.web.store import Conflict
from discoseg.web.training import Busy, Training


def create_app(annotator: Annotator, static: Path, *, run: Path | None = None, preset: str = "default") -> FastAPI:
    """Return the application on a dataset, with the page's files from the folder ``static``.

    ``run`` is a run folder to lay over images beside those of the annotation's own folder; trainings that the page
    starts have the settings of ``preset``.
    """
    hub = Hub()
    runs = Runs(annotator.out / "runs", run)
    training = Training(annotator, preset=preset, tell=lambda status: hub.tell({"training": asdict(status)}))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        hub.close()
        await run_in_threadpool(training.close)

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
    app.include_router(case_routes(annotator, runs, hub))
    app.include_router(run_routes(annotator, runs, training))

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
        return JSONResponse(Problem(detail=one_line(f"{where}: {first['msg']}")).model_dump(), 422)

    @app.exception_handler(StarletteError)
    def refused(request: Request, error: StarletteError) -> JSONResponse:
        return JSONResponse(
            Problem(detail=one_line(str(error.detail))).model_dump(), error.status_code, headers=error.headers
        )

    @app.exception_handler(FileNotFoundError)
    def missing(request: Request, error: FileNotFoundError) -> JSONResponse:
        return JSONResponse(Problem(detail=one_line(f"{error.filename} is missing")).model_dump(), 404)

    @app.exception_handler(Conflict)
    def conflict(request: Request, error: Conflict) -> JSONResponse:
        return JSONResponse(Problem(detail=str(error), revision=error.revision).model_dump(), 409)

    @app.exception_handler(Busy)
    def busy(request: Request, error: Busy) -> JSONResponse:
        return JSONResponse(Problem(detail=str(error)).model_dump(), 409)

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
