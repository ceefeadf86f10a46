"""What the seeds of a dataset cover, for the terminal."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from discoseg.weak.seeds import SeededCase

if TYPE_CHECKING:
    from rich.console import Console


def print_seeds(seeded: Sequence[SeededCase], out: Path, *, console: "Console | None" = None) -> None:
    """Print mean seed statistics by structure and atlas group, and for all cases together."""
    from rich.table import Table

    from discoseg.terminal.console import Console

    structures = list(seeded[0].statistics)
    several = len(structures) > 1
    first = ["structure"] if several else []
    table = Table(*first, "group", "cases", title=f"{len(seeded)} weak label maps in {out}", title_justify="left")
    columns = (
        "foreground seeds:\n% of the structure",
        "\n% of the volume",
        "background seeds:\n% of the volume",
        "wrong seeds:\nvoxels",
    )
    for column in columns:
        table.add_column(column, justify="right")
    groups = sorted({item.case.group for item in seeded})
    for structure in structures:
        for group in [*groups, None] if len(groups) > 1 else [None]:
            row = _row(seeded, structure, group)
            table.add_row(*([structure] if several else []), *row)
    (console or Console()).print(table)


def describe_unseeded(seeded: Sequence[SeededCase]) -> list[str]:
    """Say which of several structures got no seed in any case, and what to do about it."""
    structures = list(seeded[0].statistics)
    return [
        f"no seed of {structure}: the masks of its atlas have no voxel in common; annotate some of it by scribbles, or "
        "train without it"
        for structure in (structures if len(structures) > 1 else ())
        if not any(item.statistics[structure].foreground_vox for item in seeded)
    ]


def _row(seeded: Sequence[SeededCase], structure: str, group: str | None) -> list[str]:
    chosen = [item.statistics[structure] for item in seeded if group in (None, item.case.group)]
    covered = [s.foreground_percent for s in chosen if s.foreground_percent is not None]
    wrong = [
        s.wrong_foreground_vox + (s.wrong_background_vox or 0) for s in chosen if s.wrong_foreground_vox is not None
    ]
    return [
        "all" if group is None else group,
        str(len(chosen)),
        f"{fmean(covered):.2f}" if covered else "-",
        f"{fmean(s.foreground_percent_of_volume for s in chosen):.3f}",
        f"{fmean(s.background_percent_of_volume for s in chosen):.1f}",
        str(sum(wrong)) if wrong else "-",
    ]
