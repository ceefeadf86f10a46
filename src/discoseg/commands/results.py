"""Commands on trained runs: predict, measure, look, hand on, and what to annotate next."""

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from discoseg.commands.options import Device, Voice
from discoseg.errors import UserError
from discoseg.terminal import Terminal


@dataclass(frozen=True)
class Predict(Voice):
    """Segment images with a trained run: label maps with each image's name and exact geometry, sizes in volumes.csv."""

    run_folder: Positional[Annotated[Path, arg(metavar="RUN")]]
    """Run folder, or a checkpoint file."""
    images: Positional[Annotated[tuple[Path, ...], arg(metavar="IMAGE...")]]
    """Image files, or folders of them."""
    out: Path
    """Folder for the label maps and volumes.csv; existing maps are not overwritten, the table is continued."""
    probabilities: bool = False
    """Also write NAME_probability, the structure's probability as float32."""
    uncertainty: bool = False
    """Also write NAME_uncertainty, the entropy of that probability in bits: 0 where it is sure, 1 at one half."""
    augmentations: int = 0
    """Average the probability over so many rotated (and, if the training flipped, flipped) views of each image too."""
    largest_component: bool = False
    """Keep only the largest piece of the mask; voxels that share a corner are connected."""
    fill_holes: bool = False
    """Fill the holes that the mask encloses in 3D."""
    enforce: bool = False
    """Make each mask honour size bounds and the boundary prior, by the training's exact solvers; what is proven of it
    stands in NAME_certificate.json. Without any bounds it is the boundary prior alone. Sizes hold in the file that is
    written: they are restored after --largest-component and --fill-holes."""
    size_ml: str | None = None
    """Sizes to enforce, in millilitres, LOW:HIGH as in training (LV=60:180,RV=70: of several structures); by default
    the --size-ml of the training. 0: lets any size be."""
    size_csv: Path | None = None
    """Sizes to enforce for each case: a CSV file as in training; a case has its label map's name, without suffix."""
    crf_strength: float | None = None
    """Strength of the boundary prior to enforce, λ/μ of the cut; by default a tenth of the training's, 0 is none."""
    checkpoint: Literal["best", "mean", "final"] = "best"
    """The best validation epoch's model, the mean of the last epochs' weights (which takes its place where it validates
    better, or nothing validates), or the last epoch's."""
    device: Device = "auto"
    """Where to compute."""

    def run(self, terminal: Terminal) -> int:
        """Run the command; return the exit status."""
        from discoseg.data.files import strip_suffix
        from discoseg.postprocess import Postprocessing
        from discoseg.predict import load_model, predict_files
        from discoseg.volumes import read_volumes

        if not self.images:
            raise UserError("IMAGE: give at least one image file or folder")
        if self.augmentations < 0:
            raise UserError(f"--augmentations {self.augmentations} must be 0 or more")
        wanted = {"size_ml": self.size_ml, "size_csv": self.size_csv, "crf_strength": self.crf_strength}
        given = [f"--{name.replace('_', '-')}" for name, value in wanted.items() if value is not None]
        if given and not self.enforce:
            raise UserError(f"{given[0]} says what to enforce: add --enforce")
        with terminal.progress() as progress:
            progress.wait("predicting", "loading the model")
            model = load_model(self.run_folder, device=self.device, checkpoint=self.checkpoint)
            enforcement = None
            if self.enforce:
                enforcement = model.enforcement(
                    size_ml=self.size_ml, size_csv=self.size_csv, crf_strength=self.crf_strength
                )
            written = predict_files(
                model,
                self.images,
                self.out,
                probabilities=self.probabilities,
                uncertainty=self.uncertainty,
                augmentations=self.augmentations,
                postprocessing=Postprocessing(self.largest_component, self.fill_holes),
                enforcement=enforcement,
                progress=progress.counter("predicting", "images"),
            )
        table = self.out / "volumes.csv"
        cases = {strip_suffix(file): file for file in written}
        sizes = [
            {"case": case, "label": label, "voxels": int(row["voxels"]), "ml": float(row["ml"])}
            for (case, label), row in read_volumes(table).items()
            if case in cases
        ]
        facts = {
            "out": self.out,
            "model": self.run_folder,
            "epoch": model.epoch,
            "labels": model.labels,
            "maps": written,
            "certificates": [self.out / f"{case}_certificate.json" for case in cases if self.enforce],
            "volumes": table,
            "sizes": sizes,
        }
        evaluate = shlex.join(["discoseg", "evaluate", str(self.out), "REFERENCES", "--run-folder"])
        lines = [
            f"{self.out}: {len(written)} label maps of {model.said} in {terminal.took}, their sizes in volumes.csv",
            f"next: {evaluate} {shlex.quote(str(self.run_folder))}",
        ]
        return terminal.finish(facts, lines[: 2 if self.run_folder.is_dir() else 1])


@dataclass(frozen=True)
class Export(Voice):
    """Write a trained run for other programs: as an ONNX file, as a MONAI bundle, or both."""

    run_folder: Positional[Annotated[Path, arg(metavar="RUN")]]
    """Run folder, or a checkpoint file."""
    onnx: Path | None = None
    """ONNX file: scaled slices in, class probabilities out, of any size; needs discoseg[export]."""
    monai_bundle: Path | None = None
    """Folder of a MONAI bundle: image files in, label maps out."""
    checkpoint: Literal["best", "mean", "final"] = "best"
    """The best validation epoch's model, the mean of the last epochs' weights (which takes its place where it validates
    better, or nothing validates), or the last epoch's."""
    overwrite: bool = False
    """Replace what is there under these names: an ONNX file, a bundle."""

    def run(self, terminal: Terminal) -> int:
        """Run the command; return the exit status."""
        if self.onnx is None and self.monai_bundle is None:
            raise UserError("say what to write: --onnx FILE, --monai-bundle FOLDER, or both")
        from discoseg.export import export_bundle, export_onnx
        from discoseg.export.bundle import require_bundle_target
        from discoseg.export.onnx_file import require_onnx_target
        from discoseg.predict import load_model

        if self.onnx is not None:
            require_onnx_target(self.onnx, overwrite=self.overwrite)
        if self.monai_bundle is not None:
            require_bundle_target(self.monai_bundle, overwrite=self.overwrite)
        model = load_model(self.run_folder, device="cpu", checkpoint=self.checkpoint)
        written: list[dict[str, Any]] = []
        with terminal.progress() as progress:
            if self.onnx is not None:
                progress.wait("exporting", "ONNX")
                difference = export_onnx(model, self.onnx, overwrite=self.overwrite)
                written.append({"format": "onnx", "path": self.onnx, "largest_difference": difference})
            if self.monai_bundle is not None:
                progress.wait("exporting", "MONAI bundle")
                difference = export_bundle(model, self.monai_bundle, overwrite=self.overwrite)
                written.append({"format": "monai-bundle", "path": self.monai_bundle, "largest_difference": difference})
        facts = {"model": self.run_folder, "epoch": model.epoch, "labels": model.labels, "written": written}
        said = f"{model.said}, epoch {model.epoch}; largest difference from torch"
        lines = [f"{each['path']}: {said} {each['largest_difference']:.1e}" for each in written]
        return terminal.finish(facts, [*lines, f"exported in {terminal.took}"])


@dataclass(frozen=True)
class Evaluate(Voice):
    """Compare label maps with references: 3D Dice, surface distances in mm, volumes in ml."""

    predictions: Positional[Annotated[Path, arg(metavar="PREDICTIONS")]]
    """Folder of predicted label maps."""
    references: Positional[Annotated[Path, arg(metavar="REFERENCES")]]
    """Folder of reference label maps, or a dataset."""
    label: tuple[str, ...] = ()
    """Structures to compare, by value, or by name where REFERENCES is a dataset; all that are predicted if none."""
    run_folder: Path | None = None
    """Run folder that the predictions are of: rows then say which cases it was trained on or validated by (part), and
    means are of each part by itself."""
    out: Path | None = None
    """Write the table to this .csv or .json file as well; it must not exist yet."""

    def run(self, terminal: Terminal) -> int:
        """Run the command; return the exit status."""
        from discoseg.evaluation import evaluate, print_evaluation, require_new_table, write_evaluation

        if self.out is not None:
            require_new_table(self.out)
        with terminal.progress() as progress:
            progress.wait("comparing", "reading label maps")
            evaluation = evaluate(
                self.predictions,
                self.references,
                labels=self.label,
                run=self.run_folder,
                progress=progress.counter("comparing", "cases"),
            )
        if self.out is not None:
            write_evaluation(self.out, evaluation)
        print_evaluation(evaluation, console=terminal.answers if self.out is None else terminal.console)
        facts = {**evaluation.record(), "names": evaluation.names, "out": self.out}
        return terminal.finish(facts, [] if self.out is None else [f"{self.out}: written in {terminal.took}"])


@dataclass(frozen=True)
class Report(Voice):
    """Write one self-contained HTML page about one or several runs, finished or not."""

    runs: Positional[Annotated[tuple[Path, ...], arg(metavar="RUN...")]]
    """Run folders."""
    out: Path
    """The page's file; must not exist yet."""
    evaluations: tuple[Path, ...] = ()
    """What 'discoseg evaluate --out' wrote about held-out predictions, one .csv or .json file for each run, in the
    runs' order."""

    def run(self, terminal: Terminal) -> int:
        """Run the command; return the exit status."""
        from discoseg.report import name_runs, write_report

        if not self.runs:
            raise UserError("RUN: give at least one run folder")
        if self.evaluations and len(self.evaluations) != len(self.runs):
            raise UserError(
                f"--evaluations: {len(self.evaluations)} files for {len(self.runs)} runs; give one for each"
            )
        evaluations = dict(zip(name_runs(self.runs), self.evaluations, strict=False))
        with terminal.progress() as progress:
            progress.wait("drawing", "the page")
            write_report(self.runs, self.out, evaluations=evaluations)
        line = f"{self.out}: a page about {len(self.runs)} run{'s' * (len(self.runs) > 1)} in {terminal.took}"
        return terminal.finish({"out": self.out, "runs": self.runs}, [line])


@dataclass(frozen=True)
class Next(Voice):
    """Say which training cases to annotate next: those on which network and proposals disagree most."""

    run_folder: Positional[Annotated[Path, arg(metavar="RUN")]]
    """Run folder of a training that is finished or still runs."""
    top: int = 5
    """Cases to show."""

    def run(self, terminal: Terminal) -> int:
        """Run the command; return the exit status."""
        from discoseg.next_case import print_cases, rank_cases

        if self.top < 1:
            raise UserError(f"--top {self.top} must be at least 1")
        cases = rank_cases(self.run_folder, top=self.top)
        print_cases(self.run_folder, cases, console=terminal.answers)
        return terminal.finish({"run": self.run_folder, "cases": [asdict(case) for case in cases]})


@dataclass(frozen=True)
class Info(Voice):
    """Say of a run where it stands, and what made it: versions, commit, hardware, data, command, settings."""

    run_folder: Positional[Annotated[Path, arg(metavar="RUN")]]
    """Run folder of a training that is finished, interrupted or still runs."""

    def run(self, terminal: Terminal) -> int:
        """Run the command; return the exit status."""
        from discoseg.about_run import describe_run, say_run

        facts = describe_run(self.run_folder)
        for line in say_run(facts):
            terminal.answers.print(line, markup=False, highlight=False, soft_wrap=True)
        return terminal.finish(facts)
