"""Exceptions that leave scopes or end the process: one :class:`~probe.records.Failure` each, by the scope it came from.

An exception is seen where it leaves a scope, from the innermost outward, and at last by ``sys.excepthook``. That it is
the same one each time is known by its identity, its traceback so far and the scopes, never by holding it: nothing here
keeps an exception, a frame or a tensor alive once its row is made.

A micro-batch whose iterator is a generator doesn't hear of an exception in the body of the loop: Python closes the
generator as it unwinds the loop's frame, just as for a ``break``. But where the frame stood then tells them apart: an
exception that came from the body has, in its traceback, the very instruction that this frame was at.
"""

from __future__ import annotations

import dis
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, Final

import msgspec

from probe import exits
from probe.devices import Device
from probe.guard import Guard, attempt
from probe.hooks import Scope, current_scope, scope, silenced, spending
from probe.oom_snapshots import Snapshots
from probe.recorders.failures import failure_row, fields_of, is_failure
from probe.records import Deferred, Failure, Memory, Row
from probe.runs.layout import FAILURES_NAME

_log = logging.getLogger("probe.session")

#: Phases whose memory a row tells.
PHASES: Final = 64

#: Failures of one type from one scope that are written while they happen, and waited for; of later ones nothing is said
#: before they leave a step or end the process. Exceptions may be a trainer's way to say something.
ALIKE: Final = 20

_GENERATOR: Final = 0x20 | 0x80 | 0x200  # CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR

_RERAISE: Final = dis.opmap.get("RERAISE", -1)

#: Modules of ours that hear of a framework's exceptions.
_ADAPTERS: Final = "probe.adapters."

#: Entries of a traceback that are compared.
_DEEPEST: Final = 2_000

Place = tuple[int, int]  # a frame, by its id, and the instruction that it is at


class _Left:
    """A micro-batch whose generator was closed, and where the frames stood that closed it."""

    __slots__ = ("content", "frames", "scope")

    def __init__(self, block: scope, frame: FrameType | None) -> None:
        self.scope = block.scope
        self.content = block.values.get("content")
        self.frames: list[tuple[int, int, CodeType]] = []
        while frame is not None:
            self.frames.append((id(frame), frame.f_lasti, frame.f_code))
            if not frame.f_code.co_flags & _GENERATOR:
                return  # the loop's own; those before are generators around ours, which are closed as well
            frame = frame.f_back

    def raised(self, places: list[Place]) -> bool:
        """Whether an exception with this traceback closed it."""
        stood = dict(places)
        for frame, instruction, code in self.frames:
            if frame in stood:
                return stood[frame] == instruction or _passed_on(code, stood[frame], instruction)
        return False


def _passed_on(code: CodeType, raised_at: int, instruction: int) -> bool:
    """Whether an exception of one instruction was handed on by another: at the end of a ``with`` or a ``finally``.
    The traceback has the first, and the frame stands at the second when it is left.
    """
    if code.co_code[instruction] != _RERAISE:
        return False
    private: Any = dis

    def in_table() -> bool:
        table = private._parse_exception_table(code)
        return any(one.start <= raised_at < one.end and one.target <= instruction for one in table)

    return attempt(in_table, lambda _: False)  # of a Python whose tables are others


class _Pending:
    """An exception that may leave more."""

    __slots__ = ("id", "kind", "places", "row", "scope", "where", "written")

    def __init__(self, error: BaseException, places: list[Place], at: Scope, where: Scope, row: Failure) -> None:
        self.id, self.kind, self.places = id(error), type(error), places
        self.scope, self.where, self.row = at, where, row
        self.written = False

    def is_same(self, error: BaseException, places: list[Place]) -> bool:
        ours = self.places
        known = not ours or places[-len(ours) :] == ours
        return id(error) == self.id and type(error) is self.kind and known


class Failing:
    """Writes the failures of a process.

    Args:
        put: Takes a row with its scope and time; and whether to wait until it is written.
        directory: The run directory.
        device: Whose memory is told; None tells none.
        process: Gives the name of this process.
        save_batch: Whether the micro-batch of a failure is kept in a file.
        snapshots: Takes snapshots of the device's memory where that runs out; None takes none.

    Attributes:
        fatal: Whether an exception has ended the process, or left the last step.
        interrupted: Whether Ctrl-C has ended the process, or the recording in it.
        exited: The code with which ``sys.exit`` has left the last step; 0 where it hasn't.
    """

    def __init__(
        self,
        put: Callable[[Any, Scope, int, bool], None],
        directory: Path,
        device: Device | None,
        process: Callable[[], str],
        *,
        save_batch: bool = False,
        snapshots: Snapshots | None = None,
    ) -> None:
        self.fatal = self.interrupted = False
        self.exited = 0
        self.save_batch, self.snapshots = save_batch, snapshots
        self._put, self._directory, self._device, self._process = put, directory, device, process
        self._lock = threading.Lock()
        self._recorded = Guard("failures", "a failure can't be recorded", most=None, log=_log, level=logging.WARNING)
        failed = "the micro-batch of a failure can't be kept"
        self._kept = Guard("failures", failed, most=None, log=_log, level=logging.WARNING)
        self._last_id = 0
        self._pending: dict[int, _Pending] = {}  # by thread
        self._left: dict[int, _Left] = {}
        self._alike: dict[tuple[str, str, str], int] = {}
        self._phases: dict[str, list[int | None]] = {}  # floor and peak
        self._hooks: tuple[Any, Any] | None = None

    # ------------------------------------------------------------------------------------- on the training thread

    def raised(self, block: scope, error: BaseException) -> None:
        """An exception leaves a scope."""
        if isinstance(error, SystemExit) and block.scope is not None and block.scope.kind == "step":
            self.exited = exits.code_of(error)
        if is_failure(error) and block.scope is not None:
            with self._recorded, spending(), silenced():
                self._raised(block.scope, block.values.get("content"), error)

    def abandoned(self, block: scope, frame: FrameType | None) -> None:
        """The generator of a micro-batch is closed inside it."""
        with self._recorded:
            self._left[threading.get_ident()] = _Left(block, frame)

    def exit_code(self) -> int:
        """What the process ends with as far as is known here: 0, 1 where it has failed, 130 after Ctrl-C, and what
        ``sys.exit`` said in its last step.
        """
        return 1 if self.fatal else exits.CTRL_C if self.interrupted else self.exited

    def step_begun(self) -> None:
        """The training goes on: what has left a step before was caught."""
        self.fatal, self.exited = False, 0
        exits.went_on()

    def _raised(self, at: Scope, content: Any, error: BaseException) -> None:
        thread, places = threading.get_ident(), _places(error.__traceback__)
        pending = self._pending.get(thread)
        if pending is not None and pending.is_same(error, places) and at._is_around(pending.scope):
            pending.scope, pending.places = at, places
            pending.row.outermost = _kind(at)
        else:
            self._settle(thread)
            pending = self._new(thread, at, content, error, places)
        if at.kind == "step":
            self.fatal = pending.row.kind == "failure"
            self._write(pending, wait=True)
        elif not pending.written and self._few(pending):
            self._write(pending, wait=True)

    def _new(self, thread: int, at: Scope, content: Any, error: BaseException, places: list[Place]) -> _Pending:
        where, content = self._innermost(thread, at, content, places)
        row = failure_row(error, self._device)
        with self._lock:
            self._last_id += 1
            row.exception_id = self._last_id
        row.time_ns = time.monotonic_ns()
        if row.out_of_memory and self.snapshots is not None:
            row.snapshot_path = self.snapshots.taken()
        row.outermost, row.scope_kind = _kind(at), where.kind
        if content is not None:
            row.lengths = [int(one) for one in content.lengths or ()]
            batch = content.batch()
            if batch is not None:
                row.fields = fields_of(batch)
                row.batch_path = self._saved(batch, row) if self.save_batch else ""
        pending = self._pending[thread] = _Pending(error, places, at, where, row)
        return pending

    def _innermost(self, thread: int, at: Scope, content: Any, places: list[Place]) -> tuple[Scope, Any]:
        """The scope that it came from, and what is known of its micro-batch."""
        inner = current_scope()
        if inner is not at and at._is_around(inner):  # still open: whoever iterates is held by a frame
            block = None if inner._block is None else inner._block()
            return inner, None if block is None else block.values.get("content")
        left = self._left.pop(thread, None)
        if left is not None and left.scope is not None and at._is_around(left.scope) and left.raised(places):
            return left.scope, left.content
        return at, content or _content_around(at)

    def _few(self, pending: _Pending) -> bool:
        key = (pending.row.type, pending.where.kind, pending.where.phase or pending.where.name)
        count = self._alike[key] = self._alike.get(key, 0) + 1
        return count <= ALIKE

    def _settle(self, thread: int) -> None:
        """Another one has come, or the end: the one before was caught."""
        before = self._pending.pop(thread, None)
        if before is not None and before.written and before.row.outermost not in ("process", "thread"):
            before.row.caught = True
            self._write(before, wait=False)

    def _write(self, pending: _Pending, *, wait: bool) -> None:
        if pending.written:
            pending.row.revision += 1
        pending.written = True
        row = msgspec.structs.replace(pending.row)
        self._put(Deferred(partial(self._built, row)), pending.where, row.time_ns, wait)

    def _saved(self, batch: Any, row: Failure) -> str:
        """The micro-batch in a file, by its path below the run directory."""
        with self._kept:
            from probe.core.protocol import DataProto

            whole = batch if isinstance(batch, DataProto) else DataProto.from_single_dict(dict(batch.items()))
            name = f"{FAILURES_NAME}/{self._process()}-{row.exception_id}.batch"
            (self._directory / FAILURES_NAME).mkdir(exist_ok=True)
            whole.save_to_disk(self._directory / name)
            return name
        return ""

    # ----------------------------------------------------------------------------------------- the process's end

    def install(self) -> None:
        """Hear of exceptions that nobody catches, before those who heard of them so far."""
        before, thread_before = sys.excepthook, threading.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
            self.ended(error)
            return before(kind, error, trace)

        def thread_hook(args: threading.ExceptHookArgs) -> Any:
            if args.exc_value is not None:
                self.ended(args.exc_value, left="thread")
            return thread_before(args)

        sys.excepthook, threading.excepthook = hook, thread_hook
        self._hooks = ((hook, before), (thread_hook, thread_before))

    def ended(self, error: BaseException, left: str = "process") -> None:
        """An exception ends the process, the recording in it, or a thread.

        Args:
            error: Which.
            left: "process" or "thread".
        """
        if is_failure(error):
            with self._recorded, silenced():
                self._ended(error, left)

    def _ended(self, error: BaseException, left: str) -> None:
        thread, places, at = threading.get_ident(), _places(error.__traceback__), current_scope()
        pending = self._pending.get(thread)
        if pending is None or not pending.is_same(error, places):
            self._settle(thread)
            pending = self._new(thread, at, None, error, places)
        if left == "process":
            self.interrupted = pending.row.kind == "interrupted"
            self.fatal = self.fatal or not self.interrupted
        if pending.row.outermost != left or not pending.written:
            pending.row.outermost, pending.row.caught = left, False
            self._write(pending, wait=True)

    def close(self) -> None:
        """Nothing more is heard; what was left open was caught."""
        if self.snapshots is not None:
            self.snapshots.close()
        hooks, self._hooks = self._hooks, None
        if hooks is not None:
            owners: tuple[Any, Any] = (sys, threading)
            for owner, (ours, before) in zip(owners, hooks, strict=True):
                if owner.excepthook is ours:  # else somebody has come after us, and calls us: the row is written
                    owner.excepthook = before
        for thread in list(self._pending):
            if self._pending[thread].row.outermost == "step" and self.fatal:
                self._pending.pop(thread)
            else:
                self._settle(thread)
        self._left.clear()

    # ------------------------------------------------------------------------------------------- in the writer's thread

    def see(self, rows: Iterable[Row]) -> None:
        """Memory of phases, for the rows of failures."""
        for row in rows:
            if type(row) is not Memory or row.phase is None or row.kind not in ("phase", "watch"):
                continue
            known = self._phases.get(row.phase)
            if known is None:
                if len(self._phases) >= PHASES:
                    continue
                known = self._phases[row.phase] = [None, None]
            if row.edge == "enter":
                known[0] = row.allocated_bytes
            elif row.peak_allocated_bytes is not None:
                known[1] = max(known[1] or 0, row.peak_allocated_bytes)

    def _built(self, row: Failure) -> list[Row]:
        told = {name: {"floor_bytes": floor, "peak_bytes": peak} for name, (floor, peak) in self._phases.items()}
        row.phases = json.dumps(told)
        return [row]


def _content_around(at: Scope) -> Any:
    """Of the micro-batch that a scope lies in."""
    for one in at.ancestors():
        block = None if one._block is None or one.kind != "micro_batch" else one._block()
        if block is not None:
            return block.values.get("content")
    return None


def _kind(at: Scope) -> str:
    return at.kind if at.kind in ("micro_batch", "step") else "phase"


def _places(trace: TracebackType | None) -> list[Place]:
    """Where an exception came through, from the outermost frame inward, but for frames of our own adapters: those that
    are told of an exception are in its traceback only meanwhile.
    """
    found: list[Place] = []
    while trace is not None and len(found) < _DEEPEST:
        if not trace.tb_frame.f_globals.get("__name__", "").startswith(_ADAPTERS):
            found.append((id(trace.tb_frame), trace.tb_lasti))
        trace = trace.tb_next
    return found
