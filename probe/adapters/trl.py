"""TRL's trainers, observed as they are; what all of them share with Transformers' is in the adapter of that.

Generation, rewards and log-probabilities are phases of their own. TRL does them inside ``training_step``, before the
loss: none of it is filed under the update, nor under a micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from weakref import WeakKeyDictionary

from probe.adapters.seams import Call, Seam
from probe.adapters.transformers import Telling, current_loop, loop_of, prepared
from probe.adapters.trl_packing import packed
from probe.adapters.trl_passes import computed, loss, shuffled, split
from probe.adapters.trl_samples import generated, scored, turn
from probe.hooks import phase, scope

#: What TRL calls its stretches → our phase. "" is none: other seams tell of it.
_PHASES: Final = {
    "transformers.generate": "generate",
    "transformers.generate_batch": "generate",
    "vLLM.generate": "generate",
    "sync_weights": "sync_weights",
    "_calculate_rewards": "reward",
    "_prepare_inputs": "",
    "compute_loss": "",
    "_get_per_token_logps_and_entropies": "",
}

_open: Final[WeakKeyDictionary[Any, scope]] = WeakKeyDictionary()  #: of TRL's contexts, what was opened for each


def _stretch_begins(call: Call) -> None:
    context = call.args[0]
    if current_loop() is None:  # a thread of its own, that serves many rollouts at once
        return
    name = str(context.name).partition(".")[2] or str(context.name)
    known = _PHASES.get(name)
    if known == "":
        return
    # What TRL doesn't name itself is a user's reward function, inside the rewards.
    opened = scope("watch", name) if known is None else scope("phase", known, phase=known)
    opened.__enter__()
    _open[context] = opened


def _stretch_ends(call: Call) -> Telling:
    opened = _open.pop(call.args[0], None)
    if opened is not None:
        opened.__exit__(None, None, call.args[3] if len(call.args) > 3 else None)
    yield


def _rollout(call: Call) -> Telling:
    loop_of(call.args[0]).end_update()
    with phase("rollout"):
        yield
    scored(call)


def _log_probs(call: Call) -> Telling:
    loop = current_loop()
    if loop is None:
        return
    if loop.computing:
        yield
        computed(call)
        return
    with phase(_whose(call.args[0], call.argument("model"))):
        yield


def _whose(trainer: Any, model: Any) -> str:
    """Which log-probabilities: of a model with adapters that can't be seen from here."""
    if model is getattr(trainer, "ref_model", None):
        return "ref_log_prob"
    unwrapped = getattr(model, "module", model)
    return "log_prob" if hasattr(unwrapped, "peft_config") else "old_log_prob"


def _of_trainer(module: str, name: str) -> Iterator[Seam]:
    where = f"trl.trainer.{module}"
    yield Seam(where, f"{name}._generate_and_score_completions", f"{name}: rollouts", _rollout)
    yield Seam(where, f"{name}._generate", f"{name}: answers", generated, begins=False)
    yield Seam(where, f"{name}._generate_single_turn", f"{name}: sampled tokens", turn, begins=False)
    log_probs = f"{name}._get_per_token_logps_and_entropies"
    yield Seam(where, log_probs, f"{name}: log-probabilities", _log_probs, begins=False)
    yield Seam(where, f"{name}._compute_loss", f"{name}: trained answers", loss, begins=False)
    yield Seam(where, f"{name}._prepare_inputs", f"{name}: what compute_loss receives", prepared, begins=False)


#: Where TRL is observed, beside what the adapter of Transformers observes.
SEAMS: Final = (
    Seam("trl.extras.profiling", "ProfilingContext.__enter__", "stretches", _stretch_begins, begins=False),
    Seam("trl.extras.profiling", "ProfilingContext.__exit__", "ends of stretches", _stretch_ends, begins=False),
    *_of_trainer("grpo_trainer", "GRPOTrainer"),
    *_of_trainer("rloo_trainer", "RLOOTrainer"),
    Seam("trl.trainer.utils", "shuffle_sequence_dict", "order of trained answers", shuffled, begins=False),
    Seam("trl.trainer.utils", "split_tensor_dict", "micro-batches of trained answers", split, begins=False),
    # Before the training, and so before anybody records.
    Seam("trl.data_utils", "pack_dataset", "packing of data sets", packed, begins=False, always=True),
)
