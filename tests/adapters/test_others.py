"""torchtitan and OpenRLHF: what their adapters tell of functions with the documented names; and detaching, NeMo-RL too.

The stand-ins here have those names and signatures and nothing else. Where the framework itself is importable, its own
functions run instead (``make test-verl``).
"""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from probe.adapters.attachment import attach
from probe.adapters.locating import is_there
from probe.adapters.seams import Seam
from tests.adapters.heard import scopes
from tests.adapters.stand_ins import REAL, STAND_INS

# ------------------------------------------------------------------------------------------------------- torchtitan


def test_3_spans_of_torchtitan_are_phases_in_its_own_steps(frameworks, session):
    attach("torchtitan")
    spans = frameworks("torchtitan.observability.structured_logger.structured_logging")
    state = frameworks("torchtitan.observability.structured_logger.step_state")
    state.set_step(17)
    with spans.log_trace_span("step"), spans.log_trace_span("fwd_bwd"), spans.log_trace_span("vllm_engine_step"):
        pass
    with pytest.raises(ValueError, match="theirs"), spans.log_trace_span("optim"):
        raise ValueError("theirs")
    found = [row[:3] for row in scopes(session)]
    assert found == [(17, "phase", "fwd_bwd"), (17, "step", None), (17, "phase", "optim")]
    assert session.run.incidents.empty


def test_3_spans_of_torchtitan_in_tasks_at_the_same_time_stay_apart(frameworks, session):
    import asyncio

    attach("torchtitan")
    spans = frameworks("torchtitan.observability.structured_logger.structured_logging")
    frameworks("torchtitan.observability.structured_logger.step_state").set_step(3)

    async def work(name: str, pause: float) -> None:
        with spans.log_trace_span(name):
            await asyncio.sleep(pause)
            with spans.log_trace_span(f"{name}_inner"):
                await asyncio.sleep(pause)

    async def both() -> None:
        await asyncio.gather(work("push", 0.02), work("pull", 0.05))

    asyncio.run(both())
    assert sorted(row[:3] for row in scopes(session)) == [
        (3, "phase", "pull"), (3, "phase", "pull_inner"), (3, "phase", "push"), (3, "phase", "push_inner"),
    ]  # fmt: skip


@pytest.mark.skipif("torchtitan" in REAL, reason="the real batcher's configuration needs tyro")
def test_3_torchtitans_packed_rows_are_told_with_the_padding_that_it_counts_itself(frameworks, session, told):
    attach("torchtitan")
    batcher = frameworks("torchtitan.experiments.rl.components.batcher").Batcher(10, 2, 2)
    cuts, dealt = told("seqlen_balancing.partition"), told("token_balance.dealt")
    mask = torch.zeros(1, 10, dtype=torch.bool)
    mask[0, :4] = True
    rows = [{"seq_lens": lengths, "loss_mask": mask} for lengths in ([5, 4], [10], [3, 3, 3], [7], [2])]
    batcher._build_microbatch_grid(rows)
    (one,) = cuts.values
    assert one["lengths"] == [9, 10, 9, 7, 2, 0, 0, 0]
    assert one["effective"] == [4, 4, 4, 4, 4, 0, 0, 0]
    assert one["partitions"] == [[0, 4], [1, 5], [2, 6], [3, 7]]  # (micro-batch 0: ranks 0, 1), (1: ranks 0, 1)
    assert (one["width_tokens"], one["arguments"]["dp_degree"]) == (10, 2)
    (ranks,) = dealt.values
    assert ranks["partitions"] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert ranks["padded_rows"] == 3


# --------------------------------------------------------------------------------------------------------- OpenRLHF


def test_3_openrlhf_partitions_are_told_with_the_cap_that_they_were_counted_for(frameworks, session, told):
    attach("openrlhf")
    balancing = frameworks("openrlhf.utils.seqlen_balancing")
    cuts = told("seqlen_balancing.partition")
    lengths = [7, 3, 9, 5, 2, 6]
    balancing.get_minimum_num_micro_batch_size(lengths, 16, 2, 1)
    parts = balancing.get_seqlen_balanced_partitions(lengths, 2, equal_size=False)
    (one,) = cuts.values
    assert one["lengths"] == lengths
    assert one["partitions"] == parts
    parts[0][0] += 100  # as its replay buffer does
    assert one["partitions"] != parts
    assert (one["cap_tokens"], one["packed"]) == (32, True)
    assert one["arguments"] == {"k_partitions": 2, "equal_size": False}


def test_3_openrlhf_deals_experiences_to_ranks(frameworks, session, told):
    attach("openrlhf")
    experience = frameworks("openrlhf.trainer.ppo_utils.experience")
    dealt = told("token_balance.dealt")
    if hasattr(experience, "Experience"):
        made = [
            experience.Experience(
                sequences=torch.ones(2, 8, dtype=torch.long), attention_mask=torch.ones(2, 8, dtype=torch.long),
                action_mask=torch.ones(2, 8, dtype=torch.bool), index=[0, 1], prompts=["", ""], labels=["", ""],
                total_length=torch.tensor(lengths), rewards=torch.zeros(2), response_length=torch.tensor(lengths),
                info={"total_length": torch.tensor(lengths)},
            )
            for lengths in ([8, 5], [3, 2])
        ]  # fmt: skip
    else:
        made = [SimpleNamespace(total_length=torch.tensor(lengths)) for lengths in ([8, 5], [3, 2])]
    actor = SimpleNamespace(num_nodes=1, num_gpus_per_node=2)
    parallel = SimpleNamespace(ring_attn_size=1, tensor_parallel_size=1)
    result = experience.balance_experiences(made, SimpleNamespace(actor=actor, ds=parallel))
    (one,) = dealt.values
    assert one["lengths"] == [int(n) for batch in result for n in batch.total_length]
    assert sorted(one["lengths"]) == [2, 3, 5, 8]
    assert one["partitions"] == [[0, 1], [2, 3]]


@pytest.mark.skipif("openrlhf" in REAL, reason="the real trainers need vLLM")
def test_3_openrlhf_trains_in_phases_and_micro_batches_of_known_lengths(frameworks, session, told):
    attach("openrlhf")
    buffer = frameworks("openrlhf.trainer.ppo_utils.replay_buffer").NaiveReplayBuffer
    actor = frameworks("openrlhf.trainer.ray.ppo_actor").ActorPPOTrainer
    driver = frameworks("openrlhf.trainer.ppo_trainer").BasePPOTrainer()
    micro = told("micro_batch.told")
    masks = [torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]]), torch.tensor([[0]]), torch.tensor([[1, 1, 1, 1]])]

    class Experience(SimpleNamespace):
        __hash__ = None  # as a dataclass of tensors

    actor(buffer([Experience(attention_mask=mask) for mask in masks])).ppo_train(0.1)
    assert [(one["micro_batch"], one["lengths"], one["width_tokens"]) for one in micro.values] == [
        (0, [3, 1], 4), (1, [4], 4),
    ]  # fmt: skip
    assert driver.train_step([], 5) == ({}, 6)
    assert scopes(session) == [
        (None, "micro_batch", "update_actor", 0),
        (None, "micro_batch", "update_actor", 1),
        (None, "phase", "update_actor", None),
        (5, "phase", "train", None),
        (5, "phase", "update_weights", None),
        (5, "step", None, None),
    ]


def function_of(seam: Any) -> Any:
    """What the module holds there, without any binding; None where it can't be imported."""
    try:
        owner: Any = importlib.import_module(seam.module)
    except ImportError:  # of the real ones some need vLLM, DeepSpeed or tyro; of the stand-ins some aren't there
        return None
    *outer, name = seam.name.split(".")
    for one in outer:
        owner = getattr(owner, one)
    return vars(owner).get(name)


@pytest.mark.parametrize("name", STAND_INS)
def test_3_detached_they_are_as_they_were(frameworks, session, name):
    table = importlib.import_module(f"probe.adapters.{name}").SEAMS
    before = [function_of(seam) for seam in table]
    (made,) = attach(name)
    during = [function_of(seam) for seam in table]
    there = [index for index, one in enumerate(before) if one is not None]
    assert there
    assert len(made.found) == len(there)
    assert all(during[index] is not before[index] for index in there)
    assert made.detach() == []
    assert all(function_of(table[index]) is before[index] for index in there)


@pytest.mark.parametrize("name", ["openrlhf", "torchtitan"])
def test_3_each_function_of_the_table_is_in_the_installed_files(name):
    """Those of modules that can't be imported on a CPU, too."""
    if name not in REAL:
        pytest.skip("it is installed where verl is (make test-verl)")
    table = importlib.import_module(f"probe.adapters.{name}").SEAMS
    assert [seam.name for seam in table if not is_there(seam)] == []
    assert not is_there(Seam(table[0].module, "no_such_function", "none", table[0].tell))
