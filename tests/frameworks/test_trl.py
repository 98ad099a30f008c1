"""TRL and Transformers as installed, under observation: what is recorded is what `compute_loss` received.

Nothing of a training differs by a bit. They live in an environment of their own.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import itertools
import json
import logging
import os
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import probe
from benchmarks import trl_cost
from benchmarks.measure import Size
from probe import frameworks
from probe.adapters import automatic, transformers
from probe.analysis.what_if import replayed, replayed_packings, what_if
from probe.opened import Run
from tests.frameworks import small_trl

pytestmark = [
    pytest.mark.framework,
    pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="needs TRL, which has its own environment"),
    pytest.mark.filterwarnings("ignore"),  # what they warn of is theirs to mend
]

KINDS = small_trl.KINDS
ONLINE = ("grpo", "rloo")

#: What a training is changed by, beside each trainer as it is.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "gradient checkpointing": ("sft", {"gradient_checkpointing": True}),
    "loader workers": ("sft", {"dataloader_num_workers": 2}),
    "evaluation and saving": (
        "sft",
        {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2},
    ),
    "evaluated preferences": ("dpo", {"eval_strategy": "steps", "eval_steps": 2}),
    "the plain trainer, evaluated": ("plain", {"eval_strategy": "epoch", "save_strategy": "epoch", "max_steps": 9}),
    "several iterations": ("grpo", {"num_iterations": 2, "max_steps": 4}),
    "steps per generation": ("grpo", {"steps_per_generation": 4, "max_steps": 4}),
    "two generations a step": ("grpo", {"steps_per_generation": 1, "max_steps": 2}),
    "answers evaluated": ("rloo", {"eval_strategy": "steps", "eval_steps": 2}),
    "checkpointed answers": ("grpo", {"gradient_checkpointing": True, "loss_type": "dapo", "beta": 0.0}),
}
RUNS = {**{kind: (kind, {}) for kind in KINDS}, **VARIANTS}


@pytest.fixture(autouse=True)
def _taken_off(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("PROBE_RUN_DIR", raising=False)
    yield
    for one in frameworks.attached():
        one.detach()


@functools.cache
def plain(name: str) -> dict[str, Any]:
    """What a training without probe leaves. That it is repeatable shows where an observed one leaves the same."""
    left = small_trl.outcome(trained(name))
    steps = [one for one in left["logged"] if "grad_norm" in one]
    assert steps
    assert all(one["grad_norm"] > 0 for one in steps)
    if RUNS[name][0] in ONLINE:
        assert all(one["reward_std"] > 0 for one in steps if "reward_std" in one)  # advantages aren't all 0
    return left


def trained(name: str, base: Any = None, **more: Any) -> Any:
    kind, changes = RUNS[name]
    folder = Path(tempfile.mkdtemp())
    made = small_trl.trainer(kind, folder / "out", base, **{**changes, **more})
    made.train()
    return made


class Observed(NamedTuple):
    """A training under observation.

    Attributes:
        made: Its trainer.
        notes: What its `compute_loss` received.
        told: The tokens that the loss counts, of each micro-batch, as a listener heard them.
        run: What was recorded.
    """

    made: Any
    notes: list[dict[str, Any]]
    told: list[Any]
    run: Run


@functools.cache
def observed(name: str) -> Observed:
    """Trains once for all that is asked of the training."""
    notes: list[dict[str, Any]] = []
    told: list[Any] = []

    class Hear(probe.Listener):
        def fire(self, event):
            told.append(event.values["effective"])

    directory = Path(tempfile.mkdtemp()) / "run"
    attached = probe.attach("trl")
    with probe.start("trl", run_dir=directory), probe.subscribe(Hear(), "micro_batch.told"):
        made = trained(name, small_trl.witness(notes))
    for one in attached:
        assert one.detach() == []
    return Observed(made, notes, told, probe.open(directory))


def steps_of(run: Run) -> list[int]:
    """Steps that have ended."""
    rows = run.table("memory")
    return sorted(rows[(rows["kind"] == "step") & (rows["edge"] == "leave")]["step"].tolist())


def listed(column: Any) -> list[Any]:
    return [None if missing else int(one) for one, missing in zip(column, column.isna(), strict=True)]


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
                    own[-1]["mask"] = found["completion_mask"].clone()
                    own[-1]["counted"] = int(found.get("num_items_in_batch", found["completion_mask"].sum()))
                return found

        return Noted

    probe.attach("trl")
    with probe.start("trl", run_dir=tmp_path / "run"):
        trained(name, base, **changes)
    run = probe.open(tmp_path / "run")
    assert run.incidents.empty
    fates = run.token_fates
    for (_, rows), (_, batch), one in zip(fates.groupby("batch_id"), run.samples.groupby("batch_id"), own, strict=True):
        tokens = rows.set_index("fate")["tokens"]
        left_out = tokens.get("truncated", 0)
        assert tokens.sum() - left_out == one["counted"]
        assert batch["response_tokens"].sum() == rows["batch_tokens"].iloc[0] == tokens.sum()
        assert batch["advantage_mean"].fillna(0.0).tolist() == pytest.approx(
            [value if mask.sum() else 0.0 for value, mask in zip(one["advantages"], one["mask"], strict=True)]
        )
        assert batch["reward"].notna().all()
        nothing = [int(mask.sum()) for value, mask in zip(one["advantages"], one["mask"], strict=True) if value == 0]
        assert tokens.get("no_advantage", 0) == sum(nothing)
        assert "unknown" not in tokens
        assert ("clip_unknown" in tokens) == (name != "grpo")  # one pass over what the same weights sampled
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
    assert all(one.tail_ns is None and one.begin_ns is not None for one in run.long_tail().steps)
    assert run.samples["begin_ns"].isna().all()


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
    assert (rows["changed_answers"] == (1 if tokenised_again else 0)).all()
    assert (rows["trained_tokens"] < samples.groupby("batch_id")["response_tokens"].sum().to_numpy()).all()


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


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("kind", ["grpo", "sft", "plain"])
def test_5_every_point_that_raises_differs_in_nothing(kind, tmp_path, monkeypatch, caplog):
    expected = plain(kind)

    def broken(seam):
        def tell(call):
            raise RuntimeError("ours")
            yield

        return seam._replace(tell=tell)

    from probe.adapters import trl

    monkeypatch.setattr(transformers, "SEAMS", [broken(one) for one in transformers.SEAMS])
    monkeypatch.setattr(trl, "SEAMS", [broken(one) for one in trl.SEAMS])
    probe.attach("trl")
    with caplog.at_level(logging.CRITICAL, "probe.adapters"), probe.start("trl", run_dir=tmp_path / "run") as session:
        made = trained(kind)
    small_trl.same(expected, small_trl.outcome(made))
    incidents = probe.open(session.directory).incidents
    assert {"transformers.trainer.Trainer.training_step"} <= set(incidents["where"])
    assert set(incidents["kind"]) == {"adapter"}


def test_5_a_user_who_computes_the_loss_without_ours_is_seen(tmp_path):
    def base(kind):
        class Own(kind):
            def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
                labels = inputs.pop("labels")
                logits = model(**inputs).logits
                return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

        return Own

    probe.attach("transformers")
    with probe.start("trl", run_dir=tmp_path / "run"):
        trained("plain", base)
    rows = probe.open(tmp_path / "run").table("micro_batches")
    assert len(rows) == 6
    assert set(rows["source"]) == {"Own"}


def test_5_an_error_in_the_training_passes_and_ends_the_step(tmp_path):
    def base(kind):
        class Breaks(kind):
            def compute_loss(self, *args, **kwargs):
                if self.state.global_step == 1:
                    raise ZeroDivisionError("theirs")
                return super().compute_loss(*args, **kwargs)

        return Breaks

    probe.attach("transformers")
    with probe.start("trl", run_dir=tmp_path / "run"):
        with pytest.raises(ZeroDivisionError, match="theirs"):
            trained("plain", base)
        assert probe.hooks.current_scope().step is None
        made = trained("plain")  # and another one is seen as any
    assert made.state.global_step == 3
    run = probe.open(tmp_path / "run")
    assert run.incidents.empty
    failed = run.failures().query("micro_batch >= 0").iloc[0]
    assert (failed["type"], failed["step"], failed["phase"], failed["micro_batch"]) == (
        "ZeroDivisionError",
        2,
        "update",
        0,
    )
    assert (list(failed["lengths"]), "input_ids" in json.loads(failed["fields"])) == ([40, 7], True)


def functions() -> dict[str, Any]:
    from probe.adapters import trl

    found = {}
    for seam in (*transformers.SEAMS, *trl.SEAMS):
        owner: Any = importlib.import_module(seam.module)
        *outer, name = seam.name.split(".")
        for part in outer:
            owner = getattr(owner, part)
        found[f"{seam.module}.{seam.name}"] = vars(owner).get(name)
    return found


def test_5_detach_restores_the_identical_objects():
    import trl  # noqa: F401

    before = functions()
    assert None not in before.values()
    attached = probe.attach("trl")
    assert [one.framework for one in attached] == ["trl", "transformers"]
    assert not [one for one in attached if one.missing or one.waiting]
    during = functions()
    assert all(during[name] is not before[name] for name in before)
    for one in attached:
        assert one.detach() == []
    after = functions()
    assert all(after[name] is before[name] for name in before)


def test_2_the_callback_records_a_training_and_closes_what_it_opened(tmp_path):
    expected = plain("sft")
    made = None
    for number in range(2):
        callback = probe.TrainerCallback(
            "explicit", run_dir=tmp_path / str(number), recorders=["token_balance", "memory"]
        )
        made = small_trl.trainer("sft", Path(tempfile.mkdtemp()) / "out")
        made.add_callback(callback)
        made.train()
        assert probe.current_session() is None
    small_trl.same(expected, small_trl.outcome(made))
    run = probe.open(tmp_path / "1")
    assert steps_of(run) == steps_of(probe.open(tmp_path / "0")) == [1, 2, 3]
    assert len(run.table("micro_batches")) == 6
    assert run.incidents.empty
    assert run.info.config["max_steps"] == 3
    assert run.info.project == "explicit"


def test_2_the_callback_uses_a_session_that_is_open(tmp_path):
    with probe.start("mine", run_dir=tmp_path / "run") as session:
        made = small_trl.trainer("sft", Path(tempfile.mkdtemp()) / "out")
        made.add_callback(probe.TrainerCallback)
        made.train()
        assert probe.current_session() is session
        assert not session.closed
    assert steps_of(probe.open(tmp_path / "run")) == [1, 2, 3]


ALONE = """
import sys
from tests.frameworks import lean
import probe
if {before}:
    probe.attach("trl")
from tests.frameworks import small_trl
from pathlib import Path
made = small_trl.trainer({kind!r}, Path(sys.argv[1]) / "out")
if not {before}:
    probe.attach("trl")
made.train()
session = probe.current_session()
assert session is not None and session.automatic
session.close()
"""


def run_program(code: str, folder: Path, **environ: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(folder)],
        env={**os.environ, "PYTHONPATH": str(Path(probe.__file__).parents[1]), **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("kind", "before"), [("sft", True), ("sft", False), ("plain", True)])
def test_2_one_line_before_or_after_the_import_is_enough(kind, before, tmp_path):
    run_program(ALONE.format(kind=kind, before=before), tmp_path, PROBE_RUN_DIR=str(tmp_path / "run"))
    run = probe.open(tmp_path / "run")
    assert steps_of(run) == [1, 2, 3]
    assert len(run.table("micro_batches")) == 6
    assert run.incidents.empty


#: On a machine without a GPU, too: `--cpu` begins one process, whatever their number.
ACCELERATE = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
ACCELERATE += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]


def probe_run(place: Path) -> list[str]:
    return ["-m", "probe", "run", "--run-dir", str(place), "--", sys.executable, *ACCELERATE]


def job(folder: Path, launcher: list[str], kind: str, *more: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Two processes, each a rank of a training; one that is aborted says where."""
    folder.mkdir()
    own = {"PYTHONPATH": str(Path(probe.__file__).parents[1]), "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    return subprocess.run(
        [sys.executable, *launcher, small_trl.__file__, kind, str(folder), *more],
        env={**os.environ, **own, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.multiprocess
@pytest.mark.parametrize(("kind", "launched"), [("sft", "probe run -- accelerate launch"), ("grpo", "attach")])
def test_2_and_4_two_processes_record_one_run_and_differ_in_nothing(kind, launched, tmp_path):
    """Under torchrun with a line in the script, and under `probe run -- accelerate launch` with none."""
    place = tmp_path / "run"
    folders = [tmp_path / name for name in ("plain", "observed")]
    done = [job(folders[0], small_trl.TORCHRUN, kind)]
    if launched == "attach":
        done.append(job(folders[1], small_trl.TORCHRUN, kind, "attach", PROBE_RUN_DIR=str(place)))
    else:
        done.append(job(folders[1], probe_run(place), kind))
        assert "2 processes recorded" in done[-1].stderr
    for folder, one in zip(folders, done, strict=True):
        assert one.returncode == 0, f"{folder.name}: {one.stderr}\n{one.stdout}"
    run = probe.open(place)
    assert run.incidents.empty
    assert run.attempts == [1]
    assert run.ranks == [0, 1]  # found late: they are in the environment, and the start file came before
    again = replayed(run)
    assert again["same"].tolist() == [True] * len(again) == [True] * 6, again["why"].tolist()
    rows = run.table("micro_batches").sort_values("time_ns")
    for rank in range(2):
        small_trl.same(*[torch.load(one / f"outcome-{rank}.pt", weights_only=False) for one in folders])
        notes = json.loads((folders[1] / f"notes-{rank}.json").read_text())
        mine = rows[rows["rank"] == rank]
        assert [list(one) for one in mine["lengths"]] == [one["lengths"] for one in notes]
        assert listed(mine["width_tokens"]) == [one["width"] for one in notes]
        assert mine["step"].tolist() == [one["step"] for one in notes]


@pytest.mark.multiprocess
def test_proof_and_4_of_accelerate_s_ranks_the_killed_one_is_told_with_where_it_was_seen_last(tmp_path):
    """Rank 1 goes in the second micro-batch of step 2: what came before is whole, and rank 0 is no second cause.

    Under `probe run -- accelerate launch`; a rank of torchrun is killed in the tests of Lightning.
    """
    place = tmp_path / "run"
    done = job(tmp_path / "job", probe_run(place), "sft", "kill")
    assert "2 processes recorded" in done.stderr
    assert done.returncode != 0
    run = probe.open(place)
    small_trl.told_as_killed(run, rank=1, step=2, micro_batch=1)
    rows = run.table("micro_batches")
    first = rows[rows["step"] == 1]
    assert sorted(zip(first["rank"], first["micro_batch"], strict=True)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert run.incidents.query("kind == 'listener' or kind == 'adapter'").empty


def test_2_an_evaluation_alone_keeps_no_trainer_alive(tmp_path):
    import gc
    import weakref

    probe.attach("transformers")
    with probe.start("trl", run_dir=tmp_path / "run"):
        made = small_trl.trainer("plain", Path(tempfile.mkdtemp()) / "out")
        made.evaluate()
        there = weakref.ref(made)
        del made
        gc.collect()
        assert there() is None
    rows = probe.open(tmp_path / "run").table("micro_batches")
    assert set(rows["phase"]) == {"evaluate"}
    assert automatic.is_recording(False) is False


def test_the_benchmark_runs_in_its_smallest_form():
    (row,) = trl_cost.rows(Size.SMALL)
    assert min(row["ours_s"], row["theirs_s"]) > 0
    assert row["name"] == "few steps: observed / plain"
