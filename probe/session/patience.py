"""How long the end of a session waits for what others do with it."""

from __future__ import annotations

import time
from typing import Final

#: How long the end of a session waits for all that others do with it, seconds: the metrics of its last step, a last
#: look for alarms, the last edition of the dashboards and the backends. The rest stays for ``probe doctor``.
END_S: Final = 10.0

#: Of it, what is kept for the backends while the last edition is waited for, seconds.
BACKENDS_S: Final = 3.0


def left(until: float, kept_s: float = 0.0) -> float:
    """Seconds until then, without those that are kept for what comes later; at least 0.

    Args:
        until: A time of ``time.monotonic``.
        kept_s: Seconds that are kept.
    """
    return max(0.0, until - kept_s - time.monotonic())
