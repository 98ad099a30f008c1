"""What makes the peak memory of two runs differ: floor + a · tokens + b · longest row + c · rows of one micro-batch.

The peak of a run is that of one scope. Where it is a micro-batch, its tokens are a product: those that a rank has in a
round, over its micro-batches, times how much fuller it is than their mean, times padding.

The difference has no interval. A run has just one largest peak, so that nothing tells its noise; and the more steps a
run has, the larger is the largest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from probe.analysis.difference.parts import Part, Waterfall, exact
from probe.analysis.difference.shapley import Factors, shares
from probe.analysis.fit import Fit, fit
from probe.text import count, missing, ratio, size

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Micro-batches of both runs that a model is from, at least.
_FEWEST: Final = 20
#: What a coefficient is worth of its own error to be kept.
_KEPT: Final = 3.0
#: Floors of so many processes of a run are told apart.
_PROCESSES: Final = 16

_LARGEST: Final = """
select process, role, phase, kind, name, step, peak, source from spans
where maker = 1 and peak is not null order by peak desc, process, scope limit 1"""

_MICRO_BATCHES: Final = """
select s.process, s.role, s.phase, s.step, s.batch, s.peak, s.tokens as valid, coalesce(s.slots, s.tokens) as tokens,
       s.longest, s.sequences as rows
from spans s
where s.kind = 'micro_batch' and s.peak is not null and s.tokens > 0 and s.sequences > 0 and s.longest is not null
  and s.step is not null and s.peak_kind = 'exact' and s.source is distinct from 'process_rss'
order by s.process, s.scope"""


@dataclass(frozen=True)
class _Peak:
    """The largest micro-batch of one phase."""

    peak: float
    valid: float
    tokens: float
    longest: float
    rows: float
    round_tokens: float  #: of a rank in a round, on the average
    round_count: float  #: micro-batches of a rank in a round, on the average


def peak(a: Run, b: Run) -> Waterfall | str:
    """What makes the peak memory of two runs differ; why not where that can't be said.

    Args:
        a: A run.
        b: What it is compared with.
    """
    one, other = _first(a), _first(b)
    if one is None or other is None:
        return "Peak memory isn't compared: one of the runs has recorded none."
    if (one["source"] == "process_rss") != (other["source"] == "process_rss"):
        return "Peak memory isn't compared: in one of the runs it is that of a device, in the other that of a process."
    parts: list[Part] = []
    notes: list[str] = []
    before, after = float(one["peak"]), float(other["peak"])
    where = [_place(row) for row in (one, other)]
    frames = [run.sql(_MICRO_BATCHES) for run in (a, b)]
    here = [_of_phase(frame, other) for frame in frames]
    if other["kind"] == "micro_batch" and not here[0].empty and not here[1].empty:
        same = _place(one) == _place(other)
        seen = float(here[0]["peak"].max())
        if not same and seen < before:
            told = f"the peak was in {where[0]}, now in {where[1]}: it is above by less than it grew"
            parts.append(Part("rest", str(other["phase"] or ""), seen - before, told))
        model = _model(here)
        if model is None:
            notes.append("Its micro-batches don't show what a token needs.")
        else:
            parts += _of_pair(str(other["phase"] or ""), _peak_of(here[0]), _peak_of(here[1]), model)
    rest = f"in {where[0]}" if where[0] == where[1] else f"in {where[0]} → in {where[1]}"
    told = "what no micro-batch changes: weights, optimizer, caches" if parts else rest
    return exact("peak_memory", "Peak memory", "bytes", (before, after), parts, rest=told, notes=tuple(notes))


def _first(run: Run) -> dict[str, Any] | None:
    frame = run.sql(_LARGEST) if run.has("memory") else pd.DataFrame()
    return None if frame.empty else {str(name): value for name, value in frame.iloc[0].items()}


def _place(row: dict[str, Any]) -> str:
    told = [str(row[name]) for name in ("role", "phase") if not missing(row[name]) and row[name]]
    inner = "a micro-batch" if row["kind"] == "micro_batch" else str(row["name"])
    return " · ".join(dict.fromkeys([*told, inner]))


def _of_phase(frame: pd.DataFrame, like: dict[str, Any]) -> pd.DataFrame:
    for name in ("role", "phase"):
        value = like[name]
        frame = frame[frame[name].isna()] if missing(value) else frame[frame[name] == value]
    return frame


def _peak_of(frame: pd.DataFrame) -> _Peak:
    row = frame.loc[frame["peak"].idxmax()]
    rounds = frame.groupby(["process", "step", "batch"], dropna=False)["valid"]
    return _Peak(
        peak=float(row["peak"]),
        valid=float(row["valid"]),
        tokens=float(row["tokens"]),
        longest=float(row["longest"]),
        rows=float(row["rows"]),
        round_tokens=float(rounds.sum().mean()),
        round_count=float(rounds.size().mean()),
    )


def _model(frames: list[pd.DataFrame]) -> Fit | None:
    """Of the micro-batches of both runs; each process has a floor of its own where that leaves enough to tell."""
    told = []
    for run, frame in enumerate(frames):
        largest = frame.groupby("process")["peak"].max().nlargest(_PROCESSES).index
        told.append(frame[frame["process"].isin(largest)].assign(run=run))
    both = pd.concat(told)
    if len(both) < _FEWEST:
        return None
    each = [f"{run}:{process}" for run, process in zip(both["run"], both["process"], strict=True)]
    own = {f"floor of {one}": np.array([at == one for at in each], dtype=float) for one in dict.fromkeys(each)}
    found = _fitted(both, own)
    return found if found is not None else _fitted(both, {"floor": np.ones(len(both))})


def _fitted(frame: pd.DataFrame, floors: dict[str, Any]) -> Fit | None:
    names = ["tokens", "longest", "rows"]
    measured = frame["peak"].to_numpy(dtype=float)
    while names:
        columns = [*floors.values(), *(frame[name].to_numpy(dtype=float) for name in names)]
        made = fit([*floors, *names], np.stack(columns, axis=1), measured)
        worth = {} if made is None else {name: made[name] / max(made.error(name), 1e-300) for name in names}
        weakest = min(worth, key=lambda name: worth[name]) if worth else names[-1]
        if made is not None and worth[weakest] >= _KEPT:
            return made
        names.remove(weakest)
    return None


def _of_pair(phase: str, one: _Peak, other: _Peak, model: Fit) -> list[Part]:
    each = {name: model[name] if name in model.names else 0.0 for name in ("tokens", "longest", "rows")}
    fuller = [side.valid / (side.round_tokens / side.round_count) for side in (one, other)]
    net = _net(
        {
            "tokens": math.log(other.round_tokens / one.round_tokens),
            "micro_batches": math.log(one.round_count / other.round_count),
            "balance": math.log(fuller[1] / fuller[0]),
        }
    )

    def number(of: Factors) -> float:
        valid = one.valid * of["tokens"] * of["micro_batches"] * of["balance"]
        rows = valid / of["mean"]
        return each["tokens"] * valid * of["padding"] + each["longest"] * of["longest"] + each["rows"] * rows

    before, after = (
        {
            **{name: math.exp(value) if side is other else 1.0 for name, value in net.items()},
            "padding": side.tokens / side.valid,
            "longest": side.longest,
            "mean": side.valid / side.rows,
        }
        for side in (one, other)
    )
    found = shares(number, before, after)
    lengths = found["longest"] + found["mean"]
    told = {
        "tokens": (found["tokens"], f"{count(one.round_tokens)} → {count(other.round_tokens)} tokens a round and rank"),
        "lengths": (lengths, f"longest row {count(one.longest)} → {count(other.longest)} tokens"),
        "balance": (
            found["balance"],
            f"the fullest micro-batch ÷ the mean {ratio(fuller[0])} → {ratio(fuller[1])}",
        ),
        "padding": (
            found["padding"],
            f"computed ÷ valid tokens {ratio(before['padding'])} → {ratio(after['padding'])}",
        ),
        "micro_batches": (
            found["micro_batches"],
            f"{one.round_count:.3g} → {other.round_count:.3g} micro-batches a round and rank",
        ),
    }
    parts = [Part(cause, phase, value, about) for cause, (value, about) in told.items()]
    floors = (other.peak - one.peak) - math.fsum(part.value for part in parts)
    sides = [size(side.peak - number(own)) for side, own in ((one, before), (other, after))]
    return [*parts, Part("rest", phase, floors, f"what doesn't go by the micro-batch: {sides[0]} → {sides[1]}")]


def _net(changes: dict[str, float]) -> dict[str, float]:
    """Changes of factors, as logarithms, without what offsets each other: as many times more micro-batches for as many
    times more tokens change nothing.

    >>> _net({"tokens": 2.0, "micro_batches": -2.0, "balance": 0.5})
    {'tokens': 0.4, 'micro_batches': 0.0, 'balance': 0.1}
    """
    whole = math.fsum(changes.values())
    ahead = math.fsum(one for one in changes.values() if one * whole > 0)
    return {name: one * whole / ahead if one * whole > 0 else 0.0 for name, one in changes.items()}
