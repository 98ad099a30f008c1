"""Small tables inside hand-written pages: ``<!-- make: name -->`` on a line of its own becomes one.

Where ``<!-- made -->`` follows, what stands between the two is the table as it was when the page was written, for those
who read the page itself.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

from pages import backends

_ROOT: Final = Path(__file__).resolve().parent.parent.parent
_PLACE: Final = re.compile(
    r"^<!-- make: (?P<name>\w+) -->$(?P<written>\n(?:(?!<!--).*\n)*?<!-- made -->$)?", re.MULTILINE
)


def filled(text: str, *, keep_marks: bool = False) -> str:
    """The page with its tables.

    Args:
        text: Of the page.
        keep_marks: Renew only the tables that are written in the page, and leave the marks around them.

    Returns:
        The page's text.

    Raises:
        KeyError: There is no table of that name.
    """

    def made(found: re.Match[str]) -> str:
        if not keep_marks:
            return TABLES[found["name"]]()
        name = found["name"]
        return f"<!-- make: {name} -->\n{TABLES[name]()}\n<!-- made -->" if found["written"] else found[0]

    return _PLACE.sub(made, text)


def written(text: str) -> dict[str, str]:
    """The tables that are written in a page, by name."""
    found = ((one["name"], one["written"]) for one in _PLACE.finditer(text))
    return {name: table.removesuffix("<!-- made -->").strip() for name, table in found if table}


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
TABLES: Final = {
    "targets": targets,
    "extras": extras,
    "constraints": constraints,
    "backend_kinds": backends.kinds,
    "backend_runs": backends.run,
    "backend_sections": backends.sections,
}
