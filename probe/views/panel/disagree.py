"""Why rollout and training disagree, as a page draws it: the cause, those that it isn't, and answers token by token.

Nothing is judged here that :mod:`probe.analysis.mismatch` doesn't say. It is of the answers that findings are of: those
of the newest steps whose tokens are kept.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from probe.analysis.mismatch.answer import Mismatch
from probe.analysis.mismatch.excluded import cause_lines
from probe.analysis.mismatch.lines import short
from probe.analysis.mismatch.markup import shown
from probe.analysis.mismatch.missing import syncs
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
    return None if found is None or found.judgement.cause == "unknown" else told(found)


def told(found: Mismatch) -> dict[str, Any]:
    """The same as plain JSON.

    Args:
        found: What is judged; not that nothing can be.

    Returns:
        ``agree``; ``sentence``, ``confidence`` and ``notes``; ``causes``, the one that was found first, each with
        ``name``, ``state``, ``word`` (whether it is that) and ``seen``; ``strips`` of single answers
        (:func:`_strip`), none where both agree.
    """
    judged = found.judgement
    agree = judged.cause == "agree"
    rows = [] if agree else shown(found)
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
        "strips": [_strip(found, row, rows) for row in rows],
        "notes": [
            one
            for one in (
                found.split_sentence,
                f"Looked at: {count(many)} answer{'' if many == 1 else 's'}{of}, of which every token is kept.",
            )
            if one
        ],
    }


def _strip(found: Mismatch, row: int, rows: list[int]) -> dict[str, Any]:
    """One answer: its ``name``; ``about``, what is known of it; ``concerned``, whether by the cause; ``largest``, its
    largest difference; ``share``, its tokens as a share of the longest; ``levels``, by position from −4 (training finds
    a token less likely) over 0 (noise) to 4, null where the loss counts none.
    """
    tokens = found.tokens
    begin, many = int(tokens.begins[row]), int(tokens.lengths[row])
    longest = int(tokens.lengths[rows].max())
    inside = slice(begin, begin + many)
    difference, compared = tokens.log_ratio[inside], tokens.compared[inside]
    parts = min(max(math.ceil(PARTS * many / longest), 1), many)
    splits = zip(np.array_split(difference, parts), np.array_split(compared, parts), strict=True)
    known = {name: int(tokens.known(name)[row]) for name in ("step", "row", "rank", "weight_version")}
    words = {"step": "step", "row": "answer", "rank": "rank", "weight_version": "weights"}
    said = {name: f"{words[name]} {value}" for name, value in known.items() if value != NOT_KNOWN}
    largest = difference[compared]
    return {
        "name": ", ".join(said[name] for name in ("step", "row") if name in said) or f"answer {row}",
        "about": ", ".join(said[name] for name in ("rank", "weight_version") if name in said),
        "concerned": row in found.judgement.affected,
        "largest": short(float(largest[np.abs(largest).argmax()])) if len(largest) else "–",
        "tokens": many,
        "share": round(many / longest, 4),
        "levels": [_level(part[flags]) for part, flags in splits],
    }


def _level(values: Array) -> int | None:
    if not len(values):
        return None
    value = float(values[np.abs(values).argmax()])
    size = math.ceil(LEVELS * (abs(value) - QUIET) / (FULL - QUIET))
    return int(math.copysign(min(max(size, 0), LEVELS), value))
