"""Kill (SIGKILL) one rank or all of a training at random moments, start it again by torchrun, and compare the end.

    python bench/kills_ranks.py --kills 15 --out OUT

There is a checkpoint after every step, so that many kills fall into the writing of one. One kill in three waits for
such a writing. After each, the same command goes on with --resume; when the run has finished, its files must be those
of a run that nobody killed, byte by byte, and the next run begins (Linux).
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from discoseg.data.phantom import write_phantom_dataset

SETTINGS = (
    *("--label", "LV", "--size-eps", "0.1", "--epochs", "6", "--grid.shape", "32", "32", "--network.name", "enet"),
    *("--optimiser.batch", "8", "--augment.rotate-deg", "10", "--augment.noise", "0.02", "--device", "cpu"),
    *("--no-live-report", "--quiet"),
)
OFTEN = """
from discoseg import checkpoints
from discoseg.cli import main
checkpoints.EVERY_S, checkpoints.MOST_SHARE = 0.0, float("inf")
main()
"""
MORTAL = ("timing.csv", "log.txt", ".lock", "run.json")  # times, processes, and the command, which names the folder


class Launch:
    """A training that torchrun has just started, or started again."""

    def __init__(self, script: Path, data: Path, seeds: Path, out: Path, ranks: int) -> None:
        self._out = out
        self._log = out / "log.txt"
        self._seen = self._log.stat().st_size if self._log.is_file() else 0
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), str(script)]
        resume = ["--resume"] if (out / "config.toml").is_file() else []
        command = [*launcher, "train", str(data), "--seeds", str(seeds), *SETTINGS, "--out", str(out), *resume]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(command, env=environment, **quiet)  # type: ignore[call-overload]

    def wait_for_training(self) -> None:
        """Wait until it writes into its folder, or has ended."""
        while self._process.poll() is None:
            if (self._out / "config.toml").is_file() and (self._seen == 0 or self._log.stat().st_size > self._seen):
                return
            time.sleep(0.01)

    def wait_for_writing(self, patience_s: float) -> None:
        """Wait until a file of a checkpoint is on its way."""
        end = time.monotonic() + patience_s
        while time.monotonic() < end and not _unfinished(self._out):
            time.sleep(0.0005)

    def finish(self) -> None:
        """Wait until it has ended by itself."""
        self._process.wait()

    def kill(self, whom: str) -> bool:
        """Kill rank 0, rank 1 or all, torchrun too; return False if it has ended by itself, well, before."""
        if self._process.poll() is not None:
            _, said = self._process.communicate()
            if self._process.returncode:
                raise SystemExit(f"a resume failed:\n{said}")
            return False
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        ranks = [int(pid) for pid in children.read_text().split()]
        victims = [self._process.pid, *ranks] if whom == "all" else ranks[int(whom) : int(whom) + 1]
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        self._process.communicate(timeout=120)  # torchrun ends the others
        for pid in ranks:
            while Path(f"/proc/{pid}").exists():
                time.sleep(0.01)
        return True


def _unfinished(out: Path) -> list[str]:
    """Return the files of checkpoints that are on their way."""
    return [path.name for path in (out / "checkpoints").rglob("*") if path.name[0] == "." or path.name[:5] == "next."]


def _differing(one: Path, other: Path) -> list[str]:
    files = [
        {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}
        for run in (one, other)
    ]
    names = files[0].keys() | files[1].keys()
    return sorted(name for name in names if name not in MORTAL and files[0].get(name) != files[1].get(name))


def main() -> None:
    """Make the run that nobody kills, then the others; print what happened."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    data, seeds, script = options.out / "phantoms", options.out / "seeds", options.out / "often.py"
    write_phantom_dataset(data, cases=6, test_cases=1, seed=1, in_plane=(48, 48))
    clicks = ["--clicks", str(data / "clicks.json"), "--label", "LV", "--quiet", "--out", str(seeds)]
    subprocess.run([sys.executable, "-m", "discoseg", "seeds", str(data), *clicks], check=True)
    script.write_text(OFTEN, encoding="utf-8")
    whole = Launch(script, data, seeds, options.out / "whole", options.ranks)
    whole.wait_for_training()
    begun = time.monotonic()
    whole.finish()
    takes_s = time.monotonic() - begun
    draw, kills, finished, writing, number = random.Random(options.seed), 0, 0, 0, 0
    while kills < options.kills or (options.out / f"run{number}").exists():
        out = options.out / f"run{number}"
        launch = Launch(script, data, seeds, out, options.ranks)
        launch.wait_for_training()
        mortal = kills < options.kills
        whom = draw.choice(["0", "1", "all"])
        if mortal:
            time.sleep(draw.uniform(0, takes_s / 3))
            if draw.random() < 1 / 3:
                launch.wait_for_writing(5.0)
        else:
            launch.finish()
        if launch.kill(whom):
            kills += 1
            left = _unfinished(out)
            writing += bool(left)
            print(f"kill {kills} of {whom}, run {number}; on its way: {', '.join(left) or 'nothing'}", flush=True)
            continue
        differing = _differing(options.out / "whole", out)
        if differing:
            raise SystemExit(f"run {number} ended in other bytes: {differing}")
        finished, number = finished + 1, number + 1
        print(f"run {out.name} finished with the bytes of the run that nobody killed", flush=True)
    print(
        f"{kills} kills, {writing} of them within the writing of a checkpoint; {finished} runs ended in the same bytes"
    )


if __name__ == "__main__":
    main()
