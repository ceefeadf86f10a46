"""What there is to fuzz: a small valid example of each kind of file that people bring, and its reader.

Runs and the server are in fuzz_runs.py.
"""

import contextlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import mutations
from discoseg.cli import main
from discoseg.config import Config, GridConfig, NetworkConfig, OptimiserConfig
from discoseg.data.layouts import find_dataset
from discoseg.data.splits import split_cases
from discoseg.data.volume import Volume, count_channels, read_geometry, read_label_map, read_volume, write_volume
from discoseg.errors import UserError
from discoseg.plain import to_toml
from discoseg.presets import load_config
from discoseg.weak.atlas import build_atlas, save_atlas
from discoseg.weak.clicks import Click, read_clicks, write_clicks
from discoseg.weak.sizes import SizesMl

SHAPE = (3, 16, 18)  # (z, y, x)
CONFIG = Config(
    method="size",
    epochs=1,
    size_ml="0.1:50",
    grid=GridConfig((16, 16)),
    network=NetworkConfig(width=1, depth=1),
    optimiser=OptimiserConfig(batch=4),
)


@dataclass(frozen=True)
class Target:
    """Something to fuzz: valid examples, how to mutate them, and a reader of what comes out.

    ``read`` returns where the input is fine and raises :class:`UserError` where it is refused; all else is a defect.
    ``command`` reads the same through the command line, where there is one that does.
    """

    valid: Sequence[bytes]
    mutate: mutations.Mutation
    read: Callable[[bytes], None]
    command: Callable[[bytes], None] | None = None
    share: float = 1.0  # of the inputs that others get; reading some takes long

    def make(self, rng: Random) -> bytes:
        """Return a mutated example; one in fifty is left as it is."""
        data = rng.choice(self.valid)
        return data if rng.random() < 0.02 else self.mutate(data, rng)


class Workshop:
    """Writes files of people into ``folder``; ``targets`` are by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.targets = {**self._images(), **self._datasets(), **self._annotations()}

    def file_target(
        self,
        path: Path,
        mutate: mutations.Mutation,
        read: Callable[[Path], object],
        command: Sequence[object] | None = None,
    ) -> Target:
        """Return the target of a file that is there; it is put back after each reading."""
        valid = path.read_bytes()

        def read_file(data: bytes) -> None:
            path.write_bytes(data)
            try:
                read(path)
            finally:
                path.write_bytes(valid)

        def run(path: Path) -> None:
            assert command is not None
            run_command([str(path) if part is None else str(part) for part in command])

        def read_by_command(data: bytes) -> None:
            path.write_bytes(data)
            try:
                run(path)
            finally:
                path.write_bytes(valid)

        return Target([valid], mutate, read_file, read_by_command if command else None)

    def _images(self) -> dict[str, Target]:
        kinds: dict[str, mutations.Mutation] = {
            ".nii": mutations.mutate_nifti,
            ".nii.gz": mutations.mutate_gzip,
            ".mhd": mutations.mutate_header,
            ".mha": mutations.mutate_header,
            ".nrrd": mutations.mutate_header,
            ".png": mutations.mutate_png,
            ".tif": mutations.mutate_tiff,
        }
        targets = {}
        for suffix, mutate in kinds.items():
            folder = self.folder / f"images{suffix}"
            folder.mkdir(parents=True)
            path = folder / f"a{suffix}"
            write_volume(path, _volume(1 if suffix == ".png" else 3))
            targets[suffix[1:]] = self.file_target(path, mutate, _read_image, ["check", folder])
        data = self.folder / "images.mhd" / "a.zraw"
        targets["mhd data"] = self.file_target(
            data, mutations.mutate_bytes, lambda p: _read_image(p.with_name("a.mhd"))
        )
        return targets

    def _datasets(self) -> dict[str, Target]:
        targets = {}
        names = ("heart_1", "heart_2")
        nnunet = {
            "channel_names": {"0": "T2"},
            "labels": {"background": 0, "LV": 1, "ignore": 2},
            "file_ending": ".nii",
            "dataset": {n: {"images": [f"imagesTr/{n}_0000.nii"], "label": f"labelsTr/{n}.nii"} for n in names},
        }
        decathlon = {
            "modality": {"0": "T2"},
            "labels": {"0": "background", "1": "LV"},
            "training": [{"image": f"./scans/{n}.nii", "label": f"./masks/{n}.nii"} for n in names],
            "test": ["./scans/heart_1.nii"],
        }
        pattern = {"images": ["scans/{case}.nii"], "labels": "masks/{case}.nii", "names": {"LV": 1}, "ignore": 4}
        for name, about in (("dataset.json", nnunet), ("decathlon", decathlon), ("discoseg.json", pattern)):
            root = self.folder / name
            for case in names:
                for part in (
                    (f"imagesTr/{case}_0000", f"labelsTr/{case}")
                    if about is nnunet
                    else (f"scans/{case}", f"masks/{case}")
                ):
                    path = root / f"{part}.nii"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_volume(path, _mask() if "label" in part or "mask" in part else _volume())
            path = root / ("discoseg.json" if about is pattern else "dataset.json")
            path.write_text(json.dumps(about))
            targets[name] = self.file_target(
                path, mutations.mutate_json, lambda p: find_dataset(p.parent), ["check", root]
            )
        weak = _mask()
        weak.array[:, 12:] = 2
        write_volume(self.folder / "dataset.json" / "labelsTr" / "heart_1.nii", weak)
        dataset = find_dataset(self.folder / "dataset.json")
        split = self.folder / "splits.json"
        split.write_text(json.dumps([{"train": ["heart_1"], "val": ["heart_2"]}, {"nnunet": {"val": ["heart_1"]}}]))
        targets["splits.json"] = self.file_target(split, mutations.mutate_json, lambda p: split_cases(dataset, split=p))
        table = self.folder / "table" / "cases.csv"
        table.parent.mkdir()
        write_volume(table.parent / "a.nii", _volume())
        table.write_text("case,image,label,patient,group\na,a.nii,,p1,ED\nb,a.nii,a.nii,p2,ES\n")
        targets["cases.csv"] = self.file_target(
            table, mutations.mutate_header, lambda p: find_dataset(p.parent), ["check", table.parent]
        )
        info = self.folder / "acdc" / "patient001" / "Info.cfg"
        info.parent.mkdir(parents=True)
        info.write_text("ED: 1\nES: 12\nGroup: DCM\n")
        targets["Info.cfg"] = self.file_target(info, mutations.mutate_header, lambda p: find_dataset(p.parents[1]))
        return targets

    def _annotations(self) -> dict[str, Target]:
        from discoseg.data.prepare import Grid
        from discoseg.weak.atlas import load_atlas

        clicks = [Click("heart_1", (4.0, 5.0, 1.0)), Click("heart_2", (4.5, 5.0, 1.0), "world")]
        targets = {}
        for name, mutate in (("clicks.json", mutations.mutate_json), ("clicks.csv", mutations.mutate_header)):
            path = self.folder / name
            write_clicks(path, clicks)
            dataset = self.folder / "dataset.json"
            targets[name] = self.file_target(path, mutate, read_clicks)
        sizes = self.folder / "sizes.csv"
        sizes.write_text("case,label,low_ml,high_ml\nheart_1,LV,1,20\nheart_2,LV,,5\n")
        check = ["check", self.folder / "dataset.json", "--label", "LV", "--size-csv", None]
        targets["sizes.csv"] = self.file_target(
            sizes, mutations.mutate_header, lambda p: SizesMl.read(None, p, ["LV"]), check
        )
        config = self.folder / "preset.toml"
        config.write_text(to_toml(CONFIG))
        train = ["train", dataset, "--preset", None, "--out", self.folder / "never", "--label", "nothing"]
        targets["toml"] = self.file_target(config, mutations.mutate_header, lambda p: load_config(str(p)), train)
        atlas = self.folder / "atlas.npz"
        grid = Grid((16, 16), (0.0, 100.0), "LPS")
        meta = {"grid": list(grid.shape), "orientation": grid.orientation}
        save_atlas(atlas, {1: build_atlas([("", _mask().array > 0)])}, meta=meta)
        targets["atlas.npz"] = self.file_target(atlas, mutations.mutate_archive, load_atlas)
        return targets


def _volume(slices: int = 3) -> Volume:
    array = np.random.default_rng(1).integers(0, 200, (slices, *SHAPE[1:])).astype(np.uint8)
    return Volume(array, np.diag([-1.5, -1.5, 5.0, 1.0]), (5.0, 1.5, 1.5))


def _mask() -> Volume:
    array = np.zeros(SHAPE, np.uint8)
    array[:, 4:10, 5:12] = 1
    return _volume().like(array)


def _read_image(path: Path) -> None:
    """Read a file in every way there is; all must agree on whether it can be."""
    geometry = count_channels(path) == 1 and read_geometry(path)
    volume = read_volume(path)
    assert geometry is not False, f"{path.name}: read, but has several channels"
    assert volume.shape == geometry.shape, f"{path.name}: {volume.shape} voxels, {geometry.shape} by its header"
    volume.reoriented("LPS")
    read_label_map(path)


def run_command(arguments: Sequence[str]) -> None:
    """Run a command in this process; it must end well, or with status 2 and one line on standard error at most."""
    stdout, stderr = io.StringIO(), io.StringIO()
    status: Any = 0
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        try:
            main(arguments)
        except SystemExit as end:
            status = end.code
    said = stderr.getvalue()
    if not all(line.startswith("discoseg: ") for line in said.splitlines()) or said.count("discoseg: error: ") > 1:
        raise AssertionError(f"not one line: {said!r}")
    if "\x1b" in said + stdout.getvalue() or status not in (0, 2):
        raise AssertionError(f"status {status}: {said!r}")
    if status == 2:
        raise UserError(said)
