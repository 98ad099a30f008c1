"""The narrow waist: the row types. Whatever passes from one package of probe to another is one of these.

Units are in the names: ``_bytes``, ``_ns`` (nanoseconds), ``_tokens``, ``_ratio`` (0 to 1, or a quotient).
Times are ``time.monotonic_ns()`` of the writing process; its :class:`Process` row holds the wall clock that belongs
to one such time. ``None`` means unknown: no number is invented. GiB means 1024³ bytes.

A recorder fills what it knows. The session fills the stamp (``attempt`` ... ``scope``) from the process and the scope
that the event happened in; :func:`stamp` is that one place.

``(process, scope_id)`` names a scope of a run, and ``(process, batch_id)`` a batch: numbers begin anew in each process.

All names are imported from here: each row type from the file of its subject, what all rows carry from ``row``.
"""

from __future__ import annotations

from typing import Final

from probe.records.batches import APART_SOURCES, PLANNED_SOURCES, MicroBatch, Padding, Partition, counts_for_tax
from probe.records.calls import Call
from probe.records.deferred import Deferred, Later, Unbuilt
from probe.records.incidents import Failure, Incident, Stack
from probe.records.memory import GIB, HostMemory, Memory
from probe.records.metrics import Reduction, Scalar
from probe.records.process import SCHEMA_VERSION, Process, place_of_process, who
from probe.records.row import Row, stamp, stamp_all
from probe.records.samples import (
    FATES,
    NOT_KNOWN,
    GroupBaseline,
    LaterPasses,
    Rollout,
    Sample,
    TokenBlock,
    TokenFate,
    TokenIdentity,
)

__all__ = [
    "APART_SOURCES",
    "FATES",
    "GIB",
    "NOT_KNOWN",
    "PLANNED_SOURCES",
    "ROW_TYPES",
    "SCHEMA_VERSION",
    "TABLES",
    "Call",
    "Deferred",
    "Failure",
    "GroupBaseline",
    "HostMemory",
    "Incident",
    "Later",
    "LaterPasses",
    "Memory",
    "MicroBatch",
    "Padding",
    "Partition",
    "Process",
    "Reduction",
    "Rollout",
    "Row",
    "Sample",
    "Scalar",
    "Stack",
    "TokenBlock",
    "TokenFate",
    "TokenIdentity",
    "Unbuilt",
    "counts_for_tax",
    "place_of_process",
    "stamp",
    "stamp_all",
    "who",
]

ROW_TYPES: Final[tuple[type[Row], ...]] = (
    Process,
    Memory,
    HostMemory,
    MicroBatch,
    Partition,
    Padding,
    Sample,
    TokenBlock,
    Rollout,
    TokenFate,
    LaterPasses,
    TokenIdentity,
    GroupBaseline,
    Call,
    Reduction,
    Scalar,
    Incident,
    Failure,
    Stack,
)

#: Row type by table name, as in ``run.sql("select * from micro_batches")``.
TABLES: Final[dict[str, type[Row]]] = {str(kind.__struct_config__.tag): kind for kind in ROW_TYPES}
