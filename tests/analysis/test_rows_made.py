"""More rows in TRL's micro-batches, where a run has shown what a row needs."""

from __future__ import annotations

import numpy as np
import pytest

from probe.analysis.advice import advise
from probe.analysis.memory_model import risk_of
from probe.analysis.what_if import Replayer, Settings
from probe.records import GIB
from tests.analysis import planted_batches
from tests.analysis.planted_batches import MIB, Planted, planted

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
