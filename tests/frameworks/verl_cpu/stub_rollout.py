"""A rollout backend by the name of "stub": it answers random tokens. The one part of verl's loop that isn't verl's."""

from __future__ import annotations

from verl.workers.rollout import base
from verl.workers.rollout.replica import RolloutReplicaRegistry

base._ROLLOUT_REGISTRY["stub", "async"] = "stub_replica.StubRollout"


def _replica() -> type:
    from stub_replica import StubReplica

    return StubReplica


RolloutReplicaRegistry.register("stub", _replica)
