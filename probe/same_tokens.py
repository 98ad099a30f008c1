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


def compared(
    ids: Sequence[int], counted: Iterable[object], sampled: Sequence[int], *, parts: bool, aligned: bool = True
) -> Compared:
    """Compare one answer. Its counted tokens are to be the sampled ones in their order; they may end sooner.

    Args:
        ids: Of its response tokens.
        counted: Of each whether the loss counts it.
        sampled: Ids as the engine sampled them.
        parts: Whether some of the sampled tokens may be left out anywhere.
        aligned: Whether parts that are left out stand among the response tokens: then each of as many response tokens
            as were sampled is in its place.

    >>> compared([5, 6, 7], [1, 1, 1], [5, 6, 7, 8], parts=False)  # cut off at a limit
    Compared(trained=3, sampled=4, changed=0, token=None, sampled_id=None, trained_id=None)
    >>> compared([5, 9, 60, 7], [1, 0, 1, 1], [5, 6, 7], parts=True)  # 9 is what a tool said
    Compared(trained=3, sampled=3, changed=2, token=2, sampled_id=6, trained_id=60)
    >>> compared([5, 6, 60, 8], [1, 0, 1, 1], [5, 6, 7, 8], parts=True)  # 6 is left out
    Compared(trained=3, sampled=4, changed=2, token=2, sampled_id=7, trained_id=60)
    """
    places = list(compress(range(len(ids)), counted))
    trained = [ids[at] for at in places]
    cut_off = trained == list(sampled[: len(trained)])
    if parts and aligned and len(ids) == len(sampled):
        at = next((at for at, place in enumerate(places) if ids[place] != sampled[place]), None)
        there = None if at is None else places[at]
        # What a tool said, and as many tokens cut off, make the lengths equal too.
        if cut_off and not _same_beside(ids, places, sampled):
            at = None
    elif cut_off:
        at = there = None
    elif parts and len(trained) < len(sampled):
        at, there = _first_not_among(trained, sampled)
    else:
        both = zip(trained, sampled, strict=False)
        at = there = next((at for at, (one, other) in enumerate(both) if one != other), len(sampled))
    if at is None or there is None:
        return Compared(len(trained), len(sampled))
    drawn = sampled[there] if there < len(sampled) else None
    return Compared(len(trained), len(sampled), len(trained) - at, places[at], drawn, trained[at])


def _same_beside(ids: Sequence[int], places: Sequence[int], sampled: Sequence[int]) -> bool:
    """Whether what isn't counted is what was sampled in its place."""
    left = set(range(len(ids))).difference(places)
    return all(ids[at] == sampled[at] for at in left)


def _first_not_among(trained: Sequence[int], sampled: Sequence[int]) -> tuple[int | None, int]:
    """The first trained token that isn't sampled behind those before it, None where all are, in their order; and the
    sampled token behind the last that is.
    """
    behind = 0
    for at, one in enumerate(trained):
        found = next((there for there in range(behind, len(sampled)) if sampled[there] == one), None)
        if found is None:
            return at, behind
        behind = found + 1
    return None, behind
