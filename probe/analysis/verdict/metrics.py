"""Metrics that aren't what they say: reduced by accident, a mean of unequal means, the last one of several, NaN."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probe.analysis import reduction
from probe.analysis.by_step import FIRST, LAST, by_step, unstepped
from probe.analysis.change import Change
from probe.analysis.query import literal, same
from probe.analysis.verdict import facts, needs
from probe.analysis.verdict.finding import SOON, Cost, Finding, Since, Where
from probe.sql import Sql, joined, sql
from probe.text import count, missing, number, place, rows, whole

if TYPE_CHECKING:
    from probe.analysis.grid import Grid
    from probe.runs.reader import Run

#: A metric of unequal means is worth an alarm where it is wrong by this share of what its values spread over.
WRONG: Final = 0.02

#: What each process reduced of a key in a step, and what was logged of it.
_MEANS: Final = """
with parts as (
  select step, key, process, any_value(rank) as rank, sum(count)::double as n, sum(count * value) as weighted,
         max(value) as high, min(value) as low, count(*) as calls, any_value(value) as value
  from reductions
  where reducer = 'mean' and value is not null and not isnan(value) and count > 0 and {steps}
  group by step, key, process having calls = 1),
compared as (
  select step, key, count(*) as processes, sum(weighted) / sum(n) as correct, avg(value) as plain, min(n) as fewest,
         max(n) as most, max(value) - min(value) as spread, arg_min(rank, n) as rank
  from parts group by step, key having count(*) > 1 and min(n) <> max(n)),
logged as (select step, key, value, wall_ns from scalars where source = 'user' and {steps})
select compared.*, logged.value as logged, wall_ns from compared join logged using (step, key)
where abs(logged.value - plain) <= 1e-6 * greatest(abs(plain), 1e-12) and abs(plain - correct) > {wrong} * spread
"""

#: Micro-batches by their place among those that a process ran in a phase of a step, and how many these were.
RUN_IN_ORDER: Final = """ran as (
  select process, step, phase, micro_batch, batch_id, wall_ns,
         row_number() over (partition by process, step, phase order by batch_id, micro_batch) - 1 as nth,
         count(*) over (partition by process, step, phase) as ran
  from micro_batches where {where})"""


def _named(where: Sql) -> Sql:
    """The query for the metrics that were reduced by their name, of each step by itself."""
    return sql(
        """select step, key, reducer,
          coalesce(bool_or(largest > smallest or (reducer = 'sum' and count > 1)), false) as differs from reductions
        where chosen_by = 'name' and reducer in ('min', 'max', 'sum') and {where} group by step, key, reducer
        order by step, key, reducer""",
        where=where,
    )


def _accidental(run: Run) -> pd.DataFrame:
    """Metrics that were reduced by accident: key, reducer, whether their values ever differed, and the first step in
    which they did.
    """
    told = by_step(
        run,
        lambda first, last: _named(_between(first, last)),
        FIRST,
        LAST,
        chosen=_by_accident,
        needs=needs.NAMES,
    )
    rest = unstepped(run, _named(Sql("step is null")))
    rest = rest[_doubtful(rest)]
    if not len(told) and rest.empty:
        return pd.DataFrame()
    frame = pd.concat([pd.DataFrame({"step": told.steps, **told.columns}), rest], ignore_index=True)
    differ = frame[frame["differs"].astype(bool)].groupby(["key", "reducer"])["step"].min()
    wrong = frame.groupby(["key", "reducer"], as_index=False)["differs"].any()
    wrong["first"] = [differ.get((row.key, row.reducer)) for row in wrong.itertuples()]
    wrong["inside"] = [reduction.word(row.key, row.reducer) for row in wrong.itertuples()]
    return wrong


def _by_accident(told: Grid) -> Grid:
    return told.chosen(_doubtful(told.columns))


def _doubtful(columns: Mapping[str, Any] | pd.DataFrame) -> NDArray[np.bool_]:
    """Which of some keys and reducers are so by accident."""
    pairs = zip(columns["key"], columns["reducer"], strict=True)
    return np.array([reduction.accidental(key, how) for key, how in pairs], dtype=bool)


def _between(first: int, last: int) -> Sql:
    return sql("step between {first} and {last}", first=int(first), last=int(last))


_KEPT: Final = {"min": "smallest value", "max": "largest value", "sum": "sum of its values"}


def _inside(word: str, reducer: str) -> str:
    """What stands for the reducer inside a word."""
    return reducer if reducer in word.lower() else "total"


def accidental(run: Run) -> list[Finding]:
    """Metrics reduced by a substring that only happens to be there."""
    wrong = _accidental(run) if run.has("reductions") else pd.DataFrame()
    if wrong.empty:
        return []
    matters = bool(wrong["differs"].any())
    shown = wrong[wrong["differs"]] if matters else wrong
    listed = ", ".join(
        f"{row['key']} shows the {_KEPT[row['reducer']]} because of"
        f" “{_inside(row['inside'], row['reducer'])}” in “{row['inside']}”"
        for row in rows(shown.head(3))
    )
    more = f" and {len(shown) - 3} more" if len(shown) > 3 else ""
    keys = [literal(row["key"]) for row in rows(shown)]
    known = [whole(one) for one in shown["first"] if not missing(one)]
    first = min((one for one in known if one is not None), default=None)
    return [
        Finding(
            "alarm" if matters else "fine",
            "accidental_reducer",
            f"{len(shown)} metric{'s are' if len(shown) > 1 else ' is'} reduced by accident: {listed}{more}.",
            topic="reductions",
            since=Since(first),
            why="" if matters else "Their values never differed so far.",
            change=Change("Rename the key, or log a typed Metric, which carries its own reducer."),
            evidence_sql=sql(
                """select * from reductions where key in ({keys}) and chosen_by = 'name'
                and (largest > smallest or (reducer = 'sum' and count > 1))""",
                keys=keys,
            ),
            urgency=SOON,
            weight=70,
        )
    ]


def _means(steps: Sql) -> Sql:
    return sql(_MEANS, wrong=WRONG, steps=steps)


def unequal_means(run: Run) -> list[Finding]:
    """Logged values that are the plain mean of means over unlike numbers of values."""
    if not (run.has("reductions") and run.has("scalars")):
        return []
    told = by_step(
        run,
        lambda first, last: f"{_means(_between(first, last))} order by step, key",
        FIRST,
        LAST,
        needs=needs.UNLIKE_COUNTS,
    )
    if not len(told):
        return []
    frame = pd.DataFrame({"step": told.steps, **told.columns})
    wrong = (frame["plain"] - frame["correct"]).abs() / frame["spread"]
    frame = frame.assign(wrong=-wrong).sort_values(["wrong", "key", "step"], kind="stable")
    worst, query = rows(frame)[0], _means(Sql("step is not null"))
    since = rows(frame.sort_values("step"))[0]
    keys = sorted(set(frame["key"]))
    more = f" {len(keys) - 1} more metrics are too." if len(keys) > 1 else ""
    text = (
        f"{worst['key']} is a mean of unequal means: {number(worst['logged'])} was logged in step {worst['step']}, and "
        f"the mean of all values is {number(worst['correct'])}.{more}"
    )
    why = f"The processes averaged {count(worst['fewest'])} to {count(worst['most'])} values each, "
    why += "and all means counted the same."
    return [
        Finding(
            "alarm",
            "mean_of_unequal_means",
            text,
            topic="reductions",
            where=Where(step=whole(worst["step"])),
            since=Since(whole(since["step"]), whole(since["wall_ns"])),
            cost=Cost(steps=int(frame["step"].nunique())),
            explained=_explained(worst),
            why=why,
            change=Change("Log a typed Metric, which keeps the number of values, or pool the values first."),
            evidence_sql=sql(
                "select * from ({query}) where key = {key} and step = {step}",
                query=query,
                key=literal(worst["key"]),
                step=int(worst["step"]),
            ),
            urgency=SOON,
            weight=72,
        )
    ]


def _explained(row: Mapping[str, Any]) -> float:
    """The share of what a logged value is wrong by that the plain mean of unequal means is wrong by."""
    wrong = abs(row["logged"] - row["correct"])
    return float(1 - min(1.0, abs(row["logged"] - row["plain"]) / wrong)) if wrong else 1.0


_REPEATED: Final = """
select step, key, process, any_value(rank) as rank, count(*) as times, min(value) as smallest, max(value) as largest,
       arg_max(value, time_ns) as last, avg(value) as mean, min(wall_ns) as wall_ns
from scalars where source = 'user' and {steps} and not isnan(value)
group by step, key, process
having count(*) > 1 and max(value) - min(value) > 1e-9 * greatest(abs(max(value)), abs(min(value)))
"""


def _repeated(steps: Sql) -> Sql:
    return sql(_REPEATED, steps=steps)


def last_wins(run: Run) -> list[Finding]:
    """Metrics that were logged several times in one step with unlike values, of which the last one stays."""
    if not run.has("scalars"):
        return []
    told = by_step(
        run,
        lambda first, last: sql("{repeated} order by step, key", repeated=_repeated(_between(first, last))),
        FIRST,
        LAST,
    )
    if not len(told):
        return []
    frame = pd.DataFrame({"step": told.steps, **told.columns})
    unlike = (frame["largest"] - frame["smallest"]) / frame["mean"].abs().clip(lower=1e-12)
    frame = frame.assign(unlike=-unlike).sort_values(["unlike", "key", "step"], kind="stable")
    worst, keys = rows(frame)[0], sorted(set(frame["key"]))
    first = rows(frame.sort_values(["step", "wall_ns"]))[0]
    more = f" So {'was' if len(keys) == 2 else 'were'} {len(keys) - 1} more." if len(keys) > 1 else ""
    text = (
        f"{worst['key']} was logged {count(worst['times'])} times in step {worst['step']}, from "
        f"{number(worst['smallest'])} to {number(worst['largest'])}, and charts keep the last, "
        f"{number(worst['last'])}; the mean is {number(worst['mean'])}.{more}"
    )
    return [
        Finding(
            "alarm",
            "last_one_wins",
            text,
            topic="reductions",
            where=Where.of(worst),
            since=Since(whole(first["step"]), whole(first["wall_ns"])),
            cost=Cost(steps=int(frame["step"].nunique())),
            change=Change("Collect the values of a step with append_to_dict, reduce them, and log them once."),
            evidence_sql=sql(
                """select * from ({repeated}) where key = {key}
                and {at}""",
                repeated=_repeated(Sql("step is not null")),
                key=literal(worst["key"]),
                at=facts.at(Where.of(worst), "step", "process"),
            ),
            urgency=SOON,
            weight=71,
        )
    ]


def _nan(where: Sql) -> Sql:
    """The query for the steps in which metrics were given NaN, with their names."""
    return sql(
        """
        select step, min(wall_ns) as wall_ns, sum(nan_count)::bigint as n, list(distinct key order by key) as names
        from reductions where nan_count > 0 and {where} group by step order by step""",
        where=where,
    )


def nan(run: Run) -> list[Finding]:
    """Metrics that were given NaN, with the first of them: where NaN spreads, the first is the cause."""
    if not run.has("reductions"):
        return _logged_nan(run)
    told = by_step(run, lambda first, last: _nan(_between(first, last)), FIRST, LAST, needs=needs.NAN)
    rest = unstepped(run, _nan(Sql("step is null")))
    if not len(told) and rest.empty:
        return _logged_nan(run)
    found = pd.concat([pd.DataFrame({"step": told.steps, **told.columns}), rest])
    when = rows(found.sort_values("wall_ns", kind="stable"))[0]["step"]
    step = Sql("step is null") if missing(when) else sql("step = {step}", step=whole(when))
    row = rows(
        run.sql(
            sql("{placed_nan} order by wall_ns, nan_count, key, phase nulls last limit 1", placed_nan=_placed_nan(step))
        )
    )[0]
    text = f"NaN went into {row['key']} ({place(row)}): {count(row['nan_count'])} of {count(row['count'])} values"
    others = len({name for names in found["names"] for name in names}) - 1
    text += f"; {others} other metric{'s' if others > 1 else ''} had NaN later." if others else "."
    where = Where.of(row)
    here = joined((same(name, getattr(where, name)) for name in ("process", "phase", "micro_batch")), " and ")
    many, spoilt = int(found["n"].sum()), int(found["step"].nunique())
    why = "It is the only value that was NaN."
    if many > 1:
        why = f"{count(many)} values were NaN, in {count(spoilt)} step{'s' if spoilt > 1 else ''}; this was the first."
    return [
        Finding(
            "alarm",
            "nan",
            text,
            topic="reductions",
            where=where,
            since=Since(whole(row["step"]), whole(row["wall_ns"])),
            cost=Cost(steps=spoilt or None),
            why=why + _samples_with_nan(run, where),
            change=Change("Look at the samples of that micro-batch: an empty mask, a division by zero, or log(0)."),
            evidence_sql=sql(
                "select * from ({placed_nan}) where key = {key} and {here}",
                placed_nan=_placed_nan(step),
                key=literal(row["key"]),
                here=here,
            ),
            urgency=SOON,
            weight=95,
        )
    ]


def _placed_nan(step: Sql) -> Sql:
    """The query for the reductions of a step that were given NaN, each with the phase, the micro-batch and the time of
    its first: values that a process collected as many as it ran micro-batches in a phase are those of these. Where NaN
    reaches the weights, what comes after it on all ranks is reduced in the same moment, and computed later.
    """
    return sql(
        """with {run_in_order}
        select given.* replace (coalesce(ran.phase, given.phase) as phase,
                                coalesce(ran.micro_batch, given.micro_batch) as micro_batch,
                                coalesce(ran.wall_ns, given.wall_ns) as wall_ns)
        from (select * from reductions where nan_count > 0 and {step}) given
        left join ran on ran.process = given.process and ran.ran = given.count and ran.nth = given.nan_at""",
        run_in_order=sql(RUN_IN_ORDER, where=step),
        step=step,
    )


def _samples_with_nan(run: Run, where: Where) -> str:
    """The samples of a micro-batch that hold NaN, where samples are recorded; "" without one."""
    if where.step is None or where.micro_batch is None or not run.has("samples"):
        return ""
    frame = run.sql(
        sql(
            """select "row", uid from samples where nan_count > 0 and step = {step}
        and {same_process} and list_contains(micro_batches, {micro_batch}) order by "row" """,
            step=where.step,
            same_process=same("process", where.process),
            micro_batch=where.micro_batch,
        )
    )
    if frame.empty:
        return ""
    names = [f"row {row['row']}{' (' + str(row['uid']) + ')' if row['uid'] else ''}" for row in rows(frame.head(3))]
    more = f" and {len(frame) - 3} more" if len(frame) > 3 else ""
    return f" Of its recorded samples {', '.join(names)}{more} of their batch hold{'s' if len(frame) == 1 else ''} NaN."


def _logs_nan(run: Run) -> bool:
    logged = "select step, count(*) as n from scalars where source = 'user' and isnan(value) and"
    told = by_step(
        run,
        lambda first, last: f"{logged} {_between(first, last)} group by step order by step",
        FIRST,
        LAST,
        needs=needs.LOGGED_NAN,
    )
    return bool(len(told)) or not unstepped(run, f"{logged} step is null group by step").empty


def _logged_nan(run: Run) -> list[Finding]:
    """Of runs that reduce nothing with probe: metrics that were logged as NaN, once they had been numbers."""
    if not run.has("scalars") or not _logs_nan(run):
        return []
    frame = run.sql(
        """
        select key, min(step) filter (isnan(value)) as step, min(wall_ns) filter (isnan(value)) as wall_ns,
               any_value(rank) filter (isnan(value)) as rank, count(*) filter (isnan(value)) as n,
               count(distinct step) filter (isnan(value)) as steps
        from scalars where source = 'user' group by key
        having n > 0 and count(*) filter (not isnan(value)) > 0 order by wall_ns, key
        """
    )
    if frame.empty:
        return []
    row = rows(frame)[0]
    others = f"; {len(frame) - 1} other metrics followed" if len(frame) > 1 else ""
    return [
        Finding(
            "alarm",
            "nan",
            f"{row['key']} became NaN in step {whole(row['step'])}{others}.",
            topic="reductions",
            where=Where.of(row),
            since=Since(whole(row["step"]), whole(row["wall_ns"])),
            cost=Cost(steps=whole(row["steps"]) or None),
            change=Change("Look at the batch of that step, and at the last checkpoint before it."),
            evidence_sql=sql(
                """select * from scalars where isnan(value) and key = {key}
                and {at}""",
                key=literal(row["key"]),
                at=facts.at(Where.of(row), "step", "rank"),
            ),
            urgency=SOON,
            weight=95,
        )
    ]
