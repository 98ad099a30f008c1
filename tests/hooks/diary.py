"""Listeners that write down what they hear or raise where they are told to, and a function and a moment to hear."""

from __future__ import annotations

from typing import Any

from probe import hooks
from probe.hooks import Event, Listener, observed, point


class Diary(Listener):
    """Writes down what it hears, taking what it needs, as a listener must."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.lines: list[Any] = []
        self.failures: list[tuple[str, str, int, bool]] = []

    def _note(self, moment: str, event: Event, more: Any = None) -> None:
        name = event.scope.path if event.point is hooks.SCOPE else event.point.name
        self.lines.append((moment, name, more))

    def enter(self, event: Event) -> Any:
        self._note("enter", event)
        return event.point.name

    def leave(self, event: Event, state: Any) -> None:
        assert state == event.point.name
        assert event.end_ns >= event.begin_ns > 0
        self._note("leave", event, event.result if event.error is None else repr(event.error))

    def fire(self, event: Event) -> None:
        self._note("fire", event, dict(event.values))

    def failed(self, event: Event, error: BaseException, count: int, switched_off: bool) -> None:
        self.failures.append((event.point.name, repr(error), count, switched_off))


class Broken(Diary):
    """Raises where it is told to."""

    def __init__(self, *moments: str, error: BaseException | None = None) -> None:
        super().__init__()
        self.moments = moments
        self.error = error or ValueError("listener")
        self.calls = 0

    def _note(self, moment: str, event: Event, more: Any = None) -> None:
        self.calls += 1
        if moment in self.moments:
            raise self.error


@observed("test.add", "two numbers")
def add(left: int, right: int = 10, *rest: int, scale: int = 1) -> int:
    """Add."""
    if scale == 0:
        raise ZeroDivisionError("scale")
    return (left + right + sum(rest)) * scale


MOMENT = point("test.moment", "a moment")
