"""Painting soft discs on sub-slices, in millimetres: what the phantom is drawn with."""

import math

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

SUB_SLICES = 4  # averaged into one thick slice

Floats = NDArray[np.float32]
Waves = NDArray[np.complex64]


class Canvas:
    """What has been painted so far: the image (sub-slice, y, x) and each label's share of every voxel."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        *,
        labels: int,
        pixel_mm: float,
        thick_mm: float,
        rng: Generator,
    ) -> None:
        """Begin with a black image of `shape` thick slices (z, y, x), labelled 0 of 0 … `labels` − 1."""
        slices, rows, columns = shape
        depth = slices * SUB_SLICES
        self.pixel_mm = pixel_mm
        self.z = ((np.arange(depth) + 0.5) * thick_mm / SUB_SLICES)[:, None, None].astype(np.float32)
        # A breath-hold a slice: each lies a little off.
        breath_mm = rng.normal(0, 0.8, size=(2, slices, 1, 1)).repeat(SUB_SLICES, axis=1)
        rows_mm, columns_mm = ((np.arange(n) - (n - 1) / 2) * pixel_mm for n in (rows, columns))
        self.y = (rows_mm[None, :, None] + breath_mm[0]).astype(np.float32)
        self.x = (columns_mm[None, None, :] + breath_mm[1]).astype(np.float32)
        self.image: Floats = np.zeros((depth, rows, columns), np.float32)
        self.shares: Floats = np.zeros((labels, depth, rows, columns), np.float32)
        self.shares[0] = 1
        self.marble = smooth_noise(rng, shape, 2.5 / pixel_mm).repeat(SUB_SLICES, axis=0)
        self.cloud = smooth_noise(rng, shape, 9 / pixel_mm).repeat(SUB_SLICES, axis=0)

    def disc(
        self,
        centre_mm: tuple[float | Floats, float | Floats],
        radii_mm: tuple[float | Floats, float | Floats],
        *,
        turn: float = 0.0,
        wobble: Waves | None = None,
    ) -> Floats:
        """Return the coverage in [0, 1] of an ellipse (y, x), turned by `turn` radians, on every sub-slice.

        Centre and radii may change along z; a radius of 0 is an empty sub-slice. wobble: the outline's
        harmonics (`draw_wobble`).
        """
        y, x = self.y - centre_mm[0], self.x - centre_mm[1]
        along, across = math.cos(turn) * x + math.sin(turn) * y, math.cos(turn) * y - math.sin(turn) * x
        radius_y, radius_x = (np.maximum(radius, 1e-3) for radius in radii_mm)
        distance = _length(across / radius_y, along / radius_x)
        if wobble is not None:
            unit = (along + 1j * across) / (_length(along, across) + 1e-6)  # exp(i·angle)
            second, third, fourth = wobble
            distance = distance - (unit * unit * (second + unit * (third + unit * fourth))).real
        edge_mm = (1 - distance) * np.minimum(radius_y, radius_x)
        return np.clip(0.5 + edge_mm / self.pixel_mm, 0, 1) * (np.minimum(radius_y, radius_x) > 0.1)

    def shade(self, coverage: float | Floats, value: float | Floats) -> None:
        """Lay a tissue of this brightness over what is there, and leave the labels as they are."""
        self.image += coverage * (value - self.image)

    def paint(self, coverage: Floats, value: float | Floats, label: int) -> None:
        """Lay a labelled structure over what is there."""
        self.shade(coverage, value)
        self.shares *= 1 - coverage
        self.shares[label] += coverage

    @staticmethod
    def thick(array: Floats) -> Floats:
        """Average the sub-slices: (sub-slice, y, x) to (z, y, x)."""
        return array.reshape(-1, SUB_SLICES, *array.shape[1:]).mean(axis=1)


def _length(a: Floats, b: Floats) -> Floats:
    """Return √(a² + b²), several times faster than np.hypot, which guards against overflow."""
    return np.sqrt(a * a + b * b)


def draw_wobble(rng: Generator, amplitude: float) -> Waves:
    """Draw an outline's harmonics 2, 3 and 4, relative to its radius: the finer, the fainter."""
    real, imaginary = rng.normal(0, amplitude, size=(2, 3)) / [1, 1.5, 2]
    return np.asarray(real + 1j * imaginary, np.complex64)


def smooth_noise(rng: Generator, shape: tuple[int, ...], sigma_px: float) -> Floats:
    """Return noise (z, y, x) of unit deviation, smooth in the plane and loosely tied from slice to slice."""
    from scipy.ndimage import gaussian_filter

    noise = gaussian_filter(rng.standard_normal(shape, dtype=np.float32), (0.5, sigma_px, sigma_px))
    return np.asarray(noise / noise.std(), np.float32)
