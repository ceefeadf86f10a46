"""Commands that train: one run, or several that share data and device."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from discoseg.commands.options import Cluster, DatasetArgument, Device, Voice, same_again
from discoseg.commands.runs import say_scores, summarise_run
from discoseg.config import Config
from discoseg.errors import UserError
from discoseg.interruption import interruptible
from discoseg.terminal import Terminal

if TYPE_CHECKING:
    from discoseg.ranks import Ranks


@dataclass(frozen=True)
class Train(Voice):
    """Train a network from cheap annotations; every setting of the preset can be overridden."""

    dataset: DatasetArgument
    """Folder of the dataset."""
    out: Path
    """Run folder; must be new or empty unless the run is resumed."""
    preset: str = "default"
    """Settings to start from: default, scribbles, paper-acdc-lv, paper-acdc-rv, paper-promise12, or a TOML file."""
    seeds: Path | None = None
    """Folder of weak label maps by case; without it the dataset's own labels annotate."""
    split: Path | None = None
    """JSON file that says which cases validate; splits_final.json:2 is the third fold of nnU-Net's. By default the
    first fold of the one in the dataset's folder, if there is one."""
    validation_fraction: float = 0.2
    """Fraction of patients that validate, where there is no split file; a resumed run keeps its own."""
    device: Device = "auto"
    """Where to train; auto takes CUDA where there is one."""
    memory_gib: float | None = None
    """Memory in GiB that slices, proposals and contrast weights may take; beyond it they lie in files in the cache (a
    GPU holds all slices). By default half of the machine's."""
    resume: bool = False
    """Go on from the latest checkpoint in --out, with the settings and data it was started with."""
    live_report: bool = True
    """Keep report.html in the run folder up to date while the training goes on; a browser loads it again by itself."""
    tensorboard: bool = False
    """Write the epochs' metrics as TensorBoard events too, in the run folder's tensorboard/."""
    config: Annotated[Config, arg(name="")] = field(default_factory=Config)

    def run(self, terminal: Terminal) -> int:
        """Run the command; return the exit status."""
        from discoseg.devices import choose_device
        from discoseg.ranks import open_ranks

        with open_ranks(choose_device(self.device)) as ranks:
            self._fit(terminal if ranks.first else Terminal("train", quiet=True), ranks)
            if not ranks.first:
                return 0
        facts = summarise_run(self.out)
        run = shlex.quote(str(self.out))
        lines = [
            f"{self.out}: {facts['epochs']} epochs of {facts['method']} in {terminal.took}",
            say_scores(facts),
            f"next: discoseg predict {run} IMAGE... --out FOLDER; discoseg report {run} --out FILE.html",
        ]
        return terminal.finish(facts, lines)

    def _fit(self, terminal: Terminal, ranks: "Ranks") -> None:
        from discoseg.report.live import keep_live
        from discoseg.workflow import fit, recorded_sources

        sources: dict[str, Any] = {
            "seeds": self.seeds,
            "split": self.split,
            "validation_fraction": self.validation_fraction,
        }
        if self.resume:
            with ranks.agree():
                found = recorded_sources(self.out) if ranks.first else {}
            if recorded := ranks.gather(found)[0]:
                sources = {
                    "seeds": self.seeds or (recorded["seeds"] and Path(recorded["seeds"])),
                    "split": self.split or (recorded["split"] and Path(recorded["split"])),
                    "validation_fraction": recorded["validation_fraction"],
                }
        epochs = self.config.epochs
        live = keep_live(self.out, page=self.live_report and ranks.first, events=self.tensorboard and ranks.first)
        with interruptible() as interruption, terminal.progress() as progress, live:
            progress.wait("preparing", "looking for cases")
            count = progress.counter("preparing", "cases")

            def prepared(done: int, total: int) -> None:
                count(done, total)
                if done == total:
                    progress.wait("training", "annotations, network, compilers")

            fit(
                self.dataset,
                self.out,
                self.config,
                **sources,
                device=self.device,
                memory_gib=self.memory_gib,
                resume=self.resume,
                ranks=ranks,
                prepare_progress=prepared,
                progress=interruption.guard(lambda done, message: progress.epoch("training", done, epochs, message)),
            )

    def goes_on(self, arguments: Sequence[str]) -> str:
        """Return the command line that goes on after an interruption."""
        return same_again(arguments, resume=(self.out / "config.toml").is_file())


@dataclass(frozen=True)
class Sweep(Cluster, Voice):
    """Train several configurations on one dataset, some of them at a time."""

    dataset: DatasetArgument
    """Folder of the dataset."""
    configs: tuple[str, ...]
    """TOML files or presets, one for each run; a run's folder has its name."""
    out: Path
    """Folder of the run folders."""
    seeds: Path | None = None
    """Folder of weak label maps by case; without it the dataset's own labels annotate."""
    split: Path | None = None
    """JSON file that says which cases validate; splits_final.json:2 is the third fold of nnU-Net's. By default the
    first fold of the one in the dataset's folder, if there is one."""
    validation_fraction: float = 0.2
    """Fraction of patients that validate, where there is no split file."""
    device: Device = "auto"
    """Where to train; auto takes CUDA where there is one."""
    at_once: int | None = None
    """Trainings at a time; by default one for each core, or two on a GPU."""
    memory_gib: float | None = None
    """Memory in GiB that all of them together may take for slices, proposals and contrast weights; beyond it these lie
    in files in the cache (a GPU holds all slices). By default half of the machine's."""
    resume: bool = False
    """Leave finished runs as they are and go on with those begun, with the sources they were started with."""
    deterministic: bool = False
    """Let all of them repeat exactly on a GPU too, as if each configuration said so (see train --deterministic)."""

    def run(self, terminal: Terminal) -> int:
        """Run the command; return the exit status."""
        from discoseg.presets import load_config
        from discoseg.sweep import fit_many

        if not self.configs:
            raise UserError("--configs: give at least one TOML file or preset")
        if self.at_once is not None and self.at_once < 1:
            raise UserError(f"--at-once {self.at_once} must be at least 1")
        runs = {self.out / Path(source).stem: load_config(source) for source in self.configs}
        if self.deterministic:
            runs = {run: replace(config, deterministic=True) for run, config in runs.items()}
        if len(runs) < len(self.configs):
            raise UserError("--configs: two of them have the same name, so their runs would have the same folder")
        with interruptible(), terminal.progress() as progress:
            fit_many(
                self.dataset,
                runs,
                seeds=self.seeds,
                split=self.split,
                validation_fraction=self.validation_fraction,
                engine=self.make_engine(self.device, self.at_once),
                memory_gib=self.memory_gib,
                resume=self.resume,
                progress=lambda run, done, message: progress.epoch(run.name, done, runs[run].epochs, message),
            )
        facts = [summarise_run(run) for run in runs]
        trained = [f"{each['run']}: {each['epochs']} epochs of {each['method']}, {say_scores(each)}" for each in facts]
        report = shlex.join(["discoseg", "report", *map(str, runs), "--out"])
        lines = [*trained, f"{len(facts)} runs in {terminal.took}; next: {report} FILE.html"]
        return terminal.finish({"out": self.out, "runs": facts}, lines)

    def goes_on(self, arguments: Sequence[str]) -> str:
        """Return the command line that goes on after an interruption."""
        return same_again(arguments, resume=any(self.out.glob("*/config.toml")))
