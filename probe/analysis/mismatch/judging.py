"""Why rollout and training disagree: the patterns are looked for in turn, and what is left is noise or other weights.

What explains single tokens or rows exactly comes first (tokens that were never sampled, numbers that stand elsewhere),
then what explains all tokens by one number (a temperature), then who is louder than the others (versions, ranks, steps,
rows), then how large and how heavy-tailed what is left is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from probe.analysis.mismatch import patterns
from probe.analysis.mismatch.measures import Measures, measured
from probe.analysis.mismatch.tokens import NOT_KNOWN, Array, Tokens

Cause = Literal[
    "agree",
    "temperature",
    "shift",
    "untrained",
    "retokenised",
    "stale",
    "unsynced",
    "rank",
    "rows",
    "kernels",
    "unknown",
]
Confidence = Literal["high", "medium", "low"]

#: Fewer tokens or answers than these tell nothing.
LEAST_TOKENS, LEAST_ANSWERS = 100, 6
#: Noise without structure is what bfloat16 and other kernels give, up to this k3.
NOISE_K3: Final = 3e-4
#: The tails of arithmetic's noise; see :func:`~probe.analysis.mismatch.patterns.heaviness`.
NOISE_TAILS: Final = 2.0
#: What explains tokens or rows one by one is the cause where it explains this share of all differences.
EXPLAINS: Final = 0.4
#: A temperature is the cause from this share on, without entropies from the second, and this far from 1.
FITS, FITS_GUESSED, FAR = 0.75, 0.5, 0.01
#: Rows are apart from others: so many times as loud, with this chance and so many deviations.
TIMES, CHANCE, DEVIATIONS = 1.5, 0.85, 4.0
#: What begins in a step and is so many times as loud as before is other weights, whatever its tails are.
SUDDEN: Final = 4.0
#: So many times as loud as the quiet ones, and so many deviations of a row's own noise: then it is loud by itself.
LOUD_TIMES, LOUD_DEVIATIONS = 1.8, 5.0
#: Spread of the logarithm of rows' loudness that isn't of their few tokens.
ROW_SPREAD: Final = 0.2
#: What half precision, in which log-probabilities are kept, comes to: no row is quieter.
QUIET: Final = 0.005
#: Louder rows are told of from this k3 of theirs on: below, a ratio is nowhere off by more than a few per cent.
LEAST_K3: Final = 1e-4
#: Rows that must be loud by themselves, and the share of all.
LOUD_ROWS, LOUD_SHARE = 3, 0.02


@dataclass(frozen=True, slots=True)
class Judgement:
    """Why rollout and training disagree, or that they don't.

    Attributes:
        cause: One of :data:`Cause`.
        confidence: How sure that is.
        why: What supports it, and what speaks against other causes, in whole sentences.
        alternatives: What else it could be.
        share: Of the answers that it concerns; None where that isn't known.
        since: The first step that it was seen in; None where it was there from the begin, or steps aren't known.
        rank: The rank that it concerns; None where it is no single one.
        version: The oldest of the weights that sampled, where these are the cause.
        lag: How many versions behind these were.
        temperature: Of the rollout, against the trainer's.
        by: By how many places the rollout's numbers stand later than the trainer's.
        position: The middle of the positions from which on rows differ.
        explained: Share of the differences that the cause explains; None where that can't be told.
        affected: Which answers, by their place among those that were looked at.
    """

    cause: Cause
    confidence: Confidence
    why: str
    alternatives: tuple[Cause, ...] = ()
    share: float | None = None
    since: int | None = None
    rank: int | None = None
    version: int | None = None
    lag: int | None = None
    temperature: float | None = None
    by: int | None = None
    position: int | None = None
    explained: float | None = None
    affected: tuple[int, ...] = ()


class _Explained(NamedTuple):
    """What a cause explains one by one.

    Attributes:
        cause: Its name.
        rows: Which answers show it, bool (answers,).
        cost: Of the differences, capped, that it explains.
        detail: What else is told of it.
    """

    cause: Cause
    rows: Array
    cost: float
    detail: dict[str, Any]
    why: str


class Evidence:
    """All patterns of some tokens.

    Args:
        tokens: The tokens.
    """

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.filled = patterns.filled(tokens)
        never = self.filled.inside | self.filled.edge
        self.kept = tokens.compared & ~never
        self.moved = patterns.moved(tokens, self.kept)
        self._many = len(tokens.answers)

    @cached_property
    def cost(self) -> float:
        """All differences of tokens, capped."""
        difference = np.abs(self.tokens.log_ratio[self.tokens.compared])
        return float(np.minimum(difference, patterns.CAP).sum())

    def one_by_one(self) -> Iterator[_Explained]:
        """What explains single tokens or rows."""
        shifted = (self.moved.since >= 0) & ~self.moved.again & (self.moved.by != 0)
        again = self.moved.again
        free = ~shifted & ~again
        inside, edge = (self._rows(flags) & free for flags in self.filled)
        by, at = self.moved.by[shifted], self.moved.since[again]
        gain = self.moved.gain
        yield _Explained(
            "shift",
            shifted,
            float(gain[shifted].sum()) + self._cost_of(self.filled.edge | self.filled.inside, shifted),
            {"by": _usual(by)},
            f"Moved by {_usual(by)}, the numbers of these rows agree: as they stand they differ by "
            f"{self._per_token(self.moved.cost, shifted)} a token, moved by "
            f"{self._per_token(self.moved.cost - gain, shifted)}.",
        )
        yield _Explained(
            "retokenised",
            again,
            float(gain[again].sum()) + self._cost_of(self.filled.edge | self.filled.inside, again),
            {"position": _usual(at)},
            f"These rows agree up to a position (the middle one is {_usual(at)}) and not behind it, where "
            f"{_share(self.moved.by[again] != 0)} of them agree again once they are moved.",
        )
        yield _Explained(
            "untrained",
            inside,
            self._cost_of(self.filled.inside, free),
            {},
            "The loss counts tokens that the rollout tells a log-probability of exactly 0 of, whole stretches that "
            f"training finds unlikely ({int(self.filled.inside.sum())} tokens).",
        )
        yield _Explained(
            "shift",
            edge,
            self._cost_of(self.filled.edge, free),
            {},
            "At the edges of the loss mask it counts a token that was never sampled (its log-probability is exactly "
            f"0, {int(self.filled.edge.sum())} times), and all other tokens agree: the mask stands elsewhere.",
        )

    def _rows(self, flags: Array) -> Array:
        return np.bincount(self.tokens.row[flags], minlength=self._many) > 0

    def _cost_of(self, flags: Array, rows: Array) -> float:
        held = flags & rows[self.tokens.row]
        return float(np.minimum(np.abs(self.tokens.log_ratio[held]), patterns.CAP).sum())

    def _per_token(self, cost: Array, rows: Array) -> str:
        count = np.bincount(self.tokens.row[self.kept], minlength=self._many)[rows].sum()
        return f"{cost[rows].sum() / max(int(count), 1):.2g}"


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
            f"{count} tokens of {rows} answers have both log-probabilities; at least {LEAST_TOKENS} of {LEAST_ANSWERS} "
            "are needed to tell one cause from another.",
        )
    evidence = Evidence(tokens)
    return _exact(evidence) or _whole(evidence)


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
        f"{first.why} That explains {_percent(share)} of all differences.",
        also or _else(first.cause),
        _share_of(tokens, first.rows),
        _since(tokens, first.rows),
        _rank_of(tokens, first.rows),
        explained=min(share, 1.0),
        affected=_places(first.rows),
        **first.detail,
    )


def _whole(evidence: Evidence) -> Judgement:
    """A cause that all tokens tell of together."""
    tokens, kept = evidence.tokens, evidence.kept
    told = measured(tokens.log_ratio[kept])
    return _tempered(tokens, kept) or _groups(tokens, kept) or _left(tokens, kept, told)


def _tempered(tokens: Tokens, kept: Array) -> Judgement | None:
    found = patterns.tempered(tokens, kept)
    if found is None or abs(found.temperature - 1) < FAR or found.explained < (FITS if found.exact else FITS_GUESSED):
        return None
    sure: Confidence = "high" if found.exact and found.explained >= 0.9 else "medium"
    rest = "" if found.exact else " Entropies weren't told, so that the fit is a guess."
    return Judgement(
        "temperature",
        sure,
        f"A temperature explains {_percent(found.explained)} of the squares of the differences: unlikely tokens differ "
        f"one way and likely ones the other, in each row alike.{rest}",
        () if sure == "high" else ("stale", "kernels"),
        share=1.0,
        temperature=round(found.temperature, 2),
        explained=found.explained,
        affected=tuple(range(len(tokens.answers))),
    )


def _groups(tokens: Tokens, kept: Array) -> Judgement | None:
    """Who is louder than the others: old versions, one rank, steps from one on, or rows."""
    loud, count = patterns.loudness(tokens, kept)
    loud, there = np.maximum(loud, QUIET), count > 0
    step, rank, version = (tokens.known(name)[there] for name in ("step", "rank", "weight_version"))
    behind = _behind(tokens.of(there))
    rows = _Rows(tokens, there, loud[there], count[there], step, rank, version, behind)
    found = _by_version(rows) or _by_rank(rows) or _by_step(rows) or _by_row(rows)
    if found is None:
        return None
    theirs = np.isin(tokens.row, found.affected) & kept
    return found if (measured(tokens.log_ratio[theirs]).k3 or 0.0) >= LEAST_K3 else None


class _Rows(NamedTuple):
    """The answers that are compared; arrays (rows,)."""

    tokens: Tokens
    there: Array
    loud: Array
    many: Array
    step: Array
    rank: Array
    version: Array
    behind: Array | None  #: versions that their weights are told to be behind; None where that isn't known of all

    def whole(self, inside: Array) -> Array:
        """Flags of all answers."""
        found = np.zeros(len(self.there), bool)
        found[np.flatnonzero(self.there)[inside]] = True
        return found

    def compare(self, inside: Array, times: float = TIMES) -> patterns.Apart | None:
        """How much louder some rows are, where they clearly are."""
        found = patterns.apart(self.loud, inside)
        clear = found is not None and found.times >= times and found.chance >= CHANCE
        return found if clear and found is not None and found.deviations >= DEVIATIONS else None

    def fresh(self, inside: Array) -> bool:
        """Whether the weights of some rows are told to be no older than those of the others: versions don't explain
        then why they differ.
        """
        return self.behind is not None and self.behind[inside].max() <= self.behind[~inside].max()

    def weights(self, inside: Array) -> tuple[Cause, ...]:
        """What may be wrong with the weights of some rows, from what is told of their versions."""
        return ("unsynced",) if self.fresh(inside) else ("stale",)


def _behind(tokens: Tokens) -> Array | None:
    """By how many versions the weights of each answer are told to be older than those of the trainer; where the
    trainer's aren't known, than the newest against their steps. None unless it is known of all.
    """
    step, version, trainer = (tokens.known(name) for name in ("step", "weight_version", "trainer_version"))
    if not len(version) or (version == NOT_KNOWN).any():
        return None
    if (trainer != NOT_KNOWN).all():
        return trainer - version
    return None if (step == NOT_KNOWN).any() else step - version - (step - version).min()


def _by_version(rows: _Rows) -> Judgement | None:
    if rows.behind is None:
        return None
    older = rows.behind > rows.behind.min()
    found = rows.compare(older) if older.any() else None
    if found is None:
        return None
    old = rows.whole(older)
    oldest = int(rows.behind.max())
    return Judgement(
        "stale",
        "high",
        f"Answers of older weights differ {found.times:.2g} times as much as those of the newest, more than they in "
        f"{_percent(found.chance)} of all pairs.",
        (),
        _share_of(rows.tokens, old),
        _since(rows.tokens, old),
        _rank_of(rows.tokens, old),
        int(rows.version[older].min()),
        oldest,
        affected=_places(old),
    )


def _by_rank(rows: _Rows) -> Judgement | None:
    ranks = np.unique(rows.rank[rows.rank != NOT_KNOWN])
    if len(ranks) < 2:
        return None
    middles = {int(one): float(np.median(rows.loud[rows.rank == one])) for one in ranks}
    worst = max(middles, key=lambda one: middles[one])
    found = rows.compare(rows.rank == worst)
    if found is None:
        return None
    inside = rows.whole(rows.rank == worst)
    return Judgement(
        "rank",
        "high" if found.chance >= 0.95 else "medium",
        f"The answers of rank {worst} differ {found.times:.2g} times as much as those of the others, more than they in "
        f"{_percent(found.chance)} of all pairs.",
        rows.weights(rows.rank == worst),
        _share_of(rows.tokens, inside),
        _since(rows.tokens, inside),
        worst,
        affected=_places(inside),
    )


def _by_step(rows: _Rows) -> Judgement | None:
    """Whether it begins in a step: weights that were not renewed from then on, whatever is told of their version."""
    if (rows.step == NOT_KNOWN).any():
        return None
    best: tuple[float, int, patterns.Apart] | None = None
    for step in np.unique(rows.step)[1:].tolist():
        found = rows.compare(rows.step >= step, LOUD_TIMES)
        if found is not None and (best is None or found.deviations > best[0]):
            best = found.deviations, step, found
    if best is None:
        return None
    _, step, found = best
    later = rows.step >= step
    inside, fresh = rows.whole(later), rows.fresh(later)
    tails = patterns.heaviness(rows.tokens, rows.tokens.compared & inside[rows.tokens.row])
    other = tails is not None and tails >= NOISE_TAILS
    if fresh:
        versions = ", though the engine tells that they are no older"
    elif rows.behind is None:
        versions = "; no version tells of it"
    else:
        versions = f"; the engine tells that they are up to {rows.behind[later].max()} versions old"
    return Judgement(
        "unsynced" if fresh else "stale",
        "medium" if other or found.times >= SUDDEN else "low",
        f"From step {step} on answers differ {found.times:.2g} times as much as before, on all ranks alike, as where "
        f"weights are no longer renewed{versions}. {_heavy(tails) if other else _light(tails)}",
        ("kernels",),
        _share_of(rows.tokens, inside),
        step,
        affected=_places(inside),
    )


def _by_row(rows: _Rows) -> Judgement | None:
    """Whether some rows are loud and all others quiet."""
    quiet = float(np.quantile(rows.loud, 0.25)) * np.exp(0.67 * ROW_SPREAD)
    times = rows.loud / max(quiet, 1e-6)
    noise = np.sqrt(1 / (2 * rows.many) + ROW_SPREAD**2)
    loud = (times >= LOUD_TIMES) & (np.log(times) >= LOUD_DEVIATIONS * noise)
    inside = rows.whole(loud)
    share = _share_of(rows.tokens, inside)
    if loud.sum() < LOUD_ROWS or share is None or share < LOUD_SHARE or (~loud).sum() < LOUD_ROWS:
        return None
    calm = rows.whole(~loud)[rows.tokens.row] & rows.tokens.compared
    tails = patterns.heaviness(rows.tokens, calm)
    if tails is not None and tails >= NOISE_TAILS:
        return None  # the others aren't noise either: this is how far all rows spread
    found = patterns.apart(rows.loud, loud)
    return Judgement(
        "rows",
        "high" if loud.sum() >= 5 and found is not None and found.times >= 2 * LOUD_TIMES else "medium",
        f"{int(loud.sum())} of {len(loud)} answers differ "
        f"{0 if found is None else found.times:.2g} times as much as the others, whose differences are plain noise.",
        (*rows.weights(loud), "retokenised"),
        share,
        _since(rows.tokens, inside),
        _rank_of(rows.tokens, inside),
        affected=_places(inside),
    )


def _left(tokens: Tokens, kept: Array, told: Measures) -> Judgement:
    """Noise that fits no pattern."""
    tails, k3 = patterns.heaviness(tokens, kept), told.k3 or 0.0
    everyone = tuple(range(len(tokens.answers)))
    if tails is not None and tails >= NOISE_TAILS and k3 > NOISE_K3:
        own = _own(tokens)
        why = _heavy(tails) + (" The engine tells that its weights are the trainer's." if own else "")
        return Judgement("unsynced" if own else "stale", "low", why, ("kernels", "rows"), 1.0, affected=everyone)
    if k3 <= NOISE_K3:
        return Judgement(
            "agree",
            "high" if k3 <= NOISE_K3 / 2 and int(told.tokens) >= 5 * LEAST_TOKENS else "medium",
            "Differences are of both signs, small, and alike in all rows, ranks and steps, as the rounding of bfloat16 "
            f"makes them. {_light(tails)}",
            share=0.0,
        )
    return Judgement(
        "kernels",
        "high" if k3 >= 2 * NOISE_K3 and int(told.tokens) >= 5 * LEAST_TOKENS else "medium",
        "Differences are of both signs and alike in all rows, ranks and steps, and fit no temperature and no shift. "
        f"{_light(tails)} They are larger than bfloat16 makes them.",
        ("stale",),
        1.0,
        affected=everyone,
    )


def _own(tokens: Tokens) -> bool:
    """Whether all answers are told to be sampled by the weights that the trainer has as it trains them."""
    behind = _behind(tokens)
    return behind is not None and not behind.any() and bool((tokens.known("trainer_version") != NOT_KNOWN).all())


def _heavy(tails: float | None) -> str:
    return (
        f"Their tails are {0 if tails is None else tails:.2g} times those of plain noise: the two disagree about "
        "some contexts and agree about others, as other weights do."
    )


def _light(tails: float | None) -> str:
    return "" if tails is None else f"Their tails are {tails:.2g} times those of plain noise."


def _else(cause: Cause) -> tuple[Cause, ...]:
    return {"shift": ("retokenised",), "retokenised": ("shift",), "untrained": ("shift",)}.get(cause, ())  # type: ignore[return-value]


def _usual(values: Array) -> int:
    return 0 if not len(values) else int(np.median(values))


def _share(flags: Array) -> str:
    return _percent(float(flags.mean()) if len(flags) else 0.0)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _share_of(tokens: Tokens, rows: Array) -> float | None:
    """The share of answers that stand for the others."""
    drawn = tokens.drawn if tokens.drawn.any() else np.ones(len(rows), bool)
    return float(rows[drawn].mean()) if drawn.any() else None


def _since(tokens: Tokens, rows: Array) -> int | None:
    """The first step that it was seen in; None where it was seen in the first of all."""
    steps = tokens.known("step")
    if not rows.any() or (steps == NOT_KNOWN).any():
        return None
    first = int(steps[rows].min())
    return first if first > int(steps.min()) else None


def _rank_of(tokens: Tokens, rows: Array) -> int | None:
    """The one rank that all of them are of, where there are others."""
    ranks = tokens.known("rank")
    ours = np.unique(ranks[rows])
    return int(ours[0]) if len(ours) == 1 and len(np.unique(ranks)) > 1 and ours[0] != NOT_KNOWN else None


def _places(rows: Array) -> tuple[int, ...]:
    return tuple(np.flatnonzero(rows).tolist())
