"""Padding summed for each step, rank, source, field and cause, as its rows come in.

The same tokens are told of several times: by every field of a batch, and at several moments (when a batch is put
together, when it is cut). ``counted`` says which rows make up a step's tax, by the rules of
``probe.analysis.padding_tax``: 2 for the widest field of a batch that counts, 1 for its other fields (for bytes), 0 for
batches that tell of the same tokens again. Rectangle and valid tokens of a batch stand on the row of one cause, so
that sums over causes are right.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from probe.live.tables import LiveTable, Words
from probe.records import Padding

#: Sources that tell of micro-batches, and those that tell of no rectangle of the trainer's.
PLANNED: Final = ("seqlen_balancing.partition", "packing.packed", "batched_data_dict.partition")
APART: Final = ("codec.packed", "ulysses.padded")

#: Steps for which it is remembered which ranks have told of micro-batches.
_STEPS: Final = 1000

#: step, rank, source, field, cause, counted
Key = tuple[int, int, int, int, int, int]
#: tokens, bytes, rectangle, valid
Amounts = tuple[float, float, float, float]

_ZERO: Final = (0.0, 0.0, 0.0, 0.0)


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
        words: The names that the rows' numbers stand for.
    """

    def __init__(self, table: LiveTable, words: Words) -> None:
        self._table = table
        self._words = words
        self._batches: dict[tuple[int, int, str, int], _Batch] = {}
        self._before: set[tuple[int, int, str, int]] = set()
        self._cut: dict[int, set[int]] = {}  # step → ranks that have told of micro-batches

    def take(self, rows: Iterable[Padding]) -> list[tuple[float, ...]]:
        """The rows of the live table that ``rows`` change, in its columns' order."""
        totals: dict[Key, Amounts] = {}
        touched: set[tuple[int, int, str, int]] = set()
        for row in rows:
            key = (row.rank, -1 if row.step is None else row.step, row.source, row.batch_id)
            if key not in self._batches:
                self._batches[key] = _Batch(row.source)
            self._batches[key].add(row)
            touched.add(key)
        for rank, step, source, _ in touched:
            if source in PLANNED and self.note_cut(step, rank):
                self._stop_counting(step, rank, totals)
        for key in touched:
            self._count(key, totals)
        self._forget(touched)
        return [(*key, *amounts) for key, amounts in totals.items()]

    def note_cut(self, step: int, rank: int) -> bool:
        """``rank`` has told of micro-batches in ``step``; whether that is new."""
        ranks = self._cut.setdefault(step, set())
        if rank in ranks:
            return False
        ranks.add(rank)
        if len(self._cut) > _STEPS:
            self._cut.pop(next(iter(self._cut)))
        return True

    def _count(self, key: tuple[int, int, str, int], totals: dict[Key, Amounts]) -> None:
        batch = self._batches[key]
        new = self._amounts(key, batch)
        for one in batch.given.keys() - new.keys():
            _add(totals, one, self._total(totals, one), batch.given[one], -1)
        for one, amounts in new.items():
            _add(totals, one, self._total(totals, one), amounts, 1)
            _add(totals, one, totals[one], batch.given.get(one, _ZERO), -1)
        batch.given = new

    def _amounts(self, key: tuple[int, int, str, int], batch: _Batch) -> dict[Key, Amounts]:
        rank, step, source, _ = key
        cut = rank in self._cut.get(step, ())
        counts = source in PLANNED or (not cut and source not in APART)
        widest, code = batch.widest, self._words.code
        found: dict[Key, Amounts] = {}
        for name, field in batch.fields.items():
            counted = 0 if not counts else 2 if name == widest else 1
            first = min(field.causes)
            for cause, (tokens, size) in field.causes.items():
                whole = (float(field.rectangle), float(field.valid)) if cause == first else (0.0, 0.0)
                at = (step, rank, code(source), code(name), code(cause), counted)
                found[at] = (float(tokens), float(size), *whole)
        return found

    def _total(self, totals: dict[Key, Amounts], key: Key) -> Amounts:
        if key in totals:
            return totals[key]
        row = self._table.row(key)
        if row is None:
            return _ZERO
        value = self._table.value
        return (
            float(value("tokens", row)),
            float(value("bytes", row)),
            float(value("rectangle", row)),
            float(value("valid", row)),
        )

    def _stop_counting(self, step: int, rank: int, totals: dict[Key, Amounts]) -> None:
        """Micro-batches tell of the tokens of this (step, rank) from now on; what counted until then doesn't."""
        planned = [self._words.code(source) for source in PLANNED]
        columns = self._table.columns()
        here = (columns["step"] == step) & (columns["rank"] == rank) & (columns["counted"] > 0)
        here &= ~np.isin(columns["source"], planned)
        for row in np.flatnonzero(here).tolist():
            names = ("step", "rank", "source", "field", "cause", "counted")
            old: Key = tuple(int(columns[name][row]) for name in names)  # type: ignore[assignment]  # six of them
            amounts = self._total(totals, old)
            totals[old] = _ZERO
            new: Key = (*old[:5], 0)
            _add(totals, new, self._total(totals, new), amounts, 1)
        for key, batch in self._batches.items():
            if key[:2] == (rank, step) and batch.source not in PLANNED:
                batch.given = {(*one[:5], 0): amounts for one, amounts in batch.given.items()}

    def _forget(self, touched: set[tuple[int, int, str, int]]) -> None:
        """The rows of a batch are written together: two looks at the files see all of them."""
        for key in self._batches.keys() - touched - self._before:
            del self._batches[key]
        self._before = touched


def _add(totals: dict[Key, Amounts], key: Key, before: Amounts, amounts: Amounts, sign: int) -> None:
    totals[key] = (
        before[0] + sign * amounts[0],
        before[1] + sign * amounts[1],
        before[2] + sign * amounts[2],
        before[3] + sign * amounts[3],
    )
