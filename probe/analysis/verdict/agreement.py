"""Whether the sampled tokens are those that are trained, and rollout and training agree about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from probe.analysis.change import Change
from probe.analysis.mismatch.answer import Mismatch
from probe.analysis.mismatch.gathering import gathered
from probe.analysis.mismatch.judgement import CAUSES
from probe.analysis.mismatch.judging import FOLLOWS
from probe.analysis.mismatch.missing import syncs, unrecorded
from probe.analysis.verdict.finding import SOON, Cost, Finding, Kind, Since, Where, withheld
from probe.analysis.verdict.identity import identity, untold
from probe.sql import Sql, joined, sql
from probe.text import whole

if TYPE_CHECKING:
    from probe.analysis.mismatch.tokens import Tokens
    from probe.analysis.withheld import Withheld
    from probe.runs.reader import Run

#: The newest steps that are looked at: what was repaired long ago isn't told again.
STEPS: Final = 30

#: Answers that are looked at, of these steps and all ranks: it is done often.
ANSWERS: Final = 400

#: What is known to differ, as weights of a run that samples ahead do, is worth a change from this effective sample on.
ALARM_BELOW: Final = 0.9
#: Noise is worth a change from this k3 on.
NOISY: Final = 1e-3
#: The evidence is answers that differ at one token by this share of the largest difference, and at least by so much.
SHARE, LEAST = 0.5, 0.15

#: What to do about each cause.
ADVICE: Final = {
    "temperature": "Give both sides the same temperature, and have the engine return log-probabilities "
    "after temperature is applied.",
    "shift": "Align both: the log-probability of a token stands where the token stands, and the loss mask with it.",
    "untrained": "Leave tokens of tools and templates out of the loss mask.",
    "retokenised": "Hand the token ids of the rollout to the trainer; don't tokenise their text again.",
    "stale": "Update the engine's weights before it samples, or weight tokens by their importance ratio, cut off.",
    "unsynced": "Compare the engine's parameters with the trainer's after a sync: look at what the transfer, sleep "
    "mode or a change of precision leaves out.",
    "rank": "Look at the transfer of weights to that rank's engine, and at its precision.",
    "rows": "Look at which replica sampled these answers, and at its weights.",
    "one_sided": "Sample without top-p, top-k and min-p, or have the engine return natural logarithms of probabilities "
    "in the whole vocabulary.",
    "kernels": "Let engine and trainer compute in the same precision, or weight tokens by their importance ratio, cut "
    "off.",
}


def tokens(run: Run) -> list[Finding]:
    """Whether what is trained is what was sampled, and rollout and training agree about it, in the newest steps."""
    same, agree = identity(run), _agreement(run)
    if same is None:
        return [*(one for one, _ in agree), *untold(run)]
    apart = [one for one, cause in agree if same.kind == "fine" or cause not in FOLLOWS]
    return [same.moved(folded=tuple(one for one, _ in agree if one not in apart)), *apart]


def _agreement(run: Run) -> list[tuple[Finding, str]]:
    """What log-probabilities say, with the cause that is judged to be behind it."""
    held = newest_tokens(run)
    if held is None:
        missing = _unrecorded(run)
        return [] if missing is None else [(_withheld(missing), "unknown")]
    found = Mismatch(held, sync=syncs(run))
    if found.judgement.cause == "unknown":
        return [(_withheld(found.withheld[0]), "unknown")]
    if found.judgement.cause == "agree":
        text = found.sentence
        fine = Finding("fine", "agreement", text, topic="token_balance", why=found.judgement.why)
        return [(fine, "agree")]
    return [(_finding(found), found.judgement.cause)]


def newest_tokens(run: Run) -> Tokens | None:
    """The tokens of the newest steps of which both log-probabilities are kept; None where none are.

    Args:
        run: The run.
    """
    if not run.has("token_blocks"):
        return None
    newest = whole(run.sql("select max(step) as step from token_blocks")["step"][0])
    return None if newest is None else gathered(run, first=newest - STEPS + 1, most=ANSWERS)


def _withheld(one: Withheld) -> Finding:
    return withheld(one.name, one.sentence, one.topic, one.change)


def _unrecorded(run: Run) -> Withheld | None:
    """Which side's log-probabilities are missing in the newest steps."""
    newest = (
        whole(run.sql("select max(coalesce(step, 0)) as step from samples")["step"][0]) if run.has("samples") else None
    )
    return None if newest is None else unrecorded(run, first=newest - STEPS + 1)


def _finding(found: Mismatch) -> Finding:
    judged, kind = found.judgement, _kind(found)
    effective = found.measures.effective_ratio
    lost = None if effective is None else 1 - effective
    count = int(np.isin(found.tokens.row[found.tokens.compared], judged.affected).sum())
    explained = judged.explained if judged.explained is not None and judged.explained >= 0.8 else None
    return Finding(
        kind,
        "mismatch",
        found.sentence,
        topic="token_balance",
        where=Where(rank=judged.rank),
        since=_since(found),
        cost=Cost(tokens=count, share=lost),
        explained=explained,
        why=f"{judged.why} {found.split_sentence}".strip(),
        evidence_sql=_evidence(found),
        change=Change(ADVICE[judged.cause]),
        confidence=judged.confidence,
        alternatives=tuple(CAUSES[one] for one in judged.alternatives),
        missing=tuple(_missing(one) for one in found.withheld),
        urgency=SOON,
        weight=70 if kind == "alarm" else 30,
    )


def _missing(one: Withheld) -> str:
    """What can't be judged, and what would record it."""
    return one.sentence if one.change is None else f"{one.sentence} {one.change.advice}"


def _kind(found: Mismatch) -> Kind:
    judged, told = found.judgement, found.measures
    noise = (told.k3 or 0.0) < NOISY
    if judged.cause == "kernels":
        return "fine" if noise else "tuning"
    if judged.confidence == "low":
        return "tuning"
    if judged.cause in ("stale", "unsynced", "rows", "rank"):
        known = judged.cause == "stale" and judged.version is not None
        mild = (told.effective_ratio or 0.0) >= ALARM_BELOW
        return "tuning" if mild and (known or noise) else "alarm"
    return "alarm"


def _since(found: Mismatch) -> Since:
    """The first step that it was seen in, and when its answers were told."""
    rows = [found.tokens.answers[at].known for at in found.judgement.affected]
    steps = [(whole(one.get("step")), whole(one.get("wall_ns"))) for one in rows]
    known = [one for one in steps if one[0] is not None]
    if not known:
        return Since()
    step, wall_ns = min(known, key=lambda one: (one[0] or 0, one[1] or 0))
    return Since(step, wall_ns)


def _evidence(found: Mismatch) -> Sql:
    """The query for the answers that show it: those that differ at one token by half of the largest difference."""
    held, judged = found.tokens, found.judgement
    theirs = held.compared & np.isin(held.row, judged.affected)
    largest = float(np.abs(held.log_ratio[theirs]).max()) if theirs.any() else LEAST
    least = Sql(f"{max(SHARE * largest, LEAST):.3g}")
    where = [sql("abs(difference_largest) >= {least}", least=least)]
    if judged.rank is not None:
        where.append(sql("rank = {rank}", rank=judged.rank))
    since = _since(found).step
    if since is not None:
        where.append(sql("step >= {since}", since=since))
    return sql(
        "select * from samples where {where} order by abs(difference_largest) desc", where=joined(where, " and ")
    )
