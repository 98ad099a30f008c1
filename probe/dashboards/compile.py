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
from probe.sql import Sql, identifier, joined, literal, sql

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


def by_step(spec: Mapping[str, Any], rows: str = "", *, outside: bool = False) -> Sql:
    """The query for the value of ``spec`` at each step; where it has several series (``by``), the largest of them.

    Args:
        spec: A series spec.
        rows: An SQL condition on step, rank or process; only rows that it holds for are looked at.
        outside: Whether rows outside any step have a line too, the last, with NULL for the step.

    Returns:
        A query with the columns step and value (a double, NULL where there is none), in order of steps.
    """
    held = Sql("true" if outside else "step is not null")
    found = _by_step(spec, Sql(rows))
    return sql("select step, value from ({found}) where {held} order by step nulls last", found=found, held=held)


def _by_step(spec: Mapping[str, Any], rows: Sql) -> Sql:
    if pairs(spec):
        both = parts(spec, rows)
        return sql("select step, max(over / nullif(under, 0)) as value from ({both}) group by step", both=both)
    values = _reduced(spec, _keys(spec), rows)
    over = sql("select step, max(value) as value from ({values}) group by step", values=values)
    if "divide" not in spec:
        return over
    return sql(
        """select o.step as step, o.value / nullif(u.value, 0) as value
        from ({over}) o left join ({under}) u on o.step is not distinct from u.step""",
        over=over,
        under=_by_step(spec["divide"], rows),
    )


def parts(spec: Mapping[str, Any], rows: str = "") -> Sql:
    """The query for what is divided and what it is divided by, of each series of ``spec`` at each step.

    Args:
        spec: A series spec with ``divide``, where both have the same ``by``.
        rows: As in :func:`by_step`.

    Returns:
        A query with the columns step, those of ``by``, over and under (doubles, NULL where there is none).
    """
    keys = _keys(spec)
    same = (sql("o.{name} is not distinct from u.{name}", name=identifier(one)) for one in keys)
    return sql(
        """select {keys}, o.value as over, u.value as under from ({over}) o
        left join ({under}) u on {same}""",
        keys=_list(keys, "o."),
        over=_reduced(spec, keys, Sql(rows)),
        under=_reduced(spec["divide"], keys, Sql(rows)),
        same=joined(same, " and "),
    )


def total(spec: Mapping[str, Any], rows: str = "") -> Sql:
    """The query for the sum of ``spec`` over the run, rows outside any step included; the largest for reduce: max.

    Args:
        spec: A series spec.
        rows: As in :func:`by_step`.

    Returns:
        A query with one row and the column value, NULL where the largest of nothing is asked for.
    """
    alone = {name: value for name, value in spec.items() if name != "divide"}
    how = Sql("max(value)" if spec.get("reduce", "max") == "max" else "coalesce(sum(value), 0)")
    return sql("select ({how})::double as value from ({found})", how=how, found=_by_step(alone, Sql(rows)))


def series(spec: Mapping[str, Any], rows: str = "") -> Sql:
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
        inner = _reduced(one, keys, Sql(rows))
        if pairs(spec) and across == ["step"]:
            inner = sql(
                "select {keys}, over / nullif(under, 0) as value from ({both})",
                keys=_list(keys),
                both=parts(one, rows),
            )
        elif "divide" in spec and across == ["step"]:
            inner = sql(
                """select {keys}, o.value / nullif(u.value, 0) as value from ({over}) o
                left join ({under}) u on o.step is not distinct from u.step""",
                keys=_list(keys, "o."),
                over=inner,
                under=_by_step(spec["divide"], Sql(rows)),
            )
        name = literal(str(next(iter(listed(one.get("y"))), "rows")))
        found.append(sql("select {keys}, {name} as y, value from ({inner})", keys=_list(keys), name=name, inner=inner))
    return joined(found, " union all by name ")


def largest(spec: Mapping[str, Any], columns: Sequence[str], rows: str = "") -> Sql:
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
    order = [Sql("v desc"), *map(identifier, wanted)]
    made = [sql("first({name} order by {order}) as {name}", name=identifier(one), order=order) for one in wanted]
    return sql(
        "select {made} from ({found}) group by {keys}",
        made=[_list(keys), *made],
        found=_rows(spec, list(dict.fromkeys([*keys, *wanted])), Sql(rows)),
        keys=_list(keys),
    )


def rows_of(
    table: str, columns: Sequence[str], where: Mapping[str, Any] | None = None, rows: str = "", start_ns: int = 0
) -> Sql:
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
    conditions += [Sql(f"({rows})")] if rows else []
    return sql(
        "select {made} from {source} where {held}",
        made=[_named(table, one) for one in columns],
        source=_source(table, {*columns, *(where or {})}, where or {}, Sql(rows), start_ns),
        held=joined(conditions, " and ") or Sql("true"),
    )


#: Stands for the step in a query for a picture of one step.
STEP: Final = Sql("{step}")


def numbers(block: Mapping[str, Any]) -> Sql:
    """The query for the numbers that a mark of the live panel draws.

    Args:
        block: A ``live:`` block.

    Returns:
        A query; of a picture of one step :data:`STEP` stands for its number. Empty for tiles, which are several.
    """
    mark, rows = block["mark"], sql("step = {number}", number=STEP) if block.get("of") == "step" else ""
    if mark == "tiles":
        return Sql("")
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


def _reduced(spec: Mapping[str, Any], keys: Sequence[str], rows: Sql) -> Sql:
    """The value of each group of ``keys``: the largest over ``per``, or the smallest over ``least``, by ``scale``."""
    inner = list(dict.fromkeys([*keys, *listed(spec.get("per")), *listed(spec.get("least"))]))
    value = _of_groups(spec, inner, rows)
    names = _list(keys)
    if len(inner) > len(keys):
        which = Sql("min" if "least" in spec else "max")
        value = sql(
            "select {names}, {which}(value) as value from ({value}) group by {names}",
            names=names,
            which=which,
            value=value,
        )
    scale = spec.get("scale", 1)
    if scale == 1:
        return value
    return sql("select {names}, value * {scale} as value from ({value})", names=names, scale=float(scale), value=value)


def _of_groups(spec: Mapping[str, Any], keys: Sequence[str], rows: Sql) -> Sql:
    how = str(spec.get("reduce", "max"))
    each, slots = listed(spec.get("each")), listed(spec.get("slots"))
    found, names = _rows(spec, list(dict.fromkeys([*keys, *each, *slots])), rows), _list(keys)
    if "first" in spec:
        found = sql(
            "select * from ({found}) qualify preference = min(preference) over (partition by {names})",
            found=found,
            names=names,
        )
    if how == "ratio":
        return sql(
            "select {names}, sum(v)::double / nullif(sum(u)::double, 0) as value from ({found}) group by {names}",
            names=names,
            found=found,
        )
    total = _total(spec)
    if each:
        found = sql(
            "select {parts}, {total} as v from ({found}) group by {parts}",
            parts=_list(list(dict.fromkeys([*keys, *each, *slots]))),
            total=total,
            found=found,
        )
    if how == "imbalance":
        return _imbalance(found, keys, slots, least=2 if "rank" in each else 1)
    reduced = Sql(_REDUCED[how].format(total=total))
    return sql(
        "select {names}, {reduced} as value from ({found}) group by {names}", names=names, reduced=reduced, found=found
    )


def _total(spec: Mapping[str, Any]) -> Sql:
    """How the values v are summed: whole numbers and times exactly, other floats from the smallest on.

    DuckDB's threads bring rows in another order each time, and the last bit of a sum of floats goes with that order.
    A page of the same run is the same page.
    """
    table, ys = table_of(str(spec["table"])), listed(spec.get("y"))
    if not ys or (
        ys[0] in table.columns and (table.columns[ys[0]].dtype != "f8" or table.columns[ys[0]].unit in _WHOLE_UNITS)
    ):
        return Sql("sum(v)")
    return Sql("sum(v::decimal(28, 9))" if ys[0] == "duration" else "sum(v order by v)")  # times are whole nanoseconds


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


def _imbalance(found: Sql, keys: Sequence[str], slots: Sequence[str], least: int) -> Sql:
    """Sums over the slots of the largest and of the mean; NULL where no slot holds ``least`` values to compare. The
    means are summed as decimals: of floats the last bits change with the order in which threads bring them.
    """
    if not slots:
        return sql(
            """select {keys}, if(sum(v) > 0 and count(v) >= {least}, {value}, null) as value
            from ({found}) group by {keys}""",
            keys=_list(keys),
            least=least,
            value=Sql("max(v)::double * count(v) / nullif(sum(v)::double, 0)"),
            found=found,
        )
    slot = sql(
        """select {groups}, max(v) as largest, (sum(v)::double / count(v))::decimal(38, 12) as mean,
        count(v) as compared from ({found}) group by {groups}""",
        groups=_list(list(dict.fromkeys([*keys, *slots]))),
        found=found,
    )
    return sql(
        """select {keys}, if(sum(mean) > 0 and max(compared) >= {least}, {value}, null) as value
        from ({slot}) group by {keys}""",
        keys=_list(keys),
        least=least,
        value=Sql("sum(largest)::double / sum(mean)::double"),
        slot=slot,
    )


def _rows(spec: Mapping[str, Any], names: Sequence[str], rows: Sql) -> Sql:
    """The rows that count, with ``names``, the value v and (of a ratio) what it is divided by, u."""
    table, ys = str(spec["table"]), listed(spec.get("y"))
    where = spec.get("where", {})
    how = str(spec.get("reduce", "max"))
    needed = {*names, *ys, *where}
    source = _source(table, needed, where, rows, how=how)
    value = _column(table, ys[0]) if ys else Sql("1")
    conditions = [_condition(table, name, ask) for name, ask in where.items()]
    conditions += [sql("({rows})", rows=rows)] if rows else []
    conditions += [sql("{value} is not null and not isnan(({value})::double)", value=value)] if ys else []
    by_rank = "rank" in (*listed(spec.get("each")), *listed(spec.get("least")))
    conditions += [Sql("rank is not null")] if by_rank else []
    made = [_named(table, one) for one in names]
    made.append(sql("{value} as v", value=value))
    if how == "ratio":
        made.append(sql("{value} as u", value=_column(table, ys[1])))
    if "first" in spec:
        texts, name = map(literal, where[spec["first"]]), identifier(spec["first"])
        made.append(sql("list_position([{texts}], {name}) as preference", texts=texts, name=name))
    if how == "last":
        made.append(sql("{order} as at", order=Sql(_ORDER.get(table, "wall_ns"))))
    held = joined(conditions, " and ") or Sql("true")
    return sql("select {made} from {source} where {held}", made=made, source=source, held=held)


# -------------------------------------------------------------------------------------------------- rows and columns


def _source(table: str, needed: set[str], where: Mapping[str, Any], rows: Sql, start_ns: int = 0, how: str = "") -> Sql:
    """What stands after ``from``: the cheapest view that has the columns, over the rows that are asked for."""
    if table == "spans":
        sources = {"memory": sql("(select * from memory where ({rows}) or step is null)", rows=rows)} if rows else {}
        return sql("({view})", view=views.query(_spans(needed, where, how), sources, start_ns))
    if table == "micro" and needed & {"round", "once"}:
        return _view("micro_batches_counted", "micro_batches", rows)
    if table == "padding":
        tax = how in ("sum", "ratio") and where.get("counted") == 2 and not _ALL_FIELDS & needed
        if not tax or ("cause" in needed and _WHOLE_BATCHES & needed):
            return _view("padding_counted", "padding", rows)
        widest = _view("padding_widest", "padding", rows)
        return sql("(select * from {widest} where cause is not null)", widest=widest) if "cause" in needed else widest
    live = table_of(table)
    return sql(
        "(select {columns}{more} from {table} where {held})",
        columns=select_list(live, start_ns),
        more=Sql("" if "wall_ns" in live.columns else ", wall_ns"),
        table=Sql(live.rows),
        held=WHERE.get(table, Sql("true")),
    )


def _spans(needed: set[str], where: Mapping[str, Any], how: str) -> str:
    if how == "max" and where.get("maker") == 1 and needed <= _WHOLE:
        return "peaks_counted"
    if where.get("level") == "micro_batch" and how not in ("", "last") and needed <= _TIMED:
        return "micro_batches_timed"
    nested = _NESTED | {"on_padding"}
    return "scopes" if how not in ("", "count") and not nested & needed else "spans"


def _view(name: str, table: str, rows: Sql) -> Sql:
    if not rows:
        return Sql(name)
    chosen = sql("(select * from {table} where {rows})", table=Sql(table), rows=rows)
    return sql("({view})", view=views.query(name, {table: chosen}))


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


def _named(table: str, name: str) -> Sql:
    return sql("{value} as {name}", value=_column(table, name), name=identifier(name))


def _column(table: str, name: str) -> Sql:
    if name == "who":  # every view has what it is made of
        return Sql("who(rank, process)")
    derived = table_of(table).derived.get(name)
    if derived is None or (table == "spans" and name == "duration"):  # the view has it, exact in nanoseconds
        return identifier(name)
    return _formula(table, derived.formula)


def _formula(table: str, formula: Formula) -> Sql:
    if isinstance(formula, tuple):
        how, left, right = Sql(formula[0]), *(_formula(table, one) for one in formula[1:])
        if how == "/":
            return sql("({left} / nullif({right}, 0))", left=left, right=right)
        return sql("({left} {how} {right})", left=left, how=how, right=right)
    return _column(table, formula) if isinstance(formula, str) else literal(formula)


def _condition(table: str, name: str, ask: Any) -> Sql:
    """What a ``where`` asks of a column, as a condition that is never NULL."""
    if ask is None:
        return sql("({value}) is null", value=_column(table, name))
    if isinstance(ask, dict):
        return sql("not ({held})", held=_condition(table, name, ask["not"]))
    column = table_of(table).columns.get(name)
    derived = table_of(table).derived.get(name)
    if isinstance(derived, Derived) or (column is not None and column.unit != "word"):
        asked = [Sql(repr(float(one))) for one in listed(ask)]
        return sql("coalesce(({value})::double in ({asked}), false)", value=_column(table, name), asked=asked)
    texts, own = [str(one) for one in listed(ask)], identifier(name)
    parts = [sql("starts_with({own}, {text})", own=own, text=literal(one[:-1])) for one in texts if one.endswith("*")]
    parts += [sql("{own} = {text}", own=own, text=literal(one)) for one in texts if not one.endswith("*")]
    parts += [sql("{own} is null", own=own)] if "" in texts else []
    return sql("coalesce({held}, false)", held=joined(parts, " or "))


def _list(names: Sequence[str], of: str = "") -> Sql:
    return joined(Sql(of + identifier(name)) for name in names)
