"""Who is louder than the others: answers of old versions, of one rank, from a step on, or some by themselves."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from probe.analysis.mismatch import patterns
from probe.analysis.mismatch.judgement import (
    Cause,
    Judgement,
    concerned_rank,
    concerned_share,
    first_step,
    percent,
    places,
)
from probe.analysis.mismatch.lag import behind_by
from probe.analysis.mismatch.measures import measured
from probe.analysis.mismatch.tails import NOISE_TAILS, heavy, light, times
from probe.analysis.mismatch.tokens import NOT_KNOWN, Array, Tokens

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


def groups(tokens: Tokens, kept: Array) -> Judgement | None:
    """Who is louder than the others: old versions, one rank, steps from one on, or rows.

    Args:
        tokens: Of all answers.
        kept: Which of them are compared, bool (tokens,).
    """
    rows = rows_of(tokens, kept)
    found = _by_version(rows) or _by_rank(rows) or _by_step(rows) or _by_row(rows)
    if found is None:
        return None
    theirs = np.isin(tokens.row, found.affected) & kept
    return found if (measured(tokens.log_ratio[theirs]).k3 or 0.0) >= LEAST_K3 else None


class Rows(NamedTuple):
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


def rows_of(tokens: Tokens, kept: Array) -> Rows:
    """The answers that have such tokens, and how loud they are.

    Args:
        tokens: Of all answers.
        kept: Which of them are compared, bool (tokens,).
    """
    loud, count = patterns.loudness(tokens, kept)
    loud, there = np.maximum(loud, QUIET), count > 0
    step, rank, version = (tokens.known(name)[there] for name in ("step", "rank", "weight_version"))
    behind = behind_by(tokens.of(there))
    return Rows(tokens, there, loud[there], count[there], step, rank, version, behind)


def loudest_rank(rows: Rows) -> int | None:
    """The rank whose answers differ most in the median; None where no two ranks are known."""
    ranks = np.unique(rows.rank[rows.rank != NOT_KNOWN])
    if len(ranks) < 2:
        return None
    middles = {int(one): float(np.median(rows.loud[rows.rank == one])) for one in ranks}
    return max(middles, key=lambda one: middles[one])


def loud_rows(rows: Rows) -> Array:
    """Which answers are louder than quiet ones are by the noise of their few tokens, bool (rows,)."""
    quiet = float(np.quantile(rows.loud, 0.25)) * np.exp(0.67 * ROW_SPREAD)
    times = rows.loud / max(quiet, 1e-6)
    noise = np.sqrt(1 / (2 * rows.many) + ROW_SPREAD**2)
    return np.asarray((times >= LOUD_TIMES) & (np.log(times) >= LOUD_DEVIATIONS * noise))


def _by_version(rows: Rows) -> Judgement | None:
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
        f"Answers of older weights differ {times(found.times)} times as much as those of the newest, more than they in "
        f"{percent(found.chance)} of all pairs.",
        (),
        concerned_share(rows.tokens, old),
        first_step(rows.tokens, old),
        concerned_rank(rows.tokens, old),
        int(rows.version[older].min()),
        oldest,
        affected=places(old),
    )


def _by_rank(rows: Rows) -> Judgement | None:
    worst = loudest_rank(rows)
    found = None if worst is None else rows.compare(rows.rank == worst)
    if found is None:
        return None
    inside = rows.whole(rows.rank == worst)
    return Judgement(
        "rank",
        "high" if found.chance >= 0.95 else "medium",
        f"The answers of rank {worst} differ {times(found.times)} times as much as those of the others, more than they "
        f"in {percent(found.chance)} of all pairs.",
        rows.weights(rows.rank == worst),
        concerned_share(rows.tokens, inside),
        first_step(rows.tokens, inside),
        worst,
        affected=places(inside),
    )


def _by_step(rows: Rows) -> Judgement | None:
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
        versions = ", though the engine reports that they are up to date"
    elif (rows.version == NOT_KNOWN).all():
        versions = "; no weight version was recorded"
    elif rows.behind is None:
        versions = "; how old they are isn't known"
    else:
        versions = f"; the engine reports that they are up to {rows.behind[later].max()} versions old"
    return Judgement(
        "unsynced" if fresh else "stale",
        "medium" if other or found.times >= SUDDEN else "low",
        f"From step {step} on answers differ {times(found.times)} times as much as before, on all ranks alike, as if "
        f"weights were no longer updated{versions}. {heavy(tails) if other else light(tails)}",
        ("kernels",),
        concerned_share(rows.tokens, inside),
        step,
        affected=places(inside),
    )


def _by_row(rows: Rows) -> Judgement | None:
    """Whether some rows are loud and all others quiet."""
    loud = loud_rows(rows)
    inside = rows.whole(loud)
    share = concerned_share(rows.tokens, inside)
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
        f"{times(0 if found is None else found.times)} times as much as the others, whose differences are plain noise.",
        (*rows.weights(loud), "retokenised"),
        share,
        first_step(rows.tokens, inside),
        concerned_rank(rows.tokens, inside),
        affected=places(inside),
    )
