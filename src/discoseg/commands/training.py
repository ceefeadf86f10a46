"""Commands that train: one run, or several that share data and device."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import arg

from discoseg.commands.options import DatasetArgument, Device
from discoseg.config import Config
from discoseg.errors import UserError


@dataclass(frozen=True)
class Train:
    """Train a network from cheap annotations; every setting of the preset can be overridden."""

    dataset: DatasetArgument
    """Folder of the dataset."""
    out: Path
    """Run folder; must be new or empty unless the run is resumed."""
    preset: str = "default"
    """Settings to start from: default, paper-acdc-lv, paper-acdc-rv, paper-promise12, or a TOML file."""
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

    def run(self) -> int:
        """Run the command; return the exit status."""
        from discoseg.progress import progress_bars
        from discoseg.report.live import keep_live
        from discoseg.workflow import fit, recorded_sources

        sources: dict[str, Any] = {
            "seeds": self.seeds,
            "split": self.split,
            "validation_fraction": self.validation_fraction,
        }
        if self.resume:
            recorded = recorded_sources(self.out)
            sources = {
                "seeds": self.seeds or (recorded["seeds"] and Path(recorded["seeds"])),
                "split": self.split or (recorded["split"] and Path(recorded["split"])),
                "validation_fraction": recorded["validation_fraction"],
            }
        epochs = self.config.epochs
        live = keep_live(self.out, page=self.live_report, events=self.tensorboard)
        with progress_bars() as update, live:
            state = fit(
                self.dataset,
                self.out,
                self.config,
                **sources,
                device=self.device,
                memory_gib=self.memory_gib,
                resume=self.resume,
                prepare_progress=lambda done, total: update("preparing", done, total, "cases"),
                progress=lambda done, message: update("training", done, epochs, message),
            )
        last = state.history[-1]
        print(f"{self.out}: {state.epoch} epochs of {self.config.method}, loss {last['loss']:.4f}")
        if "val_dice" in last:
            print(
                f"3D Dice on validation cases: last epoch {last['val_dice']:.3f}, "
                f"best {state.best_dice:.3f} (epoch {state.best_epoch})"
            )
        return 0


@dataclass(frozen=True)
class Sweep:
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

    def run(self) -> int:
        """Run the command; return the exit status."""
        from discoseg.config import load_config
        from discoseg.progress import progress_bars
        from discoseg.sweep import fit_many

        if not self.configs:
            raise UserError("--configs: give at least one TOML file or preset")
        if self.at_once is not None and self.at_once < 1:
            raise UserError(f"--at-once {self.at_once} must be at least 1")
        runs = {self.out / Path(source).stem: load_config(source) for source in self.configs}
        if len(runs) < len(self.configs):
            raise UserError("--configs: two of them have the same name, so their runs would have the same folder")
        with progress_bars() as update:
            fit_many(
                self.dataset,
                runs,
                seeds=self.seeds,
                split=self.split,
                validation_fraction=self.validation_fraction,
                device=self.device,
                at_once=self.at_once,
                memory_gib=self.memory_gib,
                resume=self.resume,
                progress=lambda run, done, message: update(run.name, done, runs[run].epochs, message),
            )
        print("\n".join(str(run) for run in runs))
        return 0
