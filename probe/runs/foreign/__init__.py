"""What others wrote of a training that probe wasn't in: verl's ``file`` logger and rollout dumps, TensorBoard.

:func:`read` makes a run of it, in the layout that every reader of probe knows. What the files don't tell is missing.
"""

from __future__ import annotations

from probe.runs.foreign.reading import read, readable_below

__all__ = ["read", "readable_below"]
