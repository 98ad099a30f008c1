"""What the start file of `probe run` and verl's plugin without a run directory cost a process that starts."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import Size, row
from probe.cli.run import environment

#: Times that each kind of process is started, in turns.
TURNS = 25


def rows(size: Size = Size.USUAL) -> list[dict[str, Any]]:
    root = str(Path(__file__).parents[1])
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PROBE", "VERL"))}
    plain["PYTHONPATH"] = root
    started = environment(plain, Path("/nowhere/run"), 1)
    there = "import importlib.metadata, inspect, logging, threading, typing"  # by then any framework has imported these
    kinds = {
        "plain": (plain, "pass"),
        "start": (started, "pass"),
        "busy": (plain, there),
        "attach": (started, f"{there}; import probe.adapters.attachment as a; a.attach()"),
        "plugin": (plain, f"{there}; import probe_rl.verl"),
        "doors": (plain, f"{there}; from probe_rl import engines, lightning as l; l.callbacks(); engines.vllm()"),
    }
    spent: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(size.pick(1, TURNS)):
        for name, (env, code) in kinds.items():
            spent[name].append(_cpu_s(code, env))
    medians = {name: statistics.median(found) for name, found in spent.items()}
    whats = {
        "start": ("a process under `probe run` that imports no framework", "plain", "10 ms more"),
        "attach": ("one that imports a framework, before its table is loaded", "busy", ""),
        "plugin": ("verl's plugin where no run directory is named", "busy", "1 ms more"),
        "doors": ("those of Lightning and vLLM together, likewise", "busy", "1 ms more"),
    }
    made = []
    for name, (what, beside, target) in whats.items():
        note = f"{1000 * (medians[name] - medians[beside]):.1f} ms more"
        note += " than `python -c pass`" if beside == "plain" else " than a process with what verl has imported by then"
        made.append(row(what, medians[name], medians[beside], target=target, note=note))
    return made


def _cpu_s(code: str, env: dict[str, str]) -> float:
    """CPU time of one process, which a busy machine doesn't stretch as it does wall time."""
    child = subprocess.Popen([sys.executable, "-c", code], env=env)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{code!r} ended with {child.returncode} at {time.ctime()}")
    return usage.ru_utime + usage.ru_stime
