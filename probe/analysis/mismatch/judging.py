"""Why rollout and training disagree: the patterns are looked for in turn, and what is left is noise or other weights.

What explains single tokens or rows exactly comes first (tokens that were never sampled, numbers that stand elsewhere),
then what explains all tokens by one number (a temperature), then who is louder than the others (versions, ranks, steps,
rows), then how large and how heavy-tailed what is left is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from probe.analysis.mismatch import patterns
from probe.analysis.mismatch.confident import counted
from probe.analysis.mismatch.evidence import Evidence
from probe.analysis.mismatch.groups import groups
from probe.analysis.mismatch.judgement import (
    Cause,
    Confidence,
    Judgement,
    concerned_rank,
    concerned_share,
    first_step,
    percent,
    places,
)
from probe.analysis.mismatch.lag import behind_by, lags
from probe.analysis.mismatch.measures import Measures, measured
from probe.analysis.mismatch.missing import FILLED_IN, LEAST_ANSWERS, LEAST_TOKENS, filled_in, impossible
from probe.analysis.mismatch.signs import one_sided, signs
from probe.analysis.mismatch.tails import NOISE_TAILS, heavy, light
from probe.analysis.mismatch.tokens import NOT_KNOWN, Array, Tokens

#: Noise without structure is what bfloat16 and other kernels give, up to this k3.
NOISE_K3: Final = 3e-4
#: What explains tokens or rows one by one is the cause where it explains this share of all differences.
EXPLAINS: Final = 0.4
#: Causes that come of other tokens being trained than were sampled.
FOLLOWS: Final[frozenset[Cause]] = frozenset({"retokenised", "shift", "untrained"})
#: A temperature is the cause from this share on, without entropies from the second, and this far from 1.
FITS, FITS_GUESSED, FAR = 0.75, 0.5, 0.01


def judge(tokens: Tokens) -> Judgement:
    """Why the log-probabilities of some tokens differ.

    Args:
        tokens: Of some answers, whole ones: tokens that the loss doesn't count tell where a mask stands.
    """
    count = int(tokens.compared.sum())
    rows = len(np.unique(tokens.row[tokens.compared]))
    if count < LEAST_TOKENS or rows < LEAST_ANSWERS:
        return Judgement(
            "unknown",
            "low",
            f"{count} token{'' if count == 1 else 's'} of {rows} answer{'' if rows == 1 else 's'} "
            f"{'has' if count == 1 else 'have'} both log-probabilities; at least {LEAST_TOKENS} of {LEAST_ANSWERS} are "
            "needed to tell one cause from another.",
        )
    if filled_in(tokens):
        return Judgement("unknown", "low", FILLED_IN)
    evidence = Evidence(tokens)
    return _with_impossible(tokens, _with_confident(tokens, _exact(evidence) or _whole(evidence)))


def _with_impossible(tokens: Tokens, found: Judgement) -> Judgement:
    """A judgement with what isn't compared since one side alone finds it impossible. Then they don't agree."""
    many = impossible(tokens)
    if not many:
        return found
    why = f"{many} tokens can't be compared: one side gives them a probability of 0."
    if found.cause == "agree":
        return Judgement("unknown", "low", f"{why} On the others they agree.")
    return replace(found, why=f"{found.why} {why}")


def _with_confident(tokens: Tokens, found: Judgement) -> Judgement:
    """A judgement with what tokens say on which both sides are sure of opposite things. Neither noise nor a temperature
    makes them: then something else is wrong, too.
    """
    seen = counted(tokens, lags(tokens).behind)
    if not seen.tells:
        return found
    why = f"{found.why} {seen.sentence}"
    if found.cause not in ("kernels", "temperature"):
        return replace(found, why=why)
    also: tuple[Cause, ...] = tuple(dict.fromkeys((*found.alternatives, "stale", "retokenised", "shift")))
    sure: Confidence = "medium" if found.confidence == "high" else found.confidence
    why += " Other tokens, another mask or other weights do."
    return replace(found, why=why, alternatives=also, confidence=sure)


def _exact(evidence: Evidence) -> Judgement | None:
    """A cause that explains tokens or rows one by one."""
    total = evidence.cost
    found = [one for one in evidence.one_by_one() if one.rows.sum() >= 2]
    if not found or total <= 0:
        return None
    first, *others = sorted(found, key=lambda one: -one.cost)
    share = first.cost / total
    if share < EXPLAINS or sum(one.cost for one in found) / total < 1.2 * EXPLAINS:
        return None
    many = int(first.rows.sum())
    sure: Confidence = "high" if share >= 0.6 and many >= 5 else "medium"
    also = tuple(dict.fromkeys(one.cause for one in others if one.cost >= 0.1 * total and one.cause != first.cause))
    tokens = evidence.tokens
    return Judgement(
        first.cause,
        sure,
        f"{first.why} That explains {percent(share)} of all differences.",
        also or _else(first.cause),
        concerned_share(tokens, first.rows),
        first_step(tokens, first.rows),
        concerned_rank(tokens, first.rows),
        explained=min(share, 1.0),
        affected=places(first.rows),
        **first.detail,
    )


def _whole(evidence: Evidence) -> Judgement:
    """A cause that all tokens tell of together."""
    tokens, kept = evidence.tokens, evidence.kept
    told = measured(tokens.log_ratio[kept])
    found = _tempered(tokens, kept) or groups(tokens, kept)
    if found is None and (told.k3 or 0.0) > NOISE_K3:
        found = one_sided(tokens, kept)
    return found or _left(tokens, kept, told)


def fits(found: patterns.Tempered) -> bool:
    """Whether a temperature is the cause: it explains all differences, and not only because of a few large ones."""
    least = FITS if found.exact else FITS_GUESSED
    return abs(found.temperature - 1) >= FAR and found.explained >= least and found.usual >= least / 2


def _tempered(tokens: Tokens, kept: Array) -> Judgement | None:
    found = patterns.tempered(tokens, kept)
    if found is None or not fits(found):
        return None
    sure: Confidence = "high" if found.exact and found.explained >= 0.9 else "medium"
    rest = "" if found.exact else " Entropies weren't recorded, so the fit is a guess."
    return Judgement(
        "temperature",
        sure,
        f"A temperature explains {percent(found.explained)} of the squared differences: unlikely tokens differ "
        f"one way and likely ones the other, in every row.{rest}",
        () if sure == "high" else ("stale", "kernels"),
        share=1.0,
        temperature=round(found.temperature, 2),
        explained=found.explained,
        affected=tuple(range(len(tokens.answers))),
    )


def _left(tokens: Tokens, kept: Array, told: Measures) -> Judgement:
    """Noise that fits no pattern."""
    tails, k3 = patterns.heaviness(tokens, kept), told.k3 or 0.0
    everyone = tuple(range(len(tokens.answers)))
    if tails is not None and tails >= NOISE_TAILS and k3 > NOISE_K3:
        own = _own(tokens)
        why = heavy(tails) + (" The engine says that its weights are the trainer's." if own else "")
        return Judgement("unsynced" if own else "stale", "low", why, ("kernels", "rows"), 1.0, affected=everyone)
    if k3 <= NOISE_K3:
        found = signs(tokens, kept)
        sure = k3 <= NOISE_K3 / 2 and int(told.tokens) >= 5 * LEAST_TOKENS and not found.one
        also = found.sentence if found.one else light(tails)
        return Judgement(
            "agree", "high" if sure else "medium", f"{_small_ones(tokens, kept)} {also}".strip(), share=0.0
        )
    return Judgement(
        "kernels",
        "high" if k3 >= 2 * NOISE_K3 and int(told.tokens) >= 5 * LEAST_TOKENS else "medium",
        "Differences are of both signs and alike in all rows, ranks and steps, and fit no temperature and no shift. "
        f"{light(tails)} They are larger than bfloat16 rounding.",
        ("stale",),
        1.0,
        affected=everyone,
    )


def _small_ones(tokens: Tokens, kept: Array) -> str:
    """What small differences are like."""
    differences = tokens.log_ratio[kept]
    if not differences.any():
        return "Both sides' numbers are the same."
    both = bool((differences < 0).any() and (differences > 0).any()) and not signs(tokens, kept).one
    are = "of both signs, small, and" if both else "small, and"
    return f"Differences are {are} alike in all rows, ranks and steps: no more than bfloat16 rounding makes."


def _own(tokens: Tokens) -> bool:
    """Whether all answers are told to be sampled by the weights that the trainer has as it trains them."""
    behind = behind_by(tokens)
    return behind is not None and not behind.any() and bool((tokens.known("trainer_version") != NOT_KNOWN).all())


def _else(cause: Cause) -> tuple[Cause, ...]:
    others: dict[Cause, tuple[Cause, ...]] = {
        "shift": ("retokenised",),
        "retokenised": ("shift",),
        "untrained": ("shift",),
    }
    return others.get(cause, ())
