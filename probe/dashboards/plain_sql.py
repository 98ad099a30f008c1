"""The tables, views and quantities of a run as SQL files that DuckDB runs as they are, without probe.

They are made of what probe itself asks: the row types, ``views.sql`` and ``quantities.yaml``. The files stand in
``dashboards/sql`` and in the wheel (``python docs/make_sql.py`` writes them); :func:`folder` says where.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Final

from probe.dashboards import compile as made_sql
from probe.dashboards.quantities import quantities
from probe.errors import MissingKeyError
from probe.records import TABLES
from probe.runs import statements, views
from probe.runs.columns import columns
from probe.runs.kept import START
from probe.runs.snapshot import STEPPED
from probe.sql import Sql, identifier, joined, literal, sql

#: The files, in the order in which they are to be read.
FILES: Final = ("tables", "views", "quantities")

#: Views that take their rows from a place in the text around them: they are written out there.
WITHIN: Final = frozenset({"scopes_levelled", "batches_run"})

_ABOUT: Final = {
    "tables": """\
-- The tables of a run, for DuckDB alone: `set variable run = '/runs/grpo/first'` comes first, with the run's directory.
-- It reads the run's Parquet files: what is still in JSON lines (of a run that is being written) isn't in there.
--
-- Of several launches an attempt hides the rows of earlier ones from its first step on, and a rank that a process
-- learnt late stands on all of its rows. What is shown is worked out here, once: read the file again where the run has
-- grown.
""",
    "views": """\
-- What the tables say, worked out: `tables.sql` comes before. Each view is told of in probe/runs/views.sql.
""",
    "quantities": """\
-- Each quantity by step: `tables.sql` and `views.sql` come before. A quantity of bytes is the largest of the run, one
-- that is counted its sum, and any other the median of its steps.
""",
}


def folder() -> Path:
    """Where the files are: packed into an installed wheel, else in the source tree beside the package.

    Raises:
        MissingKeyError: They are in neither place.
    """
    packed = Path(str(resources.files("probe"))) / "_dashboards" / "sql"
    beside = Path(__file__).resolve().parents[2] / "dashboards" / "sql"
    for one in (packed, beside):
        if (one / "tables.sql").is_file():
            return one
    raise MissingKeyError(f"SQL files: neither {packed} nor {beside} is there; install probe-rl again")


def texts() -> dict[str, str]:
    """What each of the files holds, by its name."""
    parts = {"tables": _tables(), "views": _views(), "quantities": _quantities()}
    return {name: _ABOUT[name] + "\n" + "\n\n".join(parts[name]) + "\n" for name in FILES}


def _tables() -> Iterable[Sql]:
    yield joined(map(_files, TABLES), "\n")
    for table in TABLES:
        yield _rows(table)
    yield Sql(
        """create or replace table late_ranks as
select process, max(rank) as rank from process_rows
where process in (select process from process_rows where rank is null) group by process having max(rank) is not null;"""
    )
    said = [sql("select attempt, step, wall_ns from {rows}", rows=Sql(f"{table}_rows")) for table in STEPPED]
    yield sql(
        """create or replace table attempts_shown as
with told as ({said}),
firsts as (select attempt, min(step) as step from told where step is not null group by attempt),
limits as (
  select mine.attempt, min(own.step) as own, min(later.step) as before_step
  from (select distinct attempt from process_rows) mine join firsts later on later.attempt > mine.attempt
       left join firsts own on own.attempt = mine.attempt group by mine.attempt)
select limits.attempt, if(own < before_step, before_step, 0) as before_step,
       if(own < before_step, min(wall_ns) filter (told.step >= before_step), -9223372036854775808) as before_ns
from limits left join told on told.attempt = limits.attempt group by limits.attempt, own, before_step;""",
        said=joined(said, "\n  union all "),
    )
    for table in TABLES:
        yield _shown(table)
    yield sql("create or replace macro {who};", who=statements.WHO)


def _files(table: str) -> Sql:
    return sql(
        "set variable {files} = (select list(file) from glob(getvariable('run') || {paths}));",
        files=Sql(f"{table}_files"),
        paths=literal(f"/parts/{table}-*.parquet"),
    )


def _rows(table: str) -> Sql:
    """The rows as they were written. Where a run has none, another file is named, of which nothing is taken."""
    kinds = (
        sql(
            "{name}: {name: {name}, type: {kind}, default_value: NULL}",
            name=literal(one.name),
            kind=literal(statements.duck(one.type)),
        )
        for one in columns(table)
    )
    return sql(
        """create or replace view {rows} as
select {distinct}{selected}
from read_parquet(coalesce(getvariable({files}), getvariable('process_files')), hive_partitioning = false,
  schema = map {{kinds}})
where getvariable({files}) is not null;""",
        rows=Sql(f"{table}_rows"),
        distinct=Sql("distinct " if table == "process" else ""),
        selected=statements.selected_columns(table),
        files=literal(f"{table}_files"),
        kinds=joined(kinds, ",\n  "),
    )


def _shown(table: str) -> Sql:
    stepped = any(one.name == "step" for one in columns(table))
    late = Sql("if(a.before_ns is null, false, coalesce(r.wall_ns >= a.before_ns, true))")
    hidden = sql("if(r.step is null, {late}, r.step >= a.before_step)", late=late) if stepped else late
    newest = "\nqualify r.process = '' or revision = max(revision) over (partition by r.process, time_ns)"
    return sql(
        """create or replace view {view} as
select r.* replace (coalesce(r.rank, l.rank) as rank)
from {rows} r left join late_ranks l on l.process = r.process
     left join attempts_shown a on a.attempt = r.attempt
where a.attempt is null or not {hidden}{newest};""",
        view=identifier(statements.VIEWS.get(table, table)),
        rows=Sql(f"{table}_rows"),
        hidden=hidden,
        newest=Sql(newest if table == "process" else ""),
    )


def _views() -> Iterable[Sql]:
    named = {name: name for name in (*views.texts(), *views.SOURCES) if name not in WITHIN}
    for name in views.texts():
        inside = {one: place for one, place in named.items() if one != name}
        if name in WITHIN:
            continue
        query = views.query(name, inside, START)
        yield sql("create or replace view {name} as\n{query};", name=Sql(name), query=query)


def _quantities() -> Iterable[Sql]:
    for name, spec in quantities().items():
        yield sql(
            "{told}\ncreate or replace view {name} as\n{query};",
            told=Sql(f"-- {spec['title']} ({spec['unit']}). {spec['means']['good']}"),
            name=Sql(f"quantity_{name}"),
            query=made_sql.by_step(spec),
        )
