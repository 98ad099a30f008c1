"""The parts of both sides' time in words: what each is called, and the table of their shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from probe.analysis.idle.sides import REPLICA, Parts
from probe.text import percent

#: What the parts are called.
NAMES: Final[Mapping[str, str]] = {
    "sampling": "samples",
    "work": "trainer works",
    "weights": "weights",
    "answers": "trainer waits",
    "rest": "no phase",
}

#: How to read it.
MEANT: Final = (
    "A replica is idle while it has no request under way; the columns say what the trainer does meanwhile. A step "
    "lasts until the next one begins; steps with requests that haven't ended yet are left out."
)


def table(trainer: Parts, replicas: Mapping[str, Parts]) -> list[tuple[str, ...]]:
    """The newest steps in words: a head, the trainer and each replica, with the share of its time by part.

    Args:
        trainer: Nanoseconds of the trainer, by part.
        replicas: The same of each replica.
    """
    head = ("", *(NAMES[name] for name in REPLICA))
    sides = [("trainer", {"sampling": None, **trainer}), *replicas.items()]
    return [head, *((name, *_shares(parts)) for name, parts in sides)]


def _shares(parts: Mapping[str, int | None]) -> list[str]:
    whole = sum(one or 0 for one in parts.values())
    return ["" if one is None else percent(one / whole) for one in (parts[name] for name in REPLICA)]
