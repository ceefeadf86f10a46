"""Commands on datasets: what is in them, weak labels for them, phantoms to try things on."""

import shlex
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from discoseg.commands.options import DatasetArgument, Voice
from discoseg.config import GridConfig
from discoseg.errors import UserError, printable
from discoseg.terminal import Terminal


@dataclass(frozen=True)
class Check(Voice):
    """Say what is in a dataset and everything that is wrong with it; exit with status 2 if anything is."""

    dataset: DatasetArgument
    """Folder of the dataset: ACDC, PROMISE12, nnU-Net, Decathlon, discoseg.json, cases.csv, or plain images."""
    label: str | None = None
    """The structure that seeds and bounds are about, by name or value; several are joined by commas (RV,MYO,LV), or
    all."""
    seeds: Path | None = None
    """Folder of weak label maps to check along."""
    size_ml: str | None = None
    """Size bounds as for training, such as 60:180, 20:40mm, 1000:3000vox, LV@ED=adult-ed,RV=70: (see docs/data.md)."""
    size_csv: Path | None = None
    """Size bounds per case as for training: a CSV file with the columns case, low_ml, high_ml, or others."""
    cases: bool = False
    """Print every case, not the summary alone."""

    def run(self, terminal: Terminal) -> int:
        """Run the command; return the exit status."""
        from discoseg.data.check import check_dataset
        from discoseg.data.check_record import record_check
        from discoseg.data.check_table import print_check
        from discoseg.data.layouts import find_dataset
        from discoseg.weak.examples import chosen_labels
        from discoseg.weak.sizes import SizesMl

        dataset = find_dataset(self.dataset)
        if self.size_ml is not None and self.size_csv is not None:
            raise UserError("give one of --size-ml and --size-csv, not both")
        label, sizes = self.label, None
        if self.size_ml is not None or self.size_csv is not None:
            structures = chosen_labels(dataset, label)
            label = ",".join(map(str, structures.values()))
            groups = {case.group for case in dataset.cases}
            sizes = SizesMl.read(self.size_ml, self.size_csv, list(structures), groups=groups)
        with terminal.progress() as progress:
            check = check_dataset(
                dataset,
                label=label,
                weak=self.seeds,
                sizes=None if sizes is None else sizes.find,
                progress=progress.counter("reading", "cases"),
            )
        if sizes is not None:
            check.warnings[:0] = sizes.describe_published()
        print_check(check, per_case=self.cases, console=terminal.console)
        for problem in check.problems if self.quiet else ():
            print(f"problem: {printable(problem)}", file=sys.stderr)
        return terminal.finish(record_check(check), status=2 if check.problems else 0)


@dataclass(frozen=True)
class Seeds(Voice):
    """Turn one click per volume and structure into weak label maps, by an atlas of masks aligned at their centres."""

    dataset: DatasetArgument
    """Folder of the dataset."""
    out: Path
    """Folder for the weak label maps and the atlas; must be new or empty."""
    label: str | None = None
    """The structure, by name or value; several are joined by commas (RV,MYO,LV), or all. May be left out where the
    dataset has only one."""
    clicks: Path | None = None
    """JSON or CSV file of clicks by case, of several structures one on each; without it the centre of each training
    mask is the click."""
    atlas: Path | None = None
    """An atlas.npz made before; without it one is built from the masks of the training cases, a group (ED, ES) each."""
    split: Path | None = None
    """JSON file that says which cases validate, FILE:FOLD for a fold of nnU-Net's; they take no part in the atlas."""
    validation_fraction: float = 0.2
    """Fraction of patients that validate, where there is no split file."""
    grid: tuple[int, int] = GridConfig().shape
    """Rows and columns on which masks are aligned, in pixels; as for training. A given --atlas has its own."""

    def run(self, terminal: Terminal) -> int:
        """Run the command; return the exit status."""
        from discoseg.data.layouts import find_dataset
        from discoseg.data.splits import split_cases
        from discoseg.weak.examples import chosen_labels
        from discoseg.weak.seeds import make_seeds
        from discoseg.weak.seeds_table import describe_unseeded, print_seeds

        dataset = find_dataset(self.dataset)
        training, _ = split_cases(dataset, split=self.split, fraction=self.validation_fraction)
        structures = chosen_labels(dataset, self.label)
        with terminal.progress() as progress:
            seeded = make_seeds(
                dataset,
                training,
                self.out,
                label=list(structures.values()),
                grid=GridConfig(self.grid),
                clicks=self.clicks,
                atlas=self.atlas,
                prepare_progress=progress.counter("preparing", "cases"),
                progress=progress.counter("seeding", "cases"),
            )
        print_seeds(seeded, self.out, console=terminal.console)
        facts = {
            "out": self.out,
            "atlas": self.out / "atlas.npz",
            "labels": structures,
            "cases": [
                {"case": item.case.name, "seeds": {name: asdict(s) for name, s in item.statistics.items()}}
                for item in seeded
            ],
        }
        names = shlex.join(["--label", ",".join(structures), "--out", "RUN"])
        train = shlex.join(["discoseg", "train", str(self.dataset), "--seeds", str(self.out)])
        lines = [
            f"{self.out}: {len(seeded)} weak label maps and atlas.npz in {terminal.took}",
            f"next: {train} --size-ml LOW:HIGH {names}",
        ]
        return terminal.finish(facts, lines, notes=describe_unseeded(seeded))


@dataclass(frozen=True)
class Phantom(Voice):
    """Write a dataset of cardiac-like phantoms in nnU-Net's layout, with one click per training volume."""

    out: Path
    """Folder for the dataset; must be new or empty."""
    cases: int = 24
    """Training volumes."""
    test_cases: int = 8
    """Held-out volumes."""
    seed: int = 0
    """Seed of the phantoms."""

    def run(self, terminal: Terminal) -> int:
        """Run the command; return the exit status."""
        from discoseg.data.phantom import write_phantom_dataset

        with terminal.progress() as progress:
            write_phantom_dataset(
                self.out,
                cases=self.cases,
                test_cases=self.test_cases,
                seed=self.seed,
                progress=progress.counter("drawing", "phantoms"),
            )
        clicks = self.out / "clicks.json"
        facts = {"out": self.out, "training_cases": self.cases, "test_cases": self.test_cases, "clicks": clicks}
        seeds = shlex.join(["discoseg", "seeds", str(self.out), "--label", "LV", "--clicks", str(clicks)])
        lines = [
            f"{self.out}: {self.cases} training and {self.test_cases} test phantoms in {terminal.took}",
            f"next: {seeds} --out SEEDS",
        ]
        return terminal.finish(facts, lines)
