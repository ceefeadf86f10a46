"""What `make audit` reads from an index's pages and a list of advisories."""

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from audit import find_advisories, read_releases

PAGE = """<!DOCTYPE html><html><body>
<a href="https://files/a/demo-1.2.0-py3-none-any.whl#sha256=aa" data-yanked="broken &amp; gone">demo-1.2.0</a>
<a href="https://files/b/demo-1.2.0.tar.gz#sha256=bb" data-requires-python="&gt;=3.8" data-yanked="">demo-1.2.0</a>
<a href="https://files/c/demo-1.10.0.tar.gz#sha256=cc" data-yanked="">demo-1.10.0.tar.gz</a>
<a href="https://files/d/demo-1.10.0%2Bcpu-py3-none-any.whl#sha256=dd">demo</a>
<a href="https://files/d/demo-1.10.0-py3-none-any.whl#sha256=dd">demo</a>
<a href="https://files/e/demo-1.9.exe">an installer of old</a>
</body></html>"""


def test_releases_are_withdrawn_with_all_their_files() -> None:
    releases = [(str(release.version), release.yanked) for release in read_releases(PAGE)]
    assert releases == [("1.2.0", True), ("1.10.0", False), ("1.10.0+cpu", False)]


@pytest.mark.parametrize(
    ("version", "found"), [("1.1", ["CVE-1"]), ("1.2", []), ("2.5", ["pyup-2"]), ("1.0rc1", ["CVE-1"])]
)
def test_advisories_hold_for_their_ranges(version: str, found: list[str]) -> None:
    first: dict[str, Any] = {"id": "pyup-1", "cve": "CVE-1", "specs": ["<1.2"]}
    second: dict[str, Any] = {"id": "pyup-2", "cve": None, "specs": [">2,<2.3", ">=2.5,<2.6"]}
    listed = {"demo": [first, second]}
    assert find_advisories("demo", version, listed) == found
    assert find_advisories("other", version, listed) == []
