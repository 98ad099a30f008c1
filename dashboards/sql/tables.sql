-- The tables of a run, for DuckDB alone: `set variable run = '/runs/grpo/first'` comes first, with the run's directory.
-- It reads the run's Parquet files: what is still in JSON lines (of a run that is being written) isn't in there.
--
-- Of several launches an attempt hides the rows of earlier ones from its first step on, and a rank that a process
-- learnt late stands on all of its rows. What is shown is worked out here, once: read the file again where the run has
-- grown.

set variable process_files = (select list(file) from glob(getvariable('run') || '/parts/process-*.parquet'));
set variable memory_files = (select list(file) from glob(getvariable('run') || '/parts/memory-*.parquet'));
set variable host_memory_files = (select list(file) from glob(getvariable('run') || '/parts/host_memory-*.parquet'));
set variable micro_batches_files = (select list(file) from glob(getvariable('run') || '/parts/micro_batches-*.parquet'));
set variable partitions_files = (select list(file) from glob(getvariable('run') || '/parts/partitions-*.parquet'));
set variable padding_files = (select list(file) from glob(getvariable('run') || '/parts/padding-*.parquet'));
set variable samples_files = (select list(file) from glob(getvariable('run') || '/parts/samples-*.parquet'));
set variable token_blocks_files = (select list(file) from glob(getvariable('run') || '/parts/token_blocks-*.parquet'));
set variable rollouts_files = (select list(file) from glob(getvariable('run') || '/parts/rollouts-*.parquet'));
set variable token_fates_files = (select list(file) from glob(getvariable('run') || '/parts/token_fates-*.parquet'));
set variable later_passes_files = (select list(file) from glob(getvariable('run') || '/parts/later_passes-*.parquet'));
set variable token_identity_files = (select list(file) from glob(getvariable('run') || '/parts/token_identity-*.parquet'));
set variable group_baselines_files = (select list(file) from glob(getvariable('run') || '/parts/group_baselines-*.parquet'));
set variable calls_files = (select list(file) from glob(getvariable('run') || '/parts/calls-*.parquet'));
set variable reductions_files = (select list(file) from glob(getvariable('run') || '/parts/reductions-*.parquet'));
set variable scalars_files = (select list(file) from glob(getvariable('run') || '/parts/scalars-*.parquet'));
set variable incidents_files = (select list(file) from glob(getvariable('run') || '/parts/incidents-*.parquet'));
set variable failures_files = (select list(file) from glob(getvariable('run') || '/parts/failures-*.parquet'));
set variable stacks_files = (select list(file) from glob(getvariable('run') || '/parts/stacks-*.parquet'));

create or replace view process_rows as
select distinct coalesce("time_ns", 0) as "time_ns", coalesce("attempt", 1) as "attempt", coalesce("process", '') as "process", "rank", "step", "role", "phase", "micro_batch", coalesce("scope_id", 0) as "scope_id", coalesce("scope", '') as "scope", coalesce("schema_version", 2) as "schema_version", coalesce("revision", 0) as "revision", coalesce("wall_ns", 0) as "wall_ns", coalesce("pid", 0) as "pid", coalesce("host", '') as "host", coalesce("world_size", 1) as "world_size", coalesce("device", '') as "device", coalesce("device_name", '') as "device_name", coalesce("name", '') as "name", coalesce("node", '') as "node", "local_rank", coalesce("adapters", '') as "adapters", coalesce("tables", '') as "tables"
from read_parquet(coalesce(getvariable('process_files'), getvariable('process_files')), hive_partitioning = false,
  schema = map {'time_ns': {name: 'time_ns', type: 'BIGINT', default_value: NULL},
  'attempt': {name: 'attempt', type: 'BIGINT', default_value: NULL},
  'process': {name: 'process', type: 'VARCHAR', default_value: NULL},
  'rank': {name: 'rank', type: 'BIGINT', default_value: NULL},
  'step': {name: 'step', type: 'BIGINT', default_value: NULL},
  'role': {name: 'role', type: 'VARCHAR', default_value: NULL},
  'phase': {name: 'phase', type: 'VARCHAR', default_value: NULL},
  'micro_batch': {name: 'micro_batch', type: 'BIGINT', default_value: NULL},
  'scope_id': {name: 'scope_id', type: 'BIGINT', default_value: NULL},
  'scope': {name: 'scope', type: 'VARCHAR', default_value: NULL},
  'schema_version': {name: 'schema_version', type: 'BIGINT', default_value: NULL},
  'revision': {name: 'revision', type: 'BIGINT', default_value: NULL},
  'wall_ns': {name: 'wall_ns', type: 'BIGINT', default_value: NULL},
  'pid': {name: 'pid', type: 'BIGINT', default_value: NULL},
  'host': {name: 'host', type: 'VARCHAR', default_value: NULL},
  'world_size': {name: 'world_size', type: 'BIGINT', default_value: NULL},
  'device': {name: 'device', type: 'VARCHAR', default_value: NULL},
  'device_name': {name: 'device_name', type: 'VARCHAR', default_value: NULL},
  'name': {name: 'name', type: 'VARCHAR', default_value: NULL},
  'node': {name: 'node', type: 'VARCHAR', default_value: NULL},
  'local_rank': {name: 'local_rank', type: 'BIGINT', default_value: NULL},
  'adapters': {name: 'adapters', type: 'VARCHAR', default_value: NULL},
  'tables': {name: 'tables', type: 'VARCHAR', default_value: NULL}})
where getvariable('process_files') is not null;

create or replace view memory_rows as
select coalesce("time_ns", 0) as "time_ns", coalesce("attempt", 1) as "attempt", coalesce("process", '') as "process", "rank", "step", "role", "phase", "micro_batch", coalesce("scope_id", 0) as "scope_id", coalesce("scope", '') as "scope", "edge", coalesce("kind", '') as "kind", coalesce("name", '') as "name", "parent_id", coalesce("device", '') as "device", coalesce("source", '') as "source", "allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "peak_kind", "device_used_bytes", "device_total_bytes", "non_torch_bytes", "other_processes_bytes", "process_rss_bytes", "host_duration_ns", "device_duration_ns", "alloc_retries", "wall_ns"
from read_parquet(coalesce(getvariable('memory_files'), getvariable('process_files')), hive_partitioning = false,
  schema = map {'time_ns': {name: 'time_ns', type: 'BIGINT', default_value: NULL},
  'attempt': {name: 'attempt', type: 'BIGINT', default_value: NULL},
  'process': {name: 'process', type: 'VARCHAR', default_value: NULL},
  'rank': {name: 'rank', type: 'BIGINT', default_value: NULL},
  'step': {name: 'step', type: 'BIGINT', default_value: NULL},
  'role': {name: 'role', type: 'VARCHAR', default_value: NULL},
  'phase': {name: 'phase', type: 'VARCHAR', default_value: NULL},
  'micro_batch': {name: 'micro_batch', type: 'BIGINT', default_value: NULL},
  'scope_id': {name: 'scope_id', type: 'BIGINT', default_value: NULL},
  'scope': {name: 'scope', type: 'VARCHAR', default_value: NULL},
  'edge': {name: 'edge', type: 'VARCHAR', default_value: NULL},
  'kind': {name: 'kind', type: 'VARCHAR', default_value: NULL},
  'name': {name: 'name', type: 'VARCHAR', default_value: NULL},
  'parent_id': {name: 'parent_id', type: 'BIGINT', default_value: NULL},
  'device': {name: 'device', type: 'VARCHAR', default_value: NULL},
  'source': {name: 'source', type: 'VARCHAR', default_value: NULL},
  'allocated_bytes': {name: 'allocated_bytes', type: 'BIGINT', default_value: NULL},
  'reserved_bytes': {name: 'reserved_bytes', type: 'BIGINT', default_value: NULL},
  'peak_allocated_bytes': {name: 'peak_allocated_bytes', type: 'BIGINT', default_value: NULL},
  'peak_reserved_bytes': {name: 'peak_reserved_bytes', type: 'BIGINT', default_value: NULL},
  'peak_kind': {name: 'peak_kind', type: 'VARCHAR', default_value: NULL},
  'device_used_bytes': {name: 'device_used_bytes', type: 'BIGINT', default_value: NULL},
  'device_total_bytes': {name: 'device_total_bytes', type: 'BIGINT', default_value: NULL},
  'non_torch_bytes': {name: 'non_torch_bytes', type: 'BIGINT', default_value: NULL},
  'other_processes_bytes': {name: 'other_processes_bytes', type: 'BIGINT', default_value: NULL},
  'process_rss_bytes': {name: 'process_rss_bytes', type: 'BIGINT', default_value: NULL},
  'host_duration_ns': {name: 'host_duration_ns', type: 'BIGINT', default_value: NULL},
  'device_duration_ns': {name: 'device_duration_ns', type: 'BIGINT', default_value: NULL},
  'alloc_retries': {name: 'alloc_retries', type: 'BIGINT', default_value: NULL},
  'wall_ns': {name: 'wall_ns', type: 'BIGINT', default_value: NULL}})
where getvariable('memory_files') is not null;

create or replace view host_memory_rows as
select coalesce("time_ns", 0) as "time_ns", coalesce("attempt", 1) as "attempt", coalesce("process", '') as "process", "rank", "step", "role", "phase", "micro_batch", coalesce("scope_id", 0) as "scope_id", coalesce("scope", '') as "scope", "rss_bytes", "pss_bytes", "uss_bytes", "shared_bytes", "shmem_bytes", "pinned_bytes", "torch_pinned_bytes", "torch_pinned_active_bytes", "swapped_bytes", "cgroup_limit_bytes", "cgroup_used_bytes", "cgroup_reclaimable_bytes", "wall_ns"
from read_parquet(coalesce(getvariable('host_memory_files'), getvariable('process_files')), hive_partitioning = false,
  schema = map {'time_ns': {name: 'time_ns', type: 'BIGINT', default_value: NULL},
  'attempt': {name: 'attempt', type: 'BIGINT', default_value: NULL},
  'process': {name: 'process', type: 'VARCHAR', default_value: NULL},
  'rank': {name: 'rank', type: 'BIGINT', default_value: NULL},
  'step': {name: 'step', type: 'BIGINT', default_value: NULL},
  'role': {name: 'role', type: 'VARCHAR', default_value: NULL},
  'phase': {name: 'phase', type: 'VARCHAR', default_value: NULL},
  'micro_batch': {name: 'micro_batch', type: 'BIGINT', default_value: NULL},
  'scope_id': {name: 'scope_id', type: 'BIGINT', default_value: NULL},
  'scope': {name: 'scope', type: 'VARCHAR', default_value: NULL},
  'rss_bytes': {name: 'rss_bytes', type: 'BIGINT', default_value: NULL},
  'pss_bytes': {name: 'pss_bytes', type: 'BIGINT', default_value: NULL},
  'uss_bytes': {name: 'uss_bytes', type: 'BIGINT', default_value: NULL},
  'shared_bytes': {name: 'shared_bytes', type: 'BIGINT', default_value: NULL},
  'shmem_bytes': {name: 'shmem_bytes', type: 'BIGINT', default_value: NULL},
  'pinned_bytes': {name: 'pinned_bytes', type: 'BIGINT', default_value: NULL},
  'torch_pinned_bytes': {name: 'torch_pinned_bytes', type: 'BIGINT', default_value: NULL},
  'torch_pinned_active_bytes': {name: 'torch_pinned_active_bytes', type: 'BIGINT', default_value: NULL},
  'swapped_bytes': {name: 'swapped_bytes', type: 'BIGINT', default_value: NULL},
  'cgroup_limit_bytes': {name: 'cgroup_limit_bytes', type: 'BIGINT', default_value: NULL},
  'cgroup_used_bytes': {name: 'cgroup_used_bytes', type: 'BIGINT', default_value: NULL},
  'cgroup_reclaimable_bytes': {name: 'cgroup_reclaimable_bytes', type: 'BIGINT', default_value: NULL},
  'wall_ns': {name: 'wall_ns', type: 'BIGINT', default_value: NULL}})
where getvariable('host_memory_files') is not null;

create or replace view micro_batches_rows as
select coalesce("time_ns", 0) as "time_ns", coalesce("attempt", 1) as "attempt", coalesce("process", '') as "process", "rank", "step", "role", "phase", "micro_batch", coalesce("scope_id", 0) as "scope_id", coalesce("scope", '') as "scope", "batch_id", "micro_batches", "sequences", "lengths", coalesce("indices", []) as "indices", "tokens", "width_tokens", "cap_tokens", "utilisation_ratio", coalesce("over_cap", false) as "over_cap", "workload", "effective_tokens", coalesce("source", '') as "source", "wall_ns"
from read_parquet(coalesce(getvariable('micro_batches_files'), getvariable('process_files')), hive_partitioning = false,
  schema = map {'time_ns': {name: 'time_ns', type: 'BIGINT', default_value: NULL},
  'attempt': {name: 'attempt', type: 'BIGINT', default_value: NULL},
  'process': {name: 'process', type: 'VARCHAR', default_value: NULL},
  'rank': {name: 'rank', type: 'BIGINT', default_value: NULL},
  'step': {name: 'step', type: 'BIGINT', default_value: NULL},
  'role': {name: 'role', type: 'VARCHAR', default_value: NULL},
  'phase': {name: 'phase', type: 'VARCHAR', default_value: NULL},
  'micro_batch': {name: 'micro_batch', type: 'BIGINT', default_value: NULL},
  'scope_id': {name: 'scope_id', type: 'BIGINT', default_value: NULL},
  'scope': {name: 'scope', type: 'VARCHAR', default_value: NULL},
  'batch_id': {name: 'batch_id', type: 'BIGINT', default_value: NULL},
  'micro_batches': {name: 'micro_batches', type: 'BIGINT', default_value: NULL},
  'sequences': {name: 'sequences', type: 'BIGINT', default_value: NULL},
  'lengths': {name: 'lengths', type: 'BIGINT[]', default_value: NULL},
  'indices': {name: 'indices', type: 'BIGINT[]', default_value: NULL},
  'tokens': {name: 'tokens', type: 'BIGINT', default_value: NULL},
  'width_tokens': {name: 'width_tokens', type: 'BIGINT', default_value: NULL},
  'cap_tokens': {name: 'cap_tokens', type: 'BIGINT', default_value: NULL},
  'utilisation_ratio': {name: 'utilisation_ratio', type: 'DOUBLE', default_value: NULL},
  'over_cap': {name: 'over_cap', type: 'BOOLEAN', default_value: NULL},
  'workload': {name: 'workload', type: 'DOUBLE', default_value: NULL},
  'effective_tokens': {name: 'effective_tokens', type: 'BIGINT', default_value: NULL},
  'source': {name: 'source', type: 'VARCHAR', default_value: NULL},
  'wall_ns': {name: 'wall_ns', type: 'BIGINT', default_value: NULL}})
where getvariable('micro_batches_files') is not null;

create or replace view partitions_rows as
select coalesce("time_ns", 0) as "time_ns", coalesce("attempt", 1) as "attempt", coalesce("process", '') as "process", "rank", "step", "role", "phase", "micro_batch", coalesce("scope_id", 0) as "scope_id", coalesce("scope", '') as "scope", "batch_id", "level", "parts", "sequences", coalesce("padded_rows", 0) as "padded_rows", coalesce("packer", '') as "packer", coalesce("arguments", '{}') as "arguments", coalesce("lengths", []) as "lengths", coalesce("assignment", []) as "assignment", coalesce("parts_tokens", []) as "parts_tokens", coalesce("source", '') as "source", "wall_ns"
from read_parquet(coalesce(getvariable('partitions_files'), getvariable('process_files')), hive_partitioning = false,
  schema = map {'time_ns': {name: 'time_ns', type: 'BIGINT', default_value: NULL},
  'attempt': {name: 'attempt', type: 'BIGINT', default_value: NULL},
  'process': {name: 'process', type: 'VARCHAR', default_value: NULL},
  'rank': {name: 'rank', type: 'BIGINT', default_value: NULL},
  'step': {name: 'step', type: 'BIGINT', default_value: NULL},
  'role': {name: 'role', type: 'VARCHAR', default_value: NULL},
  'phase': {name: 'phase', type: 'VARCHAR', default_value: NULL},
  'micro_batch': {name: 'micro_batch', type: 'BIGINT', default_value: NULL},
  'scope_id': {name: 'scope_id', type: 'BIGINT', default_value: NULL},
  'scope': {name: 'scope', type: 'VARCHAR', default_value: NULL},
  'batch_id': {name: 'batch_id', type: 'BIGINT', default_value: NULL},
  'level': {name: 'level', type: 'VARCHAR', default_value: NULL},
  'parts': {name: 'parts', type: 'BIGINT', default_value: NULL},
  'sequences': {name: 'sequences', type: 'BIGINT', default_value: NULL},
  'padded_rows': {name: 'padded_rows', type: 'BIGINT', default_value: NULL},
  'packer': {name: 'packer', type: 'VARCHAR', default_value: NULL},
  'arguments': {name: 'arguments', type: 'VARCHAR', default_value: NULL},
  'lengths': {name: 'lengths', type: 'BIGINT[]', default_value: NULL},
  'assignment': {name: 'assignment', type: 'BIGINT[]', default_value: NULL},
  'parts_tokens': {name: 'parts_tokens', type: 'BIGINT[]', default_value: NULL},
  'source': {name: 'source', type: 'VARCHAR', default_value: NULL},
  'wall_ns': {name: 'wall_ns', type: 'BIGINT', default_value: NULL}})
where getvariable('partitions_files') is not null;

create or replace view padding_rows as
select coalesce("time_ns", 0) as "time_ns", coalesce("attempt", 1) as "attempt", coalesce("process", '') as "process", "rank", "step", "role", "phase", "micro_batch", coalesce("scope_id", 0) as "scope_id", coalesce("scope", '') as "scope", "batch_id", "source", "field", "cause", "tokens", "bytes", "rectangle_tokens", "valid_tokens", coalesce("rows", 0) as "rows", coalesce("width_tokens", 0) as "width_tokens", coalesce("decision", '') as "decision", coalesce("reason", '') as "reason", coalesce("stripped_tokens", 0) as "stripped_tokens", coalesce("stripped_bytes", 0) as "stripped_bytes", "wall_ns"
from read_parquet(coalesce(getvariable('padding_files'), getvariable('process_files')), hive_partitioning = false,
  schema = map {'time_ns': {name: 'time_ns', type: 'BIGINT', default_value: NULL},
  'attempt': {name: 'attempt', type: 'BIGINT', default_value: NULL},
  'process': {name: 'process', type: 'VARCHAR', default_value: NULL},
  'rank': {name: 'rank', type: 'BIGINT', default_value: NULL},
  'step': {name: 'step', type: 'BIGINT', default_value: NULL},
  'role': {name: 'role', type: 'VARCHAR', default_value: NULL},
  'phase': {name: 'phase', type: 'VARCHAR', default_value: NULL},
  'micro_batch': {name: 'micro_batch', type: 'BIGINT', default_value: NULL},
  'scope_id': {name: 'scope_id', type: 'BIGINT', default_value: NULL},
  'scope': {name: 'scope', type: 'VARCHAR', default_value: NULL},
  'batch_id': {name: 'batch_id', type: 'BIGINT', default_value: NULL},
  'source': {name: 'source', type: 'VARCHAR', default_value: NULL},
  'field': {name: 'field', type: 'VARCHAR', default_value: NULL},
  'cause': {name: 'cause', type: 'VARCHAR', default_value: NULL},
  'tokens': {name: 'tokens', type: 'BIGINT', default_value: NULL},
  'bytes': {name: 'bytes', type: 'BIGINT', default_value: NULL},
  'rectangle_tokens': {name: 'rectangle_tokens', type: 'BIGINT', default_value: NULL},
  'valid_tokens': {name: 'valid_tokens', type: 'BIGINT', default_value: NULL},
  'rows': {name: 'rows', type: 'BIGINT', default_value: NULL},
  'width_tokens': {name: 'width_tokens', type: 'BIGINT', default_value: NULL},
  'decision': {name: 'decision', type: 'VARCHAR', default_value: NULL},
  'reason': {name: 'reason', type: 'VARCHAR', default_value: NULL},
  'stripped_tokens': {name: 'stripped_tokens', type: 'BIGINT', default_value: NULL},
  'stripped_bytes': {name: 'stripped_bytes', type: 'BIGINT', default_value: NULL},
  'wall_ns': {name: 'wall_ns', type: 'BIGINT', default_value: NULL}})
where getvariable('padding_files') is not null;

create or replace view samples_rows as
select coalesce("time_ns", 0) as "time_ns", coalesce("attempt", 1) as "attempt", coalesce("process", '') as "process", "rank", "step", "role", "phase", "micro_batch", coalesce("scope_id", 0) as "scope_id", coalesce("scope", '') as "scope", "batch_id", "row", coalesce("uid", '') as "uid", coalesce("group", '') as "group", "prompt_tokens", "response_tokens", "loss_tokens", "turns", "tools", coalesce("ended", '') as "ended", "truncated", "reward", "advantage_mean", "advantage_smallest", "advantage_largest", "rollout_log_prob_mean", "rollout_log_prob_smallest", "log_prob_mean", "log_prob_smallest", "difference_mean", "difference_largest", "difference_at", "entropy_mean", coalesce("nan_count", 0) as "nan_count", "weight_version", coalesce("replica", '') as "replica", "begin_ns", "end_ns", "has_error", "masked", "trainable", coalesce("dropped", '') as "dropped", "passes", coalesce("micro_batches", []) as "micro_batches", coalesce("masked_tokens", 0) as "masked_tokens", coalesce("no_advantage_tokens", 0) as "no_advantage_tokens", coalesce("clipped_tokens", 0) as "clipped_tokens", coalesce("carried_tokens", 0) as "carried_tokens", coalesce("clip_unknown_tokens", 0) as "clip_unknown_tokens", coalesce("unknown_tokens", 0) as "unknown_tokens", coalesce("dropped_tokens", 0) as "dropped_tokens", coalesce("chosen_by", 'all') as "chosen_by", "prompt_text", "response_text", coalesce("prompt_ids", []) as "prompt_ids", coalesce("response_ids", []) as "response_ids", "wall_ns"
from read_parquet(coalesce(getvariable('samples_files'), getvariable('process_files')), hive_partitioning = false,
  schema = map {'time_ns': {name: 'time_ns', type: 'BIGINT', default_value: NULL},
  'attempt': {name: 'attempt', type: 'BIGINT', default_value: NULL},
  'process': {name: 'process', type: 'VARCHAR', default_value: NULL},
  'rank': {name: 'rank', type: 'BIGINT', default_value: NULL},
  'step': {name: 'step', type: 'BIGINT', default_value: NULL},
  'role': {name: 'role', type: 'VARCHAR', default_value: NULL},
  'phase': {name: 'phase', type: 'VARCHAR', default_value: NULL},
  'micro_batch': {name: 'micro_batch', type: 'BIGINT', default_value: NULL},
  'scope_id': {name: 'scope_id', type: 'BIGINT', default_value: NULL},
  'scope': {name: 'scope', type: 'VARCHAR', default_value: NULL},
  'batch_id': {name: 'batch_id', type: 'BIGINT', default_value: NULL},
  'row': {name: 'row', type: 'BIGINT', default_value: NULL},
  'uid': {name: 'uid', type: 'VARCHAR', default_value: NULL},
  'group': {name: 'group', type: 'VARCHAR', default_value: NULL},
  'prompt_tokens': {name: 'prompt_tokens', type: 'BIGINT', default_value: NULL},
  'response_tokens': {name: 'response_tokens', type: 'BIGINT', default_value: NULL},
  'loss_tokens': {name: 'loss_tokens', type: 'BIGINT', default_value: NULL},
  'turns': {name: 'turns', type: 'BIGINT', default_value: NULL},
  'tools': {name: 'tools', type: 'BIGINT', default_value: NULL},
  'ended': {name: 'ended', type: 'VARCHAR', default_value: NULL},
  'truncated': {name: 'truncated', type: 'BOOLEAN', default_value: NULL},
  'reward': {name: 'reward', type: 'DOUBLE', default_value: NULL},
  'advantage_mean': {name: 'advantage_mean', type: 'DOUBLE', default_value: NULL},
  'advantage_smallest': {name: 'advantage_smallest', type: 'DOUBLE', default_value: NULL},
  'advantage_largest': {name: 'advantage_largest', type: 'DOUBLE', default_value: NULL},
  'rollout_log_prob_mean': {name: 'rollout_log_prob_mean', type: 'DOUBLE', default_value: NULL},
  'rollout_log_prob_smallest': {name: 'rollout_log_prob_smallest', type: 'DOUBLE', default_value: NULL},
  'log_prob_mean': {name: 'log_prob_mean', type: 'DOUBLE', default_value: NULL},
  'log_prob_smallest': {name: 'log_prob_smallest', type: 'DOUBLE', default_value: NULL},
  'difference_mean': {name: 'difference_mean', type: 'DOUBLE', default_value: NULL},
  'difference_largest': {name: 'difference_largest', type: 'DOUBLE', default_value: NULL},
  'difference_at': {name: 'difference_at', type: 'BIGINT', default_value: NULL},
  'entropy_mean': {name: 'entropy_mean', type: 'DOUBLE', default_value: NULL},
  'nan_count': {name: 'nan_count', type: 'BIGINT', default_value: NULL},
  'weight_version': {name: 'weight_version', type: 'BIGINT', default_value: NULL},
  'replica': {name: 'replica', type: 'VARCHAR', default_value: NULL},
  'begin_ns': {name: 'begin_ns', type: 'BIGINT', default_value: NULL},
  'end_ns': {name: 'end_ns', type: 'BIGINT', default_value: NULL},
  'has_error': {name: 'has_error', type: 'BOOLEAN', default_value: NULL},
  'masked': {name: 'masked', type: 'BOOLEAN', default_value: NULL},
  'trainable': {name: 'trainable', type: 'BOOLEAN', default_value: NULL},
  'dropped': {name: 'dropped', type: 'VARCHAR', default_value: NULL},
  'passes': {name: 'passes', type: 'BIGINT', default_value: NULL},
  'micro_batches': {name: 'micro_batches', type: 'BIGINT[]', default_value: NULL},
  'masked_tokens': {name: 'masked_tokens', type: 'BIGINT', default_value: NULL},
  'no_advantage_tokens': {name: 'no_advantage_tokens', type: 'BIGINT', default_value: NULL},
  'clipped_tokens': {name: 'clipped_tokens', type: 'BIGINT', default_value: NULL},
  'carried_tokens': {name: 'carried_tokens', type: 'BIGINT', default_value: NULL},
  'clip_unknown_tokens': {name: 'clip_unknown_tokens', type: 'BIGINT', default_value: NULL},
  'unknown_tokens': {name: 'unknown_tokens', type: 'BIGINT', default_value: NULL},
  'dropped_tokens': {name: 'dropped_tokens', type: 'BIGINT', default_value: NULL},
  'chosen_by': {name: 'chosen_by', type: 'VARCHAR', default_value: NULL},
  'prompt_text': {name: 'prompt_text', type: 'VARCHAR', default_value: NULL},
  'response_text': {name: 'response_text', type: 'VARCHAR', default_value: NULL},
  'prompt_ids': {name: 'prompt_ids', type: 'BIGINT[]', default_value: NULL},
  'response_ids': {name: 'response_ids', type: 'BIGINT[]', default_value: NULL},
  'wall_ns': {name: 'wall_ns', type: 'BIGINT', default_value: NULL}})
where getvariable('samples_files') is not null;

create or replace view token_blocks_rows as
select coalesce("time_ns", 0) as "time_ns", coalesce("attempt", 1) as "attempt", coalesce("process", '') as "process", "rank", "step", "role", "phase", "micro_batch", coalesce("scope_id", 0) as "scope_id", coalesce("scope", '') as "scope", "batch_id", "row", "tokens", "arrays", "dtypes", "data", coalesce("chosen_by", '') as "chosen_by", "wall_ns"
from read_parquet(coalesce(getvariable('token_blocks_files'), getvariable('process_files')), hive_partitioning = false,
  schema = map {'time_ns': {name: 'time_ns', type: 'BIGINT', default_value: NULL},
  'attempt': {name: 'attempt', type: 'BIGINT', default_value: NULL},
  'process': {name: 'process', type: 'VARCHAR', default_value: NULL},
  'rank': {name: 'rank', type: 'BIGINT', default_value: NULL},
  'step': {name: 'step', type: 'BIGINT', default_value: NULL},
  'role': {name: 'role', type: 'VARCHAR', default_value: NULL},
  'phase': {name: 'phase', type: 'VARCHAR', default_value: NULL},
  'micro_batch': {name: 'micro_batch', type: 'BIGINT', default_value: NULL},
  'scope_id': {name: 'scope_id', type: 'BIGINT', default_value: NULL},
  'scope': {name: 'scope', type: 'VARCHAR', default_value: NULL},
  'batch_id': {name: 'batch_id', type: 'BIGINT', default_value: NULL},
  'row': {name: 'row', type: 'BIGINT', default_value: NULL},
  'tokens': {name: 'tokens', type: 'BIGINT', default_value: NULL},
  'arrays': {name: 'arrays', type: 'VARCHAR[]', default_value: NULL},
  'dtypes': {name: 'dtypes', type: 'VARCHAR[]', default_value: NULL},
  'data': {name: 'data', type: 'VARCHAR', default_value: NULL},
  'chosen_by': {name: 'chosen_by', type: 'VARCHAR', default_value: NULL},
  'wall_ns': {name: 'wall_ns', type: 'BIGINT', default_value: NULL}})
where getvariable('token_blocks_files') is not null;

create or replace view rollouts_rows as
select coalesce("time_ns", 0) as "time_ns", coalesce("attempt", 1) as "attempt", coalesce("process", '') as "process", "rank", "step", "role", "phase", "micro_batch", coalesce("scope_id", 0) as "scope_id", coalesce("scope", '') as "scope", "batch_id", "source", coalesce("replica", '') as "replica", "samples", coalesce("timed", 0) as "timed", coalesce("together", false) as "together", "begin_ns", "end_ns", "median_ns", "ninth_decile_ns", "longest_ns", coalesce("requests_begin_ns", []) as "requests_begin_ns", coalesce("requests_end_ns", []) as "requests_end_ns", coalesce("requests_tokens", []) as "requests_tokens", coalesce("requests_right", []) as "requests_right", "trainer_version", coalesce("weight_versions", []) as "weight_versions", coalesce("version_samples", []) as "version_samples", "compared_tokens", coalesce("minus_log_ratio_sum", 0.0) as "minus_log_ratio_sum", coalesce("k3_sum", 0.0) as "k3_sum", coalesce("ratio_sum", 0.0) as "ratio_sum", coalesce("ratio_squares_sum", 0.0) as "ratio_squares_sum", coalesce("below_tokens", 0) as "below_tokens", coalesce("above_tokens", 0) as "above_tokens", "wall_ns"
from read_parquet(coalesce(getvariable('rollouts_files'), getvariable('process_files')), hive_partitioning = false,
  schema = map {'time_ns': {name: 'time_ns', type: 'BIGINT', default_value: NULL},
  'attempt': {name: 'attempt', type: 'BIGINT', default_value: NULL},
  'process': {name: 'process', type: 'VARCHAR', default_value: NULL},
  'rank': {name: 'rank', type: 'BIGINT', default_value: NULL},
  'step': {name: 'step', type: 'BIGINT', default_value: NULL},
  'role': {name: 'role', type: 'VARCHAR', default_value: NULL},
  'phase': {name: 'phase', type: 'VARCHAR', default_value: NULL},
  'micro_batch': {name: 'micro_batch', type: 'BIGINT', default_value: NULL},
  'scope_id': {name: 'scope_id', type: 'BIGINT', default_value: NULL},
  'scope': {name: 'scope', type: 'VARCHAR', default_value: NULL},
  'batch_id': {name: 'batch_id', type: 'BIGINT', default_value: NULL},
  'source': {name: 'source', type: 'VARCHAR', default_value: NULL},
  'replica': {name: 'replica', type: 'VARCHAR', default_value: NULL},
  'samples': {name: 'samples', type: 'BIGINT', default_value: NULL},
  'timed': {name: 'timed', type: 'BIGINT', default_value: NULL},
  'together': {name: 'together', type: 'BOOLEAN', default_value: NULL},
  'begin_ns': {name: 'begin_ns', type: 'BIGINT', default_value: NULL},
  'end_ns': {name: 'end_ns', type: 'BIGINT', default_value: NULL},
  'median_ns': {name: 'median_ns', type: 'BIGINT', default_value: NULL},
  'ninth_decile_ns': {name: 'ninth_decile_ns', type: 'BIGINT', default_value: NULL},
  'longest_ns': {name: 'longest_ns', type: 'BIGINT', default_value: NULL},
  'requests_begin_ns': {name: 'requests_begin_ns', type: 'BIGINT[]', default_value: NULL},
  'requests_end_ns': {name: 'requests_end_ns', type: 'BIGINT[]', default_value: NULL},
  'requests_tokens': {name: 'requests_tokens', type: 'BIGINT[]', default_value: NULL},
  'requests_right': {name: 'requests_right', type: 'BIGINT[]', default_value: NULL},
  'trainer_version': {name: 'trainer_version', type: 'BIGINT', default_value: NULL},
  'weight_versions': {name: 'weight_versions', type: 'BIGINT[]', default_value: NULL},
  'version_samples': {name: 'version_samples', type: 'BIGINT[]', default_value: NULL},
  'compared_tokens': {name: 'compared_tokens', type: 'BIGINT', default_value: NULL},
  'minus_log_ratio_sum': {name: 'minus_log_ratio_sum', type: 'DOUBLE', default_value: NULL},
  'k3_sum': {name: 'k3_sum', type: 'DOUBLE', default_value: NULL},
  'ratio_sum': {name: 'ratio_sum', type: 'DOUBLE', default_value: NULL},
  'ratio_squares_sum': {name: 'ratio_squares_sum', type: 'DOUBLE', default_value: NULL},
  'below_tokens': {name: 'below_tokens', type: 'BIGINT', default_value: NULL},
  'above_tokens': {name: 'above_tokens', type: 'BIGINT', default_value: NULL},
  'wall_ns': {name: 'wall_ns', type: 'BIGINT', default_value: NULL}})
where getvariable('rollouts_files') is not null;

create or replace view token_fates_rows as
select coalesce("time_ns", 0) as "time_ns", coalesce("attempt", 1) as "attempt", coalesce("process", '') as "process", "rank", "step", "role", "phase", "micro_batch", coalesce("scope_id", 0) as "scope_id", coalesce("scope", '') as "scope", "batch_id", "source", "fate", "tokens", "samples", "batch_tokens", "batch_prompt_tokens", "batch_samples", coalesce("complete", true) as "complete", "reach_known", "kept_samples", coalesce("kept_blocks", 0) as "kept_blocks", "equal_tokens", coalesce("loss_terms", []) as "loss_terms", "trained_step", "wall_ns"
from read_parquet(coalesce(getvariable('token_fates_files'), getvariable('process_files')), hive_partitioning = false,
  schema = map {'time_ns': {name: 'time_ns', type: 'BIGINT', default_value: NULL},
  'attempt': {name: 'attempt', type: 'BIGINT', default_value: NULL},
  'process': {name: 'process', type: 'VARCHAR', default_value: NULL},
  'rank': {name: 'rank', type: 'BIGINT', default_value: NULL},
  'step': {name: 'step', type: 'BIGINT', default_value: NULL},
  'role': {name: 'role', type: 'VARCHAR', default_value: NULL},
  'phase': {name: 'phase', type: 'VARCHAR', default_value: NULL},
  'micro_batch': {name: 'micro_batch', type: 'BIGINT', default_value: NULL},
  'scope_id': {name: 'scope_id', type: 'BIGINT', default_value: NULL},
  'scope': {name: 'scope', type: 'VARCHAR', default_value: NULL},
  'batch_id': {name: 'batch_id', type: 'BIGINT', default_value: NULL},
  'source': {name: 'source', type: 'VARCHAR', default_value: NULL},
  'fate': {name: 'fate', type: 'VARCHAR', default_value: NULL},
  'tokens': {name: 'tokens', type: 'BIGINT', default_value: NULL},
  'samples': {name: 'samples', type: 'BIGINT', default_value: NULL},
  'batch_tokens': {name: 'batch_tokens', type: 'BIGINT', default_value: NULL},
  'batch_prompt_tokens': {name: 'batch_prompt_tokens', type: 'BIGINT', default_value: NULL},
  'batch_samples': {name: 'batch_samples', type: 'BIGINT', default_value: NULL},
  'complete': {name: 'complete', type: 'BOOLEAN', default_value: NULL},
  'reach_known': {name: 'reach_known', type: 'BOOLEAN', default_value: NULL},
  'kept_samples': {name: 'kept_samples', type: 'BIGINT', default_value: NULL},
  'kept_blocks': {name: 'kept_blocks', type: 'BIGINT', default_value: NULL},
  'equal_tokens': {name: 'equal_tokens', type: 'BIGINT', default_value: NULL},
  'loss_terms': {name: 'loss_terms', type: 'VARCHAR[]', default_value: NULL},
  'trained_step': {name: 'trained_step', type: 'BIGINT', default_value: NULL},
  'wall_ns': {name: 'wall_ns', type: 'BIGINT', default_value: NULL}})
where getvariable('token_fates_files') is not null;

create or replace view later_passes_rows as
select coalesce("time_ns", 0) as "time_ns", coalesce("attempt", 1) as "attempt", coalesce("process", '') as "process", "rank", "step", "role", "phase", "micro_batch", coalesce("scope_id", 0) as "scope_id", coalesce("scope", '') as "scope", "batch_id", "trained_step", coalesce("rows", []) as "rows", coalesce("passes", []) as "passes", coalesce("micro_batches", []) as "micro_batches", coalesce("carried_tokens", []) as "carried_tokens", coalesce("clipped_tokens", []) as "clipped_tokens", "wall_ns"
from read_parquet(coalesce(getvariable('later_passes_files'), getvariable('process_files')), hive_partitioning = false,
  schema = map {'time_ns': {name: 'time_ns', type: 'BIGINT', default_value: NULL},
  'attempt': {name: 'attempt', type: 'BIGINT', default_value: NULL},
  'process': {name: 'process', type: 'VARCHAR', default_value: NULL},
  'rank': {name: 'rank', type: 'BIGINT', default_value: NULL},
  'step': {name: 'step', type: 'BIGINT', default_value: NULL},
  'role': {name: 'role', type: 'VARCHAR', default_value: NULL},
  'phase': {name: 'phase', type: 'VARCHAR', default_value: NULL},
  'micro_batch': {name: 'micro_batch', type: 'BIGINT', default_value: NULL},
  'scope_id': {name: 'scope_id', type: 'BIGINT', default_value: NULL},
  'scope': {name: 'scope', type: 'VARCHAR', default_value: NULL},
  'batch_id': {name: 'batch_id', type: 'BIGINT', default_value: NULL},
  'trained_step': {name: 'trained_step', type: 'BIGINT', default_value: NULL},
  'rows': {name: 'rows', type: 'BIGINT[]', default_value: NULL},
  'passes': {name: 'passes', type: 'BIGINT[]', default_value: NULL},
  'micro_batches': {name: 'micro_batches', type: 'BIGINT[]', default_value: NULL},
  'carried_tokens': {name: 'carried_tokens', type: 'BIGINT[]', default_value: NULL},
  'clipped_tokens': {name: 'clipped_tokens', type: 'BIGINT[]', default_value: NULL},
  'wall_ns': {name: 'wall_ns', type: 'BIGINT', default_value: NULL}})
where getvariable('later_passes_files') is not null;

create or replace view token_identity_rows as
select coalesce("time_ns", 0) as "time_ns", coalesce("attempt", 1) as "attempt", coalesce("process", '') as "process", "rank", "step", "role", "phase", "micro_batch", coalesce("scope_id", 0) as "scope_id", coalesce("scope", '') as "scope", "batch_id", "source", "answers", "trained_tokens", "sampled_tokens", "changed_answers", "changed_tokens", coalesce("changed_rows", []) as "changed_rows", coalesce("changed_uids", []) as "changed_uids", coalesce("first_uid", '') as "first_uid", "first_token", "sampled_id", "trained_id", "wall_ns"
from read_parquet(coalesce(getvariable('token_identity_files'), getvariable('process_files')), hive_partitioning = false,
  schema = map {'time_ns': {name: 'time_ns', type: 'BIGINT', default_value: NULL},
  'attempt': {name: 'attempt', type: 'BIGINT', default_value: NULL},
  'process': {name: 'process', type: 'VARCHAR', default_value: NULL},
  'rank': {name: 'rank', type: 'BIGINT', default_value: NULL},
  'step': {name: 'step', type: 'BIGINT', default_value: NULL},
  'role': {name: 'role', type: 'VARCHAR', default_value: NULL},
  'phase': {name: 'phase', type: 'VARCHAR', default_value: NULL},
  'micro_batch': {name: 'micro_batch', type: 'BIGINT', default_value: NULL},
  'scope_id': {name: 'scope_id', type: 'BIGINT', default_value: NULL},
  'scope': {name: 'scope', type: 'VARCHAR', default_value: NULL},
  'batch_id': {name: 'batch_id', type: 'BIGINT', default_value: NULL},
  'source': {name: 'source', type: 'VARCHAR', default_value: NULL},
  'answers': {name: 'answers', type: 'BIGINT', default_value: NULL},
  'trained_tokens': {name: 'trained_tokens', type: 'BIGINT', default_value: NULL},
  'sampled_tokens': {name: 'sampled_tokens', type: 'BIGINT', default_value: NULL},
  'changed_answers': {name: 'changed_answers', type: 'BIGINT', default_value: NULL},
  'changed_tokens': {name: 'changed_tokens', type: 'BIGINT', default_value: NULL},
  'changed_rows': {name: 'changed_rows', type: 'BIGINT[]', default_value: NULL},
  'changed_uids': {name: 'changed_uids', type: 'VARCHAR[]', default_value: NULL},
  'first_uid': {name: 'first_uid', type: 'VARCHAR', default_value: NULL},
  'first_token': {name: 'first_token', type: 'BIGINT', default_value: NULL},
  'sampled_id': {name: 'sampled_id', type: 'BIGINT', default_value: NULL},
  'trained_id': {name: 'trained_id', type: 'BIGINT', default_value: NULL},
  'wall_ns': {name: 'wall_ns', type: 'BIGINT', default_value: NULL}})
where getvariable('token_identity_files') is not null;

create or replace view group_baselines_rows as
select coalesce("time_ns", 0) as "time_ns", coalesce("attempt", 1) as "attempt", coalesce("process", '') as "process", "rank", "step", "role", "phase", "micro_batch", coalesce("scope_id", 0) as "scope_id", coalesce("scope", '') as "scope", "batch_id", "source", "answers", "failed_answers", "masked_answers", coalesce("groups", 0) as "groups", coalesce("moved_groups", 0) as "moved_groups", coalesce("moved_by_failed", 0) as "moved_by_failed", coalesce("elsewhere_groups", 0) as "elsewhere_groups", coalesce("unknown_groups", 0) as "unknown_groups", coalesce("moved_answers", 0) as "moved_answers", "shift_mean", "shift_largest", "failed_reward_mean", coalesce("first_group", '') as "first_group", coalesce("answers_by_failed", 0) as "answers_by_failed", "shift_by_failed", "wall_ns"
from read_parquet(coalesce(getvariable('group_baselines_files'), getvariable('process_files')), hive_partitioning = false,
  schema = map {'time_ns': {name: 'time_ns', type: 'BIGINT', default_value: NULL},
  'attempt': {name: 'attempt', type: 'BIGINT', default_value: NULL},
  'process': {name: 'process', type: 'VARCHAR', default_value: NULL},
  'rank': {name: 'rank', type: 'BIGINT', default_value: NULL},
  'step': {name: 'step', type: 'BIGINT', default_value: NULL},
  'role': {name: 'role', type: 'VARCHAR', default_value: NULL},
  'phase': {name: 'phase', type: 'VARCHAR', default_value: NULL},
  'micro_batch': {name: 'micro_batch', type: 'BIGINT', default_value: NULL},
  'scope_id': {name: 'scope_id', type: 'BIGINT', default_value: NULL},
  'scope': {name: 'scope', type: 'VARCHAR', default_value: NULL},
  'batch_id': {name: 'batch_id', type: 'BIGINT', default_value: NULL},
  'source': {name: 'source', type: 'VARCHAR', default_value: NULL},
  'answers': {name: 'answers', type: 'BIGINT', default_value: NULL},
  'failed_answers': {name: 'failed_answers', type: 'BIGINT', default_value: NULL},
  'masked_answers': {name: 'masked_answers', type: 'BIGINT', default_value: NULL},
  'groups': {name: 'groups', type: 'BIGINT', default_value: NULL},
  'moved_groups': {name: 'moved_groups', type: 'BIGINT', default_value: NULL},
  'moved_by_failed': {name: 'moved_by_failed', type: 'BIGINT', default_value: NULL},
  'elsewhere_groups': {name: 'elsewhere_groups', type: 'BIGINT', default_value: NULL},
  'unknown_groups': {name: 'unknown_groups', type: 'BIGINT', default_value: NULL},
  'moved_answers': {name: 'moved_answers', type: 'BIGINT', default_value: NULL},
  'shift_mean': {name: 'shift_mean', type: 'DOUBLE', default_value: NULL},
  'shift_largest': {name: 'shift_largest', type: 'DOUBLE', default_value: NULL},
  'failed_reward_mean': {name: 'failed_reward_mean', type: 'DOUBLE', default_value: NULL},
  'first_group': {name: 'first_group', type: 'VARCHAR', default_value: NULL},
  'answers_by_failed': {name: 'answers_by_failed', type: 'BIGINT', default_value: NULL},
  'shift_by_failed': {name: 'shift_by_failed', type: 'DOUBLE', default_value: NULL},
  'wall_ns': {name: 'wall_ns', type: 'BIGINT', default_value: NULL}})
where getvariable('group_baselines_files') is not null;

create or replace view calls_rows as
select coalesce("time_ns", 0) as "time_ns", coalesce("attempt", 1) as "attempt", coalesce("process", '') as "process", "rank", "step", "role", "phase", "micro_batch", coalesce("scope_id", 0) as "scope_id", coalesce("scope", '') as "scope", "point", coalesce("name", '') as "name", coalesce("begin_ns", 0) as "begin_ns", coalesce("duration_ns", 0) as "duration_ns", "rows_in", "rows_out", "bytes_in", "bytes_out", coalesce("keys_added", []) as "keys_added", coalesce("keys_removed", []) as "keys_removed", "error", "wall_ns"
from read_parquet(coalesce(getvariable('calls_files'), getvariable('process_files')), hive_partitioning = false,
  schema = map {'time_ns': {name: 'time_ns', type: 'BIGINT', default_value: NULL},
  'attempt': {name: 'attempt', type: 'BIGINT', default_value: NULL},
  'process': {name: 'process', type: 'VARCHAR', default_value: NULL},
  'rank': {name: 'rank', type: 'BIGINT', default_value: NULL},
  'step': {name: 'step', type: 'BIGINT', default_value: NULL},
  'role': {name: 'role', type: 'VARCHAR', default_value: NULL},
  'phase': {name: 'phase', type: 'VARCHAR', default_value: NULL},
  'micro_batch': {name: 'micro_batch', type: 'BIGINT', default_value: NULL},
  'scope_id': {name: 'scope_id', type: 'BIGINT', default_value: NULL},
  'scope': {name: 'scope', type: 'VARCHAR', default_value: NULL},
  'point': {name: 'point', type: 'VARCHAR', default_value: NULL},
  'name': {name: 'name', type: 'VARCHAR', default_value: NULL},
  'begin_ns': {name: 'begin_ns', type: 'BIGINT', default_value: NULL},
  'duration_ns': {name: 'duration_ns', type: 'BIGINT', default_value: NULL},
  'rows_in': {name: 'rows_in', type: 'BIGINT', default_value: NULL},
  'rows_out': {name: 'rows_out', type: 'BIGINT', default_value: NULL},
  'bytes_in': {name: 'bytes_in', type: 'BIGINT', default_value: NULL},
  'bytes_out': {name: 'bytes_out', type: 'BIGINT', default_value: NULL},
  'keys_added': {name: 'keys_added', type: 'VARCHAR[]', default_value: NULL},
  'keys_removed': {name: 'keys_removed', type: 'VARCHAR[]', default_value: NULL},
  'error': {name: 'error', type: 'VARCHAR', default_value: NULL},
  'wall_ns': {name: 'wall_ns', type: 'BIGINT', default_value: NULL}})
where getvariable('calls_files') is not null;

create or replace view reductions_rows as
select coalesce("time_ns", 0) as "time_ns", coalesce("attempt", 1) as "attempt", coalesce("process", '') as "process", "rank", "step", "role", "phase", "micro_batch", coalesce("scope_id", 0) as "scope_id", coalesce("scope", '') as "scope", "key", "reducer", "chosen_by", "count", "smallest", "largest", coalesce("nan_count", 0) as "nan_count", "value", "nan_at", "outlier_at", "outlier_share_ratio", "total", "last", "tokens", "token_mean", "sequences", "sequence_mean", "weights_from", "wall_ns"
from read_parquet(coalesce(getvariable('reductions_files'), getvariable('process_files')), hive_partitioning = false,
  schema = map {'time_ns': {name: 'time_ns', type: 'BIGINT', default_value: NULL},
  'attempt': {name: 'attempt', type: 'BIGINT', default_value: NULL},
  'process': {name: 'process', type: 'VARCHAR', default_value: NULL},
  'rank': {name: 'rank', type: 'BIGINT', default_value: NULL},
  'step': {name: 'step', type: 'BIGINT', default_value: NULL},
  'role': {name: 'role', type: 'VARCHAR', default_value: NULL},
  'phase': {name: 'phase', type: 'VARCHAR', default_value: NULL},
  'micro_batch': {name: 'micro_batch', type: 'BIGINT', default_value: NULL},
  'scope_id': {name: 'scope_id', type: 'BIGINT', default_value: NULL},
  'scope': {name: 'scope', type: 'VARCHAR', default_value: NULL},
  'key': {name: 'key', type: 'VARCHAR', default_value: NULL},
  'reducer': {name: 'reducer', type: 'VARCHAR', default_value: NULL},
  'chosen_by': {name: 'chosen_by', type: 'VARCHAR', default_value: NULL},
  'count': {name: 'count', type: 'BIGINT', default_value: NULL},
  'smallest': {name: 'smallest', type: 'DOUBLE', default_value: NULL},
  'largest': {name: 'largest', type: 'DOUBLE', default_value: NULL},
  'nan_count': {name: 'nan_count', type: 'BIGINT', default_value: NULL},
  'value': {name: 'value', type: 'DOUBLE', default_value: NULL},
  'nan_at': {name: 'nan_at', type: 'BIGINT', default_value: NULL},
  'outlier_at': {name: 'outlier_at', type: 'BIGINT', default_value: NULL},
  'outlier_share_ratio': {name: 'outlier_share_ratio', type: 'DOUBLE', default_value: NULL},
  'total': {name: 'total', type: 'DOUBLE', default_value: NULL},
  'last': {name: 'last', type: 'DOUBLE', default_value: NULL},
  'tokens': {name: 'tokens', type: 'DOUBLE', default_value: NULL},
  'token_mean': {name: 'token_mean', type: 'DOUBLE', default_value: NULL},
  'sequences': {name: 'sequences', type: 'DOUBLE', default_value: NULL},
  'sequence_mean': {name: 'sequence_mean', type: 'DOUBLE', default_value: NULL},
  'weights_from': {name: 'weights_from', type: 'VARCHAR', default_value: NULL},
  'wall_ns': {name: 'wall_ns', type: 'BIGINT', default_value: NULL}})
where getvariable('reductions_files') is not null;

create or replace view scalars_rows as
select coalesce("time_ns", 0) as "time_ns", coalesce("attempt", 1) as "attempt", coalesce("process", '') as "process", "rank", "step", "role", "phase", "micro_batch", coalesce("scope_id", 0) as "scope_id", coalesce("scope", '') as "scope", "key", "value", coalesce("source", 'user') as "source", "wall_ns"
from read_parquet(coalesce(getvariable('scalars_files'), getvariable('process_files')), hive_partitioning = false,
  schema = map {'time_ns': {name: 'time_ns', type: 'BIGINT', default_value: NULL},
  'attempt': {name: 'attempt', type: 'BIGINT', default_value: NULL},
  'process': {name: 'process', type: 'VARCHAR', default_value: NULL},
  'rank': {name: 'rank', type: 'BIGINT', default_value: NULL},
  'step': {name: 'step', type: 'BIGINT', default_value: NULL},
  'role': {name: 'role', type: 'VARCHAR', default_value: NULL},
  'phase': {name: 'phase', type: 'VARCHAR', default_value: NULL},
  'micro_batch': {name: 'micro_batch', type: 'BIGINT', default_value: NULL},
  'scope_id': {name: 'scope_id', type: 'BIGINT', default_value: NULL},
  'scope': {name: 'scope', type: 'VARCHAR', default_value: NULL},
  'key': {name: 'key', type: 'VARCHAR', default_value: NULL},
  'value': {name: 'value', type: 'DOUBLE', default_value: NULL},
  'source': {name: 'source', type: 'VARCHAR', default_value: NULL},
  'wall_ns': {name: 'wall_ns', type: 'BIGINT', default_value: NULL}})
where getvariable('scalars_files') is not null;

create or replace view incidents_rows as
select coalesce("time_ns", 0) as "time_ns", coalesce("attempt", 1) as "attempt", coalesce("process", '') as "process", "rank", "step", "role", "phase", "micro_batch", coalesce("scope_id", 0) as "scope_id", coalesce("scope", '') as "scope", "kind", "where", "message", "traceback", coalesce("count", 1) as "count", coalesce("switched_off", false) as "switched_off", "wall_ns"
from read_parquet(coalesce(getvariable('incidents_files'), getvariable('process_files')), hive_partitioning = false,
  schema = map {'time_ns': {name: 'time_ns', type: 'BIGINT', default_value: NULL},
  'attempt': {name: 'attempt', type: 'BIGINT', default_value: NULL},
  'process': {name: 'process', type: 'VARCHAR', default_value: NULL},
  'rank': {name: 'rank', type: 'BIGINT', default_value: NULL},
  'step': {name: 'step', type: 'BIGINT', default_value: NULL},
  'role': {name: 'role', type: 'VARCHAR', default_value: NULL},
  'phase': {name: 'phase', type: 'VARCHAR', default_value: NULL},
  'micro_batch': {name: 'micro_batch', type: 'BIGINT', default_value: NULL},
  'scope_id': {name: 'scope_id', type: 'BIGINT', default_value: NULL},
  'scope': {name: 'scope', type: 'VARCHAR', default_value: NULL},
  'kind': {name: 'kind', type: 'VARCHAR', default_value: NULL},
  'where': {name: 'where', type: 'VARCHAR', default_value: NULL},
  'message': {name: 'message', type: 'VARCHAR', default_value: NULL},
  'traceback': {name: 'traceback', type: 'VARCHAR', default_value: NULL},
  'count': {name: 'count', type: 'BIGINT', default_value: NULL},
  'switched_off': {name: 'switched_off', type: 'BOOLEAN', default_value: NULL},
  'wall_ns': {name: 'wall_ns', type: 'BIGINT', default_value: NULL}})
where getvariable('incidents_files') is not null;

create or replace view failures_rows as
select coalesce("time_ns", 0) as "time_ns", coalesce("attempt", 1) as "attempt", coalesce("process", '') as "process", "rank", "step", "role", "phase", "micro_batch", coalesce("scope_id", 0) as "scope_id", coalesce("scope", '') as "scope", "exception_id", coalesce("revision", 0) as "revision", coalesce("kind", 'failure') as "kind", "outermost", "caught", coalesce("scope_kind", '') as "scope_kind", "type", coalesce("message", '') as "message", coalesce("traceback", '') as "traceback", coalesce("causes", []) as "causes", coalesce("out_of_memory", false) as "out_of_memory", coalesce("lengths", []) as "lengths", coalesce("fields", '{}') as "fields", coalesce("device", '') as "device", coalesce("source", '') as "source", "allocated_bytes", "reserved_bytes", "non_torch_bytes", "device_total_bytes", coalesce("phases", '{}') as "phases", coalesce("batch_path", '') as "batch_path", coalesce("snapshot_path", '') as "snapshot_path", "wall_ns"
from read_parquet(coalesce(getvariable('failures_files'), getvariable('process_files')), hive_partitioning = false,
  schema = map {'time_ns': {name: 'time_ns', type: 'BIGINT', default_value: NULL},
  'attempt': {name: 'attempt', type: 'BIGINT', default_value: NULL},
  'process': {name: 'process', type: 'VARCHAR', default_value: NULL},
  'rank': {name: 'rank', type: 'BIGINT', default_value: NULL},
  'step': {name: 'step', type: 'BIGINT', default_value: NULL},
  'role': {name: 'role', type: 'VARCHAR', default_value: NULL},
  'phase': {name: 'phase', type: 'VARCHAR', default_value: NULL},
  'micro_batch': {name: 'micro_batch', type: 'BIGINT', default_value: NULL},
  'scope_id': {name: 'scope_id', type: 'BIGINT', default_value: NULL},
  'scope': {name: 'scope', type: 'VARCHAR', default_value: NULL},
  'exception_id': {name: 'exception_id', type: 'BIGINT', default_value: NULL},
  'revision': {name: 'revision', type: 'BIGINT', default_value: NULL},
  'kind': {name: 'kind', type: 'VARCHAR', default_value: NULL},
  'outermost': {name: 'outermost', type: 'VARCHAR', default_value: NULL},
  'caught': {name: 'caught', type: 'BOOLEAN', default_value: NULL},
  'scope_kind': {name: 'scope_kind', type: 'VARCHAR', default_value: NULL},
  'type': {name: 'type', type: 'VARCHAR', default_value: NULL},
  'message': {name: 'message', type: 'VARCHAR', default_value: NULL},
  'traceback': {name: 'traceback', type: 'VARCHAR', default_value: NULL},
  'causes': {name: 'causes', type: 'VARCHAR[]', default_value: NULL},
  'out_of_memory': {name: 'out_of_memory', type: 'BOOLEAN', default_value: NULL},
  'lengths': {name: 'lengths', type: 'BIGINT[]', default_value: NULL},
  'fields': {name: 'fields', type: 'VARCHAR', default_value: NULL},
  'device': {name: 'device', type: 'VARCHAR', default_value: NULL},
  'source': {name: 'source', type: 'VARCHAR', default_value: NULL},
  'allocated_bytes': {name: 'allocated_bytes', type: 'BIGINT', default_value: NULL},
  'reserved_bytes': {name: 'reserved_bytes', type: 'BIGINT', default_value: NULL},
  'non_torch_bytes': {name: 'non_torch_bytes', type: 'BIGINT', default_value: NULL},
  'device_total_bytes': {name: 'device_total_bytes', type: 'BIGINT', default_value: NULL},
  'phases': {name: 'phases', type: 'VARCHAR', default_value: NULL},
  'batch_path': {name: 'batch_path', type: 'VARCHAR', default_value: NULL},
  'snapshot_path': {name: 'snapshot_path', type: 'VARCHAR', default_value: NULL},
  'wall_ns': {name: 'wall_ns', type: 'BIGINT', default_value: NULL}})
where getvariable('failures_files') is not null;

create or replace view stacks_rows as
select coalesce("time_ns", 0) as "time_ns", coalesce("attempt", 1) as "attempt", coalesce("process", '') as "process", "rank", "step", "role", "phase", "micro_batch", coalesce("scope_id", 0) as "scope_id", coalesce("scope", '') as "scope", "open_ns", "threshold_ns", "longest_ns", coalesce("kind", '') as "kind", coalesce("stack", '') as "stack", coalesce("innermost", '') as "innermost", coalesce("thread", '') as "thread", coalesce("seen", true) as "seen", coalesce("collective", '') as "collective", coalesce("collective_group", '') as "collective_group", "collective_number", coalesce("collective_sizes", '') as "collective_sizes", "collective_ns", "wall_ns"
from read_parquet(coalesce(getvariable('stacks_files'), getvariable('process_files')), hive_partitioning = false,
  schema = map {'time_ns': {name: 'time_ns', type: 'BIGINT', default_value: NULL},
  'attempt': {name: 'attempt', type: 'BIGINT', default_value: NULL},
  'process': {name: 'process', type: 'VARCHAR', default_value: NULL},
  'rank': {name: 'rank', type: 'BIGINT', default_value: NULL},
  'step': {name: 'step', type: 'BIGINT', default_value: NULL},
  'role': {name: 'role', type: 'VARCHAR', default_value: NULL},
  'phase': {name: 'phase', type: 'VARCHAR', default_value: NULL},
  'micro_batch': {name: 'micro_batch', type: 'BIGINT', default_value: NULL},
  'scope_id': {name: 'scope_id', type: 'BIGINT', default_value: NULL},
  'scope': {name: 'scope', type: 'VARCHAR', default_value: NULL},
  'open_ns': {name: 'open_ns', type: 'BIGINT', default_value: NULL},
  'threshold_ns': {name: 'threshold_ns', type: 'BIGINT', default_value: NULL},
  'longest_ns': {name: 'longest_ns', type: 'BIGINT', default_value: NULL},
  'kind': {name: 'kind', type: 'VARCHAR', default_value: NULL},
  'stack': {name: 'stack', type: 'VARCHAR', default_value: NULL},
  'innermost': {name: 'innermost', type: 'VARCHAR', default_value: NULL},
  'thread': {name: 'thread', type: 'VARCHAR', default_value: NULL},
  'seen': {name: 'seen', type: 'BOOLEAN', default_value: NULL},
  'collective': {name: 'collective', type: 'VARCHAR', default_value: NULL},
  'collective_group': {name: 'collective_group', type: 'VARCHAR', default_value: NULL},
  'collective_number': {name: 'collective_number', type: 'BIGINT', default_value: NULL},
  'collective_sizes': {name: 'collective_sizes', type: 'VARCHAR', default_value: NULL},
  'collective_ns': {name: 'collective_ns', type: 'BIGINT', default_value: NULL},
  'wall_ns': {name: 'wall_ns', type: 'BIGINT', default_value: NULL}})
where getvariable('stacks_files') is not null;

create or replace table late_ranks as
select process, max(rank) as rank from process_rows
where process in (select process from process_rows where rank is null) group by process having max(rank) is not null;

create or replace table attempts_shown as
with told as (select attempt, step, wall_ns from memory_rows
  union all select attempt, step, wall_ns from calls_rows
  union all select attempt, step, wall_ns from micro_batches_rows
  union all select attempt, step, wall_ns from padding_rows
  union all select attempt, step, wall_ns from reductions_rows
  union all select attempt, step, wall_ns from scalars_rows),
firsts as (select attempt, min(step) as step from told where step is not null group by attempt),
limits as (
  select mine.attempt, min(own.step) as own, min(later.step) as before_step
  from (select distinct attempt from process_rows) mine join firsts later on later.attempt > mine.attempt
       left join firsts own on own.attempt = mine.attempt group by mine.attempt)
select limits.attempt, if(own < before_step, before_step, 0) as before_step,
       if(own < before_step, min(wall_ns) filter (told.step >= before_step), -9223372036854775808) as before_ns
from limits left join told on told.attempt = limits.attempt group by limits.attempt, own, before_step;

create or replace view "processes" as
select r.* replace (coalesce(r.rank, l.rank) as rank)
from process_rows r left join late_ranks l on l.process = r.process
     left join attempts_shown a on a.attempt = r.attempt
where a.attempt is null or not if(r.step is null, if(a.before_ns is null, false, coalesce(r.wall_ns >= a.before_ns, true)), r.step >= a.before_step)
qualify r.process = '' or revision = max(revision) over (partition by r.process, time_ns);

create or replace view "memory" as
select r.* replace (coalesce(r.rank, l.rank) as rank)
from memory_rows r left join late_ranks l on l.process = r.process
     left join attempts_shown a on a.attempt = r.attempt
where a.attempt is null or not if(r.step is null, if(a.before_ns is null, false, coalesce(r.wall_ns >= a.before_ns, true)), r.step >= a.before_step);

create or replace view "host_memory" as
select r.* replace (coalesce(r.rank, l.rank) as rank)
from host_memory_rows r left join late_ranks l on l.process = r.process
     left join attempts_shown a on a.attempt = r.attempt
where a.attempt is null or not if(r.step is null, if(a.before_ns is null, false, coalesce(r.wall_ns >= a.before_ns, true)), r.step >= a.before_step);

create or replace view "micro_batches" as
select r.* replace (coalesce(r.rank, l.rank) as rank)
from micro_batches_rows r left join late_ranks l on l.process = r.process
     left join attempts_shown a on a.attempt = r.attempt
where a.attempt is null or not if(r.step is null, if(a.before_ns is null, false, coalesce(r.wall_ns >= a.before_ns, true)), r.step >= a.before_step);

create or replace view "partitions" as
select r.* replace (coalesce(r.rank, l.rank) as rank)
from partitions_rows r left join late_ranks l on l.process = r.process
     left join attempts_shown a on a.attempt = r.attempt
where a.attempt is null or not if(r.step is null, if(a.before_ns is null, false, coalesce(r.wall_ns >= a.before_ns, true)), r.step >= a.before_step);

create or replace view "padding" as
select r.* replace (coalesce(r.rank, l.rank) as rank)
from padding_rows r left join late_ranks l on l.process = r.process
     left join attempts_shown a on a.attempt = r.attempt
where a.attempt is null or not if(r.step is null, if(a.before_ns is null, false, coalesce(r.wall_ns >= a.before_ns, true)), r.step >= a.before_step);

create or replace view "samples" as
select r.* replace (coalesce(r.rank, l.rank) as rank)
from samples_rows r left join late_ranks l on l.process = r.process
     left join attempts_shown a on a.attempt = r.attempt
where a.attempt is null or not if(r.step is null, if(a.before_ns is null, false, coalesce(r.wall_ns >= a.before_ns, true)), r.step >= a.before_step);

create or replace view "token_blocks" as
select r.* replace (coalesce(r.rank, l.rank) as rank)
from token_blocks_rows r left join late_ranks l on l.process = r.process
     left join attempts_shown a on a.attempt = r.attempt
where a.attempt is null or not if(r.step is null, if(a.before_ns is null, false, coalesce(r.wall_ns >= a.before_ns, true)), r.step >= a.before_step);

create or replace view "rollouts" as
select r.* replace (coalesce(r.rank, l.rank) as rank)
from rollouts_rows r left join late_ranks l on l.process = r.process
     left join attempts_shown a on a.attempt = r.attempt
where a.attempt is null or not if(r.step is null, if(a.before_ns is null, false, coalesce(r.wall_ns >= a.before_ns, true)), r.step >= a.before_step);

create or replace view "token_fates" as
select r.* replace (coalesce(r.rank, l.rank) as rank)
from token_fates_rows r left join late_ranks l on l.process = r.process
     left join attempts_shown a on a.attempt = r.attempt
where a.attempt is null or not if(r.step is null, if(a.before_ns is null, false, coalesce(r.wall_ns >= a.before_ns, true)), r.step >= a.before_step);

create or replace view "later_passes" as
select r.* replace (coalesce(r.rank, l.rank) as rank)
from later_passes_rows r left join late_ranks l on l.process = r.process
     left join attempts_shown a on a.attempt = r.attempt
where a.attempt is null or not if(r.step is null, if(a.before_ns is null, false, coalesce(r.wall_ns >= a.before_ns, true)), r.step >= a.before_step);

create or replace view "token_identity" as
select r.* replace (coalesce(r.rank, l.rank) as rank)
from token_identity_rows r left join late_ranks l on l.process = r.process
     left join attempts_shown a on a.attempt = r.attempt
where a.attempt is null or not if(r.step is null, if(a.before_ns is null, false, coalesce(r.wall_ns >= a.before_ns, true)), r.step >= a.before_step);

create or replace view "group_baselines" as
select r.* replace (coalesce(r.rank, l.rank) as rank)
from group_baselines_rows r left join late_ranks l on l.process = r.process
     left join attempts_shown a on a.attempt = r.attempt
where a.attempt is null or not if(r.step is null, if(a.before_ns is null, false, coalesce(r.wall_ns >= a.before_ns, true)), r.step >= a.before_step);

create or replace view "calls" as
select r.* replace (coalesce(r.rank, l.rank) as rank)
from calls_rows r left join late_ranks l on l.process = r.process
     left join attempts_shown a on a.attempt = r.attempt
where a.attempt is null or not if(r.step is null, if(a.before_ns is null, false, coalesce(r.wall_ns >= a.before_ns, true)), r.step >= a.before_step);

create or replace view "reductions" as
select r.* replace (coalesce(r.rank, l.rank) as rank)
from reductions_rows r left join late_ranks l on l.process = r.process
     left join attempts_shown a on a.attempt = r.attempt
where a.attempt is null or not if(r.step is null, if(a.before_ns is null, false, coalesce(r.wall_ns >= a.before_ns, true)), r.step >= a.before_step);

create or replace view "scalars" as
select r.* replace (coalesce(r.rank, l.rank) as rank)
from scalars_rows r left join late_ranks l on l.process = r.process
     left join attempts_shown a on a.attempt = r.attempt
where a.attempt is null or not if(r.step is null, if(a.before_ns is null, false, coalesce(r.wall_ns >= a.before_ns, true)), r.step >= a.before_step);

create or replace view "incidents" as
select r.* replace (coalesce(r.rank, l.rank) as rank)
from incidents_rows r left join late_ranks l on l.process = r.process
     left join attempts_shown a on a.attempt = r.attempt
where a.attempt is null or not if(r.step is null, if(a.before_ns is null, false, coalesce(r.wall_ns >= a.before_ns, true)), r.step >= a.before_step);

create or replace view "failures" as
select r.* replace (coalesce(r.rank, l.rank) as rank)
from failures_rows r left join late_ranks l on l.process = r.process
     left join attempts_shown a on a.attempt = r.attempt
where a.attempt is null or not if(r.step is null, if(a.before_ns is null, false, coalesce(r.wall_ns >= a.before_ns, true)), r.step >= a.before_step);

create or replace view "stacks" as
select r.* replace (coalesce(r.rank, l.rank) as rank)
from stacks_rows r left join late_ranks l on l.process = r.process
     left join attempts_shown a on a.attempt = r.attempt
where a.attempt is null or not if(r.step is null, if(a.before_ns is null, false, coalesce(r.wall_ns >= a.before_ns, true)), r.step >= a.before_step);

create or replace macro who(a_rank, a_process) as coalesce('rank ' || a_rank, split_part(a_process, '.', 1));
