"""TIFF files through Pillow: pages are slices, colours are channels. SimpleITK can crash on a damaged one."""

import math
import os
import struct
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discoseg.data.announced import require_room
from discoseg.data.files import file_of
from discoseg.data.itk import header_of
from discoseg.data.tiff_header import Page, read_tiff_pages
from discoseg.data.volume import Header, Volume, choose_channel
from discoseg.errors import UserError

X_RESOLUTION, Y_RESOLUTION, RESOLUTION_UNIT = 282, 283, 296
_UNIT_MM = {2: 25.4, 3: 10.0}  # inch, centimetre
_CHANNELS = {"L": 1, "I;16": 1, "I;16B": 1, "I": 1, "F": 1, "RGB": 3, "1": 1, "P": 3}  # by Pillow's mode
_CHANNELS |= {"LA": 1, "RGBA": 3}  # opacity is no channel
_one_at_a_time = threading.Lock()
_READ_AS = {"1": "L", "P": "RGB", "LA": "L", "RGBA": "RGB"}


def read_tiff(path: Path) -> Volume:
    """Read all pages of a file as one volume, or the channel of it that a path names: `photo.tif[0]` is the red one."""
    file = file_of(path)
    page, count = read_tiff_pages(file)
    channels = max(page.samples, 3)  # a palette's colours, too
    require_room(path, 0, 0, memory_bytes=count * page.width * page.height * channels * 4)
    with _opened(file) as image:
        header, channels = _header(file, image, page, count)
        channel = choose_channel(path, header.shape[::-1], channels)
        array = np.empty(header.shape, page.dtype)
        for number in range(count):
            image.seek(number)
            array[number] = _pixels(image)[..., channel]
    return Volume(array, header.affine, header.spacing_mm, header)


def read_tiff_geometry(path: Path) -> Header:
    """Return the geometry of a file, from its directories alone."""
    file = file_of(path)
    page, count = read_tiff_pages(file)
    with _opened(file) as image:
        return _header(file, image, page, count)[0]


def read_tiff_header(path: Path) -> tuple[NDArray[np.float64], int]:
    """Return the (4, 4) affine of a file, voxel (x, y, z) to world RAS+ mm, and the number of its channels."""
    page, count = read_tiff_pages(path)
    with _opened(path) as image:
        header, channels = _header(path, image, page, count)
    return header.affine, channels


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """Yield Pillow's image of a file; all that a damaged one can end in is one line."""
    from PIL import Image, UnidentifiedImageError

    try:
        with _quietly(), warnings.catch_warnings(action="ignore"), Image.open(file, formats=["TIFF"]) as image:
            yield image
    except UserError:
        raise
    except UnidentifiedImageError as error:  # its directories are whole
        raise UserError(f"{file}: pixels of a kind that cannot be read; save it as .nii.gz or .nrrd") from error
    except (OSError, ValueError, LookupError, TypeError, SyntaxError, EOFError, RuntimeError, struct.error) as error:
        raise UserError(f"{file} cannot be read: it may be truncated or damaged") from error
    except Image.DecompressionBombError as error:
        raise UserError(f"{file}: a page of more pixels than Pillow reads; save it as .nii.gz or .nrrd") from error


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep libtiff from printing what it thinks of a file beside our one line, for which it offers no other way."""
    with _one_at_a_time:
        before, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)
            os.close(nowhere)


def _header(file: Path, image: Any, page: Page, count: int) -> tuple[Header, int]:
    """Return the geometry, and the number of channels."""
    if image.mode not in _CHANNELS or image.size != (page.width, page.height) or image.n_frames != count:
        raise UserError(f"{file}: pixels of a kind that cannot be read, {image.mode}; save it as .nii.gz or .nrrd")
    unit_mm = _UNIT_MM.get(image.tag_v2.get(RESOLUTION_UNIT, 2))
    x, y = (_spacing_mm(image.tag_v2.get(tag), unit_mm) for tag in (X_RESOLUTION, Y_RESOLUTION))
    geometry = {"origin": (0.0, 0.0, 0.0), "spacing": (x, y, 1.0), "direction": tuple(np.eye(3).ravel().tolist())}
    return header_of(geometry, (count, page.height, page.width)), _CHANNELS[image.mode]


def _pixels(image: Any) -> NDArray[Any]:
    """Return the (y, x, channel) values of the page that an image is at."""
    mode = _READ_AS.get(image.mode, image.mode)
    array = np.asarray(image if mode == image.mode else image.convert(mode))
    return array.reshape(*array.shape[:2], -1)


def _spacing_mm(resolution: Any, unit_mm: float | None) -> float:
    try:
        spacing_mm = 1.0 if unit_mm is None else unit_mm / float(resolution)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        return 1.0
    return spacing_mm if 0 < spacing_mm < math.inf else 1.0
