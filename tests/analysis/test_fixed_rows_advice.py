"""A cap in the place of fixed rows, and what a cap stands for where rows are padded or ranks share a sequence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from probe.analysis.advice import advise
from probe.analysis.memory_model import risk_of
from probe.analysis.what_if import Replayer, Settings
from probe.records import GIB
from tests.analysis import planted_batches
from tests.analysis.planted_batches import MIB, Planted, planted
from tests.analysis.test_advice import CAP, config


def computed(run, settings=None):
    """Tokens that are computed for the largest micro-batch, of all ranks that share its sequences."""
    own = Replayer(run)
    told = [own.before(at) if settings is None else own.after(at, settings) for at in range(len(own))]
    return max(one[0] for step in told for one in step.micro_batches)


def under(run, tokens):
    return computed(run, Settings(dynamic=True, cap_tokens=tokens))


def risk_under(run, tokens):
    own = Replayer(run)
    (model,) = own.memory.values()
    cut = Settings(dynamic=True, cap_tokens=tokens)
    return risk_of(model, [sorted(own.after(at, cut).micro_batches) for at in range(len(own))])


def short_and_long(random, rows):
    """Four mini-batches, two of short rows and two of long ones."""
    return np.concatenate([random.integers(base // 2, base, rows // 4) for base in (200, 2000, 300, 1900)])


@pytest.mark.slow
def test_4_of_padded_rows_the_cap_is_lowered_until_no_rectangle_is_larger_than_todays(tmp_path):
    padded = Planted(cap=None, ranks=1, balanced=False, padded=True, config=config(dynamic=False))
    made = replace(padded, rows=128, mini_batches=4, lengths=short_and_long)
    with planted(tmp_path / "a", made) as run:
        (one,) = advise(run).suggestions
        assert one.kind == "dynamic"
        today = computed(run)
        assert under(run, today) > today >= under(run, one.values[CAP])
        assert one.values[CAP] < today
        assert any(gain.startswith("update_actor: no peak is told. ") for gain in one.gains)
    few = replace(padded, rows_each=2, steps=4, total=45 * GIB, per_micro_batch_s=0.3)  # long and short in all
    with planted(tmp_path / "b", few) as run:
        found = advise(run)
        assert found.suggestions == ()
        today = computed(run)
        assert under(run, today) > 2 * today
        told = f"some micro-batch computes more than today's {today:,} tokens."
        assert f"update_actor: to cut by tokens isn't advised. Under each cap that was tried, {told}" in found.remarks
    wide = replace(padded, rows_each=2, steps=4, padded=False, width=4096)
    with planted(tmp_path / "c", wide) as run:
        assert [one for one in advise(run).suggestions if one.kind == "dynamic"] == []
        assert under(run, computed(run)) > 2 * computed(run)


def test_4_a_cap_in_the_place_of_fixed_rows_allows_for_a_verl_whose_cap_is_loose(tmp_path):
    made = Planted(packer="verl 0.7.1", ranks=1, steps=4, cap=None, rows_each=2, config=config(dynamic=False))
    made.lengths = lambda random, rows: random.lognormal(6.3, 0.7, rows).clip(20, 2000)
    with planted(tmp_path, made) as run:
        (one,) = [each for each in advise(run).suggestions if each.kind == "dynamic"]
        today = computed(run)
        assert under(run, one.values[CAP]) <= today < under(run, today)


def test_4_a_cap_in_the_place_of_fixed_rows_tells_no_risk_that_nothing_shows(tmp_path):
    made = Planted(cap=None, ranks=1, steps=6, per_row=0, noise=600 * MIB, config=config(dynamic=False))
    with planted(tmp_path, made) as run:
        (one,) = [one for one in advise(run).suggestions if one.kind == "dynamic"]
        assert one.values[CAP] == computed(run)
        assert risk_under(run, one.values[CAP]) is None
        assert one.confidence == "low"
        assert not any("out of memory in" in gain for gain in one.gains)


@pytest.mark.slow
def test_4_ranks_that_share_a_sequence_hold_the_cap_together(tmp_path):
    shared = Planted(ranks=4, sp_size=2, steps=6, rows=64, total=400 * GIB)
    fixed = replace(shared, cap=None, rows_each=2, config=config(dynamic=False))
    with planted(tmp_path / "a", fixed) as run:
        (one,) = [each for each in advise(run).suggestions if each.kind == "dynamic"]
        today = computed(run)
        assert one.values[CAP] == today // 2  # of one GPU
        assert 0.9 * today < under(run, one.values[CAP]) <= today
    with planted(tmp_path / "b", replace(shared, cap=8192, config=config(4096))) as run:
        found = advise(run)
        (one,) = [each for each in found.suggestions if each.kind == "cap"]
        assert one.before == {CAP: 4096}
        (limit,) = found.limits.values()
        seen = computed(run)
        assert 0.95 * seen < one.values[CAP] == limit.best <= seen  # twice as much on two GPUs
        assert seen < computed(run, Settings(cap_tokens=limit.best)) <= 2 * seen
        assert f"no micro-batch above {seen:,} tokens was seen" in one.because
    full = replace(shared, cap=8192, config=config(4096), total=43 * GIB)
    with planted(tmp_path / "c", full) as run:
        (limit,) = advise(run).limits.values()
        assert limit.best < limit.risky < 4096
        assert risk_under(run, limit.best) <= 0.02 < risk_under(run, limit.risky)
    full.total = 24 * GIB  # which not even the longest row alone fits into
    with planted(tmp_path / "d", full) as run:
        (limit,) = advise(run).limits.values()
        longest = max(Replayer(run).lengths())
        assert limit.best is None
        assert longest / 2 <= limit.risky < longest / 2 + 64


def test_4_a_padded_micro_batch_is_never_foretold_beyond_twice_the_largest_that_was_seen(tmp_path):
    made = Planted(ranks=1, steps=6, rows=64, padded=True, total=4000 * GIB, config=config())
    with planted(tmp_path, made) as run:
        (limit,) = advise(run).limits.values()
        (model,) = Replayer(run).memory.values()
        largest = computed(run, Settings(cap_tokens=limit.best))
        assert largest <= 2 * model.largest_tokens < computed(run, Settings(cap_tokens=2 * model.largest_tokens))
        assert limit.risky is None


@pytest.mark.parametrize("cap", [8192, None])
def test_4_no_cap_is_advised_where_a_run_does_not_tell_how_many_ranks_share_a_sequence(tmp_path, cap, monkeypatch):
    told = config(4096, dynamic=cap is not None)
    told["actor_rollout_ref"]["actor"]["fsdp_config"] = {"ulysses_sequence_parallel_size": 2}
    whole = planted_batches.arguments_of

    def without(made):
        return {name: value for name, value in whole(made).items() if name != "sp_size"}

    monkeypatch.setattr(planted_batches, "arguments_of", without)  # as runs of verl were recorded at first
    with planted(
        tmp_path, Planted(ranks=1, rows=64, steps=4, cap=cap, rows_each=2, total=400 * GIB, config=told)
    ) as run:
        found = advise(run)
        assert found.values == {}
        said = "update_actor: no cap is advised, since its batches don't tell how many ranks share a row."
        assert found.remarks == (said,)
