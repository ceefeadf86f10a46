"""A trained network on one image of any size and orientation: masks, probabilities, sizes of exactly its geometry."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from discoseg.certified import Enforcement, Scene, enforce_in_image, most_probable
from discoseg.config import AugmentConfig, Config
from discoseg.data.prepare import Grid, image_to_grid, probabilities_from_grid
from discoseg.data.volume import Volume
from discoseg.errors import UserError
from discoseg.images import image_like, volume_from_image
from discoseg.postprocess import NO_POSTPROCESSING, Postprocessing
from discoseg.uncertainty import predict_views
from discoseg.volumes import Size

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image
    from nibabel.spatialimages import SpatialImage


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
