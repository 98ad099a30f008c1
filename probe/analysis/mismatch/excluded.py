"""Which causes of a mismatch were looked for, what was seen of each, and so why those that it isn't are excluded.

The numbers are those that :func:`~probe.analysis.mismatch.judging.judge` goes by. Where other tokens are trained than
were sampled in some answers, or only some are concerned, the other causes are looked for in the others.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import numpy as np

from probe.analysis.mismatch import patterns
from probe.analysis.mismatch.evidence import Evidence
from probe.analysis.mismatch.groups import LOUD_ROWS, LOUD_SHARE, LOUD_TIMES, Rows, loud_rows, loudest_rank, rows_of
from probe.analysis.mismatch.judgement import CAUSES, Cause, Judgement, concerned_share, percent
from probe.analysis.mismatch.judging import FITS, FOLLOWS, NOISE_K3, fits
from probe.analysis.mismatch.lag import lags
from probe.analysis.mismatch.lines import short
from probe.analysis.mismatch.measures import measured
from probe.analysis.mismatch.missing import LEAST_ANSWERS, LEAST_TOKENS
from probe.analysis.mismatch.signs import signs
from probe.analysis.mismatch.tails import NOISE_TAILS, times
from probe.analysis.mismatch.tokens import NOT_KNOWN, Array, Tokens

#: Whether it is the cause: "part" of single answers beside another one, "noise" of what is left, "unknown" where that
#: can't be told.
State = Literal["yes", "perhaps", "part", "no", "noise", "unknown"]

#: What explains single answers is a part of it from this share of the differences on.
PART: Final = 0.1

_EXACT: Final[tuple[Cause, ...]] = ("retokenised", "shift", "untrained")
_ORDER: Final[tuple[Cause, ...]] = (*_EXACT, "temperature", "stale", "unsynced", "rank", "rows", "one_sided", "kernels")

_NONE_SEEN: Final = {
    "retokenised": "No answer agrees up to a token and differs from there on.",
    "shift": "Moved by 1 to 3 tokens, no answer agrees better, and no loss mask counts one token too many.",
    "untrained": "The loss counts no stretch of tokens whose rollout log-probability is exactly 0.",
}
_SEEN: Final = {
    "retokenised": "agreement up to a token and none from there on",
    "shift": "numbers, or a mask, that agree better once they are moved",
    "untrained": "tokens in the loss whose rollout log-probability is exactly 0",
}


_STATES: Final[dict[State, str]] = {
    "yes": "yes",
    "perhaps": "perhaps",
    "part": "in part",
    "no": "no",
    "noise": "noise",
    "unknown": "can't be told",
}


class Considered(NamedTuple):
    """One cause.

    Attributes:
        cause: Its name.
        state: Whether it is that; see :data:`State`.
        seen: What was seen, in whole sentences.
    """

    cause: Cause
    state: State
    seen: str


def considered(tokens: Tokens, judged: Judgement) -> list[Considered]:
    """All causes, the one that was found first.

    Args:
        tokens: Of all answers.
        judged: What was judged of them.

    Returns:
        [] where there was too little to judge by.
    """
    if judged.cause == "unknown":
        return []
    looked = _Looked(tokens, judged)
    found = "kernels" if judged.cause == "agree" else judged.cause
    order = sorted(_ORDER, key=lambda one: one != found)
    return [Considered(found, _found(judged), judged.why), *(looked.of(one) for one in order if one != found)]


class CauseLine(NamedTuple):
    """Causes of which the same is said, as a line of a table.

    Attributes:
        name: Which.
        seen: What was seen.
        state: Whether it is that.
        word: The same for people, with the share that it explains.
    """

    name: str
    seen: str
    state: State
    word: str


def cause_lines(found: list[Considered], explained: float | None) -> list[CauseLine]:
    """The causes as lines of a table.

    Args:
        found: The causes.
        explained: Share of the differences that the one that was found explains; None where that can't be told.
    """
    named: dict[tuple[State, str], list[str]] = {}
    for one in found:
        named.setdefault((one.state, one.seen), []).append(CAUSES[one.cause])
    return [
        CauseLine(_capital("; ".join(names)), seen, state, _word(state, explained))
        for (state, seen), names in named.items()
    ]


def _word(state: State, explained: float | None) -> str:
    return f"yes, {percent(explained)}" if state == "yes" and explained is not None else _STATES[state]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _found(judged: Judgement) -> State:
    if judged.cause == "agree":
        return "noise"
    return "perhaps" if judged.confidence == "low" else "yes"


class _Looked:
    """What is seen of each cause that wasn't found.

    Args:
        tokens: Of all answers.
        judged: What was judged of them.
    """

    def __init__(self, tokens: Tokens, judged: Judgement) -> None:
        self.tokens = tokens
        self.judged = judged
        self.evidence = Evidence(tokens)
        affected = np.zeros(len(tokens.answers), bool)
        affected[list(judged.affected)] = True
        #: Whether the other causes are looked for in the other answers.
        self.apart = judged.cause in FOLLOWS or (affected.any() and not affected.all())
        kept = self.evidence.kept
        self.kept: Array = kept & ~affected[tokens.row] if self.apart else kept
        rows = np.unique(tokens.row[self.kept])
        self.enough = len(rows) >= LEAST_ANSWERS and int(self.kept.sum()) >= LEAST_TOKENS

    def of(self, cause: Cause) -> Considered:
        """What is seen of one."""
        if cause in _EXACT:
            state, seen = self._exact(cause)
        elif not self.enough:
            state, seen = "unknown", "Too few other answers are left to tell."
        else:
            state, seen = self._whole(cause)
        if cause in self.judged.alternatives and state != "part":
            seen += "" if state in ("perhaps", "unknown") else " But it can look like what was found."
            state = "perhaps"
        return Considered(cause, state, seen)

    def _exact(self, cause: Cause) -> tuple[State, str]:
        """What explains single answers."""
        found = [one for one in self.evidence.one_by_one() if one.cause == cause]
        rows = np.logical_or.reduce([one.rows for one in found])
        many, cost = int(rows.sum()), sum(one.cost for one in found)
        if not many:
            return "no", _NONE_SEEN[cause]
        share = cost / self.evidence.cost if self.evidence.cost > 0 else 0.0
        of = f"{many} of {len(self.tokens.answers)} answers {'has' if many == 1 else 'have'} {_SEEN[cause]}"
        return "part" if share >= PART else "no", f"{of}: {percent(share)} of all differences."

    def _whole(self, cause: Cause) -> tuple[State, str]:
        """What all answers, or groups of them, tell of."""
        if cause == "temperature":
            return self._temperature()
        if cause == "kernels":
            return self._kernels()
        if cause == "one_sided":
            found = signs(self.tokens, self.kept)
            return "perhaps" if found.one else "no", found.sentence
        rows = rows_of(self.tokens, self.kept)
        if cause == "stale":
            return self._stale(rows)
        if cause == "unsynced":
            return self._unsynced(rows)
        return _rank(rows) if cause == "rank" else _rows(rows)

    def _temperature(self) -> tuple[State, str]:
        found = patterns.tempered(self.tokens, self.kept)
        if found is None:
            return "unknown", "No difference is there to fit a temperature to."
        explained = percent(max(found.explained, 0.0))
        guess = "" if found.exact else " Entropies weren't recorded, so the fit is a guess."
        seen = (
            f"The best fit, {found.temperature:.2f} times training's, explains {explained} of the squared differences"
        )
        few = f", and {percent(max(found.usual, 0.0))} without the largest of them" if found.usual < FITS / 2 else ""
        return "perhaps" if fits(found) else "no", f"{seen}{few}.{guess}"

    def _stale(self, rows: Rows) -> tuple[State, str]:
        told, there = lags(self.tokens), rows.there
        behind = told.behind[there]
        if (behind == NOT_KNOWN).all() and (rows.version == NOT_KNOWN).all():
            return "unknown", "Which weights sampled the answers wasn't recorded."
        if (behind == NOT_KNOWN).any() or (behind < 0).any() or (told.by_steps and not behind.any()):
            return "unknown", "How old the weights are that sampled the answers isn't known."
        if not behind.any():
            return "no", "All answers were sampled by the trainer's own version."
        older = behind > behind.min()
        if not older.any():
            least = int(behind.min())
            old = f"{least} version{'' if least == 1 else 's'} old"
            return "unknown", f"All answers are of weights {old}: none is of newer ones to compare with."
        return _compared(rows, older, "The answers of older weights", "those of the newest")

    def _unsynced(self, rows: Rows) -> tuple[State, str]:
        """Weights that aren't those of their version: it begins in a step, or the two are plainly other models."""
        tails = patterns.heaviness(self.tokens, self.kept)
        sudden, seen = _begins(rows)
        if tails is None:
            return "perhaps" if sudden else "unknown", seen or "Steps and tails of the differences aren't known."
        heavy = tails >= NOISE_TAILS
        of = f"Their tails are {times(tails)} times those of plain noise; other weights make {NOISE_TAILS:g} or more."
        return "perhaps" if sudden or heavy else "no", f"{seen} {of}".strip()

    def _kernels(self) -> tuple[State, str]:
        k3 = measured(self.tokens.log_ratio[self.kept]).k3 or 0.0
        within = k3 <= NOISE_K3
        of = f"k3 of {'the other answers' if self.apart else 'all tokens'} is {short(k3)}"
        than = "no more than" if within else "more than"
        state: State = "noise" if within else "part" if self.apart else "no"
        return state, f"{of}, {than} bfloat16 rounding makes ({short(NOISE_K3)})."


def _compared(rows: Rows, inside: Array, ours: str, others: str) -> tuple[State, str]:
    """Whether some answers differ clearly more than the others."""
    found = patterns.apart(rows.loud, inside)
    if found is None:
        return "unknown", f"{ours} are too few to compare them with {others}."
    clear = rows.compare(inside) is not None
    return "perhaps" if clear else "no", f"{ours} differ {_times(found)} {others}."


def _rank(rows: Rows) -> tuple[State, str]:
    worst = loudest_rank(rows)
    if worst is None:
        return "unknown", "No two ranks are known of these answers."
    return _compared(rows, rows.rank == worst, f"The answers of rank {worst}", "those of the other ranks")


def _rows(rows: Rows) -> tuple[State, str]:
    loud = loud_rows(rows)
    many, share = int(loud.sum()), concerned_share(rows.tokens, rows.whole(loud)) or 0.0
    several = many >= LOUD_ROWS and share >= LOUD_SHARE and len(loud) - many >= LOUD_ROWS
    differ = "differs" if many == 1 else "differ"
    of = f"{many} of {len(loud)} answers" if many else f"None of {len(loud)} answers"
    return (
        "perhaps" if several else "no",
        f"{of} {differ if many else 'differs'} more than the noise of its few tokens.",
    )


def _begins(rows: Rows) -> tuple[bool, str]:
    """Whether answers differ more from a step on, and by how much at most; "" where that can't be told."""
    if (rows.step == NOT_KNOWN).any():
        return False, ""
    found = [(one, step) for step in np.unique(rows.step)[1:].tolist() if (one := _from(rows, step)) is not None]
    if not found:
        return False, ""
    most, step = max(found, key=lambda one: one[0].deviations)
    sudden = rows.compare(rows.step >= step, LOUD_TIMES) is not None
    return sudden, f"The clearest change is at step {step}: from there on answers differ {_times(most)} before."


def _times(found: patterns.Apart) -> str:
    return "as much as" if 0.95 <= found.times < 1.05 else f"{times(found.times)} times as much as"


def _from(rows: Rows, step: int) -> patterns.Apart | None:
    return patterns.apart(rows.loud, rows.step >= step)
