"""Random rotation, crop and flip, the same for image, seeds and proposal targets; intensities for the image.

Random numbers come from the caller's CPU generator, a few for each sample; pixels stay on their device.
"""

import math

import torch
from torch import Generator, Tensor
from torch.nn import functional


def sample_transforms(
    batch: int, generator: Generator, *, rotate_deg: float, crop: tuple[float, float], flip: tuple[bool, bool]
) -> Tensor | None:
    """Draw one affine map per sample (batch, 2, 3), or None when these strengths move nothing.

    Each rotates by up to ±``rotate_deg``, shows a random window whose sides are ``crop`` (least, most) of the
    image's, and where ``flip`` (left-right, up-down) says so flips an axis with probability ½. Before it is rotated,
    the smaller of window and image lies within the other. A map takes an output position (x, y) to an input position,
    both relative to the centre: the 2×2 part in pixels, the offset in half sides.
    """
    least, most = crop
    if rotate_deg == 0 and least == most == 1 and not any(flip):
        return None
    draws = torch.rand(batch, 6, generator=generator)
    angle = (2 * draws[:, 0] - 1) * math.radians(rotate_deg)
    side = most - draws[:, 1] * (most - least)  # of the window, relative to the image
    offset = (2 * draws[:, 2:4] - 1) * (1 - side).abs()[:, None]
    sign = torch.where((draws[:, 4:6] < 0.5) & torch.tensor(flip), -1.0, 1.0)
    cosine, sine = angle.cos(), angle.sin()
    rotation = torch.stack([cosine, -sine, sine, cosine], dim=1).view(batch, 2, 2)
    linear = side[:, None, None] * rotation * sign[:, None, :]
    return torch.cat([linear, offset[:, :, None]], dim=2)


def apply_transforms(
    theta: Tensor | None, image: Tensor, seeds: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Move image, seeds and targets alike; return them with ``valid``, False where they come from outside.

    ``theta`` (B, 2, 3) from ``sample_transforms``; None returns the very inputs and no ``valid``.
    ``image`` (B, C, H, W) and ``targets`` (B, T, H, W) are interpolated linearly, outside is 0.
    ``seeds`` (B, H, W) int8 take the nearest pixel, outside is −1.
    ``valid`` (B, H, W) bool: the position lies between the centres of four pixels.
    """
    if theta is None:
        return image, seeds, targets, None
    grid = _sampling_grid(theta.to(image.device), image.shape[-2:])
    channels = image.shape[1]
    moved = functional.grid_sample(torch.cat([image, targets], dim=1), grid, align_corners=False)
    annotated = (seeds + 1).unsqueeze(1).float()  # 0 is unknown now, as grid_sample's outside
    moved_seeds = functional.grid_sample(annotated, grid, mode="nearest", align_corners=False)
    x, y = grid.abs().unbind(dim=-1)
    rows, columns = image.shape[-2:]
    valid = (x <= 1 - 1 / columns + 1e-5) & (y <= 1 - 1 / rows + 1e-5)  # 1e-5: rounding
    return moved[:, :channels], moved_seeds.squeeze(1).to(seeds.dtype) - 1, moved[:, channels:], valid


def pixel_area(theta: Tensor) -> Tensor:
    """Return (B,) how many input pixels one output pixel covers: the factor from moved to original sizes."""
    return (theta[:, 0, 0] * theta[:, 1, 1] - theta[:, 0, 1] * theta[:, 1, 0]).abs()


def sample_intensities(batch: int, generator: Generator, *, gamma: float, noise: float) -> Tensor | None:
    """Draw (batch, 2), an exponent within e^±``gamma`` and a noise level to ``noise``; None if both are 0."""
    if gamma == 0 and noise == 0:
        return None
    draws = torch.rand(batch, 2, generator=generator)
    return torch.stack([((2 * draws[:, 0] - 1) * gamma).exp(), draws[:, 1] * noise], dim=1)


def apply_intensities(intensities: Tensor | None, image: Tensor) -> Tensor:
    """Raise images (B, C, H, W) in [0, 1] to their exponents, add noise by the device's own generator."""
    if intensities is None:
        return image
    exponent, noise = intensities.to(image.device).view(-1, 2, 1, 1, 1).unbind(dim=1)
    return image.clamp(0, 1).pow(exponent) + noise * torch.randn_like(image)


def _sampling_grid(theta: Tensor, shape: tuple[int, int] | torch.Size) -> Tensor:
    """Turn maps in pixels into grid_sample's positions (B, H, W, 2), where each side spans −1 to 1."""
    rows, columns = shape
    normalised = theta.clone()
    normalised[:, 0, 1] *= rows / columns
    normalised[:, 1, 0] *= columns / rows
    return functional.affine_grid(normalised, [len(theta), 1, rows, columns], align_corners=False)
