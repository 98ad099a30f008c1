"""A run directory, copied to a store while it is written, so that a reader of the copy never loses or doubles a row.

What has ended goes once: Parquet parts, compacted files, what failures have kept. Where each process is (4 KiB each)
goes again whenever it has changed. Of a JSONL file that is still open each pass sends the lines
that came since the last one, as a piece of their own (:mod:`probe.runs.pieces`), because most stores can't append; now
and then several pieces are sent again as one. What the run has replaced is deleted from the copy, after that which
replaces it has arrived: the parts of a segment before its pieces go, a manifest before what it has merged goes. At each
moment the copy is a run by the same rules as the original, some seconds behind.

Nothing is remembered beside the copy itself: the names in it say what has arrived. So a pass that was killed is gone on
with by the next one, of whatever process. What others put there is left alone: several machines whose directories
aren't shared can copy into one place, as long as their ranks and names differ.
"""

from __future__ import annotations

import contextlib
import math
import os
import posixpath
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from probe._io import ASIDE, FileLock
from probe.errors import InputError, ProbeError, RunError
from probe.guard import on_error
from probe.redaction import without_secrets
from probe.runs.copiers import Copiers, Passes
from probe.runs.copy_target import Target
from probe.runs.files import Parts, RunFiles
from probe.runs.layout import FAILURES_NAME, INFO_NAME, PARTS_NAME, Segment, part_of
from probe.runs.manifest import Manifest, bundle_of, decode_manifest, manifest_name, manifest_number
from probe.runs.now import page_at
from probe.runs.now_file import copied
from probe.runs.pieces import Piece, cover, pack, piece_of
from probe.runs.upload import EVERY_S

#: Lines of a file that go in one piece, bytes.
PIECE_BYTES: Final = 16 * 2**20

#: As many neighbouring pieces of about one size become one. A byte of a file is sent as often as the logarithm, to this
#: base, of how many pieces its file had.
TOGETHER: Final = 8

#: Pieces are of about one size where they differ by less than this factor; below so many bytes all are.
ALIKE: Final = 4
SMALL_BYTES: Final = 64 * 2**10

#: Files that vanish while they are sent make us look again.
TRIES: Final = 20

#: The longest between two passes where the store fails, seconds; and at the end, when somebody waits.
PATIENCE_S: Final = 60.0
RETRY_S: Final = 1.0


@dataclass
class Sent:
    """What passes have done.

    Attributes:
        files: Objects that were written.
        bytes: Their size.
        removed: Objects that were deleted, as others have taken their place.
        pages: Of processes, that say where they are; not among the files. A process that lives has a new one each time.
    """

    files: int = 0
    bytes: int = 0
    removed: int = 0
    pages: int = field(default=0, compare=False)

    def __add__(self, other: Sent) -> Sent:
        more = (other.files, other.bytes, other.removed, other.pages)
        return Sent(self.files + more[0], self.bytes + more[1], self.removed + more[2], self.pages + more[3])


class Sync:
    """Copies the run in ``directory`` to ``url``. One process at a time does: see :meth:`lock`.

    Args:
        directory: A run directory of this machine.
        url: Where the copy is to be, such as ``s3://bucket/runs/project/experiment``.

    Attributes:
        shown: The URL without its secrets.
        directory: The run directory, absolute.

    Raises:
        InputError: ``directory`` is a URL, or ``url`` can't be opened.
    """

    def __init__(self, directory: str | os.PathLike[str], url: str) -> None:
        self.shown = str(without_secrets(url, True))
        self._files = RunFiles(directory)
        if not self._files.local:
            raise InputError(f"RUN: got {self._files.shown!r}, expected a run directory of this machine")
        self.directory = self._here = Path(self._files.root)
        self._there = Target(url, self.shown)
        self._copiers = Copiers(self._here, url)
        self._known: set[Segment | str] = set()  # segments and files whose copies were seen to be ours
        self._info = b""  # of the run, as it was when the copy's was seen to
        self._pages: dict[str, bytes] = {}  # of processes, as they were sent last
        self._cleaned = 0  # the number of the manifest whose work is done
        self._sent = Sent()

    def lock(self) -> FileLock:
        """The lock of all who copy this run to this place.

        Raises:
            RunError: The run directory can't be written to.
        """
        try:
            return self._copiers.lock()
        except OSError as error:
            raise RunError(f"run {self._files.shown!r} can't be written to: {error}") from error

    def passes(self) -> Passes:
        """Those that whoever has the lock has begun and completed."""
        return self._copiers.passes()

    def once(self) -> Sent:
        """Send what the run holds by now and the copy doesn't.

        Returns:
            What was done.

        Raises:
            RunError: There is no run, the store can't be written to, or the copy is of another run. What has arrived
                by then is a run, and the next call goes on from there.
        """
        self._sent = Sent()
        number = self._copiers.tell_pass(begins=True)
        for _ in range(TRIES):
            try:
                with on_error(self._forget):
                    self._pass()
            except _MovedError as error:
                moved = error
            else:
                self._copiers.tell_pass(begins=False, number=number)
                return self._sent
        raise RunError(f"run {self._files.shown!r}: files vanish while they are sent: {moved}") from moved

    def _forget(self, error: BaseException) -> None:
        if not isinstance(error, _MovedError):
            self._there.forget()  # what has arrived is to be asked again

    def _pass(self) -> None:
        self._files.info()
        self._there.look()
        self._send_info()
        segments, parts, manifest = self._files.listing()
        for segment, tables in sorted(parts.items()):
            if segment not in segments:
                self._send_parts(segment, tables)
        if manifest.number > self._cleaned:
            self._send_manifest(manifest)
        for segment in sorted(segments):
            self._send_lines(segment)
        for name in self._kept():
            self._send_file(name)
        for path in self._files.now_paths():
            self._send_now(path)

    def _send_info(self) -> None:
        """What the run is, which may become known later, of a run that an adapter began. What another machine's
        directory says of it stays, where that came first.
        """
        ours = self._read(INFO_NAME)
        if ours == self._info:
            return
        if INFO_NAME in self._there.files and _begun(self._there.read(INFO_NAME)) != _begun(ours):
            self._info = ours
            return
        if INFO_NAME not in self._there.files or self._there.read(INFO_NAME) != ours:
            self._put(INFO_NAME, ours)
        self._info = ours

    # -------------------------------------------------------------------------------------------------- what ended

    def _send_parts(self, segment: Segment, tables: Parts) -> None:
        for path in tables.values():
            self._send_file(f"{PARTS_NAME}/{posixpath.basename(path)}")
        self._remove(_in_order(self._there.pieces(segment)))

    def _send_file(self, name: str) -> None:
        """A file that is complete and never changes, unless it is there."""
        if name in self._known:
            return
        path = self._here / name
        try:
            size = path.stat().st_size
            there = self._there.files.get(name)
            if there is None:
                self._there.put_file(path, name)
                self._count(size)
        except (FileNotFoundError, RunError) as error:
            if path.exists():
                raise
            raise _MovedError(name) from error  # it was compacted since we looked
        if there not in (None, size):
            raise RunError(f"{self.shown} holds another run: its {name} has {there} bytes, and ours has {size}")
        self._known.add(name)

    def _send_manifest(self, manifest: Manifest) -> None:
        """What a compaction has merged. The manifest is sent last of its files, and counts from then on; what it has
        replaced goes after that.
        """
        name = f"{PARTS_NAME}/{manifest_name(manifest.number)}"
        before = self._manifests()
        self._check_manifest(manifest, name, before)
        if name not in self._there.files:
            for one in manifest.names():
                self._send_file(f"{PARTS_NAME}/{one}")
            self._put(name, self._read(name))
        bundles = {bundle_of(one) for found in before.values() for one in found.names()}
        self._remove(_replaced(self._there.files, manifest, bundles))
        self._cleaned = manifest.number

    def _manifests(self) -> dict[int, Manifest]:
        """Those that the copy has, by number."""
        paths = {manifest_number(posixpath.basename(one)): one for one in self._there.files}
        found = {number: self._there.read(path) for number, path in paths.items() if number is not None}
        return {number: decode_manifest(content, self.shown) for number, content in found.items()}

    def _check_manifest(self, manifest: Manifest, name: str, before: dict[int, Manifest]) -> None:
        newest = max(before, default=0)
        ours = name not in self._there.files or self._there.read(name) == self._read(name)
        held = before[newest].segments() if newest else set()
        if newest > manifest.number or not ours or not held <= manifest.segments():
            raise RunError(
                f"{self.shown} was compacted there, or another machine that copies to it compacted its own "
                f"directory; compact only the run directory that is copied, on one machine"
            )

    # --------------------------------------------------------------------------------------------- what is open

    def _send_lines(self, segment: Segment) -> None:
        """The complete lines that came since the last pass, and a larger piece in the place of several."""
        try:
            file = (self._here / segment.name).open("rb")
        except FileNotFoundError:  # it has become Parquet since: the next pass sends that
            return
        with file:
            pieces = cover(self._there.pieces(segment))
            if pieces:
                self._check_ours(segment, pieces[0], file)
            while lines := _lines_from(file, pieces[-1].end if pieces else 0):
                self._check_open(segment)
                begin = pieces[-1].end if pieces else 0
                pieces.append(self._put_piece(Piece(segment, begin, begin + len(lines)), lines))
            while count := alike(pieces):
                merged = Piece(segment, pieces[-count].begin, pieces[-1].end)
                file.seek(merged.begin)
                pieces[-count:] = [self._put_piece(merged, file.read(merged.end - merged.begin))]
        counting = set(pieces)
        self._remove(one.name for one in self._there.pieces(segment) if one not in counting)

    def _check_open(self, segment: Segment) -> None:
        if self._there.has_parts(segment):
            raise RunError(f"{self.shown} holds another run: its {segment.name} is Parquet already, and ours isn't")

    def _put_piece(self, piece: Piece, lines: bytes) -> Piece:
        self._put(piece.name, pack(lines))
        return piece

    def _check_ours(self, segment: Segment, first: Piece, file: Any) -> None:
        """That the copy's piece is of this very file, whose first line nobody else's has."""
        if segment in self._known:
            return
        theirs = self._there.read_piece(first)
        if file.read(len(theirs)) != theirs:
            raise RunError(f"{self.shown} holds another run: its {segment.name} begins with other rows than ours")
        self._known.add(segment)

    # ------------------------------------------------------------------------------------- where the processes are

    def _kept(self) -> list[str]:
        """What failures have kept: micro-batches and memory snapshots that were asked for."""
        with contextlib.suppress(OSError):
            names = sorted(one.name for one in (self._here / FAILURES_NAME).iterdir())
            return [f"{FAILURES_NAME}/{name}" for name in names if not name.endswith(ASIDE)]
        return []

    def _send_now(self, path: str) -> None:
        """Where a process is, with when that was copied; again as soon as anything of it is another."""
        name, page = posixpath.basename(path), page_at(self._files, path)
        if page is None or self._pages.get(name) == page:
            return
        if name not in self._pages and name in self._there.files and copied(self._there.read(name), 0) == page:
            self._pages[name] = page  # it has ended, and a process before this one has sent it
            return
        self._there.put(name, copied(page, time.time_ns()))
        self._sent.pages += 1
        self._pages[name] = page

    # ----------------------------------------------------------------------------------------------- the copy

    def _read(self, name: str) -> bytes:
        try:
            return (self._here / name).read_bytes()
        except FileNotFoundError as error:
            raise _MovedError(name) from error

    def _put(self, name: str, content: bytes) -> None:
        self._there.put(name, content)
        self._count(len(content))

    def _count(self, size: int) -> None:
        self._sent.files += 1
        self._sent.bytes += size

    def _remove(self, names: Iterable[str]) -> None:
        for name in list(names):
            self._there.remove(name)
            self._sent.removed += 1


def follow(
    sync: Sync,
    stop: threading.Event,
    *,
    every_s: float = EVERY_S,
    last_s: float = 0.0,
    told: Callable[[Sent | ProbeError], None] = lambda _: None,
) -> bool:
    """Copy until it is asked to stop, and once more then. A store that fails is tried again, each time a little later.

    Args:
        sync: What copies.
        stop: When it is set, what is there is still sent.
        every_s: Seconds between two passes.
        last_s: For how long the last pass is tried again where it fails.
        told: Is told of each pass, or why it failed.

    Returns:
        Whether the last pass has sent everything.
    """
    pause, deadline = every_s, math.inf
    while True:
        last = stop.is_set()
        try:
            told(sync.once())
        except ProbeError as error:
            told(error)
            if last:
                deadline = min(deadline, time.monotonic() + last_s)
                if time.monotonic() >= deadline:
                    return False
            pause = min(2 * pause, max(PATIENCE_S, every_s))
        else:
            if last:
                return True
            pause = every_s
        if last:
            time.sleep(min(pause, RETRY_S))
        else:
            stop.wait(pause)


class _MovedError(Exception):
    """A file of the run has gone since we looked: the run goes on."""


class _Begun(msgspec.Struct):
    wall_ns: int = 0


def _begun(info: bytes) -> int:
    """When the run of a run.json began; 0 where it doesn't say."""
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.json.decode(info, type=_Begun).wall_ns
    return 0


def _in_order(pieces: list[Piece]) -> Iterator[str]:
    """Names of pieces that are to go, so that those that are left say all the same, or nothing: first those that don't
    count, then the one with the first bytes, by which the rest doesn't count either.
    """
    covering = cover(pieces)
    counting = set(covering)
    yield from (one.name for one in pieces if one not in counting)
    yield from (one.name for one in covering)


def _lines_from(file: Any, begin: int) -> bytes:
    """Complete lines of an open file from byte ``begin`` on, about :data:`PIECE_BYTES` of them."""
    file.seek(begin)
    data: bytes = file.read(PIECE_BYTES)
    while b"\n" not in data:
        more = file.read(PIECE_BYTES)
        if not more:
            return b""
        data += more
    return data[: data.rfind(b"\n") + 1]


def alike(pieces: list[Piece]) -> int:
    """How many of the last pieces are to become one: 0, or at least :data:`TOGETHER`.

    Args:
        pieces: Of one segment, those that count.
    """
    limit, count = 0, 0
    for one in reversed(pieces):
        size = max(one.end - one.begin, SMALL_BYTES)
        if limit and size > limit:
            break
        limit = max(limit, ALIKE * size)
        count += 1
    return count if count >= TOGETHER else 0


def _replaced(names: Iterable[str], manifest: Manifest, bundles: set[str | None]) -> list[str]:
    """Of the files of the copy those that ``manifest`` has replaced; of ``bundles`` those that it doesn't name. The
    manifest before stays, for who saw it last.
    """
    gone, counting = manifest.segments(), set(manifest.names())
    found: list[str] = []
    for path in names:
        name = posixpath.basename(path)
        part, piece, number = part_of(name), piece_of(name), manifest_number(name)
        segment = part[1] if part is not None else piece.segment if piece is not None else None
        unnamed = bundle_of(name) in bundles and name not in counting and bundle_of(name) is not None
        if segment in gone or unnamed or (number is not None and number < manifest.number - 1):
            found.append(path)
    return found
