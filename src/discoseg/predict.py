"""Trained runs to label maps: images of any size and orientation in, masks of exactly their geometry out."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from discoseg.checkpoint import load_tensors
from discoseg.config import AugmentConfig, Config, from_dict
from discoseg.data.files import image_suffix, list_images, strip_suffix
from discoseg.data.prepare import Grid, image_to_grid, probabilities_from_grid
from discoseg.data.volume import Volume, read_volume, write_volume
from discoseg.errors import UserError
from discoseg.images import image_like, volume_from_image
from discoseg.networks import build_network
from discoseg.postprocess import NO_POSTPROCESSING, Postprocessing
from discoseg.run import RunFolder
from discoseg.state import network_tensors
from discoseg.train import choose_device
from discoseg.uncertainty import binary_entropy, predict_views
from discoseg.volumes import Size, read_volumes, write_volumes

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image
    from nibabel.spatialimages import SpatialImage


@dataclass(frozen=True)
class Prediction:
    """What a model says of one image, in the image's geometry.

    ``mask`` is uint8 of 0 and the label's value, ``probability`` float32 in [0, 1]: the mean over the views where there
    are any. ``sizes_vox`` has the size of the mask that each view alone gives, the image itself first.
    """

    mask: Volume
    probability: Volume
    sizes_vox: tuple[int, ...]

    @property
    def size(self) -> Size:
        """The size of the mask, and its range over the views."""
        voxels, voxel_ml = int(np.count_nonzero(self.mask.array)), self.mask.voxel_ml
        ends = (min(self.sizes_vox) * voxel_ml, max(self.sizes_vox) * voxel_ml)
        return Size(voxels, voxels * voxel_ml, ends if len(self.sizes_vox) > 1 else None)


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
    augment: AugmentConfig = field(default_factory=AugmentConfig)  # of its training

    def predict(
        self,
        *channels: Volume,
        augmentations: int = 0,
        postprocessing: Postprocessing = NO_POSTPROCESSING,
        name: str = "image",
    ) -> Prediction:
        """Segment an image, given as one volume for each channel; ``name`` is named in errors.

        ``augmentations`` views of it, rotated and flipped, are predicted too, and the probabilities averaged.
        """
        if len(channels) != self.channels:
            raise UserError(f"{name}: {len(channels)} channels given, the model was trained on {self.channels}")
        image = torch.from_numpy(image_to_grid(channels, self.grid, name=name)).to(self.device)
        views = [
            probabilities_from_grid(view.cpu().numpy(), channels[0], self.grid)
            for view in predict_views(self.network, image, augmentations, self.augment)
        ]

        def treat(probability: Volume) -> Volume:
            mask = self.threshold(probability)
            return mask.like(postprocessing.apply(mask.array))

        mean = views[0].like(np.asarray(np.mean([view.array for view in views], axis=0, dtype=np.float32)))
        return Prediction(treat(mean), mean, tuple(int(np.count_nonzero(treat(view).array)) for view in views))

    def probability(self, *channels: Volume, name: str = "image") -> Volume:
        """Return the structure's probability, float32 in [0, 1], with the geometry of the first channel."""
        return self.predict(*channels, name=name).probability

    def segment(self, *channels: Volume, name: str = "image") -> Volume:
        """Return the label map, uint8 of 0 and ``label_value``, with the geometry of the first channel."""
        return self.predict(*channels, name=name).mask

    def predict_image(
        self,
        *channels: "SpatialImage",
        augmentations: int = 0,
        postprocessing: Postprocessing = NO_POSTPROCESSING,
    ) -> "Nifti1Image":
        """Segment an image that nibabel holds; return the label map, uint8, as a NIfTI image of the same geometry."""
        volumes = [volume_from_image(channel) for channel in channels]
        prediction = self.predict(*volumes, augmentations=augmentations, postprocessing=postprocessing)
        return image_like(prediction.mask, channels[0])

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
        config = from_dict(meta["config"], base=Config(), where=str(file))
        facts = meta["model"]
        network = build_network(
            config.network.name,
            channels=facts["channels"],
            classes=2,
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
        facts["label"],
        facts["label_value"],
        meta["epoch"],
        target,
        config.augment,
    )


def predict_files(
    model: Model,
    images: Sequence[Path | str],
    out: Path | str,
    *,
    probabilities: bool = False,
    uncertainty: bool = False,
    augmentations: int = 0,
    postprocessing: Postprocessing = NO_POSTPROCESSING,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Path]:
    """Segment image files, or all images of folders, into ``out``; return the label maps' paths.

    Each map has its image's name and geometry; with ``probabilities`` a float32 map ``NAME_probability`` stands
    beside it, with ``uncertainty`` one of that probability's entropy in bits, ``NAME_uncertainty``. Files of a model
    with several channels belong together by nnU-Net's names, ``NAME_0000``, ``NAME_0001``, …, and the map is called
    ``NAME``. Existing files are never overwritten; volumes.csv gets a row for each map.
    """
    out = Path(out)
    cases = _group_channels(model, [file for path in images for file in _expand(Path(path))])
    endings = ["", *["_probability"] * probabilities, *["_uncertainty"] * uncertainty]
    targets = {name: {ending: out / _name_beside(name, ending) for ending in endings} for name in cases}
    planned = [target for beside in targets.values() for target in beside.values()]
    for target in planned:
        if target.exists() or planned.count(target) > 1:
            raise UserError(f"{target}: already exists, or would be written twice; choose another --out")
    sizes = read_volumes(out / "volumes.csv")
    out.mkdir(parents=True, exist_ok=True)
    failures: list[UserError] = []
    for done, (name, files) in enumerate(cases.items(), start=1):
        try:
            prediction = model.predict(
                *(read_volume(file) for file in files),
                augmentations=augmentations,
                postprocessing=postprocessing,
                name=str(files[0]),
            )
        except UserError as error:  # one bad file must not cost the others their masks
            failures.append(error)
            progress(done, len(cases))
            continue
        probability = prediction.probability
        if probabilities:
            write_volume(targets[name]["_probability"], probability)
        if uncertainty:
            write_volume(targets[name]["_uncertainty"], probability.like(binary_entropy(probability.array)))
        write_volume(targets[name][""], prediction.mask)
        sizes[strip_suffix(Path(name))] = prediction.size.row()
        write_volumes(out / "volumes.csv", sizes)
        progress(done, len(cases))
    if failures:
        others = f" ({len(failures) - 1} more images failed)" if len(failures) > 1 else ""
        raise UserError(f"{failures[0]}{others}; {len(cases) - len(failures)} of {len(cases)} masks were written")
    return [beside[""] for beside in targets.values()]


def _name_beside(name: str, ending: str) -> str:
    return f"{strip_suffix(Path(name))}{ending}{image_suffix(Path(name))}" if ending else name


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
        cases.setdefault(name, []).append(file)
    return {name: sorted(channels) for name, channels in cases.items()}
