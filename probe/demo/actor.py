"""The model that is trained: log-probabilities and updates, over micro-batches that are cut by tokens."""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from tensordict import TensorDict
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from probe.core.fsdp import apply_fsdp2, fsdp2_clip_grad_norm_, get_fsdp_full_state_dict
from probe.core.metric import Metric, append_to_dict
from probe.core.protocol import DataProto
from probe.core.seqlen_balancing import micro_batches, rearrange_micro_batches, restore_dynamic_batch
from probe.core.torch_functional import get_constant_schedule_with_warmup, logprobs_from_logits, masked_mean
from probe.demo.algorithm import policy_loss
from probe.demo.model import Policy, pack
from probe.demo.settings import Settings
from probe.demo.tokenizer import VOCABULARY
from probe.hooks import watch
from probe.sampled import trained


class Actor:
    """The policy, its optimizer, and this rank's part of the work.

    With a process group every rank holds a shard of the weights (FSDP2), and they come together for each layer's
    turn. ``rollout`` is a whole copy, which samples without waiting for other ranks.
    """

    def __init__(self, settings: Settings, group: dist.ProcessGroup | None) -> None:
        self.settings = settings
        self.group = group
        self.ranks = 1 if group is None else dist.get_world_size(group)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            positions = settings.prompt_width + settings.response_width
            self.policy = Policy(VOCABULARY, positions, width=settings.model_width)
        self.rollout = copy.deepcopy(self.policy)
        if group is not None:
            mesh = init_device_mesh("cpu", (self.ranks,))
            apply_fsdp2(self.policy, {"mesh": mesh, "reshard_after_forward": False})
        self.use_learning_rate(settings.warmup_learning_rate)

    def use_learning_rate(self, learning_rate: float) -> None:
        """Start over with a new optimizer, whose rate rises over its first steps."""
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), learning_rate, weight_decay=0.0)
        self.schedule = get_constant_schedule_with_warmup(self.optimizer, num_warmup_steps=10)

    @watch(role="rollout")
    def sync_weights(self) -> None:
        """Bring the shards of all ranks together in the copy that samples."""
        self.rollout.load_state_dict(get_fsdp_full_state_dict(self.policy, rank0_only=False))

    def log_prob(self, batch: TensorDict) -> Tensor:
        """Log-probability (rows, width) of each token of a response, where that token stands; 0 elsewhere."""
        mask = batch["attention_mask"].bool()
        packed, position_ids, visible = pack(batch["input_ids"], mask)
        logits = self.policy(packed, position_ids, visible)
        # Logits are about the next token. What the last of a sequence says of another one is cut off below.
        of_next = logprobs_from_logits(logits, packed.roll(-1, dims=1))
        spread = torch.zeros(mask.shape).masked_scatter(mask, of_next)
        own = torch.cat([torch.zeros(len(mask), 1), spread[:, :-1]], dim=1)
        mine: Tensor = own * batch["response_mask"]
        return mine

    @watch(role="actor")
    @torch.no_grad()
    def old_log_prob(self, data: DataProto) -> Tensor:
        """The log-probabilities from before the update. Micro-batches mix the rows, so they are put back."""
        parts = micro_batches(data, max_token_len=self.settings.max_tokens, dp_group=self.group, packed=True)
        return restore_dynamic_batch(torch.cat([self.log_prob(part.batch) for part in parts]), parts.indices)

    @watch(role="actor")
    def update(self, mini: DataProto) -> dict[str, Metric]:
        """One optimizer step on one mini-batch: the mean of the clipped loss over the tokens of all ranks."""
        tokens = self.across_ranks(mini.batch["response_mask"].sum())
        metrics: dict[str, Metric] = {}
        for micro in micro_batches(mini, max_token_len=self.settings.max_tokens, dp_group=self.group, packed=True):
            batch, mask = micro.batch, micro.batch["response_mask"]
            loss, held = policy_loss(
                self.log_prob(batch), batch["old_log_probs"], batch["advantages"], self.settings.clip
            )
            self.backward((loss * mask).sum() / tokens)
            trained(batch["sample"], clipped=held)
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
        tokens = self.across_ranks(data.batch["response_mask"].sum())
        total = torch.zeros(())
        parts, _ = rearrange_micro_batches(
            data.batch, max_token_len=self.settings.max_tokens, dp_group=self.group, packed=True
        )
        for part in parts:
            loss = -self.log_prob(part).sum() / tokens
            self.backward(loss)
            total += loss.detach()
        self.optimizer_step()
        return self.across_ranks(total).item()

    def backward(self, share: Tensor) -> None:
        """Add the gradients of this rank's share of the loss; FSDP means over the ranks, and a sum is wanted."""
        (share * self.ranks).backward()

    def optimizer_step(self) -> float:
        """Clip, step. Returns the norm of the gradient of all ranks from before the clipping."""
        norm = fsdp2_clip_grad_norm_(self.policy.parameters(), self.settings.largest_gradient)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        return norm.item()

    def across_ranks(self, value: Tensor) -> Tensor:
        """The sum of ``value`` over all ranks."""
        if self.group is not None:
            dist.all_reduce(value, group=self.group)
        return value


def weighted(mean: Tensor, count: Tensor) -> Metric:
    """A mean that knows of how many it is, so that the mean of several is one over all they are of."""
    metric = Metric("weighted_mean")
    metric.append(mean.item(), weight=count.item())
    return metric
