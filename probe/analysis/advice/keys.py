"""The settings that advice changes, by the names that each framework has for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from probe.analysis import framework_settings

if TYPE_CHECKING:
    from probe.runs.reader import Run

_ACTOR: Final = "actor_rollout_ref.actor"
_ROLLOUT: Final = "actor_rollout_ref.rollout"
_REF: Final = "actor_rollout_ref.ref"

#: verl's, by phase: cap, rows of a micro-batch, dynamic or fixed.
_VERL: Final[Mapping[str, Mapping[str, str]]] = {
    "update_actor": {
        "cap_tokens": f"{_ACTOR}.ppo_max_token_len_per_gpu",
        "rows_each": f"{_ACTOR}.ppo_micro_batch_size_per_gpu",
        "dynamic": f"{_ACTOR}.use_dynamic_bsz",
    },
    "old_log_prob": {
        "cap_tokens": f"{_ROLLOUT}.log_prob_max_token_len_per_gpu",
        "rows_each": f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu",
        "dynamic": f"{_ROLLOUT}.log_prob_use_dynamic_bsz",
    },
    "ref": {
        "cap_tokens": f"{_REF}.log_prob_max_token_len_per_gpu",
        "rows_each": f"{_REF}.log_prob_micro_batch_size_per_gpu",
        "dynamic": f"{_REF}.log_prob_use_dynamic_bsz",
    },
    "update_critic": {
        "cap_tokens": "critic.ppo_max_token_len_per_gpu",
        "rows_each": "critic.ppo_micro_batch_size_per_gpu",
        "dynamic": "critic.use_dynamic_bsz",
    },
    "values": {
        "cap_tokens": "critic.forward_max_token_len_per_gpu",
        "rows_each": "critic.forward_micro_batch_size_per_gpu",
        "dynamic": "critic.use_dynamic_bsz",
    },
}

#: Phases of verl that one switch turns, or two that verl wants to be the same.
_TOGETHER: Final[Mapping[str, str]] = {
    "update_actor": "actor",
    "old_log_prob": "actor",
    "update_critic": "critic",
    "values": "critic",
}

#: verl's, of how many ranks share a sequence.
_SHARING: Final = ("ulysses_sequence_parallel_size", "context_parallel_size")

#: TRL's and Transformers' phase that trains nothing, and whose rows have a setting of their own.
EVALUATION: Final = "evaluate"

#: TRL's and Transformers' rows of a micro-batch, and how many micro-batches make an update.
DEVICE_ROWS: Final = "per_device_train_batch_size"
EVALUATED_ROWS: Final = "per_device_eval_batch_size"
ACCUMULATED: Final = "gradient_accumulation_steps"

#: NeMo-RL's: both are told with the kind of the phase, "train" or "logprob".
NEMO_RL_CAPS: Final[Mapping[str, str]] = {
    "dynamic_batching": "policy.dynamic_batching.{kind}_mb_tokens",
    "sequence_packing": "policy.sequence_packing.{kind}_mb_tokens",
}

#: What a cap is called in configurations of loops of the user's own.
_OWN_CAPS: Final = ("max_token_len", "max_tokens_per_microbatch", "max_tokens", "cap_tokens")


def framework(run: Run) -> str:
    """The framework that a run was trained with: "verl", "trl", "nemo_rl", "lightning", or "" for the user's own loop.

    Args:
        run: The run.
    """
    config = run.info.config
    if isinstance(config, Mapping) and {"policy", "cluster"} <= set(config):
        return "nemo_rl"
    return framework_settings.framework(run)


def key_of(run: Run, what: str, phase: str | None) -> str | None:
    """What a setting is called.

    Args:
        run: The run.
        what: ``"cap_tokens"``, ``"rows_each"``, ``"dynamic"`` or ``"balance"``.
        phase: Whose micro-batches it is about.

    Returns:
        A dotted key; None where the framework has none.
    """
    named = framework(run)
    if what == "balance":
        return "trainer.balance_batch" if named == "verl" else None
    if named == "verl":
        return _VERL.get(phase or "", {}).get(what)
    if named == "nemo_rl":
        return _nemo_rl_key(run, what, phase)
    if named == "trl":
        named = EVALUATED_ROWS if phase == EVALUATION else DEVICE_ROWS
        return named if what == "rows_each" else None
    if what == "cap_tokens":
        config = run.info.config
        known = [one for one in _OWN_CAPS if isinstance(config, Mapping) and one in config]
        return known[0] if len(known) == 1 else _argument(run)
    return None


def _nemo_rl_key(run: Run, what: str, phase: str | None) -> str | None:
    packs = value_of(run, "policy.sequence_packing.enabled") is True
    if what == "dynamic":
        return None if packs else "policy.dynamic_batching.enabled"
    return nemo_rl_cap("sequence_packing" if packs else "dynamic_batching", phase) if what == "cap_tokens" else None


def nemo_rl_cap(rule: str, phase: str | None) -> str:
    """NeMo-RL's key for the tokens of a micro-batch.

    Args:
        rule: ``"dynamic_batching"`` or ``"sequence_packing"``.
        phase: By the label of its timer, or one of probe's names: the update, or a phase of log-probabilities.

    >>> nemo_rl_cap("sequence_packing", "policy_and_reference_logprobs")
    'policy.sequence_packing.logprob_mb_tokens'
    """
    kind = "logprob" if "log" in (phase or "") or (phase or "").startswith("ref") else "train"
    return NEMO_RL_CAPS[rule].format(kind=kind)


def _argument(run: Run) -> str:
    """The cap of a loop of the user's own, by the name that the function has for it which cut or told."""
    told = run.sql("select distinct source from micro_batches where cap_tokens is not null")["source"].tolist()
    return "cap" if told == ["micro_batch"] else "max_token_len"


def switched_together(run: Run, phase: str | None) -> str:
    """What phases have in common that are cut by tokens, or into fixed rows, all or none.

    Args:
        run: The run.
        phase: One of them.
    """
    return _TOGETHER.get(phase or "", phase or "") if framework(run) == "verl" else phase or ""


def switches_beside(run: Run, values: Mapping[str, Any]) -> list[str]:
    """Switches that have to be turned with others: verl's actor and rollout must say the same, and where the
    configuration sets the rollout's by itself it doesn't follow.

    Args:
        run: The run.
        values: That are set, by dotted key.
    """
    pair = [_VERL[phase]["dynamic"] for phase in ("update_actor", "old_log_prob")]
    turned = next((values[key] for key in pair if key in values), None)
    if framework(run) != "verl" or turned is None:
        return []
    return [key for key in pair if key not in values and value_of(run, key) is (not turned)]


def shares_sequences(run: Run) -> bool:
    """Whether the configuration has several ranks share a sequence, in any of its parts.

    Args:
        run: The run.
    """
    waiting: list[Any] = [run.info.config]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mapping):
            if any(isinstance(one.get(name), int) and one[name] > 1 for name in _SHARING):
                return True
            waiting.extend(one.values())
    return False


def value_of(run: Run, key: str) -> Any:
    """What a dotted key is set to in the run's configuration; None where that doesn't say.

    Args:
        run: The run.
        key: Dotted.
    """
    found: Any = run.info.config
    if isinstance(found, Mapping) and key in found:
        return found[key]
    for part in key.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    return found


def rows_of_key(run: Run, key: str | None, rows: int) -> tuple[int, tuple[str, int] | None]:
    """Rows of a micro-batch that one of a key's value stands for; and the key of TRL's accumulated micro-batches with
    what the two come to when multiplied: they grow fewer as rows grow more. Not in an evaluation, which accumulates
    none.

    Args:
        run: The run.
        key: Of :func:`key_of`; None where the framework has none.
        rows: Of a micro-batch.
    """
    device = None if key is None else value_of(run, key)
    steps = value_of(run, ACCUMULATED)
    if key not in (DEVICE_ROWS, EVALUATED_ROWS) or not is_count(device) or rows % device:
        return 1, None
    accumulates = key == DEVICE_ROWS and is_count(steps)
    return rows // device, (ACCUMULATED, device * steps) if accumulates else None


def is_count(value: Any) -> TypeGuard[int]:
    """Whether a value of a configuration is a whole number above 0.

    Args:
        value: Of the configuration.

    >>> is_count(4), is_count(True), is_count("4"), is_count(0)
    (True, False, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
