"""The rollout replica of :mod:`stub_rollout`; imported late, since it needs most of verl."""

from __future__ import annotations

from typing import Any

from stub_answers import nothing
from stub_server import StubServer
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica


class StubRollout(BaseRollout):
    """The side of a worker: takes the weights, as an engine would, and drops them."""

    resume = release = nothing

    async def update_weights(self, weights: Any, **_: Any) -> None:
        for _name, _tensor in weights:
            pass


class StubReplica(RolloutReplica):
    """A server that all replicas share: how often a prompt was asked doesn't depend on who was asked."""

    async def launch_servers(self) -> None:
        server: Any = StubServer  # as Ray's decorator leaves it
        shared = server.options(name="stub-server", get_if_exists=True)
        self.servers = [shared.remote(int(self.config.response_length))]
        self._server_handle, self._server_address = self.servers[0], f"stub-{self.replica_rank}:0"
