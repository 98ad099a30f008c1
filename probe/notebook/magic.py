"""``%load_ext probe``: the scope of a cell, how recording stands, and opening a run.

IPython is imported when the extension is loaded, and not before.
"""

from __future__ import annotations

import ast
import inspect
import logging
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from types import CodeType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from probe.errors import InputError, ProbeError
from probe.guard import Guard, on_error
from probe.hooks import OFF, Scope, is_off, phase, scope, watch
from probe.inspection.plain_text import one_line
from probe.notebook.cell_status import Status
from probe.notebook.cell_summary import CellSummary, Direct, from_session
from probe.session import current_session

if TYPE_CHECKING:
    from probe.runs.reader import Run
    from probe.session import Session
    from probe.views.panel.tab import Tab

_log = logging.getLogger("probe.notebook.magic")

USAGE: Final = """usage:
  %%probe [phase=NAME] [role=NAME] [step=N]   run the cell in this scope; a summary stands under it
  %probe status                               what is being recorded
  %probe open RUN                             the run in a directory or at a URL
  %probe tab [RUN]                            its panel in a tab of JupyterLab; of the run that is being recorded"""

NAMES: Final = ("phase", "role", "step")


def load_ipython_extension(ipython: Any) -> None:
    """Called by ``%load_ext probe``: makes ``%probe`` and ``%%probe`` known. Loading twice is harmless."""
    ipython.register_magic_function(ProbeMagic(ipython).probe, "line_cell", "probe")


def unload_ipython_extension(ipython: Any) -> None:
    """Called by ``%unload_ext probe``: takes ``%probe`` and ``%%probe`` away again."""
    for kind in ("line", "cell"):
        ipython.magics_manager.magics[kind].pop("probe", None)


class Scoped(NamedTuple):
    """What ``%%probe`` was asked for."""

    phase: str | None = None
    role: str | None = None
    step: int | None = None

    @property
    def title(self) -> str:
        """Such as "phase update, role actor, step 3"."""
        given = [f"{name} {value}" for name, value in zip(NAMES, self, strict=True) if value is not None]
        return ", ".join(given) or "cell"

    @contextmanager
    def entered(self, session: Session | None) -> Iterator[scope]:
        """The scopes around the cell; yields the outermost."""
        with ExitStack() as stack:
            opened: list[scope] = []
            if self.step is not None:
                around = scope("step", "step", step=self.step) if session is None else session.step(self.step)
                opened.append(stack.enter_context(around))
            if self.phase is not None:
                opened.append(stack.enter_context(phase(self.phase, role=self.role)))
            elif self.role is not None:
                opened.append(stack.enter_context(watch(role=self.role)))
            elif not opened:
                opened.append(stack.enter_context(scope("cell", "cell")))
            yield opened[0]


def parsed(line: str) -> Scoped:
    """The arguments of ``%%probe``.

    Raises:
        InputError: They aren't ``phase=…``, ``role=…`` or ``step=…``, each once.

    >>> parsed('phase="old log prob" step=3')
    Scoped(phase='old log prob', role=None, step=3)
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise InputError(f"{line!r}: {error}") from None
    given: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name not in NAMES or not equals or not value:
            raise InputError(f"got {word!r}, expected {', '.join(f'{one}=…' for one in NAMES)}")
        if name in given:
            raise InputError(f"{name}: given twice")
        given[name] = value
    return Scoped(given.get("phase"), given.get("role"), _step(given.get("step")))


def _step(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal():
        raise InputError(f"step: got {text!r}, expected a whole number of at least 0")
    return int(text)


class ProbeMagic:
    """The magics of one IPython shell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._run: Run | None = None
        self._why = ""  # the last summary couldn't be made
        failed = "a cell's summary can't be made"
        self._guard = Guard("%%probe", failed, tell=self._unmade, most=None, log=_log, level=logging.WARNING)

    def probe(self, line: str, cell: str | None = None) -> Any:
        """%%probe [phase=NAME] [role=NAME] [step=N]   run the cell in this scope; a summary stands under it
        %probe status                               what is being recorded
        %probe open RUN                             the run in a directory or at a URL
        %probe tab [RUN]                            its panel in a tab of JupyterLab; of the run that is being recorded
        """
        __tracebackhide__ = True
        if cell is not None:
            self._cell(self._checked(parsed, line), cell)
            return None
        return self._checked(self._line, line)

    # ------------------------------------------------------------------------------------------------ one line

    def _checked(self, action: Any, line: str) -> Any:
        """``action(line)``; what is wrong with the arguments becomes IPython's own kind of message."""
        from IPython.core.error import UsageError

        __tracebackhide__ = True
        try:
            return action(line)
        except ProbeError as error:
            raise UsageError(f"%probe: {error}\n{USAGE}") from None

    def _line(self, line: str) -> Any:
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise InputError(f"{line!r}: {error}") from None
        if words == ["status"]:
            return Status.now()
        if len(words) == 2 and words[0] == "open":
            from probe.opened import open_run

            return open_run(words[1] if "://" in words[1] else _expanded(words[1]))
        if words and words[0] == "tab" and len(words) <= 2:
            return _tab(words[1:])
        raise InputError(f"got {line!r}" if words else "got nothing")

    # -------------------------------------------------------------------------------------------------- a cell

    def _cell(self, asked: Scoped, cell: str) -> None:
        __tracebackhide__ = True
        codes = self._compiled(cell)
        session = current_session()
        direct = Direct() if session is None else None
        failures: list[BaseException] = []
        begin_ns = end_ns = time.monotonic_ns()
        outermost: scope | None = None
        try:
            with on_error(failures.append), direct or nullcontext(), asked.entered(session) as outermost:
                begin_ns = time.monotonic_ns()
                try:
                    self._execute(codes)
                finally:
                    end_ns = time.monotonic_ns()
        finally:
            if outermost is not None:
                base = _base(asked, end_ns - begin_ns, failures)
                self._show(base, session, direct, outermost, (begin_ns, end_ns))

    def _compiled(self, cell: str) -> list[CodeType]:
        """The cell as IPython would compile it, so that nothing runs when it can't."""
        from IPython.core.error import UsageError

        __tracebackhide__ = True
        shell = self._shell
        source = "\n" + shell.transform_cell(cell)  # the line of the magic itself counts in a traceback
        name = shell.compile.cache(source, shell.execution_count, raw_code="\n" + cell)
        with shell.compile.extra_flags(ast.PyCF_ALLOW_TOP_LEVEL_AWAIT):
            tree = shell.transform_ast(shell.compile.ast_parse(source, filename=name))
            silent = shell.displayhook.semicolon_at_end_of_expression(cell)
            parts = _parts(tree, "none" if silent else shell.ast_node_interactivity)
            codes = [shell.compile(part, name, mode) for part, mode in parts]
        if any(code.co_flags & inspect.CO_COROUTINE for code in codes):
            raise UsageError(
                "%%probe: a cell with top-level `await` can't run in a magic; use `with probe.phase(…):` in the cell"
            )
        return codes

    def _execute(self, codes: Sequence[CodeType]) -> None:
        __tracebackhide__ = True
        for code in codes:
            exec(code, self._shell.user_global_ns, self._shell.user_ns)  # noqa: S102  (the user's own cell)

    def _show(
        self, base: CellSummary, session: Session | None, direct: Direct | None, opened: scope, span: tuple[int, int]
    ) -> None:
        from IPython import display as ipython

        if opened.scope is None:
            return
        inside = opened.scope
        shown = self._guard.call(lambda: self._summary(base, session, direct, inside, span))
        if shown is None:  # the cell has run all the same
            shown = replace(base, measured="the summary failed", note=self._why)
        put: Any = ipython.display  # its functions have no annotations
        put(shown)

    def _summary(
        self, base: CellSummary, session: Session | None, direct: Direct | None, opened: Scope, span: tuple[int, int]
    ) -> CellSummary:
        if is_off():
            return replace(base, measured="nothing", note=OFF)
        if session is not None:
            return from_session(session, self._reader(session), opened, span, base)
        return base if direct is None else direct.summary(opened, base)

    def _unmade(self, kind: str, where: str, message: str, error: BaseException | None, count: int, off: bool) -> None:
        del kind, where, message, count, off  # the cell shows the error alone
        self._why = one_line(error, 300)

    def _reader(self, session: Session) -> Run:
        """A reader of the session's run, kept: it then reads what is new alone."""
        from probe.runs.reader import Run

        if self._run is None or self._run.path != str(session.directory):
            self._run = Run(session.directory)
        return self._run


def _expanded(path: str) -> str:
    """The path of a run as a person types it, ``~`` being their home."""
    return os.path.expanduser(path)  # noqa: PTH111  (Path's raises where there is no such user)


def _tab(words: Sequence[str]) -> Tab:
    """The tab of the named run, or of the one that is being recorded.

    Raises:
        InputError: None is named, and none is being recorded.
        RunNotFoundError: There is none.
    """
    from probe.runs.finding import find_run
    from probe.views.panel.tab import Tab

    if words:
        return Tab(find_run(_expanded(words[0])))
    session = current_session()
    if session is None:
        raise InputError("tab: got no run, and this kernel records none; name one: %probe tab RUN")
    return Tab(str(session.directory))


def _base(asked: Scoped, host_ns: int, failures: Sequence[BaseException]) -> CellSummary:
    error = f"{type(failures[0]).__name__}: {one_line(failures[0])}" if failures else None
    return CellSummary(asked.title, "", host_ns, error=error)


def _parts(tree: ast.Module, interactivity: str) -> list[tuple[ast.AST, str]]:
    """Statements, and expressions whose value is shown, as the shell is set to show them."""
    body = tree.body
    shown: set[int] = set()
    if interactivity == "all":
        shown = {at for at, node in enumerate(body) if isinstance(node, ast.Expr)}
    elif interactivity != "none" and body and isinstance(body[-1], ast.Expr):
        shown = {len(body) - 1}
    parts: list[tuple[ast.AST, str]] = []
    for at, node in enumerate(body):
        parts.append((ast.Interactive([node]), "single") if at in shown else (ast.Module([node], []), "exec"))
    return parts
