"""The live tables of a run that is large already: a bounded, peak-preserving choice of its rows by SQL.

Reading millions of rows one by one would keep a person waiting. The result is what reading them all would have given,
where a table has no more rows than it may keep; where it has more, whole steps or the extremes of time slices stay.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from probe.dashboards.columns import LIVE, WHERE, Table, of_unknown, select_list
from probe.live.intake import Intake, fit, limits_of
from probe.live.nesting import REMEMBERED, Cut, Span
from probe.live.tables import ROWS, Words
from probe.live.thinning import Block
from probe.records import PLANNED_SOURCES, Process, who
from probe.runs import row_types, views
from probe.runs.files import RunFiles
from probe.runs.follower import Follower
from probe.runs.snapshot import VIEWS, Snapshot, query
from probe.runs.visibility import Shown, sentence

if TYPE_CHECKING:
    import pandas as pd

#: The columns of a span that tell how far its process has come.
_PROGRESS: Final = ("process", "step", "begin", "end")

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
        if not any(map(self._snapshot.count, sources)):  # a query costs some 20 ms, even of nothing
            return {column: np.empty(0, one.dtype) for column, one in table.columns.items()}
        make = worked_out.get(name)
        return self._block(table, self._extremes(name, table) if make is None else make())

    # -------------------------------------------------------------------------------------------- asking

    def _ask(self, text: str) -> pd.DataFrame:
        return query(self._snapshot, text, None)

    def _block(self, table: Table, frame: pd.DataFrame) -> Block:
        block: Block = {}
        for name, one in table.columns.items():
            column = self._whos(frame) if name == "who" and name not in frame else frame[name]
            if one.unit == "word":
                block[name] = self._codes(column)
            elif one.dtype in ("f8", "f4"):
                block[name] = column.astype("Float64").to_numpy(float, na_value=math.nan).astype(one.dtype)
            else:
                whole = column.astype("Int64").fillna(-1).to_numpy(np.int64)
                block[name] = whole.clip(*limits_of(one.dtype)).astype(one.dtype)
        return block

    def _whos(self, frame: pd.DataFrame) -> pd.Series:
        """What the processes of rows are shown as; a query of views may leave it out."""
        import pandas as pd

        ranks, processes = frame["rank"].astype("Int64").fillna(-1).to_list(), frame["process"].to_list()
        known = {
            pair: who(None if pair[0] < 0 else pair[0], pair[1]) for pair in set(zip(ranks, processes, strict=True))
        }
        return pd.Series([known[pair] for pair in zip(ranks, processes, strict=True)], dtype=object)

    def _codes(self, column: pd.Series) -> Any:
        import pandas as pd

        numbers, texts = pd.factorize(column.astype(object), use_na_sentinel=True)
        codes = np.array([*(self._words.code(str(one)) for one in texts), -1], dtype=np.int32)
        return codes[numbers]

    def _processes(self) -> list[Process]:
        names = ("process", "rank", "pid", "time_ns", "wall_ns", "world_size", "host", "device", "schema_version")
        frame = self._ask(f"select {', '.join(names)} from processes order by wall_ns")  # noqa: S608  (our own names)
        columns = [frame[name].astype(object).where(frame[name].notna(), None).to_list() for name in names]
        return [Process(**dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]

    # ------------------------------------------------------------------------------- what the intake must know

    def _learn(self, blocks: dict[str, Block]) -> None:
        intake = self._intake
        for process in self.processes:  # in the order in which they began: the last one of a rank writes now
            intake.begin_process(process)
        written = " union all ".join(
            f"select max(step) as step, max(wall_ns) as wall_ns from {VIEWS.get(name, name)}"  # noqa: S608  (our own names)
            for name in self._snapshot.tables
        )
        found = self._ask(
            f"""with written as ({written})
              select (select max(step) from written) as step, (select max(wall_ns) from written) as newest,
              (select coalesce(sum(count), 0)::bigint from incidents where kind = 'dropped_rows') as lost,
              (select list(distinct process) from memory) as measured"""  # noqa: S608  (our own names)
        )
        if found["step"].notna().all():
            intake.step = int(found["step"][0])
        if found["newest"].notna().all():
            intake.newest = (int(found["newest"][0]) - intake.clocks.start_ns) / 1e9
        intake.lost = int(found["lost"][0])
        measured = found["measured"][0]
        intake.measured.update(self._words.code(str(one)) for one in (() if measured is None else measured))
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
        """Which scopes are open or may change."""
        self._learn_cuts()
        chosen = np.isnan(block["end"])
        chosen[-REMEMBERED:] = True
        names = list(block)
        for values in zip(*(one[chosen].tolist() for one in block.values()), strict=True):
            span = Span(**{name: value for name, value in zip(names, values, strict=True) if name != "who"})
            self._intake.nesting.restore(span)
            if math.isnan(span.end):
                self._intake.open[span.key] = (span.begin, span.at_begin)
        if (block["parent"] < 0).any():
            self._learn_paths()

    def _learn_cuts(self) -> None:
        """The newest batches that were cut."""
        start_ns = self._intake.clocks.start_ns
        frame = self._ask(
            f"""select process, scope_id, micro_batch, batch_id, tokens,
                   coalesce(sequences * width_tokens, -1) as slots, (wall_ns - {start_ns}) / 1e9 as at
            from micro_batches where micro_batch is not null
            order by wall_ns desc, batch_id desc limit {REMEMBERED}"""  # noqa: S608  (our own names)
        )
        for row in frame[::-1].to_dict("records"):
            slot = (self._words.code(row["process"]), int(row["scope_id"]), int(row["micro_batch"]))
            numbers = (fit(int(row[name])) for name in ("batch_id", "tokens", "slots"))
            self._intake.nesting.add_cut(slot, Cut(float(row["at"]), *numbers))

    def _learn_paths(self) -> None:
        """Where scopes lie of which only the path says so, and what is around them hasn't ended yet."""
        frame = self._ask(
            f"""select process, scope_id, around from ({views.query("scopes_nested")})
            where parent_id is null and around is not null order by happened"""  # noqa: S608  (our own names)
        )
        for row in frame.to_dict("records"):
            span = self._intake.nesting.spans.get((self._words.code(row["process"]), int(row["scope_id"])))
            if span is not None and span.parent < 0:
                self._intake.nesting.await_path(span, row["around"])

    # ------------------------------------------------------------------------------------------- choosing rows

    def _steps(self, table: str, score: str, where: str, rows: str = "count(*)") -> str:
        """The SQL condition for the steps of ``table`` that stay: the newest half, and peaks of the older ones."""
        if self._step is not None:
            return f"step = {self._step}"
        if self._snapshot.count(table) <= self._limit:
            return "true"
        frame = self._ask(
            f"""select step, {rows}::bigint as n, coalesce(max({score}), 0)::double as score
            from {table} where {where} and step is not null group by step order by max(wall_ns)"""  # noqa: S608  (our own names)
        )
        steps, counts, scores = (frame[name].to_list() for name in ("step", "n", "score"))
        kept = chosen_steps(counts, scores, self._limit)
        if len(kept) == len(steps):
            return "true"
        self.left_out += sum(counts) - sum(counts[index] for index in kept)
        # Rows without a step stay, as if theirs were one that does: "or" would compare each row with each step.
        numbers = [str(int(steps[index])) for index in kept]
        return f"coalesce(step, {numbers[-1]}) in ({', '.join(numbers)})"

    def _extremes(self, name: str, table: Table) -> pd.DataFrame:
        """The rows of a table each of which is made of one row: all, or of each time slice and group those with an
        extreme.
        """
        columns, where = select_list(table, self._intake.clocks.start_ns), WHERE.get(name, "true")
        if self._step is not None:
            where = f"({where}) and step = {self._step}"
        source = f"select {columns}, wall_ns as happened from {table.rows} where {where}"  # noqa: S608  (our own names)
        everything = f"select * from ({source}) order by happened"  # noqa: S608  (our own names)
        if self._step is not None or self._snapshot.count(table.rows) <= self._limit:
            return self._ask(everything)
        group = dict.fromkeys((*table.thinning.group, "process"))
        frame = self._ask(
            f"""select count(*) as n, count(distinct ({", ".join(group)})) as g, min(wall_ns) as a,
            max(wall_ns) as b from {table.rows} where {where}"""  # noqa: S608  (our own names)
        )
        if int(frame["n"][0]) <= self._limit:
            return self._ask(everything)
        return self._ask(self._sliced(source, table.thinning.scores, list(group), frame))

    def _sliced(self, source: str, scores: Sequence[str], group: Sequence[str], frame: pd.DataFrame) -> str:
        """A query for those rows of ``source`` that hold an extreme of their time slice and group."""
        n, groups = int(frame["n"][0]), max(int(frame["g"][0]), 1)
        self.left_out += n - self._limit
        slices = max(1, self._limit // (groups * (len(scores) + 1)))
        first, last = int(frame["a"][0]), int(frame["b"][0])
        picks = _picks(scores) if scores else ["any_value(row)"]
        keys = ", ".join([*group, "slice"])
        return f"""
            with source as ({source}), sliced as (
              select source as row, {"".join(f"{one}, " for one in group)}
                     least(floor((happened - {first}) * {slices}.0 / {max(last - first, 1)}), {slices - 1}) as slice
              from source),
            picked as (select unnest([{", ".join(picks)}]) as row from sliced group by {keys})
            select * from (select distinct row.* from picked where row is not null) order by happened
            """  # noqa: S608  (our own names)

    # ------------------------------------------------------------------------------------ what many rows make

    def _micro(self) -> pd.DataFrame:
        chosen = f"(select * from micro_batches where {self._steps('micro_batches', 'tokens', 'true')})"  # noqa: S608  (our own names)
        counted = views.query("micro_batches_counted", {"micro_batches": chosen})
        return self._ask(f"select * from ({counted}) order by wall_ns, batch, micro_batch")  # noqa: S608  (our own names)

    def _padding(self) -> pd.DataFrame:
        steps = self._steps("padding", "tokens", "true", "count(distinct (process, source, field, cause))")
        counted = views.query("padding_counted", {"padding": f"(select * from padding where {steps})"})  # noqa: S608  (our own names)
        return self._ask(f"select * from ({counted}) order by step, process, source, field, cause, counted")  # noqa: S608  (our own names)

    def _spans(self) -> pd.DataFrame:
        steps = self._steps("memory", "peak_allocated_bytes", "edge = 'leave'")
        chosen = {name: f"(select * from {name} where {steps})" for name in ("memory", "micro_batches")}  # noqa: S608  (our own names)
        spans = views.query("spans", chosen, self._intake.clocks.start_ns)
        return self._ask(f"select * from ({spans}) order by happened, begin_ns desc")  # noqa: S608  (our own names)


def _latest(
    processes: npt.NDArray[Any], seconds: npt.NDArray[np.float64], steps: npt.NDArray[Any]
) -> list[tuple[int, float, int]]:
    """Of each process when its newest row came, −∞ where that isn't known, and its newest step."""
    codes, places = np.unique(processes, return_inverse=True)
    newest, step = np.full(len(codes), -math.inf), np.full(len(codes), -1)
    np.fmax.at(newest, places, seconds)
    np.maximum.at(step, places, steps)
    return list(zip(codes.tolist(), newest.tolist(), step.tolist(), strict=True))


def _picks(scores: Sequence[str]) -> list[str]:
    """SQL for the rows with the smallest and the largest of the first score, the largest of each other, and one NaN."""
    known = [f'case when isnan(row."{one}"::double) then null else row."{one}" end' for one in scores]
    largest = [f"arg_max(row, {one})" for one in known]
    return [f"arg_min(row, {known[0]})", *largest, f'any_value(row) filter (where isnan(row."{scores[0]}"::double))']


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
