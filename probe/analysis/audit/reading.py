"""What a run says of its logged numbers: what was reported, and the parts that it was reduced from."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from probe.analysis.audit.judging import Judged, Part, judge
from probe.analysis.query import literal
from probe.sql import Sql, joined, sql
from probe.text import missing, whole

if TYPE_CHECKING:
    import pandas as pd

    from probe.runs.reader import Run

#: Rows that are read at once: of a larger run some steps are looked at.
MOST_ROWS: Final = 200_000


@dataclass
class Number:
    """One metric in one step."""

    step: int | None
    metric: str
    parts: list[Part] = field(default_factory=list)
    logged: list[tuple[str, float]] = field(default_factory=list)  #: by which process, in time
    role: str | None = None
    phase: str | None = None

    @property
    def reported(self) -> float | None:
        """What a chart shows: what was logged last, by the first process that logged; else what was reduced last."""
        if self.logged:
            return self.by_one[-1]
        return self.parts[-1].value if self.parts else None

    @property
    def process(self) -> str | None:
        """Who reported it."""
        return self.logged[0][0] if self.logged else self.parts[-1].process if self.parts else None

    @property
    def by_one(self) -> list[float]:
        """Everything that the first process logged of it."""
        return [value for process, value in self.logged if process == self.logged[0][0]]

    def judged(self, ranks: int | None) -> Judged:
        """What is to be said of it."""
        return judge(self.metric, self.reported, self.parts, ranks=ranks, logged=self.by_one, process=self.process)

    @property
    def who(self) -> str:
        """Who reduced it, how, and who chose that; "" where nobody did before probe's eyes."""
        if not self.parts:
            return ""
        part = next((one for one in reversed(self.parts) if one.process == self.process), self.parts[-1])
        chosen = {"name": "by the name", "type": "by its type", "weights": "by its weights"}.get(part.chosen_by)
        return f"{part.reducer}, chosen {chosen or part.chosen_by}, in {part.process}"

    @property
    def evidence_sql(self) -> Sql:
        """The rows behind it."""
        table, of = ("reductions", "") if self.parts else ("scalars", "source = 'user' and ")
        step = Sql("step is null") if self.step is None else sql("step = {step}", step=self.step)
        return sql(
            "select * from {table} where {of}key = {metric} and {step}",
            table=Sql(table),
            of=Sql(of),
            metric=literal(self.metric),
            step=step,
        )


_PARTS: Final = tuple(one.name for one in fields(Part))
_NAMES: Final = frozenset({"reducer", "chosen_by", "process"})
_WHOLE: Final = frozenset({"count", "nan_count", "rank", "micro_batch"})


def numbers(run: Run, where: Sql, since: int | None = None) -> list[Number]:
    """The numbers of some steps.

    Args:
        run: The run.
        where: A condition on ``step`` and ``key``.
        since: No row of an earlier step is asked for; None where some may be.
    """
    found: dict[tuple[int | None, str], Number] = {}

    def of(step: Any, key: str) -> Number:
        asked = whole(step), key
        if asked not in found:
            found[asked] = Number(*asked)
        return found[asked]

    if run.has("scalars"):
        logged = sql(
            "select step, key, process, value from scalars where source = 'user' and {where} order by rank, time_ns",
            where=where,
        )
        for row in run.sql(logged, since=since).itertuples():
            of(row.step, row.key).logged.append((row.process, float(row.value)))
    if run.has("reductions"):
        columns = map(Sql, _PARTS)
        query = sql(
            "select step, key, role, phase, {columns} from reductions where {where} order by time_ns, process",
            columns=columns,
            where=where,
        )
        rows = run.sql(query, since=since)
        named = zip(*(rows[name].tolist() for name in ("step", "key", "role", "phase")), strict=True)
        for (step, key, role, phase), part in zip(named, _parts(rows), strict=True):
            number = of(step, key)
            if part.value is not None:
                number.parts.append(part)
            number.role, number.phase = _name(role) or number.role, _name(phase) or number.phase
    return list(found.values())


def ranks(run: Run) -> int | None:
    """How many ranks the training has; None where no process says that it is one."""
    processes = run.processes
    known = processes["world_size"][processes["rank"].notna()]
    return int(known.max()) if len(known) else None


def steps(run: Run) -> tuple[list[int | None], int]:
    """The steps to look at, and how many there are: all of a run that isn't large, else some that lie evenly."""
    tables = [one for one in ("reductions", "scalars") if run.has(one)]
    if not tables:
        return [], 0
    asked = (
        sql("select step from {one}{of}", one=Sql(one), of=Sql(" where source = $$user$$" if one == "scalars" else ""))
        for one in tables
    )
    counted = run.sql(
        sql(
            "select step, count(*) as n from ({union}) group by step order by step nulls first",
            union=joined(asked, " union all "),
        )
    )
    known = [whole(step) for step in counted["step"]]
    most = max(2, math.floor(MOST_ROWS * len(known) / max(1, int(counted["n"].sum()))))
    if len(known) <= most:
        return known, len(known)
    return _evenly(known, most), len(known)


def within(chosen: Sequence[int | None]) -> Sql:
    """The condition for rows of some steps."""
    told = [literal(one) for one in chosen if one is not None]
    parts = [sql("step in ({told})", told=told)] if told else []
    parts += [Sql("step is null")] if None in chosen else []
    return sql("({parts})", parts=joined(parts, " or ")) if parts else Sql("false")


def by_metric(found: Sequence[Number]) -> dict[str, list[Number]]:
    """The numbers of each metric, by step."""
    told: dict[str, list[Number]] = defaultdict(list)
    for one in sorted(found, key=lambda one: (one.metric, -1 if one.step is None else one.step)):
        told[one.metric].append(one)
    return told


def _evenly(known: list[int | None], most: int) -> list[int | None]:
    return [known[round(at * (len(known) - 1) / (most - 1))] for at in range(most)]


def _parts(rows: pd.DataFrame) -> Iterator[Part]:
    """The rows as parts, column by column: there may be a hundred thousand."""
    return map(Part, *(_column(name, rows[name].tolist()) for name in _PARTS))


def _column(name: str, values: list[Any]) -> list[Any]:
    """None for cells that are empty; NaN is a number here."""
    if name in _NAMES:
        return values
    kind = int if name in _WHOLE else float
    return [kind(one) if type(one) in (int, float) or not missing(one) else None for one in values]


def _name(value: Any) -> str | None:
    return None if missing(value) or value == "" else str(value)
