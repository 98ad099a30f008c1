"""A backend that wasn't there when the run began, opened as soon as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from probe.errors import BackendError
from probe.tracking.backends import open_backend
from probe.tracking.backends.base import Alert, Backend, Setup, UnreachableError
from probe.tracking.media import KINDS, Medium


class Late(Backend):
    """Opens the backend ``name`` at its first use that works; until then each use raises ``UnreachableError``.

    Every error of opening it counts as that: what waits for it must not be taken for calls that it refuses. As long as
    nobody knows better it shows and takes everything, and a value is settled after a second.
    """

    shows = KINDS
    settles_s = 1.0

    def __init__(self, name: str, setup: Setup) -> None:
        self._name = name
        self._setup = setup
        self.location = f"{name} (not reached yet)"
        self.backend: Backend | None = None

    def _there(self) -> Backend:
        if self.backend is None:
            try:
                opened = open_backend(self._name, self._setup)
            except UnreachableError:
                raise
            except BackendError as error:
                raise UnreachableError(str(error)) from error
            self.backend = opened
            self.location, self.run_id = opened.location, opened.run_id
            self.shows, self.settles_s = opened.shows, opened.settles_s
        return self.backend

    def takes(self, method: str) -> bool:
        """What the backend takes; as long as nobody knows everything but several calls at once."""
        return method != "log_many" if self.backend is None else self.backend.takes(method)

    def log(self, values: dict[str, float], step: int) -> None:
        """See :class:`Backend`."""
        self._there().log(values, step)

    def log_many(self, calls: Sequence[tuple[dict[str, float], int]]) -> None:
        """See :class:`Backend`."""
        self._there().log_many(calls)

    def missing(self, values: dict[str, float], step: int) -> dict[str, float]:
        """See :class:`Backend`."""
        return self._there().missing(values, step)

    def show(self, name: str, medium: Medium, step: int, wall_ns: int) -> None:
        """See :class:`Backend`."""
        backend = self._there()
        if medium.kind in backend.shows:
            backend.show(name, medium, step, wall_ns)
        else:
            message = f"can't show a {medium.kind}: {name!r} at step {step} is left out"
            self._setup.report(f"kind {medium.kind}", message)

    def params(self, parameters: dict[str, Any]) -> None:
        """See :class:`Backend`."""
        self._there().params(parameters)

    def describe(self, markdown: str) -> None:
        """See :class:`Backend`."""
        self._there().describe(markdown)

    def tag(self, tags: dict[str, str]) -> None:
        """See :class:`Backend`."""
        self._there().tag(tags)

    def layout(self, charts: dict[str, Any]) -> None:
        """See :class:`Backend`."""
        self._there().layout(charts)

    def alert(self, alert: Alert) -> None:
        """See :class:`Backend`."""
        self._there().alert(alert)

    def flush(self) -> None:
        """See :class:`Backend`."""
        self._there().flush()

    def close(self, exit_code: int) -> None:
        """See :class:`Backend`."""
        self._there().close(exit_code)
