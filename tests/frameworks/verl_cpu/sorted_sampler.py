"""verl's replay buffer takes rows as they arrive, in an order that differs from run to run: here it is sorted."""

from __future__ import annotations

from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer


class SortedReplayBuffer(ReplayBuffer):
    """Prompts by name, and the answers of each by length."""

    def _select_prompt_uids(self, partition_id: str, sampleable_keys: Any, batch_size: int) -> Any:
        return super()._select_prompt_uids(partition_id, sorted(sampleable_keys), batch_size)

    def _materialize_batch(self, partition_id: str, selected_prompt_uids: Any, partition_snapshot: Any) -> Any:
        def place(item: tuple[str, Any]) -> tuple[str, int]:
            return item[0].split("_")[0], (item[1] or {}).get("seq_len", 0)

        ordered = dict(sorted(partition_snapshot.items(), key=place))
        return super()._materialize_batch(partition_id, selected_prompt_uids, ordered)
