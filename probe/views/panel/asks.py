"""What a page asks the panel for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from probe.live.history import wish_of
from probe.live.pump import Pump

#: What a page may ask for at once.
MOST_WISHES: Final = 64


def answer_ask(pump: Pump, content: Mapping[str, Any]) -> None:
    """What a page asks for: all that is kept, another attempt, what all steps say, or the rows of a step.

    Args:
        pump: What follows the run, and sends the answer.
        content: What the page has sent; what can't be understood is left out.
    """
    if content.get("ask") == "keyframe":
        pump.ask_for_all()
    attempt = content.get("attempt")
    known = [None, *(number for number, _, _ in pump.feed.attempts)]
    if content.get("ask") == "attempt" and not isinstance(attempt, bool) and attempt in known:
        pump.ask_for_attempt(attempt)
    wanted, step = content.get("wanted"), content.get("step")
    if content.get("ask") == "history" and isinstance(wanted, list):
        pump.ask_for_past([one for one in map(wish_of, wanted[:MOST_WISHES]) if one is not None])
    if content.get("ask") == "step" and isinstance(step, int) and not isinstance(step, bool):
        pump.ask_for_step(step)
