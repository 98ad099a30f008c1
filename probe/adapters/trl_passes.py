"""Which answers each micro-batch of TRL's GRPO and RLOO trainers trains, and which of their tokens its loss holds back.

TRL shuffles what it has generated and cuts it into micro-batches. A column of row numbers goes through these two
functions beside TRL's own columns, and is taken out of what they return, so that no other code ever sees it. Elsewhere
rows are known by the tensor ``completion_ids`` itself: its values, which may be on a device, are never compared.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Generator, MutableMapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from probe.adapters.seams import Call
from probe.guard import on_error
from probe.sampled import TRAINED, trained

#: Of a batch the column that goes through TRL's functions, and the one that it is known by.
_COLUMN: Final = "probe.rows"
_KNOWN_BY: Final = "completion_ids"

#: Losses of GRPO that leave out a token whose ratio has left its range, and those that only weigh it less.
_CLIPPING: Final = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")
_WEIGHING: Final = ("cispo", "sapo")

#: By the identity of a tensor: itself, as long as anybody has it, and the rows of the told batch that it holds.
_rows: Final[dict[int, tuple[weakref.ref[Any], list[int]]]] = {}


class Pass:
    """A micro-batch whose loss is being computed.

    Args:
        inputs: What the loss receives.

    Attributes:
        inputs: Likewise.
        log_probs: Of its tokens, from the model that is trained; None until they are there.
    """

    def __init__(self, inputs: MutableMapping[str, Any]) -> None:
        self.inputs = inputs
        self.log_probs: Any = None


_passes: Final[WeakKeyDictionary[Any, Pass]] = WeakKeyDictionary()


def follow(batch: Any, count: int) -> None:
    """A batch was told: its rows are followed from here.

    Args:
        batch: What the trainer goes on with.
        count: Its rows.
    """
    if TRAINED.listeners:
        _note(batch, list(range(count)))


def _note(batch: Any, rows: list[int]) -> None:
    tensor = batch.get(_KNOWN_BY)
    if tensor is None or len(tensor) != len(rows):
        return
    key = id(tensor)
    _rows[key] = weakref.ref(tensor, lambda _: _rows.pop(key, None)), rows


def _rows_of(batch: Any) -> list[int] | None:
    tensor = batch.get(_KNOWN_BY) if isinstance(batch, MutableMapping) else None
    found = _rows.get(id(tensor))
    return found[1] if found is not None and found[0]() is tensor else None


@contextlib.contextmanager
def _carrying(batch: Any) -> Generator[bool, None, None]:
    """In the block a batch whose rows are known has a column of them; gives whether it has."""
    rows = _rows_of(batch)
    if rows is None:
        yield False
        return
    batch[_COLUMN] = rows
    try:
        yield True
    finally:
        batch.pop(_COLUMN, None)


def shuffled(call: Call) -> Generator[None, None, None]:
    """The rows of a batch are put into another order."""
    with _carrying(call.argument("seq_dict")) as carries:
        yield
        if carries:
            _take(call.result)


def split(call: Call) -> Generator[None, None, None]:
    """A batch is cut into micro-batches."""
    with _carrying(call.argument("tensor_dict")) as carries:
        yield
        if carries:
            for one in call.result:
                _take(one)


def _take(batch: Any) -> None:
    """Take the column out of a batch, which is known by its tensor from now on."""
    rows = batch.pop(_COLUMN, None)
    if rows is not None:
        _note(batch, rows)


def loss(call: Call) -> Generator[None, None, None]:
    """The loss of a micro-batch is computed. What raises within counts as a pass, too: it may be what is looked for."""
    trainer, inputs = call.args[0], call.argument("inputs")
    rows = _rows_of(inputs) if TRAINED.listeners and trainer.model.training else None
    if rows is None:
        return
    opened = _passes[trainer] = Pass(inputs)
    try:
        with on_error(lambda _: trained(rows)):
            yield
    finally:
        _passes.pop(trainer, None)
    trained(rows, clipped=held_back(trainer, inputs, opened.log_probs))


def computed(call: Call) -> None:
    """Log-probabilities were computed; within a loss they are those that it is of."""
    opened = _passes.get(call.args[0])
    if opened is not None and opened.log_probs is None and isinstance(call.result, tuple):
        opened.log_probs = call.result[0].detach()


def never_clips(trainer: Any, output: dict[str, Any]) -> bool:
    """Whether no pass can hold back a token.

    Args:
        trainer: Of GRPO or RLOO.
        output: What it has generated: with log-probabilities of then it compares the policy with that; without, with
            itself, so that the ratio is 1.
    """
    compared = "old_per_token_logps" in output or "old_logps" in output  # of tokens in GRPO, of answers in RLOO
    weighing = getattr(trainer, "loss_type", None) in _WEIGHING
    return (weighing or not compared) and not _leaves_out(trainer)


def _leaves_out(trainer: Any) -> bool:
    """Whether GRPO has another reason to leave tokens out, for which only its loss knows them."""
    corrected = getattr(trainer, "use_vllm", False) and getattr(trainer, "vllm_importance_sampling_correction", False)
    return (
        getattr(trainer, "top_entropy_quantile", 1.0) != 1.0
        or getattr(trainer, "off_policy_mask_threshold", None) is not None
        or (corrected and "mask" in str(getattr(trainer, "vllm_importance_sampling_mode", "mask")))
    )


def held_back(trainer: Any, inputs: MutableMapping[str, Any], log_probs: Any) -> Any:
    """Which tokens the loss of a micro-batch holds back, by TRL's own rule and with its own operations.

    They are queued where the tensors are; nothing waits for them.

    Args:
        trainer: Of GRPO or RLOO.
        inputs: What its loss received.
        log_probs: Of the tokens of the answers, from the model that is trained, (n, width).

    Returns:
        bool (n, width), or (n,) where an answer is held back as a whole; None where it isn't known.
    """
    import torch

    if log_probs is None or _leaves_out(trainer):
        return None
    advantages = inputs["advantages"]
    with torch.no_grad():
        if "old_logps" in inputs:
            ratio = torch.exp((log_probs * inputs["completion_mask"]).sum(1) - inputs["old_logps"])
            return _outside(ratio, advantages, trainer)
        if "old_per_token_logps" not in inputs or trainer.loss_type not in _CLIPPING:
            return None
        log_ratio = log_probs - inputs["old_per_token_logps"]
        if trainer.importance_sampling_level == "sequence":
            mask = inputs["completion_mask"]
            mask = mask * inputs["tool_mask"] if "tool_mask" in inputs else mask
            log_ratio = ((log_ratio * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).unsqueeze(1)
        found = _outside(torch.exp(log_ratio), advantages if advantages.dim() > 1 else advantages.unsqueeze(1), trainer)
        return found.squeeze(1) if found.shape[1] == 1 else found


def _outside(ratio: Any, advantages: Any, trainer: Any) -> Any:
    """Where the smaller of the two terms has no gradient: PPO's rule, and with GRPO's second bound, ``delta``, the same
    for both signs.
    """
    high = 1 + trainer.epsilon_high
    most = getattr(trainer.args, "delta", None) or high
    raised = (ratio > min(high, most)) & (advantages > 0)
    lowered = (ratio < 1 - trainer.epsilon_low) & (advantages < 0)
    found = raised | lowered
    return found | ((ratio > max(high, most)) & (advantages < 0)) if most != high else found
