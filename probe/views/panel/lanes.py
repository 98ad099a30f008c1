"""The rollout of one step as a page draws it: a lane for each replica beside the trainer's phases, on one clock.

Nothing is worked out here that :func:`probe.analysis.long_tail.long_tail` doesn't say; times are seconds after the
begin of what is drawn: of the step, or of the first request where that comes before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from probe.analysis.long_tail import LongTail
from probe.analysis.long_tail.gathering import gathered
from probe.analysis.long_tail.markup import COLUMNS, extent, lanes, under_way
from probe.analysis.long_tail.tail import Replica, Step
from probe.analysis.long_tail.wording import RULE_COLUMNS, RULE_NOTE, cells, rule_cells
from probe.text import count, missing, seconds

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Points of a lane, marks of the last answers in it, and phases of the trainer, at most: what a page is told is small.
POINTS: Final = 120
LATE: Final = 48
PHASES: Final = 24
#: Letters of a name.
MOST_NAME: Final = 80

_NEWEST: Final = """
select max(step) as step from rollouts
where step in (select step from scopes where kind = 'step')"""


def kept(run: Run) -> dict[str, Any] | None:
    """The lanes of the last step that has ended; None where sampling times weren't recorded.

    Args:
        run: The run.
    """
    if not run.has("rollouts"):
        return None
    step = run.sql(_NEWEST)["step"].iloc[0]
    found = None if missing(step) else told(run, int(step))
    return found if found and found["lanes"] else None


def told(run: Run, step: int) -> dict[str, Any]:
    """The lanes of one step.

    Args:
        run: The run.
        step: Its number.

    Returns:
        ``step``; ``sentence`` and ``notes``; ``span``, seconds that are drawn; ``tail``, from and to, null where ends
        of single answers aren't known; ``most``, answers under way at once; ``phases``, each with ``name``, ``from``,
        ``to`` and ``inside``, whether it lies within another; ``head`` and ``lanes`` (:func:`_lane`), of which
        ``left_out`` more aren't told; ``rules``, null or ``head``, ``rows`` and ``note`` of what other rules for the
        longest answers would have saved. Without any times ``lanes`` is [].
    """
    found = gathered(run, step, step)
    if not found or found[0].begin_ns is None:
        reason = f"When the answers of step {step} began and ended wasn't recorded."
        return {"step": step, "sentence": reason, "notes": [], "lanes": [], "phases": []}
    one, answer = found[0], LongTail(found)
    first, last = extent(one)
    drawn = lanes(one)
    tail = None if one.ninth_ns is None or one.end_ns is None else [one.ninth_ns, one.end_ns]
    told_lanes = [_lane(one, replica, first, last) for replica in drawn]
    return {
        "step": step,
        "sentence": answer.sentence,
        "notes": list(answer.notes),
        "span": _after(last, first),
        "tail": None if tail is None else [_after(moment, first) for moment in tail],
        "most": max([1, *(high for lane in told_lanes for _, high in lane["points"])]),
        "phases": _phases(one, first),
        "head": list(COLUMNS),
        "lanes": told_lanes,
        "left_out": len(one.replicas) - len(drawn),
        "rules": _rules(answer),
    }


def _rules(answer: LongTail) -> dict[str, Any] | None:
    rows = [rule_cells(one, answer.shown) for one in answer.rules]
    return {"head": list(RULE_COLUMNS), "rows": rows, "note": RULE_NOTE} if rows else None


def _after(moment: int, first: int) -> float:
    return round((moment - first) / 1e9, 6)


def _lane(step: Step, replica: Replica, first: int, last: int) -> dict[str, Any]:
    """One replica: its name; how many answers it has under way from a share of the span to the next; the shares at
    which its answers of the tail end; from when to when it is idle in the tail, seconds, the longest of such times; its
    last end; ``cells`` of the table; and all of it in a sentence.
    """
    late = [] if step.ninth_ns is None else sorted(int(end) for end in replica.requests.end_ns if end > step.ninth_ns)
    points = [(round(at, 4), int(high)) for at, high in under_way(replica, first, last, POINTS)]
    _, *numbers = cells(step, step.replicas.index(replica))
    most = max(high for _, high in points)
    longest = sorted(replica.idle, key=lambda one: one[0] - one[1])[:LATE]
    about = (
        f"{count(replica.samples)} answers, at most {count(most)} at once, "
        f"from {seconds((replica.begin_ns - first) / 1e9)} to {seconds((replica.end_ns - first) / 1e9)}"
    )
    if replica.late is not None and replica.idle_ns is not None:
        about += f"; end in the tail: {count(replica.late)}; idle in it: {seconds(replica.idle_ns / 1e9)}"
    return {
        "name": replica.name if len(replica.name) <= MOST_NAME else f"{replica.name[: MOST_NAME - 1]}…",
        "points": points,
        "late": [round((end - first) / (last - first), 4) for end in late[-LATE:]],
        "ended": _after(replica.end_ns, first),
        "rests": [[_after(begin, first), _after(end, first)] for begin, end in sorted(longest)],
        "ends": seconds((replica.end_ns - first) / 1e9),
        "idle": seconds(None if replica.idle_ns is None else replica.idle_ns / 1e9),
        "cells": numbers,
        "about": about,
    }


def _phases(step: Step, first: int) -> list[dict[str, Any]]:
    """What the trainer did, those within others after them; of very many the longest."""
    longest = sorted(step.phases, key=lambda one: (one.begin_ns - one.end_ns, one.begin_ns))[:PHASES]
    made: list[dict[str, Any]] = []
    for at, one in enumerate(longest):
        inside = any(other.begin_ns <= one.begin_ns and one.end_ns <= other.end_ns for other in longest[:at])
        made.append(
            {
                "name": one.name[:MOST_NAME],
                "from": _after(one.begin_ns, first),
                "to": _after(one.end_ns, first),
                "inside": inside,
            }
        )
    return made
