"""Which trainings make up the paper's tables and figures, the ablations, and the search for what the paper leaves open.

A training is a :class:`Cell`; its name says what it is, and names its run folder and its result file.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from discoseg.config import AdmmConfig, Config, CrfConfig, Method, RoundsConfig
from discoseg.errors import UserError
from discoseg.experiments import paper
from discoseg.experiments.tasks import ALL_TASKS, OURS, Task
from discoseg.experiments.variants import OF_A_CLICK, canonical, vary

What = Literal[
    "table1",
    "table2",
    "curves",
    "sizes",
    "evolution",
    "comparison",
    "ours",
    "scribbles",
    "folds",
    "ablations",
    "search",
]

_COMPARED: tuple[Method, ...] = ("crf+size", "size", "crf", "penalty")
_HEADLINE = {("full", None), ("crf", None), *((m, eps) for m in ("crf+size", "size", "penalty") for eps in (0.0, 0.1))}

FOLDS = 5  # of a cross-validation by patient


@dataclass(frozen=True)
class Length:
    """How long trainings are, where not as long as their task's.

    ``epochs`` is another schedule: the learning rate's decay, the warm-up, μ's ramp and the first round scale along.
    ``until`` is where a training stops in its schedule, so that its best epoch is one which the whole training has too.
    """

    epochs: int | None = None
    until: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("epochs", self.epochs), ("until", self.until)):
            if value is not None and value < 1:
                raise UserError(f"--{name} {value} must be at least 1")

    def of(self, config: Config) -> Config:
        """Return a configuration of this length."""
        if self.epochs is not None:
            every = max(1, round(config.optimiser.lr_every * self.epochs / config.epochs))
            share, most = self.epochs / config.epochs, self.epochs - 1
            rounds = max(1, round(config.rounds.first * share)) if config.rounds.first else 0
            most = min(most, rounds - 1) if rounds else most
            admm = config.admm
            warm_up = min(most, max(1, round(admm.warm_up * share))) if admm.warm_up else 0
            ramp = max(1, round(admm.ramp_epochs * share)) if admm.schedule == "ramp" else admm.ramp_epochs
            config = replace(
                config,
                epochs=self.epochs,
                optimiser=replace(config.optimiser, lr_every=every),
                admm=replace(admm, warm_up=warm_up, ramp_epochs=ramp),
                rounds=replace(config.rounds, first=rounds),
            )
        if self.until is None or self.until >= config.epochs:
            return config
        begun = replace(config, epochs=self.until)
        if begun.round_of(self.until - 1) != config.round_of(self.until - 1):
            first = config.rounds.first
            raise UserError(
                f"--until {self.until}: trainings with a second round can stop after {first} epochs at most, or after "
                f"{-(-3 * first // 2)} at least"
            )
        return begun


@dataclass(frozen=True)
class Cell:
    """One training: a task and method with its ε, μ (None: the task's), variant and random seed.

    ``tuning`` trainings validate on training patients set aside, and never see the validation cases. ``fold`` is the
    part of a cross-validation that validates, None where the dataset's split decides.
    """

    task: str
    method: Method
    eps: float | None = None
    mu: float | None = None
    variant: str = ""
    seed: int = 0
    tuning: bool = False
    fold: int | None = None

    @property
    def name(self) -> str:
        """The name of its run folder and result file.

        >>> Cell("lv", "crf+size", eps=0.1, mu=10.0, seed=2).name
        'lv-crf+size-eps10-mu10-seed2'
        """
        parts = ["search"] if self.tuning else []
        parts += [self.task, self.method]
        parts += [] if self.eps is None else [f"eps{100 * self.eps:g}"]
        parts += [] if self.mu is None else [f"mu{self.mu:g}"]
        parts += [self.variant] if self.variant else []
        parts += [] if self.fold is None else [f"fold{self.fold}"]
        return "-".join([*parts, f"seed{self.seed}"])

    def config(self, tasks: Sequence[Task] = ALL_TASKS, length: Length | None = None) -> Config:
        """Return the training's configuration, of another ``length`` than its task's if one is given."""
        task = next(task for task in tasks if task.name == self.task)
        config = replace(task.config, method=self.method, size_eps=self.eps, seed=self.seed)
        mu = task.mu.get(self.method) if self.mu is None else self.mu
        if mu is not None:
            config = replace(config, admm=replace(config.admm, mu_crf=mu, mu_size=mu))
        config = vary(config, self.variant)
        return config if length is None else length.of(config)


def plan(what: What, *, seeds: int = 1, variants: Sequence[str] = (), tasks: Sequence[Task] = ALL_TASKS) -> list[Cell]:
    """Return the trainings that ``what`` needs, with the random seeds 0 to ``seeds`` − 1, the most telling first.

    Ablations and the search have those ``variants``, or else each single one, where they change a task's settings.
    """
    if variants and what not in ("ablations", "search"):
        raise UserError(f"--variants: {what} has none, only ablations and search do")
    names = list(dict.fromkeys(canonical(variant) for variant in variants)) or list(OF_A_CLICK)
    cells = [cell for task in tasks for cell in _plan_task(what, task, names)]
    if what == "table1":
        cells.sort(key=lambda cell: (cell.method, cell.eps) not in _HEADLINE)  # a stable sort
    return [replace(cell, seed=seed) for seed in range(seeds) for cell in cells]


def _plan_task(what: What, task: Task, variants: Sequence[str]) -> list[Cell]:
    name = task.name
    own = "scribbles" if task.seeds is not None else "ours" if name in {known.name for known in OURS} else None
    about = {"ours": "ours", "scribbles": "scribbles", "folds": "scribbles"}.get(what)
    if what not in ("ablations", "search") and own != about:
        return []
    match what:
        case "table1":
            return [Cell(name, method, eps) for other, method, eps in paper.TABLE1 if other == name]
        case "table2":  # where μ is the task's own, the training is one of the first table's
            return [
                Cell(name, method, _eps(method, 0.0), mu=None if mu == task.mu.get(method) else mu)
                for other, method, mu in paper.TABLE2
                if other == name
            ]
        case "curves":
            return [Cell(name, method, _eps(method, 0.1)) for method in (*_COMPARED, "full") if name != "rv"]
        case "sizes" | "comparison":
            return [Cell(name, method, _eps(method, 0.1)) for method in _COMPARED]
        case "evolution":
            return [Cell(name, "crf+size", 0.0)]
        case "ours" | "scribbles":
            methods: tuple[Method, ...] = ("full", "partial", *_COMPARED)
            return [Cell(name, method, _eps(method, 0.1)) for method in methods]
        case "folds":
            compared: tuple[Method, ...] = ("crf+size", "full", "partial")
            return [Cell(name, m, _eps(m, 0.1), fold=fold) for fold in range(FOLDS) for m in compared]
        case "ablations" | "search":
            # One setting is to serve all of the first table, where sizes are known exactly, roughly, or not at all.
            plain = [Cell(name, "full"), *(Cell(name, "crf+size", eps) for eps in ((0.1,) if own else (0.1, 0.0, 0.4)))]
            plain += [] if own else [Cell(name, "crf")]
            varied = [replace(cell, variant=v) for cell in plain for v in variants if _is_possible(v, task)]
            own_settings = {cell: in_use(cell.config([task])) for cell in plain}
            changed = [c for c in varied if in_use(c.config([task])) != own_settings[replace(c, variant="")]]
            return [replace(cell, tuning=what == "search") for cell in (*plain, *changed)]


def in_use(config: Config) -> Config:
    """Return a configuration without settings that make no difference to its method."""
    admm = config.admm if config.priors else AdmmConfig()
    crf = config.crf if config.uses_crf else CrfConfig()
    if not config.uses_size:
        admm, crf = replace(admm, margin=0.0), replace(crf, calibrate=False)
    return replace(config, admm=admm, crf=crf, rounds=config.rounds if config.has_second_round else RoundsConfig())


def _is_possible(variant: str, task: Task) -> bool:
    """Say whether a task can have these settings; a warm-up, for one, must leave some of its epochs."""
    try:
        vary(task.config, variant)
    except UserError:
        return False
    return True


def _eps(method: Method, eps: float) -> float | None:
    return eps if Config(method=method).needs_bounds else None
