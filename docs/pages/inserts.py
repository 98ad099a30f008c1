"""Small tables inside hand-written pages: ``<!-- make: name -->`` on a line of its own becomes one."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parent.parent.parent
_PLACE: Final = re.compile(r"^<!-- make: (\w+) -->$", re.MULTILINE)


def filled(text: str) -> str:
    """The page with its tables.

    Raises:
        KeyError: there is no table of that name.
    """
    return _PLACE.sub(lambda found: TABLES[found[1]](), text)


def targets() -> str:
    """The targets of the Makefile, by what stands behind them there."""
    found = re.findall(r"^([a-z0-9-]+):.*?## (.*)$", (_ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    return _table(("command", ""), [(f"`make {name}`", about) for name, about in found])


def extras() -> str:
    """The optional dependencies, those for developing left out."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    rows = [
        (f"`{name}`", ", ".join(f"`{one}`" for one in packages))
        for name, packages in project["optional-dependencies"].items()
        if name not in ("dev", "docs")
    ]
    return _table(("extra", "packages"), rows)


def constraints() -> str:
    """The pins of constraints.txt."""
    lines = (_ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return "\n".join(["```text", *(line for line in lines if not line.startswith("#")), "```"])


def _table(head: tuple[str, str], rows: list[tuple[str, str]]) -> str:
    return "\n".join([f"| {head[0]} | {head[1]} |", "|---|---|", *(f"| {one} | {other} |" for one, other in rows)])


#: What can stand in a page.
TABLES: Final = {"targets": targets, "extras": extras, "constraints": constraints}
