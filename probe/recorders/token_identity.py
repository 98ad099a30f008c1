"""The table token_identity: whether the tokens that are trained are those that the engine sampled. Exact."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from probe.recorders.sample_arrays import Array, Layout
from probe.records import TokenIdentity
from probe.same_tokens import Compared, compared

#: Changed answers of a batch that are named, at most.
NAMED: Final = 64


class Together(NamedTuple):
    """Compared answers of a batch.

    Attributes:
        answers: How many.
        trained: Tokens of theirs that the loss counts.
        sampled: Tokens of theirs that were sampled.
        changed: Those that differ, by their places among the compared ones, rising.
    """

    answers: int
    trained: int
    sampled: int
    changed: dict[int, Compared]


def together(found: Sequence[Compared]) -> Together:
    """Answers that were compared one by one."""
    changed = {at: one for at, one in enumerate(found) if one.token is not None}
    return Together(len(found), sum(one.trained for one in found), sum(one.sampled for one in found), changed)


def compared_answers(
    layout: Layout, ids: Array, counted: Array, sampled: list[Array] | Array, places: Sequence[int]
) -> Together:
    """Compare answers of a batch. Those that are plainly the same are found all at once.

    Args:
        layout: Of the batch.
        ids: Of its response tokens, (tokens,).
        counted: Of each whether the loss counts it, bool (tokens,).
        sampled: Ids as the engine sampled them, of each answer; a negative one is none.
        places: Which answers, rising.
    """
    ids, (drawn, drawn_of) = ids.astype(np.int64, copy=False), _flat(sampled)
    many = np.bincount(drawn_of, minlength=len(layout.lengths))
    inside = np.bincount(layout.row_of[counted], minlength=len(layout.lengths))
    same = _begins_alike(ids[counted], inside, drawn, many)
    # As many sampled as response tokens, and some left out: whether each stands in its place is to be looked at.
    same &= (inside == layout.lengths) | (many != layout.lengths)
    begins = np.cumsum(many) - many
    which, changed = np.asarray(places, np.int64), {}
    for place in np.flatnonzero(~same[which]).tolist():
        at = which[place]
        here = slice(layout.begins[at], layout.begins[at] + layout.lengths[at])
        theirs = drawn[begins[at] : begins[at] + many[at]].tolist()
        parts = bool(inside[at] < layout.lengths[at])
        one = compared(ids[here].tolist(), counted[here].tolist(), theirs, parts=parts)
        if one.token is not None:
            changed[place] = one
    return Together(len(which), int(inside[which].sum()), int(many[which].sum()), changed)


def _flat(sampled: list[Array] | Array) -> tuple[Array, Array]:
    """Sampled ids one answer behind the other, and the answer of each."""
    if isinstance(sampled, list):
        ids, of = np.concatenate(sampled), np.repeat(np.arange(len(sampled)), [len(one) for one in sampled])
    else:
        ids, of = sampled.reshape(-1), np.repeat(np.arange(len(sampled)), sampled[:1].size)
    held = ids >= 0
    return ids[held].astype(np.int64, copy=False), of[held]  # an empty list among them makes floats of all


def _begins_alike(trained: Array, inside: Array, drawn: Array, many: Array) -> Array:
    """Whether the trained ids of each answer are the first of the sampled ones, bool (n,).

    Args:
        trained: One answer behind the other.
        inside: How many each answer has, int64 (n,).
        drawn: Likewise those that were sampled.
        many: How many each answer has.
    """
    fits = inside <= many
    of = np.repeat(np.arange(len(inside)), inside)
    shift = (np.cumsum(many) - many) - (np.cumsum(inside) - inside)
    at = np.arange(len(trained)) + shift[of]
    held = fits[of]
    other = of[held][trained[held] != drawn[at[held]]]
    fits[other] = False
    return fits


def identity(
    found: Together,
    places: Sequence[int] | None,
    batch_id: int,
    source: str,
    uids: Sequence[str] | None,
    *,
    keeps_ids: bool,
) -> TokenIdentity:
    """The row of a batch.

    Args:
        found: The compared answers.
        places: Theirs in the batch, rising; None where these aren't known.
        batch_id: Of the batch.
        source: Who told.
        uids: Of these answers.
        keeps_ids: Whether the row may hold token ids.
    """
    row = TokenIdentity(
        batch_id=batch_id,
        source=source,
        answers=found.answers,
        trained_tokens=found.trained,
        sampled_tokens=found.sampled,
        changed_answers=len(found.changed),
        changed_tokens=sum(one.changed for one in found.changed.values()),
        changed_rows=[] if places is None else [places[at] for at in islice(found.changed, NAMED)],
        changed_uids=[]
        if places is not None or uids is None
        else [uids[at] for at in islice(found.changed, NAMED) if uids[at]],
    )
    if found.changed:
        at, first = next(iter(found.changed.items()))
        row.first_uid, row.first_token = "" if uids is None else uids[at], first.token
        if keeps_ids:
            row.sampled_id, row.trained_id = first.sampled_id, first.trained_id
    return row
