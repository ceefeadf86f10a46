"""Fuzz one family guided by coverage, with atheris (a wheel for Linux and Python 3.11 to 3.13; it is no dependency):

    pip install atheris && python bench/fuzz_guided.py nii -max_total_time=60

Options after the family are libFuzzer's. What ends in anything but a reading or a `UserError` stops it, with the input.
"""

import sys
import tempfile
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(
    include=["discoseg.data", "discoseg.weak", "discoseg.texts", "discoseg.checkpoint_header"]
):
    import discoseg.checkpoint_header
    import discoseg.data.arrays
    import discoseg.data.dataset_json
    import discoseg.data.layouts
    import discoseg.data.metaimage
    import discoseg.data.nifti
    import discoseg.data.raster
    import discoseg.data.tiff
    import discoseg.data.volume
    import discoseg.texts
    import discoseg.weak.clicks
    import discoseg.weak.sizes  # noqa: F401

from discoseg.errors import UserError
from fuzz import make_targets


def main() -> None:
    """Fuzz the family that the command line names."""
    name, options = sys.argv[1], sys.argv[2:]
    folder = Path(tempfile.mkdtemp())
    target = make_targets(folder / "shop")[name]
    (folder / "corpus").mkdir()
    for number, data in enumerate(target.valid):
        (folder / "corpus" / str(number)).write_bytes(data)

    def read(data: bytes) -> None:
        try:
            target.read(data)
        except (UserError, FileNotFoundError):
            return

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        rng = Random(seed)
        if rng.random() < 0.5:
            changed: bytes = atheris.Mutate(data, most)
            return changed
        try:
            return target.mutate(data, rng)[:most]
        except Exception:  # it knows valid files alone, and this one is none any more
            return target.mutate(rng.choice(target.valid), rng)[:most]

    atheris.Setup([sys.argv[0], *options, str(folder / "corpus")], read, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
