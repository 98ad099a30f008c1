"""A small run whose answers tell when they were asked for and ended, by which of several replicas, on a clock that is
turned by hand: the first step begins at 0, and each takes ten seconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import probe
from probe.demo.zoo.clock import fake_time

SECOND: Final = 1_000_000_000
WALL_NS: Final = 1_790_000_000 * SECOND
ANSWERS: Final = 16  # of a replica
REPLICAS: Final = ("engine 0", "engine 1", "http://10.0.0.17:41873/a/replica/with/a/name/that/is/long")

#: Seconds after a step's begin at which phases end; each begins with the end of the one before it.
PHASES: Final = {"generate": 6.0, "old_log_prob": 7.0, "update": 9.5}


def served_run(directory: Path, steps: int = 3) -> Path:
    """All answers of a step are asked for with its begin; those of a replica end one by one in its first four seconds,
    but one of replica ``step % 3`` ends only when generate does.
    """
    now = [0]
    with fake_time(lambda: now[0], WALL_NS), probe.start("p", "served", run_dir=directory, rank=0, world_size=1) as run:
        for step in range(1, steps + 1):
            begin = (step - 1) * 10 * SECOND
            now[0] = begin
            with run.step(step):
                for name, end in PHASES.items():
                    with probe.phase(name):
                        now[0] = begin + int(end * SECOND)
                _tell(begin, step)
                now[0] = begin + 10 * SECOND
    return directory


def _tell(begin: int, step: int) -> None:
    ends = [begin + (at + 1) * SECOND // 4 for at in range(ANSWERS)] * len(REPLICAS)
    ends[step % len(REPLICAS) * ANSWERS + ANSWERS - 1] = begin + 6 * SECOND
    many = len(ends)
    names = [name for name in REPLICAS for _ in range(ANSWERS)]
    told: dict[str, Any] = {"replicas": names, "weight_versions": [step - 1] * many, "trainer_version": step}
    tokens = [(end - begin) * 4 // SECOND for end in ends]  # one each quarter of a second
    probe.samples(tokens, begin_ns=[begin] * many, end_ns=ends, **told)
