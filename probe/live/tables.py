"""The live tables in memory: columns that grow up to a limit and are then thinned, and the words that codes stand for.

Appending costs the same however long the history is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from probe.dashboards.columns import LIVE, Table
from probe.live import thinning
from probe.live.thinning import Block

#: Rows that a table keeps in the kernel, and the browser in its own.
ROWS: Final = 20_000

#: Rows of a table in a keyframe that nobody asked for.
SKETCH_ROWS: Final = 768

#: Distinct texts that are kept, and characters of each; messages of errors may be any number and any length.
WORDS: Final = 20_000
WORD_CHARACTERS: Final = 500
TOO_MANY: Final = "… (more different texts than the panel keeps)"


class Words:
    """Texts by number, in the order in which they came."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._codes: dict[str, int] = {}

    def code(self, text: str | None) -> int:
        """The number of ``text``, a new one if it is new; −1 for none.

        >>> words = Words()
        >>> words.code("actor"), words.code("critic"), words.code("actor"), words.code(None)
        (0, 1, 0, -1)
        """
        if text is None:
            return -1
        found = self._codes.get(text)
        return self._add(text) if found is None else found

    def codes(self, texts: Sequence[str | None]) -> list[int]:
        """The numbers of many texts, new ones for those that are new; −1 for none.

        >>> Words().codes(["actor", None, "actor"])
        [0, -1, 0]
        """
        if texts and texts.count(texts[0]) == len(texts):  # as the process and the role mostly are
            return [self.code(texts[0])] * len(texts)
        known = self._codes
        return [-1 if one is None else known[one] if one in known else self._add(one) for one in texts]

    def _add(self, text: str) -> int:
        # A lone surrogate, as a broken file name may bring, has no UTF-8 and can't be sent.
        text = text[:WORD_CHARACTERS].encode("utf-8", "replace").decode()
        if len(self.texts) >= WORDS:
            text = TOO_MANY
        found = self._codes.get(text)
        if found is None:
            found = self._codes[text] = len(self.texts)
            self.texts.append(text)
        return found


class LiveTable:
    """One live table.

    Args:
        name: Of the table.
        limit: Rows that it keeps.
        declared: What its columns are; None: as declared for ``name``.

    Attributes:
        count: Rows held.
        next: Running number of the row that comes next; it counts every row ever appended, those that replaced another
            one too.
        thinned: Rows forgotten.
    """

    def __init__(self, name: str, limit: int = ROWS, declared: Table | None = None) -> None:
        self.name = name
        self.declared = LIVE[name] if declared is None else declared
        self.limit = limit
        self.count = 0
        self.next = 0
        self.thinned = 0
        self._columns: Block = {column: np.empty(64, one.dtype) for column, one in self.declared.columns.items()}
        self._key = self.declared.key
        self._rows: dict[tuple[int, ...], int] = {}  # by key

    def append(self, block: Block) -> None:
        """Take the rows of ``block``, which has this table's columns."""
        given = len(next(iter(block.values())))
        chunk = max(self.limit // 2, 1)
        if given <= chunk:
            self._append(block, given)
        else:
            for begin in range(0, given, chunk):
                part = {name: values[begin : begin + chunk] for name, values in block.items()}
                self._append(part, min(chunk, given - begin))
        self.next += given

    def columns(self) -> Block:
        """The rows held, as views: good until the next :meth:`append`."""
        return {name: values[: self.count] for name, values in self._columns.items()}

    def row(self, key: tuple[int, ...]) -> int | None:
        """Where the row with that key lies now, or None."""
        return self._rows.get(key)

    def value(self, name: str, row: int) -> Any:
        """One cell."""
        return self._columns[name][row]

    def _append(self, block: Block, given: int) -> None:
        places, fresh = self._places(block, given)
        self._reserve(fresh)
        for name, values in block.items():
            self._columns[name][places] = values
        self.count = fresh
        while self.count > self.limit:
            self._thin()

    def _places(self, block: Block, given: int) -> tuple[slice | npt.NDArray[np.intp], int]:
        """Where the rows of ``block`` go, and how many rows there are then."""
        free = self.count
        behind = slice(free, free + given)
        if not self._key:
            return behind, free + given
        places = []
        for key in zip(*(block[name].tolist() for name in self._key), strict=True):
            found = self._rows.setdefault(key, free) if key[-1] != -1 else free
            places.append(found)
            free += found == free
        # Most often all of them are new, and a slice is filled faster.
        return (behind if free == behind.stop else np.array(places, dtype=np.intp)), free

    def _reserve(self, rows: int) -> None:
        capacity = len(next(iter(self._columns.values())))
        if rows <= capacity:
            return
        for name, old in self._columns.items():
            made = np.empty(max(rows, 2 * capacity), old.dtype)
            made[: self.count] = old[: self.count]
            self._columns[name] = made

    def _thin(self) -> None:
        kept = thinning.keep(self.declared.thinning, self._columns, self.count)
        left = int(kept.sum())
        for values in self._columns.values():
            values[:left] = values[: self.count][kept]
        self.thinned += self.count - left
        self.count = left
        if self._key:
            keys = zip(*(self._columns[name][:left].tolist() for name in self._key), strict=True)
            self._rows = {key: row for row, key in enumerate(keys)}
