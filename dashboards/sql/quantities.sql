-- Each quantity by step: `tables.sql` and `views.sql` come before. A quantity of bytes is the largest of the run, one
-- that is counted its sum, and any other the median of its steps.

-- Step time (s). Time of the slowest rank: the others wait for it.
create or replace view quantity_step_time as
select step, value from (select step, max(value) as value from (select "step", max(v)::double as value from (select "step" as "step", "duration" as v from (select step, rank, process, role, phase, kind, name, micro_batch, scope_id as scope,
       wall_ns - coalesce(host_duration_ns, 0) as begin_ns, wall_ns as end_ns,
       coalesce(host_duration_ns, 0) / 1e9 as duration, peak_allocated_bytes as peak,
       peak_reserved_bytes as reserved_peak, allocated_bytes as at_end, peak_kind, source
from memory where edge = 'leave'
union all
select step, rank, process, role, phase, substr(point, 7), name, micro_batch, scope_id, wall_ns - duration_ns, wall_ns,
       duration_ns / 1e9, null, null, null, null, null
from scope_calls) where coalesce("kind" = 'step', false) and "duration" is not null and not isnan(("duration")::double)) group by "step") group by step) where step is not null order by step nulls last;

-- Tokens (tokens). Each token of the batch counts once, over all ranks.
create or replace view quantity_tokens as
select step, value from (select step, max(value) as value from (select "step", sum(v)::double as value from (select "step" as "step", "tokens" as v from micro_batches_counted where coalesce(("once")::double in (1.0), false) and "tokens" is not null and not isnan(("tokens")::double)) group by "step") group by step) where step is not null order by step nulls last;

-- Tokens per second (tokens/s). Each token of the batch counts once, over all ranks.
create or replace view quantity_tokens_per_second as
select step, value from (select step, max(over / nullif(under, 0)) as value from (select o."step", o.value as over, u.value as under from (select "step", sum(v)::double as value from (select "step" as "step", "tokens" as v from micro_batches_counted where coalesce(("once")::double in (1.0), false) and "tokens" is not null and not isnan(("tokens")::double)) group by "step") o
        left join (select "step", max(v)::double as value from (select "step" as "step", "duration" as v from (select step, rank, process, role, phase, kind, name, micro_batch, scope_id as scope,
       wall_ns - coalesce(host_duration_ns, 0) as begin_ns, wall_ns as end_ns,
       coalesce(host_duration_ns, 0) / 1e9 as duration, peak_allocated_bytes as peak,
       peak_reserved_bytes as reserved_peak, allocated_bytes as at_end, peak_kind, source
from memory where edge = 'leave'
union all
select step, rank, process, role, phase, substr(point, 7), name, micro_batch, scope_id, wall_ns - duration_ns, wall_ns,
       duration_ns / 1e9, null, null, null, null, null
from scope_calls) where coalesce("kind" = 'step', false) and "duration" is not null and not isnan(("duration")::double)) group by "step") u on o."step" is not distinct from u."step") group by step) where step is not null order by step nulls last;

-- Tokens processed (tokens). A token counts in each phase and each epoch that computes on it, over all ranks.
create or replace view quantity_tokens_processed as
select step, value from (select step, max(value) as value from (select "step", sum(v)::double as value from (select "step" as "step", "tokens" as v from (select "step" as "step", "rank" as "rank", "process" as "process", who(rank, process) as "who", "role" as "role", "phase" as "phase", "batch_id" as "batch", "micro_batch" as "micro_batch", "tokens" as "tokens", "sequences" as "sequences", coalesce(list_max(lengths), 0) as "longest", "width_tokens" as "width", "cap_tokens" as "cap", "workload" as "workload", "over_cap" as "over", wall_ns from micro_batches where true) where "tokens" is not null and not isnan(("tokens")::double)) group by "step") group by step) where step is not null order by step nulls last;

-- Tokens processed per second (tokens/s). A token counts in each phase and each epoch that computes on it, over all ranks.
create or replace view quantity_tokens_processed_per_second as
select step, value from (select step, max(over / nullif(under, 0)) as value from (select o."step", o.value as over, u.value as under from (select "step", sum(v)::double as value from (select "step" as "step", "tokens" as v from (select "step" as "step", "rank" as "rank", "process" as "process", who(rank, process) as "who", "role" as "role", "phase" as "phase", "batch_id" as "batch", "micro_batch" as "micro_batch", "tokens" as "tokens", "sequences" as "sequences", coalesce(list_max(lengths), 0) as "longest", "width_tokens" as "width", "cap_tokens" as "cap", "workload" as "workload", "over_cap" as "over", wall_ns from micro_batches where true) where "tokens" is not null and not isnan(("tokens")::double)) group by "step") o
        left join (select "step", max(v)::double as value from (select "step" as "step", "duration" as v from (select step, rank, process, role, phase, kind, name, micro_batch, scope_id as scope,
       wall_ns - coalesce(host_duration_ns, 0) as begin_ns, wall_ns as end_ns,
       coalesce(host_duration_ns, 0) / 1e9 as duration, peak_allocated_bytes as peak,
       peak_reserved_bytes as reserved_peak, allocated_bytes as at_end, peak_kind, source
from memory where edge = 'leave'
union all
select step, rank, process, role, phase, substr(point, 7), name, micro_batch, scope_id, wall_ns - duration_ns, wall_ns,
       duration_ns / 1e9, null, null, null, null, null
from scope_calls) where coalesce("kind" = 'step', false) and "duration" is not null and not isnan(("duration")::double)) group by "step") u on o."step" is not distinct from u."step") group by step) where step is not null order by step nulls last;

-- Peak memory (bytes). There is room for more tokens.
create or replace view quantity_peak_memory as
select step, value from (select step, max(value) as value from (select "step", max(v)::double as value from (select "step" as "step", "peak" as v from (select step, rank, process, role, phase, kind, name, micro_batch, scope_id as scope, parent_id as parent,
       wall_ns - coalesce(host_duration_ns, 0) as begin_ns, wall_ns as end_ns, peak_allocated_bytes as peak,
       peak_reserved_bytes as reserved_peak, peak_kind, source, 1 as maker
from memory where edge = 'leave' and peak_allocated_bytes is not null
  and (peak_kind is distinct from 'at_most' or not exists (
    select 1 from memory where edge = 'leave' and peak_allocated_bytes is not null
      and peak_kind is distinct from 'at_most'))) where coalesce(("maker")::double in (1.0), false) and "peak" is not null and not isnan(("peak")::double)) group by "step") group by step) where step is not null order by step nulls last;

-- Rank imbalance (ratio). Ranks get nearly equal work.
create or replace view quantity_rank_imbalance as
select step, value from (select step, max(value) as value from (select "step", "phase", max(value) as value from (select "step", "phase", "round", if(sum(v) > 0 and count(v) >= 2, max(v)::double * count(v) / nullif(sum(v)::double, 0), null) as value
            from (select "step", "phase", "round", "rank", sum(v) as v from (select "step" as "step", "phase" as "phase", "round" as "round", "rank" as "rank", "tokens" as v from micro_batches_counted where "tokens" is not null and not isnan(("tokens")::double) and rank is not null) group by "step", "phase", "round", "rank") group by "step", "phase", "round") group by "step", "phase") group by step) where step is not null order by step nulls last;

-- Wait after each micro-batch (ratio). Ranks that wait after every micro-batch lose little.
create or replace view quantity_sync_wait as
select step, value from (select step, max(value) as value from (select "step", "phase", max(value) as value from (select "step", "phase", "round", if(sum(mean) > 0 and max(compared) >= 2, sum(largest)::double / sum(mean)::double, null) as value
        from (select "step", "phase", "round", "micro_batch", max(v) as largest, (sum(v)::double / count(v))::decimal(38, 12) as mean,
        count(v) as compared from (select "step", "phase", "round", "rank", "micro_batch", sum(v) as v from (select "step" as "step", "phase" as "phase", "round" as "round", "rank" as "rank", "micro_batch" as "micro_batch", "tokens" as v from micro_batches_counted where "tokens" is not null and not isnan(("tokens")::double) and rank is not null) group by "step", "phase", "round", "rank", "micro_batch") group by "step", "phase", "round", "micro_batch") group by "step", "phase", "round") group by "step", "phase") group by step) where step is not null order by step nulls last;

-- Imbalance of a rank's micro-batches (ratio). Largest ÷ mean micro-batch of a rank, for the worst rank.
create or replace view quantity_micro_batch_imbalance as
select step, value from (select step, max(value) as value from (select "step", "phase", max(value) as value from (select "step", "phase", "round", "process", if(sum(v) > 0 and count(v) >= 1, max(v)::double * count(v) / nullif(sum(v)::double, 0), null) as value
            from (select "step", "phase", "round", "process", "micro_batch", sum(v) as v from (select "step" as "step", "phase" as "phase", "round" as "round", "process" as "process", "micro_batch" as "micro_batch", "tokens" as v from micro_batches_counted where "tokens" is not null and not isnan(("tokens")::double)) group by "step", "phase", "round", "process", "micro_batch") group by "step", "phase", "round", "process") group by "step", "phase") group by step) where step is not null order by step nulls last;

-- Padding tax (percent). Little is computed on padding.
create or replace view quantity_padding_tax as
select step, value from (select step, max(value) as value from (select "step", sum(v)::double / nullif(sum(u)::double, 0) as value from (select "step" as "step", "tokens" as v, "rectangle" as u from padding_widest where coalesce(("counted")::double in (2.0), false) and "tokens" is not null and not isnan(("tokens")::double)) group by "step") group by step) where step is not null order by step nulls last;

-- Tokens that carried policy gradient (percent). Share of the sampled tokens: `probe ledger` says what became of the others.
create or replace view quantity_carried_tokens as
select step, value from (select step, max(over / nullif(under, 0)) as value from (select o."step", o.value as over, u.value as under from (select "step", sum(v)::double as value from (select "step" as "step", "tokens" as v from (select "step" as "step", "rank" as "rank", "process" as "process", who(rank, process) as "who", "fate" as "fate", "tokens" as "tokens", case when fate = 'carried' then batch_tokens else 0 end as "of", "samples" as "samples", "complete" as "complete", coalesce(reach_known, complete) as "reached", wall_ns from token_fates where true) where coalesce("fate" = 'carried', false) and coalesce(("complete")::double in (1.0), false) and "tokens" is not null and not isnan(("tokens")::double)) group by "step") o
        left join (select "step", sum(v)::double as value from (select "step" as "step", "of" as v from (select "step" as "step", "rank" as "rank", "process" as "process", who(rank, process) as "who", "fate" as "fate", "tokens" as "tokens", case when fate = 'carried' then batch_tokens else 0 end as "of", "samples" as "samples", "complete" as "complete", coalesce(reach_known, complete) as "reached", wall_ns from token_fates where true) where coalesce("fate" = 'carried', false) and coalesce(("complete")::double in (1.0), false) and "of" is not null and not isnan(("of")::double)) group by "step") u on o."step" is not distinct from u."step") group by step) where step is not null order by step nulls last;

-- Tokens that reached the loss with an advantage (percent). Share of the sampled tokens: at most these carried policy gradient.
create or replace view quantity_reached_tokens as
select step, value from (select step, max(over / nullif(under, 0)) as value from (select o."step", o.value as over, u.value as under from (select "step", sum(v)::double as value from (select "step" as "step", "tokens" as v from (select "step" as "step", "rank" as "rank", "process" as "process", who(rank, process) as "who", "fate" as "fate", "tokens" as "tokens", case when fate = 'carried' then batch_tokens else 0 end as "of", "samples" as "samples", "complete" as "complete", coalesce(reach_known, complete) as "reached", wall_ns from token_fates where true) where coalesce("fate" = 'carried' or "fate" = 'clipped' or "fate" = 'clip_unknown', false) and coalesce(("reached")::double in (1.0), false) and "tokens" is not null and not isnan(("tokens")::double)) group by "step") o
        left join (select "step", sum(v)::double as value from (select "step" as "step", "of" as v from (select "step" as "step", "rank" as "rank", "process" as "process", who(rank, process) as "who", "fate" as "fate", "tokens" as "tokens", case when fate = 'carried' then batch_tokens else 0 end as "of", "samples" as "samples", "complete" as "complete", coalesce(reach_known, complete) as "reached", wall_ns from token_fates where true) where coalesce("fate" = 'carried', false) and coalesce(("reached")::double in (1.0), false) and "of" is not null and not isnan(("of")::double)) group by "step") u on o."step" is not distinct from u."step") group by step) where step is not null order by step nulls last;

-- Reward, mean (number). Logged by the trainer.
create or replace view quantity_reward as
select step, value from (select step, max(value) as value from (select "step", sum(v order by v)::double / count(v) as value from (select * from (select "step" as "step", "value" as v, list_position(['reward/mean', 'critic/score/mean', 'critic/rewards/mean', 'reward', 'train/reward'], "key") as preference from (select (wall_ns - 0) / 1e9 as "t", "step" as "step", "rank" as "rank", "process" as "process", who(rank, process) as "who", "key" as "key", "value" as "value", source = 'probe' as "own", wall_ns from scalars where true) where coalesce(("own")::double in (0.0), false) and coalesce("key" = 'reward/mean' or "key" = 'critic/score/mean' or "key" = 'critic/rewards/mean' or "key" = 'reward' or "key" = 'train/reward', false) and "value" is not null and not isnan(("value")::double)) qualify preference = min(preference) over (partition by "step")) group by "step") group by step) where step is not null order by step nulls last;

-- Cost of probe (percent). Observing costs next to nothing.
create or replace view quantity_own_cost as
select step, value from (select step, max(over / nullif(under, 0)) as value from (select o."step", o."who", o.value as over, u.value as under from (select "step", "who", max(v)::double as value from (select "step" as "step", who(rank, process) as "who", "value" as v from (select (wall_ns - 0) / 1e9 as "t", "step" as "step", "rank" as "rank", "process" as "process", who(rank, process) as "who", "key" as "key", "value" as "value", source = 'probe' as "own", wall_ns from scalars where true) where coalesce("key" = 'probe/cost/overhead_ms', false) and "value" is not null and not isnan(("value")::double)) group by "step", "who") o
        left join (select "step", "who", max(v)::double as value from (select "step" as "step", who(rank, process) as "who", "value" as v from (select (wall_ns - 0) / 1e9 as "t", "step" as "step", "rank" as "rank", "process" as "process", who(rank, process) as "who", "key" as "key", "value" as "value", source = 'probe' as "own", wall_ns from scalars where true) where coalesce("key" = 'probe/cost/step_ms', false) and "value" is not null and not isnan(("value")::double)) group by "step", "who") u on o."step" is not distinct from u."step" and o."who" is not distinct from u."who") group by step) where step is not null order by step nulls last;

-- Probe's own errors (count). probe itself had no errors.
create or replace view quantity_alerts as
select step, value from (select step, max(value) as value from (select "step", sum(v)::double as value from (select "step" as "step", "count" as v from (select (wall_ns - 0) / 1e9 as "t", "step" as "step", "rank" as "rank", "process" as "process", who(rank, process) as "who", "kind" as "kind", "where" as "where", "message" as "message", case when kind = 'listener' then 1 else count end as "count", "switched_off" as "off", wall_ns from incidents where true) where not (coalesce("kind" = 'budget', false)) and "count" is not null and not isnan(("count")::double)) group by "step") group by step) where step is not null order by step nulls last;
