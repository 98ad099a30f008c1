"""GRPO, start to end: the loop to copy from.

What probe needs of a trainer is in four places: ``session.step`` around a step, ``phase`` or ``@watch``
around its parts, ``session.log`` for its own metrics, ``samples`` and ``trained`` for what became of its
tokens. Without a session the weights come out the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tensordict import TensorDict

from probe.core.checkpoint import FSDPCheckpointManager, find_latest_ckpt_path
from probe.core.metric import Metric, append_to_dict, reduce_metrics
from probe.core.protocol import DataProto
from probe.core.rl_dataset import RLHFDataset, collate_fn
from probe.core.torch_functional import masked_whiten
from probe.demo.actor import Actor
from probe.demo.algorithm import group_advantages
from probe.demo.reward import score
from probe.demo.rollout import Sampled, pad_right, receive, sample, send
from probe.demo.settings import Settings
from probe.demo.tokenizer import EOS, PAD, decode, encode
from probe.hooks import phase, watch
from probe.sampled import samples
from probe.session import Session

Metrics = dict[str, float]


class Trainer:
    """One rank of the job. With a process group initialised, all ranks make one and call :meth:`train`.

    Args:
        settings: What is trained, and how.
        problems: The data set, the same on every rank, each of which takes its share.
        session: The session that records and logs; None trains unobserved.
        checkpoints: Directory to save to every ``settings.save_every`` steps, and to go on from; with None neither is
            done.
    """

    def __init__(
        self,
        settings: Settings,
        problems: RLHFDataset,
        session: Session | None = None,
        checkpoints: Path | None = None,
    ) -> None:
        distributed = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if distributed else 0
        self.world_size = dist.get_world_size() if distributed else 1
        self.settings = settings
        self.problems = problems
        self.session = session
        self.checkpoints = checkpoints
        self.sampled: Sampled | None = None  #: what was drawn last
        self.actor = Actor(settings, dist.group.WORLD if distributed else None)

    def train(self) -> Iterator[tuple[int, Metrics]]:
        """Warm up, then ``settings.steps`` steps of GRPO; or go on after the step of the latest checkpoint.

        Yields:
            Each step with its metrics; warm-up steps have numbers below 0.
        """
        latest = find_latest_ckpt_path(self.checkpoints)
        if latest is None:
            for step in range(-self.settings.warmup_steps, 0):
                yield step, {"warm_up/loss": self.actor.imitate(self.solved(self.draw(step)))}
        self.actor.use_learning_rate(self.settings.learning_rate)
        manager = FSDPCheckpointManager(
            self.actor.policy, self.actor.optimizer, self.actor.schedule, self.problems.tokenizer
        )
        manager.load_checkpoint(latest)
        for step in range(steps_done(latest), self.settings.steps):
            with self.session.step(step) if self.session else nullcontext():
                metrics = self.step(step)
                self.save(manager, step + 1)
            if self.session and self.rank == 0:
                self.session.log(metrics, step)
            yield step, metrics

    def step(self, step: int) -> Metrics:
        """Sample, reward, compare within groups, update. Returns the metrics of the step over all ranks."""
        with phase("sync_weights"):
            self.actor.sync_weights()
        with phase("generate"):
            data = receive(self.generate(self.draw(step), step))
        with phase("reward"):
            data = data.union(self.reward(data))
        with phase("old_log_prob"):
            data = data.union(DataProto.from_dict({"old_log_probs": self.actor.old_log_prob(data)}))
        with phase("advantages"):
            data = data.union(self.advantages(data))
        self.tell(data, step)
        metrics = self.describe(data)
        with phase("update"):
            for mini in self.mini_batches(data, step):
                append_to_dict(metrics, self.actor.update(mini), prefix="actor/")
        return self.reduce(metrics)

    def save(self, manager: FSDPCheckpointManager, done: int) -> None:
        """A checkpoint after every ``settings.save_every`` steps and after the last; old ones go."""
        if self.checkpoints is None or (done % self.settings.save_every and done != self.settings.steps):
            return
        with phase("save_checkpoint"):
            path = self.checkpoints / f"global_step_{done}"
            manager.save_checkpoint(path, global_step=done, max_ckpt_to_keep=self.settings.checkpoints_to_keep)

    def draw(self, step: int) -> DataProto:
        """The prompts of this rank in ``step``: its share of what all ranks draw alike."""
        count = self.settings.prompts_per_rank
        drawing = torch.Generator().manual_seed(1_000_003 * self.settings.seed + self.settings.warmup_steps + step)
        order = torch.randperm(len(self.problems), generator=drawing).tolist()
        mine = range(self.rank * count, (self.rank + 1) * count)
        rows = [self.problems[order[place % len(order)]] for place in mine]  # many ranks share problems
        data = DataProto.from_single_dict(collate_fn(rows))
        answers = [reward_model["ground_truth"] for reward_model in data.non_tensor_batch["reward_model"]]
        return DataProto.from_dict({"prompts": data.batch["input_ids"]}, {"answer": np.array(answers, dtype=object)})

    @watch(role="rollout")
    def generate(self, problems: DataProto, step: int) -> TensorDict:
        """``group_size`` responses to each problem, side by side; their lengths are the model's choice."""
        prompts = problems.repeat(self.settings.group_size, interleave=True)
        tokens = prompts.batch["prompts"]
        sampling = torch.Generator().manual_seed(1_000_003 * (self.settings.seed + 1000 * self.rank) + step)
        drawn = self.sampled = sample(self.actor.rollout, tokens, self.settings.response_width, sampling)
        return send(tokens, drawn.responses, prompts.non_tensor_batch["answer"], drawn.log_probs)

    @watch(role="reward")
    def reward(self, data: DataProto) -> DataProto:
        """The rule's verdict on each response."""
        tokens = zip(data.batch["input_ids"], data.batch["response_mask"].bool(), strict=True)
        responses = [decode(row[mask].tolist()) for row, mask in tokens]
        scores = [score(*pair) for pair in zip(responses, data.non_tensor_batch["answer"], strict=True)]
        return DataProto.from_dict({"rewards": torch.tensor(scores)})

    def advantages(self, data: DataProto) -> DataProto:
        """Rewards compared within each group, given to every token of the response."""
        mask = data.batch["response_mask"]
        compared = group_advantages(data.batch["rewards"], self.settings.group_size)
        whitened = masked_whiten(compared[:, None].expand_as(mask), mask)
        return DataProto.from_dict({"advantages": whitened, "sample": torch.arange(len(mask))})

    def tell(self, data: DataProto, step: int) -> None:
        """What was sampled, for the ledger of tokens; ``sample`` says which row a micro-batch has of it."""
        batch, mask, drawn = data.batch, data.batch["response_mask"], self.sampled
        ended = ((batch["input_ids"] == EOS) & mask.bool()).any(1)
        samples(
            response_mask=mask,
            prompt_tokens=(batch["attention_mask"] - mask).sum(1),
            groups=batch["sample"] // self.settings.group_size,
            ended=["stop" if one else "length" for one in ended.tolist()],
            rewards=batch["rewards"],
            advantages=batch["advantages"],
            rollout_log_probs=batch["rollout_log_probs"],
            log_probs=batch["old_log_probs"],
            weight_versions=torch.full_like(batch["sample"], step),
            trainer_version=step,
            begin_ns=None if drawn is None else [drawn.begin_ns] * len(mask),
            end_ns=None if drawn is None else drawn.end_ns,
            replicas=f"rank {self.rank}",
            response_ids=batch["input_ids"],
            sampled_ids=None if drawn is None else drawn.responses.masked_fill(drawn.responses == PAD, -1),
        )

    def mini_batches(self, data: DataProto, step: int) -> Iterator[DataProto]:
        """The rows of a step, shuffled anew in each epoch."""
        return data.make_iterator(
            self.settings.mini_batch_per_rank,
            epochs=self.settings.epochs,
            seed=self.settings.seed + step,
            dataloader_kwargs={"shuffle": True},
        )

    def describe(self, data: DataProto) -> dict[str, Any]:
        """Metrics of the responses: each value a :class:`Metric`, which knows how it is reduced."""
        rewards = data.batch["rewards"]
        lengths = data.batch["response_mask"].sum(1)
        return {
            "reward/mean": Metric("mean", rewards),
            "reward/exact_ratio": Metric("mean", rewards == 1),
            "response_length/mean": Metric("mean", lengths),
            "response_length/max": Metric("max", lengths),
            "tokens/total": Metric("sum", data.batch["attention_mask"].sum()),
        }

    def reduce(self, metrics: dict[str, Any]) -> Metrics:
        """One number for each metric, over all ranks; the same on every rank."""
        ranks = [metrics] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(ranks, metrics)
        pooled: dict[str, Any] = {}
        for one in ranks:
            append_to_dict(pooled, one)
        return reduce_metrics(pooled)

    def solved(self, problems: DataProto) -> DataProto:
        """Prompts with their answers in the place of responses, to learn from."""
        answers = problems.non_tensor_batch["answer"]
        responses = pad_right([[*encode(answer), EOS] for answer in answers], self.settings.response_width)
        return receive(send(problems.batch["prompts"], responses, answers))


def steps_done(checkpoint: str | None) -> int:
    """Steps behind a checkpoint, which its name tells; 0 without one.

    >>> steps_done("runs/one/checkpoints/global_step_40"), steps_done(None)
    (40, 0)
    """
    return 0 if checkpoint is None else int(checkpoint.rpartition("_")[2])
