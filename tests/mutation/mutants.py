"""Mutants: a source with one small thing changed, found in its syntax tree and drawn at random."""

from __future__ import annotations

import ast
import difflib
import hashlib
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

_COMPARISONS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
#: Strings that are names of something, in contrast to prose for people.
_NAME = re.compile(r"[\w./-]+")


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Attributes:
        path: The file, relative to the repository.
        kind: What was done, such as "negate a condition".
        line: Where, from 1.
        begin: The first character of the source that is replaced.
        end: The first character after it.
        text: What stands there instead.
    """

    path: str
    kind: str
    line: int
    begin: int
    end: int
    text: str

    @property
    def name(self) -> str:
        """The same for the same change of the same file, whatever stands around it."""
        return hashlib.sha256(repr((self.path, self.kind, self.begin, self.text)).encode()).hexdigest()[:16]

    def applied(self, source: str) -> str:
        """The file with the change."""
        return source[: self.begin] + self.text + source[self.end :]

    def diff(self, source: str) -> str:
        """The change as a diff."""
        before, after = (text.splitlines(keepends=True) for text in (source, self.applied(source)))
        return "".join(difflib.unified_diff(before, after, f"a/{self.path}", f"b/{self.path}", n=2))


class _Finder(ast.NodeVisitor):
    """Collects every mutant of one file."""

    def __init__(self, path: str, source: str) -> None:
        self.found: list[Mutant] = []
        self._path = path
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line.encode()))
        self._bytes = source.encode()

    def _at(self, line: int, column: int) -> int:
        return len(self._bytes[: self._starts[line - 1] + column].decode())

    def _add(self, kind: str, node: Any, text: str) -> None:
        begin = self._at(node.lineno, node.col_offset)
        end = self._at(node.end_lineno, node.end_col_offset)
        if self._source[begin:end] != text:
            self.found.append(Mutant(self._path, kind, node.lineno, begin, end, text))

    # What has no behaviour, or whose places in the source Python 3.11 doesn't know.

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        pass

    # Statements.

    def _function(self, node: Any) -> None:
        for child in [*node.args.defaults, *(one for one in node.args.kw_defaults if one), *node.body]:
            self.visit(child)

    visit_FunctionDef = visit_AsyncFunctionDef = _function

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        self._condition(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self._condition(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._condition(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._condition(test)
        self.generic_visit(node)

    def _condition(self, test: ast.expr) -> None:
        self._add("negate a condition", test, f"(not ({ast.unparse(test)}))")

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self._add("return None", node, "return None")
            self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring, or the dots of a protocol
            self._add("delete a statement", node, "pass")
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._add("delete a statement", node, "pass")  # the error's own words aren't changed: no visit

    def visit_Assign(self, node: ast.Assign) -> None:
        if any(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._add("delete a statement", node, "pass")
        self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._add("delete a statement", node, "pass")
        self.visit(node.value)

    def visit_Delete(self, node: ast.Delete) -> None:
        self._add("delete a statement", node, "pass")

    # Expressions.

    def visit_Compare(self, node: ast.Compare) -> None:
        for at, operator in enumerate(node.ops):
            operators = [*node.ops]
            operators[at] = _COMPARISONS[type(operator)]()
            other = ast.Compare(node.left, operators, node.comparators)
            self._add("swap a comparison", node, f"({ast.unparse(other)})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in _ARITHMETIC and not _is_text(node.left) and not _is_text(node.right):
            other = ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)
            self._add("swap an operator", node, f"({ast.unparse(other)})")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        self._add("swap and/or", node, f"({ast.unparse(other)})")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add("drop a not", node, f"({ast.unparse(node.operand)})")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if not (isinstance(node.func, ast.Name) and node.func.id == "cast"):
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._add("change a constant", node, repr(not value))
        elif isinstance(value, int | float):
            self._add("change a constant", node, repr(value + 1))
        elif isinstance(value, str) and _NAME.fullmatch(value):
            self._add("change a constant", node, repr(value + "_"))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def mutants_of(path: str, source: str) -> list[Mutant]:
    """Every mutant of a file, in the order of its lines; those that don't compile are left out."""
    finder = _Finder(path, source)
    finder.visit(ast.parse(source))
    return [mutant for mutant in finder.found if _compiles(mutant.applied(source))]


def _compiles(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def drawn(targets: list[str], count: int, seed: int, skip: Sequence[str] = ()) -> list[tuple[str, Mutant]]:
    """``count`` mutants of each target at random, together with the target."""
    dice = random.Random(seed)
    found: list[tuple[str, Mutant]] = []
    for target in targets:
        everything = [
            mutant
            for path in modules_of(target)
            if path not in skip
            for mutant in mutants_of(path, (ROOT / path).read_text("utf-8"))
        ]
        found.extend((target, mutant) for mutant in _evenly(everything, count, dice))
    return found


def _evenly(everything: list[Mutant], count: int, dice: random.Random) -> Iterator[Mutant]:
    """Of each kind about as many: else half of them would be constants."""
    kinds: dict[str, list[Mutant]] = {}
    for mutant in everything:
        kinds.setdefault(mutant.kind, []).append(mutant)
    for _ in range(min(count, len(everything))):
        kind = dice.choice(sorted(kinds))
        yield kinds[kind].pop(dice.randrange(len(kinds[kind])))
        if not kinds[kind]:
            del kinds[kind]


def modules_of(target: str) -> list[str]:
    """The files of a package, or the one file that a target is."""
    path = ROOT / target
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return [file.relative_to(ROOT).as_posix() for file in files]
