"""verl as installed: its modules that the table of points names, and processes that import it."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType

from probe.adapters.verl import SEAMS

ROOT = Path(__file__).resolve().parents[2]
#: Modules of verl that the table names and that can be imported here: other engines need packages that aren't.
MODULES = sorted(
    name
    for name in {seam.module for seam in SEAMS if seam.module.startswith("verl.")}
    if not any(one in name for one in ("veomni", "automodel", "torchtitan", "megatron"))
)


def imported() -> list[ModuleType]:
    """verl's modules, those that this version has."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in MODULES:
            try:
                found.append(importlib.import_module(name))
            except ModuleNotFoundError:
                assert "fsdp_workers" in name or "dp_actor" in name
    return found


def python(code: str, *paths: str | Path, **environ: str) -> str:
    """What a process that imports verl says."""
    hide = "import sys; sys.modules['trl'] = None\n"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PROBE", "VERL_"))}
    around = filter(None, [os.environ.get("PYTHONPATH")])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", hide + code],
        env={**kept, "PYTHONPATH": os.pathsep.join([*map(str, paths), str(ROOT), *around]), **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
