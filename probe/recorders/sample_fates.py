"""What becomes of each sampled token: one fate, the first that applies, in whole numbers that add up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from probe.recorders.sample_arrays import Array, Layout
from probe.records import FATES

_CODE: Final = {fate: code for code, fate in enumerate(FATES)}

#: Fates of whole answers, that never reach the loss.
OF_ANSWERS: Final = FATES[: _CODE["dropped"] + 1]


class _Sums(NamedTuple):
    """What the passes over a batch add up to.

    Attributes:
        of_row: Passes of each answer, int64 (n,).
        known: Of these, how many tell what was held back, int64 (n,).
        clipped: In how many passes each token was held back, int64 (tokens,).
    """

    of_row: Array
    known: Array
    clipped: Array


class Passes:
    """How often the tokens of a batch were trained, and how often the loss held them back.

    Args:
        layout: Of the batch.
        expected: How often each answer is trained in all; None where no pass follows those that are told.
    """

    def __init__(self, layout: Layout, expected: int | None = None) -> None:
        self._layout = layout
        self._expected = 0 if expected is None else expected
        self._told: list[tuple[Array, list[Array] | Array | None]] = []
        self._sums: _Sums | None = None
        self._numbers: list[tuple[list[int], int]] = []

    @property
    def told(self) -> bool:
        """Whether anybody has told of any pass."""
        return bool(self._told)

    @property
    def of_row(self) -> Array:
        """Passes of each answer, int64 (n,)."""
        return self._added_up().of_row

    @property
    def clipped(self) -> Array:
        """In how many passes each token was held back, int64 (tokens,)."""
        return self._added_up().clipped

    def add(self, rows: Array, clipped: list[Array] | Array | None, micro_batch: int | None) -> None:
        """One micro-batch was trained; rows that the batch hasn't are left out.

        Args:
            rows: Places in the batch.
            clipped: By token, laid out as the batch's numbers are; None where it isn't known.
            micro_batch: Its number.
        """
        rows = np.asarray(rows, np.int64).reshape(-1)
        listed = rows.tolist()
        if listed and (min(listed) < 0 or max(listed) >= len(self._layout.lengths)):
            return
        self._told.append((rows, clipped))
        self._numbers.append((listed, -1 if micro_batch is None else micro_batch))
        self._sums = None

    def micro_batches(self, places: Sequence[int]) -> list[list[int]]:
        """Of each of these answers the numbers of the micro-batches that trained it, in their order."""
        found: dict[int, list[int]] = {at: [] for at in places}
        for rows, number in self._numbers:
            for row in rows:
                if row in found:
                    found[row].append(number)
        return list(found.values())

    def _added_up(self) -> _Sums:
        """All passes at once: each by itself takes a dozen calls of NumPy."""
        if self._sums is None:
            answers, tokens = len(self._layout.lengths), self._layout.tokens
            every = np.concatenate([np.empty(0, np.int64), *(rows for rows, _ in self._told)])
            rows, flat = self._together()
            begins, lengths = self._layout.begins[rows], self._layout.lengths[rows]
            held = np.flatnonzero(flat)
            places = np.repeat(begins - (np.cumsum(lengths) - lengths), lengths)[held] + held
            self._sums = _Sums(
                np.bincount(every, minlength=answers),
                np.bincount(rows, minlength=answers),
                np.bincount(places, minlength=tokens),
            )
        return self._sums

    def _together(self) -> tuple[Array, Array]:
        """Answers of the passes that tell what was held back, and their tokens: whether they were, one pass behind the
        other.
        """
        told = [(rows, clipped) for rows, clipped in self._told if clipped is not None]
        shapes = {clipped.shape[1:] if isinstance(clipped, np.ndarray) else None for _, clipped in told}
        if len(told) > 1 and len(shapes) == 1 and None not in shapes:
            rows = np.concatenate([one for one, _ in told])
            flat = self._layout.flat(np.concatenate([clipped for _, clipped in told]), rows)
            if flat is not None and all(len(clipped) == len(one) for one, clipped in told):
                return rows, flat
        alone = [(rows, self._layout.flat(clipped, rows)) for rows, clipped in told]
        known = [(rows, flat) for rows, flat in alone if flat is not None]
        none = np.empty(0, np.int64)
        return np.concatenate([none, *(rows for rows, _ in known)]), np.concatenate(
            [none, *(flat for _, flat in known)]
        )

    def outcome(self) -> tuple[Array, Array]:
        """Of each token whether some pass followed it, and whether all of its passes held it back, bool (tokens,)."""
        row_of = self._layout.row_of
        sums = self._added_up()
        known, passes = sums.known[row_of], sums.of_row[row_of]
        whole = (passes > 0) & (passes >= self._expected)
        return known > sums.clipped, whole & (known == passes) & (sums.clipped == passes)

    @property
    def more(self) -> Array:
        """Which answers are to be trained again in later steps, bool (n,)."""
        return np.asarray(self.of_row < self._expected)

    @property
    def untrained(self) -> Array:
        """Which answers no pass has been or will be over, where passes are told; bool (n,)."""
        whole = self.told and self._expected == 0
        return np.asarray((self.of_row == 0) & whole)


class Given(NamedTuple):
    """What decides on the fates of a batch.

    Attributes:
        layout: Where its tokens are.
        loss: Which tokens the loss counts, bool (tokens,); None where that can't be known.
        advantages: Of each token; None where it wasn't recorded.
        clipped: Which tokens were held back in every pass, bool (tokens,); None leaves it to ``passes``.
        passes: As they were told one by one.
        dropped: Of each answer its place in :data:`OF_ANSWERS`, or −1; int64 (n,).
    """

    layout: Layout
    loss: Array | None
    advantages: Array | None
    clipped: Array | None
    passes: Passes
    dropped: Array


def fates(given: Given) -> Array:
    """The fate of each token, as its place in :data:`probe.records.FATES`.

    Args:
        given: All that is known. An answer without a pass, where all passes are recorded, was dropped.

    Returns:
        int64 (tokens,).
    """
    found = np.full(given.layout.tokens, _CODE["unknown"], np.int64)
    if given.advantages is not None and given.loss is not None:
        found[:] = _CODE["clip_unknown"]
        if given.clipped is not None:
            found[:] = np.where(given.clipped, _CODE["clipped"], _CODE["carried"])
        elif given.passes.told:
            followed, held = given.passes.outcome()
            found[followed] = _CODE["carried"]
            found[held] = _CODE["clipped"]
        found[given.advantages == 0] = _CODE["no_advantage"]  # NaN isn't 0: its gradient flows, and is NaN
    if given.loss is not None:
        found[~given.loss] = _CODE["masked"]
    of_answer = np.where((given.dropped < 0) & given.passes.untrained, _CODE["dropped"], given.dropped)
    of_token = of_answer[given.layout.row_of]
    return np.where(of_token >= 0, of_token, found)


def counts(found: Array, layout: Layout) -> Array:
    """Tokens of each answer by fate, int64 (n, fates): each row sums to the answer's response tokens."""
    kinds = len(FATES)
    together = np.bincount(layout.row_of * kinds + found, minlength=len(layout.lengths) * kinds)
    return together.reshape(len(layout.lengths), kinds)


def dropped_codes(dropped: str | list[str | None] | None, answers: int) -> Array:
    """Why each answer was dropped, as a place in :data:`OF_ANSWERS`; −1 where it wasn't."""
    words = [dropped] * answers if isinstance(dropped, str) or dropped is None else list(dropped)
    other = _CODE["dropped"]
    return np.array([-1 if not word else min(_CODE.get(word, other), other) for word in words], np.int64)
