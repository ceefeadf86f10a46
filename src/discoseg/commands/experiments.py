"""Commands that carry out whole experiments."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from discoseg.commands.options import Cluster, Device, Voice, same_again
from discoseg.errors import UserError
from discoseg.experiments.plan import What
from discoseg.interruption import interruptible
from discoseg.terminal import Terminal


@dataclass(frozen=True)
class Demo(Voice):
    """Show the whole method on phantoms: clicks, seeds, two trainings, prediction, comparison, report."""

    out: Path = Path("demo")
    """Folder for everything that is made; a finished part is not made again."""

    def run(self, terminal: Terminal) -> int:
        """Run the command; return the exit status."""
        from discoseg.experiments.demo import run_demo

        with interruptible():
            evaluations = run_demo(self.out, terminal)
        page = self.out / "report.html"
        methods = {
            method: {"run": self.out / method, **evaluation.record()["summary"][0]}
            for method, evaluation in evaluations.items()
        }
        lines = [f"{page.resolve()}: report with curves and pictures; the demo took {terminal.took}"]
        return terminal.finish({"out": self.out, "report": page, "methods": methods}, lines)

    def goes_on(self, arguments: Sequence[str]) -> str:
        """Return the command line that goes on after an interruption."""
        return same_again(arguments)


@dataclass(frozen=True)
class Reproduce(Cluster, Voice):
    """Make the paper's tables and figures from the datasets; finished trainings are kept, begun ones go on."""

    what: Positional[What]
    """A table or figure of the paper, its tasks with the default preset (ours), three structures from scribbles by the
    split (scribbles) or in five parts by patient (folds), ablations, or the search for what the paper leaves open;
    these two are about CRF + size, of the paper's tasks also with exact bounds, rough ones and none (CRF only), and
    have full supervision beside them."""
    data: Path
    """Folder with the datasets acdc and promise12 (either may be missing) and, optionally, splits.json."""
    out: Path
    """Folder for seeds, runs, results, tables and figures."""
    only: tuple[str, ...] = ("*",)
    """Patterns of the trainings to make, e.g. 'lv-*' '*-eps10-*'; all results that are there are shown."""
    variants: tuple[str, ...] = ()
    """Of ablations or the search, e.g. zoom lambda0.3+rho0.3; by default every single one."""
    seeds: int = 1
    """Random seeds of each training; the tables show mean ± standard deviation."""
    jobs: int | None = None
    """Trainings at a time; by default one for each core, or two on a GPU."""
    epochs: int | None = None
    """Train shorter or longer than the paper's 250 epochs, or a preset's; the learning rate's decay, a warm-up, μ's
    ramp and the first of two rounds are scaled along."""
    until: int | None = None
    """Stop trainings after so many epochs of their schedule; the best epoch is then one of the whole training, too."""
    device: Device = "auto"
    """Where to train; auto takes CUDA where there is one."""
    deterministic: bool = False
    """Let all trainings repeat exactly on a GPU too (see train --deterministic)."""

    def run(self, terminal: Terminal) -> int:
        """Run the command; return the exit status."""
        from discoseg.experiments.plan import Length, plan
        from discoseg.experiments.reproduce import reproduce

        if self.jobs is not None and self.jobs < 1:
            raise UserError(f"--jobs {self.jobs} must be at least 1")
        planned = {cell.name: cell for cell in plan(self.what, seeds=self.seeds, variants=self.variants)}
        length = Length(self.epochs, self.until)
        with interruptible(), terminal.progress() as progress:
            progress.wait(self.what, "datasets, seeds, results that are there")
            made = reproduce(
                self.what,
                self.data,
                self.out,
                only=self.only,
                variants=self.variants,
                seeds=self.seeds,
                engine=self.make_engine(self.device, self.jobs),
                epochs=self.epochs,
                until=self.until,
                deterministic=self.deterministic,
                progress=lambda run, done, message: progress.epoch(
                    run.name, done, planned[run.name].config(length=length).epochs, message
                ),
                finished=lambda result: terminal.say(
                    f"{result.cell.name}: 3D Dice {result.best_dice:.3f} (epoch {result.best_epoch}), "
                    f"last {result.last('val_dice'):.3f}, {result.seconds:.0f} s"
                ),
            )
        facts = {
            "what": self.what,
            "files": made.files,
            "trainings": [
                {
                    "name": result.cell.name,
                    "best_val_dice": result.best_dice,
                    "best_epoch": result.best_epoch,
                    "val_dice": result.last("val_dice"),
                    "epochs_seconds": result.seconds,
                }
                for result in made.results
            ],
        }
        lines = [*map(str, made.files), f"{self.what} of {len(made.results)} trainings in {terminal.took}"]
        return terminal.finish(facts, lines, notes=made.notes)

    def goes_on(self, arguments: Sequence[str]) -> str:
        """Return the command line that goes on after an interruption."""
        return same_again(arguments)
