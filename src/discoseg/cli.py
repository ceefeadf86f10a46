"""The command line: parse the arguments into a command, run it, and end a user's mistake in one line."""

import contextlib
import io
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Union, cast

import tyro
from tyro.conf import subcommand

from discoseg.commands import (
    Annotate,
    Check,
    Command,
    Demo,
    Evaluate,
    Export,
    Info,
    Next,
    Phantom,
    Predict,
    Report,
    Reproduce,
    Seeds,
    Sweep,
    Train,
)
from discoseg.config import Config
from discoseg.errors import UserError
from discoseg.interruption import Interrupted
from discoseg.launch import Launch, read_launch
from discoseg.out_of_memory import describe_shortage, is_out_of_memory
from discoseg.presets import load_config, load_run_config
from discoseg.terminal import Terminal


def parse(arguments: Sequence[str]) -> Command:
    """Turn command-line arguments into a command; what cannot be parsed is a :class:`UserError` of one line.

    ``--quiet`` and ``--json`` may also stand before the command's name.
    """
    first = next((i for i, argument in enumerate(arguments) if argument not in ("--quiet", "--json")), 0)
    arguments = [*arguments[first:], *arguments[:first]]
    default = Train(dataset=tyro.MISSING, out=tyro.MISSING, config=_base_config(arguments))
    train = Annotated[Train, subcommand("train", default=default)]
    about_data = Union[Check, Seeds, Annotate]  # noqa: UP007
    about_runs = Union[Predict, Export, Evaluate, Report, Info, Next]  # noqa: UP007
    commands = Union[about_data, train, Sweep, about_runs, Phantom, Demo, Reproduce]  # noqa: UP007
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return cast(Command, tyro.cli(cast(Any, commands), args=list(arguments), prog="discoseg"))
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise UserError(_one_line(complaint.getvalue())) from stop


def _base_config(arguments: Sequence[str]) -> Config:
    """Return the settings that options override: the preset's, or those of the run that is resumed."""
    preset, run = _option(arguments, "--preset"), Path(_option(arguments, "--out") or "") / "config.toml"
    if preset is None and "--resume" in arguments and run.is_file():
        return load_run_config(run)
    return load_config(preset or "default")


def _again(arguments: Sequence[str]) -> Sequence[str]:
    """Return the arguments with ``--resume`` where torchrun starts a training again that it has begun itself."""
    if "--resume" in arguments or "TORCHELASTIC_USE_AGENT_STORE" not in os.environ:
        return arguments
    from discoseg.launch_store import has_begun

    out = _option(arguments, "--out")
    return [*arguments, "--resume"] if out is not None and has_begun(Path(out)) else arguments


def _option(arguments: Sequence[str], name: str) -> str | None:
    for index, argument in enumerate(arguments):
        if argument == name and index + 1 < len(arguments):
            return arguments[index + 1]
        if argument.startswith(f"{name}="):
            return argument.removeprefix(f"{name}=")
    return None


def _one_line(box: str) -> str:
    """Return what tyro says in its box, on a terminal in colours, up to the first rule, as one line."""
    box = re.sub(r"\x1b\[[0-9;]*m", "", box)
    lines = [re.sub(r"[│╭╰╮╯]", "", line).strip() for line in box.splitlines() if not re.match(r"\s*[╭╰]", line)]
    said = []
    for line in lines:
        if line and not line.strip("─"):
            break
        said.append(line)
    return re.sub(r"^Error parsing __\S+: ", "", " ".join(" ".join(said).split())) + "; see --help"


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the command ``discoseg``: parse, run, and end a user's mistake in one line."""
    # Threads that spin while they wait make torch ten times slower as soon as another process wants a core.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    arguments = sys.argv[1:] if arguments is None else arguments
    terminal = Terminal(json="--json" in arguments)  # until the arguments are understood
    command: Command | None = None
    launch = Launch()
    try:
        launch = read_launch()
        if launch.several:
            os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch says on each rank what only we could change
        arguments = _again(arguments)
        command = parse(arguments)
        if launch.several and not isinstance(command, Train):
            name = type(command).__name__.lower()
            raise UserError(f"{name} is for one process: start it without torchrun, or unset WORLD_SIZE")
        terminal = Terminal(type(command).__name__.lower(), quiet=command.quiet, json=command.json)
        with terminal.listening():
            status = command.run(terminal)
    except UserError as error:
        status = _fail(launch, terminal, f"error: {error}", 2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python would stumble over it once more when it ends
        status = _fail(launch, terminal, "error: broken pipe: who read the output is gone", 2)
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        status = _fail(launch, terminal, f"error: {where}{error.strerror or error}", 2)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        status = _fail(launch, terminal, f"error: {describe_shortage(error)}", 2)
    except KeyboardInterrupt as interruption:
        goes_on = "" if command is None else command.goes_on(arguments)
        interrupted = "interrupted" + (f"; go on with: {goes_on}" if goes_on else "")
        number = interruption.status if isinstance(interruption, Interrupted) else 130
        status = _fail(launch, terminal, interrupted, number)
    sys.exit(status)


def _fail(launch: Launch, terminal: Terminal, complaint: str, status: int) -> int:
    """Say why the command ends, unless another process that torchrun started beside this one has said it already."""
    if launch.several:
        from discoseg.launch_store import first_to_tell

        if not first_to_tell(launch):
            return status
    return terminal.fail(complaint, status)
