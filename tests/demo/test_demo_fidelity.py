"""Observing changes nothing: with and without a session the demo's training gives bitwise the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from probe.core.fsdp import get_fsdp_full_state_dict
from probe.core.rl_dataset import RLHFDataset
from probe.demo.data import read_problems, write_problems
from probe.demo.settings import Settings
from probe.demo.trainer import Trainer
from probe.opened import Run
from probe.session import Session, start
from tests.demo import demo_ranks
from tests.ranks import ended_ranks

SMALL = Settings(
    steps=2,
    warmup_steps=3,
    problems=60,
    prompts_per_rank=6,
    group_size=4,
    mini_batch_per_rank=12,
    max_tokens=80,
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def problems(tmp_path: Path) -> RLHFDataset:
    return read_problems(write_problems(tmp_path / "problems.parquet", rows=60, seed=0), SMALL)


def trained(
    problems: RLHFDataset, session: Session | None = None, checkpoints: Path | None = None, **changes: Any
) -> tuple[dict[str, Any], list[Any]]:
    trainer = Trainer(replace(SMALL, **changes), problems, session, checkpoints)
    history = list(trainer.train())
    return get_fsdp_full_state_dict(trainer.actor.policy), history


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def test_a_session_changes_no_bit_on_one_rank(tmp_path: Path, problems: RLHFDataset) -> None:
    weights, history = trained(problems)
    with start("fidelity", run_dir=tmp_path / "run", track=["file"]) as session:
        observed_weights, observed_history = trained(problems, session)
    assert_same(weights, observed_weights)
    assert history == observed_history
    with Run(tmp_path / "run") as run:  # it was really being watched
        assert set(run.micro_batches["step"].dropna()) == {0, 1}
        assert set(run.memory["role"].dropna()) == {"actor", "rollout", "reward"}
        audited = run.audit().named("actor/policy_loss")  # 15.1: with its weights, which travel beside the values
        assert audited.token_weighted == pytest.approx(audited.reported, rel=1e-12)
        assert audited.sequence_weighted is not None
        phases = {"generate", "reward", "old_log_prob", "advantages", "update"}
        assert phases <= set(run.memory["phase"].dropna())
        logged = run.scalars.query("source == 'user'").set_index(["key", "step"])["value"]
        assert logged["reward/mean", 1] == history[-1][1]["reward/mean"]
        assert run.incidents.empty
        fates = run.token_fates  # issue 15, part 3: of the demo nothing is unknown
        assert set(fates["step"]) == {0, 1}
        assert fates["complete"].all()
        by_step = fates.groupby("step")["tokens"].sum()
        assert by_step[1] == pytest.approx(24 * logged["response_length/mean", 1])
        told = run.mismatch()  # issue 15, part 4: its rollout tells its own log-probabilities
        assert told is not None
        # It draws no padding, which training finds possible: of 17 tokens about as likely one takes 6 % of the others.
        assert -0.15 < told.measures.difference_largest < 0.01


@pytest.mark.slow
def test_the_seed_decides(problems: RLHFDataset) -> None:
    weights, history = trained(problems)
    again, same = trained(problems)
    other, different = trained(problems, seed=1)
    assert_same(weights, again)
    assert history == same
    assert history != different
    assert not torch.equal(weights["head.weight"], other["head.weight"])


def test_how_micro_batches_are_cut_does_not_matter(problems: RLHFDataset) -> None:
    """The loss is a mean over the tokens of the mini-batch, so the cut may only change the rounding."""
    _, whole = trained(problems, max_tokens=10_000, steps=1)
    _, cut = trained(problems, max_tokens=45, steps=1)
    assert whole[-1][1].keys() == cut[-1][1].keys()
    for key, value in whole[-1][1].items():
        assert cut[-1][1][key] == pytest.approx(value, rel=1e-3, abs=1e-6), key


@pytest.mark.slow
def test_a_training_that_goes_on_is_the_one_that_never_stopped(tmp_path: Path, problems: RLHFDataset) -> None:
    whole, history = trained(problems, steps=4)
    _, begun = trained(problems, checkpoints=tmp_path, steps=2)
    weights, rest = trained(problems, checkpoints=tmp_path, steps=4)
    assert [step for step, _ in rest] == [2, 3]
    assert [*begun, *rest] == history
    assert_same(whole, weights)


def test_checkpoints_are_saved_in_turn_and_old_ones_go(tmp_path: Path, problems: RLHFDataset) -> None:
    trained(problems, checkpoints=tmp_path, steps=4, save_every=1, checkpoints_to_keep=2)
    assert sorted(one.name for one in tmp_path.glob("global_step_*")) == ["global_step_3", "global_step_4"]


def test_more_work_than_problems_shares_them(problems: RLHFDataset) -> None:
    trainer = Trainer(replace(SMALL, prompts_per_rank=150), problems)
    prompts = [tuple(row) for row in trainer.draw(0).batch["prompts"].tolist()]
    assert {prompts.count(prompt) for prompt in set(prompts)} == {2, 3}
    assert len(set(prompts)) == 60


@pytest.mark.multiprocess
def test_two_ranks_stay_equal_and_unchanged_by_a_session(tmp_path: Path, problems: RLHFDataset) -> None:
    two, one = tmp_path, tmp_path / "alone"
    one.mkdir()
    (one / "problems.parquet").write_bytes((two / "problems.parquet").read_bytes())
    calls = [(0, 2, two), (1, 2, two), (0, 1, one)]
    codes, output = ended_ranks(demo_ranks.main, calls, tmp_path)
    assert codes == [0, 0, 0], output
    first, second, alone = (torch.load(place / f"rank-{rank}.pt") for rank, _, place in calls)

    for found in (first, second):
        assert_same(found["plain"]["weights"], found["observed"]["weights"])
        assert found["plain"]["history"] == found["observed"]["history"]
    assert_same(first["plain"]["weights"], second["plain"]["weights"])
    assert first["plain"]["history"] == second["plain"]["history"]

    # Three rows here and nine there weigh what twelve rows weigh: tokens count, not ranks.
    for name, tensor in alone["updated"].items():
        torch.testing.assert_close(first["updated"][name], tensor, rtol=1e-4, atol=1e-6)
    assert_same(first["updated"], second["updated"])

    with Run(two / "run") as run:
        assert run.ranks == [0, 1]
        tokens = run.micro_batches.query("step == 0 and phase == 'update'").groupby("rank")["tokens"].sum()
        assert tokens[0] != tokens[1]
