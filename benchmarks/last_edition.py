"""What the end of a training waits for where its run is published: a session with TensorBoard, its publisher beside it.

Each turn is a process of its own that trains 40 short steps and closes its session. The close is timed there; the
publisher's memory is its high-water mark, read until it ends, which is when the last edition is there. The alternative
is the second that a close may take.

One row is of a close that leaves the last edition to the publisher, the other of one that waits for it, as in a
container or in a batch job of Slurm.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import Size, row
from probe.publishing.last import VARIABLE

GOAL_S = 1.0
STEPS = 40

#: What the environment says of where the training runs, for each row.
PLACES = {"leaves": {VARIABLE: "leave"}, "waits": {"SLURM_JOB_ID": "1"}}

TRAINING = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
import probe, torch
session = probe.start("benchmark", run_dir=sys.argv[1], track="tensorboard")
mask = (torch.arange(64)[None] < torch.randint(8, 65, (16, 1))).long()
for step in range(int(sys.argv[2])):
    with session.step(step), probe.phase("update"):
        for _ in probe.micro_batches({"input_ids": mask, "attention_mask": mask}, max_token_len=256):
            pass
    session.log({"loss": 1.0 / (step + 1)}, step)
pid = session.publisher._process.pid
begin = time.perf_counter()
session.close()
print(json.dumps([time.perf_counter() - begin, pid, time.time()]), flush=True)
"""


def rows(size: Size = Size.USUAL) -> list[dict[str, Any]]:
    """The table; a full one takes more turns."""
    steps, number = size.pick(2, STEPS), size.pick(1, 3, 9)
    turns: dict[str, list[tuple[float, float, float]]] = {name: [] for name in PLACES}
    for _ in range(number):
        for name, told in PLACES.items():
            turns[name].append(_turn(steps, told))
    left, waited = ([statistics.median(column) for column in zip(*turns[name], strict=True)] for name in PLACES)
    load = f"load {os.getloadavg()[0]:.1f}"
    note = (
        f"its publisher takes at most {left[1]:.0f} MiB; the last edition is ready {left[2]:.1f} s later"
        f" (PROBE_LAST_EDITION=leave); {load}"
    )
    longest = max(close for close, *_ in turns["waits"])
    note_of_waiting = (
        "deliberate: what goes on after the training would be killed there;"
        f" longest of {number}: {longest:.1f} s; {load}"
    )
    name = f"closing a published session after {steps} steps"
    return [
        row(f"{name} / one second", left[0], GOAL_S, "1", note),
        row(f"{name}, in a container or a Slurm job / one second", waited[0], GOAL_S, "10 s at most", note_of_waiting),
    ]


def _turn(steps: int, told: dict[str, str]) -> tuple[float, float, float]:
    """Seconds of the close, MiB of the publisher, and seconds from the close until the edition is there."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", TRAINING, str(Path(folder) / "run"), str(steps)]
        environment = {name: value for name, value in os.environ.items() if name != VARIABLE} | told
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        close_s, pid, at = json.loads(done.stdout.splitlines()[-1])
        mib = 0.0
        while (found := _high_water_mib(pid)) is not None:
            mib = found
            time.sleep(0.02)
        return close_s, mib, time.time() - at


def _high_water_mib(pid: int) -> float | None:
    """The most that a process has had in memory; None where it has ended."""
    try:
        told = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    lines = [line for line in told.splitlines() if line.startswith("VmHWM")]
    return int(lines[0].split()[1]) / 1024 if lines else None


if __name__ == "__main__":
    for one in rows(Size.asked(sys.argv)):
        print(one["name"], f"{one['ours_s']:.2f} s", one["note"])
