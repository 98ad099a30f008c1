"""Mean, smallest and largest of each answer's counted tokens."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from probe.recorders.sample_arrays import Array


class Stats(NamedTuple):
    """Of each answer, NaN left out; NaN where it has none. Each (n,)."""

    mean: Array
    smallest: Array
    largest: Array


class CountedTokens:
    """The tokens that the numbers of answers are over, one answer behind the other.

    Args:
        counted: Which of all tokens, bool (tokens,).
        row_of: Of each token its answer, int64 (tokens,), not falling.
        answers: How many there are.
    """

    def __init__(self, counted: Array, row_of: Array, answers: int) -> None:
        self._at = np.flatnonzero(counted)
        self._answers = answers
        self._rows = row_of[self._at]
        self._many = np.bincount(self._rows, minlength=answers)

    def stats(self, values: Array) -> Stats:
        """Of some numbers.

        Args:
            values: Of each token, (tokens,).
        """
        kept = values[self._at].astype(np.float64)
        there = ~np.isnan(kept)
        if there.all():
            return self._of(kept, self._rows, self._many)
        rows = self._rows[there]
        return self._of(kept[there], rows, np.bincount(rows, minlength=self._answers))

    def _of(self, kept: Array, rows: Array, many: Array) -> Stats:
        some = many > 0
        found = np.full((3, self._answers), np.nan)
        if some.any():
            found[0, some] = np.bincount(rows, kept, minlength=self._answers)[some] / many[some]
            begins = (np.cumsum(many) - many)[some]
            found[1, some] = np.minimum.reduceat(kept, begins)
            found[2, some] = np.maximum.reduceat(kept, begins)
        return Stats(*found)
