"""What the publisher has said, handed on to the backends: by the session, or by the publisher when it is alone."""

from __future__ import annotations

from typing import Final

from probe.publishing.messages import Arranged, Described, Message, Numbers, Shown, Tagged
from probe.tracking.media import medium_of
from probe.tracking.tracking import Tracking

#: Backends that a person reads line by line: nothing that comes time after time belongs there.
TEXTUAL: Final = frozenset({"console", "file"})


def showing(tracking: Tracking, kind: str) -> list[str]:
    """The backends that show a kind of ``probe.tracking.media``, but for those that a person reads."""
    return [name for name in tracking.shows(kind) if name not in TEXTUAL]


def hand_on(tracking: Tracking, message: Message, newest: int = 0) -> None:
    """Give ``tracking`` what a message says; one that isn't for backends is left alone.

    Args:
        tracking: Where it goes.
        message: Of the publisher.
        newest: The step that training has come to: what shows how the run stands is of that step or a later one.
    """
    if isinstance(message, Numbers):
        names = [name for name in tracking.logger if name != "console"]
        if names:
            tracking.log(message.floats(), message.step, names)
    elif isinstance(message, Shown):
        medium = medium_of(message.medium)
        names = showing(tracking, medium.kind)
        if names:
            tracking.log({message.name: medium}, max(message.step, newest) if message.newest else message.step, names)
    elif isinstance(message, Described):
        tracking.describe(message.markdown)
    elif isinstance(message, Tagged):
        tracking.tag(message.tags)
    elif isinstance(message, Arranged):
        tracking.layout(message.charts)
