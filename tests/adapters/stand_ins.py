"""What stands in for torchtitan, OpenRLHF and NeMo-RL where they aren't installed."""

from __future__ import annotations

import importlib.util

from tests.adapters.start_file import TIMER

SPANS = """
    class log_trace_span:
        def __init__(self, event_type, description=None, *, stacklevel=2):
            self.base_name = event_type

        def __enter__(self):
            return self

        def __exit__(self, kind, error, trace):
            return None
"""

STATE = """
    STEP = None

    def set_step(step, *, relative_step=None):
        global STEP
        STEP = step

    def get_step():
        return STEP
"""

BATCHER = """
    class Batcher:
        def __init__(self, seq_len, local_batch_size, dp_degree):
            self.seq_len, self.local_batch_size, self._dp_degree = seq_len, local_batch_size, dp_degree

        def _build_microbatch_grid(self, packed_rows):
            import torch
            each = self.local_batch_size * self._dp_degree
            count = -(-len(packed_rows) // each)
            while len(packed_rows) < count * each:
                packed_rows.append({"seq_lens": [], "loss_mask": torch.zeros(1, self.seq_len, dtype=torch.bool)})
            return [[None] * self._dp_degree for _ in range(count)]
"""

BALANCING = """
    def get_minimum_num_micro_batch_size(total_lengths, max_tokens_per_gpu, ring_attn_size, ds_tensor_parallel_size):
        return 2

    def get_seqlen_balanced_partitions(seqlen_list, k_partitions, equal_size):
        return [[one for one in range(len(seqlen_list)) if one % k_partitions == k] for k in range(k_partitions)]
"""

TRAINERS = """
    class BasePPOTrainer:
        def train_step(self, rollout_samples, global_step):
            self.ppo_train(global_step)
            self.broadcast_to_vllm()
            return {}, global_step + 1

        def ppo_train(self, global_steps):
            pass

        def broadcast_to_vllm(self):
            pass
"""

ACTOR = """
    class ActorPPOTrainer:
        def __init__(self, replay_buffer):
            self.replay_buffer = replay_buffer

        def ppo_train(self, kl_ctl):
            for step, batch in enumerate([[0, 1], [2]]):
                self.training_step(self.replay_buffer.collate_fn(batch), kl_ctl, step)

        def training_step(self, experience, kl_ctl, step, loss_batch_info=None):
            pass
"""

BUFFER = """
    class NaiveReplayBuffer:
        packing_samples = False

        def __init__(self, items):
            self.items = items

        def collate_fn(self, batch):
            return self.items[batch[0]]
"""

EXPERIENCE = """
    def balance_experiences(experiences, args):
        return [experiences[0], experiences[1]]
"""

CODEC = """
    def materialize(td, layout="padded", pad_value_dict=None, pad_to_seqlen=0):
        import torch
        made = {}
        for name, value in td.items():
            wide = value.to_padded_tensor(0) if value.is_nested else value
            missing = pad_to_seqlen - wide.shape[1]
            made[name] = torch.nn.functional.pad(wide, (0, missing)) if missing > 0 else wide
        return made
"""

BATCHES = """
    from collections import UserDict

    class BatchedDataDict(UserDict):
        def shard_by_batch_size(self, shards, batch_size=None, allow_uneven_shards=False,
                                dynamic_batching_args=None, sequence_packing_args=None):
            made = [BatchedDataDict({k: v[rank::shards] for k, v in self.items()}) for rank in range(shards)]
            for one in made:
                one.elem_counts_per_gb = getattr(self, "counts", None)
            return (made, []) if dynamic_batching_args else made
"""

EVENTS = """
    class MetricsDataPlaneClient:
        def __init__(self, inner, callback=None):
            self.inner, self.CALLBACK = inner, callback or (lambda event: None)

        def put(self, n_bytes, status="ok"):
            self.CALLBACK({"op": "put", "partition_id": "train", "n_keys": 2, "n_bytes": n_bytes, "wall_ms": 1.5,
                           "status": status})

        def get(self):
            self.CALLBACK({"op": "get", "partition_id": "train", "n_keys": 1, "n_bytes": 8, "wall_ms": 0.25,
                           "status": "ok"})
"""

STAND_INS: dict[str, dict[str, str]] = {
    "torchtitan": {
        "observability.structured_logger.structured_logging": SPANS,
        "observability.structured_logger.step_state": STATE,
        "experiments.rl.components.batcher": BATCHER,
    },
    "openrlhf": {
        "utils.seqlen_balancing": BALANCING,
        "trainer.ppo_trainer": TRAINERS,
        "trainer.ray.ppo_actor": ACTOR,
        "trainer.ppo_utils.replay_buffer": BUFFER,
        "trainer.ppo_utils.experience": EXPERIENCE,
    },
    "nemo_rl": {
        "utils.timer": TIMER,
        "data_plane.codec": CODEC,
        "data_plane.observability": EVENTS.replace("CALLBACK", "_callback"),
        "distributed.batched_data_dict": BATCHES,
    },
}


#: Those that are installed here: their own functions run.
REAL = {name for name in STAND_INS if importlib.util.find_spec(name) is not None}
