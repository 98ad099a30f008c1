"""Seconds of a phase from the work in it: so much a micro-batch, a token, and a pair of tokens that see each other.

Waiting is no term of the model, since no micro-batch holds any: ranks wait at the end of a round for the one that has
most to do. So the seconds of a phase are those of that rank, summed over rounds, and what balance takes from it is the
waiting of the others.

Where the terms can't be told apart, or what is left is noise, there is no model: silence rather than a guess. Where
there is one, it has all terms that can be told apart: leaving out those that noise hides would make their error 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import numpy as np

from probe.analysis import memory_model
from probe.analysis.fit import Fit, fit
from probe.sql import Sql, sql
from probe.text import missing

if TYPE_CHECKING:
    import pandas as pd

    from probe.runs.reader import Run

#: Micro-batches that a model is from, at least.
FEWEST: Final = 20
#: What a coefficient is worth of its own error to be kept.
_KEPT: Final = 3.0
#: Standard deviation of what is left ÷ the mean duration: above it the model keeps silent.
_NOISY: Final = 0.5
#: What time goes by; those at the end are given up first where they can't be told apart.
_TERMS: Final = ("micro_batches", "tokens", "squares")

_MICRO_BATCHES: Final = """
with ends as (
  select process, scope_id, host_duration_ns, device_duration_ns, device from memory
  where edge = 'leave' and kind = 'micro_batch' and {rows}
    -- Of an accelerator only what its events measured counts.
    and (device_duration_ns is not null or coalesce(device, '') = '' or starts_with(device, 'cpu'))),
work as (
  select process, batch_id, micro_batch, sum(list_inner_product(lengths::double[], lengths::double[])) as squares
  from micro_batches where {rows} group by all)
select {columns}
from spans s join ends on ends.process = s.process and ends.scope_id = s.scope
join work on work.process = s.process and work.batch_id = s.batch and work.micro_batch = s.micro_batch
where s.kind = 'micro_batch' and s.tokens is not null and s.sequences > 0 and {spans}
order by s.role, s.phase, s.step, s.process, s.scope"""
#: What a model is from, and whose it is.
_WORK: Final = Sql("""s.role, s.phase, coalesce(s.slots, s.tokens) as tokens, work.squares,
       coalesce(ends.device_duration_ns, ends.host_duration_ns) / 1e9 as seconds""")
_ALL: Final = sql("{work}, s.step, s.process, s.batch, s.sequences, s.tokens as valid", work=_WORK)


class Work(Protocol):
    """What time goes by: micro-batches, tokens that are computed, and the sum of the squared lengths."""

    count: int
    computed: int
    squares: int


_Work = TypeVar("_Work", bound=Work)


@dataclass(frozen=True)
class TimeModel:
    """What the micro-batches of one role and phase take.

    Attributes:
        role: Of the model.
        phase: Of the step.
        fit: Of seconds on "micro_batches", "tokens" and "squares", those of them that can be told apart; none of them
            is below 0.
        micro_batches: How many it is from.
    """

    role: str | None
    phase: str | None
    fit: Fit
    micro_batches: int

    def _row(self, rounds: Sequence[Work]) -> list[float]:
        named = {
            "micro_batches": float(sum(one.count for one in rounds)),
            "tokens": float(sum(one.computed for one in rounds)),
            "squares": float(sum(one.squares for one in rounds)),
        }
        return [named[name] for name in self.fit.names]

    def slowest(self, rounds: Iterable[Sequence[_Work]]) -> list[_Work]:
        """Of each round the work that takes longest: the other ranks wait for it.

        Args:
            rounds: Of each the work of every rank.
        """
        each = {name: self.fit[name] if name in self.fit.names else 0.0 for name in _TERMS}
        a_batch, a_token, a_pair = (each[name] for name in _TERMS)
        return [
            max(ranks, key=lambda one: a_batch * one.count + a_token * one.computed + a_pair * one.squares)
            for ranks in rounds
        ]

    def seconds(self, rounds: Sequence[Work], level: float = 0.95) -> tuple[float, float]:
        """Of a step, and how far the interval of what is expected reaches to either side.

        Args:
            rounds: Of each the work of the slowest rank, see :meth:`slowest`.
            level: Of the interval, 0 to 1.
        """
        row = self._row(rounds)
        return float(self.fit.mean(row)), self.fit.reach(level) * float(self.fit.spread(row, noise=False)[0])

    def saved(self, before: Sequence[Work], after: Sequence[Work], level: float = 0.95) -> tuple[float, float]:
        """Seconds less, and how far the interval reaches to either side.

        Args:
            before: Of each round the work of the slowest rank.
            after: The same with other settings.
            level: Of the interval, 0 to 1.
        """
        row = np.array(self._row(before)) - np.array(self._row(after))
        return float(self.fit.mean(row)), self.fit.reach(level) * float(self.fit.spread(row, noise=False)[0])


def time_models(run: Run) -> list[TimeModel]:
    """A model for each role and phase whose micro-batches tell one.

    Times of an accelerator are those that its events measured; without them nothing is said of it.

    Args:
        run: The run.
    """
    if not run.has("micro_batches"):
        return []
    frame = _told(run, _WORK, memory_model.newest(run, "step"), memory_model.newest(run, "s.step"))
    if frame is None:
        return []
    found = [_of_phase(role, phase, here) for (role, phase), here in frame.groupby(["role", "phase"], dropna=False)]
    return [one for one in found if one is not None]


def measured(run: Run) -> pd.DataFrame | None:
    """Micro-batches that ran, with what they took.

    Times of an accelerator are those that its events measured; what has none is left out.

    Args:
        run: The run.

    Returns:
        role, phase, step, process, batch, sequences, valid (tokens), tokens (that are computed), squares (sum of the
        squared lengths) and seconds; None where there is none.
    """
    return _told(run, _ALL, Sql("true"), Sql("true"))


def _told(run: Run, columns: Sql, in_rows: Sql, in_spans: Sql) -> pd.DataFrame | None:
    """``columns`` of the micro-batches of which the conditions hold; None where there is none."""
    if not run.has("memory") or not run.has("micro_batches"):
        return None
    frame = run.sql(sql(_MICRO_BATCHES, columns=columns, rows=in_rows, spans=in_spans))
    return None if frame.empty else frame


def _of_phase(role: Any, phase: Any, frame: pd.DataFrame) -> TimeModel | None:
    counting = fitted(frame)
    if counting is None:
        return None
    for names in (_TERMS, _TERMS[:2], counting.names):
        made = _fit(frame, names, uneven=True)
        if made is not None:
            return TimeModel(_name(role), _name(phase), _not_below_0(made), len(frame))
    return None


def _not_below_0(made: Fit) -> Fit:
    """The fit with each coefficient at 0 or above, the others as they are most likely then; its errors stay as they
    are: where a true coefficient is 0 or above, they hold all the more.
    """
    found, at_0 = made.coefficients, np.zeros(len(made.names), dtype=bool)
    errors = np.sqrt(np.diag(made.covariance))
    errors = np.where(errors > 0, errors, 1.0)
    alike = made.covariance / np.outer(errors, errors)
    while (found < 0).any():
        at_0 |= found < 0
        apart, *_ = np.linalg.lstsq(alike[np.ix_(at_0, at_0)], (made.coefficients / errors)[at_0], rcond=None)
        found = np.where(at_0, 0.0, made.coefficients - errors * (alike[:, at_0] @ apart))
    return replace(made, coefficients=found)


def fitted(frame: pd.DataFrame) -> Fit | None:
    """Seconds on what tells them: "micro_batches", "tokens" and "squares", those of them that noise doesn't hide.

    Args:
        frame: Of :func:`measured`, of one role and phase.

    Returns:
        None where the terms can't be told apart, or what is left is noise.
    """
    if len(frame) < FEWEST:
        return None
    middle = float(frame["seconds"].median())
    names = list(_TERMS)
    while names:
        made = _fit(frame, names)
        worth = {} if made is None else {name: made[name] / max(made.error(name), 1e-300) for name in names}
        weakest = min(worth, key=lambda name: worth[name]) if worth else names[-1]
        if made is not None and worth[weakest] >= _KEPT:
            noisy = made.sigma > _NOISY * middle or made.outliers > len(frame) / 5
            if noisy or names == ["micro_batches"]:
                return None
            return made
        names.remove(weakest)
    return None


def _fit(frame: pd.DataFrame, names: Sequence[str], *, uneven: bool = False) -> Fit | None:
    columns = [np.ones(len(frame)) if name == "micro_batches" else frame[name].to_numpy(dtype=float) for name in names]
    return fit(names, np.stack(columns, axis=1), frame["seconds"].to_numpy(dtype=float), uneven=uneven)


def _name(value: Any) -> str | None:
    return None if missing(value) or (isinstance(value, float) and math.isnan(value)) else str(value)
