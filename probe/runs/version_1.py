"""Version 1 of the rows, read by mapping names: what was written by an older probe stands here under today's names.

A row of version 1 has neither ``attempt`` nor ``process``. All was one attempt then, and who wrote a row is found
from its rank and its time: the process of that rank that had begun last. A run that was begun by an older probe, which
its run.json tells, may hold rows of both versions, as a newer process may go on in it.

Another package that renames a column, a value or a metric's key adds a line to one of the three tables below.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from probe.records import ROW_TYPES, TABLES, Row
from probe.runs import layout
from probe.sql import Sql, identifier, joined, literal, sql

if TYPE_CHECKING:
    import pyarrow

VERSION: Final = 1

#: By table: what a column is called now → what version 1 called it.
COLUMNS: Final[Mapping[str, Mapping[str, str]]] = {"memory": {"non_torch_bytes": "not_torch_bytes"}}

#: Columns that every row has now and no row of version 1 had.
ADDED: Final = ("attempt", "process")

#: Keys of metrics: a pattern of the old one → what takes its place. All of them are tried, in this order.
KEYS: Final[tuple[tuple[str, str], ...]] = (
    (r"^probe/over_ranks/imbalance_ratio$", "probe/across_ranks/rank_imbalance_ratio"),
    (r"^probe/over_ranks/lockstep_ratio$", "probe/across_ranks/sync_wait_ratio"),
    (r"^probe/over_ranks/padding_ratio$", "probe/across_ranks/padding_tax_ratio"),
    (r"^probe/over_ranks/", "probe/across_ranks/"),
    (r"^(probe/(across_ranks/)?token_balance/)(workload_)?imbalance_ratio", r"\1micro_batch_\3imbalance_ratio"),
    (r"^(probe/(across_ranks/)?padding_tax/)ratio", r"\1rank_ratio"),
    (r"^(probe/(across_ranks/)?token_balance/)tokens", r"\1rank_tokens"),
    (r"^(probe/(across_ranks/)?memory/)not_torch_gib", r"\1non_torch_gib"),
    (r"^(probe/(across_ranks/)?padding_tax/)imposed_width/", r"\1fixed_width/"),
    (r"^(probe/(across_ranks/)?padding_tax/)padding_rows/", r"\1filler_rows/"),
)

#: By table and column: a pattern of the old value → what takes its place.
VALUES: Final[Mapping[str, Mapping[str, tuple[tuple[str, str], ...]]]] = {
    "padding": {
        "cause": ((r"^imposed_width$", "fixed_width"), (r"^padding_rows$", "filler_rows")),
        "reason": ((r"^imposed_width\b", "fixed_width"),),
    },
    "scalars": {"key": KEYS},
}


class Writer(NamedTuple):
    """A process of version 1, under the name that it has now."""

    rank: int
    since_ns: int  #: wall-clock time of its first row
    process: str


def process_name(rank: int, number: int) -> str:
    """What a process is called: by its rank, and by a number where it took the place of an earlier one.

    >>> process_name(3, 0), process_name(3, 2)
    ('rank-00003', 'rank-00003.2')
    """
    return layout.process_name(layout.place_of_rank(rank), number)


def renamed(value: str, rules: Sequence[tuple[str, str]]) -> str:
    """``value`` by today's names.

    >>> renamed("probe/over_ranks/lockstep_ratio", KEYS), renamed("loss/over_ranks", KEYS)
    ('probe/across_ranks/sync_wait_ratio', 'loss/over_ranks')
    """
    for pattern, text in rules:
        value = re.sub(pattern, text, value)
    return value


def writers(processes: pyarrow.Table) -> list[Writer]:
    """The processes of version 1, by rank and time.

    Args:
        processes: Rows of the table ``process``, of any version.
    """
    told = zip(*(processes[name].to_pylist() for name in ("rank", "wall_ns", "pid", "schema_version")), strict=True)
    numbers: dict[int, itertools.count[int]] = defaultdict(itertools.count)
    places = sorted({(rank, since_ns, pid) for rank, since_ns, pid, version in told if version == VERSION})
    return [Writer(rank, since_ns, process_name(rank, next(numbers[rank]))) for rank, since_ns, _ in places]


# ---------------------------------------------------------------------------------------------------------- a row

_CONVERT: Final[Any] = functools.reduce(operator.or_, ROW_TYPES)


def decode(line: bytes) -> Row | None:
    """The row that a line of version 1 holds, without a process; see :func:`probe.runs.lines.decode`.

    Raises:
        msgspec.MsgspecError: The line isn't a row.
        UnicodeDecodeError: The line isn't text.
    """
    fields = msgspec.json.decode(line, type=dict[str, Any])
    table = fields.get("table")
    if isinstance(table, str) and table not in TABLES:
        return None
    for new, old in COLUMNS.get(str(table), {}).items():
        if old in fields:
            fields[new] = fields.pop(old)
    for name, rules in VALUES.get(str(table), {}).items():
        if isinstance(fields.get(name), str):
            fields[name] = renamed(fields[name], rules)
    row: Row = msgspec.convert(fields, _CONVERT, strict=False)
    return row


# ------------------------------------------------------------------------------------------------------- columns


def upgraded(table: str, found: pyarrow.Table) -> pyarrow.Table:
    """``found`` with today's names of columns and values, where its rows are of version 1. ``process`` stays null.

    Args:
        table: Whose rows they are.
        found: Columns of either version, or of both side by side.
    """
    found = _columns(found, COLUMNS.get(table, {}))
    old = _is_old(found)
    for name, rules in VALUES.get(table, {}).items():
        if name in found.column_names:
            found = _replaced(found, name, _values(found[name], rules, old))
    return found


def _columns(found: pyarrow.Table, names: Mapping[str, str]) -> pyarrow.Table:
    import pyarrow.compute as pc

    for new, old in names.items():
        if old not in found.column_names:
            continue
        values = pc.coalesce(found[new], found[old]) if new in found.column_names else found[old]
        found = found.drop_columns([old])
        found = _replaced(found, new, values) if new in found.column_names else found.append_column(new, values)
    return found


def _is_old(found: pyarrow.Table) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if "process" in found.column_names:
        return pc.is_null(found["process"])
    return pa.repeat(True, len(found))


def _values(values: Any, rules: Sequence[tuple[str, str]], old: Any) -> Any:
    import pyarrow.compute as pc

    changed = values
    for pattern, text in rules:
        changed = pc.replace_substring_regex(changed, pattern, text)
    return pc.if_else(old, changed, values)


def _replaced(found: pyarrow.Table, name: str, values: Any) -> pyarrow.Table:
    return found.set_column(found.column_names.index(name), name, values)


def attributed(found: pyarrow.Table, known: Sequence[Writer]) -> pyarrow.Table:
    """``found`` with the process of each row that says none, and the first attempt.

    Args:
        found: Columns of today, ``rank`` and ``wall_ns`` among them.
        known: What :func:`writers` found in the run.
    """
    import pyarrow.compute as pc

    if not found["process"].null_count:
        return found
    names = pc.binary_join_element_wise("rank-", _five_digits(found["rank"]), "")
    for one in known:
        if "." in one.process:  # the first of its rank is there already
            later = pc.and_kleene(pc.equal(found["rank"], one.rank), pc.greater_equal(found["wall_ns"], one.since_ns))
            names = pc.if_else(pc.fill_null(later, False), one.process, names)
    found = _replaced(found, "attempt", pc.fill_null(found["attempt"], 1))
    return _replaced(found, "process", pc.coalesce(found["process"], names))


def _five_digits(ranks: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = pc.cast(ranks, pa.string())
    return pc.if_else(pc.less(ranks, 100_000), pc.utf8_lpad(texts, 5, "0"), texts)


# ----------------------------------------------------------------------------------------------------------- SQL


def selection(table: str, columns: Sequence[str], known: Sequence[Writer]) -> Sql:
    """What to select from Parquet files of either version, :func:`old_columns` included, to get today's ``columns``."""
    return joined(
        sql("{value} as {name}", value=_expression(table, name, known), name=identifier(name)) for name in columns
    )


def old_columns(table: str) -> dict[str, str]:
    """Old names of columns of ``table``, with the names that they have now."""
    return {old: new for new, old in COLUMNS.get(table, {}).items()}


def _expression(table: str, name: str, known: Sequence[Writer]) -> Sql:
    if name == "process":
        return _process(known)
    if name == "attempt":
        return Sql('coalesce("attempt", 1)')
    own, rules = identifier(name), VALUES.get(table, {}).get(name, ())
    if name in COLUMNS.get(table, {}):
        return sql("coalesce({new}, {old})", new=own, old=identifier(COLUMNS[table][name]))
    expression = own
    for pattern, text in rules:
        expression = sql(
            "regexp_replace({value}, {pattern}, {text})",
            value=expression,
            pattern=literal(pattern),
            text=literal(text),
        )
    return sql('if("process" is null, {old}, {new})', old=expression, new=own) if rules else own


def _process(known: Sequence[Writer]) -> Sql:
    """What the process of a row is: with a number where it took the place of an earlier one."""
    found = Sql("format('rank-{:05d}', rank)")
    cases = [
        sql(
            "when rank = {rank} and wall_ns >= {since_ns} then {process}",
            rank=one.rank,
            since_ns=one.since_ns,
            process=literal(one.process),
        )
        for one in reversed(known)
        if "." in one.process
    ]
    if cases:
        found = sql("case {cases} else {first} end", cases=joined(cases, " "), first=found)
    return sql('coalesce("process", {found})', found=found)


def quoted(text: str) -> Sql:
    """``text`` as an SQL literal.

    >>> quoted("it's")
    "'it''s'"
    """
    return literal(text)
