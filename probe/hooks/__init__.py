"""The ground floor: named points in the code, and the scope that the program is in.

Three things happen here and nothing else:

* :func:`observed` marks a function as a point, :func:`emit` tells of a moment inside one, and a :class:`Listener`
  that was given to :func:`subscribe` hears of both. With no listener a point costs one attribute test and the call.
* :class:`Scope` says where the program is (step, role, phase, micro-batch). It is a context variable, so threads and
  asyncio tasks each have their own. Entering and leaving one is itself a point, :data:`SCOPE`. An interrupt between
  two bytecodes can leave one behind that nobody leaves; :class:`scope` says how that is repaired.
* A listener never harms the caller: what it raises is counted, logged once with its traceback, told to the
  listener's own :meth:`Listener.failed`, and after :data:`MAX_FAILURES` the listener is switched off.

Standard library only, so that a training worker can carry it for free. All names are imported from here. Its parts are
these; each knows only those before it:

* ``switch``: ``PROBE=off``; ``own_time``: what all this takes; ``silence``: threads of which nobody hears
* ``scopes``: where the program is
* ``listeners``: points, events, and who listens to what; ``guard``: nothing that a listener raises gets past it
* ``calls``: calls of other code, and bodies that stop in between; ``wrappers``: functions that run others inside these
* ``telling``: blocks and moments, as the program tells them; ``observing``: functions that are points
"""

from __future__ import annotations

from probe.hooks.calls import call_of
from probe.hooks.listeners import (
    MAX_FAILURES,
    Event,
    Listener,
    Point,
    Subscription,
    point,
    points,
    subscribe,
    unsubscribe,
)
from probe.hooks.observing import observed
from probe.hooks.own_time import spending, spent_ns
from probe.hooks.scopes import PROCESS, Scope, begin_at_root, current_scope
from probe.hooks.silence import silenced
from probe.hooks.switch import OFF, SWITCH, is_off
from probe.hooks.telling import SCOPE, emit, follow, in_graph, phase, scope, watch

__all__ = [
    "MAX_FAILURES",
    "OFF",
    "PROCESS",
    "SCOPE",
    "SWITCH",
    "Event",
    "Listener",
    "Point",
    "Scope",
    "Subscription",
    "begin_at_root",
    "call_of",
    "current_scope",
    "emit",
    "follow",
    "in_graph",
    "is_off",
    "observed",
    "phase",
    "point",
    "points",
    "scope",
    "silenced",
    "spending",
    "spent_ns",
    "subscribe",
    "unsubscribe",
    "watch",
]
