"""The paper's experiments from the datasets to its tables and figures.

    discoseg reproduce table1 --data DATA --out OUT --jobs 2

    OUT/seeds/     weak label maps of each task              OUT/runs/       run folders
    OUT/results/   what is kept of each finished training    OUT/table1.md, table1.csv, curves.png, …

DATA holds the datasets as folders ``acdc`` and ``promise12``, and optionally ``splits.json``. Trainings that have a
result are not made again, those begun go on. Results of several machines merge by copying their files together.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from discoseg.data.files import write_atomically
from discoseg.engines import Engine
from discoseg.engines.local import LocalEngine
from discoseg.errors import UserError
from discoseg.experiments import tables
from discoseg.experiments.patients import choose_patients
from discoseg.experiments.pictures import Shown, compare_methods
from discoseg.experiments.plan import Cell, Length, What, plan
from discoseg.experiments.plots import draw_comparison, draw_evolution, plot_curves, plot_sizes
from discoseg.experiments.results import (
    Result,
    differs_in_length,
    is_beginning,
    keep_result,
    read_results,
    require_same_cases,
    require_same_settings,
)
from discoseg.experiments.tasks import ALL_TASKS, Task
from discoseg.experiments.variants import is_variant
from discoseg.finished import is_finished
from discoseg.report.runs import read_runs
from discoseg.run import RunFolder
from discoseg.sweep import RunProgress, fit_many


@dataclass
class Reproduction:
    """What came of it: files written, what had to be left out and why, and the trainings they are about."""

    files: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)


def reproduce(
    what: What,
    data: Path,
    out: Path,
    *,
    only: str | Sequence[str] = "*",
    variants: Sequence[str] = (),
    seeds: int = 1,
    jobs: int | None = None,
    epochs: int | None = None,
    until: int | None = None,
    device: str = "auto",
    engine: Engine | None = None,
    deterministic: bool = False,
    tasks: Sequence[Task] = ALL_TASKS,
    progress: RunProgress = lambda run, done, message: None,
    finished: Callable[[Result], None] = lambda result: None,
) -> Reproduction:
    """Make the trainings of a table or figure that are missing, ``jobs`` at a time, and write it.

    ``only`` is a pattern of the names of trainings to make, or several, ``variants`` are those of ablations or a
    search; all results that are there are shown, also those that stopped sooner or later in the same schedule.
    ``seeds`` is the number of random seeds, ``epochs`` another length for all trainings (:class:`Length` says what is
    scaled along), ``until`` the epoch after which they stop in their schedules. ``engine``, by default this machine's
    ``device``, has its own number of ``jobs``. ``finished`` is called with each new result. A training that fails
    stops no other; in the end all failures are raised together.
    """
    for name, value in (("seeds", seeds), ("jobs", jobs)):
        if value is not None and value < 1:
            raise UserError(f"--{name} {value} must be at least 1")
    engine = LocalEngine(device, jobs) if engine is None else engine
    if deterministic:
        tasks = [replace(task, config=replace(task.config, deterministic=True)) for task in tasks]
    planned = plan(what, seeds=seeds, variants=variants, tasks=tasks)
    wanted = _choose(planned, [only] if isinstance(only, str) else only, what)
    made, length = Reproduction(), Length(epochs, until)
    results = read_results(out / "results")
    most = max((result.cell.seed + 1 for result in results.values()), default=0)
    varied = _varied(what, results)
    known = [cell.variant for cell in (*planned, *varied) if is_variant(cell.variant)]
    cells = plan(what, seeds=max(seeds, most), variants=known, tasks=tasks)
    for cell in varied:
        if cell not in cells:
            made.notes.append(f"{cell.name}: not shown, because its settings have no name or are the task's own by now")
    for name in _find_begun(cells, wanted, results, out, tasks, length, made):
        del results[name]
    missing = _leave_out([cell for cell in wanted if cell.name not in results], data, tasks, made)
    _require_possible(missing, tasks, length)
    failures = _make(missing, results, data, out, length, engine, tasks, progress, finished)
    made.results = [results[cell.name] for cell in cells if cell.name in results]
    if made.results:
        require_same_cases(made.results)
        _write(what, cells, results, data, out, tasks, made)
    else:
        failures += made.notes or [f"no results in {out / 'results'}"]
    if failures:
        raise UserError("; ".join(failures))
    return made


def _choose(planned: Sequence[Cell], patterns: Sequence[str], what: What) -> list[Cell]:
    """Return the trainings whose names fit one of the patterns; each pattern must fit some."""
    for pattern in patterns:
        if not any(fnmatchcase(cell.name, pattern) for cell in planned):
            names = ", ".join(cell.name for cell in planned[:3])
            raise UserError(f"--only {pattern}: no training of {what} has such a name; they are called {names}, …")
    return [cell for cell in planned if any(fnmatchcase(cell.name, pattern) for pattern in patterns)]


def _require_possible(cells: Sequence[Cell], tasks: Sequence[Task], length: Length) -> None:
    """Raise an error if trainings cannot have the length that is asked for, before any of them begins."""
    refused: list[tuple[str, UserError]] = []
    for cell in cells:
        try:
            cell.config(tasks, length)
        except UserError as error:
            refused.append((cell.name, error))
    if refused:
        (name, reason), *others = refused
        more = f" (and {len(others)} more)" if others else ""
        raise UserError(f"{name}{more}: {reason}; or leave out what cannot have this length (--only)")


def _find_begun(
    cells: Sequence[Cell],
    wanted: Sequence[Cell],
    results: Mapping[str, Result],
    out: Path,
    tasks: Sequence[Task],
    length: Length,
    made: Reproduction,
) -> list[str]:
    """Return the names of wanted trainings whose results are of fewer epochs, and refuse results of other settings.

    Those that stopped later in the same schedule, or were not asked for, stay, whatever their length; notes tell of it.
    """
    begun, others = list[str](), Counter[int]()
    for cell in cells:
        if cell.name not in results:
            continue
        result, asked = results[cell.name], cell in wanted
        try:
            config = cell.config(tasks, length)
        except UserError:  # what is there need not be able to have this length
            config, asked = cell.config(tasks, Length(length.epochs)), False
        epochs = len(result.history["val_dice"])
        if asked and is_beginning(result, config):
            begun.append(cell.name)
            made.notes.append(f"{cell.name}: its result is of fewer epochs, so it counts as begun")
        elif differs_in_length(result, config) and (not asked or epochs > config.epochs):
            others[epochs] += 1
        else:
            require_same_settings(result, config, out / "results" / f"{cell.name}.json")
    for epochs, count in sorted(others.items()):
        made.notes.append(f"results of another length than asked for are shown, too: {count} of {epochs} epochs")
    return begun


def _varied(what: What, results: Mapping[str, Result]) -> list[Cell]:
    """Return the trainings with a variant that have a result and belong to these ablations or this search."""
    if what not in ("ablations", "search"):
        return []
    cells = [result.cell for result in results.values()]
    return [cell for cell in cells if cell.variant and cell.tuning == (what == "search")]


def _make(
    missing: Sequence[Cell],
    results: dict[str, Result],
    data: Path,
    out: Path,
    length: Length,
    engine: Engine,
    tasks: Sequence[Task],
    progress: RunProgress,
    finished: Callable[[Result], None],
) -> list[str]:
    """Make the missing trainings, add their results as they come, and return what went wrong."""
    begun: dict[str, Cell] = {}

    def collect(cells: Iterable[Cell]) -> None:
        for cell in cells:
            run = out / "runs" / cell.name
            if cell.name not in results and RunFolder(run).final.is_file():  # asked at every report: a quick test first
                result = keep_result(cell, cell.config(tasks, length), run, out / "results")
                if result is not None:
                    results[cell.name] = result
                    finished(result)

    def report(run: Path, done: float, message: str) -> None:
        collect([cell for name, cell in begun.items() if name != run.name])
        begun.update({cell.name: cell for cell in missing if cell.name == run.name})
        progress(run, done, message)

    failures: list[str] = []
    try:
        for task, group in _groups(missing, tasks):
            try:
                _train(task, group, data, out, length=length, engine=engine, tasks=tasks, progress=report)
            except UserError as error:
                failures.append(str(error))
    finally:
        collect(missing)  # an interruption costs no finished training
    return failures


def _leave_out(cells: Sequence[Cell], data: Path, tasks: Sequence[Task], made: Reproduction) -> list[Cell]:
    """Return the trainings whose datasets are there, and note how many are left out."""
    needs = {task.name: [data / name for name in (task.dataset, task.seeds) if name is not None] for task in tasks}
    for folder in dict.fromkeys(folder for cell in cells for folder in needs[cell.task]):
        if not folder.is_dir():
            count = sum(folder in needs[cell.task] for cell in cells)
            made.notes.append(f"{folder} does not exist, so {count} trainings on it are left out")
    return [cell for cell in cells if all(folder.is_dir() for folder in needs[cell.task])]


def _groups(cells: Sequence[Cell], tasks: Sequence[Task]) -> Iterable[tuple[Task, list[Cell]]]:
    """Split the trainings, in their order, into groups that share a dataset, its seeds and its split."""
    by_name = {task.name: task for task in tasks}
    groups: list[tuple[Task, list[Cell]]] = []
    for cell in cells:
        task = by_name[cell.task]
        before = groups[-1][1][0] if groups else None
        if before is None or (before.task, before.tuning, before.fold) != (cell.task, cell.tuning, cell.fold):
            groups.append((task, []))
        groups[-1][1].append(cell)
    return groups


def _train(
    task: Task,
    cells: Sequence[Cell],
    data: Path,
    out: Path,
    *,
    length: Length,
    engine: Engine,
    tasks: Sequence[Task],
    progress: RunProgress,
) -> None:
    dataset = data / task.dataset
    split, seeds = choose_patients(task, cells[0], data, out)
    runs = {out / "runs" / cell.name: cell.config(tasks, length) for cell in cells}
    fit_many(dataset, runs, seeds=seeds, split=split, engine=engine, resume=True, progress=progress)


def _write(
    what: What,
    cells: Sequence[Cell],
    results: dict[str, Result],
    data: Path,
    out: Path,
    tasks: Sequence[Task],
    made: Reproduction,
) -> None:
    """Write a table as Markdown and CSV, or a figure, from the results and run folders that are there."""
    shown = [results[cell.name] for cell in cells if cell.name in results]
    match what:
        case "table1" | "table2" | "ours" | "scribbles" | "folds" | "ablations" | "search":
            by: tables.By = "variant" if what in ("ablations", "search") else "mu" if what == "table2" else "eps"
            rows = tables.collect_rows(_whole_folds(cells, results, made), results, tasks, by=by)
            parts = [tables.write_markdown(rows, by=by)]
            parts += [tables.write_bounds(rows)] if by == "eps" else []
            parts += [tables.write_structures(rows)] if what in ("scribbles", "folds") else []
            _write_text(out / f"{what}.md", "\n".join([*parts, tables.write_runs(rows)]), made)
            _write_text(out / f"{what}.csv", tables.write_csv(rows), made)
        case "curves":
            plot_curves(shown, tasks, out / "curves.png")
            made.files.append(out / "curves.png")
        case "sizes":
            plot_sizes(shown, tasks, out / "sizes.png")
            made.files.append(out / "sizes.png")
        case "evolution":
            for cell in _first_seeds(_with_run(cells, out, made)):
                (run,) = read_runs([out / "runs" / cell.name])
                draw_evolution(run, out / f"evolution-{cell.task}.png")
                made.files.append(out / f"evolution-{cell.task}.png")
        case "comparison":
            first = _first_seeds(_with_run(cells, out, made))
            rows_of_tasks: dict[str, Shown] = {}
            for task in tasks:
                runs = {cell.method: out / "runs" / cell.name for cell in first if cell.task == task.name}
                if runs:
                    rows_of_tasks |= compare_methods(task, data / task.dataset, runs)
            if rows_of_tasks:
                draw_comparison(rows_of_tasks, out / "comparison.png")
                made.files.append(out / "comparison.png")


def _whole_folds(cells: Sequence[Cell], results: Mapping[str, Result], made: Reproduction) -> list[Cell]:
    """Leave out folds that some method has no result of yet: means over different patients do not compare."""
    begun = {(cell.task, cell.method) for cell in cells if cell.name in results}
    missing = {
        (cell.task, cell.fold)
        for cell in cells
        if cell.fold is not None and (cell.task, cell.method) in begun and cell.name not in results
    }
    whole = [cell for cell in cells if (cell.task, cell.fold) not in missing]
    if not any(cell.name in results for cell in whole):
        return list(cells)
    if missing:
        folds = ", ".join(str(fold) for _, fold in sorted(missing, key=str))
        made.notes.append(f"left out of the table, because not every method has a result of them: folds {folds}")
    return whole


def _with_run(cells: Sequence[Cell], out: Path, made: Reproduction) -> list[Cell]:
    """Return the trainings whose run folders are here: pictures need more than a result."""
    there = [cell for cell in cells if is_finished(out / "runs" / cell.name)]
    for cell in cells:
        if cell not in there and (out / "results" / f"{cell.name}.json").is_file():
            made.notes.append(
                f"{cell.name}: its run folder is not in {out / 'runs'}, so it is not shown; "
                f"remove {out / 'results' / cell.name}.json to train it here"
            )
    return there


def _first_seeds(cells: Sequence[Cell]) -> list[Cell]:
    """Return of each task and method the training with the lowest random seed."""
    first: dict[tuple[str, str], Cell] = {}
    for cell in sorted(cells, key=lambda cell: cell.seed):
        first.setdefault((cell.task, cell.method), cell)
    return [cell for cell in cells if cell in first.values()]


def _write_text(path: Path, text: str, made: Reproduction) -> None:
    with write_atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    made.files.append(path)
