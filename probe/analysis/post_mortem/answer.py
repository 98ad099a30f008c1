"""What a post-mortem is: what ended a run, as data, as text and as a page."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from probe.analysis.post_mortem.markup import html_of
from probe.analysis.post_mortem.record import Event, LastRow, Standing, State
from probe.analysis.post_mortem.wording import text


@dataclass(frozen=True, slots=True)
class PostMortem:
    """What ended a run. ``print`` shows it as text and a notebook as a page; :meth:`to_dict` gives it as data."""

    state: State
    sentence: str  #: what ended it; or that nothing has, or that it isn't known
    attempt: int
    why: str = ""  #: what supports it
    events: tuple[Event, ...] = ()  #: what happened to each process, the cause first and then in their order
    last_rows: tuple[LastRow, ...] = ()  #: of the first event's process, the newest last
    standing: tuple[Standing, ...] = ()  #: each process, by rank
    clock_error_s: float | None = None  #: by which the times of different machines may be wrong; None: not known

    @property
    def first(self) -> Event | None:
        """What came first: the cause; None where nothing happened."""
        return self.events[0] if self.events else None

    @property
    def happened(self) -> bool:
        """Whether something has ended the run, or holds it up."""
        return self.state in ("failed", "interrupted", "killed", "exited", "hangs")

    def to_dict(self) -> dict[str, Any]:
        """All of it, as JSON has it: dicts, lists, texts, numbers and None."""
        told: dict[str, Any] = _plain(asdict(self))
        return told

    def __str__(self) -> str:
        return text(self)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return html_of(self)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, tuple | list) else value
