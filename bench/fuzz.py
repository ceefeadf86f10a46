"""Fuzz every reader with mutated files and requests: `python bench/fuzz.py [--inputs 20000] [--seed 0] [--only NAME…]`.

Each input is read in a worker process. It must be read, or refused in one line (`UserError`); every 25th goes through
the command line, where there is a command. All else is a defect: another exception, a crash, more than HANG_S seconds,
MEMORY_MIB of memory more than before, or anything that a library printed. Inputs with defects are kept in `--keep`. The
n-th input of a family depends on the seed alone.
"""

import argparse
import math
import multiprocessing
import os
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

from discoseg.errors import UserError
from fuzz_runs import run_targets, server_targets
from fuzz_targets import Target, Workshop

HANG_S = 20.0
MEMORY_MIB = 512
BY_COMMAND = 25  # every so many inputs


@dataclass
class Tally:
    """What became of a family's inputs."""

    outcomes: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    grown_mib: float = 0.0
    defects: list[str] = field(default_factory=list)


def make_targets(folder: Path) -> dict[str, Target]:
    """Return all families by name, whose files lie in ``folder``."""
    shop = Workshop(folder)
    return {**shop.targets, **run_targets(shop), **server_targets(shop)}


def make_input(target: Target, name: str, seed: int, number: int) -> bytes:
    """Return the n-th input of a family."""
    return target.make(Random(f"{seed} {name} {number}"))


def work(pipe: Connection, folder: Path, seed: int) -> None:
    """Read inputs that the other end of the pipe names, and say what became of them."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # the command line makes one line of each
    os.environ["DISCOSEG_CACHE"] = str(folder / "cache")
    targets = make_targets(folder / "shop")
    for target in targets.values():  # what is loaded once counts for none of the inputs
        for read in filter(None, (target.read, target.command)):
            _outcome(read, target.valid[0])
    printed = os.open(folder / "stderr", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    os.dup2(printed, 2)
    resource.setrlimit(resource.RLIMIT_AS, (_virtual_bytes() + 8 * MEMORY_MIB * 2**20,) * 2)
    pipe.send({name: target.share for name, target in targets.items()})
    while True:
        name, number = pipe.recv()
        target = targets[name]
        data = make_input(target, name, seed, number)
        read = target.command if target.command and number % BY_COMMAND == 0 else target.read
        os.ftruncate(printed, 0)
        before, start = _peak_mib(), time.monotonic()
        outcome = _outcome(read, data)
        took_s, grown_mib = time.monotonic() - start, _peak_mib() - before
        noise = os.pread(printed, 200, 0).decode(errors="replace")
        if outcome in ("read", "refused") and noise:
            outcome = f"printed {noise!r}"
        if outcome in ("read", "refused") and grown_mib > MEMORY_MIB:
            outcome = f"took {grown_mib:.0f} MiB"
        pipe.send((outcome, took_s, grown_mib))


def _outcome(read: object, data: bytes) -> str:
    assert callable(read)
    try:
        read(data)
    except FileNotFoundError:  # which the command line and the server say in one line
        return "refused"
    except UserError as error:
        return "refused" if str(error).isprintable() else f"not printable: {str(error)!r}"
    except Exception as error:
        where = [f"{Path(f.filename).name}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)]
        return f"{type(error).__name__}: {str(error)[:100]} at {' '.join(where[-3:])}"
    return "read"


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def _virtual_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[0] if sys.platform == "linux" else "0"
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


class Worker:
    """A process that reads inputs, and is replaced when one has killed it."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._start()

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=work, args=(other, Path(self._folder.name), self._seed), daemon=True)
        self._process.start()
        other.close()
        self.families: dict[str, float] = self._pipe.recv()

    def read(self, name: str, number: int) -> tuple[str, float, float]:
        """Return what became of an input, the seconds it took, and by how many MiB memory grew."""
        self._pipe.send((name, number))
        try:
            if self._pipe.poll(HANG_S):
                outcome: tuple[str, float, float] = self._pipe.recv()
                return outcome
            ended = f"more than {HANG_S:g} s"
        except (EOFError, ConnectionError):
            self._process.join(5)
            ended = f"the process ended, {self._process.exitcode}"
        self.close()
        self._start()
        return ended, HANG_S, 0.0

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()
        self._folder.cleanup()


def fuzz(worker: Worker, name: str, inputs: int) -> Tally:
    """Read so many inputs of a family."""
    tally = Tally()
    for number in range(inputs):
        outcome, took_s, grown_mib = worker.read(name, number)
        known = outcome in ("read", "refused")
        tally.outcomes[outcome if known else "defect"] += 1
        tally.slowest_s, tally.grown_mib = max(tally.slowest_s, took_s), max(tally.grown_mib, grown_mib)
        if not known:
            tally.defects.append(f"{number}: {outcome}")
    return tally


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz, print a table, and return how many inputs had defects, 100 at most."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000, help="of all families together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=[], help="names of families")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-defects"), help="folder for inputs with defects")
    options = parser.parse_args(arguments)
    worker = Worker(options.seed)
    shares = {name: share for name, share in worker.families.items() if not options.only or name in options.only}
    unit, defects, total, begun = options.inputs / sum(shares.values()), 0, Counter[str](), time.monotonic()
    print("| family | inputs | read | refused | defects | slowest s | memory MiB |\n|---|---|---|---|---|---|---|")
    for name, share in shares.items():
        each = math.ceil(unit * share)
        tally = fuzz(worker, name, each)
        counts = " | ".join(str(tally.outcomes[key]) for key in ("read", "refused", "defect"))
        print(f"| {name} | {each} | {counts} | {tally.slowest_s:.2f} | {tally.grown_mib:.0f} |", flush=True)
        total.update(tally.outcomes)
        defects += len(tally.defects)
        for line in tally.defects:
            print(f"    {name} {line}", file=sys.stderr, flush=True)
        if tally.defects:
            _keep(options.keep, name, options.seed, [int(line.split(":")[0]) for line in tally.defects])
    worker.close()
    counts = " | ".join(str(total[key]) for key in ("read", "refused", "defect"))
    print(f"| all | {sum(total.values())} | {counts} | | |\n{time.monotonic() - begun:.0f} s")
    return min(defects, 100)


def _keep(folder: Path, name: str, seed: int, numbers: Sequence[int]) -> None:
    """Write inputs into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        target = make_targets(Path(scratch) / "shop")[name]
        for number in numbers:
            file = folder / f"{name.replace(' ', '-')}-{seed}-{number}"
            file.write_bytes(make_input(target, name, seed, number))


if __name__ == "__main__":
    sys.exit(main())
