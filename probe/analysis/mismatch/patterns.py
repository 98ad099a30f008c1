"""What a mismatch looks like: which tokens were never sampled, which rows are shifted or cut otherwise, which are loud.

Each function takes :class:`~probe.analysis.mismatch.tokens.Tokens` and returns arrays; nothing is judged here.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from probe.analysis.mismatch.tokens import Tokens

Array = npt.NDArray[Any]

#: A token's difference counts as at most this much, so that one of them isn't a row.
CAP: Final = 3.0
#: A row is looked at for a shift where its differences, capped, have at least this mean.
LOUD: Final = 0.05
#: Shifts that are tried: rollout's number of a token stands so many places later.
SHIFTS: Final = (1, -1, 2, -2, 3, -3)
#: Tokens that must have another number to be compared with, once a row is moved, for it to be seen that they agree;
#: and rows of which that is seen, for each other one.
MOVED, SEEN = 3, 0.2
#: A shift explains a row where it leaves at most this share of its capped differences.
LEFT: Final = 0.4
#: A token is off where its numbers differ by more than this.
OFF: Final = 0.5
#: Tokens from one end of a row that must agree before, for it to have been cut otherwise from there on.
BEFORE: Final = 2
#: Tokens that a row must have for a shift to be told from chance.
LEAST_TOKENS: Final = 6
#: What the probability of the other tokens is taken to be at least, when a difference is measured in units of it.
LEAST_OTHER: Final = 0.1
#: Training's log-probability of a token that was never sampled is at most this somewhere in its stretch.
UNLIKELY: Final = -0.3
#: Of differences that are fitted, all but the largest twentieth.
USUAL: Final = 0.95
#: Places at which a word may have been cut otherwise, without the loss of the tokens behind it.
STRETCH: Final = 3


class Filled(NamedTuple):
    """Tokens that the loss counts, and that the rollout tells a 0 of: it never sampled them.

    Attributes:
        inside: Those that stand together, three or more or without a neighbour outside the loss; bool (tokens,).
        edge: One or two that stand beside tokens outside the loss: the mask's edge lies wrong; bool (tokens,).
    """

    inside: Array
    edge: Array


def filled(tokens: Tokens) -> Filled:
    """Which tokens were never sampled.

    A log-probability of exactly 0 is what frameworks fill in where nothing was sampled. A sampled token that is certain
    has it too, so that a stretch counts only where training finds one of its tokens unlikely.
    """
    inside, edge = np.zeros(len(tokens.rollout), bool), np.zeros(len(tokens.rollout), bool)
    zero = tokens.compared & (tokens.rollout == 0)
    for first, last in _stretches(zero, tokens.row):
        # What is certain at either end of a stretch may have been sampled.
        unlikely = np.flatnonzero(tokens.train[first:last] < UNLIKELY)
        if not len(unlikely):
            continue
        begin, end = first + int(unlikely[0]), first + int(unlikely[-1]) + 1
        outside = [at for at in (begin - 1, end) if _in_row(tokens, begin, at) and not tokens.mask[at]]
        (edge if end - begin < STRETCH and outside else inside)[begin:end] = True
    return Filled(inside, edge)


def _stretches(flags: Array, row: Array) -> list[tuple[int, int]]:
    """Where flags stand together in one row: begins and ends."""
    if not len(flags):
        return []
    new_row = np.concatenate([[True], row[1:] != row[:-1]])
    begins = np.flatnonzero(flags & (new_row | ~np.concatenate([[False], flags[:-1]])))
    last = np.concatenate([row[1:] != row[:-1], [True]])
    ends = np.flatnonzero(flags & (last | ~np.concatenate([flags[1:], [False]]))) + 1
    return list(zip(begins.tolist(), ends.tolist(), strict=True))


def _in_row(tokens: Tokens, of: int, at: int) -> bool:
    return 0 <= at < len(tokens.row) and tokens.row[at] == tokens.row[of]


class Moved(NamedTuple):
    """How the numbers of each row are moved against each other; (answers,) each.

    Attributes:
        by: By how many places rollout's stand later than training's; 0 where they aren't moved.
        since: From which position on; −1 where they aren't moved.
        cost: Capped differences of its compared tokens, their sum.
        gain: What the move takes away of it.
        again: Whether numbers agree before ``since``: the row was cut otherwise from there on.
        seen: Whether enough moved tokens were compared with another number to say that they agree.
    """

    by: Array
    since: Array
    cost: Array
    gain: Array
    again: Array
    seen: Array


def moved(tokens: Tokens, keep: Array) -> Moved:
    """Which rows agree once rollout's numbers are moved, from their begin or from a position on.

    Of each row the shift and the position are taken that leave the least; a row counts as moved where at most two
    fifths are left. Where nothing that is moved fits, and tokens agree up to a position and hardly any after it, the
    text goes on with other tokens.

    Args:
        tokens: The tokens.
        keep: Which of them count, bool (tokens,).
    """
    many = len(tokens.answers)
    found = Moved(*(np.zeros(many, kind) for kind in (int, int, float, float, bool, bool)))
    found.since[:] = -1
    for row, (begin, count) in enumerate(zip(tokens.begins.tolist(), tokens.lengths.tolist(), strict=True)):
        inside = slice(begin, begin + count)
        compared: Array = keep[inside]
        train, rollout = tokens.train[inside], tokens.rollout[inside]
        usual = np.where(compared, _capped(train - rollout), 0.0)
        total = float(usual.sum())
        found.cost[row] = total
        if compared.sum() < LEAST_TOKENS or total < LOUD * compared.sum():
            continue
        left, since, by, seen = min(
            (_best(usual, train, rollout, compared, by) for by in SHIFTS), key=lambda one: one.left
        )
        if left > LEFT * total:
            since, by, seen = _break(usual, compared), 0, True
            if since < 0:
                continue
            left = float(usual[:since].sum())
        before = compared[:since]
        agree = int((usual[:since][before] < 0.2).sum())
        found.by[row], found.since[row], found.gain[row] = by, since, total - left
        found.again[row] = agree >= BEFORE and agree >= 0.8 * max(int(before.sum()), 1)
        found.seen[row] = seen
    return _of_seen(found)


def _of_seen(found: Moved) -> Moved:
    """Without rows that differ in their last tokens alone, unless enough others show that numbers are moved."""
    unseen = (found.since >= 0) & ~found.seen
    if int(found.seen.sum()) >= SEEN * int(unseen.sum()):
        return found
    return found._replace(
        by=np.where(unseen, 0, found.by),
        since=np.where(unseen, -1, found.since),
        gain=np.where(unseen, 0.0, found.gain),
        again=found.again & ~unseen,
    )


def _capped(difference: Array) -> Array:
    return np.asarray(np.minimum(np.abs(np.nan_to_num(difference, nan=CAP, posinf=CAP, neginf=CAP)), CAP))


class _Move(NamedTuple):
    """What is left if rollout's numbers are moved from the best position on, that position, the move, and whether
    enough tokens have a counterpart then: at the end of a row none have, and nothing is left of them.
    """

    left: float
    since: int
    by: int
    seen: bool


def _best(usual: Array, train: Array, rollout: Array, compared: Array, by: int) -> _Move:
    count = len(usual)
    moved_by = np.full(count, np.nan)
    if abs(by) < count:
        if by > 0:
            moved_by[: count - by] = rollout[by:]
        else:
            moved_by[-by:] = rollout[:by]
    there = compared & ~np.isnan(moved_by)
    other = np.where(there, _capped(train - moved_by), 0.0)
    before = np.concatenate([[0.0], np.cumsum(usual)])
    after = np.concatenate([np.cumsum(other[::-1])[::-1], [0.0]])
    at = int((before + after).argmin())
    return _Move(float(before[at] + after[at]), at, by, int(there[at:].sum()) >= MOVED)


def _break(usual: Array, compared: Array) -> int:
    """From which position on hardly any token agrees, where those before do; −1 where there is none.

    Of all such positions the one is taken that the fewest tokens contradict: those before it that are off, and those
    after it that agree. Other tokens may agree by chance to within half, so that what is off is then judged by how
    much the tokens before it differ.
    """
    inside = np.flatnonzero(compared)
    if len(inside) < 2 * LEAST_TOKENS:
        return -1
    sizes = usual[inside]
    place = _fewest_misfits(sizes > OFF)
    if place < 0:
        return -1
    finer = max(LOUD, 3 * float(np.quantile(sizes[:place], 0.8)))
    nearer = _fewest_misfits(sizes > finer) if finer < OFF else -1
    return int(inside[nearer if nearer >= 0 else place])


def _fewest_misfits(off: Array) -> int:
    """The place that divides flags best into few before it and many from it on; −1 where none divides them well."""
    many = len(off)
    at = np.arange(many + 1)
    before = np.concatenate([[0.0], np.cumsum(off)])
    after = before[-1] - before
    with np.errstate(divide="ignore", invalid="ignore"):
        good = (at >= 3) & (many - at >= LEAST_TOKENS) & (before / at <= 0.05) & (after / (many - at) >= 0.6)
    return int(np.where(good, before + (many - at) - after, np.inf).argmin()) if good.any() else -1


def normed(tokens: Tokens) -> Array:
    """The difference of each token in units of the probability of all other tokens, float (tokens,).

    Noise on logits changes a token's log-probability by about that much times the noise, so that of plain noise what
    comes out is alike for likely and unlikely tokens. The unit is at least 0.1.
    """
    other = -np.expm1(np.minimum(tokens.train, 0.0))
    return np.asarray(np.clip(tokens.log_ratio, -CAP, CAP) / np.maximum(other, LEAST_OTHER))


def loudness(tokens: Tokens, keep: Array) -> tuple[Array, Array]:
    """How much the numbers of each row differ: the root of the mean square of :func:`normed`, and of how many tokens.

    Args:
        tokens: The tokens.
        keep: Which of them count, bool (tokens,).

    Returns:
        Float (answers,), NaN of a row without such tokens; int (answers,).
    """
    many = len(tokens.answers)
    count = np.bincount(tokens.row[keep], minlength=many)
    square = np.bincount(tokens.row[keep], normed(tokens)[keep] ** 2, minlength=many)
    return np.where(count > 0, np.sqrt(square / np.maximum(count, 1)), np.nan), count


class Tempered(NamedTuple):
    """The temperature that fits best.

    Attributes:
        temperature: At which the rollout's numbers are, against training's.
        explained: Share of the squared differences that it explains.
        usual: The same without the largest twentieth of the differences: a few tokens that are far off lie on any line.
        exact: Whether entropies were known; else they are guessed from the tokens themselves.
    """

    temperature: float
    explained: float
    usual: float
    exact: bool


def tempered(tokens: Tokens, keep: Array) -> Tempered | None:
    """Which temperature explains the differences.

    At temperature 1/β a log-probability is that at 1 plus (β − 1) · (log p + H) to first order, H being the entropy:
    the derivative of log softmax(βz) by β at 1. The slope of the differences over log p + H is therefore β − 1. Without
    entropies H is the mean of −log p over tokens of the same log p ± a little, which sampled tokens tell less exactly.

    Args:
        tokens: The tokens.
        keep: Which of them count.
    """
    train, told = tokens.train[keep], -tokens.log_ratio[keep]  # rollout minus training
    if len(train) < 30:
        return None
    entropy = None if tokens.entropy is None else tokens.entropy[keep]
    exact = entropy is not None and bool(np.isfinite(entropy).all())
    if exact and entropy is not None:
        lever = train + entropy
    else:
        lever = train - train.mean()
    told = np.clip(told, -CAP, CAP)
    square = float((lever**2).sum())
    if square <= 0 or not told.any():
        return None
    slope = float((told * lever).sum() / square)
    usual = np.abs(told) <= np.quantile(np.abs(told), USUAL)
    return Tempered(1 / max(1 + slope, 0.05), _explained(told, lever), _explained(told[usual], lever[usual]), exact)


def _explained(told: Array, lever: Array) -> float:
    """The share of squared differences that lies on a line over the lever. The second order bends the line: a quadratic
    follows it.
    """
    all_of_it = float((told**2).sum())
    if all_of_it <= 0:
        return 0.0
    design = np.stack([lever, lever * np.abs(lever)], axis=1)
    fitted = design @ np.linalg.lstsq(design, told, rcond=None)[0]
    return 1 - float(((told - fitted) ** 2).sum()) / all_of_it


def heaviness(tokens: Tokens, keep: Array) -> float | None:
    """How heavy the tails of :func:`normed` are: root of the mean square ÷ 1.4826 · median of magnitudes.

    1 of a normal distribution, as arithmetic's noise on logits has it; several of two models that differ, who disagree
    about some contexts and not about others. Tokens that are nearly certain are left out. None of fewer than 30.
    """
    held = normed(tokens)[keep & (tokens.train < np.log(1 - LEAST_OTHER))]
    if len(held) < 30:
        return None
    middle = float(np.median(np.abs(held)))
    return float(np.sqrt((held**2).mean()) / (1.4826 * middle)) if middle > 0 else None


class Apart(NamedTuple):
    """How much louder some rows are than the others.

    Attributes:
        times: Median of their loudness ÷ that of the others.
        chance: Probability that one of them, drawn at random, is louder than one of the others.
        deviations: How many standard deviations the sum of ranks is from that of no difference.
    """

    times: float
    chance: float
    deviations: float


def apart(loud: Array, inside: Array) -> Apart | None:
    """Compare rows with the others by the sum of their ranks (Mann and Whitney 1947).

    Args:
        loud: Of each row, no NaN; (n,).
        inside: Which rows, bool (n,).

    Returns:
        None where either side has fewer than three rows.

    >>> found = apart(np.array([1.0, 1.1, 0.9, 1.0, 5.0, 6.0, 7.0]), np.array([0, 0, 0, 0, 1, 1, 1], bool))
    >>> round(found.times, 3), found.chance, round(found.deviations, 2)
    (6.0, 1.0, 2.12)
    """
    ours, others = int(inside.sum()), int((~inside).sum())
    if ours < 3 or others < 3:
        return None
    _, place, counts = np.unique(loud, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]  # equal ones share the mean of their ranks
    won = float(ranks[inside].sum()) - ours * (ours + 1) / 2
    spread = np.sqrt(ours * others * (len(loud) + 1) / 12)
    quiet = max(float(np.median(loud[~inside])), 1e-6)
    return Apart(
        float(np.median(loud[inside])) / quiet, won / (ours * others), (won - ours * others / 2) / float(spread)
    )
