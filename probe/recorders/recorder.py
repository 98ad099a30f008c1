"""What a recorder is: it turns events into rows and rows into metrics, prints nothing and owns no sink."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, TypeVar

from probe.core.metric import Metric
from probe.hooks import Event
from probe.records import Row, Unbuilt

#: What a recorder may return for an event.
Rows = Row | Unbuilt | Iterable[Row | Unbuilt] | None


R = TypeVar("R", bound=Row)


class StepRows(tuple[Row, ...]):  # noqa: SLOT001  (a tuple can have none)
    """The rows of one step, which nobody can change. They are told apart by type once for all recorders."""

    _kinds: dict[type[Row], list[Any]]

    def of(self, kind: type[R]) -> list[R]:
        """Those of one type, in their order.

        Args:
            kind: Of the rows.
        """
        try:
            kinds = self._kinds
        except AttributeError:
            kinds = self._kinds = {}
            for row in self:
                kinds.setdefault(type(row), []).append(row)
        if kind.__subclasses__() and any(issubclass(one, kind) and one is not kind for one in kinds):
            return [row for row in self if isinstance(row, kind)]
        return kinds.get(kind, []).copy()


def rows_of(rows: Sequence[Row], kind: type[R]) -> list[R]:
    """The rows of one type, in their order.

    Args:
        rows: Of one step, or any others.
        kind: Of those that come back.
    """
    return rows.of(kind) if isinstance(rows, StepRows) else [row for row in rows if isinstance(row, kind)]


class Recorder:
    """Override what is needed. The session calls :meth:`enter`, :meth:`leave` and :meth:`fire` on the training
    thread, so they take the least and defer the rest; :meth:`sample` and :meth:`metrics` run in its writer thread.
    """

    #: Hook points, as names or shell patterns.
    points: ClassVar[tuple[str, ...]] = ()
    #: Metric keys that :meth:`metrics` may return; ``{role}`` and the like stand for one path segment.
    keys: ClassVar[tuple[str, ...]] = ()
    #: The row types that it makes. One that isn't in ``probe.records`` gets a table of its own, by its tag.
    rows: ClassVar[tuple[type[Row], ...]] = ()

    def enter(self, event: Event) -> Any:
        """An observed call or a scope begins; what is returned comes back as ``state``."""

    def leave(self, event: Event, state: Any) -> Rows:
        """The observed call ended. The event is emptied afterwards: take what is needed.

        Args:
            event: The event that ``enter`` was given.
            state: What ``enter`` returned.
        """

    def fire(self, event: Event) -> Rows:
        """A moment was told by ``emit``; ``event.values`` holds what was told."""

    def sample(self) -> Rows:
        """Called a few times a second while the session is open. The rows get the step that the process is in."""

    def metrics(self, rows: Sequence[Row]) -> dict[str, Metric]:
        """The metrics of one step, from this process's rows of that step (those of other recorders included)."""
        return {}

    def close(self) -> None:
        """The session ends: undo whatever :meth:`enter` or the constructor changed outside."""
