"""Padding summed for each step, rank, source, field and cause, as its rows come in.

The same tokens are told of several times: by every field of a batch, and at several moments (when a batch is put
together, when it is cut). ``counted`` says which rows make up a step's tax, by the rules of
``probe.analysis.padding_tax``: 2 for the widest field of a batch that counts, 1 for its other fields (for bytes), 0 for
batches that tell of the same tokens again. Rectangle and valid tokens of a batch stand on the row of one cause, so
that sums over causes are right.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np

from probe.live.tables import LiveTable, Words
from probe.records import PLANNED_SOURCES, Padding, counts_for_tax

#: Steps for which it is remembered which ranks have told of micro-batches.
_STEPS: Final = 1000


class Key(NamedTuple):
    """The columns by which rows of the live table replace each other."""

    step: int
    process: int
    source: int
    field: int
    cause: int
    counted: int


class Amounts(NamedTuple):
    """The columns that are summed."""

    tokens: float
    bytes: float
    rectangle: float
    valid: float

    def plus(self, other: Amounts, sign: int = 1) -> Amounts:
        """The sum, or with ``sign`` −1 the difference."""
        return Amounts(*(one + sign * two for one, two in zip(self, other, strict=True)))


_ZERO: Final = Amounts(0.0, 0.0, 0.0, 0.0)

#: Process, step, source and number of a batch.
BatchKey = tuple[int, int, str, int]


class _Field:
    """One field of a batch."""

    def __init__(self) -> None:
        self.rectangle = 0
        self.valid = 0
        self.causes: dict[str, tuple[int, int]] = {}


class _Batch:
    """What is known of one batch, and what of it the sums hold already."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.fields: dict[str, _Field] = {}
        self.given: dict[Key, Amounts] = {}

    def add(self, row: Padding) -> None:
        field = self.fields.setdefault(row.field, _Field())
        field.rectangle = max(field.rectangle, row.rectangle_tokens)
        field.valid = max(field.valid, row.valid_tokens)
        tokens, size = field.causes.get(row.cause, (0, 0))
        field.causes[row.cause] = (tokens + row.tokens, size + row.bytes)

    @property
    def widest(self) -> str:
        return min(self.fields, key=lambda name: (-self.fields[name].rectangle, name != "input_ids", name))


class PaddingLedger:
    """Takes rows, gives the sums that have changed.

    Args:
        table: The live table that holds the sums given so far.
        words: Numbers of the texts.
    """

    def __init__(self, table: LiveTable, words: Words) -> None:
        self._table = table
        self._words = words
        self._batches: dict[BatchKey, _Batch] = {}
        self._before: set[BatchKey] = set()
        self._cut: dict[int, set[int]] = {}  # step → processes that have told of micro-batches
        self._ranks: dict[int, int] = {}  # by process

    def changed(self, rows: Iterable[Padding]) -> dict[str, list[Any]]:
        """The rows of the live table that ``rows`` change, by column."""
        totals: dict[Key, Amounts] = {}
        touched = self._note(rows)
        for process, step, source, _ in touched:
            if source in PLANNED_SOURCES and self.note_cut(step, process):
                self._stop_counting(step, process, totals)
        for key in touched:
            self._count(key, totals)
        self._forget(touched)
        columns: dict[str, list[Any]] = {"rank": [self._ranks[key.process] for key in totals]}
        for name in Key._fields:
            columns[name] = [getattr(key, name) for key in totals]
        for name in Amounts._fields:
            columns[name] = [getattr(amounts, name) for amounts in totals.values()]
        return columns

    def note_cut(self, step: int, process: int) -> bool:
        """``process`` has told of micro-batches in ``step``; whether that is new."""
        processes = self._cut.setdefault(step, set())
        if process in processes:
            return False
        processes.add(process)
        if len(self._cut) > _STEPS:
            self._cut.pop(next(iter(self._cut)))
        return True

    def _note(self, rows: Iterable[Padding]) -> set[BatchKey]:
        """Which batches ``rows`` tell of."""
        touched: set[BatchKey] = set()
        for row in rows:
            process = self._words.code(row.process)
            self._ranks[process] = -1 if row.rank is None else row.rank
            key = (process, -1 if row.step is None else row.step, row.source, row.batch_id)
            if key not in self._batches:
                self._batches[key] = _Batch(row.source)
            self._batches[key].add(row)
            touched.add(key)
        return touched

    def _count(self, key: BatchKey, totals: dict[Key, Amounts]) -> None:
        batch = self._batches[key]
        new = self._amounts(key, batch)
        for one in dict.fromkeys((*batch.given, *new)):
            change = new.get(one, _ZERO).plus(batch.given.get(one, _ZERO), -1)
            totals[one] = self._total(totals, one).plus(change)
        batch.given = new

    def _amounts(self, key: BatchKey, batch: _Batch) -> dict[Key, Amounts]:
        process, step, source, _ = key
        cut = process in self._cut.get(step, ())
        counts = counts_for_tax(source, cut)
        widest, code = batch.widest, self._words.code
        found: dict[Key, Amounts] = {}
        for name, field in batch.fields.items():
            counted = 0 if not counts else 2 if name == widest else 1
            first = min(field.causes)
            for cause, (tokens, size) in field.causes.items():
                whole = (float(field.rectangle), float(field.valid)) if cause == first else (0.0, 0.0)
                at = Key(step, process, code(source), code(name), code(cause), counted)
                found[at] = Amounts(float(tokens), float(size), *whole)
        return found

    def _total(self, totals: dict[Key, Amounts], key: Key) -> Amounts:
        if key in totals:
            return totals[key]
        row = self._table.row(key)
        if row is None:
            return _ZERO
        return Amounts(*(float(self._table.value(name, row)) for name in Amounts._fields))

    def _stop_counting(self, step: int, process: int, totals: dict[Key, Amounts]) -> None:
        """Micro-batches tell of the tokens of this step of the process from now on; what counted until then doesn't."""
        planned = [self._words.code(source) for source in PLANNED_SOURCES]
        columns = self._table.columns()
        here = (columns["step"] == step) & (columns["process"] == process) & (columns["counted"] > 0)
        here &= ~np.isin(columns["source"], planned)
        for row in np.flatnonzero(here).tolist():
            old = Key(*(int(columns[name][row]) for name in Key._fields))
            amounts = self._total(totals, old)
            totals[old] = _ZERO
            new = old._replace(counted=0)
            totals[new] = self._total(totals, new).plus(amounts)
            self._ranks[process] = int(columns["rank"][row])
        for key, batch in self._batches.items():
            if key[:2] == (process, step) and batch.source not in PLANNED_SOURCES:
                batch.given = {one._replace(counted=0): amounts for one, amounts in batch.given.items()}

    def _forget(self, touched: set[BatchKey]) -> None:
        """The rows of a batch are written together: two looks at the files see all of them."""
        for key in self._batches.keys() - touched - self._before:
            del self._batches[key]
        self._before = touched
