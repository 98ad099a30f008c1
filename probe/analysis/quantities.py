"""The quantities of ``dashboards/quantities.yaml``, asked of a run: what each says of every step, and of all of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from probe.dashboards import compile as sql
from probe.dashboards.quantities import Course, quantity

if TYPE_CHECKING:
    import pandas as pd

    from probe.runs.reader import Run

Values = dict[int, float]


def courses(run: Run, specs: Iterable[Mapping[str, Any]], rows: str = "") -> list[Course]:
    """What each of ``specs`` says of every step.

    All are asked at once, because much of a question to many small files is opening one after the other; and what two
    of them ask alike is asked once.

    Args:
        run: The run.
        specs: Quantities or tiles.
        rows: An SQL condition on the rows that are looked at, such as ``step between 3 and 7``.

    Returns:
        A course for each, in their order.
    """
    wanted = list(specs)
    with ThreadPoolExecutor(thread_name_prefix="probe-quantities") as pool:
        asked = _Asked(run, pool, rows)
        begun = [asked.begin(spec) for spec in wanted]
        return [_course(one, *parts) for one, parts in zip(wanted, begun, strict=True)]


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
        """The values by step of ``spec`` and of what they are divided by; and its total, or what it is measured
        against.
        """
        parts = [self._by_step(spec)]
        under = spec.get("divide")
        while under is not None:
            parts.append(self._by_step(under))
            under = under.get("divide")
        beside = None
        if spec.get("total"):
            beside = self._ask(sql.total(spec, self._rows))
        elif "capacity" in spec:
            beside = self._ask(sql.total({"reduce": "max", **spec["capacity"]}, self._rows))
        return parts, beside

    def _by_step(self, spec: Mapping[str, Any]) -> Future[pd.DataFrame]:
        return self._ask(sql.by_step({name: value for name, value in spec.items() if name != "divide"}, self._rows))

    def _ask(self, text: str) -> Future[pd.DataFrame]:
        if text not in self._answers:
            self._answers[text] = self._pool.submit(self._run.sql, text)
        return self._answers[text]


def _course(spec: Mapping[str, Any], parts: list[Future[pd.DataFrame]], beside: Future[pd.DataFrame] | None) -> Course:
    *above, values = (_values(one.result()) for one in parts)
    for over in reversed(above):
        values = {step: value / values[step] if values.get(step) else math.nan for step, value in over.items()}
    number = math.nan if beside is None else _number(beside.result()["value"][0])
    steps = sorted(values)
    numbers = [values[step] for step in steps]
    return Course(steps, numbers, number, math.nan) if spec.get("total") else Course(steps, numbers, math.nan, number)


def _values(frame: pd.DataFrame) -> Values:
    return {int(step): _number(value) for step, value in zip(frame["step"], frame["value"], strict=True)}


def _number(value: Any) -> float:
    return math.nan if value is None or type(value).__name__ == "NAType" else float(value)
