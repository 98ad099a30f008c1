"""Where a process is now, in a small memory-mapped file beside its rows: what it held is there after ``kill -9``, too.

Rows come a few times a second; a process that is killed in between never says where it was. So the scopes that are open
are written through, each when it is entered and left, by a copy into a page that belongs to the operating system.

The file has one page of :data:`SIZE` bytes, little-endian, and what is appended to it::

    0     8 bytes   MAGIC
    8     int64     the state: how many changes there were, times 256, plus how many scopes are open (MOVING: unknown)
    16    int64     monotonic ns when the innermost scope was left last; 0 before
    24    int64     rounds of the writer's thread
    32    int64     wall-clock ns of the last of them, by the anchor in Identity
    40    int64     time.time_ns() when the process ended its recording; 0 while it hasn't
    48    int64     how it ended: FINE, FAILED, or FAILED plus the code that it ended with, as far as that is known
    56    int64     bytes of what follows
    64              the process, as JSON: Identity
    1016  int64     of a copy that was made of the page: time.time_ns() when it was; 0 in the page itself
    1024  SLOTS slots of SLOT bytes, one for each open scope from the outermost: monotonic ns when it was entered, its
                    id, step and micro-batch (−1 is none), and the text "kind, name, role, phase", joined by SEPARATOR
    4096  of a process that got SIGTERM the stack that it was in, as text: see probe.runs.termination

A scope is in its slot before the state counts it, and is out of the state before its slot is used again. So whoever
reads the page twice and finds the same state has what was true at one moment, and so has who reads what a killed
process left.

The file follows one thread, the training thread: the one that entered a step last. Before there is a step, and while
no scope of it is open, it is the next thread that enters a scope. What other threads do meanwhile isn't in it. Of
asyncio tasks of this thread, which interleave, it has the one that entered or left a scope last.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import struct
import threading
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from probe.guard import Guard
from probe.hooks import Scope, current_scope
from probe.records import Process
from probe.runs import termination

_log = logging.getLogger("probe.runs")

MAGIC: Final = b"probenow"
SIZE: Final = 4096
MOVING: Final = 255
SLOTS_AT: Final = 1024
SLOT: Final = 256
SLOTS: Final = (SIZE - SLOTS_AT) // SLOT
SEPARATOR: Final = "\x1f"
IDENTITY_AT: Final = 64
#: Between two rounds of a process's writer there may be so much time: of two that were seen last within it nobody knows
#: which was there longer.
ROUND_NS: Final = 500_000_000

FINE: Final = 0
FAILED: Final = 1

#: Numbers of the int64 words of the page.
STATE, LEFT, ROUNDS, HEARTBEAT, ENDED, HOW, IDENTITY_BYTES = range(1, 8)
COPIED: Final = SLOTS_AT // 8 - 1

#: A slot, as ``struct`` has it.
SLOT_FORMAT: Final = f"<qqqq{SLOT - 32}s"

#: An int64 as a memoryview writes it fastest.
_WORD: Final = "l" if struct.calcsize("l") == 8 else "q"

_clock: Final = time.monotonic_ns
_NAME_BYTES: Final = 80
_SHORT_BYTES: Final = 40
_KEPT_TEXTS: Final = 4096

#: Of the stacks of scopes that are written, how many lie outside when they are deeper than there are slots.
_OUTER: Final = SLOTS - 1


class Identity(msgspec.Struct, kw_only=True):
    """Whose file it is, and which wall-clock time belongs to its monotonic ones."""

    process: str = ""
    rank: int | None = None
    attempt: int = 1
    pid: int = 0
    host: str = ""
    role: str | None = None
    name: str = ""
    time_ns: int = 0
    wall_ns: int = 0


class Longest:
    """The longest that scopes of one name took in this process, nanoseconds; 0 before the first has ended."""

    __slots__ = ("ns",)

    def __init__(self) -> None:
        self.ns = 0


class _Text:
    """What a slot says of a scope, and the longest of its like."""

    __slots__ = ("kind", "longest", "phase", "role", "text")

    def __init__(self, text: bytes, kind: str, role: str | None, phase: str | None, longest: Longest) -> None:
        self.text, self.kind, self.role, self.phase, self.longest = text, kind, role, phase, longest


class _Level:
    """A slot as the training thread goes in and out of it: the scope that is in it, and the slots beside it.

    Args:
        scope: That is in it; of the level outside of all slots, the process.
        offset: Of the slot in the page.
        outside: The level around it; None where a scope that is left has to be looked for.
    """

    __slots__ = ("found", "inside", "offset", "outside", "scope")

    def __init__(self, scope: Scope, offset: int, outside: _Level | None) -> None:
        self.scope, self.offset, self.outside = scope, offset, outside
        self.inside: _Level | None = None
        self.found = _NO_TEXT


_NO_TEXT: Final = _Text(b"", "", None, None, Longest())


class NowFile:
    """Writes one of these files. Nothing here raises into training, and a directory that takes no such file (a store
    that can't map memory, a full disk) has none.

    Args:
        path: Of the file; one that is there is written over.
        process: Whose it is.

    Attributes:
        path: Of the file.
        thread: The training thread, by its identifier.
    Raises:
        OSError: The file can't be made or mapped.
    """

    def __init__(self, path: Path, process: Process) -> None:
        self.path = path
        self.thread = threading.get_ident()
        self._state = 0
        # Where each scope fails, an incident each would be more than all rows.
        failed = "the scope that this process is in can't be recorded"
        self._guard = Guard(path.name, failed, tell=None, most=None, log=_log, level=logging.WARNING)
        process_scope = next(reversed(tuple(current_scope().ancestors())))
        self._levels = [_Level(process_scope, 0, None)]  # the first is outside of all scopes
        for at in range(SLOTS):
            self._levels.append(_Level(process_scope, SLOTS_AT + at * SLOT, self._levels[-1]))
            self._levels[-2].inside = self._levels[-1]
        self._deep = _Level(process_scope, 0, None)  # where there are more scopes than slots
        self._here = self._levels[0]
        self._texts: dict[tuple[str, str, str | None, str | None], _Text] = {}
        self._longest: dict[tuple[str, str, str | None, str | None], Longest] = {}
        self._found: dict[str, _Text] = {}  # the newest by name: found faster than by all four words
        self._offset_ns = 0
        self._page: Any = _mapped(path)  # None once it is closed
        self._words: Any = memoryview(self._page).cast(_WORD)
        self._pack = struct.Struct(SLOT_FORMAT).pack_into
        self.tell(process)
        termination.note(path)

    @property
    def at(self) -> Scope:
        """The innermost scope that is open on the training thread; the process's own where none is."""
        return self._here.scope

    # ------------------------------------------------------------------------------------- on the training thread

    # Each of the two is called for each scope: what they ask for stands in slots, one step away, and is asked for once.

    def entered(self, scope: Scope, thread: int, now_ns: int) -> None:
        """A scope is current from now on.

        Args:
            scope: Which.
            thread: The identifier of the thread that entered it.
            now_ns: ``time.monotonic_ns()`` when it was entered.
        """
        try:
            if thread != self.thread and not self._takes_over(scope, thread):
                return
            scope._begun_ns = now_ns
            here = self._here
            level = here.inside
            if scope.parent is not here.scope or level is None:
                self._rewrite(scope)
                return
            try:
                found = self._found[scope.name]
            except KeyError:
                found = self._text((scope.kind, scope.name, scope.role, scope.phase))
            if found.phase is not scope.phase or found.kind is not scope.kind or found.role is not scope.role:
                found = self._text((scope.kind, scope.name, scope.role, scope.phase))
            level.found = found
            level.scope = scope
            step, micro_batch = scope.step, scope.micro_batch
            pack = self._pack  # a call of self._pack itself would look for a method first
            pack(
                self._page,
                level.offset,
                now_ns,
                scope.id,
                -1 if step is None else step,
                -1 if micro_batch is None else micro_batch,
                found.text,
            )
            self._here = level
            self._state = self._words[STATE] = self._state + 257  # one change more, and one scope more
        except Exception as error:  # for each scope, so no `with`; nothing of this is training's affair
            self._failed(error)

    def left(self, scope: Scope, outer: Scope, thread: int) -> None:
        """A scope isn't current any more.

        Args:
            scope: Which.
            outer: The one that is current from now on.
            thread: The identifier of the thread that left it.
        """
        try:
            if thread != self.thread:
                return
            now_ns = _clock()
            here = self._here
            outside = here.outside
            if scope is not here.scope or outer is not scope.parent or outside is None:
                self._rewrite(outer)
                return
            longest, took_ns = here.found.longest, now_ns - scope._begun_ns
            if took_ns > longest.ns:  # noqa: PLR1730  (max() costs twice as much)
                longest.ns = took_ns
            words = self._words
            self._state = words[STATE] = self._state + 255  # one change more, and one scope less
            words[LEFT] = now_ns
            self._here = outside
        except Exception as error:  # as above
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        if self._page is not None:  # else another thread has closed it meanwhile
            self._guard.caught(error)

    def _takes_over(self, scope: Scope, thread: int) -> bool:
        """Whether the file follows another thread from now on, the one that enters this scope."""
        free = self._here.scope.parent is None or all(one.ident != self.thread for one in threading.enumerate())
        if scope.kind != "step" and not free:
            return False
        self.thread = thread
        return True

    def _rewrite(self, scope: Scope) -> None:
        """All open scopes anew: the last change wasn't of the scope that the page has as the innermost."""
        chain = [one for one in scope.ancestors() if one.parent is not None][::-1]
        shown = chain if len(chain) <= SLOTS else [*chain[:_OUTER], chain[-1]]
        words = self._words
        words[STATE] = self._state = (self._state | 255) + 1 + MOVING
        for level, one in zip(self._levels[1:], shown, strict=False):
            found = level.found = self._text((one.kind, one.name, one.role, one.phase))
            level.scope = one
            step = -1 if one.step is None else one.step
            micro_batch = -1 if one.micro_batch is None else one.micro_batch
            self._pack(self._page, level.offset, one._begun_ns, one.id, step, micro_batch, found.text)
        self._here = self._levels[len(chain)] if len(chain) <= SLOTS else self._deep
        self._here.scope = scope
        words[LEFT] = _clock()
        words[STATE] = self._state = (self._state | 255) + 1 + len(shown)

    def _text(self, key: tuple[str, str, str | None, str | None]) -> _Text:
        kind, name, role, phase = key
        found = self._texts.get(key)
        if found is not None:
            self._found[name] = found
            return found
        if len(self._texts) >= _KEPT_TEXTS:  # names that never come again, such as a sample's
            self._texts.clear()
            self._found.clear()
            self._longest.clear()
        cut = (_cut(kind, _SHORT_BYTES // 2), _cut(name), _cut(role, _SHORT_BYTES), _cut(phase))
        alike = (kind, "", role, phase) if kind == "micro_batch" else key  # their names are their numbers
        longest = self._longest.setdefault(alike, Longest())
        made = self._texts[key] = self._found[name] = _Text(SEPARATOR.join(cut).encode(), kind, role, phase, longest)
        return made

    # ---------------------------------------------------------------------------------------- in the writer's thread

    def longest_ns(self, scope: Scope) -> int:
        """The longest that a scope of this name took in this process so far, nanoseconds; 0 where none has ended.

        Args:
            scope: Which.
        """
        return self._text((scope.kind, scope.name, scope.role, scope.phase)).longest.ns

    def beat(self) -> None:
        """The writer's thread has come round."""
        if self._page is not None:
            self._words[ROUNDS] += 1
            # Not time.time_ns(): a wall clock may be set anew meanwhile, and times of one process are compared.
            self._words[HEARTBEAT] = time.monotonic_ns() + self._offset_ns

    def tell(self, process: Process) -> None:
        """Whose file it is, as is known by now.

        Args:
            process: The row of the process.
        """
        if self._page is None:
            return
        self._offset_ns = process.wall_ns - process.time_ns
        fields = {name: getattr(process, name) for name in Identity.__struct_fields__}
        told = msgspec.json.encode(Identity(**fields))
        if len(told) > COPIED * 8 - IDENTITY_AT:
            told = msgspec.json.encode(Identity(**{**fields, "name": "", "role": None}))
        self._words[IDENTITY_BYTES] = 0
        self._page[IDENTITY_AT : IDENTITY_AT + len(told)] = told
        self._words[IDENTITY_BYTES] = len(told)

    def close(self, *, failed: bool = False, exit_code: int = 0) -> None:
        """The process has ended its recording. Safe to call twice.

        Args:
            failed: Whether an exception has ended it.
            exit_code: What the process ends with otherwise, as far as that is known: 130 after Ctrl-C.
        """
        page, self._page = self._page, None
        if page is None:
            return
        termination.forget(self.path)
        code = exit_code & 255 if isinstance(exit_code, int) else 1  # what the system makes of it: sys.exit(-1) is 255
        self._words[HOW] = FAILED if failed else FAILED + code if code else FINE
        self._words[ENDED] = time.time_ns()
        self._let_go(page)

    def disown(self) -> None:
        """In a forked child: the page is the parent's."""
        page, self._page = self._page, None
        if page is not None:
            self._let_go(page)

    def _let_go(self, page: mmap.mmap) -> None:
        with contextlib.suppress(BufferError):  # another thread is about to write into it
            self._words.release()
            page.close()


def _mapped(path: Path) -> mmap.mmap:
    """A new file of one page, mapped. The page is written first: one that the disk has no room for would end the
    process when it is written to as memory.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        if os.write(descriptor, MAGIC + bytes(SIZE - len(MAGIC))) != SIZE:
            raise OSError(f"{path}: the disk took only a part of its {SIZE} bytes")
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, SIZE)
        return mmap.mmap(descriptor, SIZE)
    finally:
        os.close(descriptor)


def copied(page: bytes, now_ns: int) -> bytes:
    """A page as it is in a copy of the run, which says when it was made: what is old there says nothing of the process.

    Args:
        page: Of a process, with what was appended to it.
        now_ns: ``time.time_ns()`` of who copies.
    """
    at = COPIED * 8
    return page[:at] + now_ns.to_bytes(8, "little", signed=True) + page[at + 8 :]


def _cut(text: str | None, size: int = _NAME_BYTES) -> str:
    """A text that has its place: of at most so many bytes, without the separator."""
    given = (text or "").replace(SEPARATOR, " ").replace("\0", " ")
    return given.encode("utf-8", "replace")[:size].decode("utf-8", "ignore")
