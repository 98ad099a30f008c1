"""What stands between the hooks and one recorder: its rows go to the writer, and a budget may thin them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from probe.hooks import SCOPE, Event, Listener, Scope
from probe.own_cost import Budget
from probe.recorders.recorder import Recorder, Rows
from probe.runs.row_types import table_name

#: Writes an incident: kind, where, message, exception, count, and whether it was switched off by it.
Tell = Callable[[str, str, str, BaseException | None, int, bool], None]


class Listening(Listener):
    """Hands a recorder's rows to the writer.

    Args:
        recorder: Whose.
        add_rows: Of the writer: takes rows, the scope they belong to and the time.
        tell: Writes the incident of a recorder that fails.

    Attributes:
        recorder: Whose rows they are.
    """

    def __init__(self, recorder: Recorder, add_rows: Callable[[Rows, Scope, int], None], tell: Tell) -> None:
        self.recorder = recorder
        own: Any = self
        own.enter = recorder.enter  # nothing is done to what it says
        self._leave, self._fire = recorder.leave, recorder.fire
        self._add_rows = add_rows
        self._tell = tell

    def __repr__(self) -> str:
        return f"recorder {type(self.recorder).__name__}"

    def leave(self, event: Event, state: Any) -> None:
        rows = self._leave(event, state)
        if rows is not None:
            self._add_rows(rows, event.scope, event.end_ns)

    def fire(self, event: Event) -> None:
        rows = self._fire(event)
        if rows is not None:
            self._add_rows(rows, event.scope, event.end_ns)

    def failed(self, event: Event, error: BaseException, count: int, switched_off: bool) -> None:
        self._tell("listener", event.point.name, f"{self!r}: {error!r}", error, count, switched_off)


class Thinned(Listening):
    """One whose rows may be thinned: at inner points its recorder hears nothing while the budget is exceeded.

    A scope that is left out is one with the scope around it: it gets that one's id, so that what lies inside it, scopes
    and batches, is found where it would be without it. Where calls alone tell of scopes, these are told by their paths,
    and none is left out.

    Args:
        recorder: As of :class:`Listening`.
        add_rows: Likewise.
        tell: Likewise.
        budget: Says when rows are left out, and counts them.
        scopes: Whether scopes may be left out, too.
    """

    def __init__(
        self,
        recorder: Recorder,
        add_rows: Callable[[Rows, Scope, int], None],
        tell: Tell,
        budget: Budget,
        *,
        scopes: bool,
    ) -> None:
        super().__init__(recorder, add_rows, tell)
        own: Any = self
        own.enter = self._enter
        self._budget = budget
        self._scopes = scopes
        self._table = table_name(recorder.rows[0])

    def _enter(self, event: Event) -> Any:
        is_scope = event.point is SCOPE
        if (is_scope and not self._scopes) or not self._budget.leaves_out(event):
            return self.recorder.enter(event)
        where, around = event.point.name, event.scope.parent
        if is_scope and around is not None:
            where = f"{SCOPE.name}.{event.scope.kind}"
            event.scope.id = around.id
        self._budget.count(self._table, where, 2 if self._table == "memory" else 1)
        return _LEFT_OUT

    def leave(self, event: Event, state: Any) -> None:
        if state is not _LEFT_OUT:
            super().leave(event, state)


_LEFT_OUT: Final = object()
