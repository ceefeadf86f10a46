"""Trained runs to label maps: images of any size and orientation in, masks of exactly their geometry out."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from discoseg.checkpoint import load_tensors
from discoseg.config import from_record
from discoseg.data.files import channel_of, file_of, image_suffix, list_images, strip_suffix
from discoseg.data.prepare import Grid, image_to_grid, probabilities_from_grid
from discoseg.data.volume import Volume, list_channels, read_volume, write_volume
from discoseg.errors import UserError
from discoseg.networks import build_network
from discoseg.passes import predict_slices
from discoseg.run import RunFolder
from discoseg.state import network_tensors
from discoseg.train import choose_device


@dataclass(frozen=True)
class Model:
    """A trained network with what it must know of its data; ``label_value`` is what its masks carry."""

    network: torch.nn.Module = field(repr=False)
    grid: Grid
    channels: int
    label: str
    label_value: int
    epoch: int
    device: torch.device

    def probability(self, *channels: Volume, name: str = "image") -> Volume:
        """Return the structure's probability, float32 in [0, 1], with the geometry of the first channel."""
        if len(channels) != self.channels:
            raise UserError(f"{name}: {len(channels)} channels given, the model was trained on {self.channels}")
        image = torch.from_numpy(image_to_grid(channels, self.grid, name=name)).to(self.device)
        return probabilities_from_grid(predict_slices(self.network, image)[0].cpu().numpy(), channels[0], self.grid)

    def segment(self, *channels: Volume, name: str = "image") -> Volume:
        """Return the label map, uint8 of 0 and ``label_value``, with the geometry of the first channel."""
        return self.threshold(self.probability(*channels, name=name))

    def threshold(self, probability: Volume) -> Volume:
        """Return the label map of a probability: the structure where it is at least one half."""
        return probability.like((probability.array >= 0.5).astype(np.uint8) * np.uint8(self.label_value))


def load_model(path: Path | str, *, device: str = "auto", checkpoint: str = "best") -> Model:
    """Load a run folder's ``best`` or ``final`` model, or a checkpoint file.

    A run without validation cases has no best epoch; its final model takes that place.
    """
    file = path = Path(path)
    if path.is_dir():
        run = RunFolder(path)
        file = run.best if checkpoint == "best" and run.best.is_file() else run.final
        if not file.is_file():
            raise UserError(f"{path}: no model in it ({file.relative_to(path)}); finish its training first")
    tensors, meta = load_tensors(file)
    target = choose_device(device)
    try:
        config = from_record(meta["config"], where=str(file))
        facts = meta["model"]
        labels = facts["labels"] if "labels" in facts else {facts["label"]: facts["label_value"]}
        label = next(iter(labels))
        network = build_network(
            config.network.name,
            channels=facts["channels"],
            classes=1 + len(labels),
            width=config.network.width,
            depth=config.network.depth,
        )
        network.load_state_dict(network_tensors(tensors))
        grid = Grid(config.grid.shape, config.grid.clip_percent, facts["orientation"])
    except (KeyError, RuntimeError) as error:
        raise UserError(f"{file}: not a model of this version of discoseg; train it anew") from error
    return Model(
        network.to(target).eval(),
        grid,
        facts["channels"],
        label,
        labels[label],
        meta["epoch"],
        target,
    )


def predict_files(
    model: Model,
    images: Sequence[Path | str],
    out: Path | str,
    *,
    probabilities: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Path]:
    """Segment image files, or all images of folders, into ``out``; return the label maps' paths.

    Each map has its image's name and geometry; with ``probabilities`` a float32 map ``NAME_probability`` stands
    beside it (as ``.mha`` beside a ``.png``, which holds no fractions). Files of a model with several channels belong
    together by nnU-Net's names, ``NAME_0000``, ``NAME_0001``, …, and the map is called ``NAME``; one file may also have
    all channels. Existing files are never overwritten.
    """
    out = Path(out)
    cases = _group_channels(model, [file for path in images for file in _expand(Path(path))])
    targets = {name: out / name for name in cases}
    beside = {name: out / _probability_name(name) for name in cases} if probabilities else {}
    planned = [*targets.values(), *beside.values()]
    for target in planned:
        if target.exists() or planned.count(target) > 1:
            raise UserError(f"{target}: already exists, or would be written twice; choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    failures: list[UserError] = []
    for done, (name, files) in enumerate(cases.items(), start=1):
        try:
            probability = model.probability(*(read_volume(file) for file in files), name=str(files[0]))
        except UserError as error:  # one bad file must not cost the others their masks
            failures.append(error)
            progress(done, len(cases))
            continue
        if probabilities:
            write_volume(beside[name], probability)
        write_volume(targets[name], model.threshold(probability))
        progress(done, len(cases))
    if failures:
        others = f" ({len(failures) - 1} more images failed)" if len(failures) > 1 else ""
        raise UserError(f"{failures[0]}{others}; {len(cases) - len(failures)} of {len(cases)} masks were written")
    return list(targets.values())


def _probability_name(name: str) -> str:
    suffix = image_suffix(Path(name))
    return f"{strip_suffix(Path(name))}_probability{'.mha' if suffix == '.png' else suffix}"


def _expand(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = list_images(path)
    if not files:
        raise UserError(f"{path}: no image in this folder")
    return files


def _group_channels(model: Model, files: Sequence[Path]) -> dict[str, list[Path]]:
    """Return the channel files of every case by the name of its output."""
    cases: dict[str, list[Path]] = {}
    for file in files:
        name = file.name
        if model.channels > 1:
            name = re.sub(r"_\d{4}$", "", strip_suffix(file)) + image_suffix(file)
        if name in cases and model.channels == 1:
            raise UserError(f"{file} and {cases[name][0]} have the same name; predict them into different folders")
        cases.setdefault(name, []).extend(list_channels(file) if model.channels > 1 else [file])
    return {name: sorted(channels, key=lambda c: (file_of(c), channel_of(c) or 0)) for name, channels in cases.items()}
