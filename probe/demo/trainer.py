"""GRPO, start to end: the loop to copy from.

What probe needs of a trainer is in three places: ``session.step`` around a step, ``phase`` or ``@watch``
around its parts, and ``session.log`` for its own metrics. Without a session the weights come out the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from probe.core.metric import Metric, append_to_dict, reduce_metrics
from probe.core.protocol import DataProto
from probe.core.torch_functional import masked_whiten
from probe.demo.actor import Actor
from probe.demo.algorithm import group_advantages
from probe.demo.reward import score
from probe.demo.rollout import pad_left, pad_right, sample
from probe.demo.settings import Settings
from probe.demo.tokenizer import EOS, PAD, decode, encode
from probe.hooks import phase, watch
from probe.session import Session

Problems = Sequence[dict[str, str]]
Metrics = dict[str, float]


class Trainer:
    """One rank of the job. With a process group initialised, all ranks make one and call :meth:`train`.

    Args:
        problems: rows with ``prompt`` and ``answer``; the same on every rank, each of which takes its share.
        session: records and logs; None trains unobserved.
    """

    def __init__(self, settings: Settings, problems: Problems, session: Session | None = None) -> None:
        distributed = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if distributed else 0
        self.world_size = dist.get_world_size() if distributed else 1
        self.settings = settings
        self.problems = problems
        self.session = session
        self.actor = Actor(settings, dist.group.WORLD if distributed else None)
        self.sampling = torch.Generator().manual_seed(settings.seed * 1000 + self.rank)
        self.drawing = torch.Generator().manual_seed(settings.seed)  # the same on every rank

    def train(self) -> Iterator[tuple[int, Metrics]]:
        """Warm up, then ``settings.steps`` steps of GRPO.

        Yields:
            Each step with its metrics; warm-up steps have numbers below 0.
        """
        for step in range(-self.settings.warmup_steps, 0):
            yield step, {"warm_up/loss": self.actor.imitate(self.solved(self.draw()))}
        self.actor.use_learning_rate(self.settings.learning_rate)
        for step in range(self.settings.steps):
            with self.session.step(step) if self.session else nullcontext():
                metrics = self.step(step)
            if self.session and self.rank == 0:
                self.session.log(metrics, step)
            yield step, metrics

    def step(self, step: int) -> Metrics:
        """Sample, reward, compare within groups, update. Returns the metrics of the step over all ranks."""
        with phase("generate"):
            data = self.generate(self.draw())
        with phase("reward"):
            data = data.union(self.reward(data))
        with phase("old_log_prob"):
            data = data.union(DataProto.from_dict({"old_log_probs": self.actor.old_log_prob(data)}))
        with phase("advantages"):
            data = data.union(self.advantages(data))
        metrics = self.describe(data)
        with phase("update"):
            for mini in self.mini_batches(data, step):
                append_to_dict(metrics, self.actor.update(mini), prefix="actor/")
        return self.reduce(metrics)

    def draw(self) -> Problems:
        """The next problems of this rank: its share of what all ranks draw alike."""
        count = self.settings.prompts_per_rank
        order = torch.randperm(len(self.problems), generator=self.drawing).tolist()
        mine = range(self.rank * count, (self.rank + 1) * count)
        return [self.problems[order[place % len(order)]] for place in mine]  # many ranks share problems

    @watch(role="rollout")
    def generate(self, problems: Problems) -> DataProto:
        """``group_size`` responses to each problem, side by side; their lengths are the model's choice."""
        prompts = DataProto.from_dict(
            {"prompts": self.prompts(problems)}, {"answer": [problem["answer"] for problem in problems]}
        ).repeat(self.settings.group_size, interleave=True)
        responses = sample(self.actor.policy, prompts.batch["prompts"], self.settings.response_width, self.sampling)
        return prompts.union(self.sequences(prompts.batch["prompts"], responses))

    @watch(role="reward")
    def reward(self, data: DataProto) -> DataProto:
        """The rule's verdict on each response."""
        responses = map(decode, data.batch["responses"].tolist())
        scores = [score(*pair) for pair in zip(responses, data.non_tensor_batch["answer"], strict=True)]
        return DataProto.from_dict({"rewards": torch.tensor(scores)})

    def advantages(self, data: DataProto) -> DataProto:
        """Rewards compared within each group, given to every token of the response."""
        mask = data.batch["response_mask"]
        compared = group_advantages(data.batch["rewards"], self.settings.group_size)
        return DataProto.from_dict({"advantages": masked_whiten(compared[:, None].expand_as(mask), mask)})

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

    def solved(self, problems: Problems) -> DataProto:
        """Prompts with their answers in the place of responses, to learn from."""
        answers = [[*encode(problem["answer"]), EOS] for problem in problems]
        return self.sequences(self.prompts(problems), pad_right(answers, self.settings.response_width))

    def prompts(self, problems: Problems) -> Tensor:
        """(rows, prompt width), padded on the left."""
        return pad_left([encode(problem["prompt"]) for problem in problems], self.settings.prompt_width)

    def sequences(self, prompts: Tensor, responses: Tensor) -> DataProto:
        """What the model reads, and which of it is real and which its own."""
        input_ids = torch.cat([prompts, responses], dim=1)
        return DataProto.from_dict(
            {
                "responses": responses,
                "response_mask": responses.ne(PAD).long(),
                "input_ids": input_ids,
                "attention_mask": input_ids.ne(PAD).long(),
            }
        )
