-- What the tables say, worked out: `tables.sql` comes before. Each view is told of in probe/runs/views.sql.

create or replace view scope_calls as
select * from calls where starts_with(point, 'scope.') and process not in (select distinct process from memory);

create or replace view scopes as
select step, rank, process, role, phase, kind, name, micro_batch, scope_id as scope,
       wall_ns - coalesce(host_duration_ns, 0) as begin_ns, wall_ns as end_ns,
       coalesce(host_duration_ns, 0) / 1e9 as duration, peak_allocated_bytes as peak,
       peak_reserved_bytes as reserved_peak, allocated_bytes as at_end, peak_kind, source
from memory where edge = 'leave'
union all
select step, rank, process, role, phase, substr(point, 7), name, micro_batch, scope_id, wall_ns - duration_ns, wall_ns,
       duration_ns / 1e9, null, null, null, null, null
from scope_calls;

create or replace view peaks_counted as
select step, rank, process, role, phase, kind, name, micro_batch, scope_id as scope, parent_id as parent,
       wall_ns - coalesce(host_duration_ns, 0) as begin_ns, wall_ns as end_ns, peak_allocated_bytes as peak,
       peak_reserved_bytes as reserved_peak, peak_kind, source, 1 as maker
from memory where edge = 'leave' and peak_allocated_bytes is not null
  and (peak_kind is distinct from 'at_most' or not exists (
    select 1 from memory where edge = 'leave' and peak_allocated_bytes is not null
      and peak_kind is distinct from 'at_most'));

create or replace view peaks_made as
select * from peaks_counted outside where not exists (
  select 1 from peaks_counted inside
  where inside.process = outside.process and inside.parent = outside.scope and inside.scope <> outside.scope
    and inside.peak >= outside.peak);

create or replace view scopes_nested as
with
ends as materialized (select * from memory where edge = 'leave'),
begins as materialized (select * from memory where edge = 'enter'),
called as materialized (
  select *, wall_ns - duration_ns as begun, case when scope = '' then null when scope = name then ''
         else left(scope, greatest(length(scope) - length(name) - 1, 0)) end as around
  from scope_calls),
seen_calls as (
  select *, around as path, begun as since, null::bigint as outer_id, null::bigint as outer_ns from called
  union all by name
  select process, scope as path, begun as since, scope_id as outer_id, wall_ns as outer_ns from called),
outer_calls as (
  select *, case when around = '' then 0 when last_ns >= wall_ns then last_id end as parent_id
  from (select *, last_value(outer_id ignore nulls) over own as last_id,
               last_value(outer_ns ignore nulls) over own as last_ns
        from seen_calls
        window own as (partition by process, path order by since, outer_id nulls last
                       rows between unbounded preceding and current row))
  where outer_id is null)
select ends.process, ends.rank, ends.scope_id, coalesce(ends.parent_id, 0) as parent_id, ends.step, ends.role,
       ends.phase, ends.kind, ends.name, ends.micro_batch,
       ends.wall_ns - coalesce(ends.host_duration_ns, 0) as begin_ns, ends.wall_ns as end_ns, ends.peak_allocated_bytes as peak, ends.peak_reserved_bytes as reserved,
       ends.peak_kind, begins.allocated_bytes as at_begin, ends.allocated_bytes as at_end, ends.source,
       ends.wall_ns as happened, null::varchar as around
from ends left join begins on begins.process = ends.process and begins.scope_id = ends.scope_id
union all
select process, rank, scope_id, coalesce(parent_id, 0), step, role, phase, kind, name, micro_batch, wall_ns, null,
       null, null, null, allocated_bytes, null, source, wall_ns, null
from begins where not exists (select 1 from ends where ends.process = begins.process
  and ends.scope_id = begins.scope_id)
union all
select process, rank, scope_id, parent_id, step, role, phase, substr(point, 7), name, micro_batch, begun, wall_ns,
       null, null, null, null, null, null, wall_ns, around
from outer_calls;

create or replace view spans as
with
told as materialized (select * from scopes_nested),
levelled as (with
told as materialized (select * from told),
makers as (select process, scope from peaks_made)
select told.*, m.process is not null as maker,
       case when told.kind in ('step', 'micro_batch') then told.kind
            when told.phase is null then 'inner'
            when told.parent_id = 0 or p.kind = 'step' or (p.process is not null and p.phase is null) then 'phase'
            when p.process is null and told.kind = 'phase' then 'phase' else 'inner' end as level
from told left join told p
       on p.process = told.process and p.scope_id = told.parent_id and told.parent_id <> 0
     left join makers m on m.process = told.process and m.scope = told.scope_id),
paired as (with recursive
told as materialized (select * from told),
cuts as materialized (
  select process, scope_id, micro_batch, wall_ns, batch_id, tokens, sequences,
         coalesce(list_max(lengths), 0) as longest, sequences * width_tokens as slots,
         lag(wall_ns) over own as before_ns, lag(tokens) over own as before_tokens, lead(wall_ns) over own as next_ns
  from micro_batches where micro_batch is not null
  window own as (partition by process, scope_id, micro_batch order by wall_ns, batch_id)),
firsts as (select process, scope_id, micro_batch, min(wall_ns) as since from cuts group by all),
runs as (select process, scope_id, micro_batch, begin_ns, parent_id as home from told
  where kind = 'micro_batch' and micro_batch is not null and parent_id is not null),
outward as (
  select r.*, f.since from runs r left join firsts f on f.process = r.process
         and f.scope_id = r.home and f.micro_batch = r.micro_batch
  union all
  select o.process, o.scope_id, o.micro_batch, o.begin_ns, t.parent_id as home, f.since
  from outward o join told t on t.process = o.process and t.scope_id = o.home and o.home <> 0
       left join firsts f on f.process = o.process and f.scope_id = t.parent_id
         and f.micro_batch = o.micro_batch
  where (o.since is null or o.since > o.begin_ns) and t.parent_id is not null),
homes as materialized (select * exclude (since) from outward where since <= begin_ns),
moments as (
  select * exclude (next_ns), null::bigint as begun from cuts where next_ns is distinct from wall_ns
  union all by name select process, home as scope_id, micro_batch, begin_ns as wall_ns, begin_ns as begun
  from homes),
known as (
  select * exclude (begun, last_ns), before_ns is null or coalesce(last_ns >= before_ns, false) as sure
  from (select *, max(begun) over (partition by process, scope_id, micro_batch order by wall_ns, begun nulls first
                                   rows between unbounded preceding and current row) as last_ns from moments)
  where begun is null)
select h.process, h.scope_id, if(c.sure, c.batch_id, null) as batch_id, c.tokens,
       c.sequences, c.longest, if(c.sure, c.slots, null) as slots
from homes h asof join known c on c.process = h.process and c.scope_id = h.home
     and c.micro_batch = h.micro_batch and h.begin_ns >= c.wall_ns
where c.sure or c.before_tokens = c.tokens)
select step, rank, levelled.process, role, phase, kind, level, name, micro_batch, levelled.scope_id as scope,
       parent_id as parent, begin_ns, end_ns, (begin_ns - (select coalesce(min(wall_ns), 0) from processes)) / 1e9 as begin, (end_ns - (select coalesce(min(wall_ns), 0) from processes)) / 1e9 as "end",
       (end_ns - begin_ns) / 1e9 as duration, peak, reserved as reserved_peak, at_begin, at_end, batch_id as batch,
       tokens, slots, sequences, longest, peak_kind, maker::int as maker, source, happened, around
from levelled left join paired on paired.process = levelled.process and paired.scope_id = levelled.scope_id;

create or replace view micro_batches_timed as
with
told as materialized (select * from scopes_nested),
paired as (with recursive
told as materialized (select * from told),
cuts as materialized (
  select process, scope_id, micro_batch, wall_ns, batch_id, tokens, sequences,
         coalesce(list_max(lengths), 0) as longest, sequences * width_tokens as slots,
         lag(wall_ns) over own as before_ns, lag(tokens) over own as before_tokens, lead(wall_ns) over own as next_ns
  from micro_batches where micro_batch is not null
  window own as (partition by process, scope_id, micro_batch order by wall_ns, batch_id)),
firsts as (select process, scope_id, micro_batch, min(wall_ns) as since from cuts group by all),
runs as (select process, scope_id, micro_batch, begin_ns, parent_id as home from told
  where kind = 'micro_batch' and micro_batch is not null and parent_id is not null),
outward as (
  select r.*, f.since from runs r left join firsts f on f.process = r.process
         and f.scope_id = r.home and f.micro_batch = r.micro_batch
  union all
  select o.process, o.scope_id, o.micro_batch, o.begin_ns, t.parent_id as home, f.since
  from outward o join told t on t.process = o.process and t.scope_id = o.home and o.home <> 0
       left join firsts f on f.process = o.process and f.scope_id = t.parent_id
         and f.micro_batch = o.micro_batch
  where (o.since is null or o.since > o.begin_ns) and t.parent_id is not null),
homes as materialized (select * exclude (since) from outward where since <= begin_ns),
moments as (
  select * exclude (next_ns), null::bigint as begun from cuts where next_ns is distinct from wall_ns
  union all by name select process, home as scope_id, micro_batch, begin_ns as wall_ns, begin_ns as begun
  from homes),
known as (
  select * exclude (begun, last_ns), before_ns is null or coalesce(last_ns >= before_ns, false) as sure
  from (select *, max(begun) over (partition by process, scope_id, micro_batch order by wall_ns, begun nulls first
                                   rows between unbounded preceding and current row) as last_ns from moments)
  where begun is null)
select h.process, h.scope_id, if(c.sure, c.batch_id, null) as batch_id, c.tokens,
       c.sequences, c.longest, if(c.sure, c.slots, null) as slots
from homes h asof join known c on c.process = h.process and c.scope_id = h.home
     and c.micro_batch = h.micro_batch and h.begin_ns >= c.wall_ns
where c.sure or c.before_tokens = c.tokens)
select step, rank, told.process, role, phase, kind, 'micro_batch' as level, micro_batch, told.scope_id as scope,
       begin_ns, end_ns, (end_ns - begin_ns) / 1e9 as duration, batch_id as batch, tokens, slots, sequences, longest
from told left join paired on paired.process = told.process and paired.scope_id = told.scope_id
where kind = 'micro_batch';

create or replace view steps as
select step, count(distinct rank) as ranks, min(begin_ns) as begin_ns, max(end_ns) as end_ns,
       max(duration) as step_time_s
from scopes where kind = 'step' and step is not null group by step;

create or replace view micro_batches_counted as
select step, rank, process, role, phase, batch_id as batch,
       dense_rank() over (partition by process, step, phase order by batch_id) as round,
       (phase is not distinct from first_value(phase) over (partition by process, step order by batch_id))::int as once,
       micro_batch, tokens, sequences, coalesce(list_max(lengths), 0) as longest,
       coalesce(list_min(lengths), 0) as shortest, width_tokens as width, cap_tokens as cap, workload,
       over_cap::int as over, source, wall_ns
from micro_batches;

create or replace view padding_counted as
with
fields as materialized (
  select process, coalesce(step, -1) as step, source, batch_id, field, any_value(rank) as rank,
         max(rectangle_tokens) as rectangle, max(valid_tokens) as valid, min(cause) as first
  from padding group by process, coalesce(step, -1), source, batch_id, field),
odd as materialized (
  select process, step, source, batch_id, max(rectangle) as widest from fields group by process, step, source, batch_id
  having max(rectangle) is distinct from max(rectangle) filter (field = 'input_ids')),
chosen as materialized (
  select odd.process, odd.step, odd.source, odd.batch_id, min(field) as field
  from fields join odd on odd.process = fields.process and odd.step = fields.step and odd.source = fields.source
       and odd.batch_id = fields.batch_id and odd.widest = fields.rectangle
  group by all),
cut as (select distinct process, step from fields where source in ('seqlen_balancing.partition', 'packing.packed', 'batched_data_dict.partition', 'micro_batch.told')),
told as (
  select p.process, any_value(p.rank) as rank, coalesce(p.step, -1) as step, p.source, p.field, p.cause,
         p.field = coalesce(chosen.field, 'input_ids') as widest, sum(p.tokens) as tokens, sum(p.bytes) as bytes,
         0 as rectangle, 0 as valid
  from padding p left join chosen on chosen.process = p.process and chosen.step = coalesce(p.step, -1)
       and chosen.source = p.source and chosen.batch_id = p.batch_id
  group by p.process, coalesce(p.step, -1), p.source, p.field, p.cause, widest
  union all
  select fields.process, any_value(fields.rank), fields.step, fields.source, fields.field, first,
         fields.field = coalesce(chosen.field, 'input_ids') as widest, 0, 0, sum(rectangle), sum(valid)
  from fields left join chosen on chosen.process = fields.process and chosen.step = fields.step
       and chosen.source = fields.source and chosen.batch_id = fields.batch_id
  group by fields.process, fields.step, fields.source, fields.field, first, widest)
select nullif(told.step, -1) as step, any_value(rank) as rank, told.process, source, field, cause,
       case when source not in ('seqlen_balancing.partition', 'packing.packed', 'batched_data_dict.partition', 'micro_batch.told') and (cut.process is not null or source in ('codec.packed', 'padding.added', 'ulysses.padded')) then 0
            when widest then 2 else 1 end as counted,
       sum(tokens)::bigint as tokens, sum(bytes)::bigint as bytes, sum(rectangle)::bigint as rectangle,
       sum(valid)::bigint as valid
from told left join cut on cut.process = told.process and cut.step = told.step
group by told.process, told.step, source, field, cause, counted;

create or replace view padding_widest as
with
batches as materialized (
  select process, any_value(rank) as rank, coalesce(step, -1) as step, source, batch_id,
         max(rectangle_tokens) as widest,
         max(rectangle_tokens) filter (field = 'input_ids') as rectangle,
         max(valid_tokens) filter (field = 'input_ids') as valid
  from padding group by process, coalesce(step, -1), source, batch_id),
cut as (select distinct process, step from batches where source in ('seqlen_balancing.partition', 'packing.packed', 'batched_data_dict.partition', 'micro_batch.told')),
odd as materialized (
  select process, step, source, batch_id, widest from batches where widest is distinct from rectangle),
chosen as materialized (
  select odd.process, odd.step, odd.source, odd.batch_id, min(field) as field
  from padding p join odd on odd.process = p.process and odd.step = coalesce(p.step, -1) and odd.source = p.source
       and odd.batch_id = p.batch_id and odd.widest = p.rectangle_tokens
  group by all),
ledger as (
  select process, rank, coalesce(step, -1) as step, source, cause, tokens from padding p
  where field = 'input_ids' and not exists (
    select 1 from odd where odd.process = p.process and odd.step = coalesce(p.step, -1) and odd.source = p.source
      and odd.batch_id = p.batch_id)
  union all
  select p.process, p.rank, chosen.step, p.source, p.cause, p.tokens
  from padding p join chosen on chosen.process = p.process and chosen.step = coalesce(p.step, -1)
       and chosen.source = p.source and chosen.batch_id = p.batch_id and chosen.field = p.field),
odd_sizes as (
  select chosen.process, any_value(p.rank) as rank, chosen.step, chosen.source, chosen.batch_id,
         max(p.rectangle_tokens) as rectangle, max(p.valid_tokens) as valid
  from padding p join chosen on chosen.process = p.process and chosen.step = coalesce(p.step, -1)
       and chosen.source = p.source and chosen.batch_id = p.batch_id and chosen.field = p.field
  group by chosen.process, chosen.step, chosen.source, chosen.batch_id),
summed as (
  select process, any_value(rank) as rank, step, source, cause, sum(tokens) as tokens, 0 as rectangle, 0 as valid,
         0 as batches
  from ledger group by process, step, source, cause
  union all
  select process, any_value(rank), step, source, null, 0, sum(rectangle), sum(valid), count(*)
  from batches where widest is not distinct from rectangle group by process, step, source
  union all
  select process, any_value(rank), step, source, null, 0, sum(rectangle), sum(valid), count(*)
  from odd_sizes group by process, step, source)
select nullif(summed.step, -1) as step, rank, summed.process, source, cause,
       if(source in ('seqlen_balancing.partition', 'packing.packed', 'batched_data_dict.partition', 'micro_batch.told') or (cut.process is null and source not in ('codec.packed', 'padding.added', 'ulysses.padded')), 2, 0) as counted,
       tokens::bigint as tokens, rectangle::bigint as rectangle, valid::bigint as valid, batches
from summed left join cut on cut.process = summed.process and cut.step = summed.step;
