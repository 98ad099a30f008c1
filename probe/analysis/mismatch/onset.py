"""The differences of answers by token, aligned at the first token that differs: whether they begin there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from probe.analysis.mismatch.evidence import Evidence
from probe.analysis.mismatch.tokens import NOT_KNOWN, Array, Tokens
from probe.sql import sql
from probe.text import rows, whole

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Points of the curve at most; with longer answers a point is the mean of several tokens.
POINTS: Final = 120
#: Answers that a point takes: the mean of fewer isn't told.
LEAST: Final = 3
#: Of an answer: it has no token that differs, and it has one whose place isn't known.
NONE, SOMEWHERE = -1, -2

#: Names an answer: step, process, batch and its row in that.
AnswerKey = tuple[int, str, int, int]


class Curve(NamedTuple):
    """The mean difference by token, without its sign.

    Attributes:
        begin: Offset of the first point's first token to the first token that differs, tokens.
        width: Tokens of a point.
        concerned: Of answers with such a token, nats, float64 (points,); NaN where fewer than :data:`LEAST` of them
            have a token.
        others: Of the answers without one, which are aligned at ``place``, likewise.
        answers: How many there are of each.
        place: The median of the first tokens that differ.
    """

    begin: int
    width: int
    concerned: Array
    others: Array
    answers: tuple[int, int]
    place: int


def key_of(tokens: Tokens, at: int) -> AnswerKey | None:
    """What names an answer in its run; None where its step or its batch isn't known.

    Args:
        tokens: Of some answers.
        at: Its place among them.
    """
    step, batch, row = (int(tokens.known(name)[at]) for name in ("step", "batch_id", "row"))
    process = tokens.answers[at].known.get("process")
    return None if NOT_KNOWN in (step, batch, row) or process is None else (step, str(process), batch, row)


def compared_ids(run: Run, steps: tuple[int, int]) -> dict[AnswerKey, int]:
    """The first token that wasn't sampled, by answer, where ids were compared and differ.

    Args:
        run: The run.
        steps: The first and the last step that are asked about.

    Returns:
        Of each batch's first such answer that token, of its others, as far as it names them, :data:`SOMEWHERE`.
    """
    if not run.has("token_identity"):
        return {}
    query = sql(
        """
        select step, process, batch_id, unnest(changed_rows) as row, changed_rows[1] as first_row, first_token
        from token_identity where step between {first} and {last}""",
        first=int(steps[0]),
        last=int(steps[1]),
    )
    found = {}
    for one in rows(run.sql(query)):
        token = whole(one["first_token"]) if one["row"] == one["first_row"] else None
        key = (int(one["step"]), str(one["process"]), int(one["batch_id"]), int(one["row"]))
        found[key] = SOMEWHERE if token is None else token
    return found


def first_differing(tokens: Tokens, exact: Mapping[AnswerKey, int]) -> Array:
    """From which token on each answer goes on with other tokens than were sampled.

    Args:
        tokens: Of the answers.
        exact: That token where ids were compared, see :func:`compared_ids`; else it is the place up to which both sides
            agree and after which they don't, see :func:`probe.analysis.mismatch.patterns.moved`.

    Returns:
        Int64 (answers,); :data:`NONE` where there is no such token, :data:`SOMEWHERE` where its place isn't known.
    """
    seen = Evidence(tokens).moved
    found = np.where(seen.again, seen.since, NONE)
    for at in range(len(tokens.answers)) if exact else ():
        known = key_of(tokens, at)
        place = NONE if known is None else exact.get(known, NONE)
        if 0 <= place < tokens.lengths[at] or (place == SOMEWHERE and found[at] == NONE):
            found[at] = place
    return found


def curve(tokens: Tokens, begins: Array) -> Curve | None:
    """The mean difference by token; each answer counts for as many as it stands for.

    Args:
        tokens: Of the answers.
        begins: The first token that differs of each, see :func:`first_differing`; (answers,).

    Returns:
        None where no point can be told of answers that have such a token.
    """
    concerned = begins >= 0
    held = tokens.held
    ours = np.unique(tokens.row[held & concerned[tokens.row]])
    if len(ours) < LEAST:
        return None
    place = int(np.median(begins[ours]))
    offset = tokens.position - np.where(concerned, begins, place)[tokens.row]
    inside, without = held & concerned[tokens.row], held & (begins == NONE)[tokens.row]
    first, last = int(offset[inside].min()), int(offset[inside].max())
    width = -(-(last - first + 1) // (POINTS - 1))  # a point begins at the first token that differs
    begin = first // width * width
    point = (offset - begin) // width
    many = (last - begin) // width + 1
    told = [_means(tokens, which & (point >= 0) & (point < many), point, many) for which in (inside, without)]
    if not np.isfinite(told[0]).any():
        return None
    others = len(np.unique(tokens.row[without]))
    return Curve(begin, width, told[0], told[1], (len(ours), others), place)


def _means(tokens: Tokens, which: Array, point: Array, many: int) -> Array:
    """The weighted mean of each point; NaN where too few answers have a token of it."""
    at, row, weight = point[which], tokens.row[which], tokens.weight[which]
    total = np.bincount(at, weight, minlength=many)
    found = np.bincount(at, weight * np.abs(tokens.log_ratio[which]), minlength=many)
    pairs = np.unique(np.stack([at, row]), axis=1)
    answers = np.bincount(pairs[0], minlength=many)
    enough = answers >= LEAST
    return np.where(enough, found / np.where(enough, total, 1.0), np.nan)
