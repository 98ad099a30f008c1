"""The narrow waist: the row types. Whatever passes from one package of probe to another is one of these.

Units are in the names: ``_bytes``, ``_ns`` (nanoseconds), ``_tokens``, ``_ratio`` (0 to 1, or a quotient).
Times are ``time.monotonic_ns()`` of the writing process; its :class:`Process` row holds the wall clock that belongs
to one such time. ``None`` means unknown: no number is invented. GiB means 1024³ bytes.

A recorder fills what it knows. The session fills the stamp (``attempt`` ... ``scope``) from the process and the scope
that the event happened in; :func:`stamp` is that one place.

``(process, scope_id)`` names a scope of a run, and ``(process, batch_id)`` a batch: numbers begin anew in each process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final

import msgspec

#: Raised when a field changes its meaning or goes away. New optional fields don't need it.
SCHEMA_VERSION: Final = 2

GIB: Final = 1024**3


class Row(msgspec.Struct, kw_only=True, tag_field="table", omit_defaults=False, gc=False):  # it is in no cycle
    """What every row carries: when and where."""

    #: A full queue drops the oldest rows of sampled tables first.
    sampled: ClassVar[bool] = False

    time_ns: int = 0  #: monotonic; the end of what the row describes
    attempt: int = 1  #: one launch of the job, shared by its processes; the first is 1
    process: str = ""  #: unique in the run: "rank-00000" or "driver"; "driver.1" for one that took its place later
    rank: int | None = None  #: None until known; of a process that learns it late, readers know it in all rows
    step: int | None = None
    role: str | None = None
    phase: str | None = None
    micro_batch: int | None = None
    scope_id: int = 0  #: unique in the process; 0 is the process itself
    scope: str = ""  #: names from the outermost scope inward, joined by "/"


class Process(Row, kw_only=True, tag="process"):
    """The first row of each file: who writes, and which wall-clock time belongs to ``time_ns``."""

    schema_version: int = SCHEMA_VERSION
    revision: int = 0  #: the newest counts: each says all that its process knows of itself by then
    wall_ns: int = 0  #: ``time.time_ns()`` at ``time_ns``
    pid: int = 0
    host: str = ""
    world_size: int = 1
    device: str = ""  #: "cuda:0"; "cpu" means that memory is the process's RSS
    device_name: str = ""
    name: str = ""  #: what it is shown as while it has no rank: of an actor, a child process, a script
    node: str = ""  #: the machine as its launcher calls it; "" until known
    local_rank: int | None = None
    tables: str = ""  #: the row types that its recorders bring themselves, as probe/runs/row_types.py describes them


class Memory(Row, kw_only=True, tag="memory"):
    """Memory of one device at one moment: an end of a scope, or a sample in between.

    On a machine without an accelerator ``source`` is "process_rss" and allocated means the process's resident set;
    there is nothing to reserve, and ``reserved_bytes`` stays None.
    """

    sampled: ClassVar[bool] = True

    edge: str  #: "enter", "leave" or "sample"
    kind: str = ""  #: kind of the scope: "step", "phase", "watch", "micro_batch"; "" for a sample
    name: str = ""  #: name of the scope
    parent_id: int | None = None  #: scope_id of the enclosing scope
    device: str = ""
    source: str = ""  #: "cuda", "accelerator", "process_rss" or "fake"
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    #: Only at "leave": the largest value between the scope's ends, its children's included.
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    #: "exact"; "at_most" (counters were never reset, so the peak may be older); "at_least" (only samples are known)
    peak_kind: str | None = None
    device_used_bytes: int | None = None  #: all processes on the device
    device_total_bytes: int | None = None
    #: device_used − reserved − other_processes: context and libraries, and other processes where they aren't known
    non_torch_bytes: int | None = None
    other_processes_bytes: int | None = None  #: of the device, as the driver counts them by process id
    process_rss_bytes: int | None = None
    host_duration_ns: int | None = None  #: only at "leave", and always there
    device_duration_ns: int | None = None  #: from device events; None where there are none


class MicroBatch(Row, kw_only=True, tag="micro_batches"):
    """One micro-batch of one batch on one rank; ``micro_batch`` of the stamp is its index."""

    batch_id: int  #: unique in the process: rows of one call share it
    micro_batches: int | None  #: how many the batch was cut into; None where the code that cut it didn't tell
    sequences: int
    lengths: list[int]  #: tokens of each of its sequences
    indices: list[int] = []  #: rows of the batch that it holds
    tokens: int  #: sum of lengths
    width_tokens: int | None = (
        None  #: padded width of what is computed on; None for jagged input, and where the model packs
    )
    cap_tokens: int | None = None
    utilisation_ratio: float | None = None  #: tokens / cap
    over_cap: bool = False
    workload: float | None = None  #: attention-aware cost in arbitrary units
    source: str = ""  #: the hook point that formed it


#: Sources of padding rows that tell of micro-batches: where a process has such rows in a step, they make up its padding
#: tax, since the batches that they were cut from hold the same tokens.
PLANNED_SOURCES: Final = (
    "seqlen_balancing.partition",
    "packing.packed",
    "batched_data_dict.partition",
    "micro_batch.told",
)

#: Sources of padding rows that tell of no rectangle of the trainer's: they never count for the padding tax.
APART_SOURCES: Final = ("codec.packed", "ulysses.padded")


def counts_for_tax(source: str, cut: bool) -> bool:
    """Whether padding rows of a source make up a step's padding tax.

    Args:
        source: Of the rows.
        cut: Whether their process has told of micro-batches in their step.

    Returns:
        True where they count; SQL says the same in the views of ``probe/runs/views.sql``.

    >>> counts_for_tax("data_proto.from_dict", False), counts_for_tax("data_proto.from_dict", True)
    (True, False)
    """
    return source in PLANNED_SOURCES or (not cut and source not in APART_SOURCES)


class Padding(Row, kw_only=True, tag="padding"):
    """One cause of padding in one field of one batch. The causes of a (batch_id, field) sum exactly to
    ``rectangle_tokens − valid_tokens``; a batch without padding has one row with cause "none" and 0 tokens.
    """

    batch_id: int
    source: str  #: the hook point that formed the batch
    field: str
    cause: str  #: "longest_row", "fixed_width", "rounding", "filler_rows", "sequence_parallel", "none" …
    tokens: int
    bytes: int
    rectangle_tokens: int
    valid_tokens: int
    rows: int = 0
    width_tokens: int = 0
    decision: str = ""  #: what a codec did with the field: "jagged", "padded", "rectangular", "fallback", "object" …
    reason: str = ""  #: why it decided so, or who imposed the width
    stripped_tokens: int = 0  #: padding that was there before and was taken off
    stripped_bytes: int = 0


class Call(Row, kw_only=True, tag="calls"):
    """One call of an observed function, or one scope (``point`` is then "scope.<kind>")."""

    sampled: ClassVar[bool] = True

    point: str
    name: str = ""
    begin_ns: int = 0
    duration_ns: int = 0  #: host time
    rows_in: int | None = None
    rows_out: int | None = None
    bytes_in: int | None = None
    bytes_out: int | None = None
    keys_added: list[str] = []
    keys_removed: list[str] = []
    error: str | None = None  #: "ValueError: …" when it raised


class Reduction(Row, kw_only=True, tag="reductions"):
    """How one metric of one ``reduce_metrics`` call was reduced, and from what."""

    key: str
    reducer: str  #: "mean", "max", "min", "sum", "weighted_mean"
    chosen_by: str  #: "name" (the documented substring rule) or "type" (a Metric)
    count: int
    smallest: float | None = None
    largest: float | None = None
    nan_count: int = 0
    value: float | None = None  #: None where it isn't a number; NaN is a number


class Scalar(Row, kw_only=True, tag="scalars"):
    """One value of one metric, as it was logged."""

    key: str
    value: float  #: NaN and infinities included
    source: str = "user"  #: "user" (through Tracking) or "probe" (the session's own)


class Incident(Row, kw_only=True, tag="incidents"):
    """Something went wrong with the observing: a failed listener, dropped rows, a backend that does not answer."""

    kind: str  #: "listener", "dropped_rows", "backend", "writer", "limits" …
    where: str  #: hook point, backend name …
    message: str
    traceback: str | None = None
    count: int = 1
    switched_off: bool = False


ROW_TYPES: Final[tuple[type[Row], ...]] = (
    Process,
    Memory,
    MicroBatch,
    Padding,
    Call,
    Reduction,
    Scalar,
    Incident,
)

#: Row type by table name, as in ``run.sql("select * from micro_batches")``.
TABLES: Final[dict[str, type[Row]]] = {str(kind.__struct_config__.tag): kind for kind in ROW_TYPES}


class Deferred:
    """Rows that don't exist yet. A recorder returns one to move work off the training thread.

    Args:
        build: Makes the rows; called once, in the session's writer thread, inside ``hooks.silenced()``.
        ready: Tells whether ``build`` can be called without waiting (such as a CUDA event's ``query``); polled by the
            writer thread. None means at once.

    It must not keep large tensors alive: that would move the very memory peak that is being measured.
    """

    __slots__ = ("build", "ready")

    def __init__(self, build: Callable[[], Iterable[Row]], ready: Callable[[], bool] | None = None) -> None:
        self.build = build
        self.ready = ready


def place_of_process(process: str) -> str:
    """The place that a process has or had in its attempt: its name without the number of those who had it before.

    >>> place_of_process("rank-00003.1"), place_of_process("driver")
    ('rank-00003', 'driver')
    """
    return process.partition(".")[0]


def who(rank: int | None, process: str) -> str:
    """What a process is shown as.

    Args:
        rank: Of the process, None where it has none.
        process: What it is called in the run.

    Returns:
        Its rank; where it has none, the place that it has by its name.

    >>> who(3, "rank-00003.1"), who(None, "driver.1"), who(0, "driver")
    ('rank 3', 'driver', 'rank 0')
    """
    return place_of_process(process) if rank is None else f"rank {rank}"


def stamp(row: Row, scope: Any, *, rank: int | None, time_ns: int, process: str = "", attempt: int = 1) -> Row:
    """Write into ``row`` where and when it happened. What the recorder has set itself stays.

    Args:
        row: Changed in place and returned.
        scope: A ``probe.hooks.Scope``, duck-typed so that this module imports nothing.
        rank: The rank of this process.
        time_ns: Used where the row has none.
        process: The name of this process, unique in the run.
        attempt: The launch of the job that this process belongs to.

    Returns:
        The row.
    """
    row.attempt = attempt
    row.process = process
    row.rank = rank
    if not row.time_ns:
        row.time_ns = time_ns
    if row.step is None:
        row.step = scope.step
    if row.role is None:
        row.role = scope.role
    if row.phase is None:
        row.phase = scope.phase
    if row.micro_batch is None:
        row.micro_batch = scope.micro_batch
    if not row.scope_id:
        row.scope_id = scope.id
        row.scope = scope.path
    return row
