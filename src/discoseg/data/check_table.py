"""A check's findings for the terminal: what is there at a glance, then every problem on a line of its own."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING

from discoseg.data.check import Check, format_mm
from discoseg.data.inspection import Row
from discoseg.data.volume import format_shape

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def print_check(check: Check, *, per_case: bool = False, console: "Console | None" = None) -> None:
    """Print a summary of the dataset, its labels and seeds (`per_case`: of all cases), then the problems."""
    from discoseg.terminal.console import Console

    console = console or Console()
    console.print(_headline(check), highlight=False, markup=False, style="bold", soft_wrap=True)
    if check.rows:
        console.print(_overview(check))
        if any(row.label_vox for row in check.rows):
            console.print(_label_table(check))
        if per_case:
            console.print(_case_table(check))
    for style, title, lines in (("yellow", "note", check.warnings), ("red", "problem", check.problems)):
        for line in lines:
            console.print(f"{title}: {line}", style=style, highlight=False, markup=False, soft_wrap=True)
    count = len(check.problems)
    verdict = f"{count} problem{'s' * (count > 1)} found" if count else "no problem found"
    console.print(verdict, style="red" if count else "green", highlight=False)


def _headline(check: Check) -> str:
    dataset = check.dataset
    parts = [f"{dataset.root}: {dataset.layout}, {len(dataset.cases)} cases"]
    patients = {case.patient for case in dataset.cases}
    if len(patients) < len(dataset.cases):
        parts.append(f"{len(patients)} patients")
    parts += [f"{n} {group}" for group, n in Counter(c.group for c in dataset.cases).items() if group]
    held_out = sum(case.test for case in dataset.cases)
    return ", ".join([*parts, f"{held_out} held out for testing"] if held_out else parts)


def _overview(check: Check) -> "Table":
    from rich.table import Table

    rows = check.rows
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    channels = max(len(row.case.images) for row in rows)
    table.add_row("shape x×y×z", _by_axis([row.shape for row in rows]))
    table.add_row("spacing mm x×y×z", _by_axis([row.spacing_mm for row in rows]))
    table.add_row("orientation", _tally(row.orientation for row in rows))
    table.add_row("voxel type", _tally(row.dtype for row in rows))
    if channels > 1:
        table.add_row("channels", str(channels))
    lows, highs = zip(*(row.intensity for row in rows), strict=True)
    table.add_row("intensity by case", f"lowest {_span(lows)}, highest {_span(highs)}")
    seeded = [row for row in rows if row.weak_vox is not None]
    if seeded:
        several = len(check.structures) > 1
        for name, values in check.structures.items():
            table.add_row(f"seeds of {name}", _seed_summary(seeded, values, 0, in_ml=several))
        table.add_row("background seeds", _seed_summary(seeded, check.foreground, 1))
    for name in check.structures:
        bounds = [interval for (_, structure), interval in check.bounds_ml.items() if structure == name]
        if bounds:
            lows, highs = zip(*bounds, strict=True)
            text = f"at least {_span(lows)} ml, at most {_span(highs)} ml in {len(bounds)} cases"
            table.add_row(f"size bounds of {name}", text)
    return table


def _seed_summary(seeded: Sequence[Row], values: Collection[int], side: int, *, in_ml: bool = False) -> str:
    """Sum up the seeds of the label values (side 0), or of all others (side 1)."""
    counts = [seeds[side] for row in seeded if (seeds := row.seed_vox(values))]
    text = f"{_span(counts)} voxels a case"
    if in_ml:
        text += f", {_span([n * row.voxel_ml for n, row in zip(counts, seeded, strict=True)])} ml"
    percent = [shares[side] for row in seeded if (shares := row.seed_percent(values))]
    if percent:
        text += f", on average {fmean(percent):.1f} % of the {('structure', 'background')[side]}"
    without = counts.count(0)
    return text + (f"; none in {without} of {len(seeded)} cases" if without else "")


def _label_table(check: Check) -> "Table":
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("label")
    for title in ("value", "cases", "voxels: median", "range", "ml: median", "range"):
        table.add_column(title, justify="right", no_wrap=True)
    labelled = [row for row in check.rows if row.label_vox]
    names = {value: name for name, value in check.dataset.labels.items() if value}
    for value, name in {**names, check.dataset.ignore: "not annotated"}.items():
        having = [row for row in labelled if value in row.label_vox]
        if value == check.dataset.ignore and not having:
            continue
        voxels = [row.label_vox[value] for row in having]
        ml = [row.label_vox[value] * row.voxel_ml for row in having]
        table.add_row(name, str(value), f"{len(having)}/{len(labelled)}", *_spread(voxels), *_spread(ml))
    return table


def _case_table(check: Check) -> "Table":
    from rich.table import Table

    structures = {name: value for name, value in check.dataset.labels.items() if value}
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    for title in ("case", "shape", "mm", "type"):
        table.add_column(title, no_wrap=True)
    seeds = ["fg seeds"] if len(check.structures) == 1 else [f"{name} seeds" for name in check.structures]
    for title in ("intensity", *(f"{name} ml" for name in structures), *seeds, "bg seeds"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in check.rows:
        name = f"{row.case.name} {row.case.group}{' test' * row.case.test}".strip()
        ml = [f"{row.label_vox.get(v, 0) * row.voxel_ml:.4g}" if row.label_vox else "" for v in structures.values()]
        seeds = _seed_cells(row, check)
        span = f"{row.intensity[0]:g}–{row.intensity[1]:g}"
        table.add_row(name, format_shape(row.shape), format_mm(row.spacing_mm), row.dtype, span, *ml, *seeds)
    return table


def _seed_cells(row: Row, check: Check) -> list[str]:
    """Write the seeds of each structure, of several with their millilitres, and those of none of them."""
    if row.weak_vox is None:
        return [""] * (len(check.structures) + 1)
    own = [sum(row.weak_vox.get(value, 0) for value in values) for values in check.structures.values()]
    other = sum(row.weak_vox.values()) - sum(own)
    if len(own) == 1:
        return [str(own[0]), str(other)]
    return [*(f"{n} ({n * row.voxel_ml:.3g} ml)" for n in own), str(other)]


def _by_axis(triples: Sequence[Sequence[float]]) -> str:
    """Write the range along each axis of (z, y, x) triples, x first."""
    return " × ".join(_span(values) for values in reversed(list(zip(*triples, strict=True))))


def _span(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return _number(low) if low == high else f"{_number(low)}–{_number(high)}"


def _spread(values: Sequence[float]) -> tuple[str, str]:
    return (_number(median(values)), _span(values)) if values else ("–", "–")


def _number(value: float) -> str:
    """Write a number with four digits, or all of them before the decimal point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _tally(words: Iterable[str]) -> str:
    counts = Counter(words).most_common()
    return counts[0][0] if len(counts) == 1 else ", ".join(f"{word} ({n})" for word, n in counts)
