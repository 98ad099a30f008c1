"""The table token_identity: whether the tokens that are trained are those that the engine sampled. Exact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from probe.records import TokenIdentity
from probe.same_tokens import Compared

#: Changed answers of a batch that are named, at most.
NAMED: Final = 64


def identity(
    found: Sequence[Compared],
    places: Sequence[int] | None,
    batch_id: int,
    source: str,
    uids: Sequence[str] | None,
    *,
    keeps_ids: bool,
) -> TokenIdentity:
    """The row of a batch.

    Args:
        found: Of each compared answer.
        places: Theirs in the batch, rising; None where these aren't known.
        batch_id: Of the batch.
        source: Who told.
        uids: Of these answers.
        keeps_ids: Whether the row may hold token ids.
    """
    changed = [at for at, one in enumerate(found) if one.token is not None]
    row = TokenIdentity(
        batch_id=batch_id,
        source=source,
        answers=len(found),
        trained_tokens=sum(one.trained for one in found),
        sampled_tokens=sum(one.sampled for one in found),
        changed_answers=len(changed),
        changed_tokens=sum(one.changed for one in found),
        changed_rows=[] if places is None else [places[at] for at in changed[:NAMED]],
    )
    if changed:
        first = found[changed[0]]
        row.first_uid, row.first_token = "" if uids is None else uids[changed[0]], first.token
        if keeps_ids:
            row.sampled_id, row.trained_id = first.sampled_id, first.trained_id
    return row
