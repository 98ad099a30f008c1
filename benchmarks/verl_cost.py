"""What observing verl's GRPO costs its workers: every second step observed, beside what the run says of it.

In verl's own environment: ``make .venv-verl/.made; .venv-verl/bin/python -m benchmarks verl_cost``. One training of the
model that the tests train, in which each rank switches its points on and off from step to step.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measure import Size, row
from benchmarks.own_cost import _interval
from probe.own_cost import COST, STEP
from probe.runs.reader import Run

STEPS = 26
LIMIT_S = 3600  #: on a machine that others use
WARM = 2  #: steps that import, compile and fill caches
TARGET = "at most 1 % of a 1 s step"


def rows(size: Size = Size.USUAL) -> list[dict[str, Any]]:
    count = size.pick(6, STEPS)
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "frameworks" / "verl_cpu"))
    import recipes
    import tiny

    recipes.LIMIT_S = LIMIT_S
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        tiny.make(place / "tiny")
        steps = [f"trainer.total_training_steps={count}", "trainer.total_epochs=4", "trainer.save_freq=-1"]
        turns: dict[str, Any] = {"modules": ["benchmarks.verl_turns"], "PROBE_RUN_DIR": str(place / "run")}
        done = recipes.grpo(place / "training", place / "tiny", *steps, **turns)
        if done.code:
            raise RuntimeError(done.output[-3000:])
        files = sorted((done.directory / "counted").glob("turns-*.jsonl"))
        ranks = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
        with Run(place / "run") as run:
            odd = run.scalars["step"] % 2 == 1  # switched off
            said = run.scalars[run.scalars["rank"].notna() & (run.scalars["step"] > WARM) & ~odd]
        of = {key: said[said["key"] == key]["value"].tolist() for key in (COST, STEP)}
    return [compared(ranks, of[COST], of[STEP])]


def compared(ranks: list[list[dict[str, Any]]], cost: list[float], steps: list[float]) -> dict[str, Any]:
    """Of each observed step and the mean of the two around it; where they stand in the run hits them alike."""
    pairs = [pair for lines in ranks for pair in _pairs(lines, "thread_s")]
    both = [on - off for on, off in pairs]
    low, high = _interval(both)
    of_process = [on - off for lines in ranks for on, off in _pairs(lines, "process_s")]
    least, most = _interval(of_process)
    turns, share = statistics.median(both), sum(cost) / sum(steps)
    note = (
        f"{len(both)} steps with probe on {len(ranks)} ranks, compared with their neighbours; "
        "CPU time of the working thread: "
    )
    note += f"{1e3 * turns:.3g} ms more with probe (95 % interval {1e3 * low:.3g} to {1e3 * high:.3g} ms), "
    note += (
        f"of the whole process {1e3 * statistics.median(of_process):.3g} ms ({1e3 * least:.3g} to {1e3 * most:.3g}); "
    )
    note += (
        f"the run reports {statistics.median(cost):.3g} ms, {share:.2%} of steps of {statistics.median(steps):.4g} ms, "
    )
    note += f"in wall time; load {os.getloadavg()[0]:.1f}"
    observed, plain = (statistics.median(side) for side in zip(*pairs, strict=True))
    return row("a worker's GRPO step: with probe / without", observed, plain, TARGET, note)


def _pairs(lines: list[dict[str, Any]], clock: str) -> Iterator[tuple[float, float]]:
    """Of each step that was observed, and of the mean of its neighbours, which weren't."""
    known = {line["step"]: line for line in lines if line["step"] > WARM}
    for step, line in known.items():
        around = [known[one][clock] for one in (step - 1, step + 1) if one in known]
        if line["on"] and len(around) == 2:
            yield line[clock], statistics.mean(around)


if __name__ == "__main__":
    for one in rows():
        print(one)
