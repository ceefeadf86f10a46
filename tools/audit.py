"""Look for pinned packages that were withdrawn or have known flaws: `make audit`.

Three things that a package index can answer, where no advisory service can be reached: did its maintainers withdraw
("yank") a version, is there a newer one, and does safety-db, a list of advisories that is itself a package, name it.
The list that the index offers is of 2021, so it speaks of long-lived ranges only; `pip-audit --disable-pip -r
requirements.lock` asks the services of today.
"""

import html
import json
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from lock import indexes, normal, pinned


class Release(NamedTuple):
    """A version on the index, and whether all of its files were withdrawn."""

    version: Version
    yanked: bool


def read_releases(page: str) -> list[Release]:
    """Return the releases on an index's page of a package, the newest last."""
    files: dict[Version, list[bool]] = {}
    for attributes in re.findall(r"<a\s([^>]*)>", page):
        link = re.search(r'href="([^"#]+)', attributes)
        version = _version_of(unquote(html.unescape(link[1]).rpartition("/")[2])) if link else None
        if version is not None:
            files.setdefault(version, []).append("data-yanked" in attributes)
    return [Release(version, all(files[version])) for version in sorted(files)]


def find_advisories(name: str, version: str, listed: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return the identifiers of the advisories about a version; ``listed`` is safety-db's, by normal name."""
    found = [entry for entry in listed.get(name, []) if any(_holds(spec, version) for spec in entry["specs"])]
    return [entry.get("cve") or entry["id"] for entry in found]


def _version_of(file: str) -> Version | None:
    try:
        return parse_wheel_filename(file)[1] if file.endswith(".whl") else parse_sdist_filename(file)[1]
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return None


def _holds(spec: str, version: str) -> bool:
    return SpecifierSet(spec).contains(version, prereleases=True)


def _fetch_releases(name: str, index: str) -> list[Release]:
    try:
        with urllib.request.urlopen(f"{index}/{name}/", timeout=60) as answer:
            return read_releases(answer.read().decode())
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return []
        raise


def _fetch_list() -> tuple[str, dict[str, list[dict[str, Any]]]]:
    """Return safety-db's version and its advisories by normal name."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, "safety-db"]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        file = next(Path(folder).glob("*.whl"))
        listed = json.loads(zipfile.ZipFile(file).read("safety_db/insecure_full.json"))
        listed.pop("$meta", None)
        return str(parse_wheel_filename(file.name)[1]), {normal(name): entries for name, entries in listed.items()}


def main() -> None:
    """Print what was found; the exit status is 1 if a pin was withdrawn, is not there, or has a known flaw."""
    pins, index = pinned(), next(address for address in indexes() if address.startswith("http"))
    with ThreadPoolExecutor(8) as pool:
        pages = list(pool.map(lambda name: _fetch_releases(name, index), pins))
    bad = 0
    for (name, version), releases in zip(pins.items(), pages, strict=True):
        known = {release.version: release for release in releases}
        usable = [release.version for release in releases if not (release.yanked or release.version.is_prerelease)]
        newest = max(usable, default=None)
        if Version(version) not in known:
            print(f"{name} {version}: not on the index")
            bad += 1
        elif known[Version(version)].yanked:
            print(f"{name} {version}: withdrawn")
            bad += 1
        if newest is not None and newest > Version(version):
            print(f"{name} {version}: {newest} is newer")
    edition, listed = _fetch_list()
    for name, version in pins.items():
        for advisory in find_advisories(name, version, listed):
            print(f"{name} {version}: {advisory}")
            bad += 1
    about = sum(len(listed.get(name, [])) for name in pins)
    print(f"{len(pins)} pinned packages, {about} advisories about them in safety-db {edition}: {bad} findings")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
