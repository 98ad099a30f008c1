"""Fixed rows that run out of memory: micro-batches by tokens where it is known that they don't, else fewer rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probe.analysis.advice import advise
from probe.analysis.memory_model import risk_of
from probe.analysis.what_if import Replayer, Settings
from probe.records import GIB
from tests.analysis.planted_batches import Planted, planted
from tests.analysis.test_advice import CAP, config
from tests.analysis.test_fixed_rows_advice import risk_under

ROWS = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"


def told(rows):
    made = config(dynamic=False)
    made["actor_rollout_ref"]["actor"]["ppo_micro_batch_size_per_gpu"] = rows
    return made


def risk_today(run, settings=None):
    own = Replayer(run)
    (model,) = own.memory.values()
    steps = [own.before(at) if settings is None else own.after(at, settings) for at in range(len(own))]
    return risk_of(model, [sorted(one.micro_batches) for one in steps], at_most=True)


def test_4_fixed_rows_at_risk_are_cut_by_tokens_though_no_time_is_saved(tmp_path):
    varied = {1: 2, 2: 1, 3: 2}  # rows of some steps, so that what a row needs is known
    made = Planted(cap=None, rows_each=4, rows_in=varied, total=45 * GIB, per_micro_batch_s=0.0, config=told(4))
    with planted(tmp_path / "a", made) as run:
        assert risk_today(run) > 0.02
        one = advise(run).suggestions[0]
        assert (one.kind, one.gain_share, one.for_memory) == ("dynamic", -1.0, True)
        assert risk_under(run, one.values[CAP]) <= 0.02
        assert one.gains[0].startswith("update_actor: today's micro-batches run out of memory in ")
        assert any(gain.startswith("update_actor peaks at ") for gain in one.gains)
        assert not any("−0 s" in gain for gain in one.gains)
        assert run.findings().named("tight_memory").change == one.change
    with planted(tmp_path / "b", replace(made, total=80 * GIB)) as run:
        assert [one for one in advise(run).suggestions if one.for_memory] == []


def test_4_fixed_rows_at_risk_are_made_fewer_where_nothing_is_known_of_other_rows(tmp_path):
    made = Planted(cap=None, rows_each=4, total=44 * GIB, config=told(4))
    with planted(tmp_path / "a", made) as run:
        first, *others = advise(run).suggestions
        assert risk_today(run) > 0.02 >= risk_today(run, Settings(rows_each=2))
        assert (first.kind, first.values, first.before) == ("rows", {ROWS: 2}, {ROWS: 4})
        assert first.advice == "Cut update_actor into micro-batches of 2 rows."
        today, memory, counts = first.gains
        assert today.startswith("update_actor: today's micro-batches run out of memory in ")
        assert memory.startswith("update_actor then runs out of memory in at most ")
        assert counts.startswith("micro-batches of the rank with the most: 8 → 16 a step, +")
        assert "dynamic" not in [one.kind for one in others]  # whose memory isn't known
        assert run.findings().named("tight_memory").change == first.change
    with planted(tmp_path / "b", replace(made, total=31 * GIB)) as run:
        found = advise(run)
        assert "rows" not in [one.kind for one in found.suggestions]
        (remark,) = [one for one in found.remarks if "no smaller number of rows" in one]
        assert remark.startswith("update_actor: today's micro-batches run out of memory in 100 % of runs")


@pytest.mark.parametrize(
    ("phase", "values"),
    [
        ("update", {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 32}),
        ("evaluate", {"per_device_eval_batch_size": 1}),
    ],
)
def test_4_trl_gets_fewer_rows_and_as_many_more_accumulated(tmp_path, phase, values):
    now = {"per_device_train_batch_size": 2, "per_device_eval_batch_size": 2, "gradient_accumulation_steps": 16}
    made = Planted(cap=None, rows_each=2, mini_batches=1, phase=phase, tells_packer=False, config=now, total=39 * GIB)
    with planted(tmp_path, made) as run:
        one = advise(run).suggestions[0]
        assert (one.kind, one.values, one.for_memory) == ("rows", values, True)
        assert one.before == {key: now[key] for key in values}
