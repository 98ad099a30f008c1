"""verl's own GRPO on a CPU with probe beside it: on Ray, with two workers.

What is recorded equals what the model was given, counted below verl (``verl_cpu/counter.py``) and logged by verl
itself; and training with probe is, to the bit, training without. verl lives in an environment of its own
(``make test-verl``). Its GRPO is started twice, three times with the thorough cases, each a minute or two, and shared
by all tests.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import probe
from probe.analysis.steps import times
from probe.analysis.what_if import replayed, replayed_dealings, what_if
from probe.opened import Run
from probe.runs.layout import part_of, segment_of
from tests.frameworks.verl_trained import Train, assert_the_same_training, counted, recorded

if importlib.util.find_spec("verl") is None:
    pytest.skip("needs verl, which lives in its own environment", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parent / "verl_cpu"))
import recipes
from recipes import RANKS, Done

pytestmark = [
    pytest.mark.framework,
    pytest.mark.slow,
    pytest.mark.timeout(3 * recipes.LIMIT_S),
    pytest.mark.filterwarnings("ignore"),
]


STEPS = 2


@pytest.fixture(scope="module")
def grpo(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Train]:
    """Starts verl's GRPO, at most once for each name."""
    done: dict[str, Done] = {}

    def train(name: str, *overrides: str, recorded: bool = False, dumps: bool = False, **options: Any) -> Done:
        if name not in done:
            directory = tmp_path_factory.mktemp(name)
            environ = {"PROBE_RUN_DIR": str(directory / "run")} if recorded else {}
            dumped = [f"trainer.rollout_data_dir={directory}/rollouts"] if dumps else []
            done[name] = recipes.grpo(directory, tiny, *dumped, *overrides, **options, **environ)
        return done[name]

    yield train
    assert len(done) <= 3, "each start takes CI a minute or two"


def plain(train: Train) -> Done:
    """The GRPO run without probe; verl dumps its rollouts, which it doesn't where probe is in."""
    done = train("plain", dumps=True)
    assert done.code == 0, done.output[-3000:]
    return done


def observed(train: Train) -> Done:
    """The GRPO run with probe, which is named as a logger too."""
    done = train("observed", "trainer.logger=[console,file,probe]", recorded=True)
    assert done.code == 0, done.output[-3000:]
    return done


@pytest.fixture(scope="module")
def grpo_run(grpo: Train) -> Iterator[Run]:
    """What was recorded of GRPO."""
    run = probe.open(observed(grpo).run)
    yield run
    run.close()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's folder for temporary files, where a run is made of what verl wrote."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.mark.parametrize("name", ["observed", pytest.param("raising", marks=pytest.mark.thorough)])
def test_1_grpo_is_the_same_training_to_the_bit(grpo, name):
    """As one without probe: one with it, and one in which every point of the adapter raises (of SFT each time)."""
    before = plain(grpo)
    if name == "raising":
        other = grpo(name, recorded=True, modules=["raising"])
        assert other.code == 0, other.output[-3000:]
        raised = other.output.count("on purpose")
        assert raised > 10
    else:
        other = observed(grpo)
    assert_the_same_training(before, other)


def test_1_grpo_has_gradients_and_advantages(grpo):
    done = plain(grpo)
    for step in range(1, STEPS + 1):
        logged = done.logged()[step]
        assert logged["actor/grad_norm"] > 0
        assert logged["critic/advantages/min"] < 0 < logged["critic/advantages/max"]
    assert all(line["nonzero"] > 0 for line in done.counted("optimizer"))


def test_7_a_training_without_probe_is_opened_with_all_that_verl_logged(grpo, temporary):
    done = plain(grpo)
    logged = done.logged()
    assert list(logged) == list(range(1, STEPS + 1))
    with probe.open(done.directory) as run:
        scalars = run.scalars
        for step, told in logged.items():
            mine = scalars[scalars["step"] == step]
            assert dict(zip(mine["key"], mine["value"], strict=True)) == told
        assert len(scalars) == sum(map(len, logged.values())) > 100
        took = [told["timing_s/step"] for told in logged.values()]
        assert times(run)["step"].tolist() == list(logged)
        assert times(run)["largest_s"].tolist() == pytest.approx(took, abs=1e-8)
        phases = run.sql("select step, name, duration from spans where kind = 'phase' order by step, begin_ns")
        for step, told in logged.items():
            mine = phases[phases["step"] == step]
            saves = ["save_checkpoint"] if step == STEPS else []
            # In the order in which verl's timers ended.
            names = [key.removeprefix("timing_s/") for key in told if key.startswith("timing_s/")]
            names = [name for name in names if "/" not in name and name != "step"]
            assert mine["name"].tolist() == names
            assert names == ["gen", "old_log_prob", "ref", "adv", "update_actor", *saves, "update_weights"]
            seconds = [told[f"timing_s/{name}"] for name in names]
            assert mine["duration"].tolist() == pytest.approx(seconds, abs=1e-8)
        assert "not_recorded" in [one.name for one in run.findings().withheld]
        assert not [one for one in run.info.config["notes"] if "left out" in one]


def test_7_the_rollout_dumps_of_a_training_are_opened_with_every_answer(grpo, temporary):
    done = plain(grpo)
    with probe.open(done.directory / "log.jsonl", rollouts=done.directory / "rollouts") as run:
        answers = run.tables["rollout_dumps"].sort_values(["step", "row"], ignore_index=True)
        for step, told in done.logged().items():
            mine = answers[answers["step"] == step]
            lines = (done.directory / "rollouts" / f"{step}.jsonl").read_text().splitlines()
            dumped = [json.loads(line) for line in lines]
            fields = {"input": "prompt_text", "output": "response_text", "gts": "ground_truth", "score": "reward"}
            for theirs, ours in {**fields, "uid": "uid"}.items():
                assert mine[ours].tolist() == [line[theirs] for line in dumped]
            assert mine["row"].tolist() == list(range(32))
            # 8 prompts, 4 answers each: verl names an answer by the sample that it is of.
            assert mine.groupby("prompt").size().tolist() == [4] * 8
            samples = [uid.rsplit("_", 2)[0] for uid in mine["uid"]]
            assert mine["prompt"].tolist() == [list(dict.fromkeys(samples)).index(one) for one in samples]
            for word in ("mean", "max", "min"):
                assert mine["reward"].agg(word) == pytest.approx(told[f"critic/score/{word}"], abs=1e-6)
        assert len(answers) == 32 * STEPS
        assert run.samples.empty


@pytest.mark.parametrize("rank", range(RANKS))
def test_1_the_micro_batches_of_grpo_are_those_that_the_model_was_given(grpo, grpo_run, rank):
    rows, given = recorded(grpo_run, rank), counted(observed(grpo), rank)
    assert [list(one) for one in rows["lengths"]] == [line["lengths"] for line in given]
    assert rows["tokens"].tolist() == [line["width"] for line in given]  # packed: nothing else is in them
    assert rows["width_tokens"].isna().all()
    assert (rows["phase"] == "update_actor").tolist() == [line["update"] for line in given]
    assert set(rows["cap_tokens"]) == {512}
    assert not rows["over_cap"].any()


def test_1_the_tokens_of_grpo_are_those_that_verl_logs(grpo, grpo_run):
    rows = grpo_run.micro_batches
    for step in range(1, STEPS + 1):
        logged = observed(grpo).logged()[step]
        for phase in ("old_log_prob", "ref", "update_actor"):
            tokens = rows[(rows["step"] == step) & (rows["phase"] == phase)].groupby("rank")["tokens"].sum()
            assert tokens.sum() == logged["perf/total_num_tokens"]
            assert [tokens.min(), tokens.max()] == [
                logged["global_seqlen/balanced_min"],
                logged["global_seqlen/balanced_max"],
            ]


def test_15_2_and_3_samples_and_fates_agree_with_what_verl_logs(grpo, grpo_run):
    """Issue 15, parts 2 and 3: dummy rows are no samples, and only whether a token was clipped isn't known."""
    logged = observed(grpo).logged()
    fates, samples = grpo_run.token_fates, grpo_run.samples
    tails = {one.step: one for one in grpo_run.long_tail().steps}
    assert set(fates["step"]) == set(logged)
    assert set(fates["fate"]) <= {"masked", "no_advantage", "carried", "clip_unknown"}
    for step, numbers in logged.items():
        of_step, own = fates[fates["step"] == step], samples[samples["step"] == step]
        assert of_step["tokens"].sum() == own["response_tokens"].sum() == of_step["batch_tokens"].iloc[0]
        assert own["response_tokens"].mean() == pytest.approx(numbers["response_length/mean"])
        assert own["response_tokens"].max() == numbers["response_length/max"]
        assert own["prompt_tokens"].mean() == pytest.approx(numbers["prompt_length/mean"])
        assert own["reward"].mean() == pytest.approx(numbers["critic/score/mean"], abs=1e-6)
        assert own["advantage_largest"].max() == pytest.approx(numbers["critic/advantages/max"], abs=1e-6)
        # verl's clip_ratio counts the longest answers, at the limit or not.
        assert own["truncated"].mean() <= numbers["response_length/clip_ratio"]
        assert (own[own["truncated"]]["response_tokens"] == numbers["response_length/max"]).all()
        assert own[["log_prob_mean", "rollout_log_prob_mean", "entropy_mean", "weight_version"]].notna().all().all()
        assert (own.groupby("group").size() > 1).all()
        # verl counts the turns of both sides; its tags call these rollouts a success, and tell nothing of tools.
        assert (2 * own["turns"]).agg(["min", "max"]).tolist() == [numbers["num_turns/min"], numbers["num_turns/max"]]
        assert own["has_error"].eq(False).all()
        assert own["tools"].isna().all()
        # 15.6: how old the weights of samples were, as verl itself counts it, and when each of them ended.
        behind = tails[step].staleness
        assert [min(behind), max(behind)] == [
            numbers[f"training/off_policy/trajectory_staleness_worst/{word}"] for word in ("min", "max")
        ]
        assert sum(behind.values()) == tails[step].samples == tails[step].timed == 32
        assert {one.name for one in tails[step].replicas} - {""}
        assert tails[step].before_ns > 0 < tails[step].longest_ns
    # What is trained was sampled, as the agent loops' processes compared it: no answer of any step is changed.
    same = grpo_run.token_identity.groupby("step")[["answers", "trained_tokens", "changed_answers"]].sum()
    assert {step: tuple(row) for step, row in zip(same.index, same.values.tolist(), strict=True)} == {
        step: (32, samples[samples["step"] == step]["loss_tokens"].sum(), 0) for step in logged
    }
    # Both processes call an answer by its key, so that what an agent loop says of one leads to it.
    keys = samples["uid"].str.rsplit("_", n=2, expand=True)
    assert keys[0].tolist() == samples["group"].tolist()
    assert samples["uid"].nunique() == len(samples) == 32 * len(logged)
    found = grpo_run.ledger()
    assert found.sampled_tokens == fates["tokens"].sum()
    assert found.tokens("unknown") == 0
    computed = grpo_run.sql(
        "select phase, sum(coalesce(sequences * width_tokens, tokens)) as n from micro_batches group by phase"
    ).set_index("phase")["n"]
    for phase in ("old_log_prob", "update_actor"):
        assert sum(line.slots for line in found.slots if line.phase == phase) >= computed[phase]
        assert not [line for line in found.slots if line.phase == phase and line.kind == "tokens"]


def test_1_worker_rows_carry_the_steps_and_phases_of_their_driver(grpo, grpo_run):
    calls = grpo_run.table("calls")
    phases = calls[calls["point"] == "scope.phase"]
    wanted = {"old_log_prob", "ref", "update_actor", "update_weights"}
    for rank in range(RANKS):
        own = phases[phases["rank"] == rank]
        for step in range(1, STEPS + 1):
            saves = {"save_checkpoint"} if step == STEPS else set()
            assert set(own[own["step"] == step]["name"]) == wanted | saves
        assert set(own[own["step"].isna()]["name"]) == {"init_model", "update_weights"}
    driver = phases[phases["rank"].isna()]
    assert {"gen", "adv"} | wanted <= set(driver[driver["step"] == 1]["name"])
    steps = calls[calls["point"] == "scope.step"]
    assert Counter(steps["step"]) == dict.fromkeys(range(1, STEPS + 1), RANKS + 1)
    rows = grpo_run.micro_batches
    assert set(zip(rows["role"], rows["phase"], strict=True)) == {
        ("actor", "old_log_prob"),
        ("ref", "ref"),
        ("actor", "update_actor"),
    }


def test_1_memory_is_recorded_by_phase_and_role(grpo_run):
    """A row that names no role is of its process's: the driver's."""
    rows = grpo_run.sql(
        """select m.*, coalesce(m.role, p.role) as whose from memory m join processes p on p.process = m.process
        where m.edge = 'leave' and m.step is not null"""
    )
    assert (rows["peak_allocated_bytes"] >= rows["allocated_bytes"]).all()
    assert (rows["allocated_bytes"] > 0).all()
    for step in range(1, STEPS + 1):
        here = rows[(rows["step"] == step) & rows["phase"].notna()]
        saved = {"save_checkpoint"} if step == STEPS else set()
        for rank in range(RANKS):
            worker = here[here["rank"] == rank]
            acts = {"old_log_prob", "update_actor", "update_weights"} | saved
            wanted = {("actor", phase) for phase in acts} | {("ref", "ref")}
            assert set(zip(worker["whose"], worker["phase"], strict=True)) == wanted
            ran = grpo_run.micro_batches.query(f"rank == {rank} and step == {step}").groupby(["role", "phase"])
            parts = worker[worker["kind"] == "micro_batch"].groupby(["role", "phase"])
            assert parts.size().to_dict() == ran.size().to_dict()  # each micro-batch has its memory
            whole = rows[(rows["step"] == step) & (rows["rank"] == rank) & (rows["kind"] == "step")]
            assert whole["peak_allocated_bytes"].tolist() == [worker["peak_allocated_bytes"].max()]
        driver = here[here["rank"].isna()]
        assert set(driver["whose"]) == {"driver"}
        assert {"gen", "old_log_prob", "ref", "adv", "update_actor", "update_weights"} | saved <= set(driver["phase"])


@pytest.mark.parametrize("rank", range(RANKS))
def test_1_backward_lies_inside_its_micro_batch(grpo, grpo_run, rank):
    calls = grpo_run.table("calls")
    mine = calls[(calls["rank"] == rank) & (calls["phase"] == "update_actor")]
    parts = mine[mine["point"] == "scope.micro_batch"].sort_values("begin_ns")
    backward = counted(observed(grpo), rank, "backward")
    assert len(parts) == len(backward) > 0
    ends = parts["begin_ns"] + parts["duration_ns"]
    for begin, end, line in zip(parts["begin_ns"], ends, backward, strict=True):
        assert begin < line["begin_ns"] < line["end_ns"] <= end
    optimizer = mine[mine["name"] == "optimizer_step"]
    assert len(optimizer) == len(counted(observed(grpo), rank, "optimizer"))


def test_1_the_rows_dealt_to_ranks_are_those_that_verl_logs(grpo, grpo_run):
    dealt = grpo_run.table("partitions").query("level == 'ranks'")
    assert dealt["step"].tolist() == list(range(1, STEPS + 1))
    for row in dealt.to_dict("records"):
        logged = observed(grpo).logged()[row["step"]]
        assert min(row["parts_tokens"]) == logged["global_seqlen/balanced_min"]
        assert max(row["parts_tokens"]) == logged["global_seqlen/balanced_max"]
        assert sum(row["lengths"]) == logged["perf/total_num_tokens"]
        assert row["packer"] == "verl 0.9.1"
        assert json.loads(row["arguments"])["equal_size"] is True
        ranks = grpo_run.micro_batches.query(f"step == {row['step']} and phase == 'old_log_prob'")
        for rank, tokens in enumerate(row["parts_tokens"]):
            assert ranks[ranks["rank"] == rank]["tokens"].sum() == tokens


def test_5_a_partition_can_be_replayed_from_what_is_recorded_of_it(grpo_run):
    """By verl's own packer; of several ranks it takes the most that any needs, as they have agreed."""
    from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions

    cuts = grpo_run.table("partitions").query("level == 'micro_batches'")
    rows = grpo_run.micro_batches
    assert len(cuts) == RANKS * STEPS * 4  # old, ref and two mini-batches
    for cut in cuts.to_dict("records"):
        arguments = json.loads(cut["arguments"])
        assert cut["packer"] == "verl 0.9.1"
        assert arguments["max_token_len"] == arguments["max_token_len_per_gpu"] * arguments["sp_size"] == 512
        assert (arguments["same_micro_num_in_dp"], arguments["dp_size"]) == (True, RANKS)
        assert arguments["use_dynamic_bsz_balance"] is True
        parts = rows[(rows["process"] == cut["process"]) & (rows["batch_id"] == cut["batch_id"])]
        lengths = {
            index: length
            for part in parts.to_dict("records")
            for index, length in zip(part["indices"], part["lengths"], strict=True)
        }
        work = calculate_workload(torch.tensor([lengths[index] for index in range(len(lengths))])).tolist()
        again = get_seqlen_balanced_partitions(work, len(parts), equal_size=False)
        again.sort(key=lambda part: (sum(work[row] for row in part), part[0]), reverse=True)
        again = again[::2][::-1] + again[1::2]
        assert again == [list(part) for part in parts.sort_values("micro_batch")["indices"]]
    calls = cuts[cuts["phase"] == "update_actor"]["arguments"].map(json.loads)
    assert {(one["mini_batch"], one["call"]) for one in calls} == {(0, 0), (1, 1)}


def test_16_1_each_partition_of_grpo_is_made_again_from_the_calls_of_both_ranks(grpo_run):
    found = replayed(grpo_run)
    assert len(found) == len(grpo_run.table("partitions").query("level == 'micro_batches'")) > 0
    assert set(found["packer"]) == {"verl 0.9.1"}
    assert found["same"].tolist() == [True] * len(found), found[found["same"] != True]["why"].unique()  # noqa: E712
    dealt = replayed_dealings(grpo_run)
    assert len(dealt) == STEPS
    assert dealt["same"].tolist() == [True] * STEPS


def test_16_2_the_recorded_configuration_of_grpo_gives_what_happened(grpo_run):
    answer = what_if(grpo_run)
    assert (answer.frame["before"] - answer.frame["after"]).abs().max() == 0
    smaller = what_if(grpo_run, cap_tokens=int(grpo_run.micro_batches["lengths"].map(max).max()))
    assert smaller.number("micro_batches")[1] >= smaller.number("micro_batches")[0]


def test_1_tokens_of_the_loss_are_those_of_the_responses(grpo, grpo_run):
    rows = grpo_run.micro_batches.query("phase == 'update_actor'")
    for step in range(1, STEPS + 1):
        mean = observed(grpo).logged()[step]["response_length/mean"]
        assert rows[rows["step"] == step]["effective_tokens"].sum() == round(mean * 32)


def test_1_the_rectangles_of_the_driver_are_told(grpo, grpo_run):
    rows = grpo_run.padding.query("source == 'padding.added' and reason == 'verl.to_padded_tensor'")
    assert set(rows["step"]) == set(range(1, STEPS + 1))
    assert rows["rank"].isna().all()
    responses = rows[(rows["field"] == "responses") & (rows["step"] == 1)]
    mean = observed(grpo).logged()[1]["response_length/mean"]
    longest = observed(grpo).logged()[1]["response_length/max"]
    for row in responses.to_dict("records"):
        assert row["valid_tokens"] == round(mean * 32)
        assert row["tokens"] == 32 * longest - row["valid_tokens"]
    assert len(responses)


def test_1_both_reducers_are_seen(grpo, grpo_run):
    rows = grpo_run.table("reductions")
    mine = rows[(rows["key"] == "actor/grad_norm") & (rows["step"] == 1)].sort_values("time_ns")
    assert mine["reducer"].tolist() == ["mean", "weighted_avg"]
    assert set(mine["value"]) == {observed(grpo).logged()[1]["actor/grad_norm"]}
    last = rows[rows["key"] == "training/rollout_probs_diff_valid"]
    assert set(zip(last["reducer"], last["chosen_by"], strict=True)) == {("last", "name")}


def test_1_what_verl_logs_is_recorded_with_its_step(grpo, grpo_run):
    rows = grpo_run.table("scalars")
    told = rows[rows["source"] != "probe"]
    for step, logged in observed(grpo).logged().items():
        mine = told[told["step"] == step].set_index("key")["value"]
        assert {key: mine[key] for key in logged} == pytest.approx(logged, rel=0, abs=0)


def test_1_processes_that_train_nothing_write_nothing_but_counts(grpo, grpo_run):
    processes = grpo_run.table("processes")
    assert sorted(processes["role"]) == ["actor_rollout_ref", "actor_rollout_ref", "agent_loop", "driver"]
    assert sorted(processes["rank"].dropna()) == list(range(RANKS))
    (agents,) = processes[processes["role"] == "agent_loop"]["process"]
    files = [file.name for file in observed(grpo).run.rglob("*") if file.suffix in (".jsonl", ".parquet")]
    segments = [segment_of(name) or part_of(name)[1] for name in files]
    assert {one.place for one in segments} == {"rank-00000", "rank-00001", "TaskRunnerV1", agents}
    told = {name for name in files if agents in name}
    tables = {part_of(name)[0] for name in told if name.endswith(".parquet")}
    assert tables <= {"counted_calls", "rollouts", "token_identity", "process"}
    assert grpo_run.incidents.empty


def test_5_timers_in_agent_loops_are_counted_by_step_and_no_phases(grpo, grpo_run):
    """Held against verl's own timers, each stretch of which lies inside one of ours."""
    rows = grpo_run.table("counted_calls").sort_values(["step", "name"], ignore_index=True)
    told = [(step, name) for step in range(1, STEPS + 1) for name in ("compute_score", "generate_sequences")]
    assert list(zip(rows["step"], rows["name"], strict=True)) == told  # one row a step and timer
    assert set(rows["calls"]) == {32}  # 8 prompts, 4 answers each
    assert set(rows["failed"]) == {0}
    assert set(rows["phase"]) == {"gen"}
    assert set(rows["role"]) == {"agent_loop"}
    for name, mine in rows.groupby("name"):
        seconds = [line["seconds"] for line in observed(grpo).counted("timer") if line["name"] == name]
        assert len(seconds) == mine["calls"].sum()
        assert mine["total_ns"].sum() >= 1e9 * sum(seconds) > 0
        assert mine["smallest_ns"].min() >= 1e9 * min(seconds)
        assert mine["largest_ns"].max() >= 1e9 * max(seconds)
        assert (mine["smallest_ns"] * mine["calls"] <= mine["total_ns"]).all()
        assert (mine["total_ns"] <= mine["largest_ns"] * mine["calls"]).all()
        assert (mine["begin_ns"] + mine["largest_ns"] <= mine["time_ns"]).all()
    assert not set(rows["name"]) & set(grpo_run.table("calls")["name"])


def test_1_the_process_says_that_it_is_attached_and_misses_nothing(grpo_run):
    for said in grpo_run.table("processes")["adapters"]:
        (of_verl,) = [one for one in said.split("; ") if one.startswith("verl ")]
        assert of_verl.startswith("verl 0.9.1: ")
        assert "not found" not in said


def test_1_the_configuration_of_the_trainer_stands_with_the_run(grpo, grpo_run):
    config = grpo_run.info.config
    assert config["actor_rollout_ref"]["actor"]["ppo_max_token_len_per_gpu"] == 512
    assert grpo_run.info.project == "sums"
    assert grpo_run.info.versions["verl"] == "0.9.1"


def test_1_probe_counts_what_it_costs(grpo_run):
    rows = grpo_run.table("scalars").query("key == 'probe/cost/hooks_ms'")
    assert set(rows["step"]) == set(range(1, STEPS + 1))
    assert (rows["value"] > 0).all()


@pytest.mark.thorough
def test_5_every_point_of_grpo_that_raises_is_an_incident(grpo):
    done = grpo("raising", recorded=True, modules=["raising"])
    with probe.open(done.run) as run:
        incidents = run.incidents
        assert set(incidents["kind"]) == {"adapter"}
        where = {place.rpartition(".")[2] for place in incidents["where"]}
        assert {"fit", "_timer", "update_actor", "forward_step", "prepare_micro_batches", "log"} <= where
        assert run.micro_batches.empty
