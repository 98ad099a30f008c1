"""What docs/backends.md says of each tracking backend, from the backends' classes."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from pages.markdown import markdown
from probe.tracking.backends import BACKENDS, backend_class
from probe.tracking.media import KINDS

ROOT: Final = Path(__file__).resolve().parent.parent.parent
PAGE: Final = ROOT / "docs" / "backends.md"
#: In the order of the table; kinds that are new come behind these.
_KINDS: Final = ("text", "table", "figure", "histogram", "image", "span", "spans")
#: What is said of a run as a whole: the row, and the backend's method or place.
_RUN: Final = {
    "parameters": "params",
    "description": "describe",
    "tags": "tag",
    "layout": "layout",
    "alerts": "alert",
    "exit code": "exit_code",
}


def kinds(names: Sequence[str] | None = None) -> str:
    """Which kinds each backend shows."""
    names = list(names or BACKENDS)
    shown = {name: backend_class(name).shows for name in names}
    listed = [*_KINDS, *sorted(KINDS - set(_KINDS))]
    rows = [["number", *("yes" for _ in names)]]
    rows += [[kind, *("yes" if kind in shown[name] else "no" for name in names)] for kind in listed]
    return _table(["kind", *names], rows)


def run(names: Sequence[str] | None = None) -> str:
    """Where each backend shows what is said of the run as a whole; a dash where it doesn't."""
    names = list(names or BACKENDS)
    rows = [[said, *(_place(name, method) for name in names)] for said, method in _RUN.items()]
    return _table(["", *names], rows)


def _place(name: str, method: str) -> str:
    backend = backend_class(name)
    shown = method in backend.places if method == "exit_code" else backend.has(method)
    return backend.places.get(method, "yes") if shown else "–"


def sections() -> str:
    """A section for each backend that has none on the page: how it is installed, and what its class says."""
    written = set(re.findall(r"^## (\w+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    return "\n\n".join(_section(name) for name in BACKENDS if name not in written)


def _section(name: str) -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extra = f"`pip install 'probe-rl[{name}]'`." if name in project["optional-dependencies"] else "Nothing to install."
    return f"## {name}\n\n{extra}\n\n{markdown(inspect.getdoc(backend_class(name)) or '')}".rstrip()


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), *map(list, rows)]
    made = [("| " + " | ".join(cells) + " |").replace("|  |", "| |") for cells in lines]
    return "\n".join([made[0], "|" + "---|" * len(lines[0]), *made[1:]])
