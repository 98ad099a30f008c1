"""What verl's V1 trainer samples, told when its advantages are known; its driver has all of it on the CPU by then.

Whether a token was clipped is known to its workers alone, as a share of all: here it isn't told. Nor is how often a
conversation called tools, nor which engine sampled it: that is known to the agent loops alone. A trajectory is called
here as they call it, by its key in verl's queue, so that a reader finds what they told of it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final

from probe.adapters.seams import Call
from probe.adapters.verl_driver import DRIVER
from probe.sampled import SAMPLES, samples

_SOURCE: Final = "verl._compute_advantage"


class Now:
    """The batch whose advantages are computed.

    Attributes:
        tags: What verl's driver knows of each row; None outside.
        entropies: Of the batch whose old log-probabilities came last, in half precision.
        turns: Of each of its conversations.
    """

    def __init__(self) -> None:
        self.tags: Sequence[Mapping[str, Any]] | None = None
        self.forget()

    def forget(self) -> None:
        """The batch is told, or it isn't the one that is meant."""
        self.entropies: Any = None
        self.turns: list[int] | None = None


NOW: Final = Now()


def debugged(call: Call) -> None:
    """Old log-probabilities and entropies have come to the driver, padded, on its CPU."""
    NOW.forget()
    batch = getattr(call.argument("data"), "batch", None)
    if not SAMPLES.listeners or DRIVER.trainer is None or batch is None:
        return
    keys = batch.keys()  # a TensorDict is no mapping: `in` asks its keys
    if "response_mask" in keys:
        NOW.turns = _turns(batch["response_mask"])
    if "entropy" in keys:
        found = batch["entropy"]
        if found.device.type == "cpu":
            NOW.entropies = found.detach().half().numpy()


def advantages(call: Call) -> Generator[None, None, None]:
    """Around the phase of advantages: which rows they are of."""
    NOW.tags = call.argument("batch").tags
    try:
        yield
    finally:
        NOW.tags = None
        NOW.forget()


def computed(call: Call) -> None:
    """Advantages were computed, over rectangles that begin with the response."""
    tags, entropies, turns = NOW.tags, NOW.entropies, NOW.turns
    NOW.forget()
    if tags is None or not SAMPLES.listeners:
        return
    data = call.result
    kept = [at for at, tag in enumerate(tags) if not tag.get("is_padding", False)]
    keys = data.batch.keys()  # a TensorDict is no mapping: it iterates over rows
    columns = {name: data.batch[name] for name in keys}

    def column(name: str) -> Any:
        found = columns.get(name)
        return found if found is None or len(kept) == len(tags) else found[kept]

    lengths = [int(tags[at]["response_len"]) for at in kept]
    scores, uids = column("token_level_scores"), data.non_tensor_batch.get("uid")
    if turns is None and not _rejects():
        turns = _turns(columns.get("response_mask"))
    limit, keys = _limit(), call.argument("batch_keys")
    samples(
        lengths,
        uids=[str(keys[at]) for at in kept] if isinstance(keys, list) and len(keys) == len(tags) else None,
        prompt_tokens=[int(tags[at]["prompt_len"]) for at in kept],
        mask=column("response_mask"),
        groups=None if uids is None else [str(uids[at]) for at in kept],
        turns=[turns[at] for at in kept] if turns is not None and len(turns) == len(tags) else None,
        has_error=_errors([tags[at] for at in kept]),
        truncated=None if limit is None else [length >= limit for length in lengths],
        rewards=None if scores is None else scores.sum(-1),
        advantages=column("advantages"),
        rollout_log_probs=column("rollout_log_probs"),
        log_probs=column("old_log_probs"),
        entropies=entropies[kept] if entropies is not None and len(entropies) == len(tags) else None,
        weight_versions=_versions(tags, kept),
        trainer_version=_trainer_version(),
        loss_terms=_loss_terms(),
        source=_SOURCE,
    )


#: Places of the sets in what verl's replay buffer gives as reasons, and our word for each.
_REASONS: Final = ("stale", "filtered", "failed")


def evicted(call: Call) -> Generator[None, None, None]:
    """Groups leave the replay buffer untrained: too old, without signal, or failed. Those may have no length."""
    if SAMPLES.listeners and call.argument("partition_id") != "val":
        _tell_evicted(call)
    yield


def _tell_evicted(call: Call) -> None:
    reasons = call.argument("eviction_reasons")[: len(_REASONS)]
    tags = call.args[0].partitions[call.argument("partition_id")]
    found: list[tuple[str, str, str, Mapping[str, Any]]] = []
    for key, tag in tags.items():
        uid = key.split("_")[0]
        word = next((word for word, uids in zip(_REASONS, reasons, strict=True) if uid in uids), None)
        if word is not None and "response_len" in tag:
            found.append((key, uid, word, tag))
    if found:
        samples(
            [int(tag["response_len"]) for *_, tag in found],
            prompt_tokens=[int(tag["prompt_len"]) for *_, tag in found],
            uids=[key for key, *_ in found],
            groups=[uid for _, uid, *_ in found],
            has_error=_errors([tag for *_, tag in found]),
            dropped=[word for *_, word, _ in found],
            loss_terms=_loss_terms(),
            source="verl.ReplayBuffer",
        )


def _turns(mask: Any) -> list[int] | None:
    """The model's own turns of each conversation: runs of its tokens. verl's ``num_turns`` counts the other side's too.

    Args:
        mask: Which tokens of the responses are the model's, (n, width).
    """
    if mask is None or mask.device.type != "cpu":
        return None
    own = mask.bool()
    found: list[int] = (own[:, :1].sum(-1) + (own[:, 1:] & ~own[:, :-1]).sum(-1)).tolist()
    return found


def _errors(tags: Sequence[Mapping[str, Any]]) -> list[bool] | None:
    """Which rollouts verl doesn't call a success. Of one that raised it has no row; what a tool raised is an answer."""
    status = [tag.get("status") for tag in tags]
    return None if None in status else [one != "success" for one in status]


def _rejects() -> bool:
    """Whether tokens are taken out of the mask because rollout and training disagree: turns then fall to pieces."""
    return bool(_config("algorithm", "rollout_correction", "rollout_rs"))


def _versions(tags: Sequence[Mapping[str, Any]], kept: Sequence[int]) -> list[int] | None:
    found = [tags[at].get("min_global_steps") for at in kept]
    return None if any(one is None for one in found) else [int(one) for one in found if one is not None]


def _trainer_version() -> int | None:
    """The trainer's version as verl's own metrics count it: weights of step g are made by the step before."""
    step = getattr(DRIVER.trainer, "global_steps", None)
    return None if step is None else int(step) - 1


def _config(*path: str) -> Any:
    """A setting of the trainer, None where it has none."""
    found = getattr(DRIVER.trainer, "config", None)
    for name in path:
        get = getattr(found, "get", None)
        if get is None:
            return None
        found = get(name)
    return found


def _limit() -> int | None:
    found = _config("data", "max_response_length")
    return None if found is None else int(found)


def _loss_terms() -> list[str]:
    actor = ("actor_rollout_ref", "actor")
    named = (("KL", _config(*actor, "use_kl_loss")), ("entropy", _config(*actor, "entropy_coeff")))
    return [name for name, setting in named if setting]
