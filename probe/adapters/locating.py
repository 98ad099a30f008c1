"""Whether the functions that a table of seams names are in a framework's files, without importing it.

A look at the source alone: what a function is called at the moment of the import, code can still change. Standard
library only.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from probe.adapters.seams import Seam


class Located(NamedTuple):
    """What was found of a table.

    Attributes:
        points: All of the table's points.
        missing: Those none of whose functions is there.
        without: Modules of those that have no file at all.
    """

    points: list[str]
    missing: list[str]
    without: list[str]


def locate(seams: Sequence[Seam]) -> Located:
    """Look for the functions of a table in the files of its framework.

    Args:
        seams: The table.
    """
    points = list(dict.fromkeys(one.point for one in seams))
    missing = [one for one in points if not any(is_there(seam) for seam in seams if seam.point == one)]
    lost = [seam.module for seam in seams if seam.point in missing and source_of(seam.module) is None]
    return Located(points, missing, list(dict.fromkeys(lost)))


def is_there(seam: Seam) -> bool:
    """Whether the function of a seam is in its module's file. What the source leaves open (a base class or a name of
    another module) counts as there.

    Args:
        seam: Which one.
    """
    path = source_of(seam.module)
    tree = None if path is None else _parsed(path)
    if tree is None:
        return path is not None  # a compiled module has no source to look at
    *classes, name = seam.name.split(".")
    body: list[ast.stmt] = tree.body
    module = body
    for one in classes:
        found = _named(body, one)
        if not isinstance(found, ast.ClassDef):
            return found is not None
        body = found.body
        if one == classes[-1] and _named(body, name) is None:
            return _may_inherit(found, name, module)
    return _named(body, name) is not None


@functools.cache
def source_of(module: str) -> Path | None:
    """The file of a module, or None. Its packages aren't imported, so that code that changes ``__path__`` isn't seen.

    Args:
        module: Its full name.
    """
    package, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if not rest:
        return None if spec.origin is None else Path(spec.origin)
    for folder in spec.submodule_search_locations or ():
        place = Path(folder, *rest)
        for path in (place / "__init__.py", place.with_suffix(".py"), *place.parent.glob(f"{place.name}.*.so")):
            if path.is_file():
                return path
    return None


@functools.lru_cache(64)
def _parsed(path: Path) -> ast.Module | None:
    if path.suffix != ".py":
        return None
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None


def _named(body: Sequence[ast.stmt], name: str) -> ast.stmt | None:
    """The statement of a body that binds a name, in branches of it too."""
    for statement in _flat(body):
        if name in _bound(statement):
            return statement
    return None


def _flat(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        for inner in ("body", "orelse", "finalbody"):
            if isinstance(statement, ast.If | ast.Try | ast.With):
                yield from _flat(getattr(statement, inner, ()))
        for handler in getattr(statement, "handlers", ()):
            yield from _flat(handler.body)


def _bound(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {(one.asname or one.name).partition(".")[0] for one in statement.names}
    if isinstance(statement, ast.Assign):
        return {one.id for target in statement.targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return {statement.target.id}
    return set()


def _may_inherit(found: ast.ClassDef, name: str, module: Sequence[ast.stmt]) -> bool:
    """Whether a base class has the name, or is one of another module, which isn't looked at."""
    for base in found.bases:
        own = _named(module, base.id) if isinstance(base, ast.Name) else None
        if isinstance(base, ast.Name) and base.id == "object":
            continue
        if not isinstance(own, ast.ClassDef):
            return True
        if _named(own.body, name) is not None or _may_inherit(own, name, module):
            return True
    return False
