"""What a rank of a launch does in tests of attempts."""

from __future__ import annotations

import os
from pathlib import Path

from probe.session import start


def launched(directory: Path, rank: int, ranks: int, reward: float) -> None:
    """One step, as the launcher's variables say it."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks))
    with start("attempts", run_dir=directory) as session, session.step(0):
        session.log({"reward/mean": reward}, 0)
