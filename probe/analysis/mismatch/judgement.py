"""Why rollout and training disagree, as data, and which answers, steps and ranks it concerns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from probe.analysis.mismatch.tokens import NOT_KNOWN, Array, Tokens

Cause = Literal[
    "agree",
    "temperature",
    "shift",
    "untrained",
    "retokenised",
    "stale",
    "unsynced",
    "rank",
    "rows",
    "one_sided",
    "kernels",
    "unknown",
]
Confidence = Literal["high", "medium", "low"]

#: Each cause in two words.
CAUSES: Final = {
    "agree": "agree within noise",
    "temperature": "another temperature",
    "shift": "a shift by one, or a wrong mask",
    "untrained": "tokens that were never sampled",
    "retokenised": "text that was tokenised again",
    "stale": "stale weights",
    "unsynced": "weights that weren't synced",
    "rank": "one rank",
    "rows": "some rows",
    "one_sided": "one side always higher",
    "kernels": "kernels",
    "unknown": "can't be told",
}


@dataclass(frozen=True, slots=True)
class Judgement:
    """Why rollout and training disagree, or that they don't.

    Attributes:
        cause: One of :data:`Cause`.
        confidence: How sure that is.
        why: What supports it, and what speaks against other causes, in whole sentences.
        alternatives: What else it could be.
        share: Of the answers that it concerns; None where that isn't known.
        since: The first step that it was seen in; None where it was there from the begin, or steps aren't known.
        rank: The rank that it concerns; None where it is no single one.
        version: The oldest of the weights that sampled, where these are the cause.
        lag: How many versions behind these were.
        temperature: Of the rollout, against the trainer's.
        by: By how many places the rollout's numbers stand later than the trainer's.
        higher: The side that gives nearly all tokens the higher number, "rollout" or "training".
        position: The middle of the positions from which on rows differ.
        explained: Share of the differences that the cause explains; None where that can't be told.
        affected: Which answers, by their place among those that were looked at.
    """

    cause: Cause
    confidence: Confidence
    why: str
    alternatives: tuple[Cause, ...] = ()
    share: float | None = None
    since: int | None = None
    rank: int | None = None
    version: int | None = None
    lag: int | None = None
    temperature: float | None = None
    by: int | None = None
    higher: str | None = None
    position: int | None = None
    explained: float | None = None
    affected: tuple[int, ...] = ()


def percent(share: float) -> str:
    """A share in whole per cent."""
    return f"{100 * share:.0f} %"


def concerned_share(tokens: Tokens, rows: Array) -> float | None:
    """The share of answers that it concerns, each with its weight.

    Args:
        tokens: Of all answers.
        rows: Which of them it concerns, bool (answers,).
    """
    total = float(tokens.weights.sum())
    return float(tokens.weights[rows].sum()) / total if total else None


def first_step(tokens: Tokens, rows: Array) -> int | None:
    """The first step that it was seen in; None where it was seen in the first of all.

    Args:
        tokens: Of all answers.
        rows: Which of them it concerns, bool (answers,).
    """
    steps = tokens.known("step")
    if not rows.any() or (steps == NOT_KNOWN).any():
        return None
    first = int(steps[rows].min())
    return first if first > int(steps.min()) else None


def concerned_rank(tokens: Tokens, rows: Array) -> int | None:
    """The one rank that all of them are of, where there are others.

    Args:
        tokens: Of all answers.
        rows: Which of them it concerns, bool (answers,).
    """
    ranks = tokens.known("rank")
    ours = np.unique(ranks[rows])
    return int(ours[0]) if len(ours) == 1 and len(np.unique(ranks)) > 1 and ours[0] != NOT_KNOWN else None


def places(rows: Array) -> tuple[int, ...]:
    """The places of some answers among all, of their flags."""
    return tuple(np.flatnonzero(rows).tolist())
