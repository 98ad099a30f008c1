"""The model that is trained: log-probabilities and updates, over micro-batches that are cut by tokens."""

from __future__ import annotations

import torch
import torch.distributed as dist
from tensordict import TensorDict
from torch import Tensor

from probe.core.metric import Metric, append_to_dict
from probe.core.protocol import DataProto
from probe.core.seqlen_balancing import micro_batches, rearrange_micro_batches, restore_dynamic_batch
from probe.core.torch_functional import get_constant_schedule_with_warmup, logprobs_from_logits, masked_mean
from probe.demo.algorithm import policy_loss
from probe.demo.model import Policy, pack
from probe.demo.settings import Settings
from probe.demo.tokenizer import VOCABULARY
from probe.hooks import watch


class Actor:
    """The policy, its optimizer, and this rank's part of the work.

    Every rank holds the same weights: all start from the same seed, and gradients are summed over the ranks.
    """

    def __init__(self, settings: Settings, group: dist.ProcessGroup | None) -> None:
        self.settings = settings
        self.group = group
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            positions = settings.prompt_width + settings.response_width
            self.policy = Policy(VOCABULARY, positions, width=settings.model_width)
        self.use_learning_rate(settings.warmup_learning_rate)

    def use_learning_rate(self, learning_rate: float) -> None:
        """Start over with a new optimizer, whose rate rises over its first steps."""
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), learning_rate, weight_decay=0.0)
        self.schedule = get_constant_schedule_with_warmup(self.optimizer, num_warmup_steps=10)

    def log_prob(self, batch: TensorDict) -> Tensor:
        """Log-probabilities (rows, response width) of the responses; 0 where there is padding."""
        input_ids, mask = batch["input_ids"], batch["attention_mask"].bool()
        packed, position_ids, visible = pack(input_ids, mask)
        logits = self.policy(packed, position_ids, visible)
        # Logits are about the next token. What the last of a sequence says of another one is cut off below.
        of_next = logprobs_from_logits(logits, packed.roll(-1, dims=1))
        spread = torch.zeros(input_ids.shape).masked_scatter(mask, of_next)
        of_responses = spread[:, self.settings.prompt_width - 1 : -1]
        mine: Tensor = of_responses * batch["response_mask"]
        return mine

    @watch(role="actor")
    @torch.no_grad()
    def old_log_prob(self, data: DataProto) -> Tensor:
        """The log-probabilities from before the update. Micro-batches mix the rows, so they are put back."""
        parts = micro_batches(data, max_token_len=self.settings.max_tokens, dp_group=self.group)
        return restore_dynamic_batch(torch.cat([self.log_prob(part.batch) for part in parts]), parts.indices)

    @watch(role="actor")
    def update(self, mini: DataProto) -> dict[str, Metric]:
        """One optimizer step on one mini-batch: the mean of the clipped loss over the tokens of all ranks."""
        tokens = self.over_ranks(mini.batch["response_mask"].sum())
        metrics: dict[str, Metric] = {}
        for micro in micro_batches(mini, max_token_len=self.settings.max_tokens, dp_group=self.group):
            batch, mask = micro.batch, micro.batch["response_mask"]
            loss, held = policy_loss(
                self.log_prob(batch), batch["old_log_probs"], batch["advantages"], self.settings.clip
            )
            ((loss * mask).sum() / tokens).backward()
            append_to_dict(
                metrics,
                {
                    "policy_loss": weighted(masked_mean(loss.detach(), mask), mask.sum()),
                    "clipped_ratio": weighted(masked_mean(held, mask), mask.sum()),
                },
            )
        metrics["gradient_norm"] = Metric("mean", self.optimizer_step())
        return metrics

    @watch(role="actor", phase="warm_up")
    def imitate(self, data: DataProto) -> float:
        """One supervised step on right answers. Returns the loss, its mean over the tokens of all ranks."""
        tokens = self.over_ranks(data.batch["response_mask"].sum())
        total = torch.zeros(())
        parts, _ = rearrange_micro_batches(data.batch, max_token_len=self.settings.max_tokens, dp_group=self.group)
        for part in parts:
            loss = -self.log_prob(part).sum() / tokens
            loss.backward()
            total += loss.detach()
        self.optimizer_step()
        return self.over_ranks(total).item()

    def optimizer_step(self) -> float:
        """Sum the gradients over the ranks, clip, step. Returns the norm from before the clipping."""
        gradients = [parameter.grad for parameter in self.policy.parameters() if parameter.grad is not None]
        flat = self.over_ranks(torch.cat([gradient.flatten() for gradient in gradients]))
        for gradient, summed in zip(gradients, flat.split([one.numel() for one in gradients]), strict=True):
            gradient.copy_(summed.view_as(gradient))
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.settings.largest_gradient)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        return norm.item()

    def over_ranks(self, value: Tensor) -> Tensor:
        """The sum of ``value`` over all ranks."""
        if self.group is not None:
            dist.all_reduce(value, group=self.group)
        return value


def weighted(mean: Tensor, count: Tensor) -> Metric:
    """A mean that knows of how many it is, so that the mean of several is one over all they are of."""
    metric = Metric("weighted_mean")
    metric.append(mean.item(), weight=count.item())
    return metric
