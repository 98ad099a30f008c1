"""What became of sampled answers, told by the code that trains on them. Neither torch nor numpy is needed.

A loop of its own tells of its answers twice: :func:`samples` when their advantages are known, and :func:`trained` for
each micro-batch that the loss is computed on. Of verl and TRL the adapters tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from probe.errors import InputError, UnknownNameError
from probe.hooks import emit, point

#: Told when the answers of a batch have their advantages.
SAMPLES: Final = point(
    "samples.told",
    "answers were sampled and have their advantages, or were dropped before; carries the arguments of probe.samples",
)

#: Told when the loss of a micro-batch is computed.
TRAINED: Final = point(
    "samples.trained",
    "a micro-batch of recorded answers is trained; carries rows (indices into the step's last probe.samples), "
    "clipped (per token, None if unknown)",
)

#: Told when samples have ended whose batch another process tells of.
TIMED: Final = point(
    "samples.timed",
    "samples have ended in a process that knows only their times; carries step, phase, source, begin_ns, end_ns and "
    "replicas of each; also their tokens, None if unknown, and uids and compared, for samples whose trained tokens "
    "were compared with the sampled ones",
)

#: Why an answer never reaches the loss; other words are counted together.
DROPPED: Final = ("truncated", "stale", "filtered", "failed")

_FOR_EACH: Final = (
    "prompt_tokens",
    "mask",
    "response_mask",
    "uids",
    "groups",
    "turns",
    "tools",
    "has_error",
    "ended",
    "truncated",
    "rewards",
    "advantages",
    "rollout_log_probs",
    "log_probs",
    "entropies",
    "weight_versions",
    "replicas",
    "prompts",
    "responses",
    "prompt_ids",
    "response_ids",
    "sampled_ids",
)


def samples(
    response_tokens: Any = None,
    *,
    prompt_tokens: Any = None,
    mask: Any = None,
    response_mask: Any = None,
    uids: Sequence[Any] | None = None,
    groups: Any = None,
    turns: Any = None,
    tools: Any = None,
    has_error: Any = None,
    ended: Sequence[str] | None = None,
    truncated: Any = None,
    rewards: Any = None,
    advantages: Any = None,
    rollout_log_probs: Any = None,
    log_probs: Any = None,
    entropies: Any = None,
    clipped: Any = None,
    passes: int | None = None,
    weight_versions: Any = None,
    trainer_version: int | None = None,
    begin_ns: Any = None,
    end_ns: Any = None,
    replicas: str | Sequence[str] | None = None,
    dropped: str | Sequence[str | None] | None = None,
    loss_terms: Sequence[str] = (),
    prompts: Sequence[str] | None = None,
    responses: Sequence[str] | None = None,
    prompt_ids: Sequence[Any] | None = None,
    response_ids: Sequence[Any] | None = None,
    sampled_ids: Sequence[Any] | None = None,
    source: str = "probe.samples",
) -> None:
    """Tell what was sampled, as the step ends: rows in ``samples``, ``token_blocks``, ``rollouts``, ``token_fates`` and
    ``token_identity``.

    Nothing is changed, and nobody waits for a device: a tensor there is copied behind the work that is queued, one on a
    device other than CUDA is left out. Numbers per token are arrays or tensors (n, width) whose entry t is the t-th
    response token, padded on the right; where they span the prompt too, or are padded on the left, ``response_mask``
    says which entries are response tokens. A list of n sequences without padding will do as well. Without a session it
    costs one attribute test.

    Args:
        response_tokens: Tokens of each of the n answers, whole numbers (n,); None takes the sums of ``response_mask``.
        prompt_tokens: Tokens of each prompt, whole numbers (n,).
        mask: Which tokens the loss counts, bool or 0 and 1 (n, width); None is all response tokens.
        response_mask: Which entries of ``mask`` and of the numbers per token are response tokens, (n, width).
        uids: A name for each answer.
        groups: The group of each answer: those to one prompt share it.
        turns: The model's own turns of each conversation.
        tools: Calls of tools that it made in each conversation.
        has_error: Whether each rollout failed, bool (n,): its environment, a tool or the engine gave no answer whose
            reward means anything. A tool's error that the model was told, and could answer, is no failure. With
            ``groups``, ``rewards`` and ``advantages`` it is found out whether such answers count in the baseline of
            their group.
        ended: Why each generation ended, such as ``"stop"`` or ``"length"``.
        truncated: Whether each ended at the limit of tokens; None takes it from ``ended`` ("length").
        rewards: Float (n,).
        advantages: Float (n,) or (n, width). A token whose advantage is 0 carries no policy gradient.
        rollout_log_probs: Natural logarithms, (n, width): those of the engine that sampled.
        log_probs: Likewise those of the model that trains, before its update.
        entropies: In nats, (n, width).
        clipped: Which tokens the loss held back in every pass, bool (n, width), or False where it never clips. None
            leaves it to :func:`trained`.
        passes: How often each answer is trained in all, where some of that is in later steps. An answer that
            :func:`trained` has told of less often as the step ends isn't dropped, and isn't known to be clipped in
            every pass; what later steps make known is told as these end, in ``later_passes`` and ``token_fates``.
        weight_versions: Whole numbers (n,): which weights sampled, as the trainer counts them.
        trainer_version: Of the weights that the trainer has as it trains these answers, counted likewise.
        begin_ns: When each was asked for, whole numbers (n,) as ``time.monotonic_ns()`` tells in this process; one
            number where only that of the whole batch is known.
        end_ns: When each was whole, likewise; as many as ``begin_ns``.
        replicas: Name of the engine that sampled each, or one for all.
        dropped: Why answers never reach the loss, one word for all or one each (None: it isn't dropped): of
            :data:`DROPPED`, or another.
        loss_terms: What the loss has beside the policy's term, such as ``["KL"]``.
        prompts: Texts, kept only where ``probe.start(samples="text")`` asks for them; so are the next three.
        responses: Texts.
        prompt_ids: Token ids of each prompt.
        response_ids: Token ids of each answer.
        sampled_ids: Token ids that the engine sampled, of each answer in their order, without what tools gave between;
            in a rectangle a negative id is none. With ``response_ids`` they are compared as the step ends, whether or
            not ids are kept: are the tokens that are trained those that were sampled? A row in ``token_identity``.
        source: Who tells.

    Raises:
        InputError: Neither ``response_tokens`` nor ``response_mask`` is given, or arguments are of different numbers of
            answers, or one of ``begin_ns`` and ``end_ns`` is missing.

    >>> samples([5, 3], groups=["a", "a"], rewards=[1.0, 0.0], advantages=[0.7, -0.7], clipped=False)
    """
    given = dict(locals())
    if not SAMPLES.listeners:
        return
    if response_tokens is None and response_mask is None:
        raise InputError("response_tokens: got None, and no response_mask either; expected one of the two")
    first = "response_mask" if response_tokens is None else "response_tokens"
    count = len(given[first])
    for name in _FOR_EACH:
        one = given[name]
        if one is not None and not isinstance(one, str) and len(one) != count:
            raise InputError(f"{name}: got {len(one)} of them, expected {count}, as many as {first}")
    _check_times(begin_ns, end_ns, count)
    if passes is not None and passes < 1:
        raise InputError(f"passes: got {passes}, expected 1 or more, or None")
    if dropped is not None and not isinstance(dropped, str) and len(dropped) != count:
        raise InputError(f"dropped: got {len(dropped)} of them, expected {count}, or one word for all")
    emit(SAMPLES, **given, count=count)


def trained(rows: Any, *, clipped: Any = None) -> None:
    """Tell that the loss is computed on some of the answers that were told last: once for each micro-batch and epoch.
    In a step that told of none these are the last ones of an earlier step, where ``passes`` was given for them.

    With it the ledger knows which tokens were clipped in every epoch; call it where the micro-batch's scope is open, so
    that its number is kept.

    Args:
        rows: Their places in the batch that :func:`samples` told last, whole numbers.
        clipped: Which tokens the loss held back, bool or 0 and 1, (rows, width) as the numbers per token of
            :func:`samples` are laid out; None where it isn't known.

    Raises:
        InputError: There are not as many rows of ``clipped`` as of ``rows``, or these are flags.

    >>> trained([0, 1])
    """
    if not TRAINED.listeners:
        return
    kind = getattr(rows, "dtype", None)
    if str(kind).endswith("bool") if kind is not None else any(isinstance(one, bool) for one in rows):
        raise InputError("rows: got yes and no, expected the places of the rows in the batch, whole numbers")
    if clipped is not None and len(clipped) != len(rows):
        raise InputError(f"clipped: got {len(clipped)} rows, expected {len(rows)}, as many as rows")
    emit(TRAINED, rows=rows, clipped=clipped)


def _check_times(begin_ns: Any, end_ns: Any, count: int) -> None:
    """Raise where one of the two is missing, or they are neither one number nor as many as the answers."""
    if (begin_ns is None) != (end_ns is None):
        raise InputError(
            f"begin_ns and end_ns: got only {'end_ns' if begin_ns is None else 'begin_ns'}, expected both or none"
        )
    for name, one in (("begin_ns", begin_ns), ("end_ns", end_ns)):
        if hasattr(one, "__len__") and len(one) != count:
            raise InputError(f"{name}: got {len(one)} of them, expected {count}, or one number for all")
    if hasattr(begin_ns, "__len__") != hasattr(end_ns, "__len__"):
        raise InputError("begin_ns and end_ns: got one number and one list, expected two numbers or two lists")


def what_is_kept(samples: object) -> bool:
    """Whether texts and ids are kept, from what ``probe.start(samples=…)`` was given.

    Raises:
        UnknownNameError: It is neither None nor ``"text"``.

    >>> what_is_kept(None), what_is_kept("text")
    (False, True)
    """
    if samples not in (None, "text"):
        raise UnknownNameError.of("samples", samples, ["text"])
    return samples == "text"
