"""The rollout replica of :mod:`stub_rollout`; imported late, since it needs most of verl."""

from __future__ import annotations

from typing import Any

import ray
from stub_rollout import Answers, nothing
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput


class StubRollout(BaseRollout):
    """The side of a worker: takes the weights, as an engine would, and drops them."""

    resume = release = nothing

    async def update_weights(self, weights: Any, **_: Any) -> None:
        for _name, _tensor in weights:
            pass


@ray.remote(num_cpus=0)
class StubServer:
    """The side of a server."""

    def __init__(self, longest: int) -> None:
        self._answers = Answers(longest)
        self._step = 0

    async def generate(self, request_id: Any = None, *, prompt_ids: list[int], **_: Any) -> TokenOutput:
        tokens = await self._answers.to(prompt_ids)
        steps = {"global_steps": self._step, "min_global_steps": self._step, "max_global_steps": self._step}
        return TokenOutput(
            token_ids=tokens, log_probs=[-5.6] * len(tokens), stop_reason="completed", extra_fields=steps
        )

    async def set_global_steps(self, step: int) -> None:
        self._step = step

    wake_up = sleep = clear_kv_cache = release_kv_cache = resume_kv_cache = nothing
    abort_all_requests = resume_generation = start_profile = stop_profile = nothing


class StubReplica(RolloutReplica):
    """A server that all replicas share: how often a prompt was asked doesn't depend on who was asked."""

    async def launch_servers(self) -> None:
        server: Any = StubServer  # as Ray's decorator leaves it
        shared = server.options(name="stub-server", get_if_exists=True)
        self.servers = [shared.remote(int(self.config.response_length))]
        self._server_handle, self._server_address = self.servers[0], f"stub-{self.replica_rank}:0"
