"""The live tables of a run that is large already: a bounded, peak-preserving choice of its rows by SQL.

Reading millions of rows one by one would keep a person waiting. The result is what reading them all would have given,
where a table has no more rows than it may keep; where it has more, whole steps or the extremes of time slices stay.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from probe.dashboards.columns import LIVE, WHERE, Table, of_unknown, select_list
from probe.live.arrow import factorized, filled
from probe.live.blocks import fit, limits_of
from probe.live.intake import Intake
from probe.live.nesting import REMEMBERED, Cut, Span
from probe.live.tables import ROWS, Words
from probe.live.thinning import Block
from probe.records import PLANNED_SOURCES, Process, who
from probe.runs import row_types, views
from probe.runs.files import RunFiles
from probe.runs.follower import Follower
from probe.runs.snapshot import Snapshot
from probe.runs.statements import VIEWS
from probe.runs.visibility import Shown, sentence
from probe.sql import Sql, identifier, joined, literal, sql

if TYPE_CHECKING:
    import pyarrow as pa

#: The columns of a span that tell how far its process has come.
_PROGRESS: Final = ("process", "step", "begin", "end")

#: How many rows a step has, where each row is one.
_COUNTED: Final = Sql("count(*)")

#: Runs below this size are read row by row, which needs neither DuckDB nor pandas in this process.
LARGE_BYTES: Final = 4 * 2**20


def is_large(files: RunFiles) -> bool:
    """Whether a run is better opened by :func:`load`."""
    segments, parts = files.look()
    if parts:
        return True
    total = 0
    for segment in segments:
        try:
            total += files.system.size(f"{files.root}/{segment.name}") or 0
        except FileNotFoundError:  # rolled over meanwhile, so it was large
            return True
        if total > LARGE_BYTES:
            return True
    return False


class Loaded(NamedTuple):
    """A run as it was at one moment.

    Attributes:
        blocks: The live tables' rows.
        follower: For what comes next.
        left_out: How many rows were left out.
        shown: Which of the rows to come are shown.
        repeated: Which steps were recorded more than once, as a sentence; "" where none were.
        attempts: Number, first and last step of each attempt, where there are several.
    """

    blocks: dict[str, Block]
    follower: Follower
    left_out: int
    shown: Shown
    repeated: str
    attempts: list[tuple[int, int, int]]


def load(files: RunFiles, intake: Intake, words: Words, limit: int = ROWS, attempt: int | None = None) -> Loaded:
    """The run as it is now.

    Args:
        files: Of the run.
        intake: The intake that learns what it would know after reading every row.
        words: The store that gets the texts.
        limit: The most rows of a table.
        attempt: The one that is shown; None is what the newest has not hidden of each.

    Returns:
        What was read.

    Raises:
        RunError: Its files can't be read.
    """
    snapshot = Snapshot(files, attempt)
    snapshot.refresh()
    loader = _Loader(snapshot, intake, words, limit)
    follower = Follower.from_snapshot(files, snapshot, loader.processes)
    shown, repeated = snapshot.shown_from_now(), sentence(snapshot.hidden())
    return Loaded(loader.blocks(), follower, loader.left_out, shown, repeated, snapshot.extents())


def rows_of_step(snapshot: Snapshot, intake: Intake, words: Words, step: int) -> dict[str, Block]:
    """The rows of one step, for a page that has chosen one that the live tables had to forget.

    Args:
        snapshot: Of the run.
        intake: The intake, which is left as it is.
        words: The store that gets the texts.
        step: Its number.

    Returns:
        The live tables' rows; tables without any are left out.
    """
    return _Loader(snapshot, intake, words, ROWS, step).blocks_of_step()


class _Loader:
    def __init__(self, snapshot: Snapshot, intake: Intake, words: Words, limit: int, step: int | None = None) -> None:
        self.left_out = 0
        self._step = step  # the one whose rows alone are read; None reads all
        self._snapshot = snapshot
        self._intake = intake
        self._words = words
        self._limit = limit
        if step is not None:
            return
        self.processes = self._processes()
        intake.clocks.begin(self.processes)
        brought = filter(None, map(row_types.row_type, snapshot.tables))
        intake.found_tables.update(of_unknown(brought))

    def blocks(self) -> dict[str, Block]:
        tables = {**LIVE, **self._intake.found_tables}
        found = {name: self._rows(name, table) for name, table in tables.items()}
        self._learn(found)
        return {name: block for name, block in found.items() if len(next(iter(block.values())))}

    def blocks_of_step(self) -> dict[str, Block]:
        found = {name: self._rows(name, table) for name, table in LIVE.items()}
        kept = {
            name: {one: values[block["step"] == self._step] for one, values in block.items()}
            for name, block in found.items()
        }
        return {name: block for name, block in kept.items() if len(block["step"])}

    def _rows(self, name: str, table: Table) -> Block:
        worked_out = {"spans": self._spans, "micro": self._micro, "padding": self._padding}
        sources = ("memory", "calls") if name == "spans" else (table.rows,)
        if not any(map(self._snapshot.rows.may_have, sources)):  # a query costs some 20 ms, even of nothing
            return {column: np.empty(0, one.dtype) for column, one in table.columns.items()}
        make = worked_out.get(name)
        return self._block(table, self._extremes(name, table) if make is None else make())

    # -------------------------------------------------------------------------------------------- asking

    def _ask(self, text: str) -> pa.Table:
        """The answer to a question, not as a frame: loading pandas takes longer than a kept answer of everything.

        What a whole run is asked when it is opened is the same each time, and kept; what is asked of one step isn't.
        """
        return self._snapshot.answer(text, None, keep=self._step is None)

    def _values(self, text: str) -> dict[str, Any]:
        """The one row of an answer."""
        rows: list[dict[str, Any]] = self._ask(text).to_pylist()
        (row,) = rows
        return row

    def _block(self, table: Table, found: pa.Table) -> Block:
        block: Block = {}
        for name, one in table.columns.items():
            if name == "who" and name not in found.column_names:
                block[name] = self._whos(found)
            elif one.unit == "word":
                block[name] = self._codes(found[name])
            elif one.dtype in ("f8", "f4"):
                block[name] = filled(found[name], math.nan, float).astype(one.dtype)
            else:
                block[name] = filled(found[name], -1, np.int64).clip(*limits_of(one.dtype)).astype(one.dtype)
        return block

    def _whos(self, found: pa.Table) -> Any:
        """What the processes of rows are shown as; a query of views may leave it out."""
        ranks, (numbers, names) = filled(found["rank"], -1, np.int64), factorized(found["process"])
        _, first, places = np.unique(ranks * len(names) + numbers, return_index=True, return_inverse=True)
        pairs = zip(ranks[first].tolist(), numbers[first].tolist(), strict=True)
        told = [who(None if rank < 0 else rank, names[number]) for rank, number in pairs]
        return np.array([self._words.code(one) for one in told], dtype=np.int32)[places]

    def _codes(self, column: pa.ChunkedArray) -> Any:
        numbers, texts = factorized(column)
        return np.array([*(self._words.code(one) for one in texts), -1], dtype=np.int32)[numbers]

    def _count(self, table: str) -> int:
        """How many rows a table has: by a query, as a data set would keep the footers of all files in memory."""
        found = self._values(sql("select count(*) as n from {table}", table=identifier(VIEWS.get(table, table))))
        return int(found["n"])

    def _processes(self) -> list[Process]:
        found = self._ask(
            "select process, rank, pid, time_ns, wall_ns, world_size, host, device, schema_version from processes"
            " order by wall_ns"
        )
        return [Process(**row) for row in found.to_pylist()]

    # ------------------------------------------------------------------------------- what the intake must know

    def _learn(self, blocks: dict[str, Block]) -> None:
        intake = self._intake
        for process in self.processes:  # in the order in which they began: the last one of a rank writes now
            intake.begin_process(process)
        written = [
            sql("select max(step) as step, max(wall_ns) as wall_ns from {table}", table=Sql(VIEWS.get(name, name)))
            for name in self._snapshot.tables
        ]
        found = self._values(
            sql(
                """with written as ({written})
              select (select max(step) from written) as step, (select max(wall_ns) from written) as newest,
              (select coalesce(sum(count), 0)::bigint from incidents where kind = 'dropped_rows') as lost,
              (select list(distinct process) from memory) as measured""",
                written=joined(written, " union all "),
            )
        )
        if found["step"] is not None:
            intake.step = found["step"]
        if found["newest"] is not None:
            intake.newest = (found["newest"] - intake.clocks.start_ns) / 1e9
        intake.lost = found["lost"]
        intake.measured.update(map(self._words.code, found["measured"] or ()))
        memory = blocks["memory"]
        for process in np.unique(memory["process"]).tolist():
            seconds = memory["t"][memory["process"] == process]
            intake.remember_order(process, float(np.nanmax(seconds, initial=-math.inf)))
        intake.rounds.learn(blocks["micro"])
        self._learn_progress(blocks)
        self._learn_padding(blocks["padding"])
        self._learn_scopes(blocks["spans"])

    def _learn_progress(self, blocks: dict[str, Block]) -> None:
        """How far each process has come: of the rows that stay, which those of the newest steps do."""
        done, texts = self._intake.completeness, self._words.texts
        spans = blocks["spans"]
        chosen = (spans["kind"] == self._words.code("step")) & (spans["step"] >= 0)
        for process, *told in zip(*(spans[one][chosen].tolist() for one in _PROGRESS), strict=True):
            done.note_step(texts[process], *told)
        for name in ("spans", "memory"):
            block, time = blocks[name], LIVE[name].time
            latest = np.fmax(block[time[0]], block[time[-1]])
            inside = block["step"] >= 0
            for process, seconds, _ in _latest(block["process"], latest, block["step"]):
                done.hear(texts[process], seconds)
            for process, seconds, step in _latest(*(one[inside] for one in (block["process"], latest, block["step"]))):
                done.hear(texts[process], seconds, step)

    def _learn_padding(self, block: Block) -> None:
        planned = np.isin(block["source"], [self._words.code(one) for one in PLANNED_SOURCES])
        pairs = zip(block["step"][planned].tolist(), block["process"][planned].tolist(), strict=True)
        for step, process in sorted(set(pairs)):
            self._intake.ledger.note_cut(step, process)

    def _learn_scopes(self, block: Block) -> None:
        """Which scopes are open or may change: worked out when rows come, which of a run that has ended none do."""
        intake, cuts, paths = self._intake, self._cuts(), self._paths() if (block["parent"] < 0).any() else []
        chosen = np.isnan(block["end"])
        chosen[-REMEMBERED:] = True
        scopes = {name: values[chosen] for name, values in block.items() if name != "who"}
        # Not by way of this loader: it would keep what was opened to ask in memory for as long as no row comes.
        intake.learn_before_rows(lambda: _restore(intake, cuts, scopes, paths))

    def _cuts(self) -> Iterator[tuple[tuple[int, int, int], Cut]]:
        """The newest batches that were cut, and where."""
        found = self._ask(
            sql(
                """select process, scope_id, micro_batch, batch_id, tokens,
                   coalesce(sequences * width_tokens, -1) as slots, (wall_ns - {start_ns}) / 1e9 as at
            from micro_batches where micro_batch is not null
            order by wall_ns desc, batch_id desc limit {most}""",
                start_ns=self._intake.clocks.start_ns,
                most=REMEMBERED,
            )
        )
        return _each_cut(found, self._codes(found["process"]))

    def _paths(self) -> list[tuple[tuple[int, int], str]]:
        """Where scopes lie of which only the path says so, and what is around them hasn't ended yet."""
        found = self._ask(
            sql(
                """select process, scope_id, around from ({nested})
            where parent_id is null and around is not null order by happened""",
                nested=views.query("scopes_nested"),
            )
        )
        return [((self._words.code(row["process"]), row["scope_id"]), row["around"]) for row in found.to_pylist()]

    # ------------------------------------------------------------------------------------------- choosing rows

    def _steps(self, table: str, score: str, where: Sql, rows: Sql = _COUNTED) -> Sql:
        """The SQL condition for the steps of ``table`` that stay: the newest half, and peaks of the older ones."""
        if self._step is not None:
            return sql("step = {step}", step=self._step)
        if self._count(table) <= self._limit:
            return Sql("true")
        found = self._ask(
            sql(
                """select step, {rows}::bigint as n, coalesce(max({score}), 0)::double as score
            from {table} where {where} and step is not null group by step order by max(wall_ns)""",
                rows=rows,
                score=Sql(score),
                table=Sql(table),
                where=where,
            )
        )
        steps, counts, scores = (found[name].to_pylist() for name in ("step", "n", "score"))
        kept = chosen_steps(counts, scores, self._limit)
        if len(kept) == len(steps):
            return Sql("true")
        self.left_out += sum(counts) - sum(counts[index] for index in kept)
        # Rows without a step stay, as if theirs were one that does: "or" would compare each row with each step.
        numbers = [literal(int(steps[index])) for index in kept]
        return sql("coalesce(step, {last}) in ({numbers})", last=numbers[-1], numbers=numbers)

    def _extremes(self, name: str, table: Table) -> pa.Table:
        """The rows of a table each of which is made of one row: all, or of each time slice and group those with an
        extreme.
        """
        columns, where = select_list(table, self._intake.clocks.start_ns), WHERE.get(name, Sql("true"))
        if self._step is not None:
            where = sql("({where}) and step = {step}", where=where, step=self._step)
        rows = Sql(table.rows)
        source = sql(
            "select {columns}, wall_ns as happened from {rows} where {where}", columns=columns, rows=rows, where=where
        )
        everything = sql("select * from ({source}) order by happened", source=source)
        if self._step is not None or self._count(table.rows) <= self._limit:
            return self._ask(everything)
        group = list(map(Sql, dict.fromkeys((*table.thinning.group, "process"))))
        found = self._values(
            sql(
                """select count(*) as n, count(distinct ({group})) as g, min(wall_ns) as a,
            max(wall_ns) as b from {rows} where {where}""",
                group=group,
                rows=rows,
                where=where,
            )
        )
        if found["n"] <= self._limit:
            return self._ask(everything)
        return self._ask(self._sliced(source, table.thinning.scores, group, found))

    def _sliced(self, source: Sql, scores: Sequence[str], group: Sequence[Sql], extent: dict[str, int]) -> Sql:
        """A query for those rows of ``source`` that hold an extreme of their time slice and group."""
        n, groups = extent["n"], max(extent["g"], 1)
        self.left_out += n - self._limit
        slices = max(1, self._limit // (groups * (len(scores) + 1)))
        first, last = extent["a"], extent["b"]
        return sql(
            """
            with source as ({source}), sliced as (
              select source as row, {columns}
                     least(floor((happened - {first}) * {slices}.0 / {length}), {last_slice}) as slice
              from source),
            picked as (select unnest([{picks}]) as row from sliced group by {keys})
            select * from (select distinct row.* from picked where row is not null) order by happened
            """,
            source=source,
            columns=joined((sql("{name}, ", name=one) for one in group), ""),
            first=first,
            slices=slices,
            length=max(last - first, 1),
            last_slice=slices - 1,
            picks=_picks(scores) if scores else [Sql("any_value(row)")],
            keys=[*group, Sql("slice")],
        )

    # ------------------------------------------------------------------------------------ what many rows make

    def _micro(self) -> pa.Table:
        steps = self._steps("micro_batches", "tokens", Sql("true"))
        counted = views.query("micro_batches_counted", {"micro_batches": _of_steps("micro_batches", steps)})
        return self._ask(sql("select * from ({counted}) order by wall_ns, batch, micro_batch", counted=counted))

    def _padding(self) -> pa.Table:
        rows = Sql("count(distinct (process, source, field, cause))")
        steps = self._steps("padding", "tokens", Sql("true"), rows)
        counted = views.query("padding_counted", {"padding": _of_steps("padding", steps)})
        return self._ask(
            sql("select * from ({counted}) order by step, process, source, field, cause, counted", counted=counted)
        )

    def _spans(self) -> pa.Table:
        steps = self._steps("memory", "peak_allocated_bytes", Sql("edge = 'leave'"))
        chosen = {name: _of_steps(name, steps) for name in ("memory", "micro_batches")}
        spans = views.query("spans", chosen, self._intake.clocks.start_ns)
        return self._ask(sql("select * from ({spans}) order by happened, begin_ns desc", spans=spans))


def _of_steps(table: str, steps: Sql) -> Sql:
    return sql("(select * from {table} where {steps})", table=Sql(table), steps=steps)


def _each_cut(found: pa.Table, processes: npt.NDArray[np.int32]) -> Iterator[tuple[tuple[int, int, int], Cut]]:
    """The batches of an answer, the last one first, and where each was cut."""
    columns = (found[name].to_pylist()[::-1] for name in found.column_names[1:])
    for process, scope, micro_batch, *numbers, at in zip(processes[::-1].tolist(), *columns, strict=True):
        yield (process, scope, micro_batch), Cut(at, *(fit(int(one)) for one in numbers))


def _restore(
    intake: Intake,
    cuts: Iterable[tuple[tuple[int, int, int], Cut]],
    scopes: Block,
    paths: Sequence[tuple[tuple[int, int], str]],
) -> None:
    """Tell an intake of the newest batches and scopes, as if it had read their rows."""
    for slot, cut in cuts:
        intake.nesting.add_cut(slot, cut)
    for values in zip(*(one.tolist() for one in scopes.values()), strict=True):
        span = Span(**dict(zip(scopes, values, strict=True)))
        intake.nesting.restore(span)
        if math.isnan(span.end):
            intake.open[span.key] = (span.begin, span.at_begin)
    for key, around in paths:
        found = intake.nesting.spans.get(key)
        if found is not None and found.parent < 0:
            intake.nesting.await_path(found, around)


def _latest(
    processes: npt.NDArray[Any], seconds: npt.NDArray[np.float64], steps: npt.NDArray[Any]
) -> list[tuple[int, float, int]]:
    """Of each process when its newest row came, −∞ where that isn't known, and its newest step."""
    codes, places = np.unique(processes, return_inverse=True)
    newest, step = np.full(len(codes), -math.inf), np.full(len(codes), -1)
    np.fmax.at(newest, places, seconds)
    np.maximum.at(step, places, steps)
    return list(zip(codes.tolist(), newest.tolist(), step.tolist(), strict=True))


def _picks(scores: Sequence[str]) -> list[Sql]:
    """SQL for the rows with the smallest and the largest of the first score, the largest of each other, and one NaN."""
    names = list(map(identifier, scores))
    known = [sql("case when isnan(row.{name}::double) then null else row.{name} end", name=one) for one in names]
    largest = [sql("arg_max(row, {score})", score=one) for one in known]
    missing = sql("any_value(row) filter (where isnan(row.{name}::double))", name=names[0])
    return [sql("arg_min(row, {score})", score=known[0]), *largest, missing]


def chosen_steps(counts: Sequence[int], scores: Sequence[float], limit: int) -> list[int]:
    """Which steps stay so that at most about ``limit`` rows do: the newest in full up to half of it, and of the
    older ones, in groups that follow each other, the one with the largest score.

    >>> chosen_steps([10] * 8, [0, 5, 1, 2, 0, 3, 1, 1], 40)
    [1, 5, 6, 7]
    """
    if sum(counts) <= limit:
        return list(range(len(counts)))
    newest, total = len(counts), 0
    while newest and total + counts[newest - 1] <= limit // 2:
        newest -= 1
        total += counts[newest]
    newest = min(newest, len(counts) - 1)  # the newest step is there, however large
    room = max((limit - sum(counts[newest:])) // max(max(counts[:newest], default=1), 1), 1)
    edges = np.linspace(0, newest, min(room, newest) + 1).astype(int)
    peaks = [
        begin + int(np.argmax(scores[begin:end])) for begin, end in itertools.pairwise(edges.tolist()) if end > begin
    ]
    return [*peaks, *range(newest, len(counts))]
