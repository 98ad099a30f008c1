"""Rows of what went wrong: with the observing, with the training, and scopes that are open for much too long."""

from __future__ import annotations

from msgspec import field

from probe.records.row import Row


class Incident(Row, kw_only=True, tag="incidents"):
    """Something went wrong with the observing: a failed listener, dropped rows, a backend that does not answer."""

    kind: str  #: "listener", "dropped_rows", "backend", "writer", "limits" …
    where: str  #: hook point, backend name …
    message: str
    traceback: str | None = None
    count: int = 1
    switched_off: bool = False


class Failure(Row, kw_only=True, tag="failures"):
    """Something went wrong with the training: an exception left a micro-batch, a phase, a watched function or a step,
    or ended the process. The stamp is that of the innermost scope that it left, with its micro-batch.

    It is written at once, and again as it leaves more: of the rows of one ``(process, exception_id)`` the one with the
    largest ``revision`` counts, and says what the others said. ``run.failures()`` has it alone.
    """

    exception_id: int  #: unique in the process; from 1
    revision: int = 0
    kind: str = "failure"  #: or "interrupted", by Ctrl-C
    #: what it has left so far: "micro_batch", "phase" (or a watched function), "step", "thread" (it ended
    #: one) or "process" (it ended that, or the recording in it)
    outermost: str
    caught: bool | None = None  #: whether somebody has caught it; None while that isn't known
    scope_kind: str = ""  #: of the innermost scope that it left
    type: str  #: qualified, such as "torch.OutOfMemoryError"
    message: str = ""  #: up to 2,000 characters
    traceback: str = ""  #: up to 20,000 characters, from its middle where it is longer
    causes: list[str] = field(default_factory=list)  #: "type: message" of what it came from, the nearest first
    out_of_memory: bool = False  #: of a device, also where that is among its causes
    lengths: list[int] = field(default_factory=list)  #: tokens of each sequence of the micro-batch
    fields: str = "{}"  #: of the micro-batch, as JSON: by key its shape, dtype, bytes and device
    device: str = ""
    source: str = ""  #: as of memory
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    non_torch_bytes: int | None = None
    device_total_bytes: int | None = None
    phases: str = "{}"  #: as JSON: by phase of this process so far, floor_bytes at its last begin and peak_bytes
    batch_path: str = ""  #: the micro-batch itself, below the run directory; "" unless it was asked for
    snapshot_path: str = ""  #: torch's memory snapshot, likewise


class Stack(Row, kw_only=True, tag="stacks"):
    """A scope is open for much longer than ever before: where the training thread is in the code."""

    open_ns: int  #: how long the scope has been open
    threshold_ns: int  #: beyond which it counted as overdue
    longest_ns: int | None = None  #: the longest that a scope of this name took in this process; None without one
    kind: str = ""  #: of the scope
    stack: str = ""  #: the innermost line last, up to 20,000 characters
    innermost: str = ""  #: its last line, as "file:line function"
    thread: str = ""
    seen: bool = True  #: False where the thread couldn't be looked at
    #: The oldest collective of the process that hadn't ended, as PyTorch's flight recorder names it; "" where there was
    #: none, or none is recorded.
    collective: str = ""
    collective_group: str = ""  #: its process group: the description, else the name
    collective_number: int | None = None  #: which of the group's it is, from 1; None from rank to rank
    collective_sizes: str = ""  #: of what goes in, such as "8x3, 4"
    collective_ns: int | None = None  #: how long it had been open
