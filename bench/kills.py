"""Kill a training at random moments and see whether it ends in the bytes of one that nobody killed.

    python bench/kills.py OUT --kills 50
    python bench/kills.py OUT --kills 50 --launch "torchrun --nproc-per-node 2" --whom any

OUT/whole is trained without a kill. OUT/killed is started, killed (SIGKILL, with all processes below it), resumed,
killed, and so on, then left to end. The moments of the kills, in turn: any time from the start of the process on; any
time while it trains; as soon as a checkpoint is seen on its way to the disk; between the two renames that make it the
latest; and, of several ranks, as soon as a rank's part is seen on its way. Checkpoints are due all the time, and
renames take 10 ms, so that such moments are found. Without ``--launch`` each process is a fork of this one, which has
imported everything and done nothing: that saves most of the time; ``--ranks 2`` forks a launcher that does as torchrun.
With ``--whom one`` a random rank is killed, and the launcher ends the others; with ``any`` so in every other kill.
"""

import argparse
import multiprocessing
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

MOMENTS = ("any time", "training", "writing", "renaming")
OF_RANKS = ("a rank's part",)
SETTINGS = (
    "--label LV --size-eps 0.1 --device cpu --epochs {epochs} --grid.shape 32 32 --network.name unet --network.width 4 "
    "--network.depth 2 --optimiser.batch 4 --augment.rotate-deg 10 --augment.noise 0.02 --quiet --no-live-report"
)
_RENAME_S = 0.01


def main() -> None:
    """Train, kill, resume, compare; the exit status says whether all bytes are the same."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--launch", help="what stands before this script and its arguments in a command line")
    parser.add_argument("--ranks", type=int, default=1, help="of a training, without --launch")
    parser.add_argument("--whom", choices=("all", "one", "any"), default="all")
    arguments = parser.parse_args()
    out, data = arguments.out, arguments.out / "phantoms"
    if not data.exists():
        _discoseg("phantom", "--out", data, "--cases", "5", "--test-cases", "0", "--quiet")
        _discoseg("seeds", data, "--label", "LV", "--clicks", data / "clicks.json", "--out", out / "seeds", "--quiet")
    settings = SETTINGS.format(epochs=arguments.epochs).split()
    train = ["train", str(data), "--seeds", str(out / "seeds"), *settings, "--out"]

    def start_training(run: Path) -> Process:
        resume = ["--resume"] if (run / "config.toml").is_file() else []
        command = [*train, str(run), *resume]
        if arguments.launch is None:
            return Forked(command, arguments.ranks)
        return subprocess.Popen([*shlex.split(arguments.launch), __file__, "child", *command])

    start = time.monotonic()
    _end(start_training(out / "whole"))
    whole_s = time.monotonic() - start
    print(f"uninterrupted: {whole_s:.0f} s", flush=True)
    draw, found, begun_s = random.Random(arguments.seed), Counter[str](), 0.0
    moments = MOMENTS + (OF_RANKS if (out / "whole" / "checkpoints" / "shards").is_dir() else ())
    for number in range(arguments.kills):
        moment = moments[number % len(moments)]
        whom = ("one", "all")[number % 2] if arguments.whom == "any" else arguments.whom
        begun_s = _kill_once(start_training, out / "killed", moment, whom, draw, begun_s)
        what = f"{whom}, {moment}{_left_behind(out / 'killed')}"
        found[what] += 1
        print(f"kill {number + 1}: {what}, {_place(out / 'killed')}", flush=True)
    _end(start_training(out / "killed"))
    print("; ".join(f"{count} × {moment}" for moment, count in sorted(found.items())))
    different = _compare(out / "whole", out / "killed")
    print(f"{sum(found.values())} kills; files that differ: {', '.join(different) or 'none'}")
    sys.exit(1 if different else 0)


class Process(Protocol):
    """A process as `subprocess` has it."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...


class Forked:
    """A fork of this process that is the command line."""

    def __init__(self, arguments: list[str], ranks: int = 1) -> None:
        import torch

        import discoseg.report.live
        import discoseg.workflow  # noqa: F401  # in the parent, once for all forks

        torch.optim.Adam([torch.zeros(1)])  # which imports some more
        self._process = multiprocessing.get_context("fork").Process(target=_be_ranks, args=(arguments, ranks))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Return the exit status, None while it runs."""
        return self._process.exitcode

    def wait(self) -> int:
        """Wait for its end and return the exit status."""
        self._process.join()
        return self._process.exitcode or 0


def _be_ranks(arguments: list[str], ranks: int) -> None:
    """Be the command line or, of several ranks, what starts one each, and ends all if one fails."""
    if ranks == 1:
        be_command_line(arguments)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    running = set()
    for rank in range(ranks):
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)}
        if not (pid := os.fork()):
            be_command_line(arguments)
        running.add(pid)
    failed = 0
    while running:
        pid, status = os.wait()
        running.remove(pid)
        if status and not failed:
            failed = 1
            for other in running:
                os.kill(other, signal.SIGTERM)
    sys.exit(failed)


def _end(process: Process) -> None:
    if status := process.wait():
        sys.exit(f"the training ended with status {status}")


def _kill_once(
    start_training: Callable[[Path], Process], run: Path, moment: str, whom: str, draw: random.Random, begun_s: float
) -> float:
    """Start or resume the training and kill it; return how long a process takes to begin to train, in seconds."""
    before, start = _version(run), time.monotonic()
    process = start_training(run)
    if moment == "any time":
        time.sleep(draw.uniform(0, begun_s + 1.0))
    else:
        _await(lambda: _version(run) != before, process)  # its first checkpoint
        begun_s = time.monotonic() - start
        folder = run / "checkpoints"
        time.sleep(draw.uniform(0, 2.0 if moment == "training" else 0.3))
        if moment == "writing":
            _await(lambda: bool(list(folder.glob(".*-next.safetensors"))), process)
        elif moment == "renaming":
            _await(lambda: (folder / "next.safetensors").exists(), process)
        elif moment in OF_RANKS:
            _await(lambda: bool(list(folder.glob("shards/.*-*.safetensors"))), process)
    if process.poll() is not None:
        sys.exit(f"the training ended before it was killed, with status {process.wait()}: more --epochs are needed")
    family = _family(process.pid)
    ranks = family[1:]
    for pid in [draw.choice(ranks)] if whom == "one" and ranks else family:
        os.kill(pid, signal.SIGKILL)
    process.wait()
    while any(Path(f"/proc/{pid}").exists() for pid in ranks):
        time.sleep(0.01)
    return begun_s


def _await(condition: Callable[[], bool], process: Process) -> None:
    while process.poll() is None and not condition():
        time.sleep(0.001)


def _version(run: Path) -> int:
    latest = run / "checkpoints" / "latest.safetensors"
    return latest.stat().st_mtime_ns if latest.is_file() else 0


def _left_behind(run: Path) -> str:
    """Say what of a checkpoint on its way is left."""
    folder = run / "checkpoints"
    if list(folder.rglob(".*-*.safetensors")):
        return ", a part of a checkpoint left"
    return ", a new one beside the latest" if (folder / "next.safetensors").is_file() else ""


def _place(run: Path) -> str:
    latest = run / "checkpoints" / "latest.safetensors"
    if not latest.is_file():
        return "no checkpoint yet"
    meta = _meta(latest)
    return f"saved: epoch {meta['epoch']}, step {meta['steps']}"


def _meta(path: Path) -> dict[str, Any]:
    from discoseg.checkpoint_header import load_meta

    return load_meta(path)


def _family(pid: int) -> list[int]:
    """Return a process and all below it: launchers give theirs groups of their own."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents.setdefault(int(stat.read_text().rsplit(")", 1)[1].split()[1]), []).append(int(stat.parent.name))
        except OSError:
            continue
    family = [pid]
    for member in family:
        family += parents.get(member, [])
    return family


def _compare(whole: Path, killed: Path) -> list[str]:
    """Return the files that differ, but for clock times and for which checkpoints were due."""
    timed = {"timing.csv", "log.txt", "run.json", ".lock", "checkpoints/previous.safetensors"}
    names = {str(p.relative_to(run)) for run in (whole, killed) for p in run.rglob("*") if p.is_file()} - timed
    latest = _meta(whole / "checkpoints" / "latest.safetensors").get("shards", [])
    names -= {name for name in names if "/shards/" in name and name.removeprefix("checkpoints/") not in latest}
    contents = [
        {name: (run / name).read_bytes() for name in names if (run / name).is_file()} for run in (whole, killed)
    ]
    return sorted(name for name in names if contents[0].get(name) != contents[1].get(name))


def _discoseg(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "discoseg", *map(str, arguments)], check=True)


def be_command_line(arguments: list[str]) -> None:
    """Be the command line, with checkpoints that are always due and slow renames."""
    from discoseg import checkpoints
    from discoseg.cli import main as command_line

    replace = os.replace

    def replace_slowly(new: Path, path: Path) -> None:
        time.sleep(_RENAME_S)
        replace(new, path)

    checkpoints.EVERY_S, checkpoints.MOST_SHARE = 0.0, 1.0
    os.replace = replace_slowly  # type: ignore[assignment]
    command_line(arguments)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch reads it when it is imported
    if sys.argv[1:2] == ["child"]:
        be_command_line(sys.argv[2:])
    else:
        main()
