"""Computed slots of one phase of one step, split into what they were for; whole numbers that add up."""

from __future__ import annotations

from typing import Final, NamedTuple

#: Phases that sample.
SAMPLING: Final = ("generate", "gen", "rollout")

#: Phases that compute on tokens that the same model, or its reference, has computed on before.
AGAIN: Final = ("old_log_prob", "log_prob", "compute_log_prob", "ref", "ref_log_prob")

#: What a slot was for. "tokens" are valid ones of which it isn't known whether they are of a prompt or an answer.
KINDS: Final = ("response", "prompt", "again", "dummy", "padding", "tokens")


class Batch(NamedTuple):
    """What the micro-batches of a step are made of; tokens.

    Attributes:
        prompt: Of the samples that may be trained; None where it isn't known.
        response: Likewise.
        dummy: Of rows that only fill the batch up.
    """

    prompt: int | None
    response: int
    dummy: int = 0


def split(phase: str, *, tokens: int, slots: int, batch: Batch) -> dict[str, int]:
    """What the slots of a phase were for.

    A phase that computes on each row of the batch k times has k times its tokens. Where ``tokens`` is no such multiple,
    as where rows were left out, prompts and answers can't be told apart.

    Args:
        phase: Its name.
        tokens: Valid tokens of its micro-batches.
        slots: Of their rectangles, padding included.
        batch: What the step's batch is made of.

    Returns:
        Slots by kind, of :data:`KINDS`; they sum to ``slots``.

    >>> split("update", tokens=60, slots=64, batch=Batch(prompt=10, response=18, dummy=2))
    {'response': 18, 'prompt': 10, 'again': 28, 'dummy': 4, 'padding': 4}
    >>> split("old_log_prob", tokens=30, slots=30, batch=Batch(prompt=10, response=18, dummy=2))
    {'again': 28, 'dummy': 2}
    >>> split("update", tokens=29, slots=30, batch=Batch(prompt=10, response=18))
    {'padding': 1, 'tokens': 29}
    """
    found = dict.fromkeys(KINDS, 0)
    found["padding"] = slots - tokens
    once = None if batch.prompt is None else batch.prompt + batch.response
    times, rest = divmod(tokens, once + batch.dummy) if once else (0, tokens)
    if once is None or rest or not times:
        found["tokens"] = tokens
    else:
        found["dummy"] = times * batch.dummy
        again = times if phase in AGAIN else times - 1
        found["again"] = again * once
        if again < times:
            found["prompt"], found["response"] = once - batch.response, batch.response
    return {kind: count for kind, count in found.items() if count}
