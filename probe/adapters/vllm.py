"""vLLM: what its workers do with their memory, and how loaded its scheduler is.

Its plugins of statistics aren't used: an engine that finds one collects statistics though it was told not to, with or
without anything to record to. The scheduler itself is looked at, which serves engines of every kind. Nothing inside
``Worker.determine_available_memory`` is a scope: vLLM reads torch's peak there to size its cache.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from probe.adapters.engines import Loads, phases
from probe.adapters.seams import Call, Seam

_WORKER: Final = "vllm.v1.worker.gpu_worker"
_SCHEDULER: Final = "vllm.v1.core.sched.scheduler"
_VERL: Final = "verl.workers.rollout.vllm_rollout.utils"

_LOADS: Final = Loads(f"{_SCHEDULER}.Scheduler.update_from_output")


def _iterated(call: Call) -> Generator[None, None, None]:
    """What was computed is taken in. The cache is looked at before: finished requests give their blocks back."""
    scheduler, output = call.args[0], call.argument("scheduler_output")
    running, waiting = scheduler.get_request_counts()
    ratio = getattr(scheduler.kv_cache_manager, "usage", None)
    tokens, cached = output.num_scheduled_tokens, output.scheduled_cached_reqs
    prefill = sum(tokens[one.req_id] for one in output.scheduled_new_reqs)
    prefill += sum(tokens[one] for one, told in zip(cached.req_ids, cached.num_output_tokens, strict=True) if not told)
    yield
    load = _LOADS.of(scheduler)
    load.iterated(
        prefill_tokens=prefill,
        decode_tokens=output.total_num_scheduled_tokens - prefill,
        running=running,
        waiting=waiting,
        cache_ratio=None if ratio is None else float(ratio),
    )
    if not any(scheduler.get_request_counts()):
        load.tell()


def _preempted(call: Call) -> None:
    _LOADS.of(call.args[0]).preempted()


SEAMS: Final = (
    *phases(
        (_WORKER, "Worker.load_model", "weights", "load_weights"),
        (_WORKER, "Worker.initialize_from_config", "KV cache", "init_kv_cache"),
        (_WORKER, "Worker.compile_or_warm_up_model", "warm-up", "warm_up"),
        (_WORKER, "Worker.sleep", "sleep", "engine_sleep"),
        (_WORKER, "Worker.wake_up", "sleep", "engine_wake"),
        (_WORKER, "Worker.update_weights", "weight sync", "update_weights"),
        (_WORKER, "Worker.reload_weights", "weight sync", "update_weights"),
        (_VERL, "vLLMColocateWorkerExtension.update_weights_from_ipc", "weight sync", "update_weights"),
    ),
    Seam(_SCHEDULER, "Scheduler.update_from_output", "load", _iterated),
    Seam(_SCHEDULER, "Scheduler._preempt_request", "preemptions", _preempted, begins=False),
)
