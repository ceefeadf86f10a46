"""Prediction in Python: images that nibabel holds, views of them, and how sure the network is."""

from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch

from discoseg.config import AugmentConfig
from discoseg.data.phantom import make_phantom
from discoseg.data.prepare import Grid
from discoseg.data.volume import read_volume, write_volume
from discoseg.errors import UserError
from discoseg.predict import Model
from discoseg.uncertainty import class_entropy, predict_views


class Bright(torch.nn.Module):
    """A network that takes bright pixels for the structure, wherever they are."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Map (B, C, H, W) to logits (B, 2, H, W)."""
        return torch.cat([0.5 - image[:, :1], image[:, :1] - 0.5], dim=1) * 5


def model(channels: int = 1, grid: Grid = Grid((24, 32), (1.0, 99.0), "LPS")) -> Model:  # noqa: B008
    return Model(Bright(), grid, channels, {"LV": 3}, 1, torch.device("cpu"), AugmentConfig(rotate_deg=30.0, flip=True))


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A phantom's file; read only."""
    path = tmp_path_factory.mktemp("scan") / "scan.nii.gz"
    write_volume(path, make_phantom(3, in_plane=(40, 36)).image)
    return path


@pytest.mark.parametrize("codes", ["LPS", "RAS", "SLA"])
def test_nibabels_image_gets_the_mask_of_its_file(scan: Path, tmp_path: Path, codes: str) -> None:
    volume = read_volume(scan).reoriented(codes)
    write_volume(tmp_path / "turned.nii.gz", volume)
    image = nibabel.load(tmp_path / "turned.nii.gz")
    mask = model().predict_image(image)  # type: ignore[arg-type]
    assert np.array_equal(np.asarray(mask.dataobj).T, model().segment(volume).array)
    assert np.array_equal(mask.affine, image.affine)  # type: ignore[attr-defined]
    assert mask.get_data_dtype() == np.uint8
    assert set(np.unique(np.asarray(mask.dataobj))) == {0, 3}
    for field in ("pixdim", "qform_code", "sform_code", "srow_x", "quatern_b", "qoffset_x"):
        assert np.array_equal(mask.header[field], image.header[field])  # type: ignore[index]


def test_other_formats_and_flat_images_have_masks_of_their_shape() -> None:
    array = np.random.default_rng(0).integers(0, 100, (20, 22, 1), dtype=np.int16)
    affine = np.diag([-1.5, -1.5, 8.0, 1.0])
    for image in (
        nibabel.MGHImage(array, affine),
        nibabel.Nifti1Image(array[..., 0], affine),
        nibabel.Nifti2Image(array[..., None], affine),
    ):
        mask = model().predict_image(image)
        assert mask.shape == image.shape
        assert np.array_equal(mask.affine, image.affine)


def test_images_that_cannot_be_segmented() -> None:
    series = nibabel.Nifti1Image(np.zeros((4, 4, 4, 2), np.int16), np.eye(4))
    with pytest.raises(UserError, match="4×4×4×2"):
        model().predict_image(series)
    one = nibabel.Nifti1Image(np.arange(64, dtype=np.int16).reshape(4, 4, 4), np.eye(4))
    with pytest.raises(UserError, match="2 channels given"):
        model().predict_image(one, one)
    with pytest.raises(UserError, match="complex"):
        model().predict_image(nibabel.Nifti1Image(np.zeros((4, 4, 4), np.complex64), np.eye(4)))


def test_views_return_to_their_place() -> None:
    rows, columns = np.mgrid[0:48, 0:64]
    blob = np.exp(-((rows - 20) ** 2 + (columns - 40) ** 2) / 200).astype(np.float32)
    image = torch.from_numpy(blob)[None, None].expand(3, 1, 48, 64)
    plain, *views = predict_views(Bright(), image, 4, AugmentConfig(rotate_deg=45.0, flip=True))
    assert len(views) == 4
    for view in views:
        assert not torch.equal(view, plain)
        assert (view - plain).abs().max() < 0.02


def test_augmentations_average_and_say_the_range(scan: Path) -> None:
    volume = read_volume(scan)
    plain, views = model().predict(volume), model().predict(volume, augmentations=3)
    assert plain.sizes["LV"].range_ml is None
    assert views.sizes["LV"].range_ml is not None
    low, high = views.sizes["LV"].range_ml
    assert low <= plain.sizes["LV"].ml <= high
    assert len(views.sizes_vox["LV"]) == 4
    assert views.sizes_vox["LV"][0] == plain.sizes_vox["LV"][0] == plain.sizes["LV"].voxels
    again = model().predict(volume, augmentations=3)
    assert np.array_equal(again.probability.array, views.probability.array)


def test_entropy_is_of_one_bit_at_most() -> None:
    p = np.linspace(-1e-8, 1 + 1e-8, 101, dtype=np.float64)
    entropy = class_entropy([p])
    assert entropy.dtype == np.float32
    assert entropy[0] == entropy[-1] == 0
    assert entropy.argmax() == 50
    assert entropy.max() == 1
