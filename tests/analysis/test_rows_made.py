"""More rows in TRL's micro-batches, where a run has shown what a row needs, and a cap that goes down for its risk."""

from __future__ import annotations

import numpy as np
import pytest

from probe.analysis.advice import advise
from probe.analysis.memory_model import risk_of
from probe.analysis.what_if import Replayer, Settings
from probe.records import GIB
from tests.analysis import planted_batches
from tests.analysis.planted_batches import MIB, Planted, planted
from tests.analysis.test_advice import CAP, config
from tests.analysis.test_fixed_rows_advice import computed, risk_under

TRL = {"per_device_train_batch_size": 8, "per_device_eval_batch_size": 8, "gradient_accumulation_steps": 16}


def unlike(random, rows):
    return np.clip(random.lognormal(5.5, 0.7, rows), 20, 2000)


def test_4_trl_gets_more_rows_where_the_run_shows_what_a_row_needs(tmp_path, monkeypatch):
    """124 rows a rank: the last micro-batch of each has four rows, and so its memory is told apart from the others'."""
    made = Planted(cap=None, ranks=2, rows=248, rows_each=8, mini_batches=1, steps=12, phase="update", config=TRL)
    made.tells_packer, made.lengths, made.per_micro_batch_s = False, unlike, 0.2
    made.per_row, made.per_longest, made.total = 20 * MIB, 0.0, 400 * GIB
    whole, made.packer = planted_batches.arguments_of, "torch"
    monkeypatch.setattr(planted_batches, "arguments_of", lambda told: whole(told) | {"rows_each": told.rows_each})
    with planted(tmp_path, made) as run:
        found = advise(run)
        (model,) = found.memory
        assert "rows" not in model.left_out
        (one,) = [each for each in found.suggestions if each.kind == "rows"]
        own = Replayer(run)
        asked = Settings(packer="trl.fixed_rows", rows_each=one.values["per_device_train_batch_size"])
        risk = risk_of(model, [sorted(own.after(at, asked).micro_batches) for at in range(len(own))])
    times = one.values["per_device_train_batch_size"] // 8
    assert times in (2, 4, 8)
    assert one.values == {"per_device_train_batch_size": 8 * times, "gradient_accumulation_steps": 16 // times}
    assert one.before == {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 16}
    assert risk <= 0.02
    value, reach = one.gain_s
    before, after = one.what_if.number("micro_batches")
    assert value == pytest.approx(0.2 * (before - after), abs=max(reach, 0.02))
    assert one.gains[0].startswith("update peaks at ")


def test_4_a_cap_in_the_place_of_fixed_rows_is_lowered_until_its_risk_is_small_enough(tmp_path):
    """Some steps had fewer rows in each micro-batch, so that what a row needs is known."""
    made = Planted(cap=None, rows_in={1: 2, 2: 1, 3: 2}, total=43 * GIB, config=config(dynamic=False))
    with planted(tmp_path, made) as run:
        (one,) = [each for each in advise(run).suggestions if each.kind == "dynamic"]
        cap, today = one.values[CAP], computed(run)
        risks = [risk_under(run, tokens) for tokens in (cap, today)]
    assert cap < today
    assert risks[0] <= 0.02 < risks[1]
