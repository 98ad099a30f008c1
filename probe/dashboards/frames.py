"""The numbers of a ``live:`` block, asked of a run, as frames."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from probe.dashboards import compile as made_sql
from probe.dashboards.spec import listed
from probe.sql import Sql, identifier, sql

if TYPE_CHECKING:
    import pandas as pd

    from probe.runs.reader import Run

#: Most dots of a scatter: the highest quarter stays, and of the rest every so many-th.
DOTS: Final = 2000

#: What says where a row of a live table was, where the table has it.
PLACE: Final = ("step", "rank", "who", "role", "phase", "micro_batch", "kind", "name")

#: What says of what kind a number is, by table: memory of what, and how sure a peak is.
KIND: Final[Mapping[str, tuple[str, ...]]] = {"spans": ("source", "peak_kind")}


def series(run: Run, spec: Mapping[str, Any], rows: str = "") -> pd.DataFrame:
    """All series of ``spec``, as :func:`probe.dashboards.compile.series` says.

    Args:
        run: The run.
        spec: A series spec.
        rows: An SQL condition on the rows that are looked at, such as ``step between 3 and 7``.

    Returns:
        Columns of ``x`` and ``by`` under their names, y and value (NaN where there is none).
    """
    frame = run.sql(made_sql.series(spec, rows))
    frame["value"] = frame["value"].astype("Float64").to_numpy(float, na_value=math.nan)
    return frame


def numbers(run: Run, spec: Mapping[str, Any], choice: Mapping[str, Any] | None = None) -> pd.DataFrame:
    """What a picture of ``spec`` shows.

    Args:
        run: The run.
        spec: A ``live:`` block.
        choice: Values by column that rows must have, None for a missing one; what ``of: step`` needs at least.

    Returns:
        Of a timeline or a scatter the rows: ``x``, ``y``, ``by``, ``colour``, ``tell``, :data:`PLACE` and :data:`KIND`
        under their names; of a timeline also begin, end and duration, where seconds count from the first beginning of
        all that the choice has. Of other marks the columns of :func:`series`, in
        order of the axis and of ``by``; with ``share``, ``over``, ``cap`` and ``tell`` also whole (the sum of that
        column at the same place), over, cap and the columns of ``tell`` (the largest there), with ``ticks`` also tick;
        of bars of largest values also :data:`PLACE` and :data:`KIND` of the rows that have them. Without a choice
        ``of: step`` has no rows.
    """
    asked = {**spec, "where": {**spec.get("where", {}), **(choice or {})}, "chosen": choice or {}}
    step = (choice or {}).get("step")
    rows = "" if step is None else f"step = {int(step)}"
    if spec.get("of") == "step" and not choice:
        rows = "false"
    frame_of: Callable[..., pd.DataFrame] = _FRAMES.get(str(spec.get("mark")), _summed)
    return frame_of(run, asked, rows)


# ------------------------------------------------------------------------------------------------------ of sums


def _summed(run: Run, spec: Mapping[str, Any], rows: str) -> pd.DataFrame:
    frame = series(run, spec, rows)
    for name, beside, keys in _more(spec):
        at = [key for key in keys if key in frame]
        found = series(run, beside, rows).drop(columns="y").rename(columns={"value": name})
        frame = frame.merge(found, on=at, how="left")
    names = list(dict.fromkeys([*series_keys(spec), *listed(spec.get("by"))]))
    if spec.get("mark") == "bars" and spec.get("reduce", "max") == "max" and not {"each", "per"} & set(spec):
        frame = frame.merge(run.sql(made_sql.largest(spec, _place(spec), rows)), on=names, how="left")
    return frame.sort_values([*names, "y"], kind="stable", ignore_index=True)


def _more(spec: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any], list[str]]]:
    """What stands beside the values: the name of the column, its series spec, and the columns that join them."""
    across, by = series_keys(spec), listed(spec.get("by"))
    found: list[tuple[str, Mapping[str, Any], list[str]]] = []
    if "share" in spec:
        found.append(("whole", {**spec, "y": spec["share"], "by": None, "reduce": "sum"}, across))
    told = {"over": spec.get("over"), "cap": spec.get("cap"), **{one: one for one in listed(spec.get("tell"))}}
    found += [(name, {**spec, "y": one, "reduce": "max"}, [*across, *by]) for name, one in told.items() if one]
    if "ticks" in spec:
        found.append(("tick", {**spec, "least": spec["ticks"]["least"]}, [*across, *by]))
    return found


def _lines(run: Run, spec: Mapping[str, Any], rows: str) -> pd.DataFrame:
    """One line for the spec and each of ``beside``, where it has that; else all series."""
    import pandas as pd

    if "beside" not in spec:
        return _summed(run, spec, rows)
    parts = []
    for one in ({**spec, "title": spec.get("label", "")}, *spec["beside"]):
        frame = run.sql(made_sql.by_step(one, rows))
        parts.append(frame.assign(value=frame["value"].astype("Float64"), y=one["title"]))
    found = pd.concat(parts, ignore_index=True)
    found["value"] = found["value"].to_numpy(float, na_value=math.nan)
    return found


# ------------------------------------------------------------------------------------------------------ of rows


def _boxes(run: Run, spec: Mapping[str, Any], rows: str) -> pd.DataFrame:
    frame = run.sql(_rows(run, spec, rows, ("begin", "end", "duration")))
    whole = made_sql.rows_of(str(spec["table"]), ("begin",), spec["chosen"], rows, _start_ns(run))
    start = run.sql(sql('select min("begin") as start from ({whole})', whole=whole))["start"][0]
    return frame.assign(begin=frame["begin"] - start, end=frame["end"] - start) if len(frame) else frame


def _dots(run: Run, spec: Mapping[str, Any], rows: str) -> pd.DataFrame:
    x, y = listed(spec["x"])[0], listed(spec["y"])[0]
    return run.sql(
        sql(
            """
        with known as (select * from ({found}) where {x} is not null and {y} is not null),
        ranked as (select *, row_number() over (order by {y} desc, {order}) as nth, count(*) over () as every
                   from known)
        select * exclude (nth, every) from ranked
        where every <= {dots} or nth <= {highest} or nth % ceil(every / {others}) = 0 order by nth
        """,
            found=_rows(run, spec, rows, ()),
            x=identifier(x),
            y=identifier(y),
            order=[identifier(one) for one in _columns(spec, ()) if one != y],
            dots=DOTS,
            highest=DOTS // 4,
            others=DOTS * 3 // 4,
        )
    )


def _rows(run: Run, spec: Mapping[str, Any], rows: str, more: tuple[str, ...]) -> Sql:
    return made_sql.rows_of(str(spec["table"]), _columns(spec, more), spec.get("where"), rows, _start_ns(run))


def _start_ns(run: Run) -> int:
    processes = run.processes
    return 0 if processes.empty else int(processes["wall_ns"].min())


def _columns(spec: Mapping[str, Any], more: tuple[str, ...]) -> list[str]:
    named = [one for name in ("x", "y", "by", "colour", "tell") for one in listed(spec.get(name))]
    return list(dict.fromkeys([*named, *_place(spec), *more]))


def _place(spec: Mapping[str, Any]) -> list[str]:
    table = str(spec["table"])
    there = made_sql.table_of(table).columns
    return [*(one for one in PLACE if one in there), *KIND.get(table, ())]


def series_keys(spec: Mapping[str, Any]) -> list[str]:
    """The columns of a spec's axis.

    Args:
        spec: A series spec.

    Returns:
        Their names.

    >>> series_keys({"x": "step"}), series_keys({"x": ["role", "phase"]})
    (['step'], ['role', 'phase'])
    """
    x = spec.get("x") or "step"
    return [x] if isinstance(x, str) else list(x)


_FRAMES: Final = {"line": _lines, "timeline": _boxes, "scatter": _dots}
