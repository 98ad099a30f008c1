"""Sampling: prompts in, responses of different lengths out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from probe.demo.model import Policy
from probe.demo.tokenizer import EOS, PAD


def pad_left(sequences: Sequence[Sequence[int]], width: int) -> Tensor:
    """(rows, width) int64, padded on the left, so that every prompt ends in the same column."""
    return torch.tensor([[PAD] * (width - len(tokens)) + list(tokens) for tokens in sequences])


def pad_right(sequences: Sequence[Sequence[int]], width: int) -> Tensor:
    """(rows, width) int64, padded on the right."""
    return torch.tensor([list(tokens) + [PAD] * (width - len(tokens)) for tokens in sequences])


@torch.no_grad()
def sample(policy: Policy, prompts: Tensor, max_new_tokens: int, generator: torch.Generator) -> Tensor:
    """Draw one response for each row of ``prompts``, at temperature 1.

    Args:
        prompts: (rows, prompt width) int64, left-padded.
        max_new_tokens: a response that has come to no end is cut here.
        generator: the only source of randomness.

    Returns:
        (rows, max_new_tokens) int64: the response, its end token if it came to one, then padding.
    """
    caches, width = policy.new_caches(), prompts.shape[1]
    real = prompts.ne(PAD)
    # Padding sees itself, so that no query is without a key.
    visible = (real[:, None].expand(-1, width, -1).tril() | torch.eye(width, dtype=torch.bool))[:, None]
    new, positions = prompts, (real.cumsum(1) - 1).clamp(min=0)
    responses = torch.full((len(prompts), max_new_tokens), PAD)
    going = torch.ones(len(prompts), 1, dtype=torch.bool)
    for column in range(max_new_tokens):
        logits = policy(new, positions, visible, caches)[:, -1]
        logits[:, PAD] = -torch.inf
        drawn = torch.multinomial(logits.softmax(-1), 1, generator=generator)
        new = torch.where(going, drawn, PAD)
        responses[:, column] = new[:, 0]
        going = going & (new != EOS)
        if not going.any():
            break
        # Rows that have ended go on drawing, unseen: the batch keeps its shape.
        real = torch.cat([real, torch.ones_like(going)], dim=1)
        visible, positions = real[:, None, None], positions[:, -1:] + 1
    return responses
