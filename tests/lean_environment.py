"""A fresh environment that holds what the base installation brings, and nothing else: neither pandas nor pyarrow.

Made without an index: the wheel is built from the tree, and the packages that it asks for, with all that these ask for,
are linked from the environment of the tests. So it has the versions that the tests have, and no torch is downloaded.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent


def make(folder: Path, source: Path = ROOT) -> None:
    """Build the wheel into ``folder``, and an environment ``folder/env`` that has it and its requirements.

    Args:
        folder: Exists.
        source: What the wheel is built of: the tree, or a source distribution.
    """
    alone = ["--no-deps", "--no-index", "--no-build-isolation"]
    pip(sys.executable, "wheel", "--quiet", *alone, "--wheel-dir", str(folder), str(source))
    (wheel,) = folder.glob("*.whl")
    venv.EnvBuilder(symlinks=True).create(folder / "env")
    python = python_of(folder)
    pip(sys.executable, "--python", str(python), "install", "--quiet", "--no-index", "--no-deps", str(wheel))
    asked = subprocess.run([python, "-c", ASK], capture_output=True, text=True, check=True, env=environment())
    told = asked.stdout.splitlines()
    site, requirements = Path(told[0]), told[1:]
    for name in sorted(closure(requirements)):
        link(metadata.distribution(name), site)


ASK = """
import sysconfig
from importlib import metadata
print(sysconfig.get_path("purelib"), *metadata.requires("probe-rl"), sep="\\n")
"""


def pip(python: object, *arguments: str) -> str:
    command = [str(python), "-m", "pip", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def python_of(folder: Path) -> Path:
    return folder / "env" / "bin" / "python"


def environment() -> dict[str, str]:
    """Of a process there: nothing of this one's tells it where to find modules."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV", "PROBE"))}


def closure(requirements: list[str]) -> set[str]:
    """The distributions that an installation of ``requirements`` brings, by their normal names."""
    found: set[str] = set()
    waiting = [name for text in requirements for name in wanted(text)]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [one for text in metadata.requires(name) or () for one in wanted(text)]
    return found


def wanted(text: str) -> Iterator[str]:
    one = Requirement(text)
    if one.marker is None or one.marker.evaluate({"extra": ""}):
        yield one.name.lower().replace("_", "-")


def link(distribution: metadata.Distribution, site: Path) -> None:
    """Everything of ``distribution`` that lies in the folder of packages, by its top."""
    tops = {Path(str(file)).parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
    for top in tops:
        target, place = Path(str(distribution.locate_file(top))), site / top
        if target.exists() and not place.exists():  # there already: a folder that several distributions share
            place.symlink_to(target)
