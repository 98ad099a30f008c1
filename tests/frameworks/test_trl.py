"""TRL and Transformers as installed, under observation: what is recorded is what `compute_loss` received.

Nothing of a training differs by a bit. They live in an environment of their own.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
import json
import tempfile
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import probe
from benchmarks import trl_cost
from benchmarks.measure import Size
from probe.adapters import trl_samples
from probe.analysis.what_if import replayed, replayed_packings, what_if
from probe.opened import Run
from tests.frameworks import small_trl
from tests.frameworks.trl_trainings import KINDS, ONLINE, RUNS, listed, observed, plain, steps_of, trained

pytestmark = [
    pytest.mark.framework,
    pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="needs TRL, which has its own environment"),
    pytest.mark.filterwarnings("ignore"),  # what they warn of is theirs to mend
    pytest.mark.usefixtures("taken_off"),
]


@pytest.mark.parametrize("name", RUNS)
def test_2_what_is_recorded_is_what_compute_loss_received_and_no_bit_differs(name):
    expected = plain(name)
    made, notes, _, run = observed(name)
    small_trl.same(expected, small_trl.outcome(made))
    rows = run.table("micro_batches").sort_values("time_ns")
    training = rows[rows["phase"] == "update"]
    wanted = [one for one in notes if one["training"]]
    assert [list(one) for one in training["lengths"]] == [one["lengths"] for one in wanted]
    assert listed(training["width_tokens"]) == [one["width"] for one in wanted]
    assert training["step"].tolist() == [one["step"] for one in wanted]
    by_step = [list(group) for _, group in itertools.groupby(wanted, lambda one: one["step"])]
    assert training["micro_batch"].tolist() == [at for group in by_step for at in range(len(group))]
    evaluated = [list(one) for one in rows[rows["phase"] == "evaluate"]["lengths"]]
    assert evaluated == [one["lengths"] for one in notes if not one["training"]]
    assert len(rows) == len(notes)
    assert run.incidents.empty
    assert steps_of(run) == sorted({one["step"] for one in wanted})
    padding_of(run, notes)
    cut_again(run, name, notes)


def cut_again(run: Run, name: str, notes: list[dict[str, Any]]) -> None:
    """5: each batch names its packer and all its arguments, and made again from them it is what was recorded.

    Those of a training, of each generation in a step, and those of an evaluation.
    """
    cuts = run.table("partitions").query("level == 'micro_batches'").sort_values("time_ns")
    alone = itertools.count()  # of several generations in a step each is a batch

    def batch_of(one: dict[str, Any]) -> Any:
        return one["training"], one["step"], next(alone) if name == "two generations a step" else 0

    batches = [list(group) for _, group in itertools.groupby(notes, batch_of)]
    assert [list(one) for one in cuts["parts_tokens"]] == [[sum(one["lengths"]) for one in each] for each in batches]
    assert cuts["phase"].tolist() == ["update" if each[0]["training"] else "evaluate" for each in batches]
    package = "transformers" if RUNS[name][0] == "plain" else "trl"
    assert set(cuts["packer"]) == {f"{package} {importlib.metadata.version(package)}"}
    given = [json.loads(one) for one in cuts["arguments"]]
    if name in STRETCHES:
        assert [(one["generation"], one["iteration"], one["first_stretch"]) for one in given] == STRETCHES[name]
    found = replayed(run)
    assert len(found) == len(batches)
    if name == "sft_packed":
        assert set(found["same"]) == {None}
        assert "which of them share a sequence" in found["why"].iloc[0]
    else:
        assert found["same"].tolist() == [True] * len(batches), found["why"].tolist()
        answer = what_if(run)  # nothing is changed, and no packer has to be named
        assert (answer.frame["before"] - answer.frame["after"]).abs().max() == 0


#: Of each batch: which generation it is of, in which pass over it, and its first stretch.
STRETCHES = {
    "several iterations": [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)],
    "steps per generation": [(0, 0, 0), (0, 0, 2), (1, 0, 0), (1, 0, 2)],
    "two generations a step": [(0, 0, 0), (1, 0, 0), (2, 0, 0), (3, 0, 0)],
}


def test_5_the_packing_of_a_data_set_is_recorded_and_made_again(tmp_path):
    """Of each strategy of TRL, beside what its trainer trains on."""
    probe.attach("trl")
    with probe.start("trl", run_dir=tmp_path / "run"):
        made = small_trl.trainer("sft_packed", Path(tempfile.mkdtemp()) / "out", max_length=24)
        packed = {"bfd": [sum(one) for one in made.train_dataset["seq_lengths"]]}
        rows = [len(one) for one in TOKENS]
        for strategy in ("bfd_split", "wrapped"):
            found = trl_data().pack_dataset(datasets_of(TOKENS), 24, strategy)
            packed[strategy] = [len(one) for one in found["input_ids"]]
        made.train()
    cuts = probe.open(tmp_path / "run")
    told = cuts.table("partitions").query("level == 'data_set'").to_dict("records")
    arguments = [json.loads(one["arguments"]) for one in told]
    assert [one["strategy"] for one in arguments] == ["bfd", "bfd", "bfd_split", "wrapped"]  # the second to evaluate
    by_strategy = {given["strategy"]: one for given, one in reversed(list(zip(arguments, told, strict=True)))}
    assert set(by_strategy) == set(packed)
    for strategy, parts in packed.items():
        one = by_strategy[strategy]
        assert list(one["parts_tokens"]) == parts
        assert sum(one["parts_tokens"]) <= sum(one["lengths"])
        assert json.loads(one["arguments"])["seq_length"] == 24
    assert list(by_strategy["wrapped"]["lengths"]) == rows
    again = replayed_packings(cuts)
    assert again["same"].tolist() == [True] * len(told), again["why"].tolist()


TOKENS = [[number] * length for number, length in enumerate((5, 30, 12, 24, 7, 3, 3, 41, 1, 19))]


def trl_data() -> Any:
    from trl import data_utils

    return data_utils


def datasets_of(rows: list[list[int]]) -> Any:
    import datasets

    return datasets.Dataset.from_dict({"input_ids": rows})


@pytest.mark.parametrize("kind", ONLINE)
def test_6_what_a_trainer_prepares_to_generate_from_goes_when_it_lets_it_go(kind, tmp_path, monkeypatch):
    prepared: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []
    own = transformers_trainer()._prepare_inputs

    def noted(self, inputs):
        made = own(self, inputs)
        prepared.extend(weakref.ref(one) for one in made.values() if isinstance(one, torch.Tensor))
        return made

    def watching(base):
        class Watching(base):
            def _calculate_rewards(self, *args):
                alive.append(len([one for one in prepared if one() is not None]))
                return super()._calculate_rewards(*args)

        return Watching

    monkeypatch.setattr(transformers_trainer(), "_prepare_inputs", noted)
    attached = probe.attach("trl")
    with probe.start("trl", run_dir=tmp_path / "run"):
        trained(kind, watching)
    for one in attached:
        one.detach()
    assert prepared
    assert alive
    assert set(alive) == {0}


def transformers_trainer() -> Any:
    from transformers import Trainer

    return Trainer


def padding_of(run: Run, notes: list[dict[str, Any]]) -> None:
    """Padding of each micro-batch, by one field, is rectangle minus tokens."""
    rows = run.table("padding").sort_values("time_ns", kind="stable")
    rows = rows[rows["field"] == rows["field"].iloc[0]]
    sums = rows.groupby("batch_id", sort=False).agg({"tokens": "sum", "rectangle_tokens": "first"})
    rectangles = [len(one["lengths"]) * one["width"] if one["width"] else sum(one["lengths"]) for one in notes]
    assert sums["rectangle_tokens"].tolist() == rectangles
    wanted = [size - sum(one["lengths"]) for size, one in zip(rectangles, notes, strict=True)]
    assert sums["tokens"].tolist() == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_2_tokens_that_the_loss_counts_are_told(kind):
    seen = observed(kind)
    assert seen.told == [one["effective"] for one in seen.notes]


def moved(samples: Any) -> int:
    """Groups of one batch whose other answers have unlike rewards, and another mean than with those cut off."""
    found = 0
    for _, group in samples.groupby("group"):
        trained = group[group["dropped"] == ""]
        told = trained["reward"].nunique() > 1 and len(trained) < len(group)
        found += told and abs(trained["reward"].mean() - group["reward"].mean()) > 1e-6
    return found


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("grpo", {}),
        ("rloo", {}),
        ("several iterations", {}),
        ("steps per generation", {}),
        ("grpo", {"mask_truncated_completions": True, "max_completion_length": 4, "num_generations": 4}),
    ],
)
def test_15_2_and_3_samples_and_fates_agree_with_trl_s_own_totals(name, changes, tmp_path):
    own: list[dict[str, Any]] = []

    def base(kind: Any) -> Any:
        class Noted(kind):  # type: ignore[misc]
            def _generate_and_score_completions(self, inputs: Any) -> Any:
                found = super()._generate_and_score_completions(inputs)
                if self.model.training:
                    own.append({"ids": found["completion_ids"].clone(), "advantages": found["advantages"].tolist()})
                    own[-1]["version"] = self.state.global_step
                    own[-1]["mask"] = found["completion_mask"].clone()
                    own[-1]["counted"] = int(found.get("num_items_in_batch", found["completion_mask"].sum()))
                return found

        return Noted

    probe.attach("trl")
    with probe.start("trl", run_dir=tmp_path / "run"):
        trained(name, base, **changes)
    run = probe.open(tmp_path / "run")
    assert run.incidents.empty
    # 15, audit: what TRL logs of lengths and of truncated answers is what is recorded, in the same steps.
    audited = run.audit()
    assert all(audited.named(one) is not None for one in ("completions/mean_length", "completions/clipped_ratio"))
    assert {one.trap for one in audited}.isdisjoint({"unlike_lengths", "zero_clip_ratio"})
    lengths = run.sql("""
        select value, sum(batch_tokens) / sum(batch_samples) as counted from scalars join token_fates using (step)
        where key = 'completions/mean_length' and fate = 'carried' group by step, value""")
    assert len(lengths)
    assert lengths["value"].tolist() == pytest.approx(lengths["counted"].tolist())
    fates = run.token_fates
    for (_, rows), (_, batch), one in zip(fates.groupby("batch_id"), run.samples.groupby("batch_id"), own, strict=True):
        tokens = rows.groupby("fate")["tokens"].sum()
        tokens = tokens[tokens != 0]
        left_out = tokens.get("truncated", 0)
        assert tokens.sum() - left_out == one["counted"]
        assert batch["response_tokens"].sum() == rows["batch_tokens"].iloc[0] == tokens.sum()
        assert batch["advantage_mean"].fillna(0.0).tolist() == pytest.approx(
            [value if mask.sum() else 0.0 for value, mask in zip(one["advantages"], one["mask"], strict=True)]
        )
        assert batch["reward"].notna().all()
        assert (batch["turns"] == 1).all()
        assert batch[["tools", "has_error"]].isna().all(axis=None)  # no tools, and TRL calls no rollout a failure
        nothing = [int(mask.sum()) for value, mask in zip(one["advantages"], one["mask"], strict=True) if value == 0]
        assert tokens.get("no_advantage", 0) == sum(nothing)
        assert "unknown" not in tokens
        # The passes of a later step are unknown as the rows of this one are written, and told then.
        first = rows[rows["trained_step"].isna()].set_index("fate")["tokens"]
        assert ("clip_unknown" in first) == (name == "steps per generation")
        assert "clip_unknown" not in tokens
        assert "dropped" not in tokens
        assert list(rows["loss_terms"].iloc[0]) == ([] if RUNS[name][0] == "rloo" else ["KL"])
    assert (left_out > 0) == bool(changes)
    # 15, supplement: answers that are cut off stay in TRL's baseline, though the loss leaves them out.
    if changes:
        told = run.group_baselines
        assert (told["masked_answers"] == run.samples.groupby("batch_id")["masked"].sum().to_numpy()).all()
        assert not told[["failed_answers", "elsewhere_groups"]].any(axis=None)
        assert told["moved_groups"].sum() > 0
        for row in told.itertuples():
            assert row.moved_groups == moved(run.samples[run.samples["batch_id"] == row.batch_id])
    else:
        assert run.group_baselines.empty
    # 15.6: the answers come in one batch, so that begin and end are the batch's, and no tail is claimed.
    rollouts = run.rollouts
    assert rollouts["together"].all()
    assert (rollouts["timed"] == 0).all()
    assert (rollouts["end_ns"] > rollouts["begin_ns"]).all()
    assert set(rollouts["replica"]) == {"rank 0"}
    # 15, audit: both versions count optimizer steps, and what samples has the trainer's own weights.
    assert rollouts["trainer_version"].tolist() == [one["version"] for one in own]
    assert [list(one) for one in rollouts["weight_versions"]] == [[one["version"]] for one in own]
    assert run.samples["weight_version"].tolist() == [one["version"] for one in own for _ in one["advantages"]]
    assert all(set(one.staleness) == {0} for one in run.long_tail().steps)
    assert all(one.tail_ns is None and one.begin_ns is not None for one in run.long_tail().steps)
    assert run.samples["begin_ns"].isna().all()


def test_15_weights_of_an_engine_are_those_of_its_last_sync():
    """vLLM doesn't run here: the trainer's own attributes, by which TRL 1.16 syncs it."""
    trainer = SimpleNamespace(state=SimpleNamespace(global_step=5), use_vllm=True, _last_loaded_step=3)
    assert trl_samples._version(trainer) == 3
    trainer.use_vllm = False
    assert trl_samples._version(trainer) == 5


@pytest.mark.parametrize("kind", ONLINE)
def test_13_b_the_sampled_tokens_are_told_and_are_those_that_are_trained(kind):
    run = observed(kind).run
    rows = run.token_identity
    assert len(rows) == run.samples["batch_id"].nunique()
    assert (rows["changed_answers"] == 0).all()
    counted = run.samples.groupby("batch_id")["response_tokens"].sum()
    assert rows.set_index("batch_id")["sampled_tokens"].sort_index().tolist() == counted.sort_index().tolist()


@pytest.mark.parametrize("tokenised_again", [False, True])
def test_13_b_of_answers_in_several_turns_it_is_told_which_tokens_engines_sampled(tmp_path, tokenised_again):
    """Every other answer calls a tool, whose three tokens stand between two turns, in TRL's way."""

    def with_tools(kind: type) -> type:
        class Calls(kind):
            def _tool_call_loop(self, prompts, prompt_ids, completion_ids, completions, logprobs, *_):
                called = range(0, len(prompt_ids), 2)
                asked = [prompt_ids[at] + completion_ids[at] + [65, 66, 67] for at in called]
                answers, _ = self._generate_single_turn(asked, None, {}, num_generations=1)
                mask = [[1] * len(one) for one in completion_ids]
                for at, answer in zip(called, answers, strict=True):
                    room = self.max_completion_length - len(completion_ids[at]) - 3
                    told = [65, 66, 67, *answer[: max(room, 0)]]
                    mask[at] += [0] * 3 + [1] * (len(told) - 3)
                    completion_ids[at] = completion_ids[at] + told
                if tokenised_again:  # its first token is another one, that spells the same
                    completion_ids[1] = [68, *completion_ids[1][1:]]
                return mask, completions, completion_ids, logprobs, 1, 0, [[] for _ in prompt_ids]

        return Calls

    probe.attach("trl")
    with probe.start("trl", run_dir=tmp_path / "run"):
        made = small_trl.trainer("grpo", tmp_path / "out", with_tools)
        made.tools = [print]
        made.train()
    with probe.open(tmp_path / "run") as run:
        assert run.incidents.empty
        rows, samples = run.token_identity, run.samples
    assert len(rows) == samples["batch_id"].nunique() > 0
    assert samples["turns"].isin([1, 2]).all()
    assert (samples[samples["row"] % 2 == 1]["turns"] == 1).all()
    assert samples["tools"].isna().all()  # these answers are texts, and no messages that say what was called
    assert (rows["changed_answers"] == (1 if tokenised_again else 0)).all()
    assert (rows["trained_tokens"] < samples.groupby("batch_id")["response_tokens"].sum().to_numpy()).all()


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.

    Returns:
        Their sum.
    """
    if a == b:
        raise ValueError("they are equal")
    return a + b


def test_15_2_turns_and_calls_of_tools_are_those_of_trl_s_own_tool_loop(tmp_path, monkeypatch):
    """Its loop calls a real tool, and answers go on; what of an answer is a call is decided by its first token."""
    from datasets import Dataset
    from trl.chat_template_utils import get_training_chat_template, qwen3_chat_template
    from trl.trainer import grpo_trainer

    own: list[dict[str, Any]] = []

    def parsed(tokenizer: Any, ids: list[int], **_: Any) -> dict[str, Any]:
        said = {"role": "assistant", "content": tokenizer.decode(ids)}
        calls = [{"name": "add", "arguments": {"a": at, "b": ids[0] % 2}} for at in range(max(ids[0] % 5 - 2, 0))]
        return said | ({"tool_calls": [{"type": "function", "function": one} for one in calls]} if calls else {})

    def noted(kind: Any) -> Any:
        class Noted(kind):  # type: ignore[misc]
            def _generate(self, prompts: Any) -> Any:
                found = super()._generate(prompts)
                frequency = self._metrics["train"]["tools/call_frequency"][-1]
                own.append({"mask": found[2], "messages": found[3], "calls": round(frequency * len(found[1]))})
                return found

        return Noted

    monkeypatch.setattr(grpo_trainer, "parse_response", parsed)
    with probe.start("trl", run_dir=tmp_path / "run"):
        probe.attach("trl")
        made = small_trl.trainer("grpo", tmp_path / "out", noted, max_completion_length=400)
        made.tools, made._standalone_tools = [add], [add]  # their check asks for a package that parses answers
        made._tokenizer.chat_template, made._tokenizer.response_schema = qwen3_chat_template, {}
        made.chat_template = get_training_chat_template(made._tokenizer)
        made.model.config.max_position_embeddings = 4096
        made.reward_funcs = [lambda completions, **_: [float(len(str(one)) % 7) for one in completions]]
        rows = [{"prompt": [{"role": "user", "content": text}]} for text in small_trl.TEXTS]
        made.train_dataset = Dataset.from_list(rows)
        made.train()
    with probe.open(tmp_path / "run") as run:
        assert run.incidents.empty
        batches = [batch for _, batch in run.samples.groupby("batch_id")]
    seen = set()
    for batch, one in zip(batches, own, strict=True):
        assert batch["turns"].tolist() == [sum(kind for kind, _ in itertools.groupby(mask)) for mask in one["mask"]]
        assert batch["turns"].tolist() == [
            sum(message["role"] == "assistant" for message in messages) for messages in one["messages"]
        ]
        assert batch["tools"].sum() == one["calls"]
        assert batch["tools"].tolist() == [
            sum(message["role"] == "tool" for message in messages) for messages in one["messages"]
        ]
        assert batch["has_error"].isna().all()  # an error of a tool is told to the model, which answers it
        seen |= {
            message["content"] for messages in one["messages"] for message in messages if message["role"] == "tool"
        }
        assert batch["turns"].max() > 1
    assert {"{'error': 'they are equal'}", "1"} <= seen


def scopes(run: Run) -> Any:
    rows = run.table("memory")
    return rows[(rows["edge"] == "leave") & rows["step"].notna()].sort_values("time_ns")


@pytest.mark.parametrize("kind", ONLINE)
def test_2_generation_is_not_filed_under_the_update(kind):
    found = scopes(observed(kind).run)
    first = found[found["step"] == 1]["scope"].tolist()
    log_probs = ["step/rollout/old_log_prob"] * (kind == "rloo") + ["step/rollout/ref_log_prob"]
    assert [one for one in first if one.startswith("step/rollout")] == [
        "step/rollout/generate",
        *log_probs,
        "step/rollout/reward/distinct",
        "step/rollout/reward",
        "step/rollout",
    ]
    assert first[0] == "step/data"
    assert first[-1] == "step"
    assert [one for one in first if "update" in one] == [
        "step/update/0",
        "step/update/1",
        "step/update/optimizer_step",
        "step/update",
    ]
    spans = found[found["step"] == 1].set_index("scope")
    generated, updated = spans.loc["step/rollout"], spans.loc["step/update"]
    assert generated["time_ns"] <= updated["time_ns"] - updated["host_duration_ns"]


def test_2_two_generations_in_a_step_are_two_updates():
    _, notes, _, run = observed("two generations a step")
    found = scopes(run)
    assert found[found["step"] == 1]["scope"].tolist().count("step/rollout") == 2
    assert found[found["step"] == 1]["scope"].tolist().count("step/update") == 2
    rows = run.table("micro_batches")
    assert rows["batch_id"].nunique() == len(notes) == 4
    assert rows["micro_batches"].isna().all()  # how many one is cut into isn't known when it begins


def test_2_evaluation_and_saving_are_phases_of_the_step_that_they_follow():
    found = scopes(observed("evaluation and saving").run)
    second = found[found["step"] == 2]["scope"].tolist()
    assert second.index("step/update") < second.index("step/evaluate") < second.index("step/save_checkpoint")
    assert "step/evaluate/0" in second
    assert not [one for one in found[found["step"] == 1]["scope"] if "evaluate" in one or "save" in one]


def test_2_what_the_trainer_logs_stands_in_the_run_under_its_own_steps():
    made, _, _, run = observed("sft")
    rows = run.scalars
    rows = rows[rows["key"] == "loss"].sort_values("step")
    logged = [(one["step"], one["loss"]) for one in made.state.log_history if "loss" in one]
    assert list(zip(rows["step"], rows["value"], strict=True)) == logged


def test_the_benchmark_runs_in_its_smallest_form():
    (row,) = trl_cost.rows(Size.SMALL)
    assert min(row["ours_s"], row["theirs_s"]) > 0
    assert row["name"] == "few steps: with probe / without"
