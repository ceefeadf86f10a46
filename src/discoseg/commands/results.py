"""Commands on trained runs: predict, measure, look, hand on, and what to annotate next."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from discoseg.commands.options import Device
from discoseg.errors import UserError


@dataclass(frozen=True)
class Predict:
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
    """Strength of the boundary prior to enforce, λ/μ of the cut; by default that of the training, 0 turns it off."""
    checkpoint: Literal["best", "final"] = "best"
    """The best validation epoch's model, or the last epoch's."""
    device: Device = "auto"
    """Where to compute."""

    def run(self) -> int:
        """Run the command; return the exit status."""
        from discoseg.postprocess import Postprocessing
        from discoseg.predict import load_model, predict_files
        from discoseg.progress import progress_bars

        if not self.images:
            raise UserError("IMAGE: give at least one image file or folder")
        if self.augmentations < 0:
            raise UserError(f"--augmentations {self.augmentations} must be 0 or more")
        wanted = {"size_ml": self.size_ml, "size_csv": self.size_csv, "crf_strength": self.crf_strength}
        given = [f"--{name.replace('_', '-')}" for name, value in wanted.items() if value is not None]
        if given and not self.enforce:
            raise UserError(f"{given[0]} says what to enforce: add --enforce")
        model = load_model(self.run_folder, device=self.device, checkpoint=self.checkpoint)
        enforcement = None
        if self.enforce:
            enforcement = model.enforcement(
                size_ml=self.size_ml, size_csv=self.size_csv, crf_strength=self.crf_strength
            )
        with progress_bars() as update:
            written = predict_files(
                model,
                self.images,
                self.out,
                probabilities=self.probabilities,
                uncertainty=self.uncertainty,
                augmentations=self.augmentations,
                postprocessing=Postprocessing(self.largest_component, self.fill_holes),
                enforcement=enforcement,
                progress=lambda done, total: update("predicting", done, total, "images"),
            )
        print(f"{self.out}: {len(written)} label maps of {model.said}")
        return 0


@dataclass(frozen=True)
class Export:
    """Write a trained run for other programs: as an ONNX file, as a MONAI bundle, or both."""

    run_folder: Positional[Annotated[Path, arg(metavar="RUN")]]
    """Run folder, or a checkpoint file."""
    onnx: Path | None = None
    """ONNX file: scaled slices in, class probabilities out, of any size; needs discoseg[export]."""
    monai_bundle: Path | None = None
    """Folder of a MONAI bundle: image files in, label maps out."""
    checkpoint: Literal["best", "final"] = "best"
    """The best validation epoch's model, or the last epoch's."""
    overwrite: bool = False
    """Replace what is there under these names: an ONNX file, a bundle."""

    def run(self) -> int:
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
        said = f"{model.said}, epoch {model.epoch}; largest difference from torch"
        if self.onnx is not None:
            print(f"{self.onnx}: {said} {export_onnx(model, self.onnx, overwrite=self.overwrite):.1e}")
        if self.monai_bundle is not None:
            difference = export_bundle(model, self.monai_bundle, overwrite=self.overwrite)
            print(f"{self.monai_bundle}: {said} {difference:.1e}")
        return 0


@dataclass(frozen=True)
class Evaluate:
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

    def run(self) -> int:
        """Run the command; return the exit status."""
        from discoseg.evaluation import evaluate, print_evaluation, require_new_table, write_evaluation

        if self.out is not None:
            require_new_table(self.out)
        evaluation = evaluate(self.predictions, self.references, labels=self.label, run=self.run_folder)
        if self.out is not None:
            write_evaluation(self.out, evaluation)
        print_evaluation(evaluation)
        return 0


@dataclass(frozen=True)
class Report:
    """Write one self-contained HTML page about one or several runs, finished or not."""

    runs: Positional[Annotated[tuple[Path, ...], arg(metavar="RUN...")]]
    """Run folders."""
    out: Path
    """The page's file; must not exist yet."""
    evaluations: tuple[Path, ...] = ()
    """What 'discoseg evaluate --out' wrote about held-out predictions, one .csv or .json file for each run, in the
    runs' order."""

    def run(self) -> int:
        """Run the command; return the exit status."""
        from discoseg.report import name_runs, write_report

        if not self.runs:
            raise UserError("RUN: give at least one run folder")
        if self.evaluations and len(self.evaluations) != len(self.runs):
            raise UserError(
                f"--evaluations: {len(self.evaluations)} files for {len(self.runs)} runs; give one for each"
            )
        evaluations = dict(zip(name_runs(self.runs), self.evaluations, strict=False))
        write_report(self.runs, self.out, evaluations=evaluations)
        print(self.out)
        return 0


@dataclass(frozen=True)
class Next:
    """Say which training cases to annotate next: those on which network and proposals disagree most."""

    run_folder: Positional[Annotated[Path, arg(metavar="RUN")]]
    """Run folder of a training that is finished or still runs."""
    top: int = 5
    """Cases to show."""
    json: bool = False
    """Print JSON with all measures."""

    def run(self) -> int:
        """Run the command; return the exit status."""
        from discoseg.next_case import print_cases, rank_cases

        if self.top < 1:
            raise UserError(f"--top {self.top} must be at least 1")
        print_cases(self.run_folder, rank_cases(self.run_folder, top=self.top), as_json=self.json)
        return 0
