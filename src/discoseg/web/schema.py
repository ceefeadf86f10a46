"""What page and server say to each other, as JSON; voxels are (x, y, z) of the image's file, from 0."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from discoseg.web.records import CaseState
from discoseg.web.training import TrainingState

Revision = Annotated[int, Field(ge=0, le=2**53)]
Index = Annotated[int, Field(ge=0, le=2**31, strict=True)]
SideMl = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] | None
# Lists where tuples are meant: OpenAPI 3.1 and FastAPI do not agree on how to describe a tuple.
VoxelJson = Annotated[list[Index], Field(min_length=3, max_length=3)]
SpacingJson = Annotated[list[float], Field(min_length=3, max_length=3)]
BoundsJson = Annotated[list[SideMl], Field(min_length=2, max_length=2)]


class Strict(BaseModel):
    """A body that has no other members than it says."""

    model_config = ConfigDict(extra="forbid")


class Structure(BaseModel):
    """A structure, and its value in label maps."""

    name: str
    value: int


class Listed(BaseModel):
    """A case in the list; shape in voxels and spacing in mm are not known before it is opened."""

    name: str
    group: str
    shape: VoxelJson | None
    spacing_mm: SpacingJson | None
    state: CaseState
    revision: int


class Run(BaseModel):
    """A training whose predictions and proposals can be laid over a case."""

    name: str
    title: str


class DatasetView(BaseModel):
    """A dataset, its cases, and where to go on."""

    name: str
    structures: list[Structure]
    ignore: int
    cases: list[Listed]
    shown: str | None
    suggested: list[str]
    has_atlas: bool
    runs: list[Run]


class CaseView(BaseModel):
    """What is annotated of a case, without its voxels; by structure: clicks, bounds, and the size of the seeds."""

    name: str
    state: CaseState
    revision: int
    shape: VoxelJson
    spacing_mm: SpacingJson
    clicks: dict[str, VoxelJson]
    bounds_ml: dict[str, BoundsJson]
    sizes_ml: dict[str, float]
    image: str


class ClickBody(Strict):
    """A click on a structure."""

    label: str
    voxel: VoxelJson
    revision: Revision


class BoundsBody(Strict):
    """Size bounds by structure."""

    bounds_ml: dict[str, BoundsJson]
    revision: Revision


class StateBody(Strict):
    """A case's state."""

    state: CaseState
    revision: Revision


class ShownBody(Strict):
    """The case that is shown."""

    case: str


class TrainingBody(Strict):
    """How to train; what is left out has its default."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")] | None = None
    epochs: Annotated[int, Field(ge=1, le=100_000, strict=True)] | None = None
    method: Literal["crf+size", "crf", "size", "penalty", "partial"] | None = None


class TrainingView(BaseModel):
    """Where a training stands; ``rows`` are those of its metrics.csv."""

    name: str | None
    state: TrainingState
    epoch: int
    epochs: int
    rows: list[dict[str, float | None]]
    message: str
    seconds: float


class Problem(BaseModel):
    """Why a request was refused; with status 409 also the case's present revision."""

    detail: str
    revision: int | None = None


PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": description}
    for status, description in (
        (403, "no token"),
        (404, "no such thing"),
        (409, "another window was quicker, or a training runs"),
        (412, "the drawing is of other structures"),
        (413, "the body is too large"),
        (422, "what was sent makes no sense"),
        (507, "the answer cannot be written to the disk"),
    )
}
