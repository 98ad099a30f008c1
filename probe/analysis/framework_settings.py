"""Settings by the names that the framework of a run uses, and what they are set to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from probe.text import whole

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: What a setting is called, by framework; of one that isn't named here none is known. An empty framework is a trainer
#: on probe's own core, whose settings are the arguments of the function that cuts micro-batches.
NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "micro_batch_tokens": {
        "verl": "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
        "": "max_token_len",
    },
    "micro_batch_rows": {
        "verl": "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
        "trl": "per_device_train_batch_size",
        "transformers": "per_device_train_batch_size",
        "lightning": "batch_size",
        "": "micro_batch_size",
    },
    "balance_ranks": {"verl": "trainer.balance_batch"},
    "remove_padding": {"verl": "actor_rollout_ref.model.use_remove_padding", "trl": "padding_free"},
    "response_length": {
        "verl": "data.max_response_length",
        "trl": "max_completion_length",
        "": "response_width",
    },
    "gradient_clip": {
        "verl": "actor_rollout_ref.actor.grad_clip",
        "trl": "max_grad_norm",
        "transformers": "max_grad_norm",
        "lightning": "gradient_clip_val",
    },
    "loader_workers": {
        "trl": "dataloader_num_workers",
        "transformers": "dataloader_num_workers",
        "verl": "data.dataloader_num_workers",
        "lightning": "num_workers",
    },
    "rollout_log_probs": {
        "verl": "actor_rollout_ref.rollout.calculate_log_probs",
        "trl": "vllm_importance_sampling_correction",
    },
    "rollout_devices": {"verl": "actor_rollout_ref.rollout.n_gpus_per_node"},
    "weights_every": {"verl": "trainer.v1.separate_async.parameter_sync_step"},
    "batches_ahead": {"verl": "trainer.v1.separate_async.num_warmup_batches"},
    "samples_by_engine": {"trl": "use_vllm"},
    "steps": {
        "verl": "trainer.total_training_steps",
        "trl": "max_steps",
        "transformers": "max_steps",
        "lightning": "max_steps",
    },
    "fixed_width": {"verl": "data.max_response_length", "trl": "max_length"},
}

#: A part of a configuration by which its framework is known.
_MARKS: Final[Mapping[str, tuple[str, ...]]] = {
    "verl": ("actor_rollout_ref",),
    "trl": ("per_device_train_batch_size", "gradient_accumulation_steps"),
}

#: Frameworks that adapters observe, those first that stand on others.
_ADAPTERS: Final = (
    "verl", "trl", "nemo_rl", "openrlhf", "torchtitan", "pytorch_lightning", "lightning", "transformers"
)  # fmt: skip


def framework(run: Run) -> str:
    """The framework that a run was trained with, "" where it is none that is known: of its configuration, else of the
    adapters that its processes have told of.
    """
    config = run.info.config
    if isinstance(config, Mapping):
        for name, marks in _MARKS.items():
            if all(mark in config for mark in marks):
                return name
    told = "; ".join(str(one) for one in run.processes.get("adapters", ()) if one)
    return next((name for name in _ADAPTERS if re.search(rf"\b{name}\b(?: \S+)?: \d+ of", told)), "")


def setting(run: Run, what: str) -> tuple[str | None, Any]:
    """What a setting is called in the framework of a run, and what it is there.

    Args:
        run: The run.
        what: A key of :data:`NAMES`.

    Returns:
        Its name, None where the framework has none; and its value, None where the configuration doesn't tell.
    """
    name = NAMES[what].get(framework(run).removeprefix("pytorch_"))
    return name, None if name is None else _value(run.info.config, name)


def _value(config: Any, dotted: str) -> Any:
    if isinstance(config, Mapping) and dotted in config:
        return config[dotted]
    for part in dotted.split("."):
        if not isinstance(config, Mapping) or part not in config:
            return None
        config = config[part]
    return config


def number(value: Any) -> int | None:
    """A setting that is a whole number, else None."""
    return whole(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
