"""What scopes are to the figures: which of them are a step's phases, which made a peak, which batch each one ran.

The rules stand here once, as SQL; ``probe.live.nesting`` follows them row by row, and tests compare the two.

* **Told once.** Both recorders tell of scopes. Where a rank's memory is recorded its memory rows count, else its calls,
  whose parent is the innermost scope around them with the path that theirs begins with.
* **A phase of a step** is an outermost scope below the step that has a phase: ``with phase(…)``, or a ``watch`` that
  stands in no phase. What lies inside is part of it, so that phases can be added up. The scopes of steps and of
  micro-batches are none. Where the scope around is not known, only ``phase`` counts.
* **The maker of a peak** is a scope in which no scope has as large a peak. A peak of kind "at_most" is the height of an
  older one, and counts only where nothing better is known in the run.
* **The batch of a micro-batch** was cut by a scope around it: by the innermost one that had cut a batch with a
  micro-batch of that index before. Of several batches cut there it is the newest, unless the one before it hadn't been
  run by then: no micro-batch of that index had begun between the two cuts. Then the batch can't be told, and its
  tokens only if both hold the same number.

Scope ids begin anew with each process; ``nth`` counts the processes of a rank.

What came last before a moment is found by windows where ``asof join`` was seen to run row against row: DuckDB does so
where it takes the left side for short, and of rows that come through Arrow it knows no number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Scopes that are never a phase.
NO_PHASE: Final = ("step", "micro_batch")


def resumed(run: Run) -> bool:
    """Whether a rank of the run was written by several processes, one after the other."""
    ranks = run.processes["rank"]
    return bool(ranks.nunique() < len(ranks))


def rows_of(table: str, where: str, resumed: bool) -> str:
    """SQL for rows of ``table`` with ``nth``, the number of the process of their rank that wrote them."""
    source = f"(select * from {table} where {where})"  # noqa: S608  (our own names)
    if not resumed:
        return f"(select *, 0 as nth from {source})"  # noqa: S608  (our own names)
    return f"""(select told.*, coalesce(p.nth, 0) as nth from {source} told asof left join (
        select rank, wall_ns as since, row_number() over (partition by rank order by wall_ns) - 1 as nth
        from processes) p on told.rank = p.rank and told.wall_ns >= p.since)"""  # noqa: S608  (our own names)


def told(resumed: bool, where: str = "true") -> str:
    """Common table expressions, to stand after ``with recursive``, that end in ``told``: a row for each scope.

    Its columns: rank, nth, scope_id, parent_id (0: the process itself; NULL: not known), step, role, phase, kind,
    name, micro_batch, begin_ns and end_ns (wall clock; end_ns is NULL while it is open), peak, reserved, peak_kind,
    at_begin, at_end, source, happened (when the newest row about it was written).

    Args:
        resumed: Whether ranks may have several processes.
        where: An SQL condition: which rows of memory are read.
    """
    called = rows_of("calls", "starts_with(point, 'scope.') and rank not in (select rank from measured)", resumed)
    return f"""
    measured as (select distinct rank from memory),
    ends as materialized (from {rows_of("memory", f"edge = 'leave' and {where}", resumed)}),
    begins as materialized (from {rows_of("memory", f"edge = 'enter' and {where}", resumed)}),
    called as materialized (
      select *, wall_ns - duration_ns as begun, case when scope = '' then null when scope = name then ''
             else left(scope, greatest(length(scope) - length(name) - 1, 0)) end as around from {called}),
    seen_calls as (
      select *, around as path, begun as since, null::bigint as outer_id, null::bigint as outer_ns from called
      union all by name
      select rank, nth, scope as path, begun as since, scope_id as outer_id, wall_ns as outer_ns from called),
    outer_calls as (
      select *, case when around = '' then 0 when last_ns >= wall_ns then last_id end as parent_id
      from (select *, last_value(outer_id ignore nulls) over own as last_id,
                   last_value(outer_ns ignore nulls) over own as last_ns
            from seen_calls
            window own as (partition by rank, nth, path order by since, outer_id nulls last
                           rows between unbounded preceding and current row))
      where outer_id is null),
    told as materialized (
      select ends.rank, ends.nth, ends.scope_id, coalesce(ends.parent_id, 0) as parent_id, ends.step, ends.role,
             ends.phase, ends.kind, ends.name, ends.micro_batch,
             coalesce(ends.wall_ns - ends.host_duration_ns, begins.wall_ns, ends.wall_ns) as begin_ns,
             ends.wall_ns as end_ns, ends.peak_allocated_bytes as peak, ends.peak_reserved_bytes as reserved,
             ends.peak_kind, begins.allocated_bytes as at_begin, ends.allocated_bytes as at_end, ends.source,
             ends.wall_ns as happened
      from ends left join begins on begins.rank = ends.rank and begins.nth = ends.nth
                                and begins.scope_id = ends.scope_id
      union all
      select rank, nth, scope_id, coalesce(parent_id, 0), step, role, phase, kind, name, micro_batch, wall_ns, null,
             null, null, null, allocated_bytes, null, source, wall_ns
      from begins where not exists (select 1 from ends where ends.rank = begins.rank
        and ends.nth = begins.nth and ends.scope_id = begins.scope_id)
      union all
      select rank, nth, scope_id, parent_id, step, role, phase, substr(point, 7), name, micro_batch, begun, wall_ns,
             null, null, null, null, null, null, wall_ns
      from outer_calls)"""  # noqa: S608  (our own names)


#: Common table expressions after :func:`told`: ``leveled`` adds level ("step", "phase", "micro_batch", or "inner" for
#: what lies inside one of these) and maker (whether it made its own peak).
LEVELED: Final = """
    better as (select count(*) > 0 as known from told where peak is not null and peak_kind is distinct from 'at_most'),
    peaks as (select told.* from told, better where peak is not null
      and (peak_kind is distinct from 'at_most' or not known)),
    inside as (select rank, nth, parent_id, max(peak) as peak from peaks group by all),
    makers as (
      select p.rank, p.nth, p.scope_id from peaks p left join inside i
        on i.rank = p.rank and i.nth = p.nth and i.parent_id = p.scope_id
      where i.peak is null or i.peak < p.peak),
    leveled as materialized (
      select told.*, m.rank is not null as maker,
             case when told.kind in ('step', 'micro_batch') then told.kind
                  when told.phase is null then 'inner'
                  when told.parent_id = 0 or p.kind = 'step' or (p.rank is not null and p.phase is null) then 'phase'
                  when p.rank is null and told.kind = 'phase' then 'phase' else 'inner' end as level
      from told left join told p
             on p.rank = told.rank and p.nth = told.nth and p.scope_id = told.parent_id and told.parent_id <> 0
           left join makers m on m.rank = told.rank and m.nth = told.nth and m.scope_id = told.scope_id)"""


def paired(resumed: bool, where: str = "true") -> str:
    """Common table expressions after :func:`told` that end in ``paired``: what is known of the batch of each
    micro-batch that ran, as rank, nth, scope_id, batch_id, tokens, sequences, longest, slots (of its rectangle, NULL
    without one). What can't be told has no row; batch_id and slots are NULL where only the tokens can.

    Args:
        resumed: Whether ranks may have several processes.
        where: An SQL condition: which rows of micro_batches are read.
    """
    group = "rank, nth, scope_id, micro_batch"
    return f"""
    cuts as materialized (
      select {group}, wall_ns, batch_id, tokens, sequences, coalesce(list_max(lengths), 0) as longest,
             sequences * width_tokens as slots,
             lag(wall_ns) over own as before_ns, lag(tokens) over own as before_tokens,
             row_number() over (partition by {group}, wall_ns order by batch_id desc) as late
      from {rows_of("micro_batches", f"micro_batch is not null and {where}", resumed)}
      window own as (partition by {group} order by wall_ns, batch_id)),
    firsts as (select {group}, min(wall_ns) as since from cuts group by all),
    runs as (select {group}, begin_ns, parent_id as home from told
      where kind = 'micro_batch' and micro_batch is not null and parent_id is not null),
    outward as (
      select r.*, f.since from runs r left join firsts f on f.rank = r.rank and f.nth = r.nth
             and f.scope_id = r.home and f.micro_batch = r.micro_batch
      union all
      select o.rank, o.nth, o.scope_id, o.micro_batch, o.begin_ns, t.parent_id as home, f.since
      from outward o join told t on t.rank = o.rank and t.nth = o.nth and t.scope_id = o.home and o.home <> 0
           left join firsts f on f.rank = o.rank and f.nth = o.nth and f.scope_id = t.parent_id
             and f.micro_batch = o.micro_batch
      where (o.since is null or o.since > o.begin_ns) and t.parent_id is not null),
    homes as materialized (select * exclude (since) from outward where since <= begin_ns),
    moments as (
      select * exclude (late), null::bigint as begun from cuts where late = 1
      union all by name select rank, nth, home as scope_id, micro_batch, begin_ns as wall_ns, begin_ns as begun
      from homes),
    known as (
      select * exclude (begun, last_ns), before_ns is null or coalesce(last_ns >= before_ns, false) as sure
      from (select *, max(begun) over (partition by {group} order by wall_ns, begun nulls first
                                       rows between unbounded preceding and current row) as last_ns from moments)
      where begun is null),
    paired as (
      select h.rank, h.nth, h.scope_id, if(c.sure, c.batch_id, null) as batch_id, c.tokens,
             c.sequences, c.longest, if(c.sure, c.slots, null) as slots
      from homes h asof join known c on c.rank = h.rank and c.nth = h.nth and c.scope_id = h.home
           and c.micro_batch = h.micro_batch and h.begin_ns >= c.wall_ns
      where c.sure or c.before_tokens = c.tokens)"""  # noqa: S608  (our own names)
