"""What the start file of `probe run` costs a process that starts, and what doors cost that lead nowhere.

A door is what a framework itself loads, such as an entry point; where no run directory is named nothing is behind it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
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
    there = "import __future__, importlib.metadata, inspect, logging, threading, typing"  # as any framework has by then
    kinds = {
        "plain": (plain, "pass"),
        "start": (started, "pass"),
        "busy": (plain, there),
        "attach": (started, f"{there}; import probe.adapters.attachment as a; a.attach()"),
    }
    spent: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(size.pick(1, TURNS)):
        for name, (env, code) in kinds.items():
            spent[name].append(_cpu_s(code, env))
    medians = {name: statistics.median(found) for name, found in spent.items()}
    whats = {
        "start": ("a process under `probe run` that imports no framework", "plain", "10 ms more"),
        "attach": ("a process that imports a framework, before the framework's table is loaded", "busy", ""),
    }
    made = []
    for name, (what, beside, target) in whats.items():
        note = f"{1000 * (medians[name] - medians[beside]):.1f} ms more"
        note += (
            " than `python -c pass`" if beside == "plain" else " than a process with verl's imports up to that point"
        )
        made.append(row(what, medians[name], medians[beside], target=target, note=note))
    return made + _doors(plain, there, size.pick(1, TURNS))


def _doors(env: dict[str, str], there: str, turns: int) -> list[dict[str, Any]]:
    """Inside a process that begins, beside a package that does nothing: of whole processes the difference drowns."""
    kinds = {
        "empty": "import nothing_in_it.nothing_either",
        "verl's plugin": "import probe_rl.verl",
        "Lightning's entry point": "from probe_rl import lightning; lightning.callbacks()",
        "vLLM's entry point": "from probe_rl import engines; engines.vllm()",
        "Ray's entry point": "import probe_rl.ray as r; r.runtime_env({})",
    }
    spent: dict[str, list[float]] = {name: [] for name in kinds}
    with tempfile.TemporaryDirectory() as place:
        package = Path(place) / "nothing_in_it"
        package.mkdir()
        for module in ("__init__", "nothing_either"):
            (package / f"{module}.py").touch()
        env = {name: value for name, value in env.items() if name != "PYTHONDONTWRITEBYTECODE"}
        for turn in range(1 + turns):
            for name, code in kinds.items():
                timed = f"{there}\nfrom time import process_time_ns as now\nbegin = now()\n{code}\nprint(now() - begin)"
                command = [sys.executable, "-c", timed]
                path = place if name == "empty" else env["PYTHONPATH"]
                known = {**env, "PYTHONPATH": path}
                told = subprocess.run(command, env=known, capture_output=True, text=True, check=True).stdout
                if turn:  # the first one compiles what it imports
                    spent[name].append(int(told) / 1e9)
    medians = {name: statistics.median(found) for name, found in spent.items()}
    empty = medians.pop("empty")
    note = "against an empty module in an empty package"
    return [
        row(f"{name} without a run directory, inside its process", cost, empty, "1 ms", note)
        for name, cost in medians.items()
    ]


def _cpu_s(code: str, env: dict[str, str]) -> float:
    """CPU time of one process, which a busy machine doesn't stretch as it does wall time."""
    child = subprocess.Popen([sys.executable, "-c", code], env=env)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{code!r} ended with {child.returncode} at {time.ctime()}")
    return usage.ru_utime + usage.ru_stime
