"""verl's trainers, observed as they are: the V1 trainer and its workers, the SFT trainer, and what older ones share.

Written against verl 0.9.1. The driver's phases have the names of verl's own timers, and what a worker does for one of
them has the same name: ``old_log_prob``, ``ref``, ``values``, ``update_actor``, ``update_critic``, ``update_weights``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from probe.adapters import verl_agents as agents
from probe.adapters import verl_batches as batches
from probe.adapters import verl_driver as driver
from probe.adapters import verl_samples as sampled
from probe.adapters import verl_workers as workers
from probe.adapters.seams import Seam, Tell
from probe.adapters.telling import observing
from probe.adapters.verl_logger import LOGGER

_ENGINE: Final = "verl.workers.engine"
_V1: Final = "verl.trainer.ppo.v1.trainer_base"
_V1_UTILS: Final = "verl.trainer.ppo.v1.utils"
_BUFFER: Final = "verl.trainer.ppo.v1.replay_buffer"
_DEBUG: Final = "verl.utils.debug.metrics"
_OLD_TRAINER: Final = "verl.trainer.ppo.ray_trainer"
_AGENT_LOOP: Final = "verl.experimental.agent_loop.agent_loop"
_LLM_SERVER: Final = "verl.workers.rollout.llm_server"
_BALANCING: Final = "verl.utils.seqlen_balancing"
_WORKERS: Final = "verl.workers.engine_workers"

_DRIVER: Final[Sequence[Seam]] = (
    LOGGER,
    Seam(_V1, "PPOTrainer.fit", "training", driver.training),
    Seam(_OLD_TRAINER, "RayPPOTrainer.fit", "training", driver.training),
    Seam(_V1, "PPOTrainer.step", "training", driver.step),
    Seam("verl.utils.profiler.performance", "_timer", "phases", driver.timer, begins=False),
    Seam(_AGENT_LOOP, "AgentLoopWorker.__init__", "agent loops", agents.made, begins=False, always=True),
    Seam(_AGENT_LOOP, "AgentLoopWorker._run_agent_loop", "timers in agent loops", agents.sample, False, always=True),
    Seam(_LLM_SERVER, "LLMServerClient._acquire_server", "engines of samples", agents.sent, False, always=True),
    Seam(_LLM_SERVER, "LLMServerClient.generate", "sampled tokens", agents.generated, False, always=True),
    Seam(_AGENT_LOOP, "AgentLoopWorker._compute_score", "trained tokens", agents.handed_over, False, always=True),
    Seam("verl.trainer.ppo.padding_utils", "upsample_batch_to_divisible_size", "dummy rows", driver.filled_up),
    Seam(_BALANCING, "log_seqlen_unbalance", "rows dealt to ranks", driver.dealt, begins=False),
    Seam("tensordict.base", "TensorDictBase.to_padded_tensor", "rectangles", driver.made_rectangular, begins=False),
    Seam(_DEBUG, "calculate_debug_metrics", "old log-probabilities on the driver", sampled.debugged, begins=False),
    Seam(_V1, "PPOTrainer._compute_advantage", "samples", sampled.advantages, begins=False),
    Seam(_V1_UTILS, "compute_advantage_for_multi_trajectories", "samples", sampled.computed, begins=False),
    Seam(_BUFFER, "ReplayBuffer._evict_terminal_groups", "dropped groups", sampled.evicted, begins=False),
    Seam("verl.utils.tracking", "Tracking.log", "metrics", driver.logged),
    Seam("verl.utils.metric.utils", "reduce_metrics", "reduce_metrics", observing("metric.reduce_metrics"), False),
    Seam(
        _V1_UTILS,
        "MetricsAggregator.get_aggregated_metrics",
        "MetricsAggregator",
        driver.aggregated,
        begins=False,
    ),
)

_MANAGER: Final = "verl.checkpoint_engine.base"

#: Engines give their memory to the trainer and take it back. The driver waits for it; the engine's process has no torch
#: memory of its own that could be told.
_ENGINE_SLEEP: Final[Sequence[Seam]] = (
    Seam(_MANAGER, "CheckpointEngineManager.sleep_replicas", "sleep of engines", driver.engines("engine_sleep"), False),
    Seam(
        _MANAGER, "CheckpointEngineManager.wake_up_replicas", "sleep of engines", driver.engines("engine_wake"), False
    ),
)

_HANDLER: Final = "verl.utils.checkpoint.checkpoint_handler"

#: Its trainer is a script's ``__main__``, which has no module of that name: what it imports tells of it.
_SUPERVISED: Final[Sequence[Seam]] = (
    Seam(_HANDLER, "CheckpointHandler.load_checkpoint", "supervised steps", workers.resumed),
    Seam(_HANDLER, "CheckpointHandler.save_checkpoint", "supervised checkpoints", workers.within("save_checkpoint")),
    Seam("verl.utils.distributed", "destroy_global_process_group", "end of supervised training", workers.ended, False),
)


_OLD: Final = "old log-probabilities"
_REF: Final = "reference log-probabilities"


def _worker(name: str, point: str, tell: Tell) -> Seam:
    return Seam(_WORKERS, f"ActorRolloutRefWorker.{name}", point, tell)


_WORK: Final[Sequence[Seam]] = (
    _worker("init_model", "model set-up", workers.set_up),
    _worker("compute_log_prob", _OLD, workers.log_prob),
    _worker("compute_ref_log_prob", _REF, workers.within("ref", role="ref")),
    _worker("update_actor", "update", workers.within("update_actor", role="actor")),
    _worker("update_weights", "weight synchronisation", workers.update_weights),
    _worker("save_checkpoint", "checkpoints", workers.within("save_checkpoint", role="actor")),
    _worker("load_checkpoint", "checkpoints", workers.within("load_checkpoint", role="actor")),
    Seam(_WORKERS, "TrainingWorker.train_mini_batch", "mini-batches", workers.mini_batches),
    Seam(_WORKERS, "TrainingWorker.train_batch", "training batches", workers.train_batch),
    Seam(_WORKERS, "TrainingWorker.infer_batch", "inference batches", workers.infer_batch),
    Seam(_WORKERS, "TrainingWorker.save_checkpoint", "checkpoints", workers.within("save_checkpoint")),
    Seam(_WORKERS, "TrainingWorker.load_checkpoint", "checkpoints", workers.within("load_checkpoint")),
)


def _engine(folder: str, base: str, model: str = "") -> list[Seam]:
    """The seams of an engine; ``model`` runs its micro-batches one after the other, backward after forward."""
    module, named = f"{_ENGINE}.{folder}.transformer_impl", f"{folder} engine"
    seams = [
        Seam(module, f"{base}.forward_backward_batch", named, batches.batch),
        Seam(module, f"{base}.optimizer_step", named, workers.inside("optimizer_step")),
        Seam(module, f"{base}.to", named, workers.moved),
    ]
    if model:
        seams += [
            Seam(module, f"{model}.forward_step", named, batches.micro_batch),
            Seam(module, f"{model}.prepare_model_inputs", named, batches.model_inputs),
        ]
    return seams


_FSDP: Final = f"{_ENGINE}.fsdp.transformer_impl"

_ENGINES: Final[Sequence[Seam]] = (
    Seam(f"{_ENGINE}.utils", "prepare_micro_batches", "partitions", batches.prepared),
    Seam(_BALANCING, "rearrange_micro_batches", "partitions", batches.rearranged, begins=False),
    Seam(f"{_ENGINE}.utils", "postprocess_batch_func", "end of the last micro-batch", batches.all_done, begins=False),
    Seam(_FSDP, "FSDPEngine.forward_backward_batch", "batches", batches.batch),
    Seam(_FSDP, "FSDPEngineWithLMHead.forward_step", "micro-batches", batches.micro_batch),
    Seam(_FSDP, "FSDPEngineWithLMHead.prepare_model_inputs", "model inputs", batches.model_inputs),
    Seam(_FSDP, "FSDPEngine.optimizer_step", "optimizer", workers.inside("optimizer_step")),
    Seam(_FSDP, "FSDPEngine.to", "offloading", workers.moved),
    *_engine("veomni", "VeOmniEngine", "VeOmniEngineWithLMHead"),
    *_engine("automodel", "AutomodelEngine", "AutomodelEngineWithLMHead"),
    *_engine("torchtitan", "TorchTitanEngine", "TorchTitanEngineWithLMHead"),
    # Pipelines interleave forward and backward of several micro-batches: which one runs isn't known here.
    *_engine("megatron", "MegatronEngine"),
)

_OLD_WORKERS: Final = "verl.workers.fsdp_workers"
_OLD_ACTOR: Final = "verl.workers.actor.dp_actor"


def _older(name: str, point: str, tell: Tell) -> Seam:
    return Seam(_OLD_WORKERS, name, point, tell)


#: Workers that held their model themselves, before the engines: verl 0.7 has both.
_OLDER: Final[Sequence[Seam]] = (
    _older("ActorRolloutRefWorker.init_model", "model set-up", workers.set_up),
    _older("ActorRolloutRefWorker.compute_log_prob", _OLD, workers.within("old_log_prob", role="actor")),
    _older("ActorRolloutRefWorker.compute_ref_log_prob", _REF, workers.within("ref", role="ref")),
    _older("ActorRolloutRefWorker.update_actor", "update", workers.within("update_actor", role="actor")),
    _older("ActorRolloutRefWorker.update_weights", "weight synchronisation", workers.update_weights),
    _older("ActorRolloutRefWorker.save_checkpoint", "checkpoints", workers.within("save_checkpoint", role="actor")),
    _older("ActorRolloutRefWorker.load_checkpoint", "checkpoints", workers.within("load_checkpoint", role="actor")),
    _older("CriticWorker.compute_values", "inference batches", workers.within("values", role="critic")),
    _older("CriticWorker.update_critic", "training batches", workers.within("update_critic", role="critic")),
    Seam(_OLD_ACTOR, "DataParallelPPOActor.update_policy", "batches", batches.batch),
    Seam(_OLD_ACTOR, "DataParallelPPOActor.compute_log_prob", "batches", batches.batch),
    Seam(_OLD_ACTOR, "DataParallelPPOActor._forward_micro_batch", "micro-batches", batches.micro_batch),
    Seam(_OLD_ACTOR, "DataParallelPPOActor._optimizer_step", "optimizer", batches.optimizer_step),
)

_PROTOCOL: Final[Sequence[Seam]] = tuple(
    Seam("verl.protocol", name, "DataProto", observing(point), begins=False)
    for name, point in (
        ("DataProto.concat", "data_proto.concat"),
        ("DataProto.from_dict", "data_proto.from_dict"),
        ("DataProto.from_single_dict", "data_proto.from_single_dict"),
        ("DataProto.union", "data_proto.union"),
        ("DataProto.select_idxs", "data_proto.select_idxs"),
        ("pad_dataproto_to_divisor", "data_proto.pad_to_divisor"),
    )
)

#: Where verl is observed.
SEAMS: Final[Sequence[Seam]] = (*_DRIVER, *_ENGINE_SLEEP, *_SUPERVISED, *_WORK, *_ENGINES, *_OLDER, *_PROTOCOL)
