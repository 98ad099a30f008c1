"""The rows of a JSONL file that is still written to, as columns, as far as it has been read."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from probe.runs import changes
from probe.runs.columnar import CHUNK_BYTES, Columnar, add_lines_of
from probe.runs.files import RunFiles
from probe.runs.layout import Segment

if TYPE_CHECKING:
    import pyarrow

#: Bytes of a file up to which its lines are read together with those of other files.
FEW_BYTES: Final = 2**17

#: Files whose lines are read together.
FILES: Final = 128

#: Pieces of a file that are made one.
TOGETHER: Final = 32

#: By table what was read last of several files together: its pieces, and all of them as one.
Fresh = dict[str, tuple[list["pyarrow.Table"], "pyarrow.Table"]]


class Tail:
    """The rows of one JSONL file, as far as it has been read."""

    def __init__(self) -> None:
        self.columnar = Columnar()
        self.offset = 0
        self.tables: dict[str, list[pyarrow.Table]] = {}
        self._extents: dict[str, list[changes.Extent]] = {}
        self._latest: dict[str, list[float]] = {}  # the last step of the pieces up to each
        self.rows: dict[str, int] = {}
        self._large: dict[str, int] = {}  # how many pieces were made of several, at the beginning

    def extents(self, table: str) -> list[changes.Extent]:
        """Of which steps the rows of each piece of a table are."""
        known, pieces = self._extents.setdefault(table, []), self.tables.get(table, ())
        if len(known) < len(pieces):
            known.extend(changes.of_steps(one["step"]) for one in pieces[len(known) :])
        return known

    def since(self, table: str, step: int) -> list[pyarrow.Table]:
        """The pieces of a table that have rows of steps from one on, in their order."""
        extents, pieces = self.extents(table), self.tables[table]
        latest = self._latest.setdefault(table, [])
        for extent in extents[len(latest) :]:
            latest.append(max(latest[-1], extent.last) if latest else extent.last)
        begin = bisect.bisect_left(latest, step)  # of many pieces the newest alone, as a rule
        return [pieces[at] for at in range(begin, len(pieces)) if extents[at].last >= step]

    def add_lines(self, data: bytes) -> None:
        """Add the complete lines of ``data``, which begins where the last ended."""
        begin = 0
        while begin < len(data):
            end = data.rfind(b"\n", begin, begin + CHUNK_BYTES) + 1 or data.find(b"\n", begin) + 1
            if not end:
                break
            self.add(self.columnar.add_lines(data[begin:end]), end - begin)
            begin = end

    def add(self, found: Mapping[str, pyarrow.Table], size: int) -> None:
        """Add what was made of that many bytes."""
        for table, rows in found.items():
            self._add(table, rows)
        self.offset += size

    def _add(self, table: str, found: pyarrow.Table) -> None:
        """Add rows. Who looks every few seconds adds thousands of pieces until a file is rolled over: of many older
        ones is made one.
        """
        import pyarrow as pa

        pieces = self.tables.setdefault(table, [])
        pieces.append(found)
        self.rows[table] = self.rows.get(table, 0) + len(found)
        small = len(pieces) - self._large.get(table, 0)
        if small > 2 * TOGETHER:
            begin = self._large.get(table, 0)
            pieces[begin : begin + TOGETHER] = [pa.concat_tables(pieces[begin : begin + TOGETHER]).combine_chunks()]
            self._latest.pop(table, None)
            known = self._extents.get(table, [])
            known[begin : begin + TOGETHER] = [changes.of_steps(pieces[begin]["step"])] if len(known) > begin else []
            self._large[table] = begin + 1


def read_tails(
    files: RunFiles, known: Mapping[Segment, Tail], segments: Iterable[Segment]
) -> tuple[dict[Segment, Tail], Fresh]:
    """The JSONL files of a run, with the lines that came since they were read last.

    Args:
        files: Of the run.
        known: What was read of them so far; is added to.
        segments: Whose files there are now.

    Returns:
        The files, and what was read of all of them together.
    """
    found: dict[Segment, Tail] = {}
    few: list[tuple[Tail, bytes]] = []
    fresh: Fresh = {}
    for segment in sorted(segments):
        found[segment], data = _read_tail(files, known.get(segment), segment)
        if len(data) > FEW_BYTES:
            found[segment].add_lines(data)
        elif data:
            few.append((found[segment], data[: data.rfind(b"\n") + 1]))
    for begin in range(0, len(few), FILES):
        part = few[begin : begin + FILES]
        told = add_lines_of([(tail.columnar, data) for tail, data in part])
        for (tail, data), tables in zip(part, told.each, strict=True):
            tail.add(tables, len(data))
        if len(few) <= FILES:
            fresh = {
                table: ([tables[table] for tables in told.each if table in tables], whole)
                for table, whole in told.whole.items()
            }
    return found, fresh


def _read_tail(files: RunFiles, known: Tail | None, segment: Segment) -> tuple[Tail, bytes]:
    tail = known or Tail()
    data = files.read(segment, tail.offset)
    if data is None:  # shorter than it was: another file, so the directory was made anew
        tail = Tail()
        data = files.read(segment, 0) or b""
    return tail, data
