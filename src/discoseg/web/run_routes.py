"""Routes of trainings: overlays of their results, and one that the page starts, watches and stops."""

from dataclasses import asdict

from fastapi import APIRouter, HTTPException, Response

from discoseg.errors import UserError
from discoseg.web.annotator import Annotator
from discoseg.web.case_routes import DRAWING_ANSWER, OCTETS
from discoseg.web.overlays import Kind, Overlays
from discoseg.web.runs import Runs
from discoseg.web.schema import TrainingBody, TrainingView
from discoseg.web.training import Status, Training


def run_routes(annotator: Annotator, runs: Runs, training: Training) -> APIRouter:
    """Return the routes of the runs that are there, and of the one that is in training."""
    routes = APIRouter(prefix="/api")
    overlays = Overlays(annotator, annotator.out / "cache" / "predictions")

    def view(status: Status) -> TrainingView:
        return TrainingView.model_validate(asdict(status))

    @routes.get("/runs/{run}/cases/{case}/{kind}", response_class=Response, responses=DRAWING_ANSWER)
    def read_overlay(run: str, case: str, kind: Kind) -> Response:
        """Send what a run predicts for a case, or proposed in training, as a gzipped drawing."""
        folders = runs.folders()
        if run not in folders:
            raise HTTPException(404, f"no run {run!r}")
        if case not in annotator.cases:
            raise HTTPException(404, f"no case {case!r}")
        try:
            return Response(overlays.find(run, folders[run], case, kind), media_type=OCTETS)
        except UserError as error:
            raise HTTPException(404, str(error)) from error

    @routes.get("/training")
    def read_training() -> TrainingView:
        """Say where the training stands."""
        return view(training.status())

    @routes.post("/training")
    def start_training(body: TrainingBody) -> TrainingView:
        """Train on what is annotated, or go on with a run that was stopped."""
        return view(training.start(name=body.name, epochs=body.epochs, method=body.method))

    @routes.delete("/training")
    def stop_training() -> TrainingView:
        """Stop the training; it can go on later."""
        return view(training.stop())

    return routes
