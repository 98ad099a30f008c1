"""The environment variable that switches probe off: ``PROBE=off``."""

from __future__ import annotations

import os
from typing import Final

from probe.errors import InputError

#: The environment variable that switches probe off: ``PROBE=off``.
SWITCH: Final = "PROBE"

#: What is said to who wants to see what nobody recorded.
OFF: Final = f"{SWITCH}=off in the environment: nothing is recorded, so there is no run to show; unset it to record"

_OFF: Final = frozenset({"off", "0", "false", "no", "disabled"})
_ON: Final = frozenset({"", "on", "1", "true", "yes", "enabled"})


def is_off() -> bool:
    """Whether the environment says ``PROBE=off``: nobody then hears of anything, and a session records nothing.

    It is asked when a listener subscribes and when a session starts, never at a point.

    Raises:
        InputError: The variable has another value than off, 0, false, no, disabled, or on, 1, true, yes, enabled.
    """
    value = os.environ.get(SWITCH, "").strip().lower()
    if value not in _OFF | _ON:
        raise InputError(f"{SWITCH}: the environment says {value!r}, expected 'off' or 'on'")
    return value in _OFF
