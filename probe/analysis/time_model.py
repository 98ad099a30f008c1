"""Seconds of a phase from the work in it: so much a micro-batch, a token, and a pair of tokens that see each other.

Waiting is no term of the model, since no micro-batch holds any: ranks wait at the end of a round for the one that has
most to do. So the seconds of a phase are those of that rank, summed over rounds, and what balance takes from it is the
waiting of the others.

A rank may take longer than the others for the same work: a slower device, or one that is shared. Where that is sure,
its seconds are its own pace times those of the others, and the pace is one more number of the model, with its error.

Where the terms can't be told apart, or what is left is noise, there is no model: silence rather than a guess. Where
there is one, it has all terms that can be told apart: leaving out those that noise hides would make their error 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
#: A process has a pace of its own where it differs from the middle one's by that share, and by so many errors.
_APART: Final = 0.02
_SURE: Final = 6.0
#: Micro-batches of a process that tell its pace, at least; and that are looked at for it, of all, at the most.
_FEWEST_OF_ONE: Final = 12
_ENOUGH: Final = 20_000
#: Processes with a pace of their own, at the most: those farthest from the middle.
_PACES: Final = 16
#: Rounds in which paces and costs are fitted in turn, and then together.
_TURNS: Final = 12
_LAST_TURNS: Final = 4
#: Paces that change by less than that are found.
_SAME: Final = 1e-4
#: What a pace is called among the names of a fit.
_PACE: Final = "pace of "
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
_WORK: Final = Sql("""s.role, s.phase, s.process, coalesce(s.slots, s.tokens) as tokens, work.squares,
       coalesce(ends.device_duration_ns, ends.host_duration_ns) / 1e9 as seconds""")
_ALL: Final = sql("{work}, s.step, s.batch, s.sequences, s.tokens as valid", work=_WORK)


class Work(Protocol):
    """What time goes by: micro-batches, tokens that are computed, the sum of the squared lengths; and whose it is."""

    count: int
    computed: int
    squares: int
    process: str


_Work = TypeVar("_Work", bound=Work)


@dataclass(frozen=True)
class TimeModel:
    """What the micro-batches of one role and phase take.

    Attributes:
        role: Of the model.
        phase: Of the step.
        fit: Of seconds on "micro_batches", "tokens" and "squares", those of them that can be told apart; none of them
            is below 0. For each process with a pace of its own there is one more, "pace of …": what its pace is off by,
            which is 0 and has an error.
        micro_batches: How many it is from.
        paces: Of the processes that clearly take other times for the same work: their seconds ÷ those of the others.
    """

    role: str | None
    phase: str | None
    fit: Fit
    micro_batches: int
    paces: Mapping[str, float] = field(default_factory=dict)

    def pace(self, process: str) -> float:
        """The seconds of a process ÷ those of the middle one for the same work.

        Args:
            process: By its name in the run; of one that isn't known it is 1.
        """
        return self.paces.get(process, 1.0)

    def costs(self, work: Work) -> float:
        """Seconds of a round of one rank, at the pace of the others.

        Args:
            work: Of the rank.
        """
        return math.fsum(value * each for value, each in zip(_numbers(work), self._each, strict=True))

    @property
    def _each(self) -> list[float]:
        return [self.fit[name] if name in self.fit.names else 0.0 for name in _TERMS]

    def row(self, rounds: Sequence[Work]) -> list[float]:
        """What the fit wants of a step.

        Args:
            rounds: Of each the work of the slowest rank, see :meth:`slowest`.
        """
        paced = [[self.pace(one.process) * value for value in _numbers(one)] for one in rounds]
        named = dict(zip(_TERMS, (float(sum(each)) for each in zip(*paced, strict=True)), strict=True)) if paced else {}
        own = dict.fromkeys((f"{_PACE}{one}" for one in self.paces), 0.0)
        for one in rounds:
            if one.process in self.paces:
                own[f"{_PACE}{one.process}"] += self.costs(one)
        return [own[name] if name in own else named.get(name, 0.0) for name in self.fit.names]

    def slowest(self, rounds: Iterable[Sequence[_Work]]) -> list[_Work]:
        """Of each round the work that takes longest: the other ranks wait for it.

        Args:
            rounds: Of each the work of every rank.
        """
        a_batch, a_token, a_pair = self._each

        def took(one: _Work) -> float:
            alone = a_batch * one.count + a_token * one.computed + a_pair * one.squares
            return self.pace(one.process) * alone

        return [max(ranks, key=took) for ranks in rounds]

    def seconds(self, rounds: Sequence[Work], level: float = 0.95) -> tuple[float, float]:
        """Of a step, and how far the interval of what is expected reaches to either side.

        Args:
            rounds: Of each the work of the slowest rank, see :meth:`slowest`.
            level: Of the interval, 0 to 1.
        """
        row = self.row(rounds)
        return float(self.fit.mean(row)), self.fit.reach(level) * float(self.fit.spread(row, noise=False)[0])

    def saved(self, before: Sequence[Work], after: Sequence[Work], level: float = 0.95) -> tuple[float, float]:
        """Seconds less, and how far the interval reaches to either side.

        Args:
            before: Of each round the work of the slowest rank.
            after: The same with other settings.
            level: Of the interval, 0 to 1.
        """
        row = np.array(self.row(before)) - np.array(self.row(after))
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


def _numbers(work: Work) -> tuple[float, float, float]:
    """In the order of the terms."""
    return float(work.count), float(work.computed), float(work.squares)


def _of_phase(role: Any, phase: Any, frame: pd.DataFrame) -> TimeModel | None:
    paces = own_paces(frame) if "process" in frame else {}
    counting = fitted(_evened(frame, paces))
    if counting is None:
        return None
    for names in (_TERMS, _TERMS[:2], counting.names):
        made = _fit(frame, names, uneven=True) if not paces else None
        found = _together(frame, names, paces) if paces else None if made is None else (_not_below_0(made), {})
        if found is not None:
            return TimeModel(_name(role), _name(phase), found[0], len(frame), found[1])
    return None


# ------------------------------------------------------------------------------------------------------------- paces


def own_paces(frame: pd.DataFrame) -> dict[str, float]:
    """Of the processes that clearly take other times than the middle one for the same work: their seconds ÷ its.

    Args:
        frame: Micro-batches of one role and phase, with their process.

    Returns:
        By process; empty where all are alike, or that can't be said.
    """
    if frame["process"].nunique() < 2:
        return {}
    some = frame.iloc[:: -(-len(frame) // _ENOUGH)]
    common = fitted(some)
    if common is not None and float((_relative(_ratios(some, common).median()) - 1).abs().max()) <= _APART:
        return {}
    by_tokens = (some["seconds"] / some["tokens"].clip(lower=1)).groupby(some["process"]).median()
    for begin in (by_tokens, by_tokens * 0 + 1):
        if not (begin > 0).all():  # half of a process's micro-batches took no measurable time
            continue
        found = _alternated(some, _relative(begin))
        if found is not None:
            return found
    return {}


def _alternated(frame: pd.DataFrame, paces: pd.Series) -> dict[str, float] | None:
    """Costs and paces, each fitted with the other as it is, until nothing changes; None where costs can't be told."""
    for _ in range(_TURNS):
        made = fitted(_evened(frame, paces.to_dict()))
        if made is None:
            return None
        before, each = paces, _ratios(frame, made)
        paces = _relative(each.median())
        if not (paces > 0).all():
            return None
        if float((paces / before - 1).abs().max()) < _SAME:
            break
    apart = (each.obj / each.transform("median") - 1).abs().groupby(frame["process"])
    error = 1.2533 * 1.4826 * apart.median() / np.sqrt(each.size())  # of a median, from the median deviation
    error = np.hypot(error, float(error[paces == 1.0].max()))  # the middle one's isn't known either
    off = (paces - 1).abs()
    sure = off[(off > np.maximum(_APART, _SURE * error)) & (each.size() >= _FEWEST_OF_ONE)]
    return {str(one): float(paces[one]) for one in sure.nlargest(_PACES).index}


def _ratios(frame: pd.DataFrame, made: Fit) -> Any:
    """Seconds ÷ what is expected of them, by process."""
    expected = np.maximum(made.mean(_columns(frame, made.names)), 1e-300)
    return (frame["seconds"] / expected).groupby(frame["process"])


def _relative(paces: pd.Series) -> pd.Series:
    """To the middle process; of two to the faster one."""
    return paces / float(np.sort(paces.to_numpy(dtype=float))[(len(paces) - 1) // 2])


def _evened(frame: pd.DataFrame, paces: Mapping[str, float]) -> pd.DataFrame:
    """Micro-batches as they would be if all processes were as fast."""
    return frame.assign(seconds=frame["seconds"] / _paces_of(frame, paces)) if paces else frame


def _paces_of(frame: pd.DataFrame, paces: Mapping[str, float]) -> Any:
    return frame["process"].map(dict(paces)).astype(float).fillna(1.0).to_numpy()


def _together(
    frame: pd.DataFrame, names: Sequence[str], paces: Mapping[str, float]
) -> tuple[Fit, dict[str, float]] | None:
    """Costs and paces in one fit, so that the errors of both are known (Gauss and Newton's steps for their product)."""
    paces, columns, seconds = dict(paces), _columns(frame, names), frame["seconds"].to_numpy(dtype=float)
    made = _fit(_evened(frame, paces), names, uneven=True)
    if made is None:
        return None
    costs, every = made.coefficients, [*names, *(f"{_PACE}{one}" for one in paces)]
    theirs = {one: (frame["process"] == one).to_numpy(dtype=float) for one in paces}
    for _ in range(_LAST_TURNS):
        alone = columns @ costs
        regressors = np.column_stack(
            [columns * _paces_of(frame, paces)[:, None], *(alone * one for one in theirs.values())]
        )
        found = fit(every, regressors, seconds, uneven=True)
        if found is None:
            return None
        made = _not_below_0(found, len(names))
        costs = made.coefficients[: len(names)]
        off = made.coefficients[len(names) :]
        paces = {one: pace + float(more) for (one, pace), more in zip(paces.items(), off, strict=True)}
        if not all(pace > 0 for pace in paces.values()):
            return None
        if float(np.abs(off).max()) < _SAME:
            break
    return replace(made, coefficients=np.append(costs, np.zeros(len(paces)))), paces


def _columns(frame: pd.DataFrame, names: Sequence[str]) -> Any:
    """What the terms of the names are of each micro-batch."""
    columns = [np.ones(len(frame)) if name == "micro_batches" else frame[name].to_numpy(dtype=float) for name in names]
    return np.stack(columns, axis=1)


def _not_below_0(made: Fit, terms: int | None = None) -> Fit:
    """The fit with each coefficient at 0 or above, the others as they are most likely then; its errors stay as they
    are: where a true coefficient is 0 or above, they hold all the more. Of what stands behind the first ``terms``
    coefficients any may be below 0.
    """
    found, at_0 = made.coefficients, np.zeros(len(made.names), dtype=bool)
    bound = np.arange(len(made.names)) < (len(made.names) if terms is None else terms)
    errors = np.sqrt(np.diag(made.covariance))
    errors = np.where(errors > 0, errors, 1.0)
    alike = made.covariance / np.outer(errors, errors)
    while (found[bound] < 0).any():
        at_0 |= (found < 0) & bound
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
    return fit(names, _columns(frame, names), frame["seconds"].to_numpy(dtype=float), uneven=uneven)


def _name(value: Any) -> str | None:
    return None if missing(value) or (isinstance(value, float) and math.isnan(value)) else str(value)
