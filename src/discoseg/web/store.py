"""Annotations on disk: one change at a time, under revisions, and never half of one.

state.json is the truth about cases, layers/CASE.REVISION about their voxels. A change writes new layers, then
state.json, which makes it count, and then what others read and what follows from these two: labels/, clicks.json,
sizes.csv. Killed in between, the next start makes the rest: state.json names the case that was being changed. Where one
of them cannot be written, the next change, or training, tries again.
"""

import csv
import io
import json
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from discoseg.data.files import image_suffix, require_new_folder, write_atomically
from discoseg.data.layouts import Case, Dataset
from discoseg.data.locks import try_lock
from discoseg.data.meta_header import data_file
from discoseg.data.volume import Volume, write_volume
from discoseg.errors import UserError
from discoseg.texts import read_json
from discoseg.weak.clicks import Click, write_clicks
from discoseg.web.records import Layers, Record, read_layers, write_layers

KEPT = (".lock", ".token")  # hidden files of ours; others are what a kill left of a writing
_FORMAT = 1  # of state.json


class Conflict(Exception):
    """A change was meant for a revision that is no longer the case's; ``revision`` is the one it has."""

    def __init__(self, revision: int) -> None:
        super().__init__(f"the case is at revision {revision}: another window changed it")
        self.revision = revision


class Store:
    """The annotations of a dataset's cases in one folder, for one process; its methods may be called by any thread."""

    def __init__(self, out: Path, dataset: Dataset, cases: Sequence[Case], geometry: Callable[[str], Volume]) -> None:
        """``geometry`` returns a volume (z, y, x) with the geometry of a case's image, whatever its voxels."""
        self.out = out
        self._dataset, self._cases, self._geometry = dataset, {case.name: case for case in cases}, geometry
        self._change = threading.Lock()
        self._unexported: set[str] = set()
        self._stale: set[str] = set()  # cases whose label map is not that of their layers
        if not (out / "state.json").is_file():
            require_new_folder(out, hint="it holds no annotations; choose another --out")
            out.mkdir(parents=True, exist_ok=True)
            self._write_state({}, None)
        for folder in (self.labels, self._layers, out / "runs"):
            folder.mkdir(parents=True, exist_ok=True)
        lock = try_lock(out / ".lock")
        if lock is None:
            raise UserError(f"{out}: another 'discoseg annotate' has it open; use that one, or end it")
        self._lock = lock
        self._latest: tuple[str, int | None, Layers] | None = (
            None  # of the case changed last: the next stroke's, mostly
        )
        self._tables: tuple[list[Click], str] | None = None
        self._records, self._shown, self._unexported = self._read_state()
        self._repair()

    @property
    def labels(self) -> Path:
        """The folder of weak label maps."""
        return self.out / "labels"

    @property
    def _layers(self) -> Path:
        return self.out / "layers"

    @property
    def sizes(self) -> Path:
        """The table of size bounds."""
        return self.out / "sizes.csv"

    @property
    def shown(self) -> str | None:
        """The case that was shown last."""
        return self._shown if self._shown in self._cases else None

    def close(self) -> None:
        """Let another process have the folder."""
        self._lock.close()

    def record(self, case: str) -> Record:
        """Return what is annotated of a case, without its voxels."""
        return self._records.get(case, Record())

    def read(self, case: str) -> tuple[Record, Layers]:
        """Return a case's record and the layers that belong to it."""
        while True:
            record = self.record(case)
            try:
                return record, self._read_layers(case, record)
            except FileNotFoundError:  # another thread has just replaced them
                if self.record(case) == record:
                    raise

    @contextmanager
    def still(self) -> Iterator[None]:
        """Let nothing change while the block runs, in which all label maps are there."""
        with self._change:
            self._export()
            yield

    def show(self, case: str) -> None:
        """Remember the case that is shown."""
        with self._change:
            if case != self._shown:
                self._write_state(self._records, case)
                self._shown = case

    def change(self, case: str, revision: int, edit: Callable[[Record], Record]) -> Record:
        """Apply ``edit`` to a case at ``revision`` and return its new record; a :class:`Conflict` changes nothing."""
        with self._change:
            before = self._expect(case, revision)
            return self._commit(case, replace(edit(before), revision=revision + 1), None)

    def repaint(self, case: str, revision: int, edit: Callable[[Record, Layers], tuple[Record, Layers]]) -> Record:
        """Do the same with an ``edit`` of a case's layers, and its record."""
        self._geometry(case)  # reads the image's header, which others need not wait for
        with self._change:
            before = self._expect(case, revision)
            record, layers = edit(before, self._read_layers(case, before))
            record = replace(record, revision=revision + 1, layers=None, sizes_vox={})
            if not layers.is_blank(self._dataset.ignore):
                write_layers(self._layers_of(case, record.revision), layers)
                values = ((name, value) for name, value in self._dataset.labels.items() if value != 0)
                sizes = {name: int(np.count_nonzero(layers.labels == value)) for name, value in values}
                record = replace(record, layers=record.revision, sizes_vox=sizes)
            self._commit(case, record, layers)
            if before.layers is not None:
                self._layers_of(case, before.layers).unlink(missing_ok=True)
            return record

    def _expect(self, case: str, revision: int) -> Record:
        record = self.record(case)
        if record.revision != revision:
            raise Conflict(record.revision)
        return record

    def _commit(self, case: str, record: Record, layers: Layers | None) -> Record:
        """Make a change count, then write what follows from it."""
        records = self._records | {case: record}
        self._unexported.add(case)
        self._write_state(records, self._shown)
        self._records = records
        if layers is not None:
            self._latest = case, record.layers, layers
            self._stale.add(case)
        self._export()
        return record

    def _read_layers(self, case: str, record: Record) -> Layers:
        if record.layers is None:
            return Layers.blank(self._geometry(case).shape, self._dataset.ignore)
        if self._latest is not None and self._latest[:2] == (case, record.layers):
            return self._latest[2]
        return read_layers(self._layers_of(case, record.layers), self._geometry(case).shape)

    def _layers_of(self, case: str, revision: int) -> Path:
        return self._layers / f"{case}.{revision}"

    def _write_state(self, records: Mapping[str, Record], shown: str | None) -> None:
        """Write state.json; this is the moment from which a change counts."""
        lines = [f"  {json.dumps(name)}: {json.dumps(record.to_json())}" for name, record in records.items()]
        head = {"format": _FORMAT, "shown": shown, "unexported": sorted(self._unexported)}
        text = json.dumps(head)[:-1] + ', "cases": {\n' + ",\n".join(lines) + "\n}}\n"
        with write_atomically(self.out / "state.json") as temporary:
            temporary.write_text(text, encoding="utf-8")

    def _read_state(self) -> tuple[dict[str, Record], str | None, set[str]]:
        path = self.out / "state.json"
        try:
            state = read_json(path)
            if state["format"] != _FORMAT:
                raise UserError(f"{path}: written by another version of discoseg; use that one, or another --out")
            records = {name: Record.from_json(entry) for name, entry in state["cases"].items()}
            return records, state["shown"], set(state["unexported"])
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"{path} is damaged; restore it from a backup, or choose another --out") from error

    def _repair(self) -> None:
        """Finish what a killed server left, and remove layers that nothing refers to, and unfinished files."""
        known = {self._layers_of(n, r.layers).name for n, r in self._records.items() if r.layers is not None}
        left = [path for path in self._layers.iterdir() if path.name not in known]
        left += [path for path in self.labels.iterdir() if path.name.startswith(".")]
        left += [path for path in self.out.iterdir() if path.name.startswith(".") and path.name not in KEPT]
        for path in left:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        self._stale = self._unexported & self._cases.keys()
        self._export()

    def _export(self) -> None:
        """Write what follows from the state and is not written yet: label maps, and the tables."""
        for case in sorted(self._stale):
            self._write_map(case, self._read_layers(case, self.record(case)))
            self._stale.discard(case)
        self._write_tables()
        self._unexported -= self._cases.keys()

    def map_path(self, case: str) -> Path:
        """Return where a case's weak label map lies, if it has one: its image's suffix."""
        return self.labels / f"{case}{image_suffix(self._cases[case].images[0])}"

    def _write_map(self, case: str, layers: Layers) -> None:
        path = self.map_path(case)
        if (layers.labels != self._dataset.ignore).any():
            write_volume(path, self._geometry(case).like(layers.labels))
            return
        data = data_file(path) if path.suffix == ".mhd" and path.is_file() else None
        path.unlink(missing_ok=True)
        if data is not None:
            data.unlink(missing_ok=True)

    def _write_tables(self) -> None:
        """Write clicks.json and sizes.csv where they have changed; without anything to say there is none."""
        clicks = [
            Click(case, (float(x), float(y), float(z)), label=name)
            for case, record in self._records.items()
            for name, (x, y, z) in record.clicks.items()
        ]
        tables = (clicks, self._sizes_text())
        if tables == self._tables:
            return
        if clicks:
            write_clicks(self.out / "clicks.json", clicks)
        else:
            (self.out / "clicks.json").unlink(missing_ok=True)
        if tables[1]:
            with write_atomically(self.sizes) as temporary:
                temporary.write_text(tables[1], encoding="utf-8")
        else:
            self.sizes.unlink(missing_ok=True)
        self._tables = tables

    def _sizes_text(self) -> str:
        """Return a row for each structure of each case that is begun: training wants all of them."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["case", "label", "low_ml", "high_ml"])
        header = text.tell()
        for case, record in self._records.items():
            for name in (name for name, value in self._dataset.labels.items() if value != 0):
                low, high = record.bounds_ml.get(name, (None, None))
                writer.writerow([case, name, *("" if side is None else f"{side:.10g}" for side in (low, high))])
        return text.getvalue() if text.tell() > header else ""
