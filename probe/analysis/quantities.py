"""The quantities of ``dashboards/quantities.yaml``, asked of a run: what each says of every step, and of all of it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from probe.dashboards import compile as sql
from probe.dashboards.courses import Course, Parts
from probe.dashboards.outstanding import who_series
from probe.dashboards.quantities import quantity
from probe.dashboards.spec import listed, pairs

if TYPE_CHECKING:
    import pandas as pd

    from probe.runs.reader import Run

Values = dict[int, float]

#: Questions asked at the same time; DuckDB has threads of its own for each.
_AT_ONCE: Final = max(2, (os.cpu_count() or 2) // 2)


def courses(run: Run, specs: Iterable[Mapping[str, Any]], rows: str = "", *, compared: bool = False) -> list[Course]:
    """What each of ``specs`` says of every step.

    All are asked at once, because much of a question to many small files is opening one after the other; and what two
    of them ask alike is asked once.

    Args:
        run: The run.
        specs: Quantities or tiles.
        rows: An SQL condition on the rows that are looked at, such as ``step between 3 and 7``.
        compared: Whether to ask for the values of each rank, too.

    Returns:
        A course for each, in their order.
    """
    wanted = list(specs)
    with ThreadPoolExecutor(_AT_ONCE, "probe-quantities") as pool:
        asked = _Asked(run, pool, rows)
        begun = [asked.begin(spec) for spec in wanted]
        ranks = [asked.by_rank(spec) if compared else None for spec in wanted]
        found = [_course(one, *parts) for one, parts in zip(wanted, begun, strict=True)]
        return [
            one if of is None else replace(one, by_rank=_by_rank(of.result()))
            for one, of in zip(found, ranks, strict=True)
        ]


def course(run: Run, name: str, rows: str = "") -> Course:
    """What the quantity called ``name`` says of every step.

    Args:
        run: The run.
        name: Of the quantity.
        rows: As in :func:`courses`.

    Returns:
        Its course.
    """
    return courses(run, [quantity(name)], rows)[0]


class _Asked:
    """Questions under way, each once."""

    def __init__(self, run: Run, pool: ThreadPoolExecutor, rows: str) -> None:
        self._run, self._pool, self._rows = run, pool, rows
        self._answers: dict[str, Future[pd.DataFrame]] = {}

    def begin(self, spec: Mapping[str, Any]) -> tuple[list[Future[pd.DataFrame]], Future[pd.DataFrame] | None]:
        """The values by step of ``spec`` and of what they are divided by; and what it is measured against."""
        if pairs(spec):
            return [self._ask(sql.parts(spec, self._rows))], None
        parts = [self._by_step(spec)]
        under = spec.get("divide")
        while under is not None:
            parts.append(self._by_step(under))
            under = under.get("divide")
        if "capacity" not in spec:
            return parts, None
        return parts, self._ask(sql.total({"reduce": "max", **spec["capacity"]}, self._rows))

    def by_rank(self, spec: Mapping[str, Any]) -> Future[pd.DataFrame] | None:
        """The values of each step and rank; None where nobody is compared."""
        who = who_series(spec)
        return None if who is None else self._ask(sql.series(who, self._rows))

    def _by_step(self, spec: Mapping[str, Any]) -> Future[pd.DataFrame]:
        alone = {name: value for name, value in spec.items() if name != "divide"}
        return self._ask(sql.by_step(alone, self._rows, outside=bool(spec.get("total"))))

    def _ask(self, text: str) -> Future[pd.DataFrame]:
        if text not in self._answers:
            self._answers[text] = self._pool.submit(self._run.sql, text, keep=not self._rows)
        return self._answers[text]


def _course(spec: Mapping[str, Any], parts: list[Future[pd.DataFrame]], beside: Future[pd.DataFrame] | None) -> Course:
    if pairs(spec):
        return _quotients(spec, parts[0].result())
    *above, values = (_values(one.result()) for one in parts)
    for over in reversed(above):
        values = {step: value / values[step] if values.get(step) else math.nan for step, value in over.items()}
    capacity = math.nan if beside is None else _number(beside.result()["value"][0])
    total = float(sum(parts[0].result()["value"].dropna())) if spec.get("total") else math.nan
    steps = sorted(values)
    return Course(steps, [values[step] for step in steps], total, capacity)


def _by_rank(frame: pd.DataFrame) -> dict[tuple[int, int], float]:
    known = frame.dropna(subset=["step", "rank"])
    places = zip(*(known[name].astype("int64").tolist() for name in ("step", "rank")), strict=True)
    return dict(zip(places, _numbers(known["value"]), strict=True))


def _quotients(spec: Mapping[str, Any], frame: pd.DataFrame) -> Course:
    """Of a quantity each series of which is divided by its own."""
    by = listed(spec.get("by"))
    within = frame[frame["step"].notna()]
    found: dict[int, dict[tuple[Any, ...], tuple[float, float]]] = {}
    steps_of = within["step"].astype("int64").tolist()
    numbers = zip(_numbers(within["over"]), _numbers(within["under"]), strict=True)
    series = (
        zip(*([str(one) for one in within[name].tolist()] for name in by), strict=True) if by else [()] * len(within)
    )
    for step, key, pair in zip(steps_of, series, numbers, strict=True):
        found.setdefault(step, {})[key] = pair
    steps = sorted(found)
    return Course(steps, [_largest(found[step]) for step in steps], parts=[found[step] for step in steps])


def _largest(parts: Parts) -> float:
    known = [over / under for over, under in parts.values() if under and not math.isnan(over / under)]
    return max(known, default=math.nan)


def _values(frame: pd.DataFrame) -> Values:
    within = frame[frame["step"].notna()]
    return dict(zip(within["step"].astype("int64").tolist(), _numbers(within["value"]), strict=True))


def _numbers(column: pd.Series) -> list[float]:
    """A column as plain numbers, NaN where there is none."""
    found: list[float] = column.astype("Float64").to_numpy(float, na_value=math.nan).tolist()
    return found


def _number(value: Any) -> float:
    return math.nan if value is None or type(value).__name__ == "NAType" else float(value)
