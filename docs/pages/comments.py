"""The ``#:`` comments of Python source, by the name that they belong to: what the code says of its own fields."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path


def comments(path: Path) -> dict[str, str]:
    """``"Class.field"`` or ``"NAME"`` to what its ``#:`` comment says: behind it, or on the lines above."""
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    behind, above = {}, {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and token.string.startswith("#:"):
            alone = lines[token.start[0] - 1].lstrip().startswith("#:")
            (above if alone else behind)[token.start[0]] = token.string[2:].strip()
    return {
        name: behind.get(last) or _block(above, first)
        for name, first, last in _assigned(ast.parse(source), "")
        if last in behind or first - 1 in above
    }


def _block(above: dict[int, str], first: int) -> str:
    taken: list[str] = []
    while first - 1 in above:
        first -= 1
        taken.insert(0, above[first])
    return " ".join(taken)


def _assigned(tree: ast.AST, prefix: str) -> Iterator[tuple[str, int, int]]:
    """Name, first and last line of every assignment to a name, in modules and classes."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _assigned(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield f"{prefix}{node.target.id}", node.lineno, node.end_lineno or node.lineno
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield f"{prefix}{node.targets[0].id}", node.lineno, node.end_lineno or node.lineno
