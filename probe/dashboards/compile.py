"""A series spec as SQL over the tables of a run: what :mod:`probe.live.series` reads from live tables, at rest.

The same spec gives the same numbers on the same rows: whole numbers exactly, others to the last digits of floats. Names
that a user chose are quoted. The columns that a question doesn't need are left out, so that it may be answered by a
cheaper view.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from probe.dashboards.columns import LIVE, WHERE, Derived, Formula, Table, of_row_type, select_list
from probe.dashboards.spec import listed, pairs
from probe.errors import UnknownNameError
from probe.runs import views
from probe.runs.row_types import row_type
from probe.runs.version_1 import quoted

#: Columns that only the view of all scopes has; what asks for none of them is answered by those that have ended.
_NESTED: Final = frozenset({"level", "maker", "parent", "at_begin", "batch", "tokens", "slots", "begin", "end"})

#: Columns that the view of micro-batches alone has.
_TIMED: Final = frozenset(
    {"step", "rank", "process", "who", "role", "phase", "kind", "level", "micro_batch", "scope", "duration", "batch"}
    | {"tokens", "slots", "sequences", "longest", "on_padding"}
)

#: Of the padding view, what the cheaper one of widest fields has not; and what it has on rows without a cause.
_ALL_FIELDS, _WHOLE_BATCHES = frozenset({"field", "bytes"}), frozenset({"rectangle", "valid"})

#: Within these, the largest peak of the scopes that made one is the largest that counts.
_WHOLE: Final = frozenset({"step", "rank", "process", "who", "peak", "maker"})

#: What orders rows where the last one is asked for.
_ORDER: Final = {"spans": "end_ns", "padding": "step", "micro": "wall_ns"}


def by_step(spec: Mapping[str, Any], rows: str = "", *, outside: bool = False) -> str:
    """The query for the value of ``spec`` at each step; where it has several series (``by``), the largest of them.

    Args:
        spec: A series spec.
        rows: An SQL condition on step, rank or process; only rows that it holds for are looked at.
        outside: Whether rows outside any step have a line too, the last, with NULL for the step.

    Returns:
        A query with the columns step and value (a double, NULL where there is none), in order of steps.
    """
    held = "true" if outside else "step is not null"
    return f"select step, value from ({_by_step(spec, rows)}) where {held} order by step nulls last"  # noqa: S608  (our own names)


def _by_step(spec: Mapping[str, Any], rows: str) -> str:
    if pairs(spec):
        return f"select step, max(over / nullif(under, 0)) as value from ({parts(spec, rows)}) group by step"  # noqa: S608  (our own names)
    over = f"select step, max(value) as value from ({_reduced(spec, _keys(spec), rows)}) group by step"  # noqa: S608  (our own names)
    if "divide" not in spec:
        return over
    under = _by_step(spec["divide"], rows)
    return f"""select o.step as step, o.value / nullif(u.value, 0) as value
        from ({over}) o left join ({under}) u on o.step is not distinct from u.step"""  # noqa: S608  (our own names)


def parts(spec: Mapping[str, Any], rows: str = "") -> str:
    """The query for what is divided and what it is divided by, of each series of ``spec`` at each step.

    Args:
        spec: A series spec with ``divide``, where both have the same ``by``.
        rows: As in :func:`by_step`.

    Returns:
        A query with the columns step, those of ``by``, over and under (doubles, NULL where there is none).
    """
    keys = _keys(spec)
    same = " and ".join(f'o."{one}" is not distinct from u."{one}"' for one in keys)
    return f"""select {_list(keys, "o.")}, o.value as over, u.value as under from ({_reduced(spec, keys, rows)}) o
        left join ({_reduced(spec["divide"], keys, rows)}) u on {same}"""  # noqa: S608  (our own names)


def total(spec: Mapping[str, Any], rows: str = "") -> str:
    """The query for the sum of ``spec`` over the run, rows outside any step included; the largest for reduce: max.

    Args:
        spec: A series spec.
        rows: As in :func:`by_step`.

    Returns:
        A query with one row and the column value, NULL where the largest of nothing is asked for.
    """
    alone = {name: value for name, value in spec.items() if name != "divide"}
    how = "max(value)" if spec.get("reduce", "max") == "max" else "coalesce(sum(value), 0)"
    return f"select ({how})::double as value from ({_by_step(alone, rows)})"  # noqa: S608  (our own names)


def series(spec: Mapping[str, Any], rows: str = "") -> str:
    """The query for all series of ``spec``: a value for each place on its x-axis and each value of ``by``.

    Args:
        spec: A series spec; where it has no ``x`` the steps are.
        rows: As in :func:`by_step`.

    Returns:
        A query with the columns of ``x`` and ``by`` under their names, ``y`` (the column's name) and value, NULL where
        there is none.
    """
    across = ["step"] if spec.get("x") in ("step", None) else listed(spec["x"])
    keys = list(dict.fromkeys([*across, *listed(spec.get("by"))]))
    ratio = spec.get("reduce") == "ratio"
    asked = [spec] if ratio or not spec.get("y") else [{**spec, "y": one} for one in listed(spec["y"])]
    found = []
    for one in asked:
        inner = _reduced(one, keys, rows)
        if pairs(spec) and across == ["step"]:
            inner = f"select {_list(keys)}, over / nullif(under, 0) as value from ({parts(one, rows)})"  # noqa: S608  (our own names)
        elif "divide" in spec and across == ["step"]:
            inner = f"""select {_list(keys, "o.")}, o.value / nullif(u.value, 0) as value from ({inner}) o
                left join ({_by_step(spec["divide"], rows)}) u on o.step is not distinct from u.step"""  # noqa: S608  (our own names)
        name = str(next(iter(listed(one.get("y"))), "rows"))
        found.append(f"select {_list(keys)}, {quoted(name)} as y, value from ({inner})")  # noqa: S608  (our own names)
    return " union all by name ".join(found)


def largest(spec: Mapping[str, Any], columns: Sequence[str], rows: str = "") -> str:
    """The query for the row that each of the largest values of ``spec`` is owed to; of several the earliest step.

    Args:
        spec: A series spec with ``reduce: max``, without ``each`` and ``per``.
        columns: Of the row.
        rows: As in :func:`by_step`.

    Returns:
        A query with the columns of ``x`` and ``by`` and ``columns``.
    """
    keys = list(dict.fromkeys([*(listed(spec.get("x")) or ["step"]), *listed(spec.get("by"))]))
    wanted = [one for one in columns if one not in keys]
    order = ", ".join(["v desc", *(f'"{one}"' for one in wanted)])
    made = ", ".join([_list(keys), *(f'first("{one}" order by {order}) as "{one}"' for one in wanted)])
    found = _rows(spec, list(dict.fromkeys([*keys, *wanted])), rows)
    return f"select {made} from ({found}) group by {_list(keys)}"  # noqa: S608  (our own names)


def rows_of(
    table: str, columns: Sequence[str], where: Mapping[str, Any] | None = None, rows: str = "", start_ns: int = 0
) -> str:
    """The query for the rows of a live table, as marks that draw each of them need it.

    Args:
        table: A live table.
        columns: Of it, derived ones too.
        where: As in a series spec.
        rows: As in :func:`by_step`.
        start_ns: Wall-clock time of second 0, nanoseconds since the epoch.

    Returns:
        A query with ``columns``.
    """
    conditions = [_condition(table, name, ask) for name, ask in (where or {}).items()]
    held = " and ".join([*conditions, *([f"({rows})"] if rows else [])]) or "true"
    source = _source(table, {*columns, *(where or {})}, where or {}, rows, start_ns)
    made = ", ".join(f'{_column(table, one)} as "{one}"' for one in columns)
    return f"select {made} from {source} where {held}"  # noqa: S608  (our own names)


#: Stands for the step in a query for a picture of one step.
STEP: Final = "{step}"


def numbers(block: Mapping[str, Any]) -> str:
    """The query for the numbers that a mark of the live panel draws.

    Args:
        block: A ``live:`` block.

    Returns:
        A query; of a picture of one step :data:`STEP` stands for its number. Empty for tiles, which are several.
    """
    mark, rows = block["mark"], f"step = {STEP}" if block.get("of") == "step" else ""
    if mark == "tiles":
        return ""
    if mark in ("table", "timeline", "scatter") or block.get("x") == "time":
        return rows_of(block["table"], _drawn(block), block.get("where"), rows)
    if mark == "stragglers":
        return series({**block, "x": "step", "by": "rank", "reduce": "sum"}, rows)
    return series(block, rows)


def _drawn(block: Mapping[str, Any]) -> list[str]:
    """The columns of the rows of which a mark draws each."""
    if block["mark"] == "table":
        return list(block["columns"])
    along = {"timeline": ["begin", "end"], "line": ["t"]}.get(block["mark"], listed(block.get("x")))
    asked = [*listed(block.get("by")), *listed(block.get("colour")), *along, *listed(block.get("y"))]
    return list(dict.fromkeys(["step", "rank", *asked]))


# ---------------------------------------------------------------------------------------------------- one series


def _keys(spec: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(["step", *listed(spec.get("by"))]))


def _reduced(spec: Mapping[str, Any], keys: Sequence[str], rows: str) -> str:
    """The value of each group of ``keys``: the largest over ``per``, or the smallest over ``least``, by ``scale``."""
    inner = list(dict.fromkeys([*keys, *listed(spec.get("per")), *listed(spec.get("least"))]))
    value = _of_groups(spec, inner, rows)
    if len(inner) > len(keys):
        which = "min" if "least" in spec else "max"
        value = f"select {_list(keys)}, {which}(value) as value from ({value}) group by {_list(keys)}"  # noqa: S608  (our own names)
    scale = spec.get("scale", 1)
    return value if scale == 1 else f"select {_list(keys)}, value * {float(scale)!r} as value from ({value})"  # noqa: S608  (our own names)


def _of_groups(spec: Mapping[str, Any], keys: Sequence[str], rows: str) -> str:
    how = str(spec.get("reduce", "max"))
    each, slots = listed(spec.get("each")), listed(spec.get("slots"))
    found = _rows(spec, list(dict.fromkeys([*keys, *each, *slots])), rows)
    if "first" in spec:
        found = f"select * from ({found}) qualify preference = min(preference) over (partition by {_list(keys)})"  # noqa: S608  (our own names)
    if how == "ratio":
        return f"select {_list(keys)}, sum(v)::double / nullif(sum(u)::double, 0) as value from ({found}) group by {_list(keys)}"  # noqa: S608, E501  (our own names)
    total = _total(spec)
    if each:
        parts = list(dict.fromkeys([*keys, *each, *slots]))
        found = f"select {_list(parts)}, {total} as v from ({found}) group by {_list(parts)}"  # noqa: S608  (our own names)
    if how == "imbalance":
        return _imbalance(found, keys, slots, least=2 if "rank" in each else 1)
    reduced = _REDUCED[how].format(total=total)
    return f"select {_list(keys)}, {reduced} as value from ({found}) group by {_list(keys)}"  # noqa: S608  (our own names)


def _total(spec: Mapping[str, Any]) -> str:
    """How the values v are summed: whole numbers and times exactly, other floats from the smallest on.

    DuckDB's threads bring rows in another order each time, and the last bit of a sum of floats goes with that order.
    A page of the same run is the same page.
    """
    table, ys = table_of(str(spec["table"])), listed(spec.get("y"))
    if not ys or (
        ys[0] in table.columns and (table.columns[ys[0]].dtype != "f8" or table.columns[ys[0]].unit in _WHOLE_UNITS)
    ):
        return "sum(v)"
    return "sum(v::decimal(28, 9))" if ys[0] == "duration" else "sum(v order by v)"  # times are whole nanoseconds


#: Units of which a value is a whole number.
_WHOLE_UNITS: Final = ("bytes", "tokens")

_REDUCED: Final[Mapping[str, str]] = {
    "max": "max(v)::double",
    "min": "min(v)::double",
    "sum": "{total}::double",
    "mean": "{total}::double / count(v)",
    "last": "arg_max(v, at)::double",
    "count": "count(*)::double",
}


def _imbalance(found: str, keys: Sequence[str], slots: Sequence[str], least: int) -> str:
    """Sums over the slots of the largest and of the mean; NULL where no slot holds ``least`` values to compare. The
    means are summed as decimals: of floats the last bits change with the order in which threads bring them.
    """
    if not slots:
        value = "max(v)::double * count(v) / nullif(sum(v)::double, 0)"
        return f"""select {_list(keys)}, if(sum(v) > 0 and count(v) >= {least}, {value}, null) as value
            from ({found}) group by {_list(keys)}"""  # noqa: S608  (our own names)
    groups = list(dict.fromkeys([*keys, *slots]))
    slot = f"""select {_list(groups)}, max(v) as largest, (sum(v)::double / count(v))::decimal(38, 12) as mean,
        count(v) as compared from ({found}) group by {_list(groups)}"""  # noqa: S608  (our own names)
    value = "sum(largest)::double / sum(mean)::double"
    return f"""select {_list(keys)}, if(sum(mean) > 0 and max(compared) >= {least}, {value}, null) as value
        from ({slot}) group by {_list(keys)}"""  # noqa: S608  (our own names)


def _rows(spec: Mapping[str, Any], names: Sequence[str], rows: str) -> str:
    """The rows that count, with ``names``, the value v and (of a ratio) what it is divided by, u."""
    table, ys = str(spec["table"]), listed(spec.get("y"))
    where = spec.get("where", {})
    how = str(spec.get("reduce", "max"))
    needed = {*names, *ys, *where}
    source = _source(table, needed, where, rows, how=how)
    value = _column(table, ys[0]) if ys else "1"
    conditions = [_condition(table, name, ask) for name, ask in where.items()]
    conditions += [f"({rows})"] if rows else []
    conditions += [f"{value} is not null and not isnan(({value})::double)"] if ys else []
    conditions += ["rank is not null"] if "rank" in (*listed(spec.get("each")), *listed(spec.get("least"))) else []
    made = [f'{_column(table, one)} as "{one}"' for one in names]
    made.append(f"{value} as v")
    if how == "ratio":
        made.append(f"{_column(table, ys[1])} as u")
    if "first" in spec:
        texts = ", ".join(quoted(one) for one in where[spec["first"]])
        made.append(f'list_position([{texts}], "{spec["first"]}") as preference')
    if how == "last":
        made.append(f"{_ORDER.get(table, 'wall_ns')} as at")
    return f"select {', '.join(made)} from {source} where {' and '.join(conditions) or 'true'}"  # noqa: S608  (our own names)


# -------------------------------------------------------------------------------------------------- rows and columns


def _source(table: str, needed: set[str], where: Mapping[str, Any], rows: str, start_ns: int = 0, how: str = "") -> str:
    """What stands after ``from``: the cheapest view that has the columns, over the rows that are asked for."""
    if table == "spans":
        sources = {"memory": f"(select * from memory where ({rows}) or step is null)"} if rows else {}  # noqa: S608
        return f"({views.query(_spans(needed, where, how), sources, start_ns)})"
    if table == "micro" and needed & {"round", "once"}:
        return _view("micro_batches_counted", "micro_batches", rows)
    if table == "padding":
        tax = how in ("sum", "ratio") and where.get("counted") == 2 and not _ALL_FIELDS & needed
        if not tax or ("cause" in needed and _WHOLE_BATCHES & needed):
            return _view("padding_counted", "padding", rows)
        widest = _view("padding_widest", "padding", rows)
        return f"(select * from {widest} where cause is not null)" if "cause" in needed else widest  # noqa: S608
    live = table_of(table)
    held = WHERE.get(table, "true")
    more = "" if "wall_ns" in live.columns else ", wall_ns"
    return f"(select {select_list(live, start_ns)}{more} from {live.rows} where {held})"  # noqa: S608  (our own names)


def _spans(needed: set[str], where: Mapping[str, Any], how: str) -> str:
    if how == "max" and where.get("maker") == 1 and needed <= _WHOLE:
        return "peaks_counted"
    if where.get("level") == "micro_batch" and how not in ("", "last") and needed <= _TIMED:
        return "micro_batches_timed"
    nested = _NESTED | {"on_padding"}
    return "scopes" if how not in ("", "count") and not nested & needed else "spans"


def _view(name: str, table: str, rows: str) -> str:
    if not rows:
        return name
    return f"({views.query(name, {table: f'(select * from {table} where {rows})'})})"  # noqa: S608  (our own names)


def table_of(name: str) -> Table:
    """The declaration of a live table; of one that isn't declared, what the row type that a recorder brought says.

    Args:
        name: Of the table.

    Returns:
        Its columns.

    Raises:
        UnknownNameError: Nobody has told this process of such a row type.
    """
    kind = row_type(name)
    if name not in LIVE and kind is None:
        raise UnknownNameError.of("table", name, LIVE)
    return LIVE[name] if kind is None or name in LIVE else of_row_type(kind)


def _column(table: str, name: str) -> str:
    if name == "who":  # every view has what it is made of
        return "who(rank, process)"
    derived = table_of(table).derived.get(name)
    if derived is None or (table == "spans" and name == "duration"):  # the view has it, exact in nanoseconds
        return f'"{name}"'
    return _formula(table, derived.formula)


def _formula(table: str, formula: Formula) -> str:
    if isinstance(formula, tuple):
        how, left, right = formula[0], *(_formula(table, one) for one in formula[1:])
        return f"({left} / nullif({right}, 0))" if how == "/" else f"({left} {how} {right})"
    return _column(table, formula) if isinstance(formula, str) else repr(formula)


def _condition(table: str, name: str, ask: Any) -> str:
    """What a ``where`` asks of a column, as a condition that is never NULL."""
    if ask is None:
        return f"({_column(table, name)}) is null"
    if isinstance(ask, dict):
        return f"not ({_condition(table, name, ask['not'])})"
    column = table_of(table).columns.get(name)
    derived = table_of(table).derived.get(name)
    if isinstance(derived, Derived) or (column is not None and column.unit != "word"):
        asked = ", ".join(repr(float(one)) for one in listed(ask))
        return f"coalesce(({_column(table, name)})::double in ({asked}), false)"
    texts = [str(one) for one in listed(ask)]
    parts = [f"""starts_with("{name}", {quoted(one[:-1])})""" for one in texts if one.endswith("*")]
    parts += [f'"{name}" = {quoted(one)}' for one in texts if not one.endswith("*")]
    parts += [f'"{name}" is null'] if "" in texts else []
    return f"coalesce({' or '.join(parts)}, false)"


def _list(names: Sequence[str], of: str = "") -> str:
    return ", ".join(f'{of}"{name}"' for name in names)
