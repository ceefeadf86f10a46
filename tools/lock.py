"""Write requirements.lock and torch.lock: `make lock`.

They have every package that `make test` installs, at the version that constraints.txt pins, with the SHA-256 of each of
its files, so that pip takes no other.

pip says which packages these are on this machine; the indexes and folders that pip is configured for say their files.
What torch's build for CUDA needs beyond that is not in it: another build of torch, as here, has no use for it.
"""

import argparse
import hashlib
import html
import json
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

ROOT = Path(__file__).parents[1]
EXTRAS = "dev,export,web"
MARKERS = {"triton": "sys_platform == 'linux'"}
BUILD = ("pip", "setuptools")
HEAD = "# Made by `make lock` from constraints.txt: do not edit. Installed with --require-hashes --no-deps.\n"


def normal(name: str) -> str:
    """Return a package's name as indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned() -> dict[str, str]:
    """Return the versions in constraints.txt by name."""
    lines = (line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines())
    return {normal(name): version for name, _, version in (line.partition("==") for line in lines if line)}


def resolved(*wanted: str) -> dict[str, str]:
    """Return what pip would install here, by name, with the versions (without a build's +suffix)."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        subprocess.run([*command, "--report", str(report), "-c", "constraints.txt", *wanted], cwd=ROOT, check=True)
        found = (item["metadata"] for item in json.loads(report.read_text())["install"])
        return {normal(item["name"]): item["version"].partition("+")[0] for item in found}


def indexes() -> list[str]:
    """Return the addresses of the indexes that pip asks, and the folders that it looks into."""
    from pip._internal.models.index import PyPI

    shown = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    settings = dict(re.findall(r"^\S*?\.([a-z-]+)='(.*)'$", shown.stdout, re.MULTILINE))
    found = [settings.get("index-url", PyPI.simple_url), *settings.get("extra-index-url", "").split()]
    return [address.rstrip("/") for address in found] + settings.get("find-links", "").split()


def files_of(name: str, version: str, addresses: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the names and SHA-256 of all files of a version, by all indexes, of builds with a +suffix too."""
    endings = r"(\+[a-z0-9.]+)?(-.*\.whl|\.tar\.gz|\.zip)"
    wanted = re.compile(rf"{name.replace('-', '[-_.]+')}-{re.escape(version)}{endings}", re.IGNORECASE)
    for address in addresses:
        if not urlsplit(address).scheme:  # a folder
            for file in Path(address).glob("*.whl"):
                if wanted.fullmatch(file.name):
                    yield file.name, sha256(file)
            continue
        page = f"{address}/{name}/"
        if page.startswith("file:") and not Path(urlsplit(page).path).is_dir():
            continue
        page += "index.html" if page.startswith("file:") else ""
        with urllib.request.urlopen(page, timeout=60) as answer:
            text = answer.read().decode()
        for link in re.findall(r'href="([^"]+)"', text):
            place, _, digest = urljoin(page, html.unescape(link)).partition("#sha256=")
            if digest and wanted.fullmatch(unquote(place.rpartition("/")[2])):
                yield unquote(place.rpartition("/")[2]), digest


def sha256(file: Path) -> str:
    """Return a file's SHA-256."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def lock(packages: dict[str, str], addresses: list[str]) -> str:
    """Return the lines of a lock file."""
    with ThreadPoolExecutor(8) as pool:
        files = pool.map(lambda name: list(files_of(name, packages[name], addresses)), packages)
        found = {name: sorted({digest for _, digest in its}) for name, its in zip(packages, files, strict=True)}
    lines = [HEAD]
    for name, version in sorted(packages.items()):
        if not found[name]:
            raise SystemExit(f"{name} {version}: no index says the SHA-256 of its files")
        marker = f" ; {MARKERS[name]}" if name in MARKERS else ""
        hashes = [f"    --hash=sha256:{digest}" for digest in found[name]]
        lines.append(" \\\n".join([f"{name}=={version}{marker}", *hashes]) + "\n")
    return "".join(lines)


def main() -> None:
    """Write the lock files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extras", default=EXTRAS)
    options = parser.parse_args()
    versions, addresses = pinned(), indexes()
    packages = resolved(f".[{options.extras}]")
    del packages["discoseg"]
    packages |= {name: versions[name] for name in (*BUILD, *MARKERS)}
    torch = {"torch": packages.pop("torch")}
    (ROOT / "requirements.lock").write_text(lock(packages, addresses))
    (ROOT / "torch.lock").write_text(lock(torch, addresses))


if __name__ == "__main__":
    main()
