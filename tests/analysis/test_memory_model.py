"""Peaks of micro-batches, planted by known coefficients: they come back, and what can't be told is said."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from probe.analysis import memory_model
from probe.analysis.advice import advise
from probe.analysis.memory_model import _of_phase, memory_models, risk_of, room_over_steps, rooms
from probe.analysis.tail import Tail
from probe.analysis.time_model import time_models
from probe.records import GIB
from probe.text import size
from tests.analysis.planted_batches import MIB, Planted, planted
from tests.sample_run import open_run, sample_rows


def model_of(path, made):
    with planted(path, made) as run:
        (found,) = memory_models(run, vocabulary=152_000)
        return found


def test_3_known_coefficients_are_recovered_within_2_percent(tmp_path):
    found = model_of(tmp_path, Planted(steps=40, noise=4 * MIB))
    assert (found.role, found.phase, found.why, found.left_out) == ("actor", "update_actor", "", ())
    for name, planted_value in (("tokens", 3.0 * MIB), ("longest", 0.5 * MIB), ("rows", 20.0 * MIB)):
        value, error = found.coefficient(name)
        assert value == pytest.approx(planted_value, rel=0.02)
        assert error < 0.02 * planted_value
    assert found.floor_bytes == pytest.approx(20 * GIB, rel=0.02)
    assert found.bytes_per_token_and_entry == pytest.approx(3.0 * MIB / 152_000, rel=0.02)
    assert found.capacity_bytes == 78 * GIB
    assert found.room_bytes == pytest.approx(77 * GIB)  # without what is reserved above what is allocated


def test_3_its_intervals_hold_93_to_97_percent_of_2000_new_micro_batches(tmp_path):
    found = model_of(tmp_path / "seen", Planted(steps=40))
    random = np.random.default_rng(7)
    with planted(tmp_path / "new", Planted(steps=130, seed=1)) as other:
        asked = other.sql("select tokens, list_max(lengths) as longest, sequences from micro_batches limit 2000")
    new = asked.to_numpy(dtype=float)
    assert len(new) == 2000
    true = 20 * GIB + new @ np.array([3.0, 0.5, 20.0]) * MIB + random.normal(0, 64 * MIB, 2000)
    _, low, high = found.predict(new)
    assert 0.93 <= np.mean((low <= true) & (true <= high)) <= 0.97


def test_3_drift_stands_apart_from_what_the_tokens_cost(tmp_path):
    found = model_of(tmp_path, Planted(steps=40, drift=100 * MIB))
    assert found.drift_bytes_per_step == pytest.approx(100 * MIB, rel=0.05)
    assert found.coefficient("tokens")[0] == pytest.approx(3.0 * MIB, rel=0.02)
    assert found.floor_bytes == pytest.approx(20 * GIB + 40 * 100 * MIB, rel=0.02)  # at the last step
    assert model_of(tmp_path / "without", Planted(steps=40)).drift_bytes_per_step == 0


def test_3_too_little_variety_says_so_and_proposes_the_cheapest_experiment(tmp_path):
    alike = Planted(cap=4096, lengths=lambda random, rows: random.integers(1015, 1024, rows))
    found = model_of(tmp_path, alike)
    assert found.fit is None
    assert found.why.startswith("Its micro-batches are all alike")
    assert found.experiment == "Run one step with a cap of 2,048 tokens: half of today's can't run out of memory."
    assert found.predict([[4096, 1024, 4]]) is None
    assert np.isnan(found.coefficient("tokens")[0])
    few = model_of(tmp_path / "few", Planted(ranks=1, rows=8, steps=2, mini_batches=1))
    assert few.why.startswith("Only ")


def test_3_memory_of_a_process_and_peaks_that_are_older_are_no_peaks_of_micro_batches(tmp_path):
    with open_run(tmp_path / "rss", sample_rows(ranks=2, steps=4, accelerator=False)) as run:
        (model, *_) = memory_models(run)
        assert model.why == "Memory is the process's resident set, which doesn't fall when tensors are freed."
        assert (model.fit, model.experiment) == (None, "")
    with planted(tmp_path / "older", Planted(peak_kind="at_most")) as run:
        (model,) = memory_models(run)
        assert model.why.startswith("The peaks aren't those of the micro-batches alone")
        assert (model.fit, model.experiment) == (None, "")


def test_3_what_only_repeats_the_tokens_is_left_out_and_named(tmp_path):
    # Four rows of one length in each micro-batch: its longest row says what its tokens say, and so do they all.
    made = Planted(
        cap=None, balanced=False, lengths=lambda random, rows: np.repeat(random.integers(100, 2000, rows // 4), 4)
    )
    found = model_of(tmp_path, made)
    assert set(found.left_out) == {"rows", "longest"}
    assert found.coefficient("tokens")[0] == pytest.approx((3.0 + 0.5 / 4) * MIB, rel=0.02)
    assert found.coefficient("longest") == (0.0, 0.0)


def test_3_of_a_large_run_the_newest_steps_alone_tell(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_model, "MOST", 100)
    with planted(tmp_path, Planted(steps=10)) as run:
        (found,), (took,) = memory_models(run), time_models(run)
        steps = run.sql("select step, count(*) as n from micro_batches group by step order by step desc")
    through = steps["n"].cumsum()
    assert through.max() > 100
    assert found.micro_batches == took.micro_batches == through[through <= 100].max()


def test_3_risk_grows_with_what_micro_batches_hold_and_is_certain_at_the_ends(tmp_path):
    found = model_of(tmp_path, Planted(steps=20))
    room = (77 * GIB - 20 * GIB) / (3.0 * MIB)  # tokens of one row of no width, roughly
    steps = [[(int(share * room), 0, 0)] for share in (0.5,)]
    assert risk_of(found, steps) < 1e-6
    assert risk_of(found, [[(int(1.1 * room), 0, 0)]]) > 0.999
    risks = [risk_of(found, [[(int(share * room), 0, 0)]]) for share in (0.97, 0.98, 0.985, 0.99, 0.995, 1.0)]
    assert risks == sorted(risks)


def test_3_the_risk_is_the_share_of_resampled_runs_that_pass_the_capacity(tmp_path):
    found, resampled = model_of(tmp_path, Planted(steps=40)), 1000
    room = (found.room_bytes - 20 * GIB - 480 * MIB) / (3.0 * MIB)  # tokens of four rows, the longest of 800
    # Steps of two micro-batches; what a run passes the capacity in is the last step, and its noise.
    steps = [[(int(share * room), 800, 4), (int(0.4 * room), 500, 6)] for share in (0.5, 0.9, 0.985, 0.9975)]
    random = np.random.default_rng(3)
    coefficients = random.multivariate_normal(found.fit.coefficients, found.fit.covariance, resampled)
    expected = np.stack([found.regressors(one) @ coefficients.T for one in steps])  # (steps, micro-batches, runs)
    passed = 0
    for run in range(resampled):
        peaks = expected[random.integers(0, len(steps), 1000), :, run]
        passed += bool((peaks + random.normal(0, found.fit.noise_at(peaks)) > found.room_bytes).any())
    direct = passed / resampled
    assert 0.2 < direct < 0.8
    # Both shares are of runs by chance, 200 and as many as here: at most binomial, 99 of 100 such differences are less.
    tolerance = 2.576 * np.sqrt(direct * (1 - direct) * (1 / 200 + 1 / resampled))
    assert tolerance < 0.1
    assert risk_of(found, steps) == pytest.approx(direct, abs=tolerance)
    assert risk_of(found, steps, runs=20_000) == pytest.approx(direct, abs=tolerance / 2)


def test_6_seconds_come_back_and_noise_is_met_with_silence(tmp_path):
    with planted(tmp_path / "a", Planted(steps=20)) as run:
        (found,) = time_models(run)
        assert found.fit["micro_batches"] == pytest.approx(0.05, rel=0.1)
        assert found.fit["tokens"] == pytest.approx(2e-5, rel=0.1)
        assert found.fit["squares"] == pytest.approx(1e-9, rel=0.2)
    with planted(tmp_path / "b", Planted(steps=20, per_token_s=0, per_square_s=0)) as run:
        assert time_models(run) == []  # a time that goes by nothing that a setting changes


#: Noise of a peak in bytes, as (random, what is expected). Peaks that never fall below it are skewed.
NOISES = {
    "grows with the micro-batch": lambda random, expected: (
        (expected - 20 * GIB) * random.normal(0, 0.02, len(expected))
    ),
    "heavy tails": lambda random, expected: random.laplace(0, 64 * MIB, len(expected)),
    "never below": lambda random, expected: random.exponential(64 * MIB, len(expected)),
    "within bounds": lambda random, expected: random.uniform(-64 * MIB, 64 * MIB, len(expected)),
}


def drawn(random, count):
    """Micro-batches of one to twelve rows as a model is from them, and their expected peaks."""
    rows = random.integers(1, 13, count)
    lengths = np.clip(random.lognormal(6.3, 0.7, (count, 12)), 20, 4000) * (np.arange(12) < rows[:, None])
    told = np.c_[lengths.sum(1), lengths.max(1), rows].astype(int)
    return told, 20 * GIB + told @ np.array([3.0, 0.5, 20.0]) * MIB


def framed(told, peaks, reserved_above):
    made = {"role": "actor", "phase": "update_actor", "source": "cuda", "peak_kind": "exact", "process": "a", "rank": 0}
    frame = pd.DataFrame(told, columns=["tokens", "longest", "rows"]).assign(**made, peak=peaks)
    return frame.assign(step=np.arange(len(told)) // 12 + 1, reserved_peak=peaks + reserved_above)


#: Noise of about 64 MiB, and how many times as high as it is told a risk may be, as the mean and the median over runs.
TAILS = {
    "gauss": (lambda random, count: random.normal(0, 64 * MIB, count), (1, 1)),
    "laplace": (lambda random, count: random.laplace(0, 45 * MIB, count), (4, 2)),
    "exponential": (lambda random, count: random.exponential(64 * MIB, count), (4, 2)),
    "t4": (lambda random, count: 45 * MIB * random.standard_t(4, count), (12, 8)),
}
ROOM = {"a": {"total": 80 * GIB, "beside": 2 * GIB, "others": 0}}


def room_at(model, steps, risk):
    """The model with so much memory that the risk is as large."""
    low, high = 20 * GIB, 200 * GIB
    for _ in range(24):
        middle = (low + high) / 2
        found = replace(model, capacity_bytes=middle)
        low, high = (low, middle) if risk_of(found, steps) <= risk else (middle, high)
    return replace(model, capacity_bytes=high)


@pytest.mark.parametrize("noise", TAILS)
def test_3_where_2_percent_are_told_not_many_more_run_out_of_memory_whatever_the_noise(noise):
    draw, (mean, median) = TAILS[noise]
    random, one, passed = np.random.default_rng(18), (8000, 800, 8), []
    for _ in range(12):
        told, expected = drawn(random, 2000)
        found = _of_phase("a", "u", framed(told, expected + draw(random, 2000), 0), ROOM, None, None)
        found = room_at(found, [[one] * 4], 0.02)
        above = found.room_bytes - (20 * GIB + np.array(one) @ np.array([3.0, 0.5, 20.0]) * MIB)
        share = np.mean(draw(random, 4_000_000) > above)
        passed.append(1 - (1 - share) ** 4000)  # in 1,000 steps of four
    assert np.mean(passed) < 0.02 * mean
    assert np.median(passed) < 0.02 * median


def test_3_of_gaussian_noise_the_tail_costs_little_memory():
    random, one = np.random.default_rng(19), (8000, 800, 8)
    told, expected = drawn(random, 3000)
    found = _of_phase("a", "u", framed(told, expected + random.normal(0, 64 * MIB, 3000), 0), ROOM, None, None)
    above = room_at(found, [[one] * 4], 0.02).room_bytes - found.predict([one])[0][0]
    assert 4.2 < above / (64 * MIB) < 6.0  # 4.4 standard deviations are the quantile


def test_3_gross_peaks_count_in_the_risk_and_no_cap_is_raised_past_them(tmp_path):
    config = {"actor_rollout_ref": {"actor": {"ppo_max_token_len_per_gpu": 8192, "use_dynamic_bsz": True}}}
    with planted(tmp_path, Planted(steps=20, gross=0.04, total=60 * GIB, config=config)) as run:
        (model,) = memory_models(run)
        assert model.largest_peak_bytes > model.room_bytes
        assert risk_of(model, [[(8000, 800, 8)] * 16]) > 0.99
        assert [one for one in advise(run).suggestions if one.kind == "cap" and not one.lowers] == []
        assert "its largest peak is 2.14 GiB above what is free." in repr(run.advise()).replace("\n", " ")


def test_3_all_micro_batches_of_a_step_count_in_the_risk(monkeypatch):
    random = np.random.default_rng(20)
    told, expected = drawn(random, 2000)
    found = _of_phase("a", "u", framed(told, expected + random.normal(0, 64 * MIB, 2000), 0), ROOM, None, None)
    one = (8000, 800, 8)
    found = room_at(found, [[one]], 0.01)
    many, apart = risk_of(found, [[one] * 256], length=100), risk_of(found, [[one]], length=25_600)
    assert many == pytest.approx(apart)
    assert many > 5 * risk_of(found, [[one] * 32], length=100)
    # Of unlike ones a few stand for the others.
    unlike = [[(int(tokens), 800, 8) for tokens in random.uniform(7000, 8000, 500)] for _ in range(10)]
    found = room_at(found, unlike, 0.05)
    few = risk_of(found, unlike)
    monkeypatch.setattr(memory_model, "_LOOKED_AT", 100_000)
    assert risk_of(found, unlike) == pytest.approx(few, rel=0.1)


def test_3_a_bound_within_the_recorded_noise_is_passed_as_often_as_was_recorded():
    noise = np.r_[np.random.default_rng(21).normal(0, 1, 960), np.linspace(50, 90, 40)]
    tail = Tail(noise, 50, np.random.default_rng(0))
    above = 1 - np.exp(tail.log_below(np.full((1, 50), 49.0)))
    assert (above >= 0.04 - 1e-9).all()
    beyond = 1 - np.exp(tail.log_below(np.full((1, 50), 200.0)))
    assert 0 < beyond.mean() < 0.01
    exact = Tail(np.zeros(30), 10, np.random.default_rng(0))
    assert (exact.log_below(np.full((1, 10), 8.0)) > -1e-12).all()


def test_3_how_much_room_the_steps_left_is_told(tmp_path):
    with planted(tmp_path / "a", Planted(steps=40, drift=50 * MIB)) as run:
        found = run.advise()
        (model,), (room,) = found.memory, found.room
        assert (room.role, room.phase, room.steps, room.at_an_end) == ("actor", "update_actor", 40, 4)
        assert room.least_bytes == pytest.approx(model.left_bytes, abs=2)
        free = room_over_steps(run).sort_values("step")["room_bytes"] - model.reserved_above_bytes
        assert room.first_bytes == pytest.approx(free[:4].median())
        assert room.last_bytes == pytest.approx(free[-4:].median())
        assert room.last_bytes < room.first_bytes
        told = repr(found).replace("\n", " ")
        assert f"update_actor over 40 steps: {size(room.first_bytes)} free in the first 4 (median)" in told
        assert f"least in step {room.least_step}: {size(room.least_bytes)} free." in told
        (line,) = found.to_dict()["room_over_steps"]
        assert (line["phase"], line["least_step"]) == ("update_actor", room.least_step)
    with planted(tmp_path / "tight", Planted(steps=12, total=44 * GIB)) as run:
        told = repr(run.advise()).replace("\n", " ")
        assert "MiB too little." in told or "GiB too little." in told
        assert "above what is free" in told
        assert "-" not in told.split("needs the most memory")[1]
        peaks = [one.sentence for one in run.findings() if one.sentence.startswith("The largest peak of GPU memory")]
        assert "more than the device's 44.0 GiB" in peaks[0]
        assert "-" not in peaks[0].split("longest")[1]
    with planted(tmp_path / "older", Planted(peak_kind="at_most")) as run:
        assert rooms(run, memory_models(run)) == []  # whose peaks are of older work
    with open_run(tmp_path / "rss", sample_rows(ranks=2, steps=4, accelerator=False)) as run:
        assert rooms(run, memory_models(run)) == []


@pytest.mark.parametrize("noise", NOISES)
def test_3_intervals_hold_93_to_97_percent_under_other_noise_too_of_the_largest_micro_batches_as_well(noise):
    random, inside, largest = np.random.default_rng(16), [], []
    for _ in range(20):
        told, expected = drawn(random, 500)
        found = _of_phase(
            "actor", "update_actor", framed(told, expected + NOISES[noise](random, expected), 0), {}, None, 1
        )
        new, true = drawn(random, 2000)
        _, low, high = found.predict(new)
        held = (low <= (peaks := true + NOISES[noise](random, true))) & (peaks <= high)
        inside.append(held.mean())
        largest.append(held[np.argsort(-true)[:200]].mean())
    assert 0.93 <= np.mean(inside) <= 0.97
    assert 0.92 <= np.mean(largest) <= 0.98  # which decide on the largest cap


def test_3_a_few_gross_errors_among_the_peaks_do_not_move_the_coefficients(tmp_path):
    made = Planted(steps=40, noise=4 * MIB)
    clean = model_of(tmp_path / "clean", made)
    wrong = model_of(tmp_path / "wrong", replace(made, gross=0.04))
    assert wrong.micro_batches == clean.micro_batches
    assert 0.03 < wrong.fit.outliers / wrong.micro_batches < 0.06
    for name, planted_value in (("tokens", 3.0 * MIB), ("longest", 0.5 * MIB), ("rows", 20.0 * MIB)):
        assert wrong.coefficient(name)[0] == pytest.approx(planted_value, rel=0.02)
    assert wrong.floor_bytes == pytest.approx(clean.floor_bytes, rel=0.002)
    sure = [one.fit.noise_at(one.fit.mean(one.regressors([[8192, 1000, 12]])))[0] for one in (clean, wrong)]
    assert sure[1] == pytest.approx(sure[0], rel=0.2)


def test_3_what_is_reserved_above_is_what_99_of_a_hundred_micro_batches_stay_under(tmp_path):
    random = np.random.default_rng(17)
    told, expected = drawn(random, 1000)
    above = random.permutation(np.arange(1000)) * MIB
    room = {"a": {"total": 80 * GIB, "beside": 2 * GIB, "others": 0}}
    found = _of_phase("actor", "update_actor", framed(told, expected, above), room, None, None)
    assert found.reserved_above_bytes == pytest.approx(0.99 * 999 * MIB)
    assert found.room_bytes == 78 * GIB - found.reserved_above_bytes
    below = _of_phase("actor", "update_actor", framed(told, expected, -above), room, None, None)
    assert below.reserved_above_bytes == 0  # a peak that was reserved before it was measured leaves no room
    unknown = _of_phase("actor", "update_actor", framed(told, expected, np.nan), room, None, None)
    assert unknown.reserved_above_bytes == 0
    # A run whose reserve varies has less room than one where it is always the mean of it.
    varied = model_of(tmp_path / "varied", Planted(steps=20, above=1 * GIB, above_more=2 * GIB))
    assert varied.reserved_above_bytes == pytest.approx(3 * GIB, rel=0.02)
    assert varied.room_bytes == pytest.approx(75 * GIB, rel=0.002)


@pytest.mark.parametrize("phase", ["compute_log_prob", "update_actor"])
def test_3_a_token_of_a_log_prob_phase_takes_its_logits_and_they_are_told_by_entry(tmp_path, phase):
    entries, each = 152_000, 2  # of the vocabulary, in half precision
    made = Planted(phase=phase, steps=20, per_token=each * entries, per_longest=0.0, noise=4 * MIB)
    made = replace(made, config={"actor_rollout_ref": {"model": {"vocab_size": entries}}})
    with planted(tmp_path, made) as run:
        (found,) = memory_models(run)
    assert found.phase == phase
    assert found.coefficient("tokens")[0] == pytest.approx(each * entries, rel=0.02)
    assert found.bytes_per_token_and_entry == pytest.approx(each, rel=0.02)


@pytest.mark.parametrize("each", [1, 4])
def test_3_what_rows_cost_is_told_only_where_they_varied(each):
    random, told, held = np.random.default_rng(16), 0, 0
    room = {"a": {"total": 80 * GIB, "beside": 0, "others": 0}}
    for _ in range(100):
        per_row = random.uniform(0, 600) * MIB
        tokens = each * random.integers(300, 2000, 200)
        longest = np.minimum(tokens, tokens / each * random.uniform(1, 1.8, 200))
        seen = np.stack([tokens, longest, np.full(200, each)], axis=1)
        coefficients = np.array([3.0 * MIB, 0.5 * MIB, per_row])
        peaks = 20 * GIB + seen @ coefficients + random.normal(0, 64 * MIB, 200)
        model = _of_phase("actor", "update_actor", framed(seen, peaks, np.nan), room, None, None)
        more = [(8000, 1200, 8)]
        assert np.isnan(model.predict(more)[0]).all()
        assert np.isnan(model.largest(more)).all()
        assert risk_of(model, [more]) is None
        assert model.untold(more).startswith(f"Each micro-batch had {each} row")
        _, low, high = model.largest([tuple(seen[0])])
        told += 1
        held += low <= 20 * GIB + seen[0] @ coefficients + random.normal(0, 64 * MIB) <= high
    assert held / told >= 0.88
