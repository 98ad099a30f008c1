"""Where each process of a run is now, or was seen last: from the files of :mod:`probe.runs.now_file`."""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from probe.records import Process
from probe.runs.files import RunFiles
from probe.runs.liveness import state_of
from probe.runs.now_file import (
    COPIED,
    ENDED,
    FAILED,
    HEARTBEAT,
    HOW,
    IDENTITY_AT,
    IDENTITY_BYTES,
    LEFT,
    MAGIC,
    MOVING,
    ROUNDS,
    SEPARATOR,
    SIZE,
    SLOT,
    SLOT_FORMAT,
    SLOTS,
    SLOTS_AT,
    STATE,
    Identity,
)

#: Looks at a file whose process changes scopes while it is read.
_TRIES: Final = 50

_PAUSE_S: Final = 0.0005


class OpenScope(msgspec.Struct, kw_only=True, frozen=True):
    """A scope that a process is in."""

    kind: str
    name: str
    scope_id: int  #: as of rows
    begun_ns: int | None  #: wall-clock ns when it was entered; None where that isn't known
    step: int | None = None
    role: str | None = None
    phase: str | None = None
    micro_batch: int | None = None


class Now(msgspec.Struct, kw_only=True):
    """Where one process is, or where it was seen last."""

    process: str
    rank: int | None
    attempt: int
    step: int | None = None  #: of the innermost open scope; None where none is open
    role: str | None = None
    phase: str | None = None
    micro_batch: int | None = None
    scope: str = ""  #: names of the open scopes from the outermost inward, joined by "/"; "" between scopes
    kind: str = ""  #: of the innermost one
    begun_ns: int | None = None  #: wall-clock ns when the innermost one was entered
    left_ns: int | None = None  #: wall-clock ns when a scope was left last
    scope_id: int = 0  #: of the innermost one, as of rows; 0 is the process itself
    sequence: int = 0  #: changes of scopes so far
    scopes: list[OpenScope] = []  #: from the outermost inward
    heartbeat_ns: int | None = None  #: wall-clock ns of the last round of the process's writer
    heartbeats: int = 0  #: its rounds so far
    alive: bool | None = None  #: whether the process is there; None where that can't be told from here
    closed: bool = False  #: whether it has ended its recording in order, and not by an exception
    failed: bool = False  #: whether an exception has ended its recording
    exit_code: int = 0  #: of one that was closed, as far as it is known: 130 after Ctrl-C, or what sys.exit said
    ended_ns: int | None = None  #: wall-clock ns when it ended its recording; None where it hasn't
    terminated: bool = False  #: whether SIGTERM reached it while it recorded, and had its usual effect
    stack: str = ""  #: of the thread that got it; "" without
    clock_ns: int | None = (
        None  #: what its times are to be held against: its own clock now, where that can be read here
    )
    copied_ns: int | None = None  #: of a copy of the run, wall-clock ns when this was copied; None in the run itself
    host: str = ""
    pid: int = 0
    name: str = ""  #: what a process without a rank is shown as


#: Columns of the frame that :meth:`probe.runs.reader.Run.now` gives; ``scopes`` is a list of dicts there.
COLUMNS: Final = tuple(one.name for one in msgspec.structs.fields(Now))


def now(files: RunFiles, attempt: int | None = None) -> list[Now]:
    """Where each process of an attempt is, or was seen last. It reads a page a process, whatever the run's size.

    Args:
        files: Of the run.
        attempt: Which attempt; None is the newest. 0 is all of them.

    Returns:
        One entry a process that has such a file, those with a rank first, by rank; of several attempts in their order.
        Runs of an older probe, and directories that take no such file, have none.

    Raises:
        RunError: The store doesn't answer.
    """
    pages = [page for path in files.now_paths() if (page := page_at(files, path)) is not None]
    told = [found for page in pages if (found := _decoded(page)) is not None]
    wanted = max((one.attempt for one in told), default=1) if attempt is None else attempt
    chosen = [one for one in told if wanted in (0, one.attempt)]
    return sorted(chosen, key=lambda one: (one.attempt, one.rank is None, one.rank or 0, one.process))


def failed(files: RunFiles, attempt: int | None = None) -> list[Now]:
    """The processes of an attempt that an exception has ended: where there are any the run has failed.

    Args:
        files: As of :func:`now`.
        attempt: As of :func:`now`.

    Raises:
        RunError: The store doesn't answer.
    """
    return [one for one in now(files, attempt) if one.failed]


def frame_rows(found: Iterable[Now]) -> list[dict[str, Any]]:
    """As rows of a frame, whose columns are :data:`COLUMNS`.

    Args:
        found: What :func:`now` gave.
    """
    return [msgspec.to_builtins(one) for one in found]


def page_at(files: RunFiles, path: str) -> bytes | None:
    """The page of a process as it was at one moment, with what was appended to it; None where the file is none of ours,
    or goes while it is read.

    Args:
        files: Of the run.
        path: Out of ``files.now_paths()``.

    Raises:
        RunError: The store doesn't answer.
    """
    page = b""
    for _ in range(_TRIES):
        with contextlib.suppress(FileNotFoundError), files.asking():
            again = bytes(files.system.cat_file(path))
            if again[: len(MAGIC)] != MAGIC or len(again) < SIZE:
                return None
            if _state(again) == _state(page) and again[SLOTS_AT:] == page[SLOTS_AT:] and _depth(again) != MOVING:
                return again
            page = again
            if files.local:
                time.sleep(0 if _depth(page) != MOVING else _PAUSE_S)
            continue
        return None
    return page


def _state(page: bytes) -> int:
    return _word(page, STATE) if page else -1


def _depth(page: bytes) -> int:
    return _state(page) & 255


def _word(page: bytes, number: int) -> int:
    return int.from_bytes(page[number * 8 : number * 8 + 8], "little", signed=True)


def _decoded(page: bytes) -> Now | None:
    size = _word(page, IDENTITY_BYTES)
    try:
        identity = msgspec.json.decode(page[IDENTITY_AT : IDENTITY_AT + size], type=Identity)
    except msgspec.MsgspecError:  # it is just being written
        return None
    offset_ns = identity.wall_ns - identity.time_ns
    depth = _depth(page)
    scopes = [] if depth > SLOTS else [_scope(page, at, offset_ns) for at in range(depth)]
    how = _word(page, HOW)
    ended, left, beat = _word(page, ENDED), _word(page, LEFT), _word(page, HEARTBEAT)
    alive = _alive(identity, ended)
    found = Now(
        process=identity.process,
        rank=identity.rank,
        attempt=identity.attempt,
        role=identity.role,
        scope="/".join(one.name for one in scopes),
        left_ns=left + offset_ns if left else None,
        sequence=_state(page) >> 8,
        scopes=scopes,
        heartbeat_ns=beat or None,
        heartbeats=_word(page, ROUNDS),
        alive=alive,
        closed=bool(ended) and how != FAILED,
        failed=bool(ended) and how == FAILED,
        exit_code=how - FAILED if ended and how > FAILED else 0,
        ended_ns=ended or None,
        terminated=not ended and len(page) > SIZE,
        stack="" if ended else page[SIZE:].decode("utf-8", "replace"),
        clock_ns=time.monotonic_ns() + offset_ns if alive else None,  # it is of this machine, and so is our clock
        copied_ns=_word(page, COPIED) or None,
        host=identity.host,
        pid=identity.pid,
        name=identity.name,
    )
    for inner in scopes[-1:]:
        found.step, found.phase, found.micro_batch = inner.step, inner.phase, inner.micro_batch
        found.role = inner.role or identity.role
        found.kind, found.begun_ns, found.scope_id = inner.kind, inner.begun_ns, inner.scope_id
    return found


def _scope(page: bytes, at: int, offset_ns: int) -> OpenScope:
    begun, scope_id, step, micro_batch, text = struct.unpack_from(SLOT_FORMAT, page, SLOTS_AT + at * SLOT)
    told = text.rstrip(b"\0").decode("utf-8", "replace").split(SEPARATOR)
    kind, name, role, phase = (*told, "", "", "", "")[:4]
    return OpenScope(
        kind=kind,
        name=name,
        scope_id=scope_id,
        begun_ns=begun + offset_ns if begun else None,
        step=None if step < 0 else step,
        role=role or None,
        phase=phase or None,
        micro_batch=None if micro_batch < 0 else micro_batch,
    )


def _alive(identity: Identity, ended: int) -> bool | None:
    """A process of another machine can't be asked, and one that has ended its recording may live on."""
    row = Process(host=identity.host, pid=identity.pid, wall_ns=identity.wall_ns)
    state = state_of(row)
    if state == "unknown":
        return False if ended else None
    return state == "running"
