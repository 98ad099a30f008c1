"""Judge one number: the reported one against what the values that went into it give by another rule.

Everything here is arithmetic on what it is given, in floats or in exact fractions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from probe.analysis.reduction import accidental

#: What a reported number may have fallen into, and what each means.
TRAPS: Final[dict[str, str]] = {
    "nan": "One NaN among the values made the number NaN.",
    "last_one_wins": "Only the last of several values was kept.",
    "accidental_reducer": "A word inside the name chose the reducer.",
    "averaged_extreme": "The largest (or smallest) values of ranks or micro-batches were averaged.",
    "scaled_sum": "The number is larger or smaller by the number of ranks or of accumulated values.",
    "uneven_counts": "Ranks without a value counted as 0.",
    "mean_of_unequal_means": "Means of different numbers of tokens, sequences or values counted the same.",
}

#: Numbers that differ by less are the same: loggers keep at least the digits of float32.
SAME: Final = 1e-6

#: Means are unlike where they differ by this share of what the values spread over.
WRONG: Final = 0.02

#: Whole numbers below it are a multiple of one another by chance.
SMALL: Final = 1000

MEANS: Final = frozenset({"mean", "weighted_mean", "weighted_avg"})
SUMS: Final = frozenset({"sum", "time_sum"})
_EXTREMES: Final[dict[str, Callable[..., Any]]] = {"max": max, "min": min}
_WORDS: Final = {"max": "max", "maximum": "max", "largest": "max", "min": "min", "minimum": "min", "smallest": "min"}
_AVERAGES: Final = frozenset({"mean", "avg", "average", "median", "std"})
#: What an extreme that stands before it is a limit of: a share of those that reach it.
_SHARES: Final = frozenset({"ratio", "rate", "fraction", "frac", "share", "percent", "pct", "probability"})


@dataclass(frozen=True, slots=True)
class Part:
    """What one call has reduced of a metric in a step. Numbers are floats, or fractions."""

    count: int
    value: Any  #: what came out
    total: Any = None  #: sum of the values that aren't NaN
    smallest: Any = None
    largest: Any = None
    last: Any = None
    nan_count: int = 0
    tokens: Any = None
    token_mean: Any = None
    sequences: Any = None
    sequence_mean: Any = None
    reducer: str = "mean"
    chosen_by: str = "name"
    process: str = ""
    rank: int | None = None
    micro_batch: int | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """A number, what it should be, and why it isn't. What isn't known is None."""

    reported: Any
    token_weighted: Any = None
    sequence_weighted: Any = None
    expected: Any = None
    expected_by: str = ""  #: what ``expected`` is: "token-weighted mean", "mean of all values", "largest" …
    trap: str | None = None  #: a key of :data:`TRAPS`
    why: str = ""  #: of this number, a sentence
    factor: str = ""  #: of a scaled sum: "ranks" or "accumulation"

    @property
    def error(self) -> Any:
        """Reported minus expected."""
        known = self.reported is not None and self.expected is not None
        return self.reported - self.expected if known else None

    @property
    def relative_error(self) -> Any:
        """That as a share of the size of the expected number; None where it is 0."""
        return None if self.error is None or not self.expected else self.error / abs(self.expected)


def near(one: Any, other: Any) -> bool:
    """Whether two numbers are the same but for rounding; what is unknown is like nothing."""
    if one is None or other is None:
        return False
    return bool(one == other or abs(one - other) <= SAME * max(abs(one), abs(other)))


def weighted_mean(parts: Sequence[Part], by: str) -> Any:
    """The mean over the tokens or the sequences of all parts, Σ weight × mean ÷ Σ weight; None unless all know it.

    Args:
        parts: Of a metric.
        by: "token" or "sequence".

    >>> weighted_mean([Part(1, 2.0, tokens=30, token_mean=2.0), Part(1, 4.0, tokens=10, token_mean=4.0)], "token")
    2.5
    """
    weights = [getattr(part, f"{by}s") for part in parts]
    if not parts or any(weight is None for weight in weights):
        return None
    whole = sum(weights)
    means = [getattr(part, f"{by}_mean") for part in parts]
    return sum(weight * mean for weight, mean in zip(weights, means, strict=True)) / whole if whole else None


def mean_of(parts: Sequence[Part]) -> Any:
    """The mean of all values that aren't NaN; None where a part doesn't know their sum, or there is no value."""
    counted = sum(part.count - part.nan_count for part in parts)
    if not counted or any(part.total is None for part in parts):
        return None
    return sum(part.total for part in parts) / counted


def judge(
    key: str,
    reported: Any,
    parts: Sequence[Part],
    *,
    ranks: int | None = None,
    logged: Sequence[Any] = (),
    process: str | None = None,
) -> Judged:
    """What is to be said of one number.

    Args:
        key: The metric's name.
        reported: What was logged of it in the step.
        parts: What was reduced to it, one for each call, in time.
        ranks: How many the training has; None where that isn't known.
        logged: Everything that one process logged of it in the step, in time.
        process: Who logged it.
    """
    own = [part for part in parts if part.process == process]
    told = own[-1] if own else parts[-1] if len({part.process for part in parts}) == 1 else None
    parts = _sources(parts, told, reported)
    first = Judged(
        reported, token_weighted=weighted_mean(parts, "token"), sequence_weighted=weighted_mean(parts, "sequence")
    )
    if len(logged) > 1 and near(reported, logged[-1]) and not all(near(one, reported) for one in logged):
        return _several_logged(first, logged)
    if reported is None or not parts:
        return first
    if math.isinf(reported):
        return first  # by whatever rule: one infinity makes it infinite
    return _nan(first, parts) if math.isnan(reported) else _reduced(key, first, parts, ranks)


def _reduced(key: str, first: Judged, parts: Sequence[Part], ranks: int | None) -> Judged:
    """By what its reducer does, or its name promises."""
    by_name = next((one for one in parts if one.chosen_by == "name" and accidental(key, one.reducer)), None)
    if by_name is not None:
        return _by_accident(first, parts, by_name)
    wanted = says(key) or (parts[0].reducer if parts[0].reducer in _EXTREMES else None)
    if wanted is not None:
        return _extreme(first, parts, wanted)
    if parts[0].reducer in SUMS:
        return _sum(first, parts, ranks)
    return _mean(first, parts, ranks) if parts[0].reducer in MEANS else first


def says(key: str) -> str | None:
    """The extreme that a name promises; None where it promises none, or a mean of them.

    >>> says("response_length/max"), says("actor/loss"), says("timing/update"), says("batch/max/mean")
    ('max', None, None, None)
    >>> says("clip_ratio/max"), says("reached_max_length_ratio"), says("perf/samples_per_min")  # a minute
    ('max', None, None)
    """
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", key)]
    before = ["", *words]
    named = [at for at, word in enumerate(words) if word in _WORDS and (before[at], word) != ("per", "min")]
    found = {_WORDS[words[at]] for at in named}
    if len(found) != 1 or _AVERAGES & set(words) or _SHARES & set(words[named[-1] :]):
        return None
    return found.pop()


def _sources(parts: Sequence[Part], told: Part | None, reported: Any) -> Sequence[Part]:
    """What the reported number was made of: what its process reduced last; where that was made of what each process
    had reduced before, those; and of all processes what each reduced last where it is none of its own.
    """
    if told is not None and near(reported, told.value) and told.micro_batch is None:
        before = [part for part in parts if part is not told]
        if len(before) > 1 and told.count == len(before) and near(told.total, sum(part.value for part in before)):
            return before
        return [told]
    whole = {part.process for part in parts if part.micro_batch is None}
    newest = {part.process: part for part in parts}  # the last of each
    kept = [part for part in parts if part.process not in whole or newest[part.process] is part]
    alike = {(part.count, part.value, part.total, part.tokens) for part in kept}
    copies = len(kept) > 1 and len(alike) == 1 and kept[0].count > 1 and len(newest) == len(kept)
    return kept[:1] if copies else kept


def _best(first: Judged, parts: Sequence[Part]) -> Judged:
    """Its mean by the weights that are known, tokens before sequences before values."""
    for expected, name in (
        (first.token_weighted, "token-weighted mean"),
        (first.sequence_weighted, "sequence-weighted mean"),
        (mean_of(parts), "mean of all values"),
    ):
        if expected is not None:
            return replace(first, expected=expected, expected_by=name)
    return first


def _several_logged(first: Judged, logged: Sequence[Any]) -> Judged:
    mean = sum(logged) / len(logged)
    why = f"It was logged {len(logged)} times in the step, and charts keep the last."
    return replace(first, expected=mean, expected_by="mean of what was logged", trap="last_one_wins", why=why)


def _nan(first: Judged, parts: Sequence[Part]) -> Judged:
    count, nan = sum(part.count for part in parts), sum(part.nan_count for part in parts)
    if not nan:
        return first
    return replace(first, trap="nan", why=f"{nan} of {count} values are NaN; the means are those of the others.")


def _spread(parts: Sequence[Part]) -> Any:
    high = [part.largest for part in parts if part.largest is not None]
    low = [part.smallest for part in parts if part.smallest is not None]
    return max(high) - min(low) if high and low else 0


def _by_accident(first: Judged, parts: Sequence[Part], part: Part) -> Judged:
    found = _best(first, parts)
    differs = part.count > 1 if part.reducer in SUMS else bool(_spread(parts))
    if not differs or near(found.reported, found.expected):
        return found
    kept = {"min": "the smallest", "max": "the largest"}.get(part.reducer, "the sum")
    why = f"It is {kept} of {part.count} values because the reducer was found inside a word of the name."
    return replace(found, trap="accidental_reducer", why=why)


def _extreme(first: Judged, parts: Sequence[Part], wanted: str) -> Judged:
    pick = _EXTREMES[wanted]
    ends = [part.largest if wanted == "max" else part.smallest for part in parts]
    if any(end is None for end in ends):
        return first
    found = replace(first, expected=pick(ends), expected_by="largest" if wanted == "max" else "smallest")
    if near(first.reported, found.expected):
        return found
    averages = [sum(part.value for part in parts) / len(parts)]
    averages += [mean for mean in (mean_of(parts), first.token_weighted, first.sequence_weighted) if mean is not None]
    if not any(near(first.reported, mean) for mean in averages):
        return found
    of = f"{len(parts)} processes" if len(parts) > 1 else f"{parts[0].count} values"
    return replace(found, trap="averaged_extreme", why=f"It is the mean of what {of} had.")


def _sum(first: Judged, parts: Sequence[Part], ranks: int | None) -> Judged:
    whole = sum(part.value for part in parts)
    return _scaled(replace(first, expected=whole, expected_by="sum"), whole, parts, ranks)


def _mean(first: Judged, parts: Sequence[Part], ranks: int | None) -> Judged:
    found, plain = _best(first, parts), mean_of(parts)
    reported, weighted = first.reported, [first.token_weighted, first.sequence_weighted]
    if any(near(reported, one) for one in weighted):
        by = "token-weighted mean" if near(reported, weighted[0]) else "sequence-weighted mean"
        return replace(found, expected=reported, expected_by=by)
    of_parts = sum(part.value for part in parts) / len(parts)
    if near(reported, plain) or near(reported, of_parts):
        return _means_of_means(found, parts, plain)
    last = [part.last for part in parts if part.count > 1]
    if any(near(reported, one) for one in last):
        return replace(found, trap="last_one_wins", why=f"It is the last of {parts[0].count} values.")
    known = ranks is not None and all(part.rank is not None for part in parts)
    if ranks is not None and known and len(parts) < ranks and near(reported * ranks, of_parts * len(parts)):
        why = f"{len(parts)} of {ranks} ranks had values, and the sum of their means was divided by {ranks}."
        return replace(found, trap="uneven_counts", why=why)
    return _scaled(found, plain if plain is not None else of_parts, parts, ranks)


def _means_of_means(found: Judged, parts: Sequence[Part], plain: Any) -> Judged:
    weighted = [one for one in (found.token_weighted, found.sequence_weighted) if one is not None] or [plain]
    if any(one is None or abs(found.reported - one) <= WRONG * _spread(parts) for one in weighted):
        return found
    counts = [part.count for part in parts]
    if len(parts) > 1 and min(counts) != max(counts):
        what = f"The processes averaged {min(counts)} to {max(counts)} values each, and all means counted the same."
    else:
        what = "The values stand for different numbers of tokens and sequences, and all counted the same."
    return replace(found, trap="mean_of_unequal_means", why=what)


def _scaled(found: Judged, base: Any, parts: Sequence[Part], ranks: int | None) -> Judged:
    """Whether a number is the right one times, or divided by, the number of ranks, of values, or both."""
    reported, counts = found.reported, {part.count for part in parts}
    if near(reported, base) or not base or not reported or _small(reported) or _small(base):
        return found
    values = counts.pop() if len(counts) == 1 else 1
    for number, factor, name in (
        (values, "accumulation", "accumulated values"),
        (ranks or 1, "ranks", "ranks"),
        (values * (ranks or 1), "accumulation", f"accumulated values on {ranks} ranks"),
    ):
        for verb, scaled in (("multiplied", base * number), ("divided", base / number)):
            if number > 1 and near(reported, scaled):
                why = f"It is {verb} by {number}, the number of {name}."
                return replace(found, trap="scaled_sum", why=why, factor=factor)
    return found


def _small(value: Any) -> bool:
    return bool(value == int(value) and abs(value) < SMALL) if math.isfinite(value) else True
