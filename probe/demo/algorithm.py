"""The two formulas of GRPO, from sections 4.1.1 and 4.1.2 of arXiv 2402.03300; there is no KL term."""

from __future__ import annotations

import torch
from torch import Tensor


def group_advantages(rewards: Tensor, group_size: int) -> Tensor:
    """How much better each response did than its group, in standard deviations of the group.

    Args:
        rewards: Rewards of shape (prompts × group_size,), with the responses to one prompt side by side.
        group_size: Responses to each prompt.

    Returns:
        The same shape. A group whose responses all did equally well gets zeros: it teaches nothing.

    >>> group_advantages(torch.tensor([0.0, 1.0, 5.0, 5.0]), 2)
    tensor([-0.7071,  0.7071,  0.0000,  0.0000])
    """
    groups = rewards.view(-1, group_size)
    centred = groups - groups.mean(1, keepdim=True)
    return (centred / (groups.std(1, keepdim=True) + 1e-6)).view(-1)


def policy_loss(log_prob: Tensor, old_log_prob: Tensor, advantages: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """The clipped policy loss of each token, and which tokens the clipping holds back (1.0 where it does).

    Args:
        log_prob: Log-probabilities under the policy that trains, (rows, tokens).
        old_log_prob: Log-probabilities under the policy that sampled, (rows, tokens).
        advantages: How much better than its group each token's response did, (rows, tokens).
        clip: How far the ratio of new to old probability may move from 1 and still be followed.
    """
    ratio = torch.exp(log_prob - old_log_prob)
    free = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip, 1 + clip)
    return torch.maximum(free, clipped), (clipped > free).float()
