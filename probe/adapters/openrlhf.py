"""OpenRLHF: it has no seam of its own, so that its trainers' methods and its balancing are observed by name.

Its actors of Ray are wrapped classes, which can't be patched: the plain classes are, whose methods they call. Workers
aren't told the number of the step, so that their rows have none; the driver's have.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Generator
from typing import Any, Final

from probe.adapters.seams import Call, Seam
from probe.adapters.telling import step
from probe.hooks import phase, scope
from probe.moments import tell_dealt, tell_micro_batch, tell_partition

_ACTOR: Final = "openrlhf.trainer.ray.ppo_actor"
_CRITIC: Final = "openrlhf.trainer.ray.ppo_critic"
_DRIVER: Final = "openrlhf.trainer.ppo_trainer"
_STATES: Final = "openrlhf.utils.deepspeed.deepspeed_utils"
_BALANCING: Final = "openrlhf.utils.seqlen_balancing"
_EXPERIENCE: Final = "openrlhf.trainer.ppo_utils.experience"
_BUFFER: Final = "openrlhf.trainer.ppo_utils.replay_buffer"

_known: Final = threading.local()  #: the cap that micro-batches are counted for just before they are cut
_lengths: Final[dict[int, tuple[weakref.ref[Any], list[int]]]] = {}  #: of micro-batches that were collated, by id


def _phase(name: str, role: str | None = None) -> Callable[[Call], Generator[None, None, None]]:
    def tell(call: Call) -> Generator[None, None, None]:
        del call
        with phase(name, role=role):
            yield

    return tell


def _train_step(call: Call) -> Generator[None, None, None]:
    with step(int(call.argument("global_step"))):
        yield


def _collated(call: Call) -> None:
    """Before it goes to the device: its mask is on the CPU now, and reading it waits for nobody."""
    mask = getattr(call.result, "attention_mask", None)
    if mask is None or mask.device.type != "cpu":
        return
    key = id(call.result)
    gone = weakref.ref(call.result, lambda _: _lengths.pop(key, None))
    _lengths[key] = gone, [int(one) for one in mask.sum(-1).tolist()]


def _micro_batch(call: Call) -> Generator[None, None, None]:
    trainer, experience, number = call.args[0], call.argument("experience"), call.argument("step")
    lengths = _lengths.get(id(experience), (None, None))[1]
    with scope("micro_batch", str(number), micro_batch=number):
        if lengths is not None:
            buffer = getattr(trainer, "replay_buffer", None)
            packed = bool(getattr(buffer, "packing_samples", False))
            width = None if packed else int(experience.attention_mask.shape[-1])
            tell_micro_batch(number, lengths=lengths, source=f"{_ACTOR}.training_step", width_tokens=width)
        yield


def _counted(call: Call) -> None:
    sizes = [call.argument(name, 1) for name in ("max_tokens_per_gpu", "ring_attn_size", "ds_tensor_parallel_size")]
    _known.cap = sizes[0] * sizes[1] * sizes[2]


def _partitioned(call: Call) -> None:
    given = {name: call.argument(name) for name in ("k_partitions", "equal_size")}
    tell_partition(
        lengths=list(call.argument("seqlen_list")),
        partitions=[list(part) for part in call.result],  # the caller goes on to change them
        source=f"{_BALANCING}.get_seqlen_balanced_partitions",
        cap_tokens=getattr(_known, "cap", None),
        packed=True,
        packer="openrlhf largest differencing of lengths",
        arguments=given,
    )


def _balanced(call: Call) -> None:
    lengths: list[int] = []
    partitions = []
    for batch in call.result:
        total = batch.total_length
        if total is None or total.device.type != "cpu":
            return
        own = [int(one) for one in total.flatten().tolist()]
        partitions.append(list(range(len(lengths), len(lengths) + len(own))))
        lengths += own
    source = f"{_EXPERIENCE}.balance_experiences"
    tell_dealt(lengths=lengths, partitions=partitions, source=source, packer="openrlhf interleaved by length")


SEAMS: Final = (
    Seam(_DRIVER, "BasePPOTrainer.train_step", "steps", _train_step),
    Seam(_DRIVER, "BasePPOTrainer.ppo_train", "training, on the driver", _phase("train")),
    Seam(_DRIVER, "BasePPOTrainer.broadcast_to_vllm", "weight sync, on the driver", _phase("update_weights")),
    Seam(_ACTOR, "ActorPPOTrainer.ppo_train", "update of the policy", _phase("update_actor", "actor")),
    Seam(_ACTOR, "ActorPPOTrainer.training_step", "micro-batches", _micro_batch),
    Seam(_ACTOR, "ActorPPOTrainer.broadcast_to_vllm", "weight sync", _phase("update_weights", "actor")),
    Seam(_CRITIC, "CriticPPOTrainer.ppo_train", "update of the critic", _phase("update_critic", "critic")),
    Seam(_STATES, "offload_deepspeed_states", "offloading", _phase("offload")),
    Seam(_STATES, "reload_deepspeed_states", "reloading", _phase("reload")),
    Seam(_BUFFER, "NaiveReplayBuffer.collate_fn", "lengths of micro-batches", _collated, begins=False),
    Seam(_BALANCING, "get_minimum_num_micro_batch_size", "cap", _counted, begins=False, always=True),
    Seam(_BALANCING, "get_seqlen_balanced_partitions", "dynamic micro-batches", _partitioned),
    Seam(_EXPERIENCE, "balance_experiences", "balance over ranks", _balanced),
)
