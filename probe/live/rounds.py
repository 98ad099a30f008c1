"""Which batch of its step and phase a batch is, since ranks wait for each other in each of them; and which phase of a
step was the first that cut any, since each token of a batch stands there once.

The round of a batch is its place, from 1, among the batches of its process, step and phase in the order of their
numbers. A batch may be told of late (its lengths came from a device), and then the rounds of those behind it change,
or the phase that was first: their rows are given once more.
"""

from __future__ import annotations

import bisect
from typing import Final

import numpy as np
import numpy.typing as npt

from probe.live.tables import LiveTable
from probe.live.thinning import Block

#: Process, step and phase.
_GROUP: Final = ("process", "step", "phase")
Place = tuple[int, int, int]

#: Places of which the batches are remembered; those of an older one are read from the table again.
REMEMBERED: Final = 8192


class Rounds:
    """Numbers batches.

    Args:
        table: The live table of micro-batches, which holds what was given so far.
    """

    def __init__(self, table: LiveTable) -> None:
        self._table = table
        self._batches: dict[Place, list[int]] = {}
        self._firsts: dict[tuple[int, int], tuple[int, int]] = {}  # of process and step the first batch, and its phase
        self._forgotten = -2  # the largest step of which batches may stand in the table and not here

    def learn(self, block: Block) -> None:
        """Know what the table was filled with at once."""
        self._forgotten = int(block["step"].max(initial=-2))

    def numbered(self, block: Block) -> Block:
        """``block`` with its rounds, and behind it the rows of the table whose round has changed.

        Args:
            block: New rows of the table of micro-batches.

        Returns:
            The rows to append to it.
        """
        places = _places(block)
        late: set[Place] = set()
        for place, batch in dict.fromkeys(zip(places, block["batch"].tolist(), strict=True)):
            if self._note(place, batch):
                late.add(place)
            late |= self._note_first(place, batch)
        block["round"], block["once"] = self._rounds(places, block["batch"]), self._once(places)
        changed = self._changed(late)
        self._forget()
        return block if changed is None else {name: np.append(block[name], changed[name]) for name in block}

    def _note(self, place: Place, batch: int) -> bool:
        """Whether it stands before a batch that is known already."""
        batches = self._batches.pop(place, None)
        if batches is None:
            batches = self._read_again(place) if place[1] <= self._forgotten else []
        self._batches[place] = batches  # the newest last
        at = bisect.bisect_left(batches, batch)
        if at < len(batches) and batches[at] == batch:
            return False
        batches.insert(at, batch)
        return at < len(batches) - 1

    def _note_first(self, place: Place, batch: int) -> set[Place]:
        """The places of which it becomes known that they are the first of their step, or no longer."""
        process, step, phase = place
        first = self._firsts.pop((process, step), None)
        if first is None and step <= self._forgotten:
            first = self._read_first(process, step)
        now = (batch, phase) if first is None else min(first, (batch, phase))
        self._firsts[process, step] = now  # the newest last
        if first is None or first[1] == now[1]:
            return set()
        before = (process, step, first[1])
        if before not in self._batches:
            self._batches[before] = self._read_again(before)
        return {before, place}

    def _read_first(self, process: int, step: int) -> tuple[int, int] | None:
        columns = self._table.columns()
        here = (columns["process"] == process) & (columns["step"] == step)
        pairs = zip(columns["batch"][here].tolist(), columns["phase"][here].tolist(), strict=True)
        return min(pairs, default=None)

    def _once(self, places: list[Place]) -> npt.NDArray[np.uint8]:
        return np.array([self._firsts[process, step][1] == phase for process, step, phase in places], dtype=np.uint8)

    def _read_again(self, place: Place) -> list[int]:
        columns = self._table.columns()
        return sorted(set(columns["batch"][self._rows_at(place)].tolist()))

    def _rows_at(self, place: Place) -> npt.NDArray[np.bool_]:
        columns = self._table.columns()
        here = np.ones(self._table.count, dtype=bool)
        for name, value in zip(_GROUP, place, strict=True):
            here &= columns[name] == value
        return here

    def _rounds(self, places: list[Place], batches: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        found = [
            bisect.bisect_left(self._batches[place], batch) + 1
            for place, batch in zip(places, batches.tolist(), strict=True)
        ]
        return np.array(found, dtype=np.int32)

    def _changed(self, late: set[Place]) -> Block | None:
        """Rows that the table holds and that stand in another round now."""
        if not late:
            return None
        here = np.zeros(self._table.count, dtype=bool)
        for place in late:
            here |= self._rows_at(place)
        held = {name: values[here] for name, values in self._table.columns().items()}
        places = _places(held)
        now: Block = {"round": self._rounds(places, held["batch"]), "once": self._once(places)}
        moved = (now["round"] != held["round"]) | (now["once"] != held["once"])
        return {name: values[moved] for name, values in {**held, **now}.items()}

    def _forget(self) -> None:
        while len(self._batches) > REMEMBERED:
            place = next(iter(self._batches))
            del self._batches[place]
            self._forgotten = max(self._forgotten, place[1])
        while len(self._firsts) > REMEMBERED:
            process, step = next(iter(self._firsts))
            del self._firsts[process, step]
            self._forgotten = max(self._forgotten, step)


def _places(block: Block) -> list[Place]:
    return list(zip(*(block[name].tolist() for name in _GROUP), strict=True))
