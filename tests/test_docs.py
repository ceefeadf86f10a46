"""Links in the documentation lead somewhere, to files and headings."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def _without_code(text: str) -> str:
    return re.sub(r"(?m)^    .*$", "", re.sub(r"(?s)```.*?```", "", text))


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them: lower case, letters, digits, - and _ alone."""
    headings = re.findall(r"(?m)^#+ (.*)$", _without_code(page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_anchors_are_those_of_github(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# The paper's `table`: ±20 and ±40 %, λ = 1\n\n    # no heading\n", encoding="utf-8")
    assert _anchors(page) == {"the-papers-table-20-and-40--λ--1"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", _without_code(page.read_text(encoding="utf-8")))
    for link in links:
        if re.match(r"[a-z]+:", link):  # elsewhere
            continue
        file, _, anchor = link.partition("#")
        target = page if not file else (page.parent / file).resolve()
        assert target.exists(), link
        assert not anchor or target.suffix != ".md" or anchor in _anchors(target), link
