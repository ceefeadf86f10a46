"""Cases by patterns of file names: "{case}.nii.gz" for images, "{case}_seg.nii.gz" for their label maps."""

import glob
import posixpath
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from discoseg.data.files import IMAGE_SUFFIXES, file_of, image_suffix
from discoseg.data.layouts import Case, colours_of, patient_of
from discoseg.errors import UserError

PLACEHOLDER = re.compile(r"\{(case|patient|group)\}")


@dataclass(frozen=True)
class Pattern:
    """A path relative to ``folder`` with {case}, and maybe {patient} and {group}, in the place of parts of names."""

    text: str
    folder: Path

    @property
    def placeholders(self) -> set[str]:
        """The words in braces."""
        return set(PLACEHOLDER.findall(self.text))

    @property
    def literal(self) -> str:
        """What is left of the file's path without the words in braces."""
        return PLACEHOLDER.sub("", file_of(Path(self.text)).as_posix())

    def find(self) -> dict[Path, dict[str, str]]:
        """Return what the words stand for in the path of every file that fits; a repeated word must fit twice."""
        file = file_of(Path(self.text)).as_posix()
        pieces = PLACEHOLDER.split(file)  # text, word, text, word, …, text
        seen: set[str] = set()
        expression = re.escape(pieces[0])
        for word, text in zip(pieces[1::2], pieces[2::2], strict=True):
            expression += (f"(?P={word})" if word in seen else f"(?P<{word}>[^/]+)") + re.escape(text)
            seen.add(word)
        found = glob.glob("*".join(glob.escape(text) for text in pieces[::2]), root_dir=self.folder)
        matches = {name: re.fullmatch(expression, Path(name).as_posix()) for name in sorted(found)}
        return {self.folder / name: match.groupdict() for name, match in matches.items() if match}

    def fill(self, words: dict[str, str]) -> Path:
        """Return the path of one case."""
        return self.folder / PLACEHOLDER.sub(lambda match: words[match[1]], self.text)


def match_cases(path: Path, images: list[Any], labels: Any = None) -> list[Case]:
    """List the cases whose first channel fits the first pattern of ``images``, in the order of their names.

    ``path`` is the file that the patterns stand in: they are relative to its folder, and errors name it. A file that
    fits several patterns belongs to the one that says more: a_seg.nii.gz to "{case}_seg.nii.gz", not "{case}.nii.gz".
    Where {case} is the same for several patients, all cases are called PATIENT_CASE.
    """
    channels = [_parse(path, "images", text) for text in images]
    maps = None if labels is None else _parse(path, "labels", labels)
    if not channels:
        raise UserError(f"{path}: 'images' is empty; give a pattern such as '{{case}}.nii.gz'")
    for pattern in (*channels, *([maps] if maps else [])):
        if unknown := pattern.placeholders - channels[0].placeholders:
            raise UserError(f"{path}: {pattern.text!r} has {{{min(unknown)}}}, which {channels[0].text!r} lacks")
    found = _own_files(channels[0], [*channels[1:], *([maps] if maps else [])])
    if not found:
        raise UserError(f"{path}: no file fits 'images', {channels[0].text!r}, relative to {path.parent}")
    cases = []
    for name, words in _name(path, found).items():
        label = maps.fill(words) if maps else None
        existing = label if label is not None and file_of(label).is_file() else None
        files = tuple(colour for channel in channels for colour in colours_of(channel.fill(words)))
        cases.append(Case(name, files, existing, words.get("patient") or patient_of(name), words.get("group", "")))
    if maps is not None:
        fitting = {maps.fill(words) for words in found.values()}
        for file in sorted(_own_files(maps, channels).keys() - {file_of(label) for label in fitting}):
            raise UserError(f"{file} has no image that fits {channels[0].text!r}: add it, or correct {path}")
    return sorted(cases, key=lambda case: case.name)


def _name(path: Path, found: dict[Path, dict[str, str]]) -> dict[str, dict[str, str]]:
    """Return the words of every case by its name, which must be unique."""
    ambiguous = len({words["case"] for words in found.values()}) < len(found)
    names: dict[str, Path] = {}
    for file, words in found.items():
        name = f"{words['patient']}_{words['case']}" if ambiguous and "patient" in words else words["case"]
        if name in names:
            raise UserError(f"{path}: {names[name]} and {file} are both case {name!r}; let {{case}} stand for more")
        names[name] = file
    return {name: found[file] for name, file in names.items()}


def _own_files(pattern: Pattern, others: list[Pattern]) -> dict[Path, dict[str, str]]:
    """Find the files of a pattern that fit none of the others that says more."""
    stricter = [other for other in others if len(other.literal) > len(pattern.literal)]
    taken = {file.resolve() for other in stricter for file in other.find()}
    return {file: words for file, words in pattern.find().items() if file.resolve() not in taken}


def _parse(path: Path, key: str, text: Any) -> Pattern:
    if not isinstance(text, str) or "{case}" not in text:
        raise UserError(f"{path}: '{key}' must be a pattern with {{case}}, such as '{{case}}.nii.gz', not {text!r}")
    if "{" in PLACEHOLDER.sub("", text) or "}" in PLACEHOLDER.sub("", text):
        raise UserError(f"{path}: {text!r} may have {{case}}, {{patient}} and {{group}} in braces, nothing else")
    if not image_suffix(Path(text)):
        raise UserError(f"{path}: {text!r} must end in one of {', '.join(IMAGE_SUFFIXES)}")
    return Pattern(posixpath.normpath(text), path.parent)
