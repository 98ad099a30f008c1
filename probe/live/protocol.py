"""Live tables as messages to the browser: numbered deltas of what is new, and keyframes that heal what was lost.

A message is a JSON head and one binary buffer for each table: the table's columns one after the other, each of them
``n`` values of its dtype in the machine's (little-endian) order, each column's start padded to 8 bytes. Texts are
codes into a list of words that grows. What a delta costs depends on its new rows alone: a column that it leaves out is
missing in each of them.

What the browser must know of the tables comes as ``schema``, a mapping from live table to ::

    {"columns": {"step": ["i4", "id"], "role": ["i4", "word"], "begin": ["f8", "s"], ...},
     "derived": {"duration": ["s", ["-", "end", "begin"]], ...},
     "key": ["process", "scope"],
     "thin": {"scores": ["peak"], "group": [], "whole": true},
     "time": ["begin", "end"]}

``columns`` says dtype and unit of each, as in :mod:`probe.dashboards.columns`: a missing float is NaN, a missing i4 is
−1, "word" is the code of a text, "flag" is never missing. A formula of ``derived`` is a column's name, a number, or
``[operator, left, right]`` with one of ``+ - * /``; where a side is missing, or the divisor is 0, so is the result.
Rows with equal values of ``key`` replace each other; one of which the last of them is missing replaces none. ``thin``
says how a full table forgets: with ``whole`` the rows of a step (and of equal ``group``) go together, else single rows
go and the extremes of ``scores`` within equal ``group`` stay. ``time`` names begin and end, one moment, or nothing.

What a page asks for beside that (``history``: series over all steps, ``step``: all rows of one) comes in a message of
kind ``h`` without a number of its own: of each series a buffer of little-endian doubles, row after row the steps, the
largest value of each, and each of the series, and in the head what they are of; see :mod:`probe.live.history`.

The declared tables stand in the panel's configuration. Those of row types that a recorder brought stand in the head of
every keyframe and snapshot, and of the delta that brings a table for the first time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from probe.dashboards.columns import LIVE, Table, as_data
from probe.live.history import History
from probe.live.tables import LiveTable, Words
from probe.live.thinning import Block

VERSION: Final = 1

#: A keyframe has the first number, and each later one that this divides.
FIRST_KEYFRAME: Final = 8
KEYFRAME_EVERY: Final = 64

#: Parts of the state that are sent along with others and are no reason to send anything.
_TICKING: Final = ("cost", "updated_at", "silence_s")

Message = tuple[dict[str, Any], list[bytes]]

#: The wire is little-endian, whatever the machine.
_WIRE: Final = {code: np.dtype(code).newbyteorder("<") for code in ("f8", "f4", "i4", "u1")}
_PADDING: Final = tuple(map(bytes, range(8)))
_head_text: Final = json.JSONEncoder(separators=(",", ":")).encode


class Sender:
    """Numbers the messages of one panel. Not for several threads at once.

    Attributes:
        seq: Number of the last message.
        sent_bytes: Bytes of all messages so far, heads and buffers.
    """

    def __init__(self, words: Words) -> None:
        self.seq = 0
        self.sent_bytes = 0
        self._words = words
        self._known = 0  # words that the browser has
        self._state: dict[str, Any] = {}
        self._described: set[str] = set()  # tables of which the browser has seen every column

    @property
    def keyframe_is_due(self) -> bool:
        """Whether the next message should be a keyframe."""
        upcoming = self.seq + 1
        return upcoming == FIRST_KEYFRAME or upcoming % KEYFRAME_EVERY == 0

    def is_news(self, state: Mapping[str, Any]) -> bool:
        """Whether ``state`` says more than that time has gone on."""
        return any(self._state.get(key) != value for key, value in state.items() if key not in _TICKING)

    def delta(self, blocks: Mapping[str, Block], tables: Mapping[str, LiveTable], state: Mapping[str, Any]) -> Message:
        """New rows: ``blocks``, which ``tables`` have taken just now; and what has changed of ``state``."""
        entries: list[dict[str, Any]] = []
        buffers: list[bytes] = []
        schema = self._schema({name: tables[name] for name in blocks.keys() - self._described})
        for name, block in blocks.items():
            table, count = tables[name].declared, len(next(iter(block.values())))
            names = filled(table, block) if name in self._described else tuple(table.columns)
            entry = {"name": name, "from": tables[name].next - count, "n": count, "buffer": len(buffers)}
            entries.append({**entry, "cols": header(table, names)})
            buffers.append(packed(table, block, names))
        self._described |= blocks.keys()
        words, first = self._words.texts[self._known :], self._known
        head: dict[str, Any] = {"t": "d" if entries else "s", "words": words, "words_from": first, "tables": entries}
        head |= schema
        changed = {key: value for key, value in state.items() if self._state.get(key, head) != value}
        return self._numbered({**head, "state": changed}, buffers, state)

    def keyframe(self, tables: Mapping[str, LiveTable], state: Mapping[str, Any], *, anew: bool = False) -> Message:
        """All that ``tables`` hold, and all words.

        Args:
            tables: By name.
            state: What is told beside them.
            anew: Whether all that a page has is to be forgotten: it is of an attempt that isn't shown any more.

        Returns:
            A message that also a page can begin with.
        """
        entries, buffers = whole(tables)
        head = {"t": "k", "words": list(self._words.texts), "words_from": 0, "tables": entries, "state": dict(state)}
        head |= {"anew": True} if anew else {}
        return self._numbered({**head, **self._schema(tables)}, buffers, state)

    def snapshot(self, tables: Mapping[str, LiveTable], state: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
        """What a page that opens now must know: a keyframe without a number of its own, its buffers in one. It tells of
        all that was sent so far; ({}, b"") while there is nothing.
        """
        entries, buffers = whole(tables)
        if not entries:
            return {}, b""
        head = {"v": VERSION, "t": "k", "seq": self.seq, "words": list(self._words.texts), "words_from": 0}
        if not self.seq:  # nobody else is listening yet, so that this is all that anybody knows
            self._known, self._state = len(self._words.texts), dict(state)
        return {**head, "tables": entries, "state": dict(state), **self._schema(tables)}, b"".join(buffers)

    def past(
        self, histories: Sequence[History], blocks: Mapping[str, Block], tables: Mapping[str, LiveTable]
    ) -> Message:
        """What a page has asked for beside what comes by itself: a message without a number, as nobody else misses it.

        Args:
            histories: Series over all steps.
            blocks: Rows of a step that the tables had to forget.
            tables: The live tables, which don't hold these rows.

        Returns:
            The message; its words are all that there are, so that its codes can be read.
        """
        entries, buffers = [], [one.data() for one in histories]
        heads = [one.head(at) for at, one in enumerate(histories)]
        for name, block in blocks.items():
            table = tables[name].declared
            names = tuple(table.columns)
            entry = {"name": name, "from": 0, "n": len(block[names[0]]), "buffer": len(buffers)}
            entries.append({**entry, "cols": header(table, names)})
            buffers.append(packed(table, block, names))
        head = {"t": "h", "words": list(self._words.texts), "words_from": 0, "histories": heads, "tables": entries}
        return {"v": VERSION, "seq": self.seq, **head}, buffers

    def heartbeat(self, state: Mapping[str, Any]) -> Message:
        """That the kernel is there: a message without a number, so that none is missed when it is lost.

        Args:
            state: Those parts of the state that are told.
        """
        return {"v": VERSION, "seq": self.seq, "t": "s", "words": [], "words_from": self._known, "state": {**state}}, []

    def _schema(self, tables: Mapping[str, LiveTable]) -> dict[str, Any]:
        """What the browser must know of those of ``tables`` that aren't declared; nothing where there are none."""
        found = {name: table.declared for name, table in tables.items() if name not in LIVE}
        return {"schema": as_data(found)} if found else {}

    def _numbered(self, head: dict[str, Any], buffers: list[bytes], state: Mapping[str, Any]) -> Message:
        self.seq += 1
        self._known = len(self._words.texts)
        self._state = dict(state)
        return {"v": VERSION, "seq": self.seq, **head}, buffers


def size_of(message: Message) -> int:
    """Bytes of a message on the wire, without what the transport adds."""
    head, buffers = message
    return len(_head_text(head)) + sum(map(len, buffers))


def whole(tables: Mapping[str, LiveTable]) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Every table that holds anything, as entries of a keyframe and their buffers.

    ``next`` is the number of the row after the last one; as rows may have been thinned, from + n isn't it.
    """
    entries: list[dict[str, Any]] = []
    buffers: list[bytes] = []
    for name, table in tables.items():
        if not table.count:
            continue
        entry = {"name": name, "from": table.next - table.count, "n": table.count, "next": table.next}
        names = tuple(table.declared.columns)
        entries.append({**entry, "cols": header(table.declared, names), "buffer": len(buffers)})
        buffers.append(packed(table.declared, table.columns(), names))
    return entries, buffers


def columns_of(entry: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and dtypes of the columns of one table of a message.

    >>> columns_of({"cols": "t:f8 rank:i4"})
    [('t', 'f8'), ('rank', 'i4')]
    """
    pairs = (one.partition(":") for one in entry["cols"].split(" "))
    return [(name, code) for name, _, code in pairs]


#: The bytes of a missing number, by dtype.
_MISSING: Final = {
    "f8": np.float64(np.nan).tobytes(),
    "f4": np.float32(np.nan).tobytes(),
    "i4": b"\xff" * 4,
    "u1": b"\0",
}


def filled(table: Table, block: Block) -> tuple[str, ...]:
    """The columns of ``block`` in which any row has a value: the others needn't be sent.

    >>> import numpy as np
    >>> block = {name: np.full(2, -1, column.dtype) for name, column in LIVE["memory"].columns.items()}
    >>> filled(LIVE["memory"], block | {"used": np.array([np.nan, np.nan])})
    ('t', 'allocated', 'reserved', 'non_torch', 'other_processes', 'total')
    """
    rows = len(next(iter(block.values())))
    # Compared as bytes, which is much quicker; a NaN of unusual bits counts as a value, and is sent as what it is.
    missing = {dtype: one * rows for dtype, one in _MISSING.items()}
    return tuple(name for name, column in table.columns.items() if block[name].tobytes() != missing[column.dtype])


def header(table: Table, names: Sequence[str]) -> str:
    """Names and dtypes of columns, as short as may be: they stand in every message.

    >>> header(LIVE["padding"], ("step", "tokens"))
    'step:i4 tokens:f8'
    """
    return " ".join(f"{name}:{table.columns[name].dtype}" for name in names)


def packed(table: Table, block: Block, names: Sequence[str]) -> bytes:
    """Columns of a table one after the other, each padded to 8 bytes.

    >>> import numpy as np
    >>> block = {name: np.zeros(3, column.dtype) for name, column in LIVE["events"].columns.items()}
    >>> len(packed(LIVE["events"], block, list(block)))  # one column of 24 bytes, eight of 12 and one of 3
    160
    """
    parts: list[memoryview | bytes] = []
    for name in names:
        data = np.ascontiguousarray(block[name], dtype=_WIRE[table.columns[name].dtype])
        parts.append(data.data)
        if data.nbytes % 8:
            parts.append(_PADDING[-data.nbytes % 8])
    return b"".join(parts)


def unpacked(entry: Mapping[str, Any], buffer: bytes) -> dict[str, npt.NDArray[Any]]:
    """The columns of one table of a message, as a browser reads them."""
    found, at = {}, 0
    for column, code in columns_of(entry):
        kind = _WIRE[code]
        found[column] = np.frombuffer(buffer, kind, entry["n"], at)
        at += -(-entry["n"] * kind.itemsize // 8) * 8
    return found
