"""The subcommands of ``discoseg``: one dataclass each, whose fields are its options and whose ``run`` calls the API.

Heavy imports stand inside the commands that need them, so that ``discoseg --help`` answers at once.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from discoseg.config import Config, GridConfig
from discoseg.errors import UserError
from discoseg.experiments.plan import What

DatasetArgument = Positional[Annotated[Path, arg(metavar="DATASET")]]
Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True)
class Check:
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

    def run(self) -> int:
        """Run the command; return the exit status."""
        from discoseg.data.check import check_dataset
        from discoseg.data.check_table import print_check
        from discoseg.data.layouts import find_dataset
        from discoseg.progress import progress_bars
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
        with progress_bars() as update:
            check = check_dataset(
                dataset,
                label=label,
                weak=self.seeds,
                sizes=None if sizes is None else sizes.find,
                progress=lambda done, total: update("reading", done, total, "cases"),
            )
        if sizes is not None:
            check.warnings[:0] = sizes.describe_published()
        print_check(check, per_case=self.cases)
        return 2 if check.problems else 0


@dataclass(frozen=True)
class Seeds:
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

    def run(self) -> int:
        """Run the command; return the exit status."""
        from discoseg.data.layouts import find_dataset
        from discoseg.data.splits import split_cases
        from discoseg.progress import progress_bars
        from discoseg.weak.examples import chosen_labels
        from discoseg.weak.seeds import make_seeds
        from discoseg.weak.seeds_table import print_seeds

        dataset = find_dataset(self.dataset)
        training, _ = split_cases(dataset, split=self.split, fraction=self.validation_fraction)
        with progress_bars() as update:
            seeded = make_seeds(
                dataset,
                training,
                self.out,
                label=list(chosen_labels(dataset, self.label).values()),
                grid=GridConfig(self.grid),
                clicks=self.clicks,
                atlas=self.atlas,
                progress=lambda done, total: update("seeds", done, total, "cases"),
            )
        print_seeds(seeded, self.out)
        return 0


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
    config: Annotated[Config, arg(name="")] = field(default_factory=Config)

    def run(self) -> int:
        """Run the command; return the exit status."""
        from discoseg.progress import progress_bars
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
        with progress_bars() as update:
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
    """Write one self-contained HTML page about one or several runs."""

    runs: Positional[Annotated[tuple[Path, ...], arg(metavar="RUN...")]]
    """Run folders."""
    out: Path
    """The page's file; must not exist yet."""

    def run(self) -> int:
        """Run the command; return the exit status."""
        from discoseg.report import write_report

        if not self.runs:
            raise UserError("RUN: give at least one run folder")
        write_report(self.runs, self.out)
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


@dataclass(frozen=True)
class Phantom:
    """Write a dataset of cardiac-like phantoms in nnU-Net's layout, with one click per training volume."""

    out: Path
    """Folder for the dataset; must be new or empty."""
    cases: int = 24
    """Training volumes."""
    test_cases: int = 8
    """Held-out volumes."""
    seed: int = 0
    """Seed of the phantoms."""

    def run(self) -> int:
        """Run the command; return the exit status."""
        from discoseg.data.phantom import write_phantom_dataset

        write_phantom_dataset(self.out, cases=self.cases, test_cases=self.test_cases, seed=self.seed)
        print(f"{self.out}: {self.cases} training and {self.test_cases} test phantoms")
        return 0


@dataclass(frozen=True)
class Demo:
    """Show the whole method on phantoms: clicks, seeds, two trainings, prediction, comparison, report."""

    out: Path = Path("demo")
    """Folder for everything that is made; a finished part is not made again."""

    def run(self) -> int:
        """Run the command; return the exit status."""
        from discoseg.experiments.demo import run_demo

        run_demo(self.out)
        return 0


@dataclass(frozen=True)
class Reproduce:
    """Make the paper's tables and figures from the datasets; finished trainings are kept, begun ones go on."""

    what: Positional[What]
    """A table or figure of the paper, its tasks with the default preset (ours), three structures from scribbles,
    ablations of CRF + size, or the search
    for what the paper leaves open; these two have full supervision beside them."""
    data: Path
    """Folder with the datasets acdc and promise12 (either may be missing) and, optionally, splits.json."""
    out: Path
    """Folder for seeds, runs, results, tables and figures."""
    only: str = "*"
    """Pattern of the trainings to make, e.g. 'lv-*' or '*-eps10-*'; all results that are there are shown."""
    variants: tuple[str, ...] = ()
    """Of ablations or the search, e.g. zoom lambda0.3+rho0.3; by default every single one."""
    seeds: int = 1
    """Random seeds of each training; the tables show mean ± standard deviation."""
    jobs: int | None = None
    """Trainings at a time; by default one for each core, or two on a GPU."""
    epochs: int | None = None
    """Train shorter or longer than the paper's 250 epochs; the learning rate's decay is scaled along."""
    until: int | None = None
    """Stop trainings after so many epochs of their schedule; the best epoch is then one of the whole training, too."""
    device: Device = "auto"
    """Where to train; auto takes CUDA where there is one."""

    def run(self) -> int:
        """Run the command; return the exit status."""
        from discoseg.experiments.plan import Length, plan
        from discoseg.experiments.reproduce import reproduce
        from discoseg.progress import progress_bars

        planned = plan(self.what, seeds=self.seeds, variants=self.variants)
        length = Length(self.epochs, self.until)
        epochs = {cell.name: cell.config(length=length).epochs for cell in planned}
        with progress_bars() as update:
            made = reproduce(
                self.what,
                self.data,
                self.out,
                only=self.only,
                variants=self.variants,
                seeds=self.seeds,
                jobs=self.jobs,
                epochs=self.epochs,
                until=self.until,
                device=self.device,
                progress=lambda run, done, message: update(run.name, done, epochs[run.name], message),
                finished=lambda result: print(
                    f"{result.cell.name}: 3D Dice {result.best_dice:.3f} (epoch {result.best_epoch}), "
                    f"last {result.last('val_dice'):.3f}, {result.seconds:.0f} s",
                    flush=True,
                ),
            )
        print("\n".join([*(f"note: {note}" for note in made.notes), *map(str, made.files)]))
        return 0


Command = Check | Seeds | Train | Sweep | Predict | Export | Evaluate | Report | Next | Phantom | Demo | Reproduce
