"""Tables in the documentation of results are those of the epochs that were recorded."""

import csv
import re
import subprocess
import sys
from pathlib import Path
from statistics import mean, stdev

import pytest

ROOT = Path(__file__).parents[1]

Rows = list[list[str]]
UNTIL = {"short": ["50", "50", "60"], "long": ["110", "110", "100"]}  # epochs of LV, RV and prostate
FIRST, SECOND = "## The paper's first table", "## The paper's second table"


def _tables(text: str) -> list[Rows]:
    """Return the cells of each table in a text, without its titles."""
    blocks = re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE)
    return [
        [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in block.splitlines()[2:]]
        for block in blocks
    ]


def _by_name(rows: Rows) -> dict[str, list[str]]:
    """Return the cells of rows by what they are of: a method and its setting, in one cell or two."""
    named = [(row[:1], row[1:]) if "," in row[0] else (row[:2], row[2:]) for row in rows]
    found = {", ".join(filter(None, name)).replace("*", ""): cells for name, cells in named}
    assert len(found) == len(rows)
    return found


def _section(title: str) -> str:
    """Return what stands below a heading of the results, up to the next one."""
    text = "\n" + (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    return re.split(r"\n##+ ", text.partition(f"\n{title}")[2])[0]


def _tabulate(what: str, *tables: str, until: str = "short") -> list[dict[str, list[str]]]:
    """Return the three tables that docs/tabulate.py writes: best epochs beside the paper's, last ones, sizes."""
    results = ROOT / "docs" / "results"
    files = [str(results / word) if word.endswith(".csv") else word for word in tables]
    command = [sys.executable, str(ROOT / "docs" / "tabulate.py"), what, *files, "--until", *UNTIL[until]]
    written = subprocess.run(command, capture_output=True, text=True, check=True, encoding="utf-8").stdout
    return [_by_name(rows) for rows in _tables(written)]


def _is_from(cell: str, short: str, long: str) -> bool:
    """Say whether a cell is that of the shorter trainings, a model perhaps the longer ones'; with a ‡ all is theirs."""
    if cell.endswith("‡"):
        return cell[:-1] == long
    scores, _, model = cell.partition("; ")
    return cell == short or (scores, model) == (short.partition("; ")[0], long.partition("; ")[2])


def _goes_on(cell: str, short: str, long: str) -> bool:
    """Say whether a cell is that of the longer trainings; it may be empty where none are longer."""
    return cell.replace("†", "") == long or (cell == "" and long == short)


def test_the_first_table_is_that_of_its_epochs() -> None:
    arguments = ("table1", "table1-ventricles.csv", "table1-prostate.csv", "--models", "table1-models.csv")
    short, long = (_tabulate(*arguments, until=until) for until in UNTIL)
    shown = [_by_name(rows) for rows in _tables(_section(FIRST))[1:]]  # the first says what was trained when
    assert [len(table) for table in shown] == [14, 14, 9]
    assert [set(table) for table in shown[:2]] == [set(table) for table in short[:2]]
    for table, shorter, longer in zip(shown, short, long, strict=True):
        for name, cells in table.items():
            assert len(cells) == len(shorter[name]) + 1  # the prostate has longer trainings beside the others
            for found in zip(cells[:-1], shorter[name], longer[name], strict=True):
                assert _is_from(*found), (name, *found)
            assert _goes_on(cells[-1], shorter[name][-1], longer[name][-1]), (name, cells[-1])


def test_the_summary_has_the_first_table() -> None:
    summary, best = _tables(_section("# What we measured"))[0], _by_name(_tables(_section(FIRST))[1])
    names = ["CRF + size, 0 %", "CRF + size, 10 %", "CRF + size, 20 %", "CRF + size, 40 %", "full supervision"]
    for (_, *shown), name in zip(summary[:5], names, strict=True):
        left, ours_left, right, ours_right, prostate, ours_prostate, longer = best[name]
        ours = [cell.partition(" ")[0] for cell in (ours_left, ours_right, longer or ours_prostate)]
        for cell, score, paper in zip(shown, ours, (left, right, prostate), strict=True):
            assert cell.partition(";")[0] == f"{score} ({paper})", (name, cell)


def test_the_second_table_is_that_of_its_epochs() -> None:
    tables = [f"table{number}-{part}.csv" for number in (1, 2) for part in ("ventricles", "prostate")]
    made_best, made_last, made_sizes = _tabulate("table2", *tables, "--instead", "table1-before.csv")
    best, sizes = (_by_name(rows) for rows in _tables(_section(SECOND)))
    assert best.keys() == made_best.keys()
    for name, cells in best.items():
        plain = [cell.replace("\\*", "") for cell in cells]
        assert [cell for place, cell in enumerate(plain) if place % 3 < 2] == made_best[name], name
        assert plain[2::3] == [cell.partition(" ±")[0] for cell in made_last[name]], name
    assert len(sizes) == 6
    for name, cells in sizes.items():
        structure, method = name.split(", ")
        column = ["LV", "RV", "prostate"].index(structure)
        made = [made_sizes[f"{method}, {mu}"][column].partition("; ")[2] for mu in ("0.01", "0.1", "1", "10")]
        assert cells == made, name


def test_only_trainings_that_are_there_give_way_to_others() -> None:
    with pytest.raises(subprocess.CalledProcessError) as failed:
        _tabulate("table1", "table1-prostate.csv", "--instead", "search-widen.csv")
    assert "--instead: no training of the tables is called" in failed.value.stderr


MARGIN = "### A margin, and a learning rate that decays"
Histories = list[list[dict[str, str]]]


def _read(table: str) -> list[dict[str, str]]:
    with (ROOT / "docs" / "results" / table).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _histories(table: str, name: str) -> Histories:
    """Return the rows of the trainings of a table that are called so but for their seeds."""
    found: dict[str, list[dict[str, str]]] = {}
    for row in _read(table):
        if row["training"].rpartition("-seed")[0] == name:
            found.setdefault(row["training"], []).append(row)
    assert found
    return list(found.values())


def _mean(histories: Histories, column: str) -> float:
    return mean(mean(float(row[column]) for row in rows) for rows in histories)


def _of_epochs(histories: Histories, epochs: str, paper: float) -> list[str]:
    """Return Dice and its best so far, the share inside bounds, and sizes of some epochs, as the tables have them."""
    first, last = map(int, epochs.split("–"))
    part = [rows[first - 1 : last] for rows in histories]
    best = [max(float(row["val_dice"]) for row in rows[:last]) for rows in histories]
    spread = f" ± {stdev(best):.3f}" if len(best) > 1 else ""
    shown = f"{mean(best):.3f}"
    shown = f"**{shown}**" if float(shown) >= paper else shown
    inside, sizes = _mean(part, "inside_bounds"), [_mean(part, f"train_size_ratio{end}") for end in ("", "_std")]
    share = f"{100 * inside:.1f} %" if 0.89 < inside < 0.9 else f"{100 * inside:.0f} %"  # which is not yet 90
    return [f"{_mean(part, 'val_dice'):.3f} ({shown}{spread})", share, f"{sizes[0]:.2f} ± {sizes[1]:.2f}"]


def _of_models(table: str, name: str) -> list[str]:
    """Return the mean Dice of the models that trainings ended with, and the share inside bounds."""
    rows = [row for row in _read("table1-models-others.csv") if row["table"] == table]
    models = [[row] for row in rows if row["training"].rpartition("-seed")[0] == name]
    assert models
    return [f"{_mean(models, 'val_dice'):.3f}", f"{100 * _mean(models, 'train_inside_bounds'):.0f} %"]


def _filled(rows: Rows) -> Rows:
    """Return rows with their first cells, where these are empty, from above."""
    filled: Rows = []
    for first, *others in rows:
        filled.append([first or filled[-1][0], *others])
    return filled


def test_the_tables_of_margins_are_those_of_their_epochs() -> None:
    validated, aside = (_filled(rows) for rows in _tables(_section(MARGIN)))
    tasks = {"left ventricle": ("lv", 0.884), "right ventricle": ("rv", 0.719), "prostate": ("prostate", 0.795)}
    assert (len(validated), len(aside)) == (12, 6)
    for title, epochs, *cells in validated:
        task, paper = tasks[title.partition(",")[0]]
        name = f"{task}-crf+size-eps10-margin0.05"
        if epochs == "model":
            made = [*_of_models("table1-margin", name), ""]
        else:
            made = _of_epochs(_histories("table1-margin.csv", name), epochs, paper)
        shown = [cells[0], cells[1].replace("*", ""), cells[2]]
        assert shown == made, (title, epochs)
        assert ("**" in cells[1]) == (epochs in ("101–110", "model") and int(made[1].split()[0]) >= 90), (title, epochs)
    for title, epochs, *cells in aside:
        names = [f"search-{tasks[title][0]}-crf+size-eps10{variant}" for variant in ("", "-margin0.05")]
        if epochs == "model":
            made = [
                cell
                for pair in zip(*(_of_models("search-margin", name) for name in names), strict=True)
                for cell in pair
            ]
            made += ["", ""]
        else:
            columns = [_of_epochs(_histories("search-margin.csv", name), epochs, 1.0) for name in names]
            made = [cell for pair in zip(*columns, strict=True) for cell in pair]
        assert [cell.replace("*", "") for cell in cells] == made, (title, epochs)
