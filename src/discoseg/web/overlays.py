"""Predictions and proposals of a run as drawings that the page lays over an image."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from discoseg.data.files import write_atomically
from discoseg.data.prepare import Grid, labels_from_grid
from discoseg.data.volume import read_volume
from discoseg.errors import UserError
from discoseg.presets import load_run_config
from discoseg.texts import read_json
from discoseg.web.annotator import Annotator
from discoseg.web.drawing import pack

if TYPE_CHECKING:
    from discoseg.predict import Model

Kind = Literal["prediction", "crf", "size"]


class Overlays:
    """Makes overlays when they are asked for; predictions are kept in ``cache`` until their run has a newer model.

    An overlay is a drawing in which background is nothing. A :class:`UserError` says why there is none.
    """

    def __init__(self, annotator: Annotator, cache: Path) -> None:
        self._annotator, self._cache = annotator, cache
        self._predicting = threading.Lock()
        self._model: tuple[str, Model] | None = None  # the latest one used, by its file and age

    def find(self, name: str, run: Path, case: str, kind: Kind) -> bytes:
        """Return the packed overlay of a kind that the run ``name`` in the folder ``run`` has for a case."""
        return self._prediction(name, run, case) if kind == "prediction" else self._proposal(run, case, kind)

    def _prediction(self, name: str, run: Path, case: str) -> bytes:
        file = _model_file(run)
        stat = file.stat()
        stamp = f"{file.stem}-{stat.st_mtime_ns}"
        path = self._cache / name / f"{case}.{stamp}"
        with self._predicting:
            if path.is_file():
                return path.read_bytes()
            from discoseg.predict import load_model

            key = f"{file} {stamp}"
            if self._model is None or self._model[0] != key:
                self._model = key, load_model(file)
            model = self._model[1]
            files = self._annotator.cases[case].images
            mask = model.segment(*map(read_volume, files), name=str(files[0]))
            overlay = pack(self._draw(mask.array, model.labels))
            path.parent.mkdir(parents=True, exist_ok=True)
            for old in path.parent.iterdir():
                if not old.name.endswith(stamp):  # of an earlier model
                    old.unlink()
            with write_atomically(path) as temporary:
                temporary.write_bytes(overlay)
            return overlay

    def _proposal(self, run: Path, case: str, kind: str) -> bytes:
        from discoseg.checkpoint import load_slices

        facts, config = _facts(run), load_run_config(run / "config.toml")
        training: list[str] = facts["training"]
        if case not in training:
            raise UserError(f"{case} is no training case of {run.name}, and only these have proposals")
        if strange := [name for name in training if name not in self._annotator.cases]:
            raise UserError(f"{run.name} was trained on other data: it has a case {strange[0]}")
        grid = Grid(config.grid.shape, config.grid.clip_percent, facts["model"]["orientation"])
        images = self._annotator.images
        depths = [images.geometry(name).reoriented(grid.orientation).shape[0] for name in training]
        start = sum(depths[: training.index(case)])
        stop = start + depths[training.index(case)]
        latest = run / "checkpoints" / "latest.safetensors"
        if not latest.is_file():
            raise UserError(f"{run.name} has no checkpoint yet")
        try:
            doubled, meta = load_slices(latest, f"{kind}.proposal2", start, stop)
        except KeyError as error:
            raise UserError(f"{run.name} makes no {kind} proposals, by its method {config.method}") from error
        if meta["epoch"] < config.admm.first_proposals:
            raise UserError(f"{run.name} makes its first proposals in epoch {config.admm.first_proposals}")
        chosen = (doubled == 2).numpy()  # (K, z, y, x)
        values = np.array(list(facts["model"]["labels"].values()), np.uint8)
        labels = (chosen * values[:, None, None, None]).max(axis=0)  # a voxel has one structure at most
        return pack(self._draw(labels_from_grid(labels, images.geometry(case), grid).array, facts["model"]["labels"]))

    def _draw(self, labels: NDArray[np.generic], names: Mapping[str, int]) -> NDArray[np.uint8]:
        """Return label values of a run as numbers of the drawing, by the structures' names."""
        table = np.zeros(256, np.uint8)
        for number, name in enumerate(self._annotator.structures, start=1):
            if name in names:
                table[names[name]] = number
        if not table.any():
            raise UserError(f"the run is about {', '.join(names)}, not about {', '.join(self._annotator.structures)}")
        return table[labels]


def _model_file(run: Path) -> Path:
    """Return the file of a run's best model, or of the one that its training has come to."""
    from discoseg.run import RunFolder

    folder = RunFolder(run)
    for file in (folder.model("best"), folder.latest):
        if file.is_file():
            return file
    raise UserError(f"{run.name} has no model yet; its first epoch is not finished")


def _facts(run: Path) -> dict:
    try:
        return dict(read_json(run / "run.json"))
    except (OSError, ValueError) as error:
        raise UserError(f"{run / 'run.json'} is missing or broken") from error
