"""What torchrun starts in tests/test_ranks.py, twice: first one rank fails in its second epoch.

    torchrun --nproc-per-node 2 --max-restarts 1 rank_restarts.py train DATASET ...

Arguments are those of discoseg.
"""

import os
from collections.abc import Callable
from unittest import mock

from discoseg.cli import main
from discoseg.errors import UserError
from discoseg.interruption import Interruption


def _fail_in_the_second_epoch(self: Interruption, progress: Callable[[float, str], None]) -> Callable[..., None]:
    def report(done: float, message: str) -> None:
        if done > 1:
            raise UserError("a fault of one rank")

    return report


if __name__ == "__main__":
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
        mock.patch.object(Interruption, "guard", _fail_in_the_second_epoch).start()
    main()
