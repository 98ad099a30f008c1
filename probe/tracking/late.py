"""A backend that wasn't there when the run began, opened as soon as it is."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from probe.errors import BackendError
from probe.tracking.backends import Backend, Setup, UnreachableError, open_backend
from probe.tracking.media import KINDS, Medium


class Late:
    """Opens the backend ``name`` at its first use that works; until then each use raises ``UnreachableError``.

    Every error of opening it counts as that: what waits for it must not be taken for calls that it refuses.
    """

    def __init__(self, name: str, setup: Setup) -> None:
        self._name = name
        self._setup = setup
        self.backend: Backend | None = None

    def _there(self) -> Any:
        if self.backend is None:
            try:
                self.backend = open_backend(self._name, self._setup)
            except UnreachableError:
                raise
            except BackendError as error:
                raise UnreachableError(str(error)) from error
        return self.backend

    def __getattr__(self, name: str) -> Any:
        if name == "log_many" and self.backend is not None:
            return getattr(self.backend, name)
        raise AttributeError(name)

    @property
    def location(self) -> str:
        """Of the backend; until it's there, that it isn't."""
        return str(getattr(self.backend, "location", f"{self._name} (not reached yet)"))

    @property
    def shows(self) -> Collection[str]:
        """What the backend shows; everything, as long as nobody knows."""
        return KINDS if self.backend is None else getattr(self.backend, "shows", ())

    @property
    def run_id(self) -> str:
        """Of the backend; empty until it's there."""
        return str(getattr(self.backend, "run_id", ""))

    @property
    def settles_s(self) -> float:
        """Of the backend; a second, as long as nobody knows."""
        return 1.0 if self.backend is None else float(getattr(self.backend, "settles_s", 0.0))

    def log(self, values: dict[str, float], step: int) -> None:
        """See :class:`Backend`."""
        self._there().log(values, step)

    def missing(self, values: dict[str, float], step: int) -> dict[str, float]:
        """See :class:`Backend`."""
        ask = getattr(self._there(), "missing", None)
        return values if ask is None else ask(values, step)

    def show(self, name: str, medium: Medium, step: int, wall_ns: int) -> None:
        """See :class:`Backend`."""
        backend = self._there()
        if medium.kind in getattr(backend, "shows", ()):
            backend.show(name, medium, step, wall_ns)
        else:
            message = f"can't show a {medium.kind}: {name!r} at step {step} is left out"
            self._setup.report(f"kind {medium.kind}", message)

    def _pass_on(self, method: str, *content: Any) -> None:
        send = getattr(self._there(), method, None)
        if send is not None:
            send(*content)

    def params(self, parameters: dict[str, Any]) -> None:
        """See :class:`Backend`."""
        self._pass_on("params", parameters)

    def describe(self, markdown: str) -> None:
        """See :class:`Backend`."""
        self._pass_on("describe", markdown)

    def tag(self, tags: dict[str, str]) -> None:
        """See :class:`Backend`."""
        self._pass_on("tag", tags)

    def layout(self, charts: dict[str, Any]) -> None:
        """See :class:`Backend`."""
        self._pass_on("layout", charts)

    def flush(self) -> None:
        """See :class:`Backend`."""
        self._pass_on("flush")

    def close(self, exit_code: int) -> None:
        """See :class:`Backend`."""
        self._there().close(exit_code)
