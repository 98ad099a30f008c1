"""The live tables of a run that is large already: a bounded, peak-preserving choice of its rows by SQL.

Reading millions of rows one by one would keep a person waiting. The result is what reading them all would have given,
where a table has no more rows than it may keep; where it has more, whole steps or the extremes of time slices stay.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from probe.analysis import scopes
from probe.dashboards.spec import TABLES
from probe.live.intake import Intake, fit
from probe.live.nesting import REMEMBERED, Cut, Span
from probe.live.padding_ledger import APART, PLANNED
from probe.live.tables import ROWS, Words, dtype
from probe.live.thinning import Block
from probe.records import Process
from probe.runs.files import RunFiles
from probe.runs.follower import Follower
from probe.runs.snapshot import Snapshot, query

if TYPE_CHECKING:
    import pandas as pd

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


def load(files: RunFiles, intake: Intake, words: Words, limit: int = ROWS) -> tuple[dict[str, Block], Follower, int]:
    """The run as it is now.

    Args:
        files: The files of the run.
        intake: The intake that learns what it would know after reading every row.
        words: The store that gets the texts.
        limit: The most rows of a table.

    Returns:
        The tables' rows, a follower for what comes next, and how many rows were left out.

    Raises:
        RunError: Its files can't be read.
    """
    snapshot = Snapshot(files)
    snapshot.refresh()
    loader = _Loader(snapshot, intake, words, limit)
    return loader.blocks(), Follower.from_snapshot(files, snapshot, loader.processes), loader.left_out


class _Loader:
    def __init__(self, snapshot: Snapshot, intake: Intake, words: Words, limit: int) -> None:
        self.left_out = 0
        self._snapshot = snapshot
        self._intake = intake
        self._words = words
        self._limit = limit
        self.processes = self._processes()
        intake.clocks.begin(self.processes)
        ranks = [one.rank for one in self.processes]
        self._resumed = len(set(ranks)) < len(ranks)

    def blocks(self) -> dict[str, Block]:
        makers = {
            "spans": (self._spans, ("memory", "calls")),
            "memory": (self._memory, ("memory",)),
            "micro": (self._micro, ("micro_batches",)),
            "padding": (self._padding, ("padding",)),
            "scalars": (self._scalars, ("scalars",)),
            "reductions": (self._reductions, ("reductions",)),
            "calls": (self._calls, ("calls",)),
            "events": (self._events, ("incidents",)),
        }
        found = {}
        for name, (make, sources) in makers.items():
            if any(map(self._snapshot.count, sources)):
                found[name] = self._block(name, make())
            else:  # a query costs some 20 ms, even of nothing
                found[name] = {column: np.empty(0, dtype(kind)) for column, kind in TABLES[name].items()}
        self._learn(found)
        return {name: block for name, block in found.items() if len(next(iter(block.values())))}

    # -------------------------------------------------------------------------------------------- asking

    def _ask(self, text: str) -> pd.DataFrame:
        return query(self._snapshot, text, None)

    def _block(self, table: str, frame: pd.DataFrame) -> Block:
        block: Block = {}
        for name, kind in TABLES[table].items():
            column = frame[name]
            if kind == "word":
                block[name] = self._codes(column)
            elif kind in ("f8", "f4"):
                block[name] = column.astype("Float64").to_numpy(float, na_value=math.nan).astype(kind)
            else:
                whole = column.astype("Int64").fillna(-1).to_numpy(np.int64)
                block[name] = whole.clip(-(2**31), 2**31 - 1).astype(dtype(kind))
        return block

    def _codes(self, column: pd.Series) -> Any:
        import pandas as pd

        numbers, texts = pd.factorize(column.astype(object), use_na_sentinel=True)
        codes = np.array([*(self._words.code(str(one)) for one in texts), -1], dtype=np.int32)
        return codes[numbers]

    def _processes(self) -> list[Process]:
        frame = self._ask("select rank, pid, time_ns, wall_ns, world_size, host from processes order by wall_ns")
        names = [frame[name].to_list() for name in ("rank", "pid", "time_ns", "wall_ns", "world_size", "host")]
        return [
            Process(rank=rank, pid=pid, time_ns=time, wall_ns=wall, world_size=size, host=host)
            for rank, pid, time, wall, size, host in zip(*names, strict=True)
        ]

    # ------------------------------------------------------------------------------- what the intake must know

    def _learn(self, blocks: dict[str, Block]) -> None:
        intake = self._intake
        for process in self.processes:  # in the order in which they began: the last one of a rank writes now
            intake.clocks.set(process)
            intake.writers[process.rank] = process
            intake.world_size = max(intake.world_size, process.world_size)
        names = ("memory", "calls", "scalars", "micro_batches", "padding", "reductions", "incidents", "processes")
        written = " union all ".join(
            f"select max(step) as step, max(wall_ns) as wall_ns from {name}"  # noqa: S608  (our own names)
            for name in names
        )
        found = self._ask(
            f"""with written as ({written})
              select (select max(step) from written) as step, (select max(wall_ns) from written) as newest,
              (select coalesce(sum(count), 0)::bigint from incidents where kind = 'dropped_rows') as lost,
              (select list(distinct rank) from memory) as measured"""  # noqa: S608  (our own names)
        )
        if found["step"].notna().all():
            intake.step = int(found["step"][0])
        if found["newest"].notna().all():
            intake.newest = (int(found["newest"][0]) - intake.clocks.start_ns) / 1e9
        intake.lost = int(found["lost"][0])
        intake.measured.update(found["measured"][0] or ())
        memory = blocks["memory"]
        for rank in np.unique(memory["rank"]).tolist():
            intake.remember_order(rank, float(np.nanmax(memory["t"][memory["rank"] == rank], initial=-math.inf)))
        self._learn_padding(blocks["padding"])
        self._learn_scopes(blocks["spans"])

    def _learn_padding(self, block: Block) -> None:
        planned = np.isin(block["source"], [self._words.code(one) for one in PLANNED])
        for step, rank in sorted(
            set(zip(block["step"][planned].tolist(), block["rank"][planned].tolist(), strict=True))
        ):
            self._intake.ledger.note_cut(step, rank)

    def _learn_scopes(self, block: Block) -> None:
        """Which scopes are open or may change, and from where the numbers of a rank's next process go on."""
        bases = {}
        for row in self._ask(self._bases()).to_dict("records"):
            rank, base = int(row["rank"]), int(row["base"])
            self._intake.scopes.resume(rank, base, int(row["top"]))
            bases[rank] = base
        self._learn_cuts()
        chosen = np.isnan(block["end"])
        chosen[-REMEMBERED:] = True
        names = list(block)
        for values in zip(*(one[chosen].tolist() for one in block.values()), strict=True):
            row = dict(zip(names, values, strict=True))
            base = bases.get(row["rank"], 0)
            if row["scope"] < base:  # its process is gone
                continue
            self._intake.nesting.restore(Span(**row, top=row["parent"] == base))
            if math.isnan(row["end"]):
                self._intake.open[row["rank"], row["scope"]] = (row["begin"], row["at_begin"])
        if (block["parent"] < 0).any():
            self._learn_paths()

    def _learn_cuts(self) -> None:
        """The newest batches that were cut."""
        number = self._intake.scopes.number
        source = scopes.rows_of("micro_batches", "micro_batch is not null", self._resumed)
        frame = self._ask(
            f"""with last as (select rank, count(*) - 1 as nth from processes group by rank)
            select rank, scope_id, micro_batch, batch_id, tokens, coalesce(sequences * width_tokens, -1) as slots,
                   (wall_ns - {self._intake.clocks.start_ns}) / 1e9 as at
            from {source} semi join last using (rank, nth) order by wall_ns desc, batch_id desc limit {REMEMBERED}"""  # noqa: S608  (our own names)
        )
        for row in frame[::-1].to_dict("records"):
            slot = (int(row["rank"]), number(int(row["rank"]), int(row["scope_id"])), int(row["micro_batch"]))
            numbers = (fit(int(row[name])) for name in ("batch_id", "tokens", "slots"))
            self._intake.nesting.put_cut(slot, Cut(float(row["at"]), *numbers))

    def _learn_paths(self) -> None:
        """Where scopes lie of which only the path says so, and what is around them hasn't ended yet."""
        frame = self._ask(
            f"""with recursive {scopes.told(self._resumed)}
            select rank, scope_id, around from outer_calls
            where parent_id is null and around is not null order by wall_ns"""  # noqa: S608  (our own names)
        )
        for row in frame.to_dict("records"):
            rank = int(row["rank"])
            span = self._intake.nesting.spans.get((rank, self._intake.scopes.number(rank, int(row["scope_id"]))))
            if span is not None and span.parent < 0:
                self._intake.nesting.await_path(span, row["around"])

    # ------------------------------------------------------------------------------------------- choosing rows

    def _steps(self, table: str, score: str, where: str, rows: str = "count(*)") -> str:
        """The SQL condition for the steps of ``table`` that stay: the newest half, and peaks of the older ones."""
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

    def _extremes(self, table: str, columns: str, scores: Sequence[str], group: Sequence[str], where: str) -> str:
        """A query for ``columns`` of ``table``: all rows, or of each time slice and group those with an extreme."""
        source = f"select {columns}, wall_ns as happened from {table} where {where}"  # noqa: S608  (our own names)
        everything = f"select * from ({source}) order by happened"  # noqa: S608  (our own names)
        if self._snapshot.count(table) <= self._limit:
            return everything
        frame = self._ask(
            f"""select count(*) as n, count(distinct ({", ".join(group) or "1"})) as g, min(wall_ns) as a,
            max(wall_ns) as b from {table} where {where}"""  # noqa: S608  (our own names)
        )
        n, groups = int(frame["n"][0]), max(int(frame["g"][0]), 1)
        if n <= self._limit:
            return everything
        self.left_out += n - self._limit
        slices = max(1, self._limit // (groups * (len(scores) + 1)))
        first, last = int(frame["a"][0]), int(frame["b"][0])
        known = {one: f"case when isnan(row.{one}) then null else row.{one} end" for one in scores}
        picks = [f"arg_min(row, {known[scores[0]]})", *(f"arg_max(row, {one})" for one in known.values())]
        picks.append(f"any_value(row) filter (where isnan(row.{scores[0]}))")
        keys = ", ".join([*group, "slice"])
        return f"""
            with source as ({source}), sliced as (
              select source as row, {"".join(f"{one}, " for one in group)}
                     least(floor((happened - {first}) * {slices}.0 / {max(last - first, 1)}), {slices - 1}) as slice
              from source),
            picked as (select unnest([{", ".join(picks)}]) as row from sliced group by {keys})
            select * from (select distinct row.* from picked where row is not null) order by happened
            """  # noqa: S608  (our own names)

    @property
    def _t(self) -> str:
        return f"(wall_ns - {self._intake.clocks.start_ns}) / 1e9 as t"

    # ----------------------------------------------------------------------------------------- table by table

    def _memory(self) -> pd.DataFrame:
        columns = f"""{self._t}, rank, role, phase, step, allocated_bytes::double as allocated,
            reserved_bytes::double as reserved, non_torch_bytes::double as non_torch,
            device_used_bytes::double as used, device_total_bytes::double as total"""
        return self._ask(self._extremes("memory", columns, ("allocated", "reserved", "used"), ("rank",), "true"))

    def _scalars(self) -> pd.DataFrame:
        columns = f"{self._t}, step, rank, key, value, (source = 'probe')::int as own"
        return self._ask(self._extremes("scalars", columns, ("value",), ("key", "rank"), "true"))

    def _reductions(self) -> pd.DataFrame:
        columns = """step, rank, key, reducer, chosen_by, count, smallest, largest, nan_count as nan, value"""
        return self._ask(self._extremes("reductions", columns, ("value",), ("key", "rank"), "true"))

    def _calls(self) -> pd.DataFrame:
        columns = f"""{self._t}, step, rank, role, phase, point, name, duration_ns / 1e9 as duration, rows_in, rows_out,
            bytes_in::double as bytes_in, bytes_out::double as bytes_out,
            nullif(array_to_string(keys_added, ', '), '') as added,
            nullif(array_to_string(keys_removed, ', '), '') as removed, error"""
        scores, where = ("duration", "bytes_out"), "not starts_with(point, 'scope.')"
        return self._ask(self._extremes("calls", columns, scores, ("point",), where))

    def _events(self) -> pd.DataFrame:
        columns = f"""{self._t}, step, rank, kind, "where", message,
            (case when kind = 'listener' then 1 else count end)::double as count, switched_off::int as off"""
        return self._ask(self._extremes("incidents", columns, ("count",), (), "true"))

    def _micro(self) -> pd.DataFrame:
        steps = self._steps("micro_batches", "tokens", "true")
        return self._ask(
            f"""select step, rank, role, phase, batch_id as batch, micro_batch, tokens, sequences,
            coalesce(list_max(lengths), 0) as longest, width_tokens as width, cap_tokens as cap, workload,
            over_cap::int as over from micro_batches where {steps} order by wall_ns, batch_id, micro_batch"""  # noqa: S608  (our own names)
        )

    def _padding(self) -> pd.DataFrame:
        planned, apart = (", ".join(f"'{one}'" for one in names) for names in (PLANNED, APART))
        steps = self._steps("padding", "tokens", "true", "count(distinct (rank, source, field, cause))")
        return self._ask(
            f"""
            with base as (
              select rank, coalesce(step, -1) as step, source, batch_id, field, cause, sum(tokens) as tokens,
                     sum(bytes) as bytes, max(rectangle_tokens) as rectangle, max(valid_tokens) as valid
              from padding where {steps} group by all),
            cut as (select distinct rank, step, true as cut from base where source in ({planned})),
            fields as (
              select rank, step, source, batch_id, field, max(rectangle) as rectangle, max(valid) as valid,
                     min(cause) as first,
                     row_number() over (partition by rank, step, source, batch_id
                       order by max(rectangle) desc, field <> 'input_ids', field) = 1 as widest
              from base group by rank, step, source, batch_id, field),
            told as (
              select base.step, base.rank, base.source, base.field, cause, tokens, bytes,
                     if(cause = first, fields.rectangle, 0) as rectangle, if(cause = first, fields.valid, 0) as valid,
                     case when not (base.source in ({planned}) or (cut is null and base.source not in ({apart}))) then 0
                          when widest then 2 else 1 end as counted
              from base join fields using (rank, step, source, batch_id, field) left join cut using (rank, step))
            select step, rank, source, field, cause, counted, sum(tokens)::double as tokens,
                   sum(bytes)::double as bytes, sum(rectangle)::double as rectangle, sum(valid)::double as valid
            from told group by all order by step, rank, source, field, cause, counted"""  # noqa: S608  (our own names)
        )

    # -------------------------------------------------------------------------------------------------- scopes

    def _scopes(self) -> str:
        """SQL: of each (rank, nth) the offset of its scopes' numbers, and the largest number of its own."""
        own = "rank not in (select distinct rank from memory)"
        measured = scopes.rows_of("memory", "edge in ('enter', 'leave')", self._resumed)
        called = scopes.rows_of("calls", f"starts_with(point, 'scope.') and {own}", self._resumed)
        cut = scopes.rows_of("micro_batches", "micro_batch is not null", self._resumed)
        return f"""
            seen as (
              select rank, nth, max(scope_id) as top from (
                select rank, nth, scope_id from {measured} union all select rank, nth, scope_id from {called}
                union all select rank, nth, scope_id from {cut}
              ) group by rank, nth),
            bases as (
              select rank, nth, top, coalesce(sum(top + 1) over (
                partition by rank order by nth rows between unbounded preceding and 1 preceding), 0) as base
              from seen)"""  # noqa: S608  (our own names)

    def _bases(self) -> str:
        """Of the process of each rank that began last."""
        last = "(select rank, count(*) - 1 as last from processes group by rank)"
        return f"""with {self._scopes()}
            select p.rank, coalesce(max(base) filter (where nth = last), max(base + top + 1), 0)::bigint as base,
                   coalesce(max(base + top), -1)::bigint as top
            from {last} p left join bases on bases.rank = p.rank group by p.rank"""  # noqa: S608  (our own names)

    def _spans(self) -> pd.DataFrame:
        steps = self._steps("memory", "peak_allocated_bytes", "edge = 'leave'")
        start, resumed = self._intake.clocks.start_ns, self._resumed
        return self._ask(
            f"""with recursive {self._scopes()}, {scopes.told(resumed, steps)}, {scopes.LEVELED},
            {scopes.paired(resumed, steps)}
            select step, rank, role, phase, kind, level, name, micro_batch, (scope_id + base)::bigint as scope,
                   coalesce(parent_id + base, -1)::bigint as parent, (begin_ns - {start}) / 1e9 as begin,
                   (end_ns - {start}) / 1e9 as "end", peak::double as peak, reserved::double as reserved_peak,
                   at_begin::double as at_begin, at_end::double as at_end, batch_id as batch, tokens, slots, peak_kind,
                   maker::int as maker
            from leveled join bases using (rank, nth) left join paired using (rank, nth, scope_id)
            order by happened, begin_ns desc"""  # noqa: S608  (our own names)
        )


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
