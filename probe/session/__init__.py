"""The front door of recording: :func:`start` begins a session, and :class:`Session` is what a training calls.

In the order of reading: ``starting`` puts a session together, ``session`` is what users call, ``recording`` joins
recorders and the writer of their rows, ``steps`` and ``step_metrics`` make the metrics of a step, ``sending`` and
``outlets`` bring them to other systems, ``forks`` and ``inert`` are sessions of forked children, and of nobody.

One session per process. It owns nothing that a view needs: whoever wants to see the run reads its directory.
"""

from __future__ import annotations

from typing import Final

from probe import own_cost
from probe.session.session import LOG, Session, current_session
from probe.session.starting import start, start_automatically

__all__ = ["KEYS", "LOG", "Session", "current_session", "start", "start_automatically"]

#: Metrics of probe's own cost; the recorders declare theirs.
KEYS: Final = own_cost.KEYS
