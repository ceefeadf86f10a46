"""A folder of files to cases: ACDC, PROMISE12, nnU-Net, Decathlon and others are recognised by themselves."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from discoseg.data.files import (
    IMAGE_SUFFIXES,
    PICTURE_SUFFIXES,
    channel_of,
    file_of,
    image_suffix,
    list_images,
    strip_suffix,
)
from discoseg.data.names import require_name
from discoseg.errors import UserError
from discoseg.texts import read_bytes

_MOST_INFO = 2**20  # bytes of an Info.cfg
WEAK_ENDINGS = ("", "_scribble", "_seeds", "_weak")
LOOKED_FOR = (
    "ACDC (patient001/Info.cfg, also inside training/), PROMISE12 (Case00.mhd), nnU-Net (dataset.json, imagesTr/), "
    "Decathlon (dataset.json that lists its files), discoseg.json, cases.csv (columns case, image, label) "
    f"or images ({' '.join(IMAGE_SUFFIXES)}), also inside images/"
)


@dataclass(frozen=True)
class Case:
    """One volume of a dataset: its files, and what a split and an atlas must know about it."""

    name: str  # unique in its dataset
    images: tuple[Path, ...]  # one a channel: files, or channels of one file, "scan.nii.gz[0]", "scan.nii.gz[1]"
    label: Path | None = None  # reference label map, or a weak one that carries the dataset's `ignore`
    patient: str = ""  # what a split keeps together
    group: str = ""  # what an atlas keeps apart: "ED", "ES" or ""
    test: bool = False  # held out by the layout itself


@dataclass(frozen=True)
class Dataset:
    """The cases of a folder and the meaning of their labels; files that ought to be there may be missing."""

    root: Path
    layout: str  # "acdc", "promise12", "nnunet", "decathlon", "pattern", "table" or "folder"
    cases: tuple[Case, ...]
    labels: dict[str, int]  # with "background": 0
    ignore: int  # the label value that means "not annotated"
    split: Path | None = None  # file beside the images that says which cases validate

    def __post_init__(self) -> None:
        for name in self.labels:
            require_name(name, self.root, "structure", slashes=True)
        for case in self.cases:
            require_name(case.name, self.root)
            for what, word in (("patient", case.patient), ("group", case.group)):
                if word:
                    require_name(word, self.root, what)

    def label_value(self, label: str) -> int:
        """Return the value of a foreground label given by its name or value: "LV" or "3" is 3 in ACDC."""
        for name, value in self.labels.items():
            if value != 0 and label.casefold() in (name.casefold(), str(value)):
                return value
        known = ", ".join(f"{name} ({value})" for name, value in self.labels.items() if value != 0)
        raise UserError(f"label {label!r} is not in {self.root}: use one of {known}")

    def label_values(self, labels: str) -> dict[str, int]:
        """Return values by name of the foreground labels that ``labels`` names: joined by commas, or ``all``."""
        known = {name: value for name, value in self.labels.items() if value != 0}
        if labels == "all" and "all" not in known:
            return self._usable(known)
        values = [self.label_value(part.strip()) for part in labels.split(",")]
        if len(set(values)) < len(values):
            raise UserError(f"--label {labels}: a structure occurs twice")
        names = {value: name for name, value in known.items()}
        return self._usable({names[value]: value for value in values})

    def _usable(self, chosen: dict[str, int]) -> dict[str, int]:
        """Return the labels, unless one has a name that no file can have; others of the dataset may have it."""
        for name in chosen:
            require_name(name, self.root, "structure")
        return chosen


def find_dataset(root: Path | str) -> Dataset:
    """Recognise the layout of a folder and list its cases in the order of their names; reads no voxels."""
    root = Path(root)
    if not root.is_dir():
        raise UserError(f"{root} is not a folder" if root.exists() else f"{root} does not exist")
    for find in (_find_described, _find_listed, _find_table, _find_acdc, _find_promise12, _find_folder):
        dataset = find(root)
        if dataset is not None:
            return dataset
    raise UserError(f"{root} holds no dataset: looked for {LOOKED_FOR}")


def find_weak_maps(folder: Path, dataset: Dataset) -> dict[str, Path]:
    """Find weak label maps in a folder and below: a case's name, also with _scribble, _seeds or _weak behind.

    Cases without one are not in the result; a folder without any is an error.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder" if folder.exists() else f"{folder} does not exist")
    wanted = {case.name + ending: case.name for case in dataset.cases for ending in WEAK_ENDINGS}
    maps: dict[str, Path] = {}
    for path in list_images(folder, recursive=True):
        name = wanted.get(strip_suffix(path))
        if name in maps:
            raise UserError(f"{path} and {maps[name]} are both weak maps of {name}: keep one of them")
        if name is not None:
            maps[name] = path
    if not maps:
        example = dataset.cases[0].name
        raise UserError(f"{folder} has no weak map of any case: looked for {example}, {example}_scribble, ...")
    return maps


def describe_odd_channels(cases: Sequence[Case]) -> str | None:
    """Return which case has more or fewer channels than the first one, in words; None if none has."""
    for case in cases:
        if len(case.images) != len(cases[0].images):
            numbers = f"{len(case.images)} instead of the {len(cases[0].images)} of {cases[0].name}"
            return f"{file_of(case.images[0])}: its channels are {numbers}; all cases need the same"
    return None


def colours_of(image: Path) -> tuple[Path, ...]:
    """Return a path for each colour of a picture; a volume's path, or a channel's, as it is."""
    if image_suffix(image) not in PICTURE_SUFFIXES or channel_of(image) is not None:
        return (image,)
    from discoseg.data.volume import list_channels

    return list_channels(image)


def patient_of(name: str) -> str:
    """Return a case's name without a frame number at its end: frames of one patient must stay together.

    >>> patient_of("patient001_frame12"), patient_of("Case00")
    ('patient001', 'Case00')
    """
    return re.sub(r"_frame\d+$", "", name)


def _find_described(root: Path) -> Dataset | None:
    if not (root / "discoseg.json").is_file():
        return None
    from discoseg.data.described import find_described

    return find_described(root)


def _find_listed(root: Path) -> Dataset | None:
    """Find nnU-Net's or the Decathlon's layout, which both have a dataset.json."""
    path = root / "dataset.json"
    if not path.is_file():
        return None
    from discoseg.data.dataset_json import read_json
    from discoseg.data.decathlon import find_decathlon, is_decathlon
    from discoseg.data.nnunet import find_nnunet

    about = read_json(path, needs="labels")
    return find_decathlon(root, about) if is_decathlon(root, about) else find_nnunet(root, about)


def _find_table(root: Path) -> Dataset | None:
    from discoseg.data.table import TABLE, is_table, read_cases

    if not is_table(root / TABLE):
        return None
    return Dataset(root, "table", tuple(read_cases(root / TABLE)), {"background": 0, "foreground": 1}, ignore=2)


def _find_acdc(root: Path) -> Dataset | None:
    def patients(folder: Path) -> list[Path]:
        return sorted(p for p in folder.glob("patient*") if re.fullmatch(r"patient\d+", p.name) and p.is_dir())

    training = patients(root) or patients(root / "training")
    if not training:
        return None
    cases = [case for folder in training for case in _acdc_patient(folder, test=False)]
    cases += [case for folder in patients(root / "testing") for case in _acdc_patient(folder, test=True)]
    return Dataset(root, "acdc", tuple(cases), {"background": 0, "RV": 1, "MYO": 2, "LV": 3}, ignore=4)


def _acdc_patient(folder: Path, *, test: bool) -> Iterable[Case]:
    info = folder / "Info.cfg"
    if not info.is_file():
        raise UserError(f"{info} does not exist: it must name the patient's ED and ES frames")
    text = read_bytes(info, most=_MOST_INFO).decode("utf-8", "replace")
    frames = dict(re.findall(r"^[ \t]*(ED|ES)[ \t]*:[ \t]*(\d{1,6})[ \t\r]*$", text, re.MULTILINE))
    for group in ("ED", "ES"):
        if group not in frames:
            raise UserError(f"{info} has no line '{group}: NUMBER' that names the {group} frame")
        name = f"{folder.name}_frame{int(frames[group]):02d}"
        image = _existing(folder, name) or folder / f"{name}.nii.gz"
        yield Case(name, (image,), _existing(folder, f"{name}_gt"), folder.name, group, test)


def _find_promise12(root: Path) -> Dataset | None:
    images = [path for path in list_images(root) if re.fullmatch(r"Case\d+\.mh[ad]", path.name)]
    cases = []
    for image in images:
        name = strip_suffix(image)
        cases.append(Case(name, (image,), _existing(root, f"{name}_segmentation"), patient=name))
    return Dataset(root, "promise12", tuple(cases), {"background": 0, "prostate": 1}, ignore=2) if cases else None


def _find_folder(root: Path) -> Dataset | None:
    folder = root / "images" if (root / "images").is_dir() else root
    cases = []
    for image in list_images(folder):
        name = strip_suffix(image)
        label = _existing(root / "labels", name) if folder != root else None
        cases.append(Case(name, colours_of(image), label, patient_of(name)))
    return Dataset(root, "folder", tuple(cases), {"background": 0, "foreground": 1}, ignore=2) if cases else None


def _existing(folder: Path, name: str) -> Path | None:
    """Return the image file of that name, whatever its suffix."""
    return next((path for suffix in IMAGE_SUFFIXES if (path := folder / f"{name}{suffix}").is_file()), None)
