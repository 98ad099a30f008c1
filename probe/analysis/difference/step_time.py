"""What makes the steps of two runs take other times.

A step is its phases and what lies between them. Of a phase that runs micro-batches the rank with most work is told by a
model of both runs' micro-batches, pace · (a · micro-batches + b · tokens computed + c · squared lengths); the tokens
are a product, valid tokens × padding, and the micro-batches are so many a token. What ranks wait beyond what that work
explains is how much later the last rank begins the phase, and how much longer one takes than its tokens say.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import median_low
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from probe.analysis.difference.parts import Part, Waterfall, exact
from probe.analysis.difference.shapley import Factors, shares
from probe.analysis.fit import Fit, student
from probe.analysis.quantities import course
from probe.analysis.rank_times import RankTimes, aligned, clocks, of_rows, query
from probe.analysis.time_model import fitted, measured
from probe.text import count, missing, name, ratio, seconds

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: From so many steps on the first is left out: it compiles, fills caches and connects.
WARM: Final = 4
#: Rounds in which the pace of each process and the common model are fitted in turn.
_TURNS: Final = 40
#: Micro-batches of each run that the model is from, at the most, drawn evenly.
_ENOUGH: Final = 4000
#: Wall clocks are right where the ends of a step on all ranks lie within this share of it.
_CLOCKS: Final = 0.02
#: Ranks wait for each other where they leave a phase so much closer together than they were done.
_TOGETHER: Final = 0.25

_PHASES: Final = """
select step, phase, process, sum(duration) as took from spans
where level = 'phase' and phase is not null and step is not null and duration is not null
group by all"""

_STEPS: Final = """
select step, process, max(duration) as took, max(end_ns) as ended from spans
where kind = 'step' and rank is not null and step is not null and duration is not null group by all"""

_Key = tuple[str | None, str | None]


@dataclass
class _Work:
    """What a step's micro-batches of one role and phase come to, on the mean rank; and the slowest rank's beside it."""

    valid: float = 0.0
    computed: float = 0.0
    squares: float = 0.0
    batches: float = 0.0
    sequences: float = 0.0
    slow: float = 1.0  #: model of the rank with most work ÷ that of the mean rank
    took: float = 0.0  #: seconds of the rank that took longest, round by round
    ranks: int = 1
    pace: float = 1.0


@dataclass
class _Phase:
    took: float = 0.0  #: of the middle rank, a step; of the last one where the others wait for it after the phase
    late: float = 0.0  #: how much later the last rank begins it than the middle one
    together: bool = False  #: whether ranks wait for each other in it, or after it
    after: bool = False  #: after it
    works: dict[_Key, _Work] = field(default_factory=dict)


@dataclass
class _Side:
    """What is gathered of one run."""

    run: Run
    steps: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    phases: dict[str, _Phase] = field(default_factory=dict)
    work: pd.DataFrame | None = None

    def __post_init__(self) -> None:
        found = course(self.run, "step_time")
        known = [(step, one) for step, one in zip(found.steps, found.values, strict=True) if not math.isnan(one)]
        known = known[1:] if len(known) >= WARM else known
        self.steps, self.times = [step for step, _ in known], [one for _, one in known]
        if not self.steps:
            return
        told = self.run.sql(_PHASES)
        told = told[told["step"].isin(self.steps)]
        self._waits()
        for phase, here in told.groupby("phase"):
            one = self.phases.setdefault(str(phase), _Phase())
            of_step = here.groupby("step")["took"]
            chosen = of_step.max() if one.after else of_step.apply(lambda each: median_low(each.tolist()))
            one.took = float(chosen.sum()) / len(self.steps)
        self.phases = {name: one for name, one in self.phases.items() if one.took > 0}
        work = measured(self.run)
        if work is not None:
            self.work = work[work["step"].isin(self.steps)]

    def _waits(self) -> None:
        """In which phases ranks wait for each other, and how late they begin them."""
        times = of_rows(self.run.sql(query(self.steps[0], self.steps[-1])))
        told = self.run.sql(_STEPS)
        ends = told[told["step"].isin(self.steps)].groupby("step")[["took", "ended"]]
        apart = (ends.max() - ends.min()).median()
        # Where the wall clocks have ranks end their steps together, they are right.
        right = float(apart["ended"]) / 1e9 <= _CLOCKS * float(np.median(self.times))
        clock = clocks(times)
        for phase, one in times.items():
            if one.begin.shape[1] > 1:
                here = one if right else aligned(one, clock)
                self.phases[phase] = _waiting(here, self.steps, float(apart["took"]))


def _waiting(times: RankTimes, steps: list[int], steps_apart: float) -> _Phase:
    """Whether ranks wait for each other in a phase, or after it; and how much later the last one begins it."""
    known = np.isfinite(times.begin + times.end).all(1) & np.isin(times.steps, steps)
    if not known.any():
        return _Phase()
    begin, end, busy = times.begin[known], times.end[known], times.busy[known]
    done = begin + np.nan_to_num(times.ran[known])
    apart, left, own = (float(np.median(np.ptp(one, axis=1))) for one in (done, end, busy))
    if left > _TOGETHER * apart:
        after = steps_apart <= _TOGETHER * own
        return _Phase(together=after, after=after)
    middle = np.sort(begin, axis=1)[:, (begin.shape[1] - 1) // 2]
    return _Phase(together=True, late=float((begin.max(1) - middle).sum()) / len(steps))


def step_time(a: Run, b: Run) -> Waterfall | str:
    """What makes the mean step of two runs take another time; why not where that can't be said.

    Args:
        a: A run.
        b: What it is compared with.
    """
    sides = _Side(a), _Side(b)
    if not all(side.steps for side in sides):
        return "Step times aren't compared: no step has ended in one of the runs."
    notes, models = _modelled(sides)
    before, after = (float(np.mean(one.times)) for one in sides)
    parts: list[Part] = []
    for phase in dict.fromkeys([*sides[0].phases, *sides[1].phases]):
        pair = [side.phases.get(phase) for side in sides]
        parts += _of_phase(phase, pair, models)
    if any(len(side.times) < len(course(side.run, "step_time").steps) for side in sides):
        notes.insert(0, "The first step of each run that has four or more is left out.")
    return exact(
        "step_time",
        "Mean time of a step",
        "s",
        (before, after),
        parts,
        rest="between phases",
        interval=_interval(sides),
        notes=tuple(notes),
    )


def _interval(sides: tuple[_Side, _Side]) -> tuple[float, float] | None:
    """95 % interval of the difference of the means (B. L. Welch, *Biometrika* 34, 1947).

    It takes steps for independent; :mod:`probe.analysis.noise`, by which a check decides, doesn't.
    """
    if any(len(side.times) < 3 for side in sides):
        return None
    counts = [len(side.times) for side in sides]
    parts = [float(np.var(side.times, ddof=1)) / n for side, n in zip(sides, counts, strict=True)]
    whole = sum(parts)
    if not whole:
        return None
    freedom = whole**2 / sum(one**2 / (n - 1) for one, n in zip(parts, counts, strict=True))
    reach = student(0.975, max(1, int(freedom))) * math.sqrt(whole)
    change = float(np.mean(sides[1].times) - np.mean(sides[0].times))
    return change - reach, change + reach


# ---------------------------------------------------------------------------------------------------------- the model


def _modelled(sides: tuple[_Side, _Side]) -> tuple[list[str], dict[_Key, Fit]]:
    """A model of each role and phase for both runs, and what they come to by it in either."""
    notes: list[str] = []
    models: dict[_Key, Fit] = {}
    frames = [side.work for side in sides]
    if any(one is None for one in frames):
        return ["Seconds can't be split by tokens: one run has no times of its micro-batches."], models
    grouped = [
        {(_known(role), _known(phase)): here for (role, phase), here in one.groupby(["role", "phase"], dropna=False)}
        for one in frames
        if one is not None
    ]
    for key in grouped[0].keys() & grouped[1].keys():
        here = [one[key] for one in grouped]
        made = _common(here)
        if made is None:
            notes.append(f"{name(key[1], 'No phase')}: its micro-batches don't show what a token takes.")
            continue
        model, paces = made
        models[key] = model
        for side, frame, pace in zip(sides, here, paces, strict=True):
            phase = side.phases.get(str(key[1]))
            if phase is not None:
                phase.works[key] = _work(frame, model, pace, len(side.steps), phase)
    return notes, models


def _common(frames: list[pd.DataFrame]) -> tuple[Fit, list[float]] | None:
    """One model for the micro-batches of both runs, and how much longer than it each run takes.

    Each process has a pace of its own, so that a slow one bends no coefficient; that of a run is its middle one's.
    """
    some = [one.iloc[:: -(-len(one) // _ENOUGH)] for one in frames]
    both = pd.concat([one.assign(run=at) for at, one in enumerate(some)], ignore_index=True)
    groups = both.groupby(["run", "process"])
    for begin in (np.ones(len(both)), (both["seconds"] / both["tokens"].clip(lower=1)).to_numpy(dtype=float)):
        middle = pd.Series(begin, both.index).groupby([both["run"], both["process"]]).transform("median")
        if not (middle > 0).all():  # half of a process's micro-batches took no measurable time
            continue
        paces, model = middle / float(np.exp(np.log(middle).mean())), None
        for _ in range(_TURNS):
            model = fitted(both.assign(seconds=both["seconds"] / paces))
            if model is None:
                break
            before = paces
            took = (both["seconds"] / _expected(both, model)).groupby([both["run"], both["process"]])
            paces = took.transform("median")
            paces = paces / float(np.exp(np.log(paces).mean()))
            if float((paces / before - 1).abs().max()) < 1e-4:
                break
        if model is not None:
            own = groups[["seconds"]].first().assign(pace=paces.groupby([both["run"], both["process"]]).first())
            return model, [median_low(own.loc[run, "pace"].tolist()) for run in (0, 1)]
    return None


def _expected(frame: pd.DataFrame, model: Fit) -> Any:
    columns = {"micro_batches": np.ones(len(frame)), "tokens": frame["tokens"], "squares": frame["squares"]}
    told = model.mean(np.stack([np.asarray(columns[name], dtype=float) for name in model.names], axis=1))
    return np.maximum(told, 1e-9)


def _work(frame: pd.DataFrame, model: Fit, pace: float, steps: int, phase: _Phase) -> _Work:
    batches = frame.groupby(["step", "process"])["batch"].rank(method="dense")
    told = frame.assign(round=batches.fillna(0), expected=_expected(frame, model), batches=1.0)
    of_rank = told.groupby(["step", "round", "process"])[
        ["valid", "tokens", "squares", "batches", "sequences", "expected", "seconds"]
    ].sum()
    rounds = of_rank.groupby(["step", "round"])
    mean, most = rounds.mean().sum() / steps, rounds.max().sum() / steps
    if phase.after:  # the last rank of each round, not that of the step
        phase.took += float(
            most["seconds"] - of_rank["seconds"].groupby(["step", "process"]).sum().groupby("step").max().sum() / steps
        )
    return _Work(
        valid=float(mean["valid"]),
        computed=float(mean["tokens"]),
        squares=float(mean["squares"]),
        batches=float(mean["batches"]),
        sequences=float(mean["sequences"]),
        slow=float(most["expected"] / mean["expected"]) if phase.together else 1.0,
        took=float(most["seconds"] if phase.together else mean["seconds"]),
        ranks=int(rounds.size().max()),
        pace=pace,
    )


# ---------------------------------------------------------------------------------------------------------- the parts


def _of_phase(phase: str, pair: list[_Phase | None], models: dict[_Key, Fit]) -> list[Part]:
    one, other = pair
    if one is None or other is None:
        which, alone, sign = ("second", other, 1) if one is None else ("first", one, -1)
        took = 0.0 if alone is None else alone.took
        return [Part("rest", phase, sign * took, f"only the {which} run has it")]
    parts: list[Part] = []
    waits = [one.late, other.late]
    for key, model in models.items():
        works = one.works.get(key), other.works.get(key)
        if works[0] is None or works[1] is None or min(works[0].valid, works[1].valid) <= 0:
            continue
        parts += _of_work(phase, works[0], works[1], model)
        for at, (side, work) in enumerate(zip(pair, works, strict=True)):
            if work is not None and side is not None and side.together and work.ranks > 1:
                waits[at] += work.took - _number(model)(_factors(work))
    if waits[0] or waits[1]:
        told = f"{seconds(max(0.0, waits[0]))} → {seconds(max(0.0, waits[1]))} a step"
        parts.append(Part("waiting", phase, waits[1] - waits[0], told))
    left = (other.took - one.took) - math.fsum(each.value for each in parts)
    whole = f"{seconds(one.took)} → {seconds(other.took)}"
    told = "what is no work of a micro-batch" if models and one.works else whole
    return [*parts, Part("rest", phase, left, told)]


def _number(model: Fit) -> Any:
    each = {name: model[name] if name in model.names else 0.0 for name in ("micro_batches", "tokens", "squares")}

    def seconds_of(of: Factors) -> float:
        a_token = (
            each["micro_batches"] * of["micro_batches"]
            + each["tokens"] * of["padding"]
            + each["squares"] * of["lengths"]
        )
        return of["pace"] * of["balance"] * of["tokens"] * a_token

    return seconds_of


def _factors(work: _Work) -> dict[str, float]:
    return {
        "tokens": work.valid,
        "lengths": work.squares / work.valid,
        "padding": work.computed / work.valid,
        "micro_batches": work.batches / work.valid,
        "balance": work.slow,
        "pace": work.pace,
    }


def _of_work(phase: str, one: _Work, other: _Work, model: Fit) -> list[Part]:
    before, after = _factors(one), _factors(other)
    found = shares(_number(model), before, after)
    each = [f"{count(work.sequences)} of {count(work.valid / max(work.sequences, 1e-9))}" for work in (one, other)]
    rows = f"sequences: {each[0]} → {each[1]}"
    told = {
        "tokens": f"{count(one.valid)} → {count(other.valid)} tokens a step and rank ({rows})",
        "lengths": f"a token stands in a sequence of {count(before['lengths'])} → {count(after['lengths'])} tokens",
        "padding": f"computed ÷ valid tokens {ratio(before['padding'])} → {ratio(after['padding'])}",
        "micro_batches": f"{one.batches:.4g} → {other.batches:.4g} micro-batches a step and rank",
        "balance": f"work of the fullest rank ÷ the mean {ratio(one.slow)} → {ratio(other.slow)}",
        "pace": f"the same work takes {ratio(other.pace / one.pace)} the time",
    }
    return [Part("rest" if cause == "pace" else cause, phase, value, told[cause]) for cause, value in found.items()]


def _known(value: Any) -> str | None:
    return None if missing(value) else str(value)
