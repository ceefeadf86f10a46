"""One self-contained HTML page about one or several runs: ``discoseg report RUN… --out FILE.html``."""

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

import jinja2

from discoseg.data.files import write_atomically
from discoseg.errors import UserError
from discoseg.report.charts import list_phases, plot_losses, plot_progress, plot_proposals, plot_times
from discoseg.report.figures import COLOURS
from discoseg.report.pictures import Gallery, compare_runs, show_evolution
from discoseg.report.runs import Run, read_runs
from discoseg.report.tables import list_cases, list_evaluations, summarise


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


def render(runs: Sequence[Run], evaluations: Mapping[str, Path]) -> str:
    """The page as text."""
    gallery = Gallery()
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    source = files("discoseg.report").joinpath("page.html").read_text(encoding="utf-8")
    return environment.from_string(source).render(
        runs=runs,
        colours=COLOURS,
        run_colours={run.name: index % len(COLOURS) for index, run in enumerate(runs)},
        summary=summarise(runs),
        cases=list_cases(runs),
        evaluations=list_evaluations(evaluations),
        progress=plot_progress(runs),
        proposals=plot_proposals(runs),
        losses=plot_losses(runs),
        phases=list_phases(runs),
        times=plot_times(runs),
        comparison=compare_runs(runs, gallery),
        evolutions={run.name: show_evolution(run, gallery) for run in runs if run.snapshots},
        facts={run.name: _facts(run) for run in runs},
        images=gallery.defs(),
    )


def _facts(run: Run) -> str:
    """run.json without its lists of cases."""
    return json.dumps({k: v for k, v in run.facts.items() if k not in ("training", "validation")}, indent=1)
