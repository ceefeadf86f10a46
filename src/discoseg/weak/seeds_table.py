"""What the seeds of a dataset cover, for the terminal."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from discoseg.weak.seeds import SeededCase


def print_seeds(seeded: Sequence[SeededCase], out: Path) -> None:
    """Print mean seed statistics by atlas group, and for all cases together."""
    from rich.console import Console
    from rich.table import Table

    table = Table("group", "cases", title=f"{len(seeded)} weak label maps in {out}", title_justify="left")
    columns = (
        "foreground seeds:\n% of the structure",
        "\n% of the volume",
        "background seeds:\n% of the volume",
        "wrong seeds:\nvoxels",
    )
    for column in columns:
        table.add_column(column, justify="right")
    groups = sorted({item.case.group for item in seeded})
    for group in [*groups, None] if len(groups) > 1 else [None]:
        chosen = [item.statistics for item in seeded if group in (None, item.case.group)]
        covered = [s.foreground_percent for s in chosen if s.foreground_percent is not None]
        wrong = [
            s.wrong_foreground_vox + (s.wrong_background_vox or 0) for s in chosen if s.wrong_foreground_vox is not None
        ]
        table.add_row(
            "all" if group is None else group,
            str(len(chosen)),
            f"{fmean(covered):.2f}" if covered else "-",
            f"{fmean(s.foreground_percent_of_volume for s in chosen):.3f}",
            f"{fmean(s.background_percent_of_volume for s in chosen):.1f}",
            str(sum(wrong)) if wrong else "-",
        )
    Console().print(table)
