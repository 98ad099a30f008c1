"""Are the tokens of an answer that are trained those that were sampled? Exact, in plain Python: lists of ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress
from typing import NamedTuple


class Compared(NamedTuple):
    """One answer.

    Attributes:
        trained: Tokens that the loss counts.
        sampled: Tokens that were sampled.
        changed: Counted tokens from the first changed one on; 0 where nothing is changed.
        token: Which of the response tokens is the first changed one, from 0; None where none is.
        sampled_id: What was sampled there; None where the engine had come to its end.
        trained_id: What is trained there.
    """

    trained: int
    sampled: int
    changed: int = 0
    token: int | None = None
    sampled_id: int | None = None
    trained_id: int | None = None


def compared(ids: Sequence[int], counted: Iterable[object], sampled: Sequence[int], *, parts: bool) -> Compared:
    """Compare one answer. Its counted tokens are to be the sampled ones in their order; they may end sooner.

    Args:
        ids: Of its response tokens.
        counted: Of each whether the loss counts it.
        sampled: Ids as the engine sampled them.
        parts: Whether some of the sampled tokens may be left out anywhere.

    >>> compared([5, 6, 7], [1, 1, 1], [5, 6, 7, 8], parts=False)  # cut off at a limit
    Compared(trained=3, sampled=4, changed=0, token=None, sampled_id=None, trained_id=None)
    >>> compared([5, 9, 60, 7], [1, 0, 1, 1], [5, 6, 7], parts=True)  # 9 is what a tool said
    Compared(trained=3, sampled=3, changed=2, token=2, sampled_id=6, trained_id=60)
    """
    places = list(compress(range(len(ids)), counted))
    trained = [ids[at] for at in places]
    if trained == sampled[: len(trained)]:
        return Compared(len(trained), len(sampled))
    if parts and len(trained) < len(sampled):
        at = _first_not_among(trained, sampled)
        if at is None:
            return Compared(len(trained), len(sampled))
    else:
        both = zip(trained, sampled, strict=False)
        at = next((at for at, (one, other) in enumerate(both) if one != other), len(sampled))
    there = sampled[at] if at < len(sampled) else None
    return Compared(len(trained), len(sampled), len(trained) - at, places[at], there, trained[at])


def _first_not_among(trained: Sequence[int], sampled: Sequence[int]) -> int | None:
    """The first trained token that isn't sampled behind those before it; None where all are, in their order."""
    left = iter(sampled)
    return next((at for at, one in enumerate(trained) if one not in left), None)  # which takes what it looks at
