"""The command that serves a page to annotate a dataset in."""

import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from tyro.conf import FlagCreatePairsOff, arg

from discoseg.commands.options import DatasetArgument, Voice
from discoseg.config import GridConfig
from discoseg.errors import UserError
from discoseg.terminal import Terminal


@dataclass(frozen=True)
class Annotate(Voice):
    """Annotate a dataset in the browser: clicks, seeds, scribbles, size bounds, and trainings on what is there."""

    dataset: DatasetArgument
    """Folder of the dataset."""
    out: Path | None = None
    """Folder for clicks.json, labels, sizes.csv and runs, which is gone on with where it is there; by default DATASET
    with -annotations behind its name."""
    label: str = "all"
    """The structures, by name or value, joined by commas (RV,MYO,LV), or all."""
    atlas: Path | None = None
    """An atlas.npz of 'discoseg seeds' that turns clicks into seeds; by default the one in --out. Without any, a click
    marks a small ball."""
    build_atlas: bool = False
    """Build the atlas from the training cases that have complete masks, and keep it in --out."""
    run_folder: Annotated[Path | None, arg(name="run")] = None
    """Run folder whose predictions and proposals can be laid over the images, and which says what to annotate next;
    trainings in --out are there by themselves."""
    preset: str = "default"
    """Settings of trainings that the page starts: a preset or a TOML file, as for 'discoseg train'."""
    outside: FlagCreatePairsOff[bool] = False
    """Also show images that symbolic links, patterns or tables of the dataset place outside its folder."""
    port: int = 0
    """Port of the server; 0 takes any that is free."""
    host: str = "127.0.0.1"
    """Address to listen on; any but this machine's own lets others in."""
    browser: bool = True
    """Open the page in the browser; its address is printed in any case."""

    def run(self, terminal: Terminal) -> int:
        """Run the command; return the exit status."""
        if sys.platform == "win32":
            raise UserError("discoseg annotate needs Linux or macOS")
        if missing := [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]:
            raise UserError(f'discoseg annotate needs {" and ".join(missing)}: pip install "discoseg[web]"')
        from discoseg.data.layouts import find_dataset
        from discoseg.weak.seeds import build_book, read_book
        from discoseg.web.annotator import Annotator
        from discoseg.web.serve import STATIC, require_page, serve

        require_page(STATIC)
        if self.run_folder is not None and not (self.run_folder / "config.toml").is_file():
            raise UserError(f"--run {self.run_folder}: no run folder, it has no config.toml")
        dataset = find_dataset(self.dataset)
        structures = dataset.label_values(self.label)
        values = list(structures.values())
        root = self.dataset.resolve()
        out = self.out or root.with_name(f"{root.name}-annotations")
        kept = out / "atlas.npz"
        if self.atlas is not None and self.build_atlas:
            raise UserError("give one of --atlas and --build-atlas, not both")
        book = None
        if self.build_atlas:
            training = [case for case in dataset.cases if not case.test and case.label is not None]
            with terminal.progress() as progress:
                count = progress.counter("atlas", "cases")
                book = build_book(dataset, training, values, GridConfig(), progress=count)
        elif self.atlas is not None or kept.is_file():
            book = read_book(self.atlas or kept, dataset, values, GridConfig())
        annotator = Annotator(dataset, out, structures=structures, book=book, outside=self.outside)
        if book is not None and (
            self.build_atlas or (self.atlas is not None and self.atlas.resolve() != kept.resolve())
        ):
            book.save_into(kept)
        serve(
            annotator,
            static=STATIC,
            run=self.run_folder,
            preset=self.preset,
            host=self.host,
            port=self.port,
            browser=self.browser,
        )
        states = [annotator.store.record(case).state for case in annotator.cases]
        counts = {state: states.count(state) for state in ("new", "begun", "done")}
        line = f"{out}: {counts['done']} of {len(states)} cases done, {counts['begun']} begun"
        after = f"next: discoseg train {self.dataset} --seeds {annotator.store.labels} --label {self.label} --out RUN"
        return terminal.finish({"out": out, "cases": counts}, [line, after])
