"""What the tests of the start file share: a stand-in for a framework on disk, and processes with the start file."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from probe.cli.run import environment

#: As NeMo-RL documents it: ``with timer.time(label):``.
TIMER = """
    import contextlib

    class Timer:
        @contextlib.contextmanager
        def time(self, label):
            yield
"""

ROOT = str(Path(__file__).parents[2])


def package(folder: Path, name: str, **modules: str) -> Path:
    """A package of these modules, named with dots; each package on the way is made, too."""
    for path, source in {"__init__": "", **modules}.items():
        place = folder / name / (path.replace(".", "/") + ".py")
        place.parent.mkdir(parents=True, exist_ok=True)
        for parent in place.relative_to(folder).parents:
            if parent.name:
                (folder / parent / "__init__.py").touch()
        place.write_text(textwrap.dedent(source))
    return folder


def variables(run: Path, *path: Path, attempt: int | None = 1, **more: str) -> dict[str, str]:
    """The environment of a process under ``probe run``, with ``path`` in front of everything else."""
    known = os.pathsep.join([*map(str, path), ROOT])
    before = {**os.environ, "PYTHONPATH": known, **more}
    return environment(before, run, attempt)


def python(
    *arguments: str, env: dict[str, str], program: str = sys.executable, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    command = [program, *arguments]
    return subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
