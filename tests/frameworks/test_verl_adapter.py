"""Where probe stands in verl, without a training: verl's own functions are called in this process, or in one beside it.

verl lives in an environment of its own (``make test-verl``), and an older one in a folder of that, ``verl-0.7.1``.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.tensorclass import NonTensorData

import probe
from probe import frameworks
from probe.adapters import automatic, verl_driver
from probe.adapters.attachment import Attachment, attach
from probe.adapters.verl import SEAMS
from probe.session import Session

if importlib.util.find_spec("verl") is None:
    pytest.skip("needs verl, which lives in its own environment", allow_module_level=True)

pytestmark = [pytest.mark.framework, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).resolve().parents[2]
#: Modules of verl that the table names and that can be imported here: other engines need packages that aren't.
MODULES = sorted(
    name
    for name in {seam.module for seam in SEAMS if seam.module.startswith("verl.")}
    if not any(one in name for one in ("veomni", "automodel", "torchtitan", "megatron"))
)
LENGTHS = [90, 31, 7, 64, 55, 12, 80, 3, 41, 28, 9, 66]


def imported() -> list[ModuleType]:
    """verl's modules, those that this version has."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in MODULES:
            try:
                found.append(importlib.import_module(name))
            except ModuleNotFoundError:
                assert "fsdp_workers" in name or "dp_actor" in name
    return found


@pytest.fixture(autouse=True)
def _without_trl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its configurations are here; verl asks for its models where it finds the package."""
    monkeypatch.setitem(sys.modules, "trl", None)
    monkeypatch.delenv("PROBE_RUN_DIR", raising=False)


@pytest.fixture
def attached(_without_trl: None) -> Iterator[Attachment]:
    """verl, imported and under observation."""
    imported()
    (made,) = attach("verl")
    yield made
    made.detach()


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with probe.start("verl", run_dir=tmp_path / "run") as opened:
        yield opened


def jagged(lengths: list[int]) -> torch.Tensor:
    rows = [torch.arange(length) for length in lengths]
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def batch(lengths: list[int], **settings: Any) -> TensorDict:
    """A batch as verl's workers get it: jagged, with how it wants to be treated. A third of each row is trained on."""
    mask = torch.nested.as_nested_tensor(
        [(torch.arange(length) % 3 == 0).long() for length in lengths], layout=torch.jagged
    )
    columns = {"input_ids": jagged(lengths), "position_ids": jagged(lengths), "loss_mask": mask}
    made = TensorDict(columns, batch_size=len(lengths))
    for key, value in settings.items():
        made[key] = NonTensorData(value)
    return made


def partitions(session: Session) -> list[dict[str, Any]]:
    session.flush()
    found = session.run.table("partitions").to_dict("records")
    return [row | {"arguments": json.loads(row["arguments"])} for row in found]


# -------------------------------------------------------------------------------------------------------- on and off


def objects() -> dict[tuple[str, str], Any]:
    """Every name of every module and of every class of verl, and what stands there."""
    found: dict[tuple[str, str], Any] = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in ("verl", "tensordict") or module is None:
            continue
        for key, value in list(vars(module).items()):
            found[name, key] = value
            if inspect.isclass(value) and value.__module__.startswith(("verl", "tensordict")):
                found |= {(f"{name}.{key}", inner): one for inner, one in vars(value).items()}
    return found


def test_5_every_point_of_the_installed_verl_is_found_and_detach_restores_the_identical_objects():
    imported()
    before = objects()
    (made,) = attach("verl")
    try:
        assert made.missing == []
        assert set(made.waiting) == {"veomni engine", "automodel engine", "torchtitan engine", "megatron engine"}
        changed = {where for where, one in objects().items() if before.get(where) is not one}
        assert ("verl.workers.engine.utils", "prepare_micro_batches") in changed
        assert ("verl.workers.engine.fsdp.transformer_impl", "prepare_micro_batches") in changed  # a copy
        assert len(changed) > len(made.found)
    finally:
        assert made.detach() == []
    after = objects()
    assert after.keys() == before.keys()
    assert [where for where, one in after.items() if one is not before[where] and where[1] != "__doc__"] == []


def test_5_functions_keep_what_verl_asks_of_them(attached):
    from verl.single_controller.base.decorator import MAGIC_ATTR
    from verl.workers.engine_workers import ActorRolloutRefWorker

    for name in ("update_actor", "compute_log_prob", "compute_ref_log_prob", "update_weights", "save_checkpoint"):
        ours = getattr(ActorRolloutRefWorker, name)
        theirs = ours.__wrapped__
        assert getattr(ours, MAGIC_ATTR) == getattr(theirs, MAGIC_ATTR)
        assert inspect.signature(ours) == inspect.signature(theirs)
        assert inspect.iscoroutinefunction(ours) == inspect.iscoroutinefunction(theirs)
    assert inspect.iscoroutinefunction(ActorRolloutRefWorker.update_weights)


class Replica:
    """An engine that sleeps and wakes."""

    async def sleep(self) -> None:
        await asyncio.sleep(0.01)

    wake_up = sleep


@pytest.mark.usefixtures("attached")
def test_verdict_6_the_sleep_and_the_wake_of_engines_are_phases_of_the_driver(session: Session) -> None:
    from verl.checkpoint_engine.base import CheckpointEngineManager

    manager = CheckpointEngineManager.__new__(CheckpointEngineManager)
    manager.replicas = [Replica(), Replica()]
    verl_driver.DRIVER.trainer = SimpleNamespace(global_steps=1)
    try:
        with session.step(1):
            manager.sleep_replicas()
            manager.wake_up_replicas()

            async def within_a_loop() -> None:
                told = manager.sleep_replicas()
                if inspect.isawaitable(told):
                    await told

            asyncio.run(within_a_loop())
    finally:
        verl_driver.DRIVER.trainer = None
    manager.sleep_replicas()  # of no training
    session.flush()
    calls = session.run.table("calls")
    phases = calls[calls["point"] == "scope.phase"]
    assert list(phases["name"]) == ["engine_sleep", "engine_wake"]
    assert phases["duration_ns"].min() >= 10_000_000


# ---------------------------------------------------------------------------------------------------------- batches


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"use_dynamic_bsz": True, "max_token_len_per_gpu": 128}, {}),
        ({"use_dynamic_bsz": True, "max_token_len_per_gpu": 64, "sp_size": 2}, {"min_num_micro_batch": 6}),
        ({"use_dynamic_bsz": True, "max_token_len_per_gpu": 200, "force_group_size": 2}, {}),
        ({"use_dynamic_bsz": True, "max_token_len_per_gpu": 128}, {"num_batches_divided_by": 4}),
        ({"use_dynamic_bsz": True, "max_token_len_per_gpu": 128}, {"use_dynamic_bsz_balance": False}),
        ({"use_dynamic_bsz": False, "micro_batch_size_per_gpu": 3}, {}),
    ],
)
def test_5_a_partition_is_told_with_all_that_its_packer_was_given(attached, session, settings, options):
    from verl.workers.engine import utils

    parts, indices = utils.prepare_micro_batches(batch(LENGTHS, **settings), **options)
    session.flush()
    rows = session.run.micro_batches
    assert [list(row) for row in rows["lengths"]] == [part["input_ids"].offsets().diff().tolist() for part in parts]
    if indices is not None:
        assert [list(row) for row in rows["indices"]] == indices
    assert sum(list(row["indices"]) != [] for row in rows.to_dict("records")) == len(parts)
    assert rows["effective_tokens"].tolist() == [int(part["loss_mask"].values().sum()) for part in parts]
    (told,) = partitions(session)
    assert told["packer"] == "verl 0.9.1"
    for key, value in (settings | options).items():
        assert told["arguments"][key] == value
    if settings["use_dynamic_bsz"]:
        cap = settings["max_token_len_per_gpu"] * settings.get("sp_size", 1)
        assert told["arguments"]["max_token_len"] == cap
        assert set(rows["cap_tokens"]) == {cap}
        assert told["arguments"]["same_micro_num_in_dp"] is False  # no group: nothing is agreed
    else:
        assert rows["cap_tokens"].isna().all()


def test_5_a_partition_can_be_made_again_from_its_row(attached, session):
    from verl.workers.engine import utils

    settings = {"use_dynamic_bsz": True, "max_token_len_per_gpu": 100}
    utils.prepare_micro_batches(batch(LENGTHS, **settings), min_num_micro_batch=5)
    (told,) = partitions(session)
    rows = session.run.micro_batches
    lengths = dict(pair for row in rows.to_dict("records") for pair in zip(row["indices"], row["lengths"], strict=True))
    again = [lengths[index] for index in range(len(lengths))]
    names = ("min_num_micro_batch", "num_batches_divided_by", "use_dynamic_bsz_balance")
    given = {name: told["arguments"][name] for name in names}
    kept = {name: told["arguments"][name] for name in ("use_dynamic_bsz", "max_token_len_per_gpu", "sp_size")}
    _, indices = utils.prepare_micro_batches(batch(again, **kept), **given)
    assert indices == [list(row) for row in rows["indices"]]


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32, torch.bfloat16])
def test_1_tokens_of_the_loss_are_counted_in_masks_of_any_type(attached, session, dtype):
    from verl.workers.engine import utils

    data = batch(LENGTHS, use_dynamic_bsz=False, micro_batch_size_per_gpu=4)
    masks = [torch.arange(length) % 4 == 1 for length in [0, *LENGTHS[1:]]]
    data["loss_mask"] = torch.nested.as_nested_tensor([mask.to(dtype) for mask in masks], layout=torch.jagged)
    utils.prepare_micro_batches(data)
    session.flush()
    expected = [int(sum(mask.sum() for mask in masks[begin : begin + 4])) for begin in (0, 4, 8)]
    assert session.run.micro_batches["effective_tokens"].tolist() == expected


def test_1_columns_are_told_with_the_bytes_of_a_token(attached, session):
    from verl.workers.engine import utils

    utils.prepare_micro_batches(batch([4, 2], use_dynamic_bsz=True, max_token_len_per_gpu=8, use_remove_padding=False))
    session.flush()
    padding = session.run.padding
    assert dict(zip(padding["field"], padding["bytes"], strict=True)) == {
        "input_ids": 2 * 8,
        "position_ids": 2 * 8,
        "attention_mask": 2 * 4,
    }
    assert set(padding["tokens"]) == {2}


def test_5_where_verl_refuses_a_batch_nothing_is_told(attached, session):
    from verl.workers.engine import utils

    with pytest.raises(AssertionError, match="max_token_len must be greater"):
        utils.prepare_micro_batches(batch([9], use_dynamic_bsz=True, max_token_len_per_gpu=4))
    assert partitions(session) == []
    assert session.run.incidents.empty


def test_1_other_code_that_asks_for_dynamic_batching_is_seen(attached, session):
    from verl.protocol import DataProto
    from verl.utils.seqlen_balancing import prepare_dynamic_batch

    mask = torch.tensor([[1] * length + [0] * (8 - length) for length in (8, 3, 5, 2)])
    data = DataProto.from_dict({"input_ids": mask.clone(), "attention_mask": mask})
    parts, _ = prepare_dynamic_batch(data, max_token_len=10)
    session.flush()
    rows = session.run.micro_batches
    assert rows["tokens"].tolist() == [int(part.batch["attention_mask"].sum()) for part in parts]
    assert set(rows["width_tokens"]) == {8}


def test_1_dummy_rows_are_told_and_marked_where_rows_are_dealt(attached, session, monkeypatch):
    """verl's own functions; the store that it takes and puts rows from is a dict here."""
    from verl.trainer.ppo import padding_utils
    from verl.trainer.ppo.v1 import trainer_base

    row = {"input_ids": torch.arange(5), "position_ids": torch.arange(5), "uid": "a"}
    store = SimpleNamespace(kv_batch_get=lambda **_: [row], kv_batch_put=lambda **_: None)
    monkeypatch.setattr(padding_utils, "tq", store)
    tags = [{"seq_len": length} for length in (50, 20, 70)]
    meta = padding_utils.KVBatchMeta(partition_id="train", keys=["a_0_0", "a_1_0", "a_2_0"], tags=tags)
    workers = SimpleNamespace(_dispatch_info={"actor": [0, 1]})
    trainer = SimpleNamespace(
        actor_rollout_wg=workers,
        tokenizer=SimpleNamespace(eos_token_id=2),
        _get_required_batch_multiple=lambda _: 4,
    )
    metrics: dict[str, Any] = {}
    trainer_base.PPOTrainer._balance_batch(trainer, meta, metrics)
    (dealt,) = partitions(session)
    assert (dealt["level"], dealt["padded_rows"]) == ("ranks", 1)
    assert list(dealt["lengths"]) == [50, 20, 70, padding_utils.SYNTHETIC_PADDING_SEQ_LEN]
    assert [min(dealt["parts_tokens"]), max(dealt["parts_tokens"])] == [
        metrics["global_seqlen/balanced_min"],
        metrics["global_seqlen/balanced_max"],
    ]
    added = session.run.padding
    assert added["cause"].tolist() == ["filler_rows"]
    assert added["tokens"].tolist() == [padding_utils.SYNTHETIC_PADDING_SEQ_LEN]
    assert added["valid_tokens"].tolist() == [140]


# ------------------------------------------------------------------------------------------------- what isn't trained


def test_15_2_groups_that_leave_verls_replay_buffer_untrained_are_samples_with_the_reason(
    attached, session, monkeypatch
):
    """verl's own buffers decide and clear; the store that they take rewards from is a dict here."""
    from verl.trainer.ppo.v1 import replay_buffer

    rewards = {"same_0_0": 1.0, "same_1_0": 1.0, "mixed_0_0": 0.0, "mixed_1_0": 1.0, "old_0_0": 0.0, "old_1_0": 1.0}
    cleared: list[str] = []
    store = SimpleNamespace(
        kv_batch_get=lambda keys, **_: {"rm_scores": [torch.tensor([rewards[key]]) for key in keys]},
        kv_clear=lambda keys, **_: cleared.extend(keys),
    )
    monkeypatch.setattr(replay_buffer, "tq", store)
    buffer = replay_buffer.ReplayBufferAsync(
        "colocate_async", None, 3, "drop", {}, refill_fn=lambda *_: None, filter_groups_metric="reward"
    )
    tags = {key: {"response_len": 5 + at, "prompt_len": 3} for at, key in enumerate([*rewards, "broken_0_0"])}
    buffer.partitions["train"] = {**tags, "broken_1_0": {}}  # one failed before it had a length
    buffer.finished_keys["train"] = {"same", "mixed", "old"}
    buffer.failure_keys["train"] = {"broken"}
    buffer.prompt_global_steps["train"] = {"same": 7, "mixed": 7, "old": 2, "broken": 7}
    with session.step(7):
        evicted, *_ = buffer._evict_terminal_groups(7, "train", buffer._terminal_eviction_reasons(7, "train"))
    assert evicted == {"same", "old", "broken"}
    assert set(buffer.partitions["train"]) == {"mixed_0_0", "mixed_1_0"}  # as without probe
    assert {"same", "old", "broken"} <= set(cleared)
    session.flush()
    rows = session.run.samples
    told = sorted(zip(rows["group"], rows["dropped"], rows["response_tokens"], strict=True))
    assert told == [
        ("broken", "failed", 11),
        ("old", "stale", 9),
        ("old", "stale", 10),
        ("same", "filtered", 5),
        ("same", "filtered", 6),
    ]
    fates = session.run.token_fates
    assert fates["tokens"].sum() == 41
    assert set(fates["step"]) == {7}
    assert session.run.incidents.empty


# --------------------------------------------------------------------------------------------------------- reducers


def test_1_the_rules_of_both_reducers_are_recorded(attached, session):
    from verl.trainer.ppo.v1.utils import MetricsAggregator
    from verl.utils.metric import reduce_metrics

    reduced = reduce_metrics({"critic/terminal_reward/mean": [0.2, 0.8], "loss": [1.0, 3.0]})
    aggregator = MetricsAggregator()
    for quality, samples in ((0.2, 1), (0.8, 3)):
        aggregator.add_step_metrics(
            {"reward/summary_quality/mean": quality, "actor/lr": quality, "loss": quality}, sample_count=samples
        )
    aggregated = aggregator.get_aggregated_metrics()
    session.flush()
    rows = session.run.table("reductions")
    told = {
        (row["point"], row["key"]): row for row in rows.assign(point=["first"] * 2 + ["second"] * 3).to_dict("records")
    }
    assert {where: row["reducer"] for where, row in told.items()} == {
        ("first", "critic/terminal_reward/mean"): "min",
        ("first", "loss"): "mean",
        ("second", "reward/summary_quality/mean"): "sum",
        ("second", "actor/lr"): "last",
        ("second", "loss"): "weighted_avg",
    }
    for (point, key), row in told.items():
        assert row["value"] == (reduced if point == "first" else aggregated)[key]
        assert row["chosen_by"] == "name"
        assert row["count"] == 2
    assert told["second", "loss"]["smallest"] == 0.2


def test_15_1_the_auditor_names_what_both_reducers_choose_by_an_accidental_word(attached, session):
    """verl sums `reward/summary_quality/mean` and takes the smallest `critic/terminal_reward/mean`."""
    from verl.trainer.ppo.v1.utils import MetricsAggregator
    from verl.utils.metric import reduce_metrics

    for step in range(2):
        with session.step(step):
            reduced = reduce_metrics({"critic/terminal_reward/mean": [0.2, 0.8], "loss": [1.0, 3.0]})
            aggregator = MetricsAggregator()
            for quality, samples in ((0.2, 1), (0.8, 3)):
                aggregator.add_step_metrics(
                    {"reward/summary_quality/mean": quality, "kl": quality}, sample_count=samples
                )
            aggregated = aggregator.get_aggregated_metrics()
        session.log({**reduced, **aggregated}, step)
    session.flush()
    told = {one.metric: one for one in session.run.audit()}
    summed = told["reward/summary_quality/mean"]
    assert (summed.trap, summed.reported, summed.expected_by) == ("accidental_reducer", 1.0, "sequence-weighted mean")
    assert summed.expected == summed.sequence_weighted == pytest.approx(0.65, abs=1e-15)
    assert summed.token_weighted is None
    smallest = told["critic/terminal_reward/mean"]
    assert (smallest.trap, smallest.reported, smallest.expected) == ("accidental_reducer", 0.2, 0.5)
    assert (told["kl"].trap, told["kl"].reported) == (None, aggregated["kl"])
    assert told["kl"].sequence_weighted == pytest.approx(0.65, abs=1e-15)
    assert told["loss"].trap is None
    found = session.run.findings().named("accidental_reducer")
    assert "reward/summary_quality/mean shows the sum of its values because of “sum” in “summary”" in found.sentence


# ----------------------------------------------------------------------------------------------------------- logger


@pytest.fixture
def tracking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """verl's tracker as it is where the environment names no run directory: it takes probe's name, and no more."""
    from probe.adapters import verl_logger

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(automatic, "_tried", set())
    module = importlib.import_module("verl.utils.tracking")
    verl_logger._patches.take_off()  # verl has loaded the plugin, which did what follows
    before = module.Tracking.__init__, list(module.Tracking.supported_backend)
    verl_logger.accept(module)
    yield module.Tracking
    for one in frameworks.attached():
        one.detach()
    if probe.current_session() is not None:
        probe.current_session().close()
    assert verl_logger._patches.take_off() == []
    assert (module.Tracking.__init__, module.Tracking.supported_backend) == before


CONFIG = {"trainer": {"total_epochs": 3, "wandb_proxy": None}, "api_key": "sk-123"}


def test_1_probe_is_a_logger_of_verls_and_observes_from_then_on(tracking, tmp_path):
    logger = tracking("sums", "first", ["console", "probe"], CONFIG)
    logger.log({"actor/loss": 0.5}, step=4)
    session = probe.current_session()
    assert session.directory == tmp_path / "runs" / "sums" / "first"
    assert [one.framework for one in frameworks.attached()] == ["verl", "ray"]
    session.flush()
    run = session.run
    assert run.info.project == "sums"
    assert run.info.config["trainer"]["total_epochs"] == 3
    assert "sk-123" not in json.dumps(run.info.config)
    scalars = run.table("scalars")
    assert list(zip(scalars["key"], scalars["step"], scalars["value"], strict=True)) == [("actor/loss", 4, 0.5)]


def test_1_without_the_name_nothing_is_recorded(tracking, tmp_path):
    logger = tracking("sums", "first", ["console"], CONFIG)
    logger.log({"actor/loss": 0.5}, step=4)
    assert probe.current_session() is None
    assert frameworks.attached() == []
    assert not (tmp_path / "runs").exists()


def test_1_a_name_that_verl_does_not_know_is_refused_as_before(tracking):
    with pytest.raises(AssertionError, match="probes is not supported"):
        tracking("sums", "first", ["console", "probes"], CONFIG)
    assert "probe" not in tracking.supported_backend


# ------------------------------------------------------------------------------------------------- other processes


def python(code: str, *paths: str | Path, **environ: str) -> str:
    """What a process that imports verl says."""
    hide = "import sys; sys.modules['trl'] = None\n"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PROBE", "VERL_"))}
    around = filter(None, [os.environ.get("PYTHONPATH")])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", hide + code],
        env={**kept, "PYTHONPATH": os.pathsep.join([*map(str, paths), str(ROOT), *around]), **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SAYS = """
import verl
from probe.frameworks import attached
print([one.framework for one in attached()], "probe.session" in sys.modules)
"""


@pytest.mark.parametrize("way", ["plugin", "module"])
def test_1_verl_attaches_probe_when_it_is_imported(tmp_path, way):
    environ = (
        {"PROBE_RUN_DIR": str(tmp_path / "run")}
        if way == "plugin"
        else {
            "VERL_USE_EXTERNAL_MODULES": "probe_rl.verl",
            "VERL_USE_EXTERNAL_PLUGINS": "none",
        }
    )
    assert python(SAYS, **environ).split("\n")[0] == "['verl', 'ray'] False"
    assert not (tmp_path / "run").exists()  # nothing has been observed


def test_1_without_the_variable_verl_is_left_alone():
    code = "import sys, verl; print(sorted(name for name in sys.modules if name.startswith('probe')))"
    assert eval(python(code)) == ["probe_rl", "probe_rl.verl"]


class Loop:
    """An agent loop: each of its samples is timed by verl, and all wait for one another."""

    def __init__(self, **_: Any) -> None:
        pass

    async def run(self, params: dict[str, Any], **sample: Any) -> None:
        with simple_timer("generate_sequences", {}):
            await params["all"].wait()
            if sample.get("fails"):
                raise ValueError("theirs")
        await client()._acquire_server(f"request {sample['index']}")


def client() -> Any:
    """verl's own client of its engines, with a balancer that deals requests in turn."""
    from verl.workers.rollout.llm_server import LLMServerClient

    made = LLMServerClient(None, SimpleNamespace(acquire_server=SimpleNamespace(remote=dealt)))
    made._lb_require_acquire_fields = []
    return made


async def dealt(request_id: str) -> tuple[str, None]:
    return f"10.0.0.{int(request_id.split()[1]) % 2}:8000", None


def simple_timer(*arguments: Any) -> Any:
    from verl.utils import profiler

    return profiler.simple_timer(*arguments)


async def run_samples(samples: list[dict[str, Any]]) -> list[Any]:
    """verl's own worker runs these samples at the same time."""
    import asyncio

    from verl.experimental.agent_loop import agent_loop

    class Worker(agent_loop.AgentLoopWorker):
        def __init__(self) -> None:
            self.config = self.llm_client = self.tokenizer = self.processor = self.hf_model_type = None
            self.dataset_cls = self.tools = None
            self.config = SimpleNamespace(data=None)

        async def _agent_loop_postprocess(self, output: None, validate: bool, **_: Any) -> None:
            with simple_timer("compute_score", {}):
                pass

    worker, everybody = Worker(), asyncio.Barrier(len(samples))
    agent_loop._agent_loop_registry["test"] = {"_target_": f"{__name__}.Loop"}
    tasks = [
        worker._run_agent_loop(
            {"all": everybody},
            {"sample_index": index, "rollout_n": 0, "validate": False, **one},
            agent_name="test",
            trace=False,
            fails=one.get("fails"),
            index=index,
        )
        for index, one in enumerate(samples)
    ]
    return await asyncio.gather(*tasks, return_exceptions=True)


def test_5_timers_of_samples_that_run_at_the_same_time_are_counted_for_their_own_steps(attached, session):
    import asyncio

    samples = [{"step": 3}, {"step": 4}, {"step": 4, "fails": True}, {"step": 4, "validate": True}, {"step": 3}]
    done = asyncio.run(run_samples(samples))
    assert [type(one) for one in done] == [type(None), type(None), ValueError, type(None), type(None)]
    rows = session.run.sql("select step, phase, name, calls, failed from counted_calls order by all")
    assert [tuple(row) for row in rows.itertuples(index=False)] == [
        (3, "gen", "compute_score", 2, 0),
        (3, "gen", "generate_sequences", 2, 0),
        (4, "gen", "compute_score", 1, 0),
        (4, "gen", "generate_sequences", 2, 1),
        (4, "testing", "compute_score", 1, 0),
        (4, "testing", "generate_sequences", 1, 0),
    ]
    assert session.run.sql("select count(*) as n from calls where name = 'generate_sequences'")["n"][0] == 0
    # 15.6: each that was trained and didn't fail, with its time and by the engine that it was sent to.
    rows = session.run.sql("select step, replica, samples, timed, together, longest_ns from rollouts order by all")
    assert [tuple(row)[:5] for row in rows.itertuples(index=False)] == [
        (3, "10.0.0.0:8000", 2, 2, False),
        (4, "10.0.0.1:8000", 1, 1, False),
    ]
    assert (rows["longest_ns"] > 0).all()
    (step, other) = session.run.long_tail().steps
    assert (step.samples, step.timed, step.staleness, other.samples) == (2, 2, {}, 1)
    assert session.run.incidents.empty


class Turns:
    """An agent loop of two turns with a tool between. Of some samples it tokenises the conversation again."""

    def __init__(self, server_manager: Any, **_: Any) -> None:
        self.client = server_manager

    async def run(self, params: dict[str, Any], **sample: Any) -> Any:
        from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

        first, second = [await self.client.generate(str(turn), prompt_ids=[1], sampling_params={}) for turn in range(2)]
        tool = [70, 71]
        ids = [*first.token_ids, *tool, *second.token_ids]
        mask = [1] * len(first.token_ids) + [0] * len(tool) + [1] * len(second.token_ids)
        if sample["again"]:
            ids[1] = 99
        whole = AgentLoopOutput(prompt_ids=[1], response_ids=ids, response_mask=mask, metrics=AgentLoopMetrics())
        if not sample["alone"]:
            return whole
        last = AgentLoopOutput(
            prompt_ids=[1], response_ids=second.token_ids, response_mask=[1, 1], metrics=AgentLoopMetrics()
        )
        return [whole, last]


async def run_turns(samples: list[dict[str, Any]], kept: list[str]) -> None:
    """verl's own worker of its V1 trainer and its own client; the engine and the queue are stand-ins."""
    import asyncio
    import itertools

    from verl.experimental.agent_loop import agent_loop
    from verl.trainer.ppo.v1 import agent_loop_tq
    from verl.workers.rollout.llm_server import LLMServerClient
    from verl.workers.rollout.replica import TokenOutput

    numbers = itertools.count(10)

    async def answer(**_: Any) -> TokenOutput:
        await asyncio.sleep(0)
        return TokenOutput(token_ids=[next(numbers), next(numbers)])

    async def deal(**_: Any) -> tuple[str, Any]:
        return "engine", SimpleNamespace(generate=SimpleNamespace(remote=answer))

    async def put(keys: list[str], **_: Any) -> None:
        kept.extend(keys)

    async def nothing(*_: Any, **__: Any) -> None:
        pass

    release = SimpleNamespace(remote=lambda **_: None)
    balancer = SimpleNamespace(acquire_server=SimpleNamespace(remote=deal), release_server=release)
    config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=SimpleNamespace(name="vllm")), data=None)
    served = LLMServerClient(config, balancer)
    served._lb_require_acquire_fields = served._lb_require_release_fields = []
    handing_over = agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class._agent_loop_postprocess

    class Worker(agent_loop.AgentLoopWorker):  # Ray's class of an actor holds its methods as they were on import
        _agent_loop_postprocess = inspect.unwrap(handing_over)

        def __init__(self) -> None:
            self.tokenizer = self.processor = self.hf_model_type = self.dataset_cls = self.tools = None
            self.config, self.llm_client, self.reward_loop_worker_handles = config, served, None

        _compute_teacher_logprobs = nothing

        def _compute_multi_modal_inputs(self, *_: Any) -> dict[str, Any]:
            return {}

        def _compute_position_ids(self, ids: torch.Tensor, *_: Any) -> torch.Tensor:
            return torch.arange(ids.shape[1])[None]

    agent_loop._agent_loop_registry["turns"] = {"_target_": f"{__name__}.Turns"}
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(agent_loop_tq.tq, "async_kv_batch_put", put)
        worker = Worker()
        tasks = [
            worker._run_agent_loop(
                {},
                {"step": 2, "sample_index": at, "rollout_n": 0, "validate": False} | one,
                agent_name="turns",
                trace=False,
                uid=f"p{at}",
                session_id=0,
                raw_prompt=[],
                global_steps=2,
                **{"again": False, "alone": False}
                | {name: value for name, value in one.items() if name in ("again", "alone")},
            )
            for at, one in enumerate(samples)
        ]
        await asyncio.gather(*tasks)


def test_13_tokens_of_a_trajectory_that_no_engine_sampled_are_told_exactly(attached, session):
    """The supplement of issue 13, (b): turns that are tokenised again, of samples that run at the same time."""
    import asyncio

    kept: list[str] = []
    samples: list[dict[str, Any]] = [{}, {"again": True}, {"alone": True}, {"validate": True, "again": True}]
    asyncio.run(run_turns(samples, kept))
    assert sorted(kept) == ["p0_0_0", "p1_0_0", "p2_0_0", "p2_0_1", "p3_0_0"]
    (row,) = [one._asdict() for one in session.run.token_identity.itertuples()]
    # Of the third sample both trajectories were compared, the second of which leaves out the first turn.
    assert (row["step"], row["source"], row["answers"]) == (2, "verl.AgentLoopWorker", 4)
    assert (row["trained_tokens"], row["changed_answers"], row["changed_tokens"]) == (4 + 4 + 4 + 2, 1, 3)
    assert (row["first_uid"], row["first_token"]) == ("p1_0_0", 1)
    found = session.run.findings().named("not_sampled")
    assert found is not None
    assert found.sentence == "1 of 4 answers since step 2 are trained on tokens that weren't sampled."
    assert found.why.startswith("The first is token 1 of p1_0_0 of step 2. ")
    assert session.run.incidents.empty


def test_5_an_agent_loops_process_records_counts_alone_until_more_is_observed(attached, tmp_path, monkeypatch):
    import asyncio

    from verl.utils.tracking import Tracking

    monkeypatch.setenv("PROBE_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(automatic, "_tried", set())
    asyncio.run(run_samples([{"step": 1}]))
    opened = probe.current_session()
    try:
        assert opened.counts_alone
        with probe.phase("update"):
            pass
        Tracking("project", "experiment", ["console"]).log({"loss": 1.0}, 1)
        assert not opened.counts_alone
        with probe.phase("update"):
            pass
        asyncio.run(run_samples([{"step": 2}]))
        run = opened.run
        assert run.sql("select sum(calls) as n from counted_calls")["n"][0] == 4
        assert run.sql("select count(*) as n from calls where name = 'update'")["n"][0] == 1
    finally:
        opened.close()


def test_5_without_a_place_to_record_to_agent_loops_are_left_alone(attached):
    import asyncio

    assert asyncio.run(run_samples([{"step": 1}])) == [None]
    assert probe.current_session() is None


def test_1_a_users_own_start_in_a_worker_takes_the_session_over(tmp_path):
    code = """
import probe, verl
from verl.utils.tracking import Tracking
Tracking("sums", "first", "console").log({"loss": 1.0}, step=1)
first = probe.current_session()
mine = probe.start("mine", role="driver")
print(first is mine, mine.automatic, mine.process.role or "later")
"""
    assert python(code, PROBE_RUN_DIR=str(tmp_path / "run")).split("\n")[-2].split()[:2] == ["True", "False"]


# -------------------------------------------------------------------------------------------------------- failures


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of this process."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("attached", "alone")
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_5_an_exception_in_a_micro_batch_of_verl_s_engine_has_it_with_its_lengths_and_columns(
    session: Session, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """verl's own engine cuts the batch and runs forward and backward; its model raises in the third micro-batch."""
    from verl.utils import seqlen_balancing
    from verl.workers.engine.fsdp import transformer_impl

    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
            return value.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return raised("backward", gradient)

    def raised(here: str, value: torch.Tensor) -> torch.Tensor:
        if len(seen) == 3 and here == where:
            raise ValueError("theirs")
        return value

    class Engine(transformer_impl.FSDPEngineWithLMHead):
        ulysses_sequence_parallel_size = 1
        _autocast_dtype = torch.float32

        def __init__(self) -> None:
            pass

        def get_data_parallel_group(self) -> Any:
            return torch.distributed.group.WORLD

        def get_data_parallel_size(self) -> int:
            return 1

        def _gradient_sync_context(self, **_: Any) -> Any:
            return torch.autograd.set_detect_anomaly(False)

        def prepare_model_inputs(self, micro_batch: TensorDict) -> Any:
            return {"ids": micro_batch["input_ids"].values()}, {}

        def module(self, ids: torch.Tensor, **_: Any) -> torch.Tensor:
            seen.append(ids)
            weight = torch.ones((), requires_grad=True)
            return raised("forward", Backward.apply(weight * ids.float().mean()))

        def prepare_model_outputs(self, output: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
            return {"loss": output}

    seen: list[torch.Tensor] = []
    monkeypatch.setattr(transformer_impl, "get_device_id", lambda: "cpu")
    for module in (transformer_impl, seqlen_balancing):
        monkeypatch.setattr(module, "get_device_name", lambda: "cpu")
    data = batch(LENGTHS, use_dynamic_bsz=True, max_token_len_per_gpu=128)
    with pytest.raises(ValueError, match="theirs") as caught, session.step(3), probe.phase("update_actor"):
        Engine().forward_backward_batch(data, lambda model_output, **_: (model_output["loss"], {}))
    assert not any("adapters" in one.path.parts and one.name != "run" for one in caught.traceback)
    (found,) = session.run.failures().to_dict("records")
    rows = session.run.micro_batches.query("micro_batch == 2")
    assert (found["step"], found["phase"], found["micro_batch"]) == (3, "update_actor", 2)
    assert (found["scope_kind"], found["outermost"]) == ("micro_batch", "step")
    assert list(found["lengths"]) == list(rows["lengths"].iloc[0])
    assert len(seen[2]) == sum(found["lengths"])
    assert set(json.loads(found["fields"])) >= {"input_ids", "position_ids", "loss_mask"}
    assert session.run.post_mortem().events[0].where.micro_batch == 2


OLDER = Path(sys.prefix) / "verl-0.7.1"

IMPORTS = f"""
import importlib, warnings
warnings.simplefilter("ignore")
from probe.adapters.attachment import attach
(made,) = attach("verl")
import verl
for name in {MODULES!r}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        pass
print(verl.__version__, made.missing, made.waiting, sorted(made.found), sep="|")
assert made.detach() == []
"""


@pytest.mark.skipif(not OLDER.is_dir(), reason="`make test-verl` puts an older verl there")
def test_1_of_an_older_verl_each_point_is_found_or_listed_as_missing():
    version, missing, waiting, found = python(IMPORTS, OLDER).splitlines()[-1].split("|")
    assert version == "0.7.1"
    assert eval(missing) == [
        "engines of samples",
        "sampled tokens",
        "dummy rows",
        "samples",
        "dropped groups",
        "MetricsAggregator",
        "automodel engine",
    ]
    assert eval(waiting) == ["veomni engine", "torchtitan engine", "megatron engine"]
    for name in (
        "verl.trainer.ppo.ray_trainer.RayPPOTrainer.fit",
        "verl.workers.fsdp_workers.ActorRolloutRefWorker.update_actor",
        "verl.workers.actor.dp_actor.DataParallelPPOActor._forward_micro_batch",
        "verl.workers.engine.fsdp.transformer_impl.FSDPEngineWithLMHead.forward_step",
        "verl.utils.tracking.Tracking.log",
    ):
        assert name in eval(found)


def test_7_what_verl_s_own_file_logger_and_rollout_dump_write_is_opened(tmp_path: Path, monkeypatch) -> None:
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer
    from verl.utils.tracking import FileLogger

    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "grpo.jsonl"))
    logger = FileLogger("gsm8k", "grpo")
    for step in (1, 2):
        logger.log({"actor/pg_loss": 0.5 * step, "timing_s/step": 3.0, "timing_s/gen": 2.0}, step)
        answers = (["q", "q"], ["a", "b"], ["1", "1"], [1.0, 0.0], {"acc": [1, 0]})
        RayPPOTrainer._write_generations(*answers, str(tmp_path / "rollouts"), step)
    logger.finish()
    with probe.open(tmp_path / "grpo.jsonl", rollouts=tmp_path / "rollouts") as run:
        losses = run.sql("select value from scalars where key = 'actor/pg_loss' order by step")
        assert losses["value"].tolist() == [0.5, 1.0]
        assert run.sql("select step_time_s from steps")["step_time_s"].tolist() == [3.0, 3.0]
        rollouts = run.tables["rollout_dumps"]
        assert rollouts["reward"].tolist() == [1.0, 0.0, 1.0, 0.0]
        assert rollouts["response_text"].tolist() == ["a", "b", "a", "b"]


def test_13_d_the_asynchronous_trainer_runs_in_what_is_observed_and_its_timers_are_told_apart() -> None:
    """Of verl's V1 trainers: each timer waits for answers, brings weights, or is work."""
    import inspect
    import re

    from verl.trainer.ppo.v1 import trainer_base, trainer_colocate_async, trainer_separate_async, trainer_sync

    from probe.analysis.idle.sides import WAITING, WEIGHTS

    trainer = trainer_separate_async.PPOTrainerSeparateAsync
    assert (trainer.fit, trainer.step) == (trainer_base.PPOTrainer.fit, trainer_base.PPOTrainer.step)
    modules = (trainer_base, trainer_colocate_async, trainer_separate_async, trainer_sync)
    timers = {one for module in modules for one in re.findall(r'marked_timer\("(\w+)"', inspect.getsource(module))}
    assert timers & set(WAITING) == {"gen", "switch_wait"}
    assert timers & set(WEIGHTS) == {"update_weights", "switch_to_rollout", "switch_to_trainer"}
    assert timers - {*WAITING, *WEIGHTS} == {
        *("step", "reward", "old_log_prob", "ref", "values", "adv", "update_actor", "update_critic"),
        *("save_checkpoint", "testing", "dump_rollout_generations"),
    }
