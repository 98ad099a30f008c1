"""What explains single tokens or answers exactly: numbers that stand elsewhere, and tokens that were never sampled."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from probe.analysis.mismatch import patterns
from probe.analysis.mismatch.judgement import (
    Cause,
    percent,
)
from probe.analysis.mismatch.tokens import Array, Tokens


class Explained(NamedTuple):
    """What a cause explains one by one.

    Attributes:
        cause: Its name.
        rows: Which answers show it, bool (answers,).
        cost: Of the differences, capped, that it explains.
        detail: What else is told of it.
        why: What supports it, in whole sentences.
    """

    cause: Cause
    rows: Array
    cost: float
    detail: dict[str, Any]
    why: str


class Evidence:
    """All patterns of some tokens.

    Args:
        tokens: The tokens.
    """

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.filled = patterns.filled(tokens)
        never = self.filled.inside | self.filled.edge
        self.kept = tokens.compared & ~never
        self.moved = patterns.moved(tokens, self.kept)
        self._many = len(tokens.answers)

    @cached_property
    def cost(self) -> float:
        """All differences of tokens, capped."""
        difference = np.abs(self.tokens.log_ratio[self.tokens.compared])
        return float(np.minimum(difference, patterns.CAP).sum())

    def one_by_one(self) -> Iterator[Explained]:
        """What explains single tokens or rows."""
        shifted = (self.moved.since >= 0) & ~self.moved.again & (self.moved.by != 0)
        again = self.moved.again
        free = ~shifted & ~again
        inside, edge = (self._rows(flags) & free for flags in self.filled)
        by, at = self.moved.by[shifted], self.moved.since[again]
        gain = self.moved.gain
        yield Explained(
            "shift",
            shifted,
            float(gain[shifted].sum()) + self._cost_of(self.filled.edge | self.filled.inside, shifted),
            {"by": _usual(by)},
            f"Moved by {_usual(by)}, the numbers of these rows agree: as they stand they differ by "
            f"{self._per_token(self.moved.cost, shifted)} a token, moved by "
            f"{self._per_token(self.moved.cost - gain, shifted)}.",
        )
        yield Explained(
            "retokenised",
            again,
            float(gain[again].sum()) + self._cost_of(self.filled.edge | self.filled.inside, again),
            {"position": _usual(at)},
            f"These rows agree up to a position (median {_usual(at)}) and not after it; "
            f"{_share((self.moved.by != 0)[again] & self.moved.seen[again])} of them agree again once they are "
            "shifted.",
        )
        yield Explained(
            "untrained",
            inside,
            self._cost_of(self.filled.inside, free),
            {},
            "The loss counts tokens that the rollout tells a log-probability of exactly 0 of, whole stretches that "
            f"training finds unlikely ({int(self.filled.inside.sum())} tokens).",
        )
        yield Explained(
            "shift",
            edge,
            self._cost_of(self.filled.edge, free),
            {},
            "At the edges of the loss mask it counts a token that was never sampled (its log-probability is exactly "
            f"0, {int(self.filled.edge.sum())} times), and all other tokens agree: the mask stands elsewhere.",
        )

    def _rows(self, flags: Array) -> Array:
        return np.bincount(self.tokens.row[flags], minlength=self._many) > 0

    def _cost_of(self, flags: Array, rows: Array) -> float:
        held = flags & rows[self.tokens.row]
        return float(np.minimum(np.abs(self.tokens.log_ratio[held]), patterns.CAP).sum())

    def _per_token(self, cost: Array, rows: Array) -> str:
        count = np.bincount(self.tokens.row[self.kept], minlength=self._many)[rows].sum()
        return f"{cost[rows].sum() / max(int(count), 1):.2g}"


def _usual(values: Array) -> int:
    return 0 if not len(values) else int(np.median(values))


def _share(flags: Array) -> str:
    return percent(float(flags.mean()) if len(flags) else 0.0)
