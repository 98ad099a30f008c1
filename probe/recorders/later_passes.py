"""Passes over a batch in later steps than the one that sampled it: what they move from one fate to another.

The rows of the step that sampled it are written as that step ends, so that a run that is killed has them and nobody
waits for them. What a later step makes known of its tokens is told as that one ends, by rows that add up to 0: the
tokens of a batch always sum to what was sampled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from probe.recorders.sample_arrays import Array, Taken
from probe.recorders.sample_fates import Given, counts, fates
from probe.records import FATES, LaterPasses, Row, TokenFate

#: Rows of a micro-batch, which of their tokens it held back, and its number.
Pass = tuple[Taken, Taken, int | None]


class AsEnded(NamedTuple):
    """What is known of a batch as its step ends.

    Attributes:
        batch_id: Of the batch.
        source: Who told of it.
        step: That sampled it.
        given: What its fates follow from.
        counts: Tokens of each answer by fate, int64 (n, fates).
        kept: Places of the answers that have a row.
        equal: Which answers are of a group with equal rewards, bool (n,); None where that isn't known.
    """

    batch_id: int
    source: str
    step: int | None
    given: Given
    counts: Array
    kept: list[int]
    equal: Array | None


class Following:
    """A batch whose passes may go on in later steps, until the next one is told. For the writer's thread.

    Attributes:
        begun: Whether the rows of its own step are made, or can't be.
    """

    def __init__(self) -> None:
        self.begun = False
        self._known: AsEnded | None = None

    def begin(self, known: AsEnded) -> None:
        """The rows of its own step are made. What isn't trained again isn't kept.

        Args:
            known: What they say.
        """
        if known.given.passes.more.any():
            self._known = known

    def moved(self, passes: Sequence[Pass], step: int) -> list[Row]:
        """What the passes of a later step move.

        Args:
            passes: Those of the step.
            step: The step.

        Returns:
            Rows of the step that sampled the batch; none where all of its passes were known before.
        """
        known = self._known
        if known is None:
            return []
        told, before = known.given.passes, known.given.passes.of_row
        for rows, clipped, micro_batch in passes:
            found = rows.array()
            if found is not None:
                told.add(found, clipped.rows(), micro_batch)
        with np.errstate(invalid="ignore"):  # NaN is what is looked for
            now = counts(fates(known.given), known.given.layout)
        made: list[Row] = [*_moves(known, now, step), *_answers(known, now, told.of_row - before, step)]
        for row in made:
            row.step = known.step
        self._known = known._replace(counts=now)
        return made


def _moves(known: AsEnded, now: Array, step: int) -> Iterator[TokenFate]:
    """By how much the tokens of each fate, and the answers that have such, become more or fewer."""
    tokens = (now - known.counts).sum(0)
    samples = (now > 0).sum(0) - (known.counts > 0).sum(0)
    equal = None if known.equal is None else (now - known.counts)[known.equal].sum(0)
    for code in np.flatnonzero(tokens != 0).tolist():
        yield TokenFate(
            batch_id=known.batch_id,
            source=known.source,
            fate=FATES[code],
            tokens=int(tokens[code]),
            samples=int(samples[code]),
            batch_tokens=0,
            batch_samples=0,
            complete=False,
            kept_samples=0,
            equal_tokens=None if equal is None else int(equal[code]),
            trained_step=step,
        )


def _answers(known: AsEnded, now: Array, passes: Array, step: int) -> Iterator[LaterPasses]:
    """What was trained of the answers that have a row."""
    rows = [at for at in known.kept if passes[at]]
    if not rows:
        return
    change = (now - known.counts)[rows]
    numbers = zip(known.given.passes.micro_batches(rows), passes[rows].tolist(), strict=True)
    yield LaterPasses(
        batch_id=known.batch_id,
        trained_step=step,
        rows=rows,
        passes=passes[rows].tolist(),
        micro_batches=[number for own, many in numbers for number in own[-many:]],
        carried_tokens=change[:, FATES.index("carried")].tolist(),
        clipped_tokens=change[:, FATES.index("clipped")].tolist(),
    )
