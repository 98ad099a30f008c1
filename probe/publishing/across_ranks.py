"""Numbers that only all ranks together give: the smallest, mean and largest value of a metric, and the quantities.

Each rank's own metrics stand in the run as rows of its session; a rank has ended a step when they are there. Which of
them are compared is said by the dashboards' margin charts. What the quantities of ``dashboards/quantities.yaml`` say of
all ranks is published under their names, and so is the rollout's tail, which only all replicas together have.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from probe.analysis import overview
from probe.analysis.long_tail.gathering import gathered
from probe.dashboards import MARGIN, frames, panel, pattern
from probe.dashboards.quantities import field_of, quantity
from probe.dashboards.quantities import quantities as defined

if TYPE_CHECKING:
    from probe.runs.reader import Run

PREFIX: Final = "probe/across_ranks/"

#: What the margins of scopes are called, without their last word.
STEP_TIME: Final = f"{PREFIX}step_time_s"
PHASE_TIME: Final = f"{PREFIX}phase/{{phase}}/time_s"

#: The rollout's tail, seconds; and as a share of the step. See probe/analysis/long_tail/tail.py.
TAIL: Final = (f"{PREFIX}rollout_tail_s", f"{PREFIX}rollout_tail_ratio")

#: Every session logs this key at the end of every step.
_ENDED: Final = "probe/cost/hooks_ms"


def base(key: str) -> str:
    """What the numbers across ranks of a recorder's metric are called, without their last word.

    >>> base("probe/memory/{role}/peak_allocated_gib_max"), base("probe/token_balance/rank_tokens")
    ('probe/across_ranks/memory/{role}/peak_allocated_gib', 'probe/across_ranks/token_balance/rank_tokens')
    """
    return PREFIX + re.sub(r"_(max|min|mean)$", "", key.removeprefix("probe/"))


def whole() -> dict[str, str]:
    """The keys of the quantities, but for what the trainer logs itself: the backends have that.

    Returns:
        Key → column of ``analysis.overview.by_step``.
    """
    ours = (spec for spec in defined().values() if spec.get("where", {}).get("own") != 0)
    return {f"{PREFIX}{field_of(spec)}": field_of(spec) for spec in ours}


def keys_of(recorded: Iterable[str]) -> set[str]:
    """The keys that the publisher may log, given those that the recorders declare."""
    bases = [STEP_TIME, PHASE_TIME, *map(base, recorded)]
    return {*whole(), *TAIL} | {f"{one}_{word}" for one in bases for word in MARGIN}


def ended(run: Run, *, final: bool = False) -> list[int]:
    """The steps that all ranks have ended, in order; the last time also those that only some have. Where no rank has
    ended any, the other processes are waited for that have: nobody says how many there are.
    """
    steps = run.sql(
        "select distinct step from scalars where source = 'probe' and key = ? and step is not null order by step",
        [_ENDED],
    )
    newest = run.sql(
        "select rank, who(rank, process) as who, max(step) as step from scalars "
        "where source = 'probe' and key = ? and step is not null group by all",
        [_ENDED],
    )
    if final or steps.empty:
        return [int(step) for step in steps["step"]]
    # A rank that is past a step has ended it, even where its metrics were left out.
    of_ranks = newest[newest["rank"].notna()]
    counted = newest if of_ranks.empty else of_ranks
    horizon = int(counted["step"].min()) if of_ranks.empty or len(of_ranks) >= world_size(run) else -1
    return [int(step) for step in steps["step"] if step <= horizon]


def world_size(run: Run) -> int:
    """Ranks of the job, as the rank that began last says; 1 for a run without rows."""
    processes = run.processes
    if processes["rank"].notna().any():
        processes = processes[processes["rank"].notna()]
    return 1 if processes.empty else int(processes.loc[processes["wall_ns"].idxmax(), "world_size"])


def numbers(run: Run, steps: Sequence[int], wanted: Iterable[str]) -> dict[int, dict[str, float]]:
    """The numbers across ranks of ``steps``, by step.

    Args:
        run: The run to read.
        steps: The steps that are asked for.
        wanted: Keys with their last word, with places such as ``{role}``: the margins to make. The quantities are there
            anyway.

    A metric that a rank hasn't got in a step is compared over those that have it. NaN counts as the largest; a mean
    that it goes into is NaN.
    """
    found: dict[int, dict[str, float]] = {step: {} for step in steps}
    if not steps:
        return found
    patterns = [pattern(key) for key in wanted]
    span = (min(steps), max(steps))
    for frame in (_metrics(run, span), _scopes(run, span)):
        for step, name, *values in frame.itertuples(index=False):
            for word, value in zip(MARGIN, values, strict=True):
                key = f"{name}_{word}"
                if step in found and any(one.fullmatch(key) for one in patterns):
                    found[step][key] = float(value)
    _add_whole(found, overview.by_step(run, _within(span)))
    for one in gathered(run, *span):
        if one.step in found and one.tail_ns is not None and one.share is not None:
            found[one.step] |= dict(zip(TAIL, (one.tail_ns / 1e9, one.share), strict=True))
    return found


def _metrics(run: Run, span: tuple[int, int]) -> pd.DataFrame:
    # A step that is done again, after a restart, has two values of a rank: the newer one counts.
    frame = run.sql(
        """
        with own as (
          select step, key, rank, arg_max(value, wall_ns) as value from scalars
          where source = 'probe' and step between ? and ? group by step, key, rank, if(rank is null, process, null)
          qualify rank is not null or count(rank) over (partition by step, key) = 0
        )
        select step, key, min(value) as smallest, avg(value) as mean, max(value) as largest from own group by step, key
        """,
        list(span),
    )
    frame["key"] = [base(key) for key in frame["key"]]
    return frame


def _within(span: tuple[int, int]) -> str:
    return f"step between {span[0]} and {span[1]}"


def _scopes(run: Run, span: tuple[int, int]) -> pd.DataFrame:
    """How long steps and phases took on the ranks: the quantity, and the panel's series, of each by itself. Where no
    rank has a step or a phase, that of the other processes.
    """
    phases = panel("phase_durations").live or {}
    step = {**quantity("step_time"), "by": ["rank", "process"]}
    phase = {**phases, "by": ["phase", "rank", "process"], "each": None, "reduce": "sum"}
    parts = [frames.series(run, spec, _within(span)) for spec in (step, phase)]
    parts[0].insert(1, "key", STEP_TIME)
    names = [PHASE_TIME.format(phase=segment(str(name))) for name in parts[1].pop("phase")]
    parts[1].insert(1, "key", names)
    frame = pd.concat(parts, ignore_index=True).dropna(subset=["step", "value"])
    have = frame["rank"].notna()
    chosen = frame[have | ~have.groupby([frame["step"], frame["key"]]).transform("any")]
    found: pd.DataFrame = chosen.groupby(["step", "key"])["value"].agg(["min", "mean", "max"]).reset_index()
    return found


def _add_whole(found: dict[int, dict[str, float]], frame: pd.DataFrame) -> None:
    keys = whole()
    columns = ["step", *keys.values()]
    for step, *values in frame[columns].itertuples(index=False):
        numbers = found.get(int(step))
        if numbers is not None:
            known = zip(keys, values, strict=True)
            numbers.update({key: float(value) for key, value in known if not _missing(value)})


def _missing(value: Any) -> bool:
    return type(value).__name__ == "NAType" or value is None or math.isnan(value)


def segment(text: str) -> str:
    """``text`` as one segment of a metric's name.

    >>> segment("actor / update")
    'actor___update'
    """
    made = re.sub(r"[^A-Za-z0-9_.-]", "_", text)
    return made if made.strip(".") else f"{made}_"
