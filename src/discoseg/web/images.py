"""The images of cases: their geometry, and files that a browser can show."""

import threading
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from discoseg.data.files import channel_of, file_of, image_suffix
from discoseg.data.layouts import Case
from discoseg.data.volume import Volume, read_geometry, read_volume, write_volume


class Images:
    """Geometries, kept once they are read, and NIfTI files of the cases' first channels."""

    def __init__(self, cases: Mapping[str, Case], cache: Path) -> None:
        self._cases, self._cache = cases, cache
        self._geometries: dict[str, Volume] = {}
        self._converting = threading.Lock()

    def known(self, case: str) -> Volume | None:
        """Return the geometry of a case that has been opened; None where its file has not been looked at."""
        return self._geometries.get(case)

    def geometry(self, case: str) -> Volume:
        """Return a volume of the geometry of a case's image; its voxels, all 0, take no memory."""
        if case not in self._geometries:
            self._geometries[case] = read_geometry(self._cases[case].images[0])
        return self._geometries[case]

    def name(self, case: str) -> str:
        """Return a file name for a case's image, whose suffix tells the page how to read it."""
        return f"image{'.nii' if self._is_shown_as_it_is(case) and self._suffix(case) == '.nii' else '.nii.gz'}"

    def file(self, case: str) -> Path:
        """Return the NIfTI file of a case's first channel: its own, or one that is made once and kept."""
        image = self._cases[case].images[0]
        if self._is_shown_as_it_is(case):
            return file_of(image)
        stat = file_of(image).stat()
        stamp = sha256(f"{image.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:16]
        path = self._cache / f"{stamp}.nii.gz"
        with self._converting:
            if not path.is_file():
                self._cache.mkdir(parents=True, exist_ok=True)
                write_volume(path, read_volume(image))
        return path

    def _suffix(self, case: str) -> str:
        return image_suffix(self._cases[case].images[0])

    def _is_shown_as_it_is(self, case: str) -> bool:
        return self._suffix(case).startswith(".nii") and channel_of(self._cases[case].images[0]) is None
