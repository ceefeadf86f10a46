"""What torchrun starts in tests/test_ranks.py, three times: twice one of the ranks does not come to the end.

    torchrun --nproc-per-node 2 --max-restarts 2 rank_restarts.py train DATASET ...

First rank 0 is killed as soon as there is a config.toml, which makes the folder a run; then rank 1 fails in the second
epoch. Arguments are those of discoseg.
"""

import os
import signal
from collections.abc import Callable
from unittest import mock

from discoseg.cli import main
from discoseg.config import Config
from discoseg.errors import UserError
from discoseg.interruption import Interruption
from discoseg.run import RunFolder


def _fail_in_the_second_epoch(self: Interruption, progress: Callable[[float, str], None]) -> Callable[..., None]:
    def report(done: float, message: str) -> None:
        if done > 1:
            raise UserError("a fault of one rank")

    return report


_write_config = RunFolder.write_config


def _write_config_and_die(self: RunFolder, config: Config) -> None:
    _write_config(self, config)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    start = (os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"])
    if start == ("0", "0"):
        mock.patch.object(RunFolder, "write_config", _write_config_and_die).start()
    if start == ("1", "1"):
        mock.patch.object(Interruption, "guard", _fail_in_the_second_epoch).start()
    main()
