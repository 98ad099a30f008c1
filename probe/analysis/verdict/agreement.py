"""Whether the sampled tokens are those that are trained, and rollout and training agree about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from probe.analysis.change import Change
from probe.analysis.framework_settings import setting
from probe.analysis.mismatch.answer import CAUSES, Mismatch
from probe.analysis.mismatch.gathering import gathered
from probe.analysis.mismatch.tokens import NOT_KNOWN
from probe.analysis.verdict.finding import SOON, Cost, Finding, Kind, Since, Where, withheld
from probe.analysis.verdict.identity import identity, untold
from probe.sql import Sql, joined, sql
from probe.text import rows, whole

if TYPE_CHECKING:
    from probe.analysis.mismatch.tokens import Tokens
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
    "kernels": "Let engine and trainer compute in the same precision, or weight tokens by their importance ratio, cut "
    "off.",
}


#: Causes that come of other tokens being trained than were sampled: where ids say so, these follow from it.
FOLLOWS: Final = frozenset({"retokenised", "shift", "untrained"})


def tokens(run: Run) -> list[Finding]:
    """Whether what is trained is what was sampled, and rollout and training agree about it, in the newest steps."""
    same, agree = identity(run), _agreement(run)
    if same is None:
        return [*(one for one, _ in agree), *untold(run)]
    apart = [one for one, cause in agree if same.kind == "fine" or cause not in FOLLOWS]
    return [same.moved(folded=tuple(one for one, _ in agree if one not in apart)), *apart]


_VERSIONS: Final = (
    "Which weights sampled them wasn't recorded: probe.samples(weight_versions=…, trainer_version=…) records it."
)

#: The question that is asked of the newest steps.
_QUESTION: Final = "Whether rollout and training agree about their tokens isn't known"

#: How many answers of the newest steps have log-probabilities, of each side.
_SIDES: Final = sql(
    """
    select count(*) as answers, count(rollout_log_prob_mean) as rollout, count(log_prob_mean) as training,
           count(difference_mean) as both
    from samples where coalesce(step, 0) > (select max(coalesce(step, 0)) from samples) - {steps}""",
    steps=STEPS,
)


def _agreement(run: Run) -> list[tuple[Finding, str]]:
    """What log-probabilities say, with the cause that is judged to be behind it."""
    held = _held(run)
    if held is None:
        return [(one, "unknown") for one in _unknown(run)]
    found = Mismatch(held)
    if found.judgement.cause == "unknown":
        return [(withheld("agreement", found.sentence, "token_balance"), "unknown")]
    if found.judgement.cause == "agree":
        text = found.sentence
        fine = Finding("fine", "agreement", text, topic="token_balance", why=found.judgement.why)
        return [(fine, "agree")]
    return [(_finding(found), found.judgement.cause)]


def _held(run: Run) -> Tokens | None:
    """The tokens of the newest steps of which both log-probabilities are kept."""
    if not run.has("token_blocks"):
        return None
    newest = whole(run.sql("select max(step) as step from token_blocks")["step"][0])
    return None if newest is None else gathered(run, first=newest - STEPS + 1, most=ANSWERS)


def _unknown(run: Run) -> list[Finding]:
    """Which side's log-probabilities are missing, where answers are told at all; nothing where no engine stands apart
    from the trainer.
    """
    if not run.has("samples"):
        return []
    told = rows(run.sql(_SIDES))[0]
    if not told["answers"] or told["both"]:
        return []
    name, now = setting(run, "rollout_log_probs")
    if setting(run, "samples_by_engine")[1] is False:
        return []  # the model that trains samples, too
    sides = [words for side, words in (("rollout", "the rollout's"), ("training", "the trainer's")) if not told[side]]
    sentence = f"{_QUESTION}: {' and '.join(sides) or 'both sides’'} log-probabilities weren't recorded"
    sentence += "." if sides else " of the same answers."
    change = None if now else Change("Record them.", name, True, now)
    if name is None:
        change = Change("Record both: probe.samples(rollout_log_probs=…, log_probs=…).")
    return [withheld("agreement", sentence, "token_balance", change)]


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
        why=judged.why,
        evidence_sql=_evidence(found),
        change=Change(ADVICE[judged.cause]),
        confidence=judged.confidence,
        alternatives=tuple(CAUSES[one] for one in judged.alternatives),
        missing=_untold_versions(found),
        urgency=SOON,
        weight=70 if kind == "alarm" else 30,
    )


def _untold_versions(found: Mismatch) -> tuple[str, ...]:
    """That it wasn't recorded which weights sampled the answers, where other weights may be why they differ."""
    if found.judgement.cause not in ("stale", "rows", "rank"):
        return ()
    return (_VERSIONS,) if (found.tokens.known("weight_version") == NOT_KNOWN).all() else ()


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
