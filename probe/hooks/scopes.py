"""Where the program is: the scope (step, role, phase, micro-batch) of each thread and task."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final, Protocol

from probe.hooks.silence import busy

_thread_id: Final = threading.get_ident

#: The values of what carries none.
NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Block(Protocol):
    """What opens a scope and leaves it again: :class:`probe.hooks.scope`."""

    @property
    def values(self) -> Mapping[str, Any]:
        """What it was given beyond step, role, phase and micro-batch."""


class Scope:
    """Where the program is. Immutable by convention; a child inherits what it doesn't set.

    Args:
        kind: One of ``"process"``, ``"step"``, ``"phase"``, ``"watch"``, ``"micro_batch"``, or a user's own word.
        name: What a person calls it, such as the phase's name.
        parent: The enclosing scope; None for the process.
        step: The trainer's global step; None inherits.
        role: Who works, such as ``"actor"``; None inherits.
        phase: What is done, such as ``"old_log_prob"``; None inherits.
        micro_batch: Index of the micro-batch within its batch, from 0; None inherits.

    Attributes:
        id: Unique in the process, 0 for the process itself.
        parent: The enclosing scope, None for the process.
        kind: One of ``"process"``, ``"step"``, ``"phase"``, ``"watch"``, ``"micro_batch"``, or a user's own word.
        name: What a person calls it, such as the phase's name.
        step: The trainer's global step.
        role: Who works, such as ``"actor"``.
        phase: What is done, such as ``"old_log_prob"``.
        micro_batch: Index of the micro-batch within its batch, from 0.
    """

    __slots__ = ("_begun_ns", "_block", "_path", "id", "kind", "micro_batch", "name", "parent", "phase", "role", "step")

    def __init__(
        self,
        kind: str,
        name: str,
        parent: Scope | None = None,
        *,
        step: int | None = None,
        role: str | None = None,
        phase: str | None = None,
        micro_batch: int | None = None,
    ) -> None:
        self.id = next(_scope_ids)
        self._block: weakref.ref[Block] | None = None  # what opened it and has not left it yet
        self._path: str | None = None
        self._begun_ns = 0  # as of whoever follows the scopes; 0 where nobody does
        self.kind = kind
        self.name = name
        self.parent = parent
        if parent is not None:
            step = parent.step if step is None else step
            role = parent.role if role is None else role
            phase = parent.phase if phase is None else phase
            micro_batch = parent.micro_batch if micro_batch is None else micro_batch
        self.step: int | None = step
        self.role: str | None = role
        self.phase: str | None = phase
        self.micro_batch: int | None = micro_batch

    def __repr__(self) -> str:
        return f"Scope({self.path!r}, step={self.step}, role={self.role!r}, micro_batch={self.micro_batch})"

    @property
    def path(self) -> str:
        """Names from the outermost scope inward, joined by ``/``; empty for the process."""
        if self._path is None:  # asked for by every row of the scope
            names = [scope.name for scope in self.ancestors() if scope.parent is not None]
            self._path = "/".join(reversed(names))
        return self._path

    @property
    def values(self) -> Mapping[str, Any]:
        """What :class:`scope` was given of it, such as the tokens of a micro-batch; nothing once its block is gone."""
        block = None if self._block is None else self._block()
        return NOTHING if block is None else block.values

    def ancestors(self) -> Iterator[Scope]:
        """This scope, its parent, and so on outward."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def _is_left_behind(self) -> bool:
        """Whether its block is gone and never left it: an interrupt came before the block began, or as it ended."""
        return self._block is not None and self._block() is None

    def _is_around(self, scope: Scope) -> bool:
        return any(one is self for one in scope.ancestors())


def inherited(
    kind: str,
    name: str,
    parent: Scope,
    step: int | None,
    role: str | None,
    phase: str | None,
    micro_batch: int | None,
) -> Scope:
    """``Scope(…)`` with a parent, at half its cost: it is made at the beginning of each block."""
    made = _new_scope(Scope)
    made.id = next(_scope_ids)
    made._block = made._path = None
    made._begun_ns = 0
    made.kind = kind
    made.name = name
    made.parent = parent
    made.step = parent.step if step is None else step
    made.role = parent.role if role is None else role
    made.phase = parent.phase if phase is None else phase
    made.micro_batch = parent.micro_batch if micro_batch is None else micro_batch
    return made


_new_scope: Final = object.__new__
_scope_ids = itertools.count()
PROCESS: Final = Scope("process", "process")
current: ContextVar[Scope] = ContextVar("probe_scope", default=PROCESS)


def current_scope() -> Scope:
    """The scope that the calling thread or task is in."""
    return current.get()


def begin_at_root() -> None:
    """Forget what the calling thread or task is in: a session begins, or a cell of a notebook."""
    current.set(PROCESS)
    busy.discard(_thread_id())  # a block of :class:`silenced` can be left behind, too


def open_around(found: Scope) -> Scope:
    """The innermost scope from ``found`` outward that nobody left behind."""
    while found._is_left_behind() and found.parent is not None:
        found = found.parent
    return found
