"""The report's pictures: proposals and network output epoch by epoch, and the contours of all runs by case."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from discoseg.report.figures import COLOURS
from discoseg.report.gallery import Gallery, labels_of, slice_dice
from discoseg.report.runs import Contour, Run, Slice, number
from discoseg.thinning import pick_cases

_CARDS = 48  # cases of each split


@dataclass(frozen=True)
class Tile:
    """One picture with its name, and a Dice where it has one; ``colour`` is that of the run it belongs to."""

    svg: Markup
    name: str
    dice: float | None = None
    colour: int | None = None


@dataclass(frozen=True)
class Series:
    """One case of one run, epoch by epoch."""

    case: str
    run: str
    colour: int
    steps: dict[int, list[Tile]]


@dataclass(frozen=True)
class Cards:
    """Cases with a tile for each run that shows them, the best first; ``note`` says what is left out."""

    title: str
    cards: list[tuple[str, list[Tile]]]
    note: str


def show_evolution(runs: Sequence[Run], gallery: Gallery) -> list[Series]:
    """For every case of the snapshots and every run, epoch by epoch: truth, proposals, network output."""
    found = {(case, i): run for i, run in enumerate(runs) for shown in run.snapshots.values() for case in shown}
    order = {case: place for place, case in enumerate(dict.fromkeys(case for case, _ in found))}
    series = []
    for (case, colour), run in sorted(found.items(), key=lambda item: (order[item[0][0]], item[0][1])):
        steps = {epoch: _step(cases[case], gallery) for epoch, cases in run.snapshots.items() if case in cases}
        series.append(Series(case, run.name, colour, steps))
    return series


def _step(shown: Slice, gallery: Gallery) -> list[Tile]:
    tiles = [Tile(gallery.tile(shown, truth=True, seeds=True), "truth, seeds" if "truth" in shown else "seeds")]
    for kind, name in (("crf", "CRF proposal"), ("size", "size proposal")):
        if kind in shown:  # a warm-up has none yet
            tiles.append(Tile(gallery.tile(shown, truth=True, mask=kind), name, slice_dice(shown, kind)))
    output = gallery.tile(shown, truth=True, mask="probability", tint=True, style="outline")
    return [*tiles, Tile(output, "network", slice_dice(shown, "probability"))]


def show_contours(runs: Sequence[Run], gallery: Gallery) -> list[Cards]:
    """The network's contours after the last epoch, validation and training apart, by Dice in the whole volume.

    A run that is not finished has those of its last snapshot, by Dice in the slice.
    """
    contours = [run.contours or _last_snapshot(run) for run in runs]
    known = [_dice_by_case(run) for run in runs]
    found = []
    for split in ("validation", "training"):
        cards: list[tuple[float, str, list[Tile]]] = []
        for case in dict.fromkeys(c for own in contours for c, contour in own.items() if contour.split == split):
            tiles = []
            for index, (run, own, dice_of) in enumerate(zip(runs, contours, known, strict=True)):
                if case in own:
                    style = f"outline run{index % len(COLOURS)}" if len(runs) > 1 else "outline"
                    shown = own[case].shown
                    svg = gallery.tile(shown, truth=True, mask="mask", style=style)
                    tiles.append(Tile(svg, run.name, dice_of.get(case, slice_dice(shown, "mask")), index))
            scores = [tile.dice for tile in tiles if tile.dice is not None]
            cards.append((-float(np.mean(scores)) if scores else 0.0, case, tiles))
        if cards:
            cards.sort(key=lambda card: card[:2])
            picked = [cards[index][1:] for index in pick_cases(len(cards), _CARDS)]
            volumes = max(sum(row["split"] == split for row in run.cases) for run in runs)
            some = (
                f"{len(picked)} of {volumes}: the best, the worst, and some between." if volumes > len(picked) else ""
            )
            found.append(Cards(f"{split.capitalize()} volumes", picked, some))
    return found


def _last_snapshot(run: Run) -> dict[str, Contour]:
    """What the last snapshot shows of training volumes, as contours."""
    last = list(run.snapshots.values())[-1] if run.snapshots else {}
    return {
        case: Contour("training", {**shown, "mask": labels_of(shown, "probability")}) for case, shown in last.items()
    }


def _dice_by_case(run: Run) -> dict[str, float]:
    """The Dice in the whole volume, over structures on average, of the cases that have one."""
    found = {row["case"]: number(run.root / "cases.csv", "dice", row.get("dice")) for row in run.cases}
    return {case: value for case, value in found.items() if not np.isnan(value)}
