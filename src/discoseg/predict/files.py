"""Image files to label maps beside each other in a folder, with all that is asked for beside them."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from discoseg.certified import Enforcement, write_certificate
from discoseg.data.files import channel_of, file_of, image_suffix, list_images, strip_suffix
from discoseg.data.names import require_name
from discoseg.data.volume import list_channels, read_volume, write_volume
from discoseg.errors import UserError
from discoseg.postprocess import NO_POSTPROCESSING, Postprocessing
from discoseg.predict.model import Model
from discoseg.uncertainty import class_entropy
from discoseg.volumes import read_volumes, write_volumes


def predict_files(
    model: Model,
    images: Sequence[Path | str],
    out: Path | str,
    *,
    probabilities: bool = False,
    uncertainty: bool = False,
    augmentations: int = 0,
    postprocessing: Postprocessing = NO_POSTPROCESSING,
    enforcement: Enforcement | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Path]:
    """Segment image files, or all images of folders, into ``out``; return the label maps' paths.

    Each map has its image's name and geometry; with ``probabilities`` a float32 map ``NAME_probability`` stands
    beside it (of several structures ``NAME_probability_STRUCTURE`` each), with ``uncertainty`` one of the entropy of
    its labels, ``NAME_uncertainty`` (both as ``.mha`` beside a ``.png``, which holds no fractions). Files of a model
    with several channels belong together by nnU-Net's names, ``NAME_0000``, ``NAME_0001``, …, and the map is called
    ``NAME``; one file may also have all channels. With ``enforcement`` (:meth:`Model.enforcement`) a certificate
    ``NAME_certificate.json`` says what holds; NAME is then the case's in a table of sizes. Existing files are never
    overwritten; volumes.csv gets a row for each structure of each map.
    """
    out = Path(out)
    cases = _group_channels(model, [file for path in images for file in _expand(Path(path))])
    for name, files in cases.items():
        require_name(strip_suffix(Path(name)), files[0])
    beside = _probability_endings(model) if probabilities else {}
    endings = ["", *beside, *["_uncertainty"] * uncertainty]
    targets = {name: {ending: out / _name_beside(name, ending) for ending in endings} for name in cases}
    if enforcement is not None:
        for name, several in targets.items():
            several["_certificate"] = out / f"{strip_suffix(Path(name))}_certificate.json"
    planned = [target for several in targets.values() for target in several.values()]
    for target in planned:
        if target.exists() or planned.count(target) > 1:
            raise UserError(f"{target}: already exists, or would be written twice; choose another --out")
    sizes = read_volumes(out / "volumes.csv")
    out.mkdir(parents=True, exist_ok=True)
    failures: list[UserError] = []
    for done, (name, files) in enumerate(cases.items(), start=1):
        try:
            prediction = model.predict(
                *(read_volume(file) for file in files),
                augmentations=augmentations,
                postprocessing=postprocessing,
                enforcement=enforcement,
                name=str(files[0]),
                case=strip_suffix(Path(name)),
            )
        except UserError as error:  # one bad file must not cost the others their masks
            failures.append(error)
            progress(done, len(cases))
            continue
        for ending, structure in beside.items():
            write_volume(targets[name][ending], prediction.probabilities[structure])
        if uncertainty:
            entropy = class_entropy([volume.array for volume in prediction.probabilities.values()])
            write_volume(targets[name]["_uncertainty"], prediction.mask.like(entropy))
        if prediction.certificate is not None:
            write_certificate(targets[name]["_certificate"], prediction.certificate)
        write_volume(targets[name][""], prediction.mask)
        for structure, size in prediction.sizes.items():
            sizes[strip_suffix(Path(name)), structure] = size.row()
        write_volumes(out / "volumes.csv", sizes)
        progress(done, len(cases))
    if failures:
        others = f" ({len(failures) - 1} more images failed)" if len(failures) > 1 else ""
        raise UserError(f"{failures[0]}{others}; {len(cases) - len(failures)} of {len(cases)} masks were written")
    return [several[""] for several in targets.values()]


def _probability_endings(model: Model) -> dict[str, str]:
    """Return what names of probability maps end in, and the structure that each is of."""
    if len(model.labels) == 1:
        return dict.fromkeys(["_probability"], next(iter(model.labels)))
    return {f"_probability_{re.sub(r'[^A-Za-z0-9.-]', '-', name)}": name for name in model.labels}


def _name_beside(name: str, ending: str) -> str:
    if not ending:
        return name
    suffix = image_suffix(Path(name))
    return f"{strip_suffix(Path(name))}{ending}{'.mha' if suffix == '.png' else suffix}"


def _expand(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = list_images(path)
    if not files:
        raise UserError(f"{path}: no image in this folder")
    return files


def _group_channels(model: Model, files: Sequence[Path]) -> dict[str, list[Path]]:
    """Return the channel files of every case by the name of its output."""
    cases: dict[str, list[Path]] = {}
    for file in files:
        name = file.name
        if model.channels > 1:
            name = re.sub(r"_\d{4}$", "", strip_suffix(file)) + image_suffix(file)
        if name in cases and model.channels == 1:
            raise UserError(f"{file} and {cases[name][0]} have the same name; predict them into different folders")
        cases.setdefault(name, []).extend(list_channels(file) if model.channels > 1 else [file])
    return {name: sorted(channels, key=lambda c: (file_of(c), channel_of(c) or 0)) for name, channels in cases.items()}
