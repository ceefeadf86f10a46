"""Links in the documentation lead somewhere, to files and headings; tables of results are those of the epochs."""

import re
import subprocess
import sys
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


def _rows(text: str) -> list[list[str]]:
    """Return the cells of all rows of tables, without stars and daggers, the first two of them in one."""
    rows = [line.strip().strip("|").split("|") for line in text.splitlines() if line.strip().startswith("|")]
    plain = [[re.sub(r"[*\\†‡]", "", cell).strip() for cell in row] for row in rows]
    return [[" ".join(row[:2]).replace(",", "").strip(), *row[2:]] if len(row) > 2 else row for row in plain]


def _tabulate(*arguments: str) -> dict[str, set[str]]:
    """Return what docs/tabulate.py writes: cells by method and ε, or μ."""
    results = ROOT / "docs" / "results"
    files = [str(results / argument) if argument.endswith(".csv") else argument for argument in arguments]
    command = [sys.executable, str(ROOT / "docs" / "tabulate.py"), *files]
    cells: dict[str, set[str]] = {}
    for label, *found in _rows(subprocess.run(command, capture_output=True, text=True, check=True).stdout):
        cells.setdefault(label, set()).update(found)
    return cells


@pytest.mark.parametrize(
    ("title", "commands"),
    [
        (
            "The paper's first table",
            [
                ["table1", "table1-ventricles.csv", "table1-prostate.csv", "--models", "table1-models.csv", *until]
                for until in (["--until", "50", "50", "60"], ["--until", "75", "75", "100"])
            ],
        ),
        (
            "The paper's second table",
            [
                [
                    *("table2", "table1-ventricles.csv", "table1-prostate.csv", "table2-ventricles.csv"),
                    *("table2-prostate.csv", "--until", "50", "50", "60", "--instead", "table1-narrow.csv"),
                ]
            ],
        ),
    ],
    ids=["table1", "table2"],
)
def test_tables_of_the_results_are_those_that_the_epochs_give(title: str, commands: list[list[str]]) -> None:
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    section = re.split(r"\n##+ ", text.partition(f"## {title}")[2])[0]
    written: dict[str, set[str]] = {}
    for command in commands:
        for label, cells in _tabulate(*command).items():
            written.setdefault(label, set()).update(cells)
    shown = [row for row in _rows(section) if row[0] in written]
    assert len(shown) >= 12
    for label, *row in shown:
        parts = {part for found in written[label] for part in (found, *found.split("; "))}
        parts |= {part.partition(" ±")[0] for part in parts}  # a mean may stand without its standard deviation
        for cell in filter(None, row):  # and beside the model of longer trainings
            assert cell in parts or set(cell.split("; ")) <= parts, (label, cell)
