"""Peak memory of a micro-batch from what it holds: floor + a · tokens + b · longest row + c · rows.

One model for each role and phase, from the micro-batches' own peaks (a robust fit, :mod:`probe.analysis.fit`).
Processes have floors of their own. What grows with the steps is told apart from it as drift, and what the allocator
reserves above what is allocated is set beside it, not in it. Where the batches of a run are too much alike to tell,
the model says so; of micro-batches unlike all that were seen it tells no peak (:mod:`probe.analysis.unseen`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from probe.analysis.fit import Fit
from probe.analysis.framework_settings import framework, setting
from probe.analysis.memory_fit import REGRESSORS, fitted, too_little
from probe.analysis.tail import Tail
from probe.analysis.unseen import Unseen, experiment_of
from probe.sql import Sql, sql
from probe.text import missing, rows

if TYPE_CHECKING:
    from probe.runs.reader import Run

Array = NDArray[np.float64]

_PEAKS: Final = """
select s.process, s.rank, s.role, s.phase, s.step, s.peak, s.reserved_peak, s.peak_kind, s.source,
       coalesce(s.slots, s.tokens) as tokens, s.longest, s.sequences as rows
from spans s
where s.kind = 'micro_batch' and s.peak is not null and s.tokens is not null and s.sequences > 0
  and s.longest is not null and s.step is not null and {wanted}
order by s.role, s.phase, s.step, s.process, s.scope"""

#: A model is from the newest steps of a run, as many as have together so many micro-batches.
MOST: Final = 200_000
_NEWEST: Final = """
select coalesce(min(step) filter (through <= {most}), max(step)) as first from (
  select step, sum(n) over (order by step desc) as through from (
    select step, count(*) as n from micro_batches where step is not null group by step))"""

_ROOM: Final = """
select process, max(device_total_bytes) as total, max(coalesce(non_torch_bytes, 0)) as beside,
       max(coalesce(other_processes_bytes, 0)) as others
from memory where device_total_bytes is not null group by process"""


@dataclass(frozen=True)
class MemoryModel:
    """What the micro-batches of one role and phase need.

    Attributes:
        role: Of the model.
        phase: Of the step.
        fit: None where there were too few micro-batches, or they were too much alike.
        why: What keeps it from saying more; "" where nothing does.
        floor_bytes: Allocated without any token, at the last step, on the process that has most.
        process: That one.
        drift_bytes_per_step: What comes on top each step; 0 where no trend is sure.
        left_out: Regressors that couldn't be told from the others, so that these hold their share.
        unseen: What was seen of them; beyond it no peak is told.
        smallest_tokens: Of a micro-batch that was seen.
        largest_tokens: Likewise; a prediction beyond it is drawn out.
        largest_peak_bytes: Likewise.
        reserved_above_bytes: What the allocator had reserved above the peak of what was allocated, at most in 99 of a
            hundred micro-batches; 0 where it isn't known.
        capacity_bytes: What torch can reserve on the fullest device: its memory without what isn't torch's. None where
            it isn't known.
        cap_tokens: Under which they were cut; None without a cap.
        bytes_per_token_and_entry: a ÷ the entries of the vocabulary, where those are known: a phase that keeps logits
            in half precision has at least 2.
        micro_batches: How many it is from.
        lacks_variety: Whether other micro-batches would tell more.
    """

    role: str | None
    phase: str | None
    fit: Fit | None
    why: str = ""
    floor_bytes: float = math.nan
    process: str = ""
    drift_bytes_per_step: float = 0.0
    left_out: tuple[str, ...] = ()
    unseen: tuple[Unseen, ...] = ()
    smallest_tokens: int = 0
    largest_tokens: int = 0
    largest_peak_bytes: int = 0
    reserved_above_bytes: float = 0.0
    capacity_bytes: float | None = None
    cap_tokens: int | None = None
    bytes_per_token_and_entry: float | None = None
    micro_batches: int = 0
    lacks_variety: bool = False
    _constant: tuple[float, ...] = ()

    @property
    def room_bytes(self) -> float | None:
        """What may be allocated at the most: the capacity without what is reserved above; None where unknown."""
        return None if self.capacity_bytes is None else self.capacity_bytes - self.reserved_above_bytes

    @property
    def left_bytes(self) -> float | None:
        """What the largest peak that was seen has left of it; None where unknown."""
        return None if self.room_bytes is None else self.room_bytes - self.largest_peak_bytes

    def coefficient(self, name: str) -> tuple[float, float]:
        """A coefficient in bytes, and its standard error; (0, 0) where it was left out, NaN without a model.

        Args:
            name: ``"tokens"``, ``"longest"`` or ``"rows"``.
        """
        if self.fit is None:
            return math.nan, math.nan
        return (self.fit[name], self.fit.error(name)) if name in self.fit.names else (0.0, 0.0)

    def regressors(self, micro_batches: ArrayLike) -> Array:
        """The rows that the fit wants, on the process with the highest floor, at the last step.

        Args:
            micro_batches: (n, 3): tokens that are computed, longest row and number of rows of each.
        """
        if self.fit is None:
            return np.empty((0, 0))
        told = np.atleast_2d(np.asarray(micro_batches, dtype=np.float64))
        named = dict(zip(REGRESSORS, told.T, strict=True))
        columns = [
            named[name] if name in named else np.full(len(told), constant)
            for name, constant in zip(self.fit.names, self._constant, strict=True)
        ]
        return np.stack(columns, axis=1)

    def predict(self, micro_batches: ArrayLike, level: float = 0.95) -> tuple[Array, Array, Array] | None:
        """Peak of each micro-batch in bytes: expected, and the ends of its prediction interval.

        Args:
            micro_batches: (n, 3): tokens that are computed, longest row and number of rows of each.
            level: Share of new micro-batches whose peak is in the interval, 0 to 1.

        Returns:
            None without a model. NaN of a micro-batch that isn't like those that were seen, see :meth:`beyond`.
        """
        if self.fit is None:
            return None
        wanted = self.regressors(micro_batches)
        told = (self.beyond(micro_batches) == 0).all(axis=1)
        mean = np.where(told, self.fit.mean(wanted), np.nan)
        reach = self.fit.reach(level) * self.fit.spread(wanted)
        return mean, mean - reach, mean + reach

    def beyond(self, micro_batches: ArrayLike) -> Array:
        """How far micro-batches are from what was seen of each regressor that was left out.

        Args:
            micro_batches: (n, 3): tokens that are computed, longest row and number of rows of each.

        Returns:
            (n, len(unseen)): 0 where they are like those that were seen; below 0 where they have less, so that they
            need at most what the others foretell; above 0 where they have more, and nothing is known of their peak.
        """
        told, wanted = np.atleast_2d(np.asarray(micro_batches, dtype=np.float64)), self.regressors(micro_batches)
        columns = [one.beyond(wanted, told[:, REGRESSORS.index(one.name)]) for one in self.unseen]
        return np.stack(columns, axis=1) if columns else np.zeros((len(told), 0))

    def as_foretold(self, micro_batches: ArrayLike) -> Array:
        """Micro-batches with what the others foretell in the place of each regressor that was left out.

        Args:
            micro_batches: (n, 3): tokens that are computed, longest row and number of rows of each.

        Returns:
            (n, 3); such micro-batches are like those that were seen.
        """
        told = np.array(np.atleast_2d(np.asarray(micro_batches, dtype=np.float64)))
        wanted = self.regressors(told)
        for one in self.unseen:
            told[:, REGRESSORS.index(one.name)] = wanted @ one.foretold
        return told

    def untold(self, micro_batches: ArrayLike, *, at_most: bool = False) -> str:
        """Why the largest peak of micro-batches isn't told, and what would tell it; "" where it is told.

        It is told where the one that is expected to need most is like those that were seen, and none has more of
        anything that was left out. The others may have less of it: they need less than it does in any case.

        Args:
            micro_batches: (n, 3): tokens that are computed, longest row and number of rows of each.
            at_most: Whether to ask only for what the peak is at most: then that one may have less of it, too.
        """
        if self.fit is None or not np.size(micro_batches):
            return ""
        beyond = self.beyond(micro_batches)
        largest = beyond[int(np.argmax(self.fit.mean(self.regressors(micro_batches))))]
        less = (largest < 0) & (not at_most)
        found = (one.why for at, one in enumerate(self.unseen) if less[at] or (beyond[:, at] > 0).any())
        return next(found, "")

    def largest(self, micro_batches: ArrayLike) -> tuple[float, float, float]:
        """The largest peak of micro-batches in bytes, and the ends of its interval; NaN where it isn't told.

        Args:
            micro_batches: (n, 3): tokens that are computed, longest row and number of rows of each.
        """
        found = self.predict(micro_batches)
        if found is None or not len(found[0]) or self.untold(micro_batches):
            return math.nan, math.nan, math.nan
        at = int(np.nanargmax(found[0]))
        mean, low, high = (float(one[at]) for one in found)
        return mean, low, high

    @property
    def experiment(self) -> str:
        """What would tell more at the least cost; "" where nothing is missing."""
        if not self.lacks_variety:
            return ""
        cap = self.cap_tokens or self.largest_tokens
        return f"Run one step with a cap of {max(1, cap // 2):,} tokens: half of today's can't run out of memory."


def memory_models(run: Run, vocabulary: int | None = None) -> list[MemoryModel]:
    """A model for each role and phase that has micro-batches with a peak of their own.

    Args:
        run: The run.
        vocabulary: Entries of the vocabulary; None looks for ``vocab_size`` in the run's configuration.
    """
    if not run.has("memory") or not run.has("micro_batches"):
        return []
    frame = run.sql(_PEAKS.format(wanted=newest(run, "s.step")))
    if frame.empty:
        return []
    room = {row["process"]: row for row in rows(run.sql(_ROOM))}
    caps = {
        (_name(row["role"]), _name(row["phase"])): None if missing(row["cap"]) else int(row["cap"])
        for row in rows(run.sql("select role, phase, max(cap_tokens) as cap from micro_batches group by all"))
    }
    entries = vocabulary or _vocabulary(run.info.config)
    return [
        _of_phase(
            _name(role),
            _name(phase),
            here,
            room,
            caps.get((_name(role), _name(phase))),
            entries,
            _settings(run, _name(phase)),
        )
        for (role, phase), here in frame.groupby(["role", "phase"], dropna=False)
    ]


def _settings(run: Run, phase: str | None) -> Mapping[str, tuple[str | None, Any]]:
    """The settings of a phase that give micro-batches other rows, and other lengths."""
    named = {"verl": "update_actor", "trl": "update"}.get(framework(run))
    told = {"longest": setting(run, "response_length")}
    return told | {"rows": setting(run, "micro_batch_rows")} if phase == named else told


def newest(run: Run, column: str) -> Sql:
    """The condition for the steps that a model is from.

    Args:
        run: A run that has micro-batches.
        column: That has the step.
    """
    first = run.sql(_NEWEST.format(most=MOST))["first"][0]
    return Sql("true") if missing(first) else sql("{column} >= {first}", column=Sql(column), first=int(first))


def room_over_steps(run: Run) -> pd.DataFrame:
    """What each phase's largest micro-batch has left of the device's memory, step by step.

    Args:
        run: The run.

    Returns:
        step, role, phase, process (with the largest peak), peak_bytes, and room_bytes: the memory of that process's
        device without what isn't torch's and without the peak; NaN where its size isn't known.
    """
    return _room(run, Sql("true"))


@dataclass(frozen=True)
class Room:
    """What the largest micro-batches of a role and phase left free over the steps that its model is from.

    What the allocator reserves above a peak isn't free. Below 0 so much was lacking.

    Attributes:
        role: Of the model.
        phase: Of the step.
        steps: How many have a peak.
        at_an_end: How many of them the first and the last tenth have each.
        first_bytes: Median of the first tenth of the steps.
        last_bytes: Of the last tenth.
        least_bytes: In the step that left least.
        least_step: That step.
        process: Where it was.
    """

    role: str | None
    phase: str | None
    steps: int
    at_an_end: int
    first_bytes: float
    last_bytes: float
    least_bytes: float
    least_step: int
    process: str


def rooms(run: Run, models: Sequence[MemoryModel]) -> list[Room]:
    """The room over the steps of each role and phase whose peaks are those of its micro-batches.

    Args:
        run: The run.
        models: Of its roles and phases.
    """
    known = {(one.role, one.phase): one for one in models if one.fit is not None or one.lacks_variety}
    if not known:
        return []
    found, frame = [], _room(run, newest(run, "s.step")).dropna(subset=["room_bytes"])
    for (role, phase), here in frame.groupby(["role", "phase"], dropna=False):
        model = known.get((_name(role), _name(phase)))
        if model is None:
            continue
        over = here.sort_values("step")
        free = over["room_bytes"].to_numpy(dtype=float) - model.reserved_above_bytes
        end, least = max(1, len(free) // 10), int(free.argmin())
        ends = float(np.median(free[:end])), float(np.median(free[-end:]))
        where = int(over["step"].iloc[least]), str(over["process"].iloc[least])
        found.append(Room(model.role, model.phase, len(free), end, *ends, float(free[least]), *where))
    return found


def _room(run: Run, wanted: Sql) -> pd.DataFrame:
    columns = ["step", "role", "phase", "process", "peak_bytes", "room_bytes"]
    frame = run.sql(_PEAKS.format(wanted=wanted)) if run.has("memory") and run.has("micro_batches") else pd.DataFrame()
    if frame.empty:
        return pd.DataFrame(columns=columns)
    room = {row["process"]: float(row["total"] - row["beside"] - row["others"]) for row in rows(run.sql(_ROOM))}
    fullest = frame.loc[frame.groupby(["step", "role", "phase"], dropna=False)["peak"].idxmax()].copy()
    fullest["peak_bytes"] = fullest["peak"]
    fullest["room_bytes"] = fullest["process"].map(room).astype(float) - fullest["peak"].astype(float)
    return fullest[columns].reset_index(drop=True)


def _name(value: Any) -> str | None:
    return None if missing(value) else str(value)


def _vocabulary(config: Any) -> int | None:
    """``vocab_size`` anywhere in a configuration, where there is just one."""
    found: set[int] = set()
    waiting = [config]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            value = one.get("vocab_size")
            if isinstance(value, int) and value > 0:
                found.add(value)
            waiting.extend(one.values())
    return found.pop() if len(found) == 1 else None


def _of_phase(
    role: str | None,
    phase: str | None,
    frame: pd.DataFrame,
    room: dict[Any, dict[str, Any]],
    cap: int | None,
    entries: int | None,
    settings: Mapping[str, tuple[str | None, Any]] | None = None,
) -> MemoryModel:
    known: dict[str, Any] = {
        "smallest_tokens": int(frame["tokens"].min()),
        "largest_tokens": int(frame["tokens"].max()),
        "largest_peak_bytes": int(frame["peak"].max()),
        "cap_tokens": cap,
        "micro_batches": len(frame),
    }
    totals = [room[one] for one in frame["process"].unique() if one in room]
    if totals:
        known["capacity_bytes"] = min(float(one["total"] - one["beside"] - one["others"]) for one in totals)
    above = (frame["reserved_peak"] - frame["peak"]).dropna()
    if len(above):
        known["reserved_above_bytes"] = max(0.0, float(np.quantile(above.to_numpy(dtype=float), 0.99)))
    why = _no_peaks(frame)
    if why:
        return MemoryModel(role, phase, None, why, **known)
    why = too_little(frame)
    counts = frame["rows"].to_numpy(dtype=float)
    made = None if why else fitted(frame, experiment_of(counts, cap, settings or {}))
    if made is None:
        why = why or "Tokens can't be told from the other numbers of its micro-batches."
        return MemoryModel(role, phase, None, why, **known, lacks_variety=True)
    found, left_out = made
    floors = {name: found[name] for name in found.names if name.startswith("floor of ")}
    process = max(floors, key=lambda name: floors[name])
    last = float(frame["step"].max())
    drift = found["step"] if "step" in found.names else 0.0
    constant = tuple(1.0 if name == process else last if name == "step" else 0.0 for name in found.names)
    per_entry = found["tokens"] / entries if entries else None
    return MemoryModel(
        role,
        phase,
        found,
        floor_bytes=floors[process] + drift * last,
        process=process.removeprefix("floor of "),
        drift_bytes_per_step=drift,
        left_out=tuple(one.name for one in left_out),
        unseen=left_out,
        bytes_per_token_and_entry=per_entry,
        **known,
        _constant=constant,
    )


def _no_peaks(frame: pd.DataFrame) -> str:
    """Why peaks aren't what micro-batches allocate, "" where they are."""
    if set(frame["source"]) == {"process_rss"}:
        return "Memory is the process's resident set, which doesn't fall when tensors are freed."
    inexact = float((frame["peak_kind"] != "exact").mean())
    if inexact > 0.1:
        return "The peaks aren't those of the micro-batches alone: the device's counters are never reset."
    return ""


# ------------------------------------------------------------------------------------------------------------- risk

#: So many of a step's micro-batches are looked at, most of them the fullest. Each stands for those after it, up to the
#: next: they need no more than it does, and nearly as much.
_LOOKED_AT: Final = 64


def risk_of(
    model: MemoryModel,
    steps: Sequence[Sequence[tuple[int, int, int]]],
    *,
    length: int = 1000,
    runs: int = 200,
    seed: int = 0,
    at_most: bool = False,
) -> float | None:
    """The share of runs in which a micro-batch's peak passes what may be allocated.

    Runs are put together of the given steps, drawn with replacement. Each has coefficients and a tail of the noise of
    its own, drawn from their uncertainty (:class:`~probe.analysis.tail.Tail`), and every micro-batch noise. The noise
    is that of all recorded peaks, also of those that the fit leaves out as outliers: they took the memory.

    Args:
        model: Of the role and phase.
        steps: (tokens that are computed, longest row, rows) of the micro-batches of each step.
        length: Steps of a run.
        runs: How many are put together.
        seed: Of what is drawn.
        at_most: Whether to tell the most that the risk can be, see :meth:`MemoryModel.untold`.

    Returns:
        0 to 1; None without a model, where the capacity isn't known, or where the largest peak isn't told, see
        :meth:`MemoryModel.untold`.
    """
    steps = [one for one in steps if one]
    fit, room = model.fit, model.room_bytes
    if fit is None or room is None or not steps:
        return None
    if model.untold([one for step in steps for one in step], at_most=at_most):
        return None
    random = np.random.default_rng(seed)
    drawn = random.multivariate_normal(fit.coefficients, fit.covariance, runs, method="eigh")
    chosen = random.multinomial(length, np.full(len(steps), 1 / len(steps)), size=runs)
    tail = Tail(fit.left / np.maximum(fit.noise_at(fit.expected), 1.0), runs, random)
    safe = np.empty((len(steps), runs))
    for at, one in enumerate(steps):
        wanted = model.regressors(list(one))
        order = np.argsort(-fit.mean(wanted))
        first = np.unique(np.geomspace(1, len(order), _LOOKED_AT).astype(int)) - 1
        fullest, stands_for = wanted[order[first]], np.diff(first, append=len(order))
        noise = np.maximum(fit.noise_at(fit.mean(fullest)), 1.0)
        safe[at] = stands_for @ tail.log_below((room - fullest @ drawn.T) / noise[:, None])
    return float(1 - np.exp((chosen.T * safe).sum(axis=0)).mean())
