"""What a page shows beside the sliders of settings: how far caps can grow, what the advised changes come to together,
and what came of earlier advice.

All of it is worked out with the advice, in the process that looks for findings, and travels as bounded, plain JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from probe.analysis.advice.earlier import Earlier, earlier
from probe.analysis.advice.jointly import Joint, jointly
from probe.analysis.advice.suggestions import Advice, Suggestion
from probe.analysis.advice.when import Times
from probe.analysis.memory_model import MemoryModel, newest
from probe.analysis.query import same
from probe.analysis.what_if.answering import Replayer, WhatIf, width_of
from probe.analysis.what_if.cutting import parallel_of
from probe.analysis.what_if.settings import Settings
from probe.errors import InputError
from probe.records import GIB
from probe.sql import joined, sql
from probe.text import missing, percent, ratio, rows, seconds, size, size_within, stop

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Phases, changes and promises that a page is told of.
MOST_PHASES: Final = 4
MOST_ROWS: Final = 30
#: Dots of a figure. They lie on a grid, since dots on one place can't be told apart.
MOST_DOTS: Final = 600
_GRID: Final = (150, 80)
#: Places at which the line of a figure is worked out, and of these the ones in its table.
_PLACES: Final = 25
_TOLD_PLACES: Final = 6
#: A peak is never foretold beyond so many times the largest micro-batch that was seen.
_BEYOND: Final = 2.0
#: Letters of a text.
_LETTERS: Final = 400

_PEAKS: Final = """
select coalesce(slots, tokens) as tokens, longest, sequences as rows, peak from spans s
where kind = 'micro_batch' and peak is not null and tokens is not null and sequences > 0 and longest is not null
  and step is not null and {where}"""

_ALONE: Final = "–  Earlier runs aren't read: they are outside the directories that are shown."
_HELD: Final = {True: "held", False: "missed", None: "not known"}


def told(run: Run, advice: Advice, *, beside: bool = True) -> dict[str, Any] | None:
    """What a page is told.

    Args:
        run: The run.
        advice: For it.
        beside: Whether the runs beside it may be read.

    Returns:
        ``caps``, a list of :func:`_cap`; ``remarks``, why no cap can be told; ``together``, see :func:`_together`, None
        without a suggestion; ``earlier``, see :func:`_earlier`. None where the run has no batches.
    """
    try:
        replayer = Replayer(run)
    except InputError:
        return None
    caps = [_cap(run, replayer, advice, model) for model in advice.memory]
    return {
        "caps": [one for one in caps if one is not None][:MOST_PHASES],
        "remarks": [_text(one) for one in advice.remarks[:MOST_PHASES]],
        "together": _together(replayer, advice, Times(run, advice.memory)),
        "earlier": _earlier(earlier(run) if beside else [], named=bool(run.info.config), beside=beside),
    }


# ------------------------------------------------------------------------------------------- how far a cap can grow


def _cap(run: Run, replayer: Replayer, advice: Advice, model: MemoryModel) -> dict[str, Any] | None:
    """The peaks of one phase by tokens; None where its memory isn't foretold, or nothing caps it.

    Peaks are in GiB. ``dots`` are (tokens, peak); ``line`` is (tokens, peak, low, high); ``seen`` is the largest
    micro-batch; ``now`` and ``best`` are caps, each its place on the axis of tokens and its text; ``aim`` is the
    replay's largest peak under the advised cap: tokens, peak, low, high, text.
    """
    own = replayer.only(model.role, model.phase)
    if model.fit is None or model.room_bytes is None or not own.dealings:
        return None
    first = own.dealings[0].batch.rounds[0]
    if first.calls[0].cap_tokens is None:
        return None
    frame = _peaks(run, model)
    if frame.empty:
        return None
    parallel, padded = parallel_of(first), width_of(first, None).padded
    limit = advice.limits.get((model.role, model.phase))
    now = first.calls[0].cap_tokens // parallel
    best = None if limit is None else limit.best
    caps = {"now": now, "best": best if best != now else None}
    marks = {
        name: None if cap is None or padded else {"at": cap * parallel, "text": f"{cap:,}"}
        for name, cap in caps.items()
    }
    ends = [cap * parallel for cap in caps.values() if cap is not None and not padded]
    line = _line(model, frame, max([model.largest_tokens, *ends]))
    slope, error = model.coefficient("tokens")
    return {
        "title": " · ".join(one for one in (model.role, model.phase) if one) or "no phase",
        "phase": model.phase,
        "sentence": f"Each dot is a micro-batch; beyond {model.largest_tokens:,} tokens nothing was seen.",
        "dots": _dots(frame),
        "line": line,
        "seen": model.largest_tokens,
        "capacity": model.room_bytes / GIB,
        **marks,
        "aim": None if marks["best"] is None or best is None else _aim(own, model, best),
        "slope": f"{size_within(1024 * slope, 1024 * error)} for 1,024 tokens",
        "notes": _how_to_read(model, parallel, padded=padded, best=best, risk=advice.risk),
        "head": ["Tokens", "Expected peak", "From", "To"],
        "rows": [[f"{at:,}", *(size(one * GIB) for one in told)] for at, *told in line[:: _PLACES // _TOLD_PLACES]],
    }


def _peaks(run: Run, model: MemoryModel) -> pd.DataFrame:
    """The micro-batches that the model's floor is of."""
    places = [same(f"s.{name}", getattr(model, name)) for name in ("role", "phase", "process")]
    frame = run.sql(sql(_PEAKS, where=joined([*places, newest(run, "s.step")], " and ")))
    return frame.astype(float)


def _dots(frame: pd.DataFrame) -> list[list[float]]:
    """A dot where there are some, the highest first where there are too many."""
    at = frame[["tokens", "peak"]].to_numpy()
    low, span = at.min(axis=0), np.maximum(np.ptp(at, axis=0), 1.0)
    _, chosen = np.unique((at - low) / span * np.array(_GRID) // 1, axis=0, return_index=True)
    kept = sorted(chosen.tolist(), key=lambda one: -float(at[one, 1]))[:MOST_DOTS]
    return [[int(at[one, 0]), round(float(at[one, 1]) / GIB, 3)] for one in sorted(kept)]


def _line(model: MemoryModel, frame: pd.DataFrame, most: int) -> list[list[float]]:
    """The expected peak from the smallest micro-batch to a little beyond the caps, with its interval."""
    first, last = model.smallest_tokens, min(most * 1.1, model.largest_tokens * _BEYOND)
    places = np.unique(np.append(np.linspace(first, max(last, first + 1), _PLACES), model.largest_tokens).round())
    each = float((frame["rows"] / frame["tokens"]).median())
    longest = np.minimum(places, float(frame["longest"].median()))
    found = model.predict(model.as_foretold(np.stack([places, longest, places * each], axis=1)))
    if found is None:
        return []
    told = np.stack([places, *(one / GIB for one in found)], axis=1)
    return [[int(at), *(round(one, 3) for one in peaks)] for at, *peaks in told.tolist()]


def _aim(own: Replayer, model: MemoryModel, cap: int) -> dict[str, Any] | None:
    """The highest peak of the replay under a cap; None where it can't be replayed."""
    asked = Settings(cap_tokens=cap)
    try:
        told = [one for at in range(len(own)) for one in own.after(at, asked).micro_batches]
    except InputError:  # by a rule that was named for the advice, or one that refuses
        return None
    expected = model.predict(told)
    if expected is None or model.untold(told):
        return None
    at = int(np.nanargmax(expected[0]))
    peak, low, high = (round(float(one[at]) / GIB, 3) for one in expected)
    return {"at": int(told[at][0]), "peak": peak, "low": low, "high": high, "text": _within(peak, (high - low) / 2)}


def _how_to_read(model: MemoryModel, parallel: int, *, padded: bool, best: int | None, risk: float) -> list[str]:
    found = ["The line has the floor of the last step; the band holds 95 of 100 micro-batches."]
    if any(model.coefficient(name)[0] for name in ("longest", "rows")):
        found.append("It assumes rows of the usual length.")
    if parallel > 1:
        found.append(f"A cap is of one GPU; the axis counts the tokens of all {parallel} that share a sequence.")
    if padded:
        found.append("The axis counts padding too and the caps don't, so they aren't drawn.")
    elif best is not None:
        found.append("Large dot: the replay's highest peak under the best cap, which its micro-batches needn't fill.")
    if best is None:
        found.append(f"No cap keeps the risk of running out of memory within {100 * risk:g} % in 1,000 steps.")
    else:
        found.append(f"Best within {100 * risk:g} % risk in 1,000 steps: a cap of {best:,}.")
    return found


# ------------------------------------------------------------------------------------------- the changes, by gain


def _together(replayer: Replayer, advice: Advice, times: Times) -> dict[str, Any] | None:
    """The changes by gain, and what they come to together: ``title``, ``sentence``, ``head``, ``rows`` (of each its
    ``cells``, ``when`` it can be made, "ready" or "held", and whether it is the ``sum`` of the others) and ``notes``.
    """
    if not advice.suggestions:
        return None
    memory = {(one.role, one.phase): one for one in advice.memory}
    lines = [_change(one, memory) for one in advice.suggestions[:MOST_ROWS]]
    many = len(advice.suggestions)
    found, sentence, notes = jointly(replayer, advice), "", []
    if isinstance(found, Joint):
        sentence, notes = _sentence(found, many), _left_out(found.left_out)
        which = "All together" if len(found.suggestions) == many else f"{len(found.suggestions)} of them together"
        cells = [which, _gained(found.gain_s, None), _binding(found.what_if, memory), "replayed together"]
        lines.append(_line_of(cells, *_together_when(found, times, advice.risk)) | {"sum": True})
        notes += [_text(one) for one in found.what_if.notes]
        if found.what_if.refused:
            notes.append(f"{len(found.what_if.refused)} steps can't be cut so and were left out.")
    elif many > 1:
        sentence, notes = "No two of them can be replayed together, so nothing is added up.", _left_out(found)
    return {
        "title": "The change" if many == 1 else f"The {many} changes, by gain",
        "sentence": sentence or "Replayed on this run's own batches.",
        "head": ["Change", "A step", "Peak that binds", "Confidence", "When"],
        "rows": lines,
        "notes": notes,
    }


def _change(one: Suggestion, memory: dict[Any, MemoryModel]) -> dict[str, Any]:
    cells = [_setting(one), _gained(one.gain_s, one.gain_share), _binding(one.what_if, memory), str(one.confidence)]
    return _line_of(cells, one.when.told(), one.when.state == "ready")


def _line_of(cells: list[str], when: str, ready: bool) -> dict[str, Any]:
    return {"cells": [*cells, when], "when": "ready" if ready else "held"}


def _sentence(found: Joint, many: int) -> str:
    which = "Taken together" if len(found.suggestions) == many else f"{len(found.suggestions)} of them together"
    if found.gain_s is None or found.sum_s is None:
        return f"{which} they were replayed; their time isn't predicted, and nothing is added up."
    saved, added = found.gain_s[0], found.sum_s
    if min(saved, added) < 0:  # memory asks for it
        return f"{which} they change a step by {_saved(saved)}; added up they would by {_saved(added)}."
    return f"{which} they save {seconds(saved)} a step, {found.beside_sum} their sum of {seconds(added)}."


def _left_out(found: Sequence[tuple[Suggestion, str]]) -> list[str]:
    return [_text(f"Not taken together with the others: {stop(_setting(one))} {why}") for one, why in found[:MOST_ROWS]]


def _setting(one: Suggestion) -> str:
    """What is set, in one line; the advice in words where there is no key for it."""
    told = [f"{key} → {_spelled(value)}" for key, value in one.values.items()]
    return _text(", ".join(told) or one.advice)


def _spelled(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _gained(gain: tuple[float, float] | None, share: float | None) -> str:
    if gain is not None:
        value, reach = gain
        return f"{'−' if value >= 0 else '+'}{seconds(abs(value))} ± {seconds(reach)}"
    return "–" if share is None or share < 0 else f"−{percent(share)}"


def _predicted(answer: WhatIf) -> list[dict[str, Any]]:
    """The rows of predicted peaks."""
    found = rows(answer.frame[answer.frame["number"] == "predicted_peak_bytes"])
    names = ("role", "phase")
    plain = [row | {name: None if missing(row[name]) else str(row[name]) for name in names} for row in found]
    return [row for row in plain if not any(missing(row[name]) for name in ("after", "low", "high"))]


def _binding(answer: WhatIf, memory: dict[Any, MemoryModel]) -> str:
    """The peak that leaves least of the memory."""
    left = []
    for row in _predicted(answer):
        model = memory.get((row["role"], row["phase"]))
        if model is not None and model.room_bytes is not None:
            left.append((model.room_bytes - row["after"], row, model.room_bytes))
    if not left:
        return "–"
    _, row, room = min(left, key=lambda one: one[0])
    return f"{_within(row['after'] / GIB, (row['high'] - row['low']) / 2 / GIB)} of {room / GIB:.1f} GiB"


def _within(value: float, reach: float) -> str:
    return f"{value:.1f} ± {reach:.1f}"


def _together_when(found: Joint, times: Times, most: float) -> tuple[str, bool]:
    """When all of them can be made at once, in words, and whether that is now."""
    if found.risk is not None and found.risk > most:
        return f"too risky: out of memory in {percent(found.risk)} of runs of 1,000 steps", False
    when = times.of(found.what_if)
    return when.told("together"), when.state == "ready"


# ---------------------------------------------------------------------------------------------- earlier advice


def _earlier(found: Sequence[Earlier], *, named: bool, beside: bool) -> dict[str, Any]:
    """What came of earlier advice: ``sentence``, ``head``, ``rows`` (of each its ``cells``, ``held`` and ``about``)."""
    lines = [
        {
            "cells": [one.name, _text(row["change"]), *_came(row), _HELD[row["held"]]],
            "held": row["held"],
            "about": _about(row),
        }
        for one in found
        for row in rows(one.promises)
    ]
    return {
        "sentence": _kept(lines, named=named) if beside else _ALONE,
        "head": ["After", "Change", "Promised", "Happened", "Judgement"],
        "rows": lines[:MOST_ROWS],
    }


def _kept(lines: Sequence[dict[str, Any]], *, named: bool) -> str:
    if not lines:
        if not named:
            return "–  The run has no configuration on record, so what was changed isn't known."
        return "–  No earlier run beside this one was advised a change that this one has."
    judged = [one["held"] for one in lines if one["held"] is not None]
    unknown = len(lines) - len(judged)
    more = f" {unknown} can't be judged." if unknown else ""
    if not judged:
        return f"No promise can be judged: {lines[0]['about']}"
    return f"{sum(judged)} of {len(judged)} promises held.{more}"


def _about(row: dict[str, Any]) -> str:
    """Which number it is; in whole sentences where that says the phase, or why nothing can be judged."""
    whole = row["held"] is None or row["unit"] in ("bytes", "count")
    return _text(str(row["about"] if whole else row["number"]))


def _came(row: dict[str, Any]) -> tuple[str, str]:
    """What was promised and what came, each with its unit."""
    spell = _SPELLED[row["unit"]]
    promised, came = spell(row["promised"]), "–" if missing(row["came"]) else spell(row["came"])
    if not missing(row["low"]) and not missing(row["high"]):
        reach = (row["high"] - row["low"]) / 2
        promised = f"{promised} ± {seconds(reach) if row['unit'] == 's' else size(reach)}"
    return promised, came


def _saved(value: float) -> str:
    sign = "−" if value > 0 else "+" if value < 0 else ""
    return f"{sign}{seconds(abs(value))}"


#: How numbers of each unit are written.
_SPELLED: Final[dict[str, Callable[[float], str]]] = {
    "s": _saved,
    "bytes": size,
    "ratio": ratio,
    "count": lambda one: f"{one:.4g}",
}


def _text(value: str) -> str:
    """A text that isn't too long, in one line."""
    value = " ".join(value.split())
    return value if len(value) <= _LETTERS else f"{value[: _LETTERS - 1]}…"
