"""verl's SFT under torchrun on a CPU, with probe beside it: the same training to the bit, and its micro-batches."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import probe
from probe.analysis.steps import times
from probe.opened import Run
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


SFT_STEPS = 4


@pytest.fixture(scope="module")
def sft(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Starts verl's SFT, at most once for each name."""
    done: dict[str, Done] = {}

    def train(name: str, *overrides: str, recorded: bool = False, **options: Any) -> Done:
        if name not in done:
            directory = tmp_path_factory.mktemp(name)
            environ = {"PROBE_RUN_DIR": str(directory / "run")} if recorded else {}
            done[name] = recipes.sft(directory, tiny, *overrides, **options, **environ)
            assert (done[name].code == 0) == ("KILL_RANK" not in options), done[name].output[-3000:]
        return done[name]

    return train


def sft_observed(sft: Train) -> Done:
    return sft("observed", recorded=True)


@pytest.fixture(scope="module")
def sft_run(sft: Train) -> Iterator[Run]:
    """What was recorded of SFT, packed."""
    run = probe.open(sft_observed(sft).run)
    yield run
    run.close()


def test_1_sft_is_the_same_training_to_the_bit(sft):
    before = sft("plain")
    assert all(logged["train/grad_norm"] > 0 for logged in before.logged().values())
    assert_the_same_training(before, sft_observed(sft))


def test_7_a_training_without_probe_is_opened_with_all_that_verl_logged(sft, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    logged = sft("plain").logged()
    with probe.open(sft("plain").directory / "log.jsonl") as run:
        scalars = run.scalars
        for step, told in logged.items():
            mine = scalars[scalars["step"] == step]
            assert dict(zip(mine["key"], mine["value"], strict=True)) == told
        assert len(scalars) == sum(map(len, logged.values())) > 4 * SFT_STEPS
        assert times(run).empty  # verl's SFT logs no time of a step
        assert run.calls.empty


def test_5_every_point_of_sft_that_raises_is_an_incident_and_the_training_the_same(sft):
    done = sft("raising", recorded=True, modules=["raising"])
    assert_the_same_training(sft("plain"), done)
    with probe.open(done.run) as run:
        incidents = run.incidents
        assert set(incidents["kind"]) == {"adapter"}
        where = {place.rpartition(".")[2] for place in incidents["where"]}
        assert {"forward_backward_batch", "forward_step", "prepare_micro_batches", "log"} <= where
        assert run.micro_batches.empty


@pytest.mark.parametrize("rank", range(RANKS))
def test_1_the_micro_batches_of_sft_are_those_that_the_model_was_given(sft, sft_run, rank):
    rows, given = recorded(sft_run, rank), counted(sft_observed(sft), rank)
    assert [list(one) for one in rows["lengths"]] == [line["lengths"] for line in given]
    assert rows["tokens"].tolist() == [line["width"] for line in given]


def test_1_the_steps_and_tokens_of_sft_are_those_that_verl_logs(sft, sft_run):
    logged = sft_observed(sft).logged()
    assert list(logged) == list(range(1, SFT_STEPS + 1))
    tokens = sft_run.micro_batches.groupby("step")["tokens"].sum()
    assert tokens.to_dict() == {step: one["train/global_tokens"] for step, one in logged.items()}
    dealt = sft_run.table("partitions").query("level == 'ranks'").set_index("step")
    own = sft_run.micro_batches.groupby(["step", "rank"])["tokens"].sum()
    for step in logged:
        assert list(dealt.loc[step, "parts_tokens"]) == [own[step, rank] for rank in range(RANKS)]
    calls = sft_run.table("calls")
    assert Counter(calls[calls["point"] == "scope.step"]["step"]) == dict.fromkeys(logged, RANKS)
    saves = calls[(calls["point"] == "scope.phase") & (calls["name"] == "save_checkpoint")]
    assert set(saves["step"]) == {SFT_STEPS}
    assert sft_run.incidents.empty


def test_1_a_killed_worker_leaves_what_it_had_recorded(sft):
    """Rank 1 dies after its second optimizer step: the job fails as it would, and the rows of both are whole.

    Of Ray's actors a killed one is in the tests of Ray.
    """
    done = sft("killed", recorded=True, KILL_RANK="1", KILL_AFTER="2")
    with probe.open(done.run) as run:
        rows = run.micro_batches
        for rank in range(RANKS):
            given = counted(done, rank)
            lengths = [list(one) for one in recorded(run, rank)["lengths"]]
            assert lengths == [line["lengths"] for line in given][: len(lengths)]
        assert set(rows["step"].dropna()) >= {1}
        assert 1 in set(rows[rows["rank"] == 1]["step"])
        assert run.incidents.query("kind == 'listener' or kind == 'adapter'").empty


def test_1_widths_of_padded_micro_batches_are_those_that_the_model_was_given(sft):
    """On one rank: what two have to do with each other is told of packed ones."""
    done = sft("padded", "model.use_remove_padding=False", "data.use_dynamic_bsz=False", recorded=True, ranks=1)
    given = counted(done, 0)
    with probe.open(done.run) as run:
        rows = recorded(run, 0)
        assert rows["width_tokens"].tolist() == [line["width"] for line in given]
        assert [list(one) for one in rows["lengths"]] == [line["lengths"] for line in given]
        padding = run.padding[(run.padding["rank"] == 0) & (run.padding["field"] == "input_ids")]
        spare = sum(line["rows"] * line["width"] - sum(line["lengths"]) for line in given)
        assert padding["tokens"].sum() == spare > 0
        assert set(padding["cause"]) <= {"longest_row", "none"}


def test_1_what_an_engine_adds_to_packed_micro_batches_is_told(sft):
    """A bucket of 100 tokens: what fills it up stands behind the sequences as one more, whose positions begin anew."""
    options = ["engine.pad_to_length=True", "engine.pad_to_length_bucket=100"]
    done = sft("bucket", *options, recorded=True, ranks=1)
    given = counted(done, 0)
    with probe.open(done.run) as run:
        rows = recorded(run, 0)
        added = run.padding[(run.padding["rank"] == 0) & (run.padding["cause"] == "rounding")]
        added = added[added["field"] == "input_ids"]
        assert added["tokens"].sum() == sum(line["width"] for line in given) - rows["tokens"].sum() > 0
        assert all(line["width"] % 100 == 0 for line in given)
