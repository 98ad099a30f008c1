"""The live tables in memory: columns that grow up to a limit and are then thinned, and the words that codes stand for.

Appending costs the same however long the history is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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

#: Rows from which on it is told of all at once whether their keys are new.
_MANY: Final = 2_000
_LARGEST: Final = 2**62

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

    def matching(self, asked: Iterable[str]) -> list[int]:
        """The numbers of the texts that are among ``asked``, where ``"actor*"`` stands for all that begin with "actor".

        >>> words = Words()
        >>> words.codes(["actor", "critic", "actor_old"]), words.matching(["critic", "actor*", "ref"])
        ([0, 1, 2], [1, 0, 2])
        """
        found: list[int] = []
        for one in asked:
            if one.endswith("*"):
                found += [code for code, text in enumerate(self.texts) if text.startswith(one[:-1])]
            elif one in self._codes:
                found.append(self._codes[one])
        return found

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


def _numbered(keys: list[npt.NDArray[Any]]) -> npt.NDArray[np.int64] | None:
    """A number for each key, the same for the same alone; None where keys are no whole numbers."""
    found, most = np.zeros(len(keys[0]), np.int64), 1
    for one in keys:
        if one.dtype.kind not in "iu":
            return None
        least, size = int(one.min()), int(one.max()) - int(one.min()) + 1
        if most * size >= _LARGEST:  # then the keys that there are, and not those that there may be
            found = np.unique(found, return_inverse=True)[1]
            most = len(found)
            if most * size >= _LARGEST:
                return None
        found, most = found * size + (one.astype(np.int64) - least), most * size
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
        self._rows: dict[tuple[int, ...], int] | None = {}  # by key; None where it has to be made anew

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
        return self._by_key().get(key)

    def _by_key(self) -> dict[tuple[int, ...], int]:
        if self._rows is None:
            keys = zip(*(self._columns[name][: self.count].tolist() for name in self._key), strict=True)
            self._rows = {key: row for row, key in enumerate(keys)}
        return self._rows

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
        if given >= _MANY and (told := self._places_of_many(block, given)) is not None:
            return told
        places, rows = [], self._by_key()
        for key in zip(*(block[name].tolist() for name in self._key), strict=True):
            found = rows.setdefault(key, free) if key[-1] != -1 else free
            places.append(found)
            free += found == free
        # Most often all of them are new, and a slice is filled faster.
        return (behind if free == behind.stop else np.array(places, dtype=np.intp)), free

    def _places_of_many(self, block: Block, given: int) -> tuple[slice | npt.NDArray[np.intp], int] | None:
        """The same, told of all rows at once; None where keys are no whole numbers."""
        held = self.count
        keys = [np.concatenate([self._columns[name][:held], block[name]]) for name in self._key]
        told = _numbered(keys)
        if told is None:
            return None
        _, first, place = np.unique(told, return_index=True, return_inverse=True)
        before = first[place]  # the first row with the key of each
        at = np.arange(len(told))
        before = np.where(keys[-1] == -1, at, before)
        fresh = before == at
        places = np.cumsum(fresh) - 1 + held - np.count_nonzero(fresh[:held])
        places[:held] = at[:held]
        free = held + int(np.count_nonzero(fresh[held:]))
        self._rows = None  # a dictionary of them is made once it is asked for
        return (slice(held, free) if free == held + given else places[before][held:]), free

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
            self._rows = None
