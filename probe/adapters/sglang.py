"""SGLang: what its schedulers' processes do with their memory, and how loaded they are.

Its own registry of hooks isn't used: a hook of it is told nothing of what a function raises, and can't be taken off.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

from probe.adapters.engines import Loads, phases
from probe.adapters.seams import Call, Seam

_RUNNER: Final = "sglang.srt.model_executor.model_runner"
_SCHEDULER: Final = "sglang.srt.managers.scheduler"
_BATCH: Final = "sglang.srt.managers.schedule_batch"
#: Where orders that concern memory and weights are carried out, in this version and before 0.5.10.
_UPDATERS: Final = (
    ("sglang.srt.managers.scheduler_components.weight_updater", "SchedulerWeightUpdaterManager"),
    ("sglang.srt.managers.scheduler_update_weights_mixin", "SchedulerUpdateWeightsMixin"),
)
_ORDERS: Final = (
    ("release_memory_occupation", "sleep", "engine_sleep"),
    ("resume_memory_occupation", "sleep", "engine_wake"),
    ("update_weights_from_disk", "weight sync", "update_weights"),
    ("update_weights_from_distributed", "weight sync", "update_weights"),
    ("update_weights_from_tensor", "weight sync", "update_weights"),
    ("update_weights_from_ipc", "weight sync", "update_weights"),
)

_LOADS: Final = Loads(f"{_SCHEDULER}.Scheduler.process_batch_result")


def _iterated(call: Call) -> Generator[None, None, None]:
    """A batch's results are taken in. The cache is looked at before: finished requests give their tokens back."""
    scheduler, batch = call.args[0], call.argument("batch")
    prefill, decode = _tokens(batch)
    ratio = _cache_ratio(scheduler)
    running, waiting = len(batch.reqs), len(scheduler.waiting_queue)
    yield
    load = _LOADS.of(scheduler)
    load.iterated(prefill_tokens=prefill, decode_tokens=decode, running=running, waiting=waiting, cache_ratio=ratio)
    if not scheduler.waiting_queue and all(one.finished() for one in batch.reqs):
        load.tell()


def _tokens(batch: Any) -> tuple[int, int]:
    """Tokens of a batch that were computed in prefill, and in decoding; in a mixed one its last rows decode."""
    mode = batch.forward_mode
    if not mode.is_extend():
        return 0, 0 if mode.is_idle() else len(batch.reqs)
    decode = len(batch.decoding_reqs or ()) if mode.is_mixed() else 0
    return int(batch.extend_num_tokens or 0) - decode, decode


def _cache_ratio(scheduler: Any) -> float | None:
    observer = getattr(scheduler, "pool_stats_observer", None)
    return None if observer is None else float(observer.get_pool_stats().get_kv_token_stats()[1])


def _retracted(call: Call) -> None:
    """Nobody says which scheduler's batch it is: a process has one."""
    _LOADS.preempted(len(call.result[0]))


SEAMS: Final = (
    *phases(
        (_RUNNER, "ModelRunner.load_model", "weights", "load_weights"),
        (_RUNNER, "ModelRunner.alloc_memory_pool", "KV cache", "init_kv_cache"),
        (_RUNNER, "ModelRunner.init_memory_pool", "KV cache", "init_kv_cache"),
        (_RUNNER, "ModelRunner.init_cuda_graphs", "warm-up", "warm_up"),
        (_RUNNER, "ModelRunner.init_device_graphs", "warm-up", "warm_up"),
        *((module, f"{owner}.{name}", point, told) for module, owner in _UPDATERS for name, point, told in _ORDERS),
    ),
    Seam(_SCHEDULER, "Scheduler.process_batch_result", "load", _iterated),
    Seam(_BATCH, "ScheduleBatch.retract_decode", "preemptions", _retracted, begins=False),
)
