"""Agent loops of verl: timers of samples at the same time, tokens of turns, and the process that runs them."""

from __future__ import annotations

import importlib.util
import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import probe
from probe.adapters import automatic, verl_driver

if importlib.util.find_spec("verl") is None:
    pytest.skip("needs verl, which lives in its own environment", allow_module_level=True)

pytestmark = [
    pytest.mark.framework,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("without_trl"),
]


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
        first, second = [await self.client.generate(str(turn), prompt_ids=[1], sampling_params={}) for turn in range(2)]
        tool = [70, 71]
        ids = [*first.token_ids, *tool, *second.token_ids]
        mask = [1] * len(first.token_ids) + [0] * len(tool) + [1] * len(second.token_ids)
        if sample["again"]:
            ids[1] = 99
        whole = output(ids, mask, num_turns=4)
        return [whole, output(second.token_ids, [1, 1], num_turns=2)] if sample["alone"] else whole


def output(ids: list[int], mask: list[int], num_turns: int) -> Any:
    """A trajectory as a loop gives it, with the turns of both sides as verl counts them."""
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

    return AgentLoopOutput(
        prompt_ids=[1],
        response_ids=ids,
        response_mask=mask,
        response_logprobs=[-1.0] * len(ids),
        reward_score=float(ids[0] % 4),
        num_turns=num_turns,
        metrics=AgentLoopMetrics(),
        extra_fields={"reward_extra_info": {}},
    )


async def run_turns(samples: list[dict[str, Any]], kept: list[tuple[str, dict[str, Any], Any]]) -> None:
    """verl's own worker of its V1 trainer and its own client; the engine and the queue are stand-ins.

    Args:
        samples: How each differs from a plain one of two turns.
        kept: Filled: of each trajectory that goes to the queue its key, its tag and its fields.
    """
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

    async def put(keys: list[str], fields: Any, tags: list[dict[str, Any]], **_: Any) -> None:
        kept.extend(zip(keys, tags, fields, strict=True))

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

    kept: list[tuple[str, dict[str, Any], Any]] = []
    samples: list[dict[str, Any]] = [{}, {"again": True}, {"alone": True}, {"validate": True, "again": True}]
    asyncio.run(run_turns(samples, kept))
    assert sorted(key for key, _, _ in kept) == ["p0_0_0", "p1_0_0", "p2_0_0", "p2_0_1", "p3_0_0"]
    (row,) = [one._asdict() for one in session.run.token_identity.itertuples()]
    # Of the third sample both trajectories were compared, the second of which leaves out the first turn.
    assert (row["step"], row["source"], row["answers"]) == (2, "verl.AgentLoopWorker", 4)
    assert (row["trained_tokens"], row["changed_answers"], row["changed_tokens"]) == (4 + 4 + 4 + 2, 1, 3)
    tokens = [one for told in session.run.rollouts["requests_tokens"] for one in told]
    assert (len(tokens), min(tokens) > 0) == (3, True)  # of each sample that trains, all that engines sampled
    assert (row["first_uid"], row["first_token"]) == ("p1_0_0", 1)
    found = session.run.findings().named("not_sampled")
    assert found is not None
    assert found.sentence == "1 of 4 answers since step 2 are trained on tokens that weren't sampled."
    assert found.why.startswith("The first is token 1 of p1_0_0 of step 2. ")
    assert session.run.incidents.empty


def test_15_answers_whose_tokens_no_engine_sampled_are_found_by_their_keys_where_they_are_trained(attached, tmp_path):
    """Agent loops and the driver, which are processes of their own, call a trajectory by its key in verl's queue."""
    import asyncio

    from probe.analysis.step_samples import StepSamples, Wish

    kept: list[tuple[str, dict[str, Any], Any]] = []
    place = tmp_path / "run"
    with probe.start("verl", run_dir=place, role="agent_loop"):
        asyncio.run(run_turns([{}, {"again": True}, {"alone": True}, {"again": True}], kept))
    ids = {key: fields["responses"].tolist() for key, _, fields in kept}
    rows = advantages(kept, told=False, run_dir=place)
    assert rows["uid"].tolist() == [key for key, _, _ in kept]
    assert [row["response_tokens"] for _, row in rows.iterrows()] == [len(ids[key]) for key in rows["uid"]]
    with probe.open(place) as run:
        found = StepSamples.read(run, 2)
        finding = run.findings().named("not_sampled")
    changed = {one["uid"]: one["changed_at"] for one in found.answers if one["changed"]}
    assert changed == {key: 1 if key == min(changed) else None for key, one in ids.items() if one[1] == 99}
    assert sorted(changed) == ["p1_0_0", "p3_0_0"]
    assert (found.arranged(Wish(only="changed")).answers, found.arranged(Wish(only="changed")).note) == (2, "")
    assert (finding.where.step, finding.where.token) == (2, 1)
    assert finding.missing == ("The ids themselves aren't recorded: the agent loops that compare them keep none.",)


def advantages(kept: list[tuple[str, dict[str, Any], Any]], told: bool, run_dir: Any = None, **correction: Any) -> Any:
    """verl's own driver computes the advantages of trajectories that agent loops have handed over.

    Args:
        kept: The trajectories.
        told: Whether the driver asked for old log-probabilities before.
        run_dir: Where it is recorded.
        **correction: Settings of ``algorithm.rollout_correction``.

    Returns:
        The rows in ``samples``.
    """
    from omegaconf import OmegaConf
    from tensordict import TensorDict
    from verl import DataProto
    from verl.trainer.ppo.v1 import trainer_base
    from verl.utils.debug.metrics import calculate_debug_metrics

    keys, tags, fields = zip(*kept, strict=True)
    names = ("responses", "response_mask", "rm_scores", "rollout_log_probs")
    columns = {
        name: torch.nested.as_nested_tensor([one[name] for one in fields], layout=torch.jagged) for name in names
    }
    # The last token but one of each trajectory is another one for the model that trains.
    apart = [torch.tensor([-1.0] * (len(one["responses"]) - 2) + [-9.0, -1.0]) for one in fields]
    columns["old_log_probs"] = torch.nested.as_nested_tensor(apart, layout=torch.jagged)
    data = TensorDict(columns, batch_size=len(keys))
    given = data.select("response_mask", "rm_scores", "rollout_log_probs", "old_log_probs")
    given["uid"] = [key.split("_")[0] for key in keys]
    algorithm = {"use_kl_in_reward": False, "adv_estimator": "grpo", "gamma": 1.0, "lam": 1.0}
    config = OmegaConf.create(
        {"algorithm": algorithm | {"rollout_correction": correction}, "actor_rollout_ref": {"rollout": {"n": 1}}}
    )
    batch = trainer_base.KVBatchMeta(keys=list(keys), tags=list(tags), partition_id="train")
    trainer = SimpleNamespace(config=config, global_steps=2)
    with probe.start("verl", run_dir=run_dir) as opened, pytest.MonkeyPatch.context() as patching:
        patching.setattr(verl_driver.DRIVER, "trainer", trainer)
        patching.setattr(trainer_base.tq, "kv_batch_get", lambda **_: given)
        patching.setattr(trainer_base.tq, "kv_batch_put", lambda **_: batch)
        with opened.step(2):
            if told:
                calculate_debug_metrics(DataProto(batch=data.to_padded_tensor()))
            trainer_base.PPOTrainer._compute_advantage(trainer, batch, metrics={})
    assert opened.run.incidents.empty
    return opened.run.samples


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("rejects", [False, True])
def test_15_2_turns_of_trajectories_and_whether_they_failed_are_told_by_the_driver(attached, rejects, told):
    """As agent loops handed them over: tokens that verl takes out of the mask begin no turn."""
    import asyncio

    kept: list[tuple[str, dict[str, Any], Any]] = []
    asyncio.run(run_turns([{}, {"alone": True}, {}], kept))
    correction = {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_2.0"} if rejects else {}
    rows = advantages(kept, told, **correction)
    turns = [int(fields["num_turns"]) // 2 for _, _, fields in kept]
    assert sorted(turns) == [1, 2, 2, 2]
    assert [None if one != one else int(one) for one in rows["turns"].astype(float)] == (
        [None] * 4 if rejects and not told else turns
    )
    assert (rows["loss_tokens"] < [2 * one for one in turns]).all() == rejects
    assert [tag["status"] for _, tag, _ in kept] == ["success"] * 4
    assert rows["has_error"].tolist() == [False] * 4
    assert rows["tools"].isna().all()  # verl's driver isn't told


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
