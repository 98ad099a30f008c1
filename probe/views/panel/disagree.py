"""Why rollout and training disagree, as a page draws it: the cause, those that it isn't, and answers token by token.

Nothing is judged here that :mod:`probe.analysis.mismatch` doesn't say. It is of the answers that findings are of: those
of the newest steps whose tokens are kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from probe.analysis.mismatch.answer import Mismatch
from probe.analysis.mismatch.excluded import cause_lines
from probe.analysis.mismatch.lines import short
from probe.analysis.mismatch.markup import shown
from probe.analysis.mismatch.missing import syncs
from probe.analysis.mismatch.onset import AnswerKey, compared_ids, curve, first_differing, key_of
from probe.analysis.mismatch.tokens import NOT_KNOWN, Array
from probe.analysis.verdict.agreement import newest_tokens
from probe.text import count

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Parts of the longest answer's strip; each is the largest difference among its tokens.
PARTS: Final = 96
#: Differences up to the first have no colour, from the second on the fullest; nats. Steps between them.
QUIET, FULL, LEVELS = 0.1, 2.0, 4


def kept(run: Run) -> dict[str, Any] | None:
    """What is told of a run; None where no answer has both log-probabilities, or too few have.

    Args:
        run: The run.
    """
    tokens = newest_tokens(run)
    found = None if tokens is None else Mismatch(tokens, sync=syncs(run))
    if found is None or found.judgement.cause == "unknown":
        return None
    return told(found, {} if found.steps is None else compared_ids(run, found.steps))


def told(found: Mismatch, exact: Mapping[AnswerKey, int]) -> dict[str, Any]:
    """The same as plain JSON.

    Args:
        found: What is judged; not that nothing can be.
        exact: The first token that wasn't sampled, of answers of which ids say it.

    Returns:
        ``agree``; ``sentence``, ``confidence`` and ``notes``; ``causes``, the one that was found first, each with
        ``name``, ``state``, ``word`` (whether it is that) and ``seen``; ``curve``, the mean difference by token
        (:func:`_curve`), and ``strips`` of single answers (:func:`_strip`), none where both agree.
    """
    judged = found.judgement
    agree = judged.cause == "agree"
    rows = [] if agree else shown(found)
    begins = np.empty(0) if agree else first_differing(found.tokens, exact)
    steps = found.steps
    of = (
        ""
        if steps is None
        else f" of step {steps[0]}"
        if steps[0] == steps[1]
        else f" of steps {steps[0]} to {steps[1]}"
    )
    many = len(found.tokens.answers)
    return {
        "agree": agree,
        "sentence": found.sentence,
        "confidence": found.confidence,
        "causes": [one._asdict() for one in cause_lines(found.causes, judged.explained)],
        "curve": None if agree else _curve(found, begins),
        "strips": [_strip(found, row, rows, int(begins[row])) for row in rows],
        "notes": [
            one
            for one in (
                found.split_sentence,
                f"Looked at: {count(many)} answer{'' if many == 1 else 's'}{of}, of which every token is kept.",
            )
            if one
        ],
    }


def _curve(found: Mismatch, begins: Array) -> dict[str, Any] | None:
    """The mean difference by token as plain JSON, see :class:`~probe.analysis.mismatch.onset.Curve`; null where too few
    answers have a token.
    """
    line = curve(found.tokens, begins)
    if line is None:
        return None
    means = {
        name: [None if math.isnan(one) else float(f"{one:.3g}") for one in getattr(line, name).tolist()]
        for name in ("concerned", "others")
    }
    return {"begin": line.begin, "width": line.width, "answers": list(line.answers), "place": line.place, **means}


def _strip(found: Mismatch, row: int, rows: list[int], begin_at: int) -> dict[str, Any]:
    """One answer: its ``name``; ``about``, what is known of it; ``concerned``, whether by the cause; ``largest``, its
    largest difference; ``share``, its tokens as a share of the longest; ``levels``, by position from −4 (training finds
    a token less likely) over 0 (noise) to 4, null where the loss counts none; ``tops``, the token of each level;
    ``step`` and ``key``, what names it among the samples, null where that isn't known; ``token``, which is looked at
    first: the first that differs, else that which differs most.
    """
    tokens = found.tokens
    begin, many = int(tokens.begins[row]), int(tokens.lengths[row])
    longest = int(tokens.lengths[rows].max())
    inside = slice(begin, begin + many)
    difference, compared = tokens.log_ratio[inside], tokens.compared[inside]
    parts = min(max(math.ceil(PARTS * many / longest), 1), many)
    places = np.array_split(np.arange(many), parts)
    known = {name: int(tokens.known(name)[row]) for name in ("step", "row", "rank", "weight_version")}
    words = {"step": "step", "row": "answer", "rank": "rank", "weight_version": "weights"}
    said = {name: f"{words[name]} {value}" for name, value in known.items() if value != NOT_KNOWN}
    size = np.where(compared, np.abs(difference), -1.0)
    tops = [int(part[size[part].argmax()]) for part in places]
    most, key = int(size.argmax()), key_of(tokens, row)
    return {
        "name": ", ".join(said[name] for name in ("step", "row") if name in said) or f"answer {row}",
        "about": ", ".join(said[name] for name in ("rank", "weight_version") if name in said),
        "concerned": row in found.judgement.affected,
        "largest": short(float(difference[most])) if compared.any() else "–",
        "tokens": many,
        "share": round(many / longest, 4),
        "levels": [_level(float(difference[top])) if compared[top] else None for top in tops],
        "tops": tops,
        "step": None if key is None else key[0],
        "key": None if key is None else list(key[1:]),
        "token": begin_at if begin_at >= 0 else most,
    }


def _level(value: float) -> int:
    size = math.ceil(LEVELS * (abs(value) - QUIET) / (FULL - QUIET))
    return int(math.copysign(min(max(size, 0), LEVELS), value))
