"""Whether what advice promised of a run came true in a later one, in which it was carried out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from probe.analysis.advice.advice import advise
from probe.analysis.advice.keys import value_of
from probe.analysis.advice.suggestions import Suggestion
from probe.analysis.query import same
from probe.analysis.what_if.answering import Replayer
from probe.errors import InputError
from probe.sql import joined, sql
from probe.text import missing, ratio, rows, seconds, size

if TYPE_CHECKING:
    from probe.analysis.difference import Difference
    from probe.runs.reader import Run

#: Columns of :func:`promises`.
PROMISES: Final = ("change", "number", "unit", "before", "promised", "low", "high", "came", "held", "about")

#: A number without an interval is as promised where it isn't worse by a larger share.
_NEAR: Final = 0.05

#: Parts of a difference in step time that a setting answers for: the lengths of another batch are no merit of it.
_OF_SETTINGS: Final = ("balance", "padding", "micro_batches", "waiting", "rest")


def promises(a: Run, b: Run, difference: Difference) -> pd.DataFrame:
    """What the advice for one run promised of each change that the other run's configuration has, and what came.

    Args:
        a: The run that the advice is for.
        b: A later one.
        difference: Of the two.

    Returns:
        A row for each number: change (the settings), number, unit, before, promised, low and high (the ends of its
        interval; NaN where it has none), came (in ``b``), held (True where it came as promised or better; None where
        that can't be said) and about, a sentence. No row where nothing that was advised was carried out.
    """
    return judged(carried_out(a, b), b, difference)


def carried_out(a: Run, b: Run) -> list[Suggestion]:
    """What the advice for one run says that the configuration of another has.

    Args:
        a: The run that the advice is for.
        b: A later one.
    """
    if not _differ(a, b):
        return []
    try:
        advised = advise(a).suggestions
    except InputError:  # no micro-batches
        return []
    return [one for one in advised if _carried_out(one, a, b)]


def judged(done: Sequence[Suggestion], b: Run, difference: Difference) -> pd.DataFrame:
    """What came of suggestions that were carried out, as :func:`promises` has it.

    Args:
        done: Of :func:`carried_out`.
        b: The run that has them.
        difference: Between the run that they are for and that one.
    """
    told = []
    for one in done:
        told += _times(one, difference, alone=len(done) == 1)
        told += _peaks(one, b)
        told += _balances(one, b)
        told += _counts(one, b)
    return _framed(told)


def said(frame: pd.DataFrame) -> list[str]:
    """What :func:`promises` found, a line each.

    Args:
        frame: Of :func:`promises`.
    """
    words = {True: "held", False: "not held", None: "not known"}
    return [f"{row['change']}: {words[row['held']]}. {row['about']}" for row in rows(frame)]


def _differ(a: Run, b: Run) -> bool:
    return bool(a.info.config) and bool(b.info.config) and a.info.config != b.info.config


def _carried_out(one: Suggestion, a: Run, b: Run) -> bool:
    """Whether the later run has all that it sets, and the first hadn't."""
    return bool(one.values) and all(
        value_of(b, key) == value and value_of(a, key) != value for key, value in one.values.items()
    )


def _framed(told: list[tuple[Any, ...]]) -> pd.DataFrame:
    return pd.DataFrame(told, columns=list(PROMISES)).astype({"held": object})


def _change(one: Suggestion) -> str:
    return ", ".join(f"{key}: {one.before.get(key)} → {value}" for key, value in one.values.items())


def _times(one: Suggestion, difference: Difference, *, alone: bool) -> list[tuple[Any, ...]]:
    found = [of for of in difference.waterfalls if of.measure == "step_time"]
    if one.gain_s is None or not found:
        return []
    saved, reach = one.gain_s
    number = "seconds of a step that are saved"
    if not alone:
        about = "Several changes were made at once, so what each saves isn't known."
        return [(_change(one), number, "s", 0.0, saved, saved - reach, saved + reach, math.nan, None, about)]
    came = -sum(found[0].of(cause) for cause in _OF_SETTINGS)
    interval = found[0].interval
    noise = 0.0 if interval is None else (interval[1] - interval[0]) / 2
    least = saved - reach
    held = True if came >= least else False if came + noise < least else None
    about = (
        f"Promised: {_signed(saved)} ± {seconds(reach)} a step. Came: {_signed(came)}, without what other numbers and "
        f"lengths of sequences change."
    )
    if held is None:
        about += f" Step times vary by more than what is missing: ± {seconds(noise)}."
    return [(_change(one), number, "s", 0.0, saved, saved - reach, saved + reach, came, held, about)]


def _signed(saved: float) -> str:
    return f"{'−' if saved >= 0 else '+'}{seconds(abs(saved))}"


def _peaks(one: Suggestion, b: Run) -> list[tuple[Any, ...]]:
    frame = one.what_if.frame
    told = []
    for row in rows(frame[frame["number"] == "predicted_peak_bytes"]):
        if any(missing(row[name]) for name in ("after", "low", "high")):
            continue
        places = (same(name, None if missing(row[name]) else str(row[name])) for name in ("role", "phase"))
        query = sql(
            "select max(peak) as peak from spans where kind = 'micro_batch' and {where}", where=joined(places, " and ")
        )
        peak = b.sql(query)["peak"][0]
        if missing(peak):
            continue
        held = float(peak) <= float(row["high"])
        about = (
            f"Promised: {row['phase'] or 'it'} peaks at {size(row['after'])}, at most {size(row['high'])}. "
            f"Came: {size(float(peak))}."
        )
        numbers = (float(row[name]) for name in ("before", "after", "low", "high"))
        told.append((_change(one), "largest peak of a micro-batch", "bytes", *numbers, float(peak), held, about))
    return told


def _balances(one: Suggestion, b: Run) -> list[tuple[Any, ...]]:
    if one.kind not in ("dynamic", "balance"):
        return []
    told = []
    try:
        replayer = Replayer(b, models=False)
    except InputError:
        return []
    for name, words in (
        ("rank_imbalance_ratio", "imbalance over ranks"),
        ("mini_batch_imbalance_ratio", "imbalance over mini-batches"),
    ):
        before, promised = one.what_if.number(name)
        came = _largest_mean(replayer, name)
        if math.isnan(came) or not before - promised >= 0.005:
            continue
        held = came <= promised * (1 + _NEAR)
        about = f"Promised: {words} {ratio(before)} → {ratio(promised)}. Came: {ratio(came)}."
        told.append((_change(one), words, "ratio", before, promised, math.nan, math.nan, came, held, about))
    return told


def _counts(one: Suggestion, b: Run) -> list[tuple[Any, ...]]:
    """Micro-batches of each phase, which a cap and cutting by tokens change."""
    if one.kind not in ("cap", "dynamic"):
        return []
    told = []
    words = "micro-batches of the rank with the most"
    for role, phase in one.what_if.frame[["role", "phase"]].drop_duplicates().itertuples(index=False, name=None):
        before, promised = one.what_if.number("micro_batches", role=role, phase=phase)
        try:
            replayer = Replayer(b, role=role, phase=phase, models=False)
        except InputError:
            continue
        counts = [replayer.before(at).values["micro_batches"] for at in range(len(replayer))]
        came = sum(counts) / len(counts)
        held = came <= promised * (1 + _NEAR)
        about = f"Promised: {words} in {phase or 'it'} {before:.4g} → {promised:.4g} a step. Came: {came:.4g}."
        told.append((_change(one), words, "count", before, promised, math.nan, math.nan, came, held, about))
    return told


def _largest_mean(replayer: Replayer, name: str) -> float:
    """A number's mean over steps, of the role and phase where that is largest: as a what-if has it."""
    found: dict[Any, list[float]] = {}
    for at, dealing in enumerate(replayer.dealings):
        value = replayer.before(at).values[name]
        if not math.isnan(value):
            found.setdefault((dealing.batch.role, dealing.batch.phase), []).append(value)
    return max((sum(one) / len(one) for one in found.values()), default=math.nan)
