"""torchtitan, OpenRLHF and NeMo-RL: what their adapters tell of functions with the documented names.

The stand-ins here have those names and signatures and nothing else. Where the framework itself is importable, its own
functions run instead (``make test-verl``).
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch

import probe
from probe.adapters.attachment import attach
from probe.adapters.locating import is_there
from probe.adapters.seams import Seam
from probe.frameworks import attached
from probe.hooks import Listener, subscribe
from probe.moments import TokenField
from tests.adapters.start_file import TIMER, package

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


class Told(Listener):
    """All that a point carries, as it is told."""

    def __init__(self) -> None:
        self.values: list[dict[str, Any]] = []

    def fire(self, event: Any) -> None:
        self.values.append(dict(event.values))


@pytest.fixture
def frameworks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Puts a framework's stand-in on the path, or takes the real one; gives a function that imports of it."""
    folder = tmp_path / "packages"
    for name, modules in STAND_INS.items():
        if name not in REAL:
            package(folder, name, **modules)
    monkeypatch.syspath_prepend(str(folder))
    yield importlib.import_module
    for one in attached():
        one.detach()
    for name in [name for name in sys.modules if name.partition(".")[0] in STAND_INS]:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Any]:
    with probe.start("others", run_dir=tmp_path / "run") as opened:
        yield opened


@pytest.fixture
def told() -> Iterator[Callable[..., Told]]:
    """Listens to points until the test ends."""
    subscriptions = []

    def listen(*points: str) -> Told:
        listener = Told()
        subscriptions.append(subscribe(listener, *points))
        return listener

    yield listen
    for one in subscriptions:
        one.close()


def scopes(session: Any) -> list[tuple[Any, ...]]:
    session.flush()
    rows = session.run.sql("select step, kind, phase, micro_batch from memory where edge = 'leave' order by time_ns")
    return [tuple(None if pd.isna(one) else one for one in row) for row in rows.astype(object).itertuples(index=False)]


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


# ---------------------------------------------------------------------------------------------------------- NeMo-RL


def test_3_labels_of_nemos_timer_are_phases_and_its_errors_pass(frameworks, session):
    attach("nemo_rl")
    timer = frameworks("nemo_rl.utils.timer").Timer()
    with timer.time("total_step_time"), timer.time("generation"):
        pass
    with pytest.raises(ValueError, match="theirs") as caught, timer.time("policy_training"):
        raise ValueError("theirs")
    assert caught.value.__context__ is None
    assert [row[:3] for row in scopes(session)] == [
        (None, "phase", "generation"),
        (None, "phase", "total_step_time"),
        (None, "phase", "policy_training"),
    ]


def test_3_what_nemos_codec_pads_adds_up(frameworks, session, told):
    attach("nemo_rl")
    codec = frameworks("nemo_rl.data_plane.codec")
    added = told("padding.added")
    rows = [torch.arange(3), torch.arange(5), torch.arange(1)]
    nested = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    made = codec.materialize({"input_ids": nested}, pad_to_seqlen=8)
    assert made["input_ids"].shape == (3, 8)
    assert [(one["cause"], one["tokens"], one["pad_tokens"]) for one in added.values] == [
        ("longest_row", 9, 3 * 5 - 9),
        ("fixed_width", 9, 3 * 3),
    ]
    assert sum(one["pad_tokens"] for one in added.values) == made["input_ids"].numel() - 9
    assert added.values[0]["fields"] == [TokenField("input_ids", 8)]


@pytest.mark.parametrize("arguments", [{}, {"dynamic_batching_args": {"input_lengths_key": "lens"}}])
def test_3_nemos_shards_are_dealt_rows(frameworks, session, told, arguments):
    attach("nemo_rl")
    kind = frameworks("nemo_rl.distributed.batched_data_dict").BatchedDataDict
    dealt = told("token_balance.dealt")
    key = "lens" if arguments else "input_lengths"
    kind({key: torch.tensor([4, 1, 3, 2])}).shard_by_batch_size(2, **arguments)
    (one,) = dealt.values
    assert one["lengths"] == [4, 3, 1, 2]
    assert one["partitions"] == [[0, 1], [2, 3]]
    assert one["packer"] == ("nemo_rl.dynamic_batching" if arguments else "")


def test_3_nemos_rows_are_told_one_global_batch_after_the_other(frameworks, session, told):
    attach("nemo_rl")
    dealt = told("token_balance.dealt")
    batch = frameworks("nemo_rl.distributed.batched_data_dict").BatchedDataDict(
        {"input_lengths": torch.tensor([4, 1, 3, 2, 6, 5])}
    )
    batch.counts = [1, 2]  # of each shard, whose rows are 4, 3, 6 and 1, 2, 5
    batch.shard_by_batch_size(2, batch_size=2, dynamic_batching_args={"max_tokens_per_microbatch": 8})
    (one,) = dealt.values
    assert one["lengths"] == [4, 1, 3, 6, 2, 5]
    assert one["partitions"] == [[0, 2, 3], [1, 4, 5]]
    assert one["arguments"] == {"shards": 2, "batch_size": 2, "max_tokens_per_microbatch": 8}


def counted(session: Any) -> list[tuple[Any, ...]]:
    session.flush()
    columns = "phase, name, calls, failed, total_ns, smallest_ns, largest_ns, moved_bytes, moved_keys, source"
    rows = session.run.sql(f"select {columns} from counted_calls order by phase, name")
    return [tuple(None if pd.isna(one) else one for one in row) for row in rows.astype(object).itertuples(index=False)]


def test_3_events_of_nemos_data_plane_are_counted_by_phase_and_operation(frameworks, session):
    attach("nemo_rl")
    timer = frameworks("nemo_rl.utils.timer").Timer()
    heard: list[Any] = []
    client = frameworks("nemo_rl.data_plane.observability").MetricsDataPlaneClient(None, heard.append)
    with timer.time("total_step_time"):
        with timer.time("generation"):
            client.put(100)
            client.put(50, status="timeout")
            client.get()
        client.get()
    assert counted(session) == [
        ("generation", "get", 1, 0, 250_000, 250_000, 250_000, 8, 1, "nemo_rl.data_plane"),
        ("generation", "put", 2, 1, 3_000_000, 1_500_000, 1_500_000, 150, 4, "nemo_rl.data_plane"),
        ("total_step_time", "get", 1, 0, 250_000, 250_000, 250_000, 8, 1, "nemo_rl.data_plane"),
    ]
    assert [one["op"] for one in heard] == ["put", "put", "get", "get"]  # their own callback hears all of it
    assert session.run.incidents.empty


@pytest.fixture
def tracer() -> Any:
    """Of OpenTelemetry's own SDK, which NeMo-RL makes its spans with; made when NeMo-RL is attached to."""
    trace = pytest.importorskip("opentelemetry.sdk.trace", reason="the SDK is an extra")

    def made(name: str = "nemo_rl.lens") -> Any:
        return trace.TracerProvider(shutdown_on_exit=False).get_tracer(name)

    return made


def test_12_spans_that_nemo_makes_are_counted_by_phase_and_name(frameworks, session, tracer):
    attach("nemo_rl")
    timer, theirs = frameworks("nemo_rl.utils.timer").Timer(), tracer()
    at = time.time_ns()

    def span(name: str, took_ns: int, **more: Any) -> None:
        theirs.start_span(name, start_time=at, **more).end(at + took_ns)

    with timer.time("generation"):
        span("rl.sample", 1_000)
        span("rl.sample", 3_000)
        with pytest.raises(ValueError, match="theirs"), theirs.start_as_current_span("rl.reward"):
            raise ValueError("theirs")
    span("rl.loop", 9_000)  # around all phases
    source = "opentelemetry nemo_rl.lens"
    reward, sample, loop = counted(session)
    assert loop == (None, "rl.loop", 1, 0, 9_000, 9_000, 9_000, None, None, source)
    assert reward[:4] == ("generation", "rl.reward", 1, 1)
    assert sample == ("generation", "rl.sample", 2, 0, 4_000, 1_000, 3_000, None, None, source)
    assert scopes(session) == [(None, "phase", "generation", None)]


def test_12_spans_of_too_many_names_are_counted_together_and_none_after_detaching(frameworks, session, tracer):
    (attached,) = attach("nemo_rl")
    timer, theirs = frameworks("nemo_rl.utils.timer").Timer(), tracer()
    with timer.time("generation"):
        for number in range(100):
            theirs.start_span(f"request {number}").end()
    attached.detach()
    theirs.start_span("later").end()
    rows = counted(session)
    assert len(rows) == 65
    assert {row[2] for row in rows if row[1] != "(others)"} == {1}
    assert [row[2] for row in rows if row[1] == "(others)"] == [36]


@pytest.mark.usefixtures("lenient")
def test_12_a_span_that_cannot_be_read_stops_nothing(frameworks, session, tracer, caplog, monkeypatch):
    from probe.adapters import nemo_rl_events

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("ours")

    attach("nemo_rl")
    frameworks("nemo_rl.utils.timer")
    theirs = tracer()
    monkeypatch.setattr(nemo_rl_events, "_count", broken)
    for _ in range(5):
        theirs.start_span("rl.sample").end()
    said = [one.message for one in caplog.records]
    assert said == ["probe can't read a span of OpenTelemetry", "opentelemetry: failed 3 times and is switched off"]


@pytest.mark.usefixtures("lenient")
def test_3_what_nemos_own_callback_raises_is_its_callers_and_one_that_probe_cannot_read_stops_nothing(
    frameworks, session, caplog
):
    attach("nemo_rl")
    module = frameworks("nemo_rl.data_plane.observability")

    def theirs(event: Any) -> None:
        raise KeyError("theirs")

    with pytest.raises(KeyError, match="theirs"):
        module.MetricsDataPlaneClient(None, theirs).put(1)
    client = module.MetricsDataPlaneClient(None)
    for _ in range(5):
        client.put("no number")
    assert [one.message for one in caplog.records] == [
        "probe can't read an event of NeMo-RL's data plane",
        "nemo_rl.data_plane: failed 3 times and is switched off",
    ]
    assert session.run.incidents["message"].str.startswith("probe can't read an event of NeMo-RL's data plane: ").all()
    assert session.run.incidents["switched_off"].tolist() == [False, False, True]


@pytest.mark.usefixtures("lenient")
def test_3_a_client_without_a_callback_of_a_known_name_is_an_incident(frameworks, session):
    attach("nemo_rl")
    module = frameworks("nemo_rl.data_plane.observability")

    class Another(module.MetricsDataPlaneClient):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__("tell" if name == "_callback" else name, value)

    Another(None)
    (told,) = session.run.incidents.to_dict("records")
    assert told["kind"] == "adapter"
    assert "Another has no callback by the name of callback, _callback, on_event, _on_event" in told["message"]


def test_3_detached_nobody_counts_nemos_events(frameworks, session):
    (attached,) = attach("nemo_rl")
    timer = frameworks("nemo_rl.utils.timer").Timer()
    client = frameworks("nemo_rl.data_plane.observability").MetricsDataPlaneClient(None)
    with timer.time("generation"):
        client.get()
    attached.detach()
    client.get()
    with timer.time("generation"):
        client.get()
    assert len(counted(session)) == 1


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
