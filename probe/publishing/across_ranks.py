"""Numbers that only all ranks together give: the smallest, mean and largest value of a metric, imbalance, throughput.

Each rank's own metrics stand in the run as rows of its session; a rank has ended a step when they are there. Which of
them are compared is said by the dashboards' margin charts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from probe.analysis import overview
from probe.dashboards import MARGIN, pattern

if TYPE_CHECKING:
    import pandas as pd

    from probe.runs.reader import Run

PREFIX: Final = "probe/across_ranks/"

#: Key → column of ``analysis.overview.by_step``.
WHOLE: Final[Mapping[str, str]] = {
    f"{PREFIX}tokens": "tokens",
    f"{PREFIX}tokens_per_second": "tokens_per_second",
    f"{PREFIX}rank_imbalance_ratio": "rank_imbalance_ratio",
    f"{PREFIX}sync_wait_ratio": "sync_wait_ratio",
    f"{PREFIX}padding_ratio": "padding_ratio",
}

#: What the margins of scopes are called, without their last word.
STEP_TIME: Final = f"{PREFIX}step_time_s"
PHASE_TIME: Final = f"{PREFIX}phase/{{phase}}/time_s"

#: Every session logs this key at the end of every step.
_ENDED: Final = "probe/cost/overhead_ratio"


def base(key: str) -> str:
    """What the numbers over ranks of a recorder's metric are called, without their last word.

    >>> base("probe/memory/{role}/peak_allocated_gib_max"), base("probe/token_balance/tokens")
    ('probe/across_ranks/memory/{role}/peak_allocated_gib', 'probe/across_ranks/token_balance/tokens')
    """
    return PREFIX + re.sub(r"_(max|min|mean)$", "", key.removeprefix("probe/"))


def keys_of(recorded: Iterable[str]) -> set[str]:
    """The keys that the publisher may log, given those that the recorders declare."""
    bases = [STEP_TIME, PHASE_TIME, *map(base, recorded)]
    return set(WHOLE) | {f"{one}_{word}" for one in bases for word in MARGIN}


def ended(run: Run, *, final: bool = False) -> list[int]:
    """The steps that all ranks have ended, in order; the last time also those that only some have."""
    steps = run.sql(
        "select step, count(distinct rank) as ranks from scalars "
        "where source = 'probe' and key = ? and step is not null group by step order by step",
        [_ENDED],
    )
    newest = run.sql(
        "select rank, max(step) as step from scalars "
        "where source = 'probe' and key = ? and step is not null group by rank",
        [_ENDED],
    )
    if final or steps.empty:
        return [int(step) for step in steps["step"]]
    # A rank that is past a step has ended it, even where its metrics were left out.
    horizon = int(newest["step"].min()) if len(newest) >= world_size(run) else -1
    return [int(step) for step in steps["step"] if step <= horizon]


def world_size(run: Run) -> int:
    """Ranks of the job, as the process that began last says; 1 for a run without rows."""
    processes = run.processes
    return 1 if processes.empty else int(processes.loc[processes["wall_ns"].idxmax(), "world_size"])


def numbers(run: Run, steps: Sequence[int], wanted: Iterable[str]) -> dict[int, dict[str, float]]:
    """The numbers over ranks of ``steps``, by step.

    Args:
        run: The run to read.
        steps: The steps that are asked for.
        wanted: Keys with their last word, with places such as ``{role}``: the margins to make. What
            ``overview.by_step`` tells of all ranks together is there anyway.

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
    _add_whole(found, overview.by_step(run))
    return found


def _metrics(run: Run, span: tuple[int, int]) -> pd.DataFrame:
    # A step that is done again, after a restart, has two values of a rank: the newer one counts.
    frame = run.sql(
        """
        with own as (
          select step, key, rank, arg_max(value, wall_ns) as value from scalars
          where source = 'probe' and step between ? and ? group by step, key, rank
        )
        select step, key, min(value) as smallest, avg(value) as mean, max(value) as largest from own group by step, key
        """,
        list(span),
    )
    frame["key"] = [base(key) for key in frame["key"]]
    return frame


def _scopes(run: Run, span: tuple[int, int]) -> pd.DataFrame:
    frame = run.sql(
        """
        with own as (
          select step, point, case point when 'scope.step' then '' else name end as name, rank,
                 sum(duration_ns) / 1e9 as s
          from calls where point in ('scope.step', 'scope.phase') and step between ? and ? group by all
        )
        select step, point, name, min(s) as smallest, avg(s) as mean, max(s) as largest from own group by all
        """,
        list(span),
    )
    names = [
        STEP_TIME if point == "scope.step" else PHASE_TIME.format(phase=segment(name))
        for point, name in zip(frame.pop("point"), frame.pop("name"), strict=True)
    ]
    frame.insert(1, "key", names)
    return frame


def _add_whole(found: dict[int, dict[str, float]], frame: pd.DataFrame) -> None:
    columns = ["step", *WHOLE.values()]
    for step, *values in frame[columns].astype("Float64").itertuples(index=False):
        numbers = found.get(int(step))
        if numbers is not None:
            known = zip(WHOLE, values, strict=True)
            numbers.update({key: float(value) for key, value in known if not _missing(value)})


def _missing(value: Any) -> bool:
    return type(value).__name__ == "NAType" or value is None or value != value  # noqa: PLR0124  (NaN)


def segment(text: str) -> str:
    """``text`` as one segment of a metric's name.

    >>> segment("actor / update")
    'actor___update'
    """
    made = re.sub(r"[^A-Za-z0-9_.-]", "_", text)
    return made if made.strip(".") else f"{made}_"
