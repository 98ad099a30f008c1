"""The parts of a post-mortem, as data. What isn't known is None, or an empty tuple where nothing of it was recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from probe.analysis.verdict.finding import Where

#: How a run is: an exception ended it, somebody stopped it by Ctrl-C, a process of it was killed, its ranks wait for
#: one that doesn't come, it goes on, it has ended in order; or nothing of these can be told from here.
State = Literal["failed", "interrupted", "killed", "exited", "hangs", "runs", "ended", "unknown"]

#: What happened to one process.
How = Literal["exception", "interrupt", "killed", "terminated", "awaited", "hang"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a micro-batch."""

    key: str
    shape: tuple[int | str, ...] | None = None
    dtype: str = ""
    bytes: int | None = None
    device: str = ""
    type: str = ""  #: of a column that is no array


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of a device when something happened."""

    device: str = ""
    source: str = ""  #: as of memory rows: "cuda", "process_rss" …
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    non_torch_bytes: int | None = None  #: in use on the device, and not reserved by torch in this process
    total_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class PhaseMemory:
    """Memory of one phase of a process so far."""

    phase: str
    floor_bytes: int | None = None  #: allocated when it began last
    peak_bytes: int | None = None  #: the largest of those that have ended


@dataclass(frozen=True, slots=True)
class LastRow:
    """One of the last rows that a process wrote."""

    table: str
    where: Where
    scope: str = ""
    before_s: float | None = None  #: seconds before what happened
    said: str = ""  #: what the row says, in a few words


@dataclass(frozen=True, slots=True)
class Event:
    """What happened to one process."""

    how: How
    process: str
    where: Where
    scope: str = ""  #: names from the outermost scope inward, joined by "/"
    wall_ns: int | None = None  #: by the clock of its machine; of a killed process when it was seen last
    after_s: float | None = None  #: seconds after the first event, as far as the machines' clocks agree
    left: str = ""  #: of an exception what it has left: "micro_batch", "phase", "step", "thread" or "process"
    type: str = ""  #: of the exception, qualified
    message: str = ""
    traceback: str = ""
    causes: tuple[str, ...] = ()
    out_of_memory: bool = False
    #: whether its text says that another process has gone, as where a connection was lost
    is_consequence: bool = False
    lengths: tuple[int, ...] | None = None  #: tokens of each sequence of the micro-batch
    columns: tuple[Column, ...] = ()  #: of the micro-batch
    memory: DeviceMemory | None = None
    phases: tuple[PhaseMemory, ...] = ()
    batch_path: str | None = None  #: of the micro-batch itself, where it was asked for: see ``probe.replay``
    snapshot_path: str | None = None  #: of torch's memory snapshot, where it was asked for
    #: of the training thread of a process that hangs, as its watchdog saw it; or of one that SIGTERM has ended
    stack: str = ""
    stack_line: str = ""  #: its innermost line

    @property
    def tokens(self) -> int | None:
        """Tokens of the micro-batch; None where its lengths aren't known."""
        return None if self.lengths is None else sum(self.lengths)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one process is, or was seen last."""

    process: str
    where: Where
    #: "failed", "killed" (gone without an end of its recording), "terminated" (so by SIGTERM), "interrupted",
    #: "exited", "ended", "runs", or "unknown" where the process is of another machine and hasn't ended its recording
    state: str
    scope: str = ""  #: names of the open scopes, joined by "/"; "" between scopes
    host: str = ""
    pid: int | None = None
    since_ns: int | None = None  #: wall clock when the innermost scope was entered
    seen_ns: int | None = None  #: wall clock of its writer's last round
    #: of the training thread, where its watchdog has seen it stay in this scope, or SIGTERM has ended it
    stack: str = ""
    stack_line: str = ""
    exit_code: int = 0  #: of one that was interrupted (130) or has exited
