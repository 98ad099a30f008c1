"""Which frameworks are observed in this process. Standard library only, so that whoever asks loads nothing."""

from __future__ import annotations

import threading
from typing import Final, Protocol


class Observed(Protocol):
    """A framework under observation; :class:`probe.adapters.attachment.Attachment` is one.

    Attributes:
        framework: Its name.
        found: Names of the functions that are observed, ``module.name``.
        revision: Grows whenever something more was found or found missing.
    """

    framework: str
    found: list[str]
    revision: int

    @property
    def imported(self) -> bool:
        """Whether the framework is there."""

    @property
    def missing(self) -> list[str]:
        """Points none of whose functions is there."""

    @property
    def waiting(self) -> list[str]:
        """Points whose modules nobody has imported yet."""

    def summary(self) -> str:
        """In a sentence: its version, how many of its points are observed, and which are missing."""

    def detach(self) -> list[str]:
        """Put back the framework's own functions."""


#: By name, in the order of attaching.
ATTACHED: Final[dict[str, Observed]] = {}

#: Held while frameworks are attached and detached.
LOCK: Final = threading.RLock()


def attached() -> list[Observed]:
    """What is attached in this process, in the order of attaching."""
    with LOCK:
        return list(ATTACHED.values())
