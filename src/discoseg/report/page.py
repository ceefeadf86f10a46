"""One self-contained HTML page about one or several runs: ``discoseg report RUN… --out FILE.html``."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

import jinja2
from markupsafe import Markup

from discoseg.data.files import write_atomically
from discoseg.errors import UserError
from discoseg.report.charts import list_phases, plot_inside, plot_losses, plot_progress, plot_proposals, plot_times
from discoseg.report.evaluations import read_evaluations
from discoseg.report.figures import COLOURS
from discoseg.report.gallery import Gallery
from discoseg.report.pictures import show_contours, show_evolution
from discoseg.report.runs import Run, read_runs
from discoseg.report.sizes import plot_bounds, plot_volumes
from discoseg.report.tables import list_cases, list_evaluations, summarise

_SOURCES = ("page.html", "page.css", "page.js")
_COLUMNS = 4  # of the evolution: seeds, both proposals, network


def write_report(runs: Sequence[Path | str], out: Path | str, *, evaluations: Mapping[str, Path] | None = None) -> None:
    """Write one HTML page about run folders, which refers to nothing outside itself, to the new file ``out``.

    ``evaluations`` adds held-out results: for each name, as a rule a run's, the .csv or .json file that
    ``discoseg evaluate`` wrote. The same folders give the same bytes.
    """
    folders, out = [Path(run) for run in runs], Path(out)
    if not folders:
        raise UserError("a report needs at least one run folder")
    if out.exists():
        raise UserError(f"{out}: already exists; choose another name for the report")
    page = render(read_runs(folders), evaluations or {})
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}") from error
    with write_atomically(out) as temporary:
        temporary.write_text(page, encoding="utf-8")


def render(runs: Sequence[Run], evaluations: Mapping[str, Path], *, refresh_s: int | None = None) -> str:
    """The page as text; with ``refresh_s`` a browser loads it again after so many seconds."""
    gallery = Gallery()
    evaluated = read_evaluations(evaluations, runs)
    evolution = show_evolution(runs, gallery)
    template, css, script = (files("discoseg.report").joinpath(name).read_text(encoding="utf-8") for name in _SOURCES)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(template).render(
        css=Markup(css),
        script=Markup(script),
        script_hash=f"sha256-{digest}",
        refresh_s=refresh_s,
        runs=runs,
        colours=COLOURS,
        run_colours={run.name: index % len(COLOURS) for index, run in enumerate(runs)},
        structure_sets=list(dict.fromkeys(tuple(run.structures) for run in runs if len(run.structures) > 1)),
        summary=summarise(runs, evaluated),
        cases=list_cases(runs),
        evaluations=list_evaluations(evaluated),
        progress=plot_progress(runs),
        volumes=plot_volumes(runs, evaluated),
        bounds=[*plot_inside(runs), *plot_bounds(runs)],
        proposals=plot_proposals(runs),
        losses=plot_losses(runs),
        phases=list_phases(runs),
        times=plot_times(runs),
        contours=show_contours(runs, gallery),
        evolution=evolution,
        epochs=sorted({epoch for series in evolution for epoch in series.steps}),
        columns=_COLUMNS,
        facts={run.name: _facts(run) for run in runs},
        images=gallery.defs(),
    )


def _facts(run: Run) -> str:
    """run.json without its lists of cases, and what the page shows apart."""
    return json.dumps({k: v for k, v in run.facts.items() if k not in ("training", "validation", "command")}, indent=1)
