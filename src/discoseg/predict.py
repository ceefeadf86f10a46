"""Trained runs to label maps: images of any size and orientation in, masks of exactly their geometry out."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from discoseg.certified import Enforcement, Scene, enforce_in_image, most_probable, write_certificate
from discoseg.checkpoint import load_tensors
from discoseg.config import AugmentConfig, Config, NetworkConfig
from discoseg.data.dataset_json import HIGHEST
from discoseg.data.files import channel_of, file_of, image_suffix, list_images, strip_suffix
from discoseg.data.names import require_name
from discoseg.data.orientation import require_codes
from discoseg.data.prepare import Grid, image_to_grid, probabilities_from_grid
from discoseg.data.volume import Volume, list_channels, read_volume, write_volume
from discoseg.devices import choose_device
from discoseg.errors import UserError
from discoseg.images import image_like, volume_from_image
from discoseg.networks import build_network
from discoseg.postprocess import NO_POSTPROCESSING, Postprocessing
from discoseg.presets import from_record
from discoseg.run import ModelName, RunFolder
from discoseg.state import network_tensors
from discoseg.texts import read_json
from discoseg.uncertainty import class_entropy, predict_views
from discoseg.volumes import Size, read_volumes, write_volumes

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image
    from nibabel.spatialimages import SpatialImage

MOST_CHANNELS = 1000


@dataclass(frozen=True)
class Prediction:
    """What a model says of one image, in the image's geometry.

    ``mask`` is uint8 of 0 and the labels' values; ``probabilities`` have for each structure, by name, float32 in
    [0, 1]: means over the views where there are any. ``sizes_vox`` has, for each structure, the sizes that each view
    alone gives, the image itself first, without anything enforced. ``certificate`` says what was enforced, if anything.
    """

    mask: Volume
    labels: dict[str, int]
    probabilities: dict[str, Volume]
    sizes_vox: dict[str, tuple[int, ...]]
    certificate: dict[str, Any] | None = None

    @property
    def probability(self) -> Volume:
        """The probability of the structure; of several, that a voxel belongs to any of them."""
        first, *others = self.probabilities.values()
        return first.like(np.clip(sum((o.array for o in others), start=first.array), 0, 1)) if others else first

    @property
    def sizes(self) -> dict[str, Size]:
        """The size of each structure in the mask, and its range over the views."""
        voxel_ml = self.mask.voxel_ml
        found = {}
        for name, value in self.labels.items():
            voxels, views = int(np.count_nonzero(self.mask.array == value)), self.sizes_vox[name]
            ends = (min(views) * voxel_ml, max(views) * voxel_ml)
            found[name] = Size(voxels, voxels * voxel_ml, ends if len(views) > 1 else None)
        return found


@dataclass(frozen=True)
class Model:
    """A trained network with what it must know of its data; ``labels`` are the values that masks carry, by name."""

    network: torch.nn.Module = field(repr=False)
    grid: Grid
    channels: int
    labels: dict[str, int]
    epoch: int
    device: torch.device
    augment: AugmentConfig = field(default_factory=AugmentConfig)  # of its training
    config: Config = field(default_factory=Config, repr=False)  # of its training

    @property
    def said(self) -> str:
        """The structures and their values, in words."""
        return ", ".join(f"{name} (value {value})" for name, value in self.labels.items())

    def predict(
        self,
        *channels: Volume,
        augmentations: int = 0,
        postprocessing: Postprocessing = NO_POSTPROCESSING,
        enforcement: Enforcement | None = None,
        name: str = "image",
        case: str = "image",
    ) -> Prediction:
        """Segment an image, given as one volume for each channel; ``name`` is named in errors.

        ``augmentations`` views of it, rotated and flipped, are predicted too, and the probabilities averaged. The mask
        honours what ``enforcement`` (:meth:`enforcement`) says of the ``case``, also after ``postprocessing``.
        """
        if len(channels) != self.channels:
            raise UserError(f"{name}: {len(channels)} channels given, the model was trained on {self.channels}")
        image = image_to_grid(channels, self.grid, name=name)
        tensor = torch.from_numpy(image).to(self.device)

        def treat(probabilities: Sequence[Volume]) -> Volume:
            mask = self.label(probabilities)
            return mask.like(postprocessing.apply(mask.array))

        on_grid: list[NDArray[np.float32]] = []
        sums: list[Volume] = []  # of the views' probabilities: all views of a large image would not fit into memory
        sizes: dict[str, tuple[int, ...]] = dict.fromkeys(self.labels, ())
        for probability in predict_views(self.network, tensor, augmentations, self.augment):
            on_grid.append(probability.cpu().numpy())
            view = [probabilities_from_grid(structure, channels[0], self.grid) for structure in on_grid[-1]]
            labels = treat(view).array
            for structure, value in self.labels.items():
                sizes[structure] += (int(np.count_nonzero(labels == value)),)
            sums = (
                [total.like(total.array + new.array) for total, new in zip(sums, view, strict=True)] if sums else view
            )
        means = [total.like(total.array / np.float32(len(on_grid))) for total in sums]
        mask, certificate = treat(means), None
        if enforcement is not None:
            scene = Scene(list(self.labels), image, np.mean(on_grid, axis=0, dtype=np.float32), self.grid, means)
            classes, certificate = enforce_in_image(scene, enforcement, postprocessing.apply, case=case)
            mask = self._named(means[0].like(classes))
        return Prediction(mask, self.labels, dict(zip(self.labels, means, strict=True)), sizes, certificate)

    def enforcement(
        self, *, size_ml: str | None = None, size_csv: Path | str | None = None, crf_strength: float | None = None
    ) -> Enforcement:
        """Return what :meth:`predict` is to enforce: the sizes and boundary prior given, else those of the training.

        ``size_ml`` and ``size_csv`` are those of ``discoseg train``; ``crf_strength`` is λ/μ̂, 0 for no boundary prior,
        by default a tenth of the training's.
        """
        table = None if size_csv is None else Path(size_csv)
        return Enforcement.choose(
            self.config, list(self.labels), size_ml=size_ml, size_csv=table, strength=crf_strength
        )

    def probability(self, *channels: Volume, name: str = "image") -> Volume:
        """Return :attr:`Prediction.probability`, float32 in [0, 1], with the geometry of the first channel."""
        return self.predict(*channels, name=name).probability

    def segment(self, *channels: Volume, name: str = "image") -> Volume:
        """Return the label map, uint8 of 0 and the labels' values, with the geometry of the first channel."""
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

    def label(self, probabilities: Sequence[Volume]) -> Volume:
        """Return the label map of each structure's probability: the most probable label of each voxel.

        One structure wins from one half on; of several equal ones the first does, background before all.
        """
        return self._named(probabilities[0].like(most_probable(np.stack([p.array for p in probabilities]))))

    def _named(self, classes: Volume) -> Volume:
        """Return the label map of classes, 0 the background, k the k-th structure."""
        return classes.like(np.array([0, *self.labels.values()], np.uint8)[classes.array])


def load_model(path: Path | str, *, device: str = "auto", checkpoint: ModelName = "best") -> Model:
    """Load a run folder's ``best``, ``mean`` or ``final`` model, or a checkpoint file.

    The ``best`` is the best epoch's by the validation cases; the mean of the last epochs' weights takes that place
    where it validates better, or nothing validates. The ``latest`` checkpoint of a training that still runs needs the
    run.json of its folder.
    """
    file = path = Path(path)
    if path.is_dir():
        run = RunFolder(path)
        file = run.model(checkpoint)
        if not file.is_file() and checkpoint == "mean" and run.final.is_file():
            raise UserError(f"{path}: was trained before there were means of models; use --checkpoint final")
        if not file.is_file():
            raise UserError(f"{path}: no model in it ({file.relative_to(path)}); finish its training first")
    tensors, meta = load_tensors(file)
    target = choose_device(device)
    try:
        config = from_record(meta["config"], where=str(file))
        facts = dict(meta["model"] if "model" in meta else _recorded_model(file))
        labels = facts["labels"] if "labels" in facts else {facts["label"]: facts["label_value"]}
        _require_facts(file, labels, facts["channels"])
        network = _restore(config.network, facts["channels"], 1 + len(labels), network_tensors(tensors))
        require_codes(facts["orientation"])
        grid = Grid(config.grid.shape, config.grid.clip_percent, facts["orientation"])
        epoch = int(meta["epoch"])
    except UserError:
        raise
    except (LookupError, RuntimeError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UserError(f"{file}: not a model of this version of discoseg; train it anew") from error
    network = network.to(target).eval()
    return Model(network, grid, facts["channels"], labels, epoch, target, config.augment, config)


def _require_facts(file: Path, labels: dict[str, int], channels: int) -> None:
    """Refuse names and numbers of structures and channels that no training writes."""
    for name in labels:
        require_name(name, file, "structure")
    values = list(labels.values())
    if not values or any(type(value) is not int or not 0 < value <= HIGHEST for value in values):
        raise ValueError(f"label values {values}")
    if type(channels) is not int or not 0 < channels <= MOST_CHANNELS:
        raise ValueError(f"{channels} channels")


def _restore(config: NetworkConfig, channels: int, classes: int, weights: dict[str, torch.Tensor]) -> nn.Module:
    """Return a network with its weights; one that does not have just these is refused before it takes memory."""
    build = partial(
        build_network, config.name, channels=channels, classes=classes, width=config.width, depth=config.depth
    )
    with torch.device("meta"):
        outline = {name: (weight.shape, weight.dtype) for name, weight in build().state_dict().items()}
    if outline != {name: (weight.shape, weight.dtype) for name, weight in weights.items()}:
        raise ValueError("other weights than its settings say")
    network = build()
    network.load_state_dict(weights)
    return network


def _recorded_model(file: Path) -> Any:
    """Return what run.json says of the model whose training wrote the checkpoint; a KeyError where it says nothing."""
    try:
        return read_json(file.parent.parent / "run.json")["model"]
    except (OSError, ValueError) as error:
        raise KeyError("model") from error


def predict_files(
    model: Model,
    images: Sequence[Path | str],
    out: Path | str,
    *,
    probabilities: bool = False,
    uncertainty: bool = False,
    augmentations: int = 0,
    postprocessing: Postprocessing = NO_POSTPROCESSING,
    enforcement: Enforcement | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Path]:
    """Segment image files, or all images of folders, into ``out``; return the label maps' paths.

    Each map has its image's name and geometry; with ``probabilities`` a float32 map ``NAME_probability`` stands
    beside it (of several structures ``NAME_probability_STRUCTURE`` each), with ``uncertainty`` one of the entropy of
    its labels, ``NAME_uncertainty`` (both as ``.mha`` beside a ``.png``, which holds no fractions). Files of a model
    with several channels belong together by nnU-Net's names, ``NAME_0000``, ``NAME_0001``, …, and the map is called
    ``NAME``; one file may also have all channels. With ``enforcement`` (:meth:`Model.enforcement`) a certificate
    ``NAME_certificate.json`` says what holds; NAME is then the case's in a table of sizes. Existing files are never
    overwritten; volumes.csv gets a row for each structure of each map.
    """
    out = Path(out)
    cases = _group_channels(model, [file for path in images for file in _expand(Path(path))])
    for name, files in cases.items():
        require_name(strip_suffix(Path(name)), files[0])
    beside = _probability_endings(model) if probabilities else {}
    endings = ["", *beside, *["_uncertainty"] * uncertainty]
    targets = {name: {ending: out / _name_beside(name, ending) for ending in endings} for name in cases}
    if enforcement is not None:
        for name, several in targets.items():
            several["_certificate"] = out / f"{strip_suffix(Path(name))}_certificate.json"
    planned = [target for several in targets.values() for target in several.values()]
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
                enforcement=enforcement,
                name=str(files[0]),
                case=strip_suffix(Path(name)),
            )
        except UserError as error:  # one bad file must not cost the others their masks
            failures.append(error)
            progress(done, len(cases))
            continue
        for ending, structure in beside.items():
            write_volume(targets[name][ending], prediction.probabilities[structure])
        if uncertainty:
            entropy = class_entropy([volume.array for volume in prediction.probabilities.values()])
            write_volume(targets[name]["_uncertainty"], prediction.mask.like(entropy))
        if prediction.certificate is not None:
            write_certificate(targets[name]["_certificate"], prediction.certificate)
        write_volume(targets[name][""], prediction.mask)
        for structure, size in prediction.sizes.items():
            sizes[strip_suffix(Path(name)), structure] = size.row()
        write_volumes(out / "volumes.csv", sizes)
        progress(done, len(cases))
    if failures:
        others = f" ({len(failures) - 1} more images failed)" if len(failures) > 1 else ""
        raise UserError(f"{failures[0]}{others}; {len(cases) - len(failures)} of {len(cases)} masks were written")
    return [several[""] for several in targets.values()]


def _probability_endings(model: Model) -> dict[str, str]:
    """Return what names of probability maps end in, and the structure that each is of."""
    if len(model.labels) == 1:
        return dict.fromkeys(["_probability"], next(iter(model.labels)))
    return {f"_probability_{re.sub(r'[^A-Za-z0-9.-]', '-', name)}": name for name in model.labels}


def _name_beside(name: str, ending: str) -> str:
    if not ending:
        return name
    suffix = image_suffix(Path(name))
    return f"{strip_suffix(Path(name))}{ending}{'.mha' if suffix == '.png' else suffix}"


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
