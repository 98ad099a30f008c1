"""What others wrote of a training that probe wasn't in: verl's ``file`` logger and rollout dumps, Transformers'
``trainer_state.json``, TensorBoard.

:func:`read` makes a run of it, in the layout that every reader of probe knows. What the files don't tell is missing.
"""

from __future__ import annotations

from probe.runs.foreign.origin import read_from, written_by
from probe.runs.foreign.reading import read, readable_below

__all__ = ["read", "read_from", "readable_below", "written_by"]
