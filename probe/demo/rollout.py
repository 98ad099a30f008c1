"""Sampling: prompts in, responses of different lengths out, packed for the way to the trainer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from probe.core.codec import materialize, pack_jagged_fields
from probe.core.protocol import DataProto
from probe.demo.model import Policy
from probe.demo.tokenizer import EOS, PAD


def pad_right(sequences: Sequence[Sequence[int]], width: int) -> Tensor:
    """(rows, width) int64, padded on the right."""
    return torch.tensor([list(tokens) + [PAD] * (width - len(tokens)) for tokens in sequences])


class Sampled(NamedTuple):
    """What was drawn for some prompts.

    Attributes:
        responses: (rows, max_new_tokens) int64, each the response, its end token if it came to one, then padding.
        log_probs: (rows, max_new_tokens) float32, the natural logarithm of the probability with which each of these
            tokens was drawn, 0 at the padding.
        begin_ns: When the batch was asked for, monotonic.
        end_ns: When each response was whole, likewise.
    """

    responses: Tensor
    log_probs: Tensor
    begin_ns: int
    end_ns: list[int]


@torch.no_grad()
def sample(
    policy: Policy, prompts: Tensor, max_new_tokens: int, generator: torch.Generator, temperature: float = 1.0
) -> Sampled:
    """Draw one response for each row of ``prompts``.

    Args:
        policy: The policy that samples.
        prompts: Token ids (rows, prompt width), int64, left-padded.
        max_new_tokens: The most tokens of a response; one that has come to no end is cut here.
        generator: The only source of randomness.
        temperature: What logits are divided by.

    Returns:
        Responses, their log-probabilities, and when each was whole.
    """
    begin_ns = time.monotonic_ns()
    caches, width = policy.new_caches(), prompts.shape[1]
    real = prompts.ne(PAD)
    # Padding sees itself, so that no query is without a key.
    visible = (real[:, None].expand(-1, width, -1).tril() | torch.eye(width, dtype=torch.bool))[:, None]
    new, positions = prompts, (real.cumsum(1) - 1).clamp(min=0)
    responses = torch.full((len(prompts), max_new_tokens), PAD)
    log_probs = torch.zeros(len(prompts), max_new_tokens)
    going = torch.ones(len(prompts), 1, dtype=torch.bool)
    columns_ns: list[int] = []
    for column in range(max_new_tokens):
        logits = policy(new, positions, visible, caches)[:, -1].float() / temperature
        chances = logits.softmax(-1)
        drawn = torch.multinomial(chances, 1, generator=generator)
        new = torch.where(going, drawn, PAD)
        responses[:, column] = new[:, 0]
        log_probs[:, column] = torch.where(going, chances.gather(1, drawn).log(), 0.0)[:, 0]
        going = going & (new != EOS)
        columns_ns.append(time.monotonic_ns())
        if not going.any():
            break
        # Rows that have ended go on drawing, unseen: the batch keeps its shape.
        real = torch.cat([real, torch.ones_like(going)], dim=1)
        visible, positions = real[:, None, None], positions[:, -1:] + 1
    lengths = responses.ne(PAD).sum(1).tolist()
    return Sampled(responses, log_probs, begin_ns, [columns_ns[length - 1] for length in lengths])


def send(prompts: Tensor, responses: Tensor, answers: Sequence[str], log_probs: Tensor | None = None) -> TensorDict:
    """What a rollout worker puts on the wire: each sequence without any padding.

    Args:
        prompts: Token ids, left-padded.
        responses: Token ids, right-padded.
        answers: The right answer for each row.
        log_probs: Of the responses, as they were drawn; None where they weren't.
    """
    joined = torch.cat([prompts, responses], dim=1)
    real = joined.ne(PAD)
    order = real.long().argsort(dim=1, descending=True, stable=True)  # the tokens first, then all padding
    of_response = torch.cat([torch.zeros_like(prompts), responses.ne(PAD).long()], dim=1)
    tokens = {"input_ids": joined, "attention_mask": real.long(), "response_mask": of_response}
    if log_probs is not None:
        tokens["rollout_log_probs"] = torch.cat([torch.zeros(prompts.shape), log_probs], dim=1)
    tokens = {name: column.gather(1, order) for name, column in tokens.items()}
    answer = np.array(answers, dtype=object)
    return pack_jagged_fields({**tokens, "answer": answer}, lengths=real.sum(1), token_aligned_fields=set(tokens))


def receive(wire: TensorDict) -> DataProto:
    """What the trainer makes of it: rectangles as wide as the longest row, padded on the right."""
    return DataProto.from_single_dict(materialize(wire, pad_value_dict={"input_ids": PAD}).get_dict())
