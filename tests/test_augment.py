import math

import pytest
import torch
from torch import Generator, Tensor

from discoseg.augment import (
    apply_intensities,
    apply_transforms,
    pixel_area,
    sample_intensities,
    sample_transforms,
)
from discoseg.config import AugmentConfig

H, W = 30, 44


def generator(seed: int = 0) -> Generator:
    return torch.Generator().manual_seed(seed)


def draw(
    batch: int = 64,
    *,
    rotate_deg: float = 0.0,
    crop: tuple[float, float] = (1.0, 1.0),
    flip: tuple[bool, bool] = (False, False),
) -> Tensor:
    theta = sample_transforms(batch, generator(), rotate_deg=rotate_deg, crop=crop, flip=flip)
    assert theta is not None
    return theta


def matrix(a: float, b: float, c: float, d: float, tx: float = 0.0, ty: float = 0.0) -> Tensor:
    return torch.tensor([[[a, b, tx], [c, d, ty]]])


def scene() -> tuple[Tensor, Tensor, Tensor]:
    """One image with a smooth blob, its seeds (all three values) and two targets."""
    y, x = torch.meshgrid(torch.arange(H), torch.arange(W), indexing="ij")
    blob = torch.exp(-((x - 27.0) ** 2 / 60 + (y - 11.0) ** 2 / 30))
    seeds = torch.full((1, H, W), -1, dtype=torch.int8)
    seeds[0, blob > 0.8] = 1
    seeds[0, blob < 0.05] = 0
    return blob[None, None], seeds, torch.stack([2 * blob - 1, 1 - blob])[None]


def move(theta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    image, seeds, targets, valid = apply_transforms(theta, *scene())
    assert valid is not None
    return image, seeds, targets, valid


def test_zero_strength_returns_the_very_inputs() -> None:
    theta = sample_transforms(3, generator(), rotate_deg=0, crop=(1, 1), flip=(False, False))
    image, seeds, targets = scene()
    moved = apply_transforms(theta, image, seeds, targets)
    assert moved[0] is image
    assert moved[1] is seeds
    assert moved[2] is targets
    assert moved[3] is None


def test_the_generator_alone_decides() -> None:
    torch.manual_seed(1)
    first = sample_transforms(4, generator(7), rotate_deg=30, crop=(0.7, 1), flip=(True, True))
    torch.manual_seed(2)
    second = sample_transforms(4, generator(7), rotate_deg=30, crop=(0.7, 1), flip=(True, True))
    other = sample_transforms(4, generator(8), rotate_deg=30, crop=(0.7, 1), flip=(True, True))
    assert first is not None
    assert second is not None
    assert other is not None
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_flips_turn_the_array_around() -> None:
    image, seeds, targets = scene()
    for theta, axes in (
        (matrix(-1, 0, 0, 1), [-1]),
        (matrix(1, 0, 0, -1), [-2]),
        (matrix(-1, 0, 0, -1), [-2, -1]),
    ):
        moved_image, moved_seeds, moved_targets, valid = move(theta)
        torch.testing.assert_close(moved_image, image.flip(axes), atol=1e-5, rtol=0)
        torch.testing.assert_close(moved_targets, targets.flip(axes), atol=1e-5, rtol=0)
        assert torch.equal(moved_seeds, seeds.flip(axes))
        assert valid.all()


def test_quarter_turn_moves_pixels_not_fractions_of_a_side() -> None:
    """On a grid that is not square, only a rotation in pixels keeps shapes."""
    image, seeds, targets = scene()
    moved_image, moved_seeds, moved_targets, valid = move(matrix(0, -1, 1, 0))
    middle = slice((W - H) // 2, (W + H) // 2)  # the square that stays inside
    turned = [t[..., middle].rot90(1, (-2, -1)) for t in (image, seeds, targets)]
    torch.testing.assert_close(moved_image[..., middle], turned[0], atol=1e-5, rtol=0)
    assert torch.equal(moved_seeds[..., middle], turned[1])
    torch.testing.assert_close(moved_targets[..., middle], turned[2], atol=1e-5, rtol=0)
    assert valid[..., middle].all()
    outside = [slice(0, middle.start), slice(middle.stop, W)]
    for side in outside:
        assert not valid[..., side].any()
        assert (moved_seeds[..., side] == -1).all()
        assert (moved_image[..., side].abs() < 1e-6).all()


def test_rotations_keep_within_the_angle_and_reach_both_signs() -> None:
    theta = draw(rotate_deg=20)
    angles_deg = torch.atan2(theta[:, 1, 0], theta[:, 0, 0]).rad2deg()
    assert angles_deg.abs().max() <= 20 + 1e-4
    assert angles_deg.min() < -15
    assert angles_deg.max() > 15
    torch.testing.assert_close(pixel_area(theta), torch.ones(64))
    assert (theta[:, :, 2] == 0).all()


def test_crops_stay_inside_the_image_and_vary() -> None:
    theta = draw(crop=(0.6, 1))
    side = theta[:, 0, 0]
    assert 0.6 <= side.min() < 0.65
    assert 0.95 < side.max() <= 1
    assert (theta[:, :, 2].abs() <= 1 - side[:, None] + 1e-6).all()
    assert theta[:, :, 2].std() > 0.05
    for one in theta[:8]:
        assert move(one[None])[3].float().mean() > 0.9  # only the half-pixel rim may lack a neighbour


def test_windows_larger_than_the_image_show_all_of_it() -> None:
    theta = draw(crop=(1, 2))
    side = theta[:, 0, 0]
    assert 1 <= side.min() < 1.1
    assert 1.9 < side.max() <= 2
    assert theta[:, :, 2].std() > 0.1
    size = scene()[0].sum().item()
    for one in theta[:16]:
        image, seeds, _, valid = move(one[None])
        assert (image.sum() * pixel_area(one[None])).item() == pytest.approx(size, rel=0.1)
        assert (seeds >= 0).sum() <= 1.1 * H * W / one[0, 0] ** 2  # nothing is known beyond the image
        assert valid.float().mean() == pytest.approx(1 / one[0, 0].item() ** 2, abs=0.12)


def test_crop_shows_its_window() -> None:
    image, _, _ = scene()
    moved, _, _, _ = move(matrix(0.5, 0, 0, 0.5, tx=0.5, ty=-0.5))  # the upper right quarter, enlarged
    window = image[..., : H // 2, W // 2 :]
    torch.testing.assert_close(torch.nn.functional.avg_pool2d(moved, 2), window, atol=0.02, rtol=0)


def test_pixel_area_recovers_the_size_under_a_crop() -> None:
    theta = matrix(0.8, 0, 0, 0.8, tx=0.2, ty=-0.2)
    image, _, _ = scene()
    size = (move(theta)[0].sum() * pixel_area(theta)).item()
    assert size == pytest.approx(image.sum().item(), rel=0.02)


def test_image_seeds_and_targets_move_alike() -> None:
    theta = draw(16, rotate_deg=40, crop=(0.7, 1), flip=(True, True))
    for one in theta:
        image, seeds, targets, valid = move(one[None])
        blob = image[0, 0]
        inside = valid[0]
        torch.testing.assert_close(targets[0, 0][inside], (2 * blob - 1)[inside], atol=1e-5, rtol=0)
        assert blob[inside & (seeds[0] == 1)].min() > 0.6
        assert blob[inside & (seeds[0] == 0)].max() < 0.2
        assert (seeds[0][inside] == -1).any()
        assert seeds.dtype == torch.int8


def test_flips_happen_half_the_time() -> None:
    theta = draw(400, flip=(True, True))
    assert 0.4 < (theta[:, 0, 0] < 0).float().mean() < 0.6
    assert 0.4 < (theta[:, 1, 1] < 0).float().mean() < 0.6
    mirrored = draw(400, flip=AugmentConfig(mirror=True).flips)
    assert torch.equal(mirrored[:, 0], theta[:, 0])
    assert (mirrored[:, 1, 1] == 1).all()


def test_intensities_change_the_image_within_their_strength() -> None:
    image = torch.rand(5, 2, H, W, generator=generator())
    assert apply_intensities(sample_intensities(5, generator(), gamma=0, noise=0), image) is image
    bent = apply_intensities(sample_intensities(5, generator(), gamma=0.5, noise=0), image)
    exponents = (bent.log() / image.log()).nanmedian(dim=-1).values.amax(dim=(1, 2))
    assert ((exponents > math.exp(-0.5)) & (exponents < math.exp(0.5))).all()
    assert exponents.std() > 0.05
    noisy = apply_intensities(sample_intensities(5, generator(), gamma=0, noise=0.1), image)
    levels = (noisy - image).std(dim=(1, 2, 3))
    assert ((levels > 0) & (levels < 0.11)).all()
